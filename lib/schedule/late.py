"""Binding late: a list of jobs for each type of device, the longest first, from which a device takes when it is free.

For times that are known roughly. Which type a job is for comes from the fluid optimum over what is left, solved again as jobs
end.
"""

from heapq import heapify, heappop, heappush

import numpy as np

from lib.schedule import bounds
from lib.schedule.belief import Belief
from lib.schedule.state import State

_MARGIN = 1.5  # of the spread of the predictions


class Lists:
    """The lists, and the believed times that they were made from."""

    def __init__(self, state: State, belief: Belief, jobs: np.ndarray, times: np.ndarray, ready_s: np.ndarray):
        self.times, self.margin = times, float(np.exp(_MARGIN * belief.sigma))
        self.place = {int(job): number for number, job in enumerate(jobs)}
        counts, type_of = state.fleet.counts, state.fleet.type_of
        busy = np.bincount(type_of, ready_s, minlength=len(counts))
        self.left_s = bounds.fluid(times, counts, busy).makespan_s
        late = times * self.margin  # one that may well take longer than all that is left is not bound here
        short = np.where((late <= self.left_s) | (times == times.min(axis=1, keepdims=True)), times, np.inf)
        found = bounds.fluid(short, counts, busy)
        kind = found.share.argmax(axis=1)
        own = times[np.arange(len(jobs)), kind]
        self.heaps = [[(-float(own[number]), int(jobs[number])) for number in np.flatnonzero(kind == place)]
                      for place in range(len(counts))]
        for heap in self.heaps:
            heapify(heap)
        self.end_s = state.now_s + found.makespan_s
        self.ended = 0

    def add(self, job: int, times: np.ndarray) -> None:
        """Put a job that came late on the list of its fastest type."""
        self.place[job] = len(self.times)
        self.times = np.vstack([self.times, times[None]])
        heappush(self.heaps[int(times.argmin())], (-float(times.min()), job))
        self.ended += 1

    def back(self, job: int, place: int) -> None:
        """Put a job back that could not be started."""
        heappush(self.heaps[place], (-float(self.times[self.place[job], place]), job))

    def take(self, state: State, place: int, gone: set[int]) -> int | None:
        """Return the next job for a free device of a type: the longest of its list, or else one that ends earlier here."""
        heap = self.heaps[place]
        while heap and (heap[0][1] in gone or heap[0][1] not in state.waiting):
            heappop(heap)
        if heap:
            return heappop(heap)[1]
        waiting = [job for job in state.waiting if job not in gone]
        if not waiting:
            return None
        rows = self.times[[self.place[job] for job in waiting]]
        here = rows[:, place]
        elsewhere = np.where(np.arange(rows.shape[1]) == place, np.inf, rows).min(axis=1)
        fits = (state.now_s + here * self.margin <= self.end_s) | (here <= elsewhere)
        if not fits.any():
            return None
        return waiting[int(np.where(fits, here / elsewhere, np.inf).argmin())]
