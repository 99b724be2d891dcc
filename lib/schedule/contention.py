"""Host contention: the measured factors by which jobs that run at once slow each other down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from lib.schedule import portable

Occupant = tuple[int, int]  # (job class, device type)
ALONE = ("nothing", "none")  # in the table: the neighbour of a job that ran alone


@dataclass(frozen=True)
class Contention:
    """Slowdowns on one host: ``slowdown[job class, type, neighbour's class, neighbour's type]``, 1: no effect.

    The last class stands for jobs of unknown class. Slowdowns by several neighbours multiply. When running jobs ask for more
    than the host's ``cores``, they share them by time.
    """

    slowdown: np.ndarray
    cores: float = np.inf

    @classmethod
    def from_table(cls, table: pd.DataFrame, classes: Sequence[str], types: Sequence[str]) -> "Contention":
        """Return the slowdowns of named job classes and device types from the table ``contention``.

        A pair that was not measured, and a job of unknown class, get the median of all pairs of those types, or 1.
        """
        pairs = table[(table["beside"] != ALONE[0]) & table["device_type"].isin(types) & table["beside_type"].isin(types)]
        width, rows = len(types), len(classes) + 1
        slowdown = np.ones((rows, width, rows, width))
        for (here, there), part in pairs.groupby(["device_type", "beside_type"]):
            slowdown[:, types.index(here), :, types.index(there)] = part["slowdown"].median()
        for row in pairs[pairs["workload_id"].isin(classes) & pairs["beside"].isin(classes)].itertuples():
            slowdown[classes.index(row.workload_id), types.index(row.device_type), classes.index(row.beside),
                     types.index(row.beside_type)] = row.slowdown
        return cls(slowdown)

    def subset(self, types: np.ndarray) -> "Contention":
        """Return the same for some of the device types."""
        return replace(self, slowdown=self.slowdown[:, types][:, :, :, types])

    @cached_property
    def _logs(self) -> np.ndarray:
        return portable.log(self.slowdown)

    def _row(self, job_class: int) -> int:
        """Return the row of a job class, the last for an unknown one."""
        last = len(self.slowdown) - 1
        return job_class if 0 <= job_class < last else last

    def rates(self, running: Mapping[int, Occupant], wanted_cores: float = 0.0) -> dict[int, float]:
        """Return the speed of each running device, 1: alone; ``wanted_cores`` are those that all jobs ask for."""
        if not running:
            return {}
        rows = np.array([self._row(job_class) for job_class, _ in running.values()])
        types = np.array([device_type for _, device_type in running.values()])
        slowed = self.slowdown[rows[:, None], types[:, None], rows[None], types[None]]
        np.fill_diagonal(slowed, 1.0)
        share = min(1.0, self.cores / wanted_cores) if wanted_cores > 0 else 1.0
        return {device: float(rate) for device, rate in zip(running, share / slowed.prod(axis=1), strict=True)}

    def mutual(self, occupant: Occupant, neighbours: Sequence[Occupant]) -> float:
        """Return the log slowdown that a job suffers and causes, summed over its neighbours."""
        logs, row, here = self._logs, self._row(occupant[0]), occupant[1]
        return float(sum(logs[row, here, self._row(job_class), there] + logs[self._row(job_class), there, row, here]
                         for job_class, there in neighbours))

    def expected(self, job_class: np.ndarray, type_of: np.ndarray) -> np.ndarray:
        """Return the factor (jobs, types) by which jobs of a mix take longer when every other device runs jobs of the mix.

        ``job_class`` (jobs), ``type_of`` (devices): the neighbours of a job are drawn from the mix.
        """
        rows = np.array([self._row(int(number)) for number in job_class])
        mean = self._logs[:, :, rows, :].mean(axis=2)  # (classes, types, neighbour's types)
        count = np.bincount(type_of, minlength=self._logs.shape[1]).astype(float)
        neighbours = np.maximum(count[None] - np.eye(len(count)), 0.0)  # (types, neighbour's types), without the job itself
        return portable.exp((mean * neighbours[None]).sum(axis=2))[rows]

    def averaged(self) -> "Contention":
        """Return the same with every pair of classes replaced by their mean, as if pairs had not been measured."""
        mean = portable.exp(self._logs.mean(axis=(0, 2), keepdims=True))
        return replace(self, slowdown=np.broadcast_to(mean, self.slowdown.shape).copy())
