"""What is believed of job times: predictions, drawn towards what is common to jobs of a kind, corrected by what finished."""

from bisect import bisect_left, insort
from collections import deque
from itertools import islice
from math import inf

import numpy as np

from lib.schedule import portable
from lib.schedule.problem import Jobs
from lib.schedule.state import Finished, Predict

_WITHIN = 0.5  # variance in log time, in units of the noise's, with which a kind's correction is believed before it is seen
_MEMORY = 200  # finished jobs over which the size of errors is judged
_LEAST = 12
_PRIOR = 20  # jobs
_WRONG = 0.5  # errors in log time from which on it is asked again, as jobs finish, whether predictions are borne out
_EXACT = 0.01  # errors in log time up to this count as none
_MOVED = 0.05  # a change of the belief, in log time, that is worth planning again


class Belief:
    """Believed seconds of jobs on types; learns from every job that finishes.

    A prediction is the sum of a job's size, its kind's preference for a type, and a rest, all in log time. The more the
    predictions have erred (or are said to err), the less the rest is believed: its variance beyond the errors' own, over its
    variance (James and Stein, 1961), until what finished tells by itself whether the rest was borne out. What finished also
    corrects each kind and type by the mean of its errors, drawn towards 0; ``setup_s`` (types) is part of what jobs took, but
    not of what is predicted.
    """

    def __init__(self, jobs: Jobs, predict: Predict, setup_s: list[float] | None = None):
        self._predict, self._setup_s = predict, setup_s or [0.0] * predict.table.shape[1]
        self._unit_s = float(np.max(predict.table, where=np.isfinite(predict.table), initial=0.0))  # logs are of its multiples
        self._kind = np.where(jobs.kind >= 0, jobs.kind, jobs.kind.max(initial=-1) + 1)
        self._kinds: list[int] = self._kind.tolist()
        self._errors: deque[float] = deque(maxlen=_MEMORY)
        self._sorted: list[float] = []  # the same errors, the smallest first
        self._seen: list[tuple[int, int, float]] = []  # job, type and log time of what finished
        self.moved, self.drift, self._again = 0.0, 0.0, _LEAST
        self._believe(predict.sigma)

    def _believe(self, sigma: float) -> None:
        """Believe that predictions err by ``sigma``; corrections are made anew from all that finished."""
        self.sigma = sigma
        self._table = self._shrunk()
        self._logs: list[list[float]] = self._table.tolist()
        self._base_s = self._predict.table if sigma <= 0 else portable.exp(self._table) * self._unit_s
        self._rows: list[list[float]] = self._base_s.tolist()
        kinds, places = int(self._kind.max(initial=0)) + 1, self._table.shape[1]
        total, count = np.zeros((kinds, places)), np.zeros((kinds, places), int)
        if self._seen:
            jobs, types, took = self._finished()
            np.add.at(total, (self._kind[jobs], types), took - self._table[jobs, types])
            np.add.at(count, (self._kind[jobs], types), 1)
        self._sum, self._count = total.tolist(), count.tolist()
        shift = total / (count + 1 / _WITHIN)
        self._shift: list[list[float]] = shift.tolist()
        self._factor: list[list[float]] = portable.exp(shift).tolist()

    def _finished(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        jobs, types, took = zip(*self._seen, strict=True)
        return np.array(jobs), np.array(types), np.array(took)

    def _shrunk(self) -> np.ndarray:
        """Return the believed log times (jobs, types) before corrections."""
        given = portable.log(self._predict.table / self._unit_s)
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
        trust = self._borne_out(size[:, None] + liking[self._kind], rest, max(0.0, spread - noise) / max(spread, 1e-12), spread)
        found = size[:, None] + liking[self._kind] + trust * rest
        return np.where(np.isfinite(given), found, inf)

    def _borne_out(self, base: np.ndarray, rest: np.ndarray, trust: float, spread: float) -> float:
        """Return the share of the rest that finished jobs bore out, at most ``trust``, which counts as _PRIOR jobs.

        It is the slope of what they took on what was predicted, both within their kind and type.
        """
        if len(self._seen) < _LEAST:
            return trust
        jobs, types, took = self._finished()
        group = np.unique(self._kind[jobs] * rest.shape[1] + types, return_inverse=True)[1]
        said, came = rest[jobs, types], took - base[jobs, types]
        count = np.bincount(group)
        said, came = (values - (np.bincount(group, values) / count)[group] for values in (said, came))
        prior = _PRIOR * spread
        slope = (trust * prior + (said * came).sum()) / max(prior + (said * said).sum(), 1e-12)
        return min(trust, float(np.clip(slope, 0.0, 1.0)))

    def seconds(self, job: int, place: int) -> float:
        """Return the believed seconds of one job on one type; inf where it cannot run."""
        return self._rows[job][place] * self._factor[self._kinds[job]][place]

    def row(self, job: int) -> list[float]:
        """Return the believed seconds of one job on every type."""
        return [seconds * factor for seconds, factor in zip(self._rows[job], self._factor[self._kinds[job]], strict=True)]

    def rows(self, jobs: np.ndarray) -> np.ndarray:
        """Return the believed seconds of several jobs (jobs, types)."""
        return self._base_s[jobs] * np.array(self._factor)[self._kind[jobs]]

    def learn(self, finished: list[Finished]) -> float | None:
        """Take in jobs that finished; return how much predictions seem to err where that is not ``sigma`` (``renew``).

        ``moved`` grows by how far the belief of a kind changed, ``drift`` by the sum of such changes.
        """
        for job, place, seconds in finished:
            kind = self._kinds[job]
            before = self._shift[kind][place]
            took = portable.log_one(max((seconds - self._setup_s[place]) / self._unit_s, 1e-12))
            self._seen.append((job, place, took))
            error = took - self._logs[job][place]
            self._note(abs(error - before))
            self._sum[kind][place] += error
            self._count[kind][place] += 1
            after = self._shift[kind][place] = self._sum[kind][place] / (self._count[kind][place] + 1 / _WITHIN)
            self._factor[kind][place] = portable.exp_one(after)
            self.moved = max(self.moved, abs(after - before))
            self.drift += abs(after - before)
        if finished and len(self._errors) >= _LEAST:
            seen = 1.4826 * _middle(self._sorted)
            if abs(seen - self.sigma) > 0.25 * max(self.sigma, 0.2):
                return seen
            if seen > _WRONG and len(self._seen) >= self._again:
                self._again = 2 * len(self._seen)
                return seen
        return None

    def _note(self, error: float) -> None:
        """Take in the size of an error; the one that is _MEMORY errors old is forgotten."""
        if len(self._errors) == _MEMORY:
            del self._sorted[bisect_left(self._sorted, self._errors[0])]
        self._errors.append(error)
        insort(self._sorted, error)

    def renew(self, sigma: float) -> None:
        """Believe anew, with predictions that err by ``sigma``."""
        self._believe(sigma)
        self.moved = inf
        self.drift += 1.0

    def changed(self) -> bool:
        """Return, once, whether the belief moved enough to plan again."""
        moved, self.moved = self.moved > _MOVED, 0.0
        return moved

    def erred(self) -> bool:
        """Return whether what finished lately took another time than was believed."""
        return len(self._errors) > 0 and _middle(sorted(islice(reversed(self._errors), _LEAST))) > _EXACT

    def left_s(self, job: int, place: int, elapsed_s: float) -> float:
        """Return the believed seconds until a running job ends; the more it is overdue, the longer it is expected to take."""
        return max(self.seconds(job, place) - elapsed_s, self.sigma * elapsed_s, 0.0)


def _middle(ordered: list[float]) -> float:
    """Return the median of numbers that are in order."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
