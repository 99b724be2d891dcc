"""The file of a campaign's visits, a line of JSON each: it grows while networks are measured, and is gone on with."""

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, model_validator

from lib import locks, store
from lib.config.base import Count, Strict, build, mapping
from lib.errors import InputError, one_line
from lib.measure.gpus.watch import GpuUse
from lib.measure.networks.case import Case

Results = list[dict[str, Any]]
Key = tuple[int, str, str]  # round, network and memory
Visits = dict[Key, Results]


class _Energy(BaseModel, extra="forbid"):
    """The energy of one pass, and how it was got: columns of ``networks``."""

    energy_j: float
    power_w: float
    idle_w: float
    energy_method: str
    energy_n: int
    energy_disagreement: float
    energy_reason: str


class _Result(BaseModel, extra="forbid"):
    """One case of a visit, see end_to_end.in_a_process."""

    case: Case
    reason: str
    samples_ms: list[float] = []
    kernel_ms: list[float] = Field([], alias="yardstick_ms")  # of the reference kernel
    rss_mb: float = np.nan
    tensors_mb: float = np.nan
    energy: _Energy | None = None  # older files have none
    gpu: GpuUse | None = None

    @model_validator(mode="after")
    def _measured_or_failed(self) -> "_Result":
        if not self.reason and not len(self.samples_ms) == len(self.kernel_ms) > 0:
            raise ValueError("has neither passes nor a reason")
        return self


class _Visit(Strict):
    """One line of the file."""

    round: Count
    network: str
    memory: str
    device: str
    results: list[_Result]
    identity: dict[str, Any]


def opened(path: Path) -> AbstractContextManager[store.Lines]:
    """Open the file to go on with, this process's alone: another waits, as for a device.

    Raises InputError for one that holds something else.
    """
    return closing(store.Lines(path, resume=True, timeout_s=locks.PATIENCE_S, check=lambda: list(recorded(path))))


def line(key: Key, device_id: str, results: Results, identity: dict[str, Any]) -> bytes:
    """Return a visit as a line of the file."""
    visit = _Visit(round=key[0], network=key[1], memory=key[2], device=device_id, results=results, identity=identity)
    return (json.dumps(visit.model_dump(by_alias=True)) + "\n").encode()


def read(path: Path, device_id: str, groups: Mapping[tuple[str, str], list[Case]]) -> tuple[Visits, dict[str, Any]]:
    """Return the visits to a device whose cases are still wanted (by network and memory), and the last identity."""
    visits, identity = {}, {}
    for visit in recorded(path):
        results = [{**result.model_dump(by_alias=True), "case": result.case} for result in visit.results]
        if visit.device == device_id and groups.get((visit.network, visit.memory)) == [row["case"] for row in results]:
            identity = visit.identity or identity
            visits[visit.round, visit.network, visit.memory] = results
    return visits, identity


def recorded(path: Path) -> Iterator[_Visit]:
    """Yield the visits of a file, without a torn last line; InputError names the line that is none."""
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        where = f"{path}: line {number}"
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is no visit: {one_line(error)}") from None
        yield build(_Visit, mapping(content, where), where)
