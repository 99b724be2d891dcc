"""Binding late: a list of jobs for each device type, the longest first, from which a device takes when it is free.

For times that are known roughly. Which type a job is for comes from the LP relaxation over what is left, solved again as jobs
end.
"""

from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from lib.schedule import bounds, portable
from lib.schedule.policies.colocation import LOOK, Colocation
from lib.schedule.state import State, refining

_MARGIN = 1.5  # of the spread of the predictions
_TIES = 1e-3  # of the times, by which jobs that are alike are told apart


def _unlike(times: np.ndarray) -> np.ndarray:
    """Return times that are a little shorter for long jobs where they are slow, so that no two jobs are alike.

    Otherwise any of the jobs of a class could go to any type, and the linear programme would take ten times as long.
    """
    finite = np.isfinite(times)
    ratio = np.divide(times, times.min(axis=1, keepdims=True), out=np.ones(times.shape), where=finite)
    rank = np.argsort(np.argsort(times.min(axis=1), kind="stable"), kind="stable") / len(times)
    return np.where(finite, times * (1 - _TIES * rank[:, None] * portable.log(ratio)), inf)


class TypeLists:
    """Jobs by the device type that each is for, and the estimated times (jobs, types) with set-up that this came from.

    ``ready_s`` (devices) says in how many seconds each is free, ``sigma`` how rough the times are; ``ended`` counts the jobs
    that ended or came since.
    """

    def __init__(self, state: State, sigma: float, jobs: np.ndarray, times: np.ndarray, ready_s: np.ndarray):
        self.margin = portable.exp_one(_MARGIN * sigma)
        self.rows: dict[int, list[float]] = dict(zip(jobs.tolist(), times.tolist(), strict=True))
        self._colocation = Colocation(state)
        self.ended, self._count = 0, len(jobs)
        relaxed = self._relaxed(state, times, ready_s)
        self.end_s = state.now_s + relaxed.makespan_s
        device_type = relaxed.share.argmax(axis=1)
        own = times[np.arange(len(jobs)), device_type]
        self.heaps = [list(zip((-own[device_type == one]).tolist(), jobs[device_type == one].tolist(), strict=True))
                      for one in range(len(state.counts))]
        for heap in self.heaps:
            heapify(heap)
        self._others: list[list[tuple[float, int, int, float]] | None] = [None] * len(self.heaps)  # (ratio, order, job, here)

    def _relaxed(self, state: State, times: np.ndarray, ready_s: np.ndarray) -> bounds.Relaxation:
        """Return the LP relaxation; a job that may well take longer somewhere than all that is left does not go there."""
        counts = state.fleet.counts
        busy = np.bincount(state.fleet.type_of, ready_s, minlength=len(counts))
        clear = _unlike(times) if len(times) > bounds.WHOLE else times
        relaxed = bounds.relaxation(clear, counts, busy)
        short = np.where((times * self.margin <= relaxed.makespan_s) | (times == times.min(axis=1, keepdims=True)), times, inf)
        if (short != times).any():
            relaxed = bounds.relaxation(np.where(np.isfinite(short), clear, inf), counts, busy)
        return relaxed

    def add(self, job: int, times: list[float]) -> None:
        """Put a job that came late on the list of its fastest type."""
        self.rows[job] = times
        least = min(times)
        heappush(self.heaps[times.index(least)], (-least, job))
        for device_type, others in enumerate(self._others):
            if others is not None and times[device_type] < inf:
                self._count += 1
                elsewhere = min(times[:device_type] + times[device_type + 1:], default=inf)
                heappush(others, (times[device_type] / elsewhere, self._count, job, times[device_type]))
        self.ended += 1

    def put_back(self, job: int, device_type: int) -> None:
        """Put a job back that could not be started."""
        heappush(self.heaps[device_type], (-self.rows[job][device_type], job))

    def take(self, state: State, device_type: int, gone: set[int]) -> int | None:
        """Return the next job for a free device of a type: the longest of its list, or else one that ends earlier here.

        Of those of other lists it is the one with the least time here over time elsewhere. It may end after all else only where
        it is faster than elsewhere. The order is made when it is first needed; what started, or would end too late, stays so
        until the lists are made anew, and is dropped for good.
        """
        heap, waiting = self.heaps[device_type], state.waiting
        while heap and (heap[0][1] in gone or heap[0][1] not in waiting):
            heappop(heap)
        if heap:
            return self._suited(state, device_type, gone)
        others = self._others[device_type]
        if others is None:
            with refining(state):
                left = [job for job in waiting if job not in gone]
                others = self._others[device_type] = self._ordered(left, device_type, state.now_s)
        while others:
            ratio, _, job, here = others[0]
            if job in waiting and job not in gone and (ratio <= 1 or state.now_s + here * self.margin <= self.end_s):
                return job
            heappop(others)
        return None

    def _suited(self, state: State, device_type: int, gone: set[int]) -> int:
        """Take the longest of a list or, where contention is known, one of the longest that suits what runs."""
        heap = self.heaps[device_type]
        if not self._colocation.known:
            return heappop(heap)[1]
        first = []
        while heap and len(first) < LOOK:
            entry = heappop(heap)
            if entry[1] in state.waiting and entry[1] not in gone:
                first.append(entry)
        chosen = first.pop(self._colocation.pick(state, [job for _, job in first], device_type))
        for entry in first:
            heappush(heap, entry)
        return chosen[1]

    def _ordered(self, jobs: list[int], device_type: int, now_s: float) -> list[tuple[float, int, int, float]]:
        """Return jobs that may be taken for a type, by the time there over that elsewhere, in order and so a heap."""
        rows = np.array([self.rows[job] for job in jobs]).reshape(len(jobs), -1)
        here = rows[:, device_type]
        ratio = here / np.where(np.arange(rows.shape[1]) == device_type, inf, rows).min(axis=1)
        order = np.argsort(ratio, kind="stable")
        in_time = np.isfinite(here) & ((ratio <= 1) | (now_s + here * self.margin <= self.end_s))
        order = order[in_time[order]]
        return list(zip(ratio[order].tolist(), order.tolist(), np.array(jobs, int)[order].tolist(), here[order].tolist(),
                        strict=True))
