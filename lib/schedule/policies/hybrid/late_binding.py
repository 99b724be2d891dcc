"""Late binding, for times that are known roughly: one list of jobs for each device type, from which free devices take.

Which type a job is for comes from the LP relaxation over the jobs left, solved again as jobs end.
"""

from math import inf

import numpy as np

from lib.schedule import bounds, portable
from lib.schedule.policies.queues import LazyHeap, Valid
from lib.schedule.state import State, refining

_MARGIN = 1.5  # of the spread of the predictions
_TIES = 1e-3  # of the times, by which equal jobs are told apart


def _distinct(times: np.ndarray) -> np.ndarray:
    """Return times that are a little shorter for long jobs where they are slow, so that no two jobs are equal.

    Otherwise any job of a class could go to any type, and the linear programme would take ten times as long.
    """
    finite = np.isfinite(times)
    ratio = np.divide(times, times.min(axis=1, keepdims=True), out=np.ones(times.shape), where=finite)
    rank = np.argsort(np.argsort(times.min(axis=1), kind="stable"), kind="stable") / len(times)
    return np.where(finite, times * (1 - _TIES * rank[:, None] * portable.log(ratio)), inf)


class TypeLists:
    """Jobs by the device type that each is for.

    They follow from the estimated ``times`` (jobs, types) with set-up, which are known to ``sigma``, and from ``ready_s``
    (devices), in how many seconds each is free; ``ended`` counts the jobs that ended or came since.
    """

    def __init__(self, state: State, sigma: float, jobs: np.ndarray, times: np.ndarray, ready_s: np.ndarray):
        self.margin = portable.exp_one(_MARGIN * sigma)
        self.rows = dict(zip(jobs.tolist(), times.tolist(), strict=True))
        self.ended, self._count = 0, len(jobs)
        counts, busy = state.fleet.counts, state.fleet.by_type(ready_s)
        clear = _distinct(times) if len(times) > bounds.WHOLE else times
        relaxed = bounds.relaxation(clear, counts, busy)
        # a job that may take longer somewhere than all jobs together does not go there
        short = np.where((times * self.margin <= relaxed.makespan_s) | (times == times.min(axis=1, keepdims=True)), times, inf)
        if (short != times).any():
            relaxed = bounds.relaxation(np.where(np.isfinite(short), clear, inf), counts, busy)
        self.end_s = state.now_s + relaxed.makespan_s
        self._lists = [LazyHeap() for _ in state.counts]
        for job, device_type in zip(self.rows, relaxed.share.argmax(axis=1).tolist(), strict=True):
            self.put_back(job, device_type)
        self._elsewhere = [None] * len(self._lists)  # heaps of (time here / elsewhere, order, time here, job)

    def add(self, job: int, times: list[float]) -> None:
        """Put a late job on the list of its fastest type."""
        self.rows[job] = times
        self.put_back(job, times.index(min(times)))
        for device_type, heap in enumerate(self._elsewhere):
            if heap is not None and times[device_type] < inf:
                self._count += 1
                elsewhere = min(times[:device_type] + times[device_type + 1:], default=inf)
                heap.push((times[device_type] / elsewhere, self._count, times[device_type], job))
        self.ended += 1

    def put_back(self, job: int, device_type: int) -> None:
        """Put a job on the list of a type."""
        self._lists[device_type].push((-self.rows[job][device_type], job))

    def take(self, state: State, device_type: int, waits: Valid) -> int | None:
        """Return the next job for a free device of a type, or None: the longest of its list, else one that ends earlier here.

        ``waits`` says whether the job of an entry, its last element, still waits.
        Of the jobs on other lists that is the one with the least time here over time elsewhere. It may end after all else only
        where it is faster than elsewhere. That order is made when it is first needed; a job dropped from it stays out until the
        lists are made again.
        """
        jobs, elsewhere = self._lists[device_type], self._elsewhere[device_type]
        if jobs.first(waits):
            return jobs.take()[1]
        if elsewhere is None:
            with refining(state):
                left = [job for job in state.waiting if waits((job,))]
                elsewhere = self._elsewhere[device_type] = self._ordered(left, device_type)
        first = elsewhere.first(lambda entry: waits(entry) and (
            entry[0] <= 1 or state.now_s + entry[2] * self.margin <= self.end_s))
        return first and first[3]

    def _ordered(self, jobs: list[int], device_type: int) -> LazyHeap:
        """Return jobs that can run on a type, by the time there over that elsewhere."""
        rows = np.array([self.rows[job] for job in jobs]).reshape(len(jobs), -1)
        here = rows[:, device_type]
        ratio = here / np.where(np.arange(rows.shape[1]) == device_type, inf, rows).min(axis=1)
        entries = zip(ratio.tolist(), range(len(jobs)), here.tolist(), jobs, strict=True)
        return LazyHeap(entry for entry in entries if entry[2] < inf)
