"""Binding late: a list of jobs for each type of device, the longest first, from which a device takes when it is free.

For times that are known roughly. Which type a job is for comes from the fluid optimum over what is left, solved again as jobs
end.
"""

from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from lib.schedule import bounds, portable
from lib.schedule.policies.colocation import LOOK, Company
from lib.schedule.policies.hybrid.estimator import Belief
from lib.schedule.state import State, refining

_MARGIN = 1.5  # of the spread of the predictions
_TIES = 1e-3  # of the times, by which jobs that are alike are told apart


def _unlike(times: np.ndarray) -> np.ndarray:
    """Return times that are a little shorter for long jobs where they are slow, so that no two jobs are alike.

    Otherwise any of the jobs of a kind could go to any type, and the linear programme would take ten times as long.
    """
    finite = np.isfinite(times)
    ratio = np.divide(times, times.min(axis=1, keepdims=True), out=np.ones(times.shape), where=finite)
    rank = np.argsort(np.argsort(times.min(axis=1), kind="stable"), kind="stable") / len(times)
    return np.where(finite, times * (1 - _TIES * rank[:, None] * portable.log(ratio)), inf)


class Lists:
    """The lists, and the believed times that they were made from."""

    def __init__(self, state: State, belief: Belief, jobs: np.ndarray, times: np.ndarray, ready_s: np.ndarray):
        self.margin = portable.exp_one(_MARGIN * belief.sigma)
        self.rows: dict[int, list[float]] = dict(zip(jobs.tolist(), times.tolist(), strict=True))
        counts, type_of = state.fleet.counts, state.fleet.type_of
        busy = np.bincount(type_of, ready_s, minlength=len(counts))
        clear = _unlike(times) if len(times) > bounds.WHOLE else times
        found = bounds.fluid(clear, counts, busy)
        self.left_s = found.makespan_s
        late = times * self.margin  # one that may well take longer than all that is left is not bound here
        short = np.where((late <= self.left_s) | (times == times.min(axis=1, keepdims=True)), times, np.inf)
        if (short != times).any():
            found = bounds.fluid(np.where(np.isfinite(short), clear, inf), counts, busy)
        kind = found.share.argmax(axis=1)
        own = times[np.arange(len(jobs)), kind]
        self.heaps = [list(zip((-own[kind == place]).tolist(), jobs[kind == place].tolist(), strict=True))
                      for place in range(len(counts))]
        for heap in self.heaps:
            heapify(heap)
        self.end_s = state.now_s + found.makespan_s
        self._company = Company(state)
        self.ended = 0
        self._others: list[list[tuple[float, int, int, float]] | None] = [None] * len(counts)  # (ratio, order, job, here)
        self._count = len(jobs)

    def add(self, job: int, times: list[float]) -> None:
        """Put a job that came late on the list of its fastest type."""
        self.rows[job] = times
        least = min(times)
        heappush(self.heaps[times.index(least)], (-least, job))
        for place, others in enumerate(self._others):
            if others is not None and times[place] < inf:
                self._count += 1
                heappush(others, (times[place] / min(times[:place] + times[place + 1:], default=inf), self._count, job,
                                  times[place]))
        self.ended += 1

    def back(self, job: int, place: int) -> None:
        """Put a job back that could not be started."""
        heappush(self.heaps[place], (-self.rows[job][place], job))

    def take(self, state: State, place: int, gone: set[int]) -> int | None:
        """Return the next job for a free device of a type: the longest of its list, or else one that ends earlier here.

        Of those of other lists it is the one that is at home here most: time here over time elsewhere. It may end after all
        else only where it is faster than elsewhere. The order is made when it is first needed; what started, or would end
        too late, stays so until the lists are made anew, and is dropped for good.
        """
        heap, waiting = self.heaps[place], state.waiting
        while heap and (heap[0][1] in gone or heap[0][1] not in waiting):
            heappop(heap)
        if heap:
            return self._suited(state, place, gone)
        others = self._others[place]
        if others is None:
            with refining(state):
                others = self._others[place] = self._ordered([job for job in waiting if job not in gone], place, state.now_s)
        while others:
            ratio, _, job, here = others[0]
            if job in waiting and job not in gone and (ratio <= 1 or state.now_s + here * self.margin <= self.end_s):
                return job
            heappop(others)
        return None

    def _suited(self, state: State, place: int, gone: set[int]) -> int:
        """Take the longest of a list or, where contention is known, one of the longest that suits what runs."""
        heap = self.heaps[place]
        if not self._company.knows:
            return heappop(heap)[1]
        first = []
        while heap and len(first) < LOOK:
            entry = heappop(heap)
            if entry[1] in state.waiting and entry[1] not in gone:
                first.append(entry)
        chosen = first.pop(self._company.pick(state, [job for _, job in first], place))
        for entry in first:
            heappush(heap, entry)
        return chosen[1]

    def _ordered(self, jobs: list[int], place: int, now_s: float) -> list[tuple[float, int, int, float]]:
        """Return jobs that may be taken for a type, by the time there over that elsewhere, in order and so a heap."""
        rows = np.array([self.rows[job] for job in jobs]).reshape(len(jobs), -1)
        here = rows[:, place]
        ratio = here / np.where(np.arange(rows.shape[1]) == place, inf, rows).min(axis=1)
        order = np.argsort(ratio, kind="stable")
        fits = np.isfinite(here) & ((ratio <= 1) | (now_s + here * self.margin <= self.end_s))
        order = order[fits[order]]
        return list(zip(ratio[order].tolist(), order.tolist(), np.array(jobs, int)[order].tolist(), here[order].tolist(),
                        strict=True))
