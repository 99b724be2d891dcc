"""What is believed of job times: predictions, drawn towards what is common to jobs of a kind, corrected by what finished."""

from collections import defaultdict
from math import exp, inf, log

import numpy as np

from lib.schedule.problem import Jobs
from lib.schedule.state import Finished, Predict

_WITHIN = 0.5  # variance in log time, in units of the noise's, with which a kind's correction is believed before it is seen
_MEMORY = 200  # finished jobs over which the size of errors is judged
_LEAST = 12
_EXACT = 0.01  # errors in log time up to this count as none
_MOVED = 0.05  # a change of the belief, in log time, that is worth planning again


class Belief:
    """Believed seconds of jobs on types; learns from every job that finishes.

    A prediction is the sum of a job's size, its kind's preference for a type, and a rest, all in log time. The more the
    predictions have erred (or are said to err), the less the rest is believed: its variance beyond the errors' own, over its
    variance (James and Stein, 1961). What finished corrects each kind and type by the mean of its errors, drawn towards 0.
    """

    def __init__(self, jobs: Jobs, predict: Predict):
        self._jobs, self._predict = jobs, predict
        self._unit_s = float(np.max(predict.table, where=np.isfinite(predict.table), initial=0.0))  # logs are of its multiples
        self._kind = np.where(jobs.kind >= 0, jobs.kind, jobs.kind.max(initial=-1) + 1)
        self._sum: dict[tuple[int, int], float] = defaultdict(float)
        self._count: dict[tuple[int, int], int] = defaultdict(int)
        self._errors: list[float] = []
        self.sigma, self.moved = predict.sigma, 0.0
        self._table = self._shrunk()

    def _shrunk(self) -> np.ndarray:
        """Return the believed log times (jobs, types) before corrections."""
        with np.errstate(divide="ignore"):
            given = np.log(self._predict.table / self._unit_s)
        if self.sigma <= 0 or given.shape[1] < 2:
            return given
        values = np.where(np.isfinite(given), given, np.nan)
        kinds = self._kind.max() + 1
        size = np.nanmean(values, axis=1)
        for _ in range(3):  # sizes and preferences by turns: some times are missing
            rest = values - size[:, None]
            seen = np.isfinite(rest)
            total = np.zeros((kinds, values.shape[1]))
            np.add.at(total, self._kind, np.where(seen, rest, 0.0))
            number = np.zeros_like(total)
            np.add.at(number, self._kind, seen)
            liking = total / np.maximum(number, 1)
            size = np.nanmean(values - liking[self._kind], axis=1)
        rest = values - size[:, None] - liking[self._kind]
        spread = float(np.nanmean(rest ** 2))
        noise = self.sigma ** 2 * (1 - 1 / values.shape[1])
        trust = max(0.0, spread - noise) / max(spread, 1e-12)
        found = size[:, None] + liking[self._kind] + trust * rest
        return np.where(np.isfinite(given), found, inf)

    def _shift(self, kind: int, place: int) -> float:
        count = self._count[kind, place]
        return self._sum[kind, place] / (count + 1 / _WITHIN) if count else 0.0

    def seconds(self, job: int, place: int) -> float:
        """Return the believed seconds of one job on one type; inf where it cannot run."""
        value = float(self._table[job, place])
        return exp(value + self._shift(int(self._kind[job]), place)) * self._unit_s if value < inf else inf

    def rows(self, jobs: np.ndarray) -> np.ndarray:
        """Return the believed seconds of several jobs (jobs, types)."""
        table = self._table[jobs].copy()
        for (kind, place), count in self._count.items():
            if count:
                table[self._kind[jobs] == kind, place] += self._shift(kind, place)
        return np.exp(table) * self._unit_s

    def learn(self, finished: list[Finished]) -> None:
        """Take in jobs that finished; ``moved`` grows by how far the belief of a kind changed."""
        for job, place, seconds in finished:
            kind, before = int(self._kind[job]), self._shift(int(self._kind[job]), place)
            error = log(max(seconds / self._unit_s, 1e-12)) - float(self._table[job, place])
            self._errors.append(abs(error - before))
            self._sum[kind, place] += error
            self._count[kind, place] += 1
            self.moved = max(self.moved, abs(self._shift(kind, place) - before))
        if len(self._errors) >= _LEAST and finished:
            del self._errors[:-_MEMORY]
            seen = 1.4826 * float(np.median(self._errors))
            if abs(seen - self.sigma) > 0.25 * max(self.sigma, 0.2):
                self._sum.clear()
                self._count.clear()
                self.sigma, self.moved = seen, inf
                self._table = self._shrunk()

    def changed(self) -> bool:
        """Return, once, whether the belief moved enough to plan again."""
        moved, self.moved = self.moved > _MOVED, 0.0
        return moved

    def erred(self) -> bool:
        """Return whether what finished lately took another time than was believed."""
        return len(self._errors) > 0 and float(np.median(self._errors[-_LEAST:])) > _EXACT

    def left_s(self, job: int, place: int, elapsed_s: float) -> float:
        """Return the believed seconds until a running job ends; the more it is overdue, the longer it is expected to take."""
        return max(self.seconds(job, place) - elapsed_s, self.sigma * elapsed_s, 0.0)
