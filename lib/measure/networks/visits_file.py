"""The visits of a campaign: what one is, and the file that keeps them, one line of JSON each."""

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, model_validator

from lib import locks, store
from lib.config.base import Count, Strict, build, mapping
from lib.errors import refused
from lib.measure.disturbance import GpuUse
from lib.work.run_config import RunConfig, layout_of

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


def _as_fields(case: Any) -> Any:
    """Return fields of a ``RunConfig`` from its columns."""
    if not isinstance(case, dict) or "channels_last" not in case:
        return case
    others = {name: value for name, value in case.items() if name != "channels_last"}
    return others | {"layout": layout_of(case)}


class Result(BaseModel, extra="forbid", populate_by_name=True):
    """The measurement of one case: the times of its passes, memory, energy and GPU, or why it failed.

    ``reference_kernel_ms`` are times of the reference kernel beside each pass; ``gpu`` is None off a
    GPU.
    """

    case: Annotated[RunConfig, BeforeValidator(_as_fields),
                    PlainSerializer(lambda config: config.columns)]
    reason: str = ""
    samples_ms: list[float] = []
    reference_kernel_ms: list[float] = Field([], alias="yardstick_ms")
    rss_mb: float = np.nan
    tensors_mb: float = np.nan
    prepare_s: float = np.nan
    energy: PassEnergy | None = None
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
    return closing(store.Lines(path, resume=True, timeout_s=locks.PATIENCE_S,
                               check=lambda: list(recorded(path))))


def read(path: Path, device_id: str,
         groups: Mapping[tuple[str, str], list[RunConfig]]) -> dict[Key, Visit]:
    """Return the visits to a device of the cases that are wanted, by network and memory; the last count."""
    return {visit.key: visit for visit in recorded(path) if visit.device == device_id
            and groups.get((visit.network, visit.memory)) == [one.case for one in visit.results]}


def recorded(path: Path) -> Iterator[Visit]:
    """Yield the visits of a file, without a torn last line; InputError names a line that is no visit."""
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        where = f"{path}: line {number}"
        with refused(f"{where} is no visit: "):
            content = json.loads(text)
        yield build(Visit, mapping(content, where), where)
