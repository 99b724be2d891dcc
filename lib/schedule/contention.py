"""Host contention: by what factor jobs that run at once slow each other down, as it was measured on a machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from lib.schedule import portable

Occupant = tuple[int, int]  # (job class, device type)
ALONE = ("nothing", "none")  # in the table: beside what a job ran that ran alone


@dataclass(frozen=True)
class Contention:
    """Slowdowns on one host: ``slowdown[job class, type, class beside, type beside]``, 1 where neither notices the other.

    The last class stands for jobs of no known class. Slowdowns of several neighbours multiply. ``cores`` are the host's: when
    running jobs ask for more, all that need some share them by time.
    """

    slowdown: np.ndarray
    cores: float = np.inf

    @classmethod
    def of_table(cls, table: pd.DataFrame, classes: Sequence[str], types: Sequence[str], cores: float = np.inf) -> "Contention":
        """Return the slowdowns in the table ``contention`` of named job classes and device types.

        A pair that was not measured, and a job of no known class, count as the median of all pairs of those types, 1 if none.
        """
        measured = {(row.workload_id, row.device_type, row.beside, row.beside_type): row.slowdown for row in table.itertuples()}
        width, rows = len(types), len(classes) + 1
        median = np.ones((width, width))
        for (one, other), part in table[table["beside"] != ALONE[0]].groupby(["device_type", "beside_type"]):
            if one in types and other in types:
                median[types.index(one), types.index(other)] = part["slowdown"].median()
        slowdown = np.broadcast_to(median[None, :, None, :], (rows, width, rows, width)).copy()
        for i, a in enumerate(classes):
            for j, b in enumerate(classes):
                for s, one in enumerate(types):
                    for t, other in enumerate(types):
                        slowdown[i, s, j, t] = measured.get((a, one, b, other), slowdown[i, s, j, t])
        return cls(slowdown, cores)

    def subset(self, types: np.ndarray) -> "Contention":
        """Return the same for some of the device types."""
        return replace(self, slowdown=self.slowdown[:, types][:, :, :, types])

    @cached_property
    def _logs(self) -> np.ndarray:
        return portable.log(self.slowdown)

    def _row(self, job_class: int) -> int:
        """Return the row of a job class: that of unknown ones where it is -1 or beyond."""
        last = len(self.slowdown) - 1
        return job_class if 0 <= job_class < last else last

    def rates(self, running: Mapping[int, Occupant], wanted_cores: float = 0.0) -> dict[int, float]:
        """Return the speed of each running device, 1 where it is alone; ``wanted_cores`` are those that all want together."""
        if not running:
            return {}
        rows = np.array([self._row(job_class) for job_class, _ in running.values()])
        types = np.array([device_type for _, device_type in running.values()])
        slowed = self.slowdown[rows[:, None], types[:, None], rows[None], types[None]]
        np.fill_diagonal(slowed, 1.0)
        share = min(1.0, self.cores / wanted_cores) if wanted_cores > 0 else 1.0
        return {device: float(rate) for device, rate in zip(running, share / slowed.prod(axis=1), strict=True)}

    def mutual(self, one: Occupant, others: Sequence[Occupant]) -> float:
        """Return the log slowdown that a job meets and causes, summed over its neighbours."""
        logs, row, here = self._logs, self._row(one[0]), one[1]
        return float(sum(logs[row, here, self._row(other), there] + logs[self._row(other), there, row, here]
                         for other, there in others))

    def expected(self, job_class: np.ndarray, type_of: np.ndarray) -> np.ndarray:
        """Return the factor (jobs, types) by which jobs of a mix take longer when every other device is busy with such jobs.

        ``job_class`` (jobs), ``type_of`` (devices): the neighbours of a job are drawn from the mix.
        """
        rows = np.array([self._row(int(one)) for one in job_class])
        mean = self._logs[:, :, rows, :].mean(axis=2)  # (classes, types, types beside)
        count = np.bincount(type_of, minlength=self._logs.shape[1]).astype(float)
        others = np.maximum(count[None] - np.eye(len(count)), 0.0)  # (types, types beside): itself left out
        return portable.exp((mean * others[None]).sum(axis=2))[rows]

    def averaged(self) -> "Contention":
        """Return the same with every pair of classes as their mean: what is known without having measured each pair."""
        mean = portable.exp(self._logs.mean(axis=(0, 2), keepdims=True))
        return replace(self, slowdown=np.broadcast_to(mean, self.slowdown.shape).copy())
