"""Queues of jobs bound to devices, with the time when each device is expected to finish its queue."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from lib.schedule.state import State

Entry = tuple[Any, ...]  # the smallest first
Valid = Callable[[Entry], bool]


class LazyHeap(list[Entry]):
    """A heap whose outdated entries are dropped as they are met; the caller says which are ``valid``."""

    def __init__(self, entries: Iterable[Entry] = ()):
        super().__init__(entries)
        heapq.heapify(self)

    def push(self, entry: Entry) -> None:
        """Add an entry."""
        heapq.heappush(self, entry)

    def take(self) -> Entry:
        """Remove and return the smallest entry."""
        return heapq.heappop(self)

    def first(self, valid: Valid) -> Entry | None:
        """Return the smallest valid entry, without removing it."""
        while self and not valid(self[0]):
            heapq.heappop(self)
        return self[0] if self else None

    def smallest(self, count: int, valid: Valid) -> list[Entry]:
        """Remove and return the smallest valid entries."""
        taken = []
        while len(taken) < count and self.first(valid):
            taken.append(self.take())
        return taken


class Queues:
    """One queue of ``jobs`` for each device.

    ``end_s`` (devices) is when a device is expected to finish, ``load_s`` how long its queue takes; ``blocked`` holds the free
    devices whose next job waits for host cores.
    """

    def __init__(self, state: State):
        self.jobs = [deque() for _ in state.type_of]
        self.end_s, self.load_s = [state.now_s] * len(state.type_of), [0.0] * len(state.type_of)
        self.blocked = set()
        self._type_of, self._counts = state.type_of, state.counts
        self.rebuild()

    def rebuild(self) -> None:
        """Build the heaps from ``end_s``."""
        self._ends = [LazyHeap() for _ in self._counts]
        for device, device_type in enumerate(self._type_of):
            self._ends[device_type].push((self.end_s[device], device))

    def expect(self, device: int, end_s: float) -> None:
        """Note when a device is expected to finish."""
        if self.end_s[device] != end_s:
            self.end_s[device] = end_s
            self._ends[self._type_of[device]].push((end_s, device))

    def put(self, job: int, device: int, seconds: float, end_s: float) -> None:
        """Put a job at the end of a queue, which then finishes at ``end_s``."""
        self.jobs[device].append(job)
        self.load_s[device] += seconds
        self.expect(device, end_s)

    def pop(self, device: int, seconds: float) -> None:
        """Take the first job, which takes ``seconds``, off a queue."""
        self.jobs[device].popleft()
        self.load_s[device] = self.load_s[device] - seconds if self.jobs[device] else 0.0  # no rounding error outlives a queue

    def earliest(self, state: State, seconds: list[float]) -> tuple[float, int, int]:
        """Return when, on which type and on which device a job ends first; it takes ``seconds`` (types), inf: cannot run."""
        best = inf, -1, -1
        for device_type, time in enumerate(seconds):
            if time < inf and (first := self._ends[device_type].first(lambda entry: entry[0] == self.end_s[entry[1]])):
                end = max(first[0], state.now_s) + time
                if end < best[0]:
                    best = end, device_type, first[1]
        return best
