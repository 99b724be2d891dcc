"""Host contention: by what factor jobs that run at once slow each other down, and what a machine was measured to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from lib.schedule import portable

Class = tuple[int, int]  # (kind of job, type of device)
ALONE = ("nothing", "none")  # what stands in the table beside a job that ran alone


@dataclass(frozen=True)
class Contention:
    """Slowdowns on one host: ``slowdown[kind, type, kind beside, type beside]``, 1 where neither notices the other.

    The last kind stands for jobs of no known kind. Slowdowns of several neighbours multiply. ``cores`` are the host's: when
    running jobs ask for more, all that need some share them by time.
    """

    slowdown: np.ndarray
    cores: float = np.inf

    @classmethod
    def of_types(cls, slowdown: np.ndarray, cores: float = np.inf) -> "Contention":
        """Return slowdowns (types, types) that hold for every kind of job."""
        return cls(np.asarray(slowdown, float)[None, :, None, :], cores)

    @classmethod
    def of_table(cls, table: pd.DataFrame, kinds: Sequence[str], types: Sequence[str], cores: float = np.inf) -> "Contention":
        """Return what the table ``contention`` says of named kinds and types.

        A pair that was not measured, and a job of no known kind, count as the median of all pairs of those types, 1 if none.
        """
        held = {(row.workload_id, row.device_type, row.beside, row.beside_type): row.slowdown for row in table.itertuples()}
        width = len(types)
        middle = np.ones((width, width))
        for (one, other), part in table[table["beside"] != ALONE[0]].groupby(["device_type", "beside_type"]):
            if one in types and other in types:
                middle[types.index(one), types.index(other)] = part["slowdown"].median()
        found = np.broadcast_to(middle[None, :, None, :], (len(kinds) + 1, width, len(kinds) + 1, width)).copy()
        for i, a in enumerate(kinds):
            for j, b in enumerate(kinds):
                for s, one in enumerate(types):
                    for t, other in enumerate(types):
                        found[i, s, j, t] = held.get((a, one, b, other), found[i, s, j, t])
        return cls(found, cores)

    def among(self, types: np.ndarray) -> "Contention":
        """Return the same for some of the types of device."""
        return replace(self, slowdown=self.slowdown[:, types][:, :, :, types])

    @cached_property
    def _logs(self) -> np.ndarray:
        return portable.log(self.slowdown)

    def beside(self, kind: int, place: int) -> int:
        """Return the row of a kind of job: that of unknown ones where it is -1 or beyond."""
        last = len(self.slowdown) - 1
        return kind if 0 <= kind < last else last

    def rates(self, running: Mapping[int, Class], wanted_cores: float = 0.0) -> dict[int, float]:
        """Return the speed of each running device, 1 where it is alone; ``wanted_cores`` are those that all want together."""
        classes = {device: (self.beside(kind, place), place) for device, (kind, place) in running.items()}
        if not classes:
            return {}
        kinds, places = (np.array(part) for part in zip(*classes.values(), strict=True))
        slowed = self.slowdown[kinds[:, None], places[:, None], kinds[None], places[None]]
        np.fill_diagonal(slowed, 1.0)
        share = min(1.0, self.cores / wanted_cores) if wanted_cores > 0 else 1.0
        return {device: float(rate) for device, rate in zip(classes, share / slowed.prod(axis=1), strict=True)}

    def mutual(self, one: Class, others: Sequence[Class]) -> float:
        """Return the log slowdown that a job meets and causes, summed over its neighbours."""
        kind, place = self.beside(*one), one[1]
        return float(sum(self._logs[kind, place, self.beside(*other), other[1]]
                         + self._logs[self.beside(*other), other[1], kind, place] for other in others))

    def expected(self, kinds: np.ndarray, type_of: np.ndarray) -> np.ndarray:
        """Return the factor (jobs, types) by which jobs of a mix take longer when every other device is busy with such jobs.

        ``kinds`` (jobs), ``type_of`` (devices): the neighbours of a job are drawn from the mix.
        """
        rows = np.array([self.beside(int(kind), 0) for kind in kinds])
        mean = self._logs[:, :, rows, :].mean(axis=2)  # (kinds, types, types beside)
        count = np.bincount(type_of, minlength=self._logs.shape[1]).astype(float)
        others = np.maximum(count[None] - np.eye(len(count)), 0.0)  # (types, types beside): itself left out
        return portable.exp((mean * others[None]).sum(axis=2))[rows]

    def ignoring_kinds(self) -> "Contention":
        """Return the same with every pair of kinds as their mean: what is known without having measured each pair."""
        mean = portable.exp(self._logs.mean(axis=(0, 2), keepdims=True))
        return replace(self, slowdown=np.broadcast_to(mean, self.slowdown.shape).copy())
