"""The visits of a campaign: what one is, and the file that keeps them, one line of JSON each."""

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field, model_validator

from lib import locks, store
from lib.config.base import Count, Strict, build, mapping
from lib.errors import refused
from lib.measure.disturbance import GpuUse
from lib.measure.networks.case import Case

Key = tuple[int, str, str]  # round, network and memory


class PassEnergy(BaseModel, extra="forbid"):
    """The energy of one pass, and how it was measured: columns of ``networks``."""

    energy_j: float
    power_w: float
    idle_w: float
    energy_method: str
    energy_n: int
    energy_disagreement: float
    energy_reason: str


class Result(BaseModel, extra="forbid", populate_by_name=True):
    """The measurement of one case: its times (one per pass), peak memory, energy and GPU, or the reason of its failure.

    ``reference_kernel_ms`` are times of the reference kernel beside each pass. ``gpu`` is None off a GPU.
    """

    case: Case
    reason: str = ""
    samples_ms: list[float] = []
    reference_kernel_ms: list[float] = Field([], alias="yardstick_ms")
    rss_mb: float = np.nan
    tensors_mb: float = np.nan
    prepare_s: float = np.nan
    energy: PassEnergy | None = None  # older files have none
    gpu: GpuUse | None = None

    @model_validator(mode="after")
    def _measured_or_failed(self) -> "Result":
        if not self.reason and not len(self.samples_ms) == len(self.reference_kernel_ms) > 0:
            raise ValueError("has neither passes nor a reason")
        return self


class Visit(Strict):
    """One line of the file: the cases of one network in one process."""

    round: Count
    network: str
    memory: str
    device: str
    results: list[Result]
    identity: store.Facts

    @property
    def key(self) -> Key:
        """Return its round, network and memory."""
        return self.round, self.network, self.memory

    @property
    def line(self) -> bytes:
        """Return it as a line of the file."""
        return (json.dumps(self.model_dump(by_alias=True)) + "\n").encode()


def opened(path: Path) -> AbstractContextManager[store.Lines]:
    """Open the file to append to, this process's alone: another process waits, as for a device.

    Raises InputError for a file that holds something else.
    """
    return closing(store.Lines(path, resume=True, timeout_s=locks.PATIENCE_S, check=lambda: list(recorded(path))))


def read(path: Path, device_id: str, groups: Mapping[tuple[str, str], list[Case]]) -> dict[Key, Visit]:
    """Return the visits to a device whose cases are still wanted (by network and memory); a later one replaces an earlier."""
    return {visit.key: visit for visit in recorded(path) if visit.device == device_id
            and groups.get((visit.network, visit.memory)) == [result.case for result in visit.results]}


def recorded(path: Path) -> Iterator[Visit]:
    """Yield the visits of a file, without a torn last line; InputError names a line that is no visit."""
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        where = f"{path}: line {number}"
        with refused(f"{where} is no visit: "):
            content = json.loads(text)
        yield build(Visit, mapping(content, where), where)
