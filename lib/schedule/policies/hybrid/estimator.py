"""Estimates of job times: predictions, drawn towards what is common to a job class, corrected by what finished."""

from collections import deque
from math import inf
from statistics import median

import numpy as np

from lib.schedule import portable
from lib.schedule.problem import Jobs
from lib.schedule.state import Finished, Predict, Running, State

_PRIOR_VARIANCE = 0.5  # of a class's correction in log time, in units of the errors' variance
_WINDOW = 200  # finished jobs over which the size of errors is judged
_LEAST = 12  # errors from which their size is judged
_PRIOR_JOBS = 20
_WRONG = 0.5  # errors in log time from which the trust in predictions is estimated again as jobs finish
_EXACT = 0.01  # errors in log time up to this count as none
_USUAL_REST = 0.3  # spread of the rest, in log time, that jobs of a class have by themselves
_MOVED = 0.05  # a change of an estimate, in log time, that is worth planning again


class Estimator:
    """Estimated seconds of jobs on device types; learns from every job that finishes.

    A prediction is the sum of a job's size, its class's preference for a type, and a rest, all in log time. The more the
    predictions have erred (or their ``sigma`` says so), the less the rest is trusted: its variance beyond the errors' own, over
    its variance (James and Stein, 1961), until finished jobs tell by themselves whether the rest was borne out. They also
    correct each class and type by the mean of their errors, drawn towards 0; ``setup_s`` (types) is part of what jobs took, but
    not of what is predicted.
    """

    def __init__(self, jobs: Jobs, predict: Predict, setup_s: list[float]):
        self._predict, self._setup_s = predict, setup_s
        self._unit_s = float(np.max(predict.table, where=np.isfinite(predict.table), initial=0.0))  # unit of logs
        classified = jobs.job_class >= 0
        self._class = np.where(classified, jobs.job_class, jobs.job_class.max(initial=-1) + 1)
        self._errors = deque(maxlen=_WINDOW)
        self._finished = []  # job, device type and log time
        self._overdue = {}  # by job and device type, of jobs that run: their log time will be more than this
        self.moved, self.drift, self._again = 0.0, 0.0, _LEAST
        self._implied_sigma = self._implied(classified)
        self._estimate(max(predict.sigma, self._implied_sigma))

    def _implied(self, classified: np.ndarray) -> float:
        """Return the spread of the predictions that their rest implies, beyond what is usual within known classes."""
        if not classified.any() or self._predict.table.shape[1] < 2:
            return 0.0
        *_, rest = self._parts()
        excess = float(np.nanmean(rest[classified] ** 2)) - _USUAL_REST**2
        return (excess / (1 - 1 / rest.shape[1]))**0.5 if excess > 0 else 0.0

    def _parts(self) -> tuple[np.ndarray, ...]:
        """Return the predicted log times (jobs, types), what size and preference say, and the rest; NaN where none is."""
        predicted = portable.log(self._predict.table / self._unit_s)
        values = np.where(np.isfinite(predicted), predicted, np.nan)
        size = np.nanmean(values, axis=1)
        for _ in range(3):  # sizes and preferences by turns: some times are missing
            preference = self._preference(values - size[:, None])
            size = np.nanmean(values - preference[self._class], axis=1)
        base = size[:, None] + preference[self._class]
        return predicted, base, values - base

    def _estimate(self, sigma: float) -> None:
        """Estimate anew, with predictions that err by ``sigma`` and corrections from all that finished."""
        self.sigma = sigma
        self._logs = self._shrunk()
        self._table_s = self._predict.table if sigma <= 0 else portable.exp(self._logs) * self._unit_s
        self._sum, self._count = np.zeros((2, int(self._class.max(initial=0)) + 1, self._logs.shape[1]))
        if self._finished or self._overdue:
            jobs, on, took = self._columns()
            np.add.at(self._sum, (self._class[jobs], on), took - self._logs[jobs, on])
            np.add.at(self._count, (self._class[jobs], on), 1)
        self._shift = self._sum / (self._count + 1 / _PRIOR_VARIANCE)
        self._factor = portable.exp(self._shift)

    def _columns(self) -> list[np.ndarray]:
        """Return the jobs that finished or are overdue, their types and their log times."""
        rows = *self._finished, *((*key, took) for key, took in self._overdue.items())
        return [np.array(column) for column in zip(*rows, strict=True)]

    def _shrunk(self) -> np.ndarray:
        """Return the estimated log times (jobs, types) before corrections."""
        if self.sigma <= 0 or self._predict.table.shape[1] < 2:
            return portable.log(self._predict.table / self._unit_s)
        predicted, base, rest = self._parts()
        variance = float(np.nanmean(rest ** 2))
        expected, most = (max(0.0, variance - noise**2 * (1 - 1 / rest.shape[1])) / max(variance, 1e-12)
                          for noise in (max(self.sigma, self._implied_sigma), self.sigma))
        trust = self._confirmed(base, rest, expected, most, variance)
        return np.where(np.isfinite(predicted), base + trust * rest, inf)

    def _preference(self, rest: np.ndarray) -> np.ndarray:
        """Return the mean of the log times without sizes, by job class (classes, types), or 0."""
        finite = np.isfinite(rest)
        total, number = np.zeros((2, self._class.max() + 1, rest.shape[1]))
        np.add.at(total, self._class, np.where(finite, rest, 0.0))
        np.add.at(number, self._class, finite)
        return total / np.maximum(number, 1)

    def _confirmed(self, base: np.ndarray, rest: np.ndarray, trust: float, most: float, variance: float) -> float:
        """Return the share of the rest that finished jobs confirm, at most ``most``; ``trust`` counts as _PRIOR_JOBS jobs.

        It is the slope of actual on predicted times, both within a class and type.
        """
        if len(self._finished) + len(self._overdue) < _LEAST:
            return trust
        jobs, types, took = self._columns()
        group = np.unique(self._class[jobs] * rest.shape[1] + types, return_inverse=True)[1]
        count = np.bincount(group)
        predicted, actual = (values - (np.bincount(group, values) / count)[group]
                             for values in (rest[jobs, types], took - base[jobs, types]))
        prior = _PRIOR_JOBS * variance
        slope = (trust * prior + (predicted * actual).sum()) / max(prior + (predicted * predicted).sum(), 1e-12)
        return min(most, float(np.clip(slope, 0.0, 1.0)))

    def seconds(self, job: int, device_type: int) -> float:
        """Return the estimated seconds of one job on one type; inf where it cannot run."""
        return self._table_s.item(job, device_type) * self._factor.item(self._class.item(job), device_type)

    def rows(self, jobs: np.ndarray | int) -> np.ndarray:
        """Return the estimated seconds of jobs (jobs, types), or of one job (types)."""
        return self._table_s[jobs] * self._factor[self._class[jobs]]

    def with_setup(self, job: int) -> list[float]:
        """Return the estimated seconds of one job on every type, set-up included."""
        return (self.rows(job) + self._setup_s).tolist()

    def learn(self, finished: list[Finished], overdue: list[Finished]) -> float | None:
        """Take in jobs that finished; return how much predictions seem to err where that is not ``sigma`` (``renew``).

        ``overdue`` are jobs that have run for so long, and will take more. ``moved`` grows by how far the estimate of a class
        changed, ``drift`` by the sum of such changes.
        """
        for number, (job, device_type, seconds) in enumerate([*finished, *overdue]):
            ended, cell, key = number < len(finished), (self._class.item(job), device_type), (job, device_type)
            took = portable.log_one(max((seconds - self._setup_s[device_type] * ended) / self._unit_s, 1e-12))
            predicted, before = self._logs.item(job, device_type), self._shift.item(cell)
            if key in self._overdue:
                self._sum[cell] -= self._overdue.pop(key) - predicted
                self._count[cell] -= 1
            if ended:
                self._finished.append((job, device_type, took))
            else:
                self._overdue[key] = took
            error = took - predicted
            self._errors.append(abs(error - before))
            self._sum[cell] += error
            self._count[cell] += 1
            after = self._shift[cell] = self._sum.item(cell) / (self._count.item(cell) + 1 / _PRIOR_VARIANCE)
            self._factor[cell] = portable.exp_one(after)
            change = abs(after - before)
            self.moved, self.drift = max(self.moved, change), self.drift + change
        if (finished or overdue) and len(self._errors) >= _LEAST:
            observed = 1.4826 * median(self._errors)
            if abs(observed - self.sigma) > 0.25 * max(self.sigma, 0.2):
                return observed
            if observed > _WRONG and len(self._finished) >= self._again:
                self._again = 2 * len(self._finished)
                return observed
        return None

    def renew(self, sigma: float) -> None:
        """Estimate anew, with predictions that err by ``sigma``."""
        self._estimate(sigma)
        self.moved = inf
        self.drift += 1.0

    def misled(self) -> bool:
        """Return whether a plan is outdated: an estimate moved since this was last asked, or the last jobs took other times."""
        moved, self.moved = self.moved > _MOVED, 0.0
        return moved or bool(self._errors) and median(list(self._errors)[-_LEAST:]) > _EXACT

    def left_s(self, state: State, ran: Running) -> float:
        """Return the estimated seconds until a running job ends; the more it is overdue, the longer it is expected to take."""
        worked_s = state.worked_s(ran)
        return max(self.seconds(ran.job, state.type_of[ran.device]) - worked_s, self.sigma * worked_s, 0.0)
