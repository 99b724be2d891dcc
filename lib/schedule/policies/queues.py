"""Queues of jobs bound to devices, and when each device is expected to be done with its own."""

import heapq
from collections import deque
from math import inf

from lib.schedule.state import State


class Queues:
    """A queue for each device; ``end_s`` says when it is expected to be done, ``load_s`` how long its queue takes.

    The device of a type that is done first is found in a heap; entries that no longer hold are dropped when they are met.
    """

    def __init__(self, state: State):
        self.of: list[deque[int]] = [deque() for _ in state.type_of]
        self.end_s, self.load_s = [state.now_s] * len(state.type_of), [0.0] * len(state.type_of)
        self._type_of = state.type_of
        self.rebuild()

    def rebuild(self) -> None:
        """Make the heaps from ``end_s`` as it is."""
        self._first: list[list[tuple[float, int]]] = [[] for _ in range(max(self._type_of) + 1)]
        for device, device_type in enumerate(self._type_of):
            self._first[device_type].append((self.end_s[device], device))
        for heap in self._first:
            heapq.heapify(heap)

    def first(self, device_type: int) -> tuple[float, int] | None:
        """Return when the first device of a type is expected to be done, and which it is; None where there is none."""
        heap = self._first[device_type] if device_type < len(self._first) else []
        while heap and heap[0][0] != self.end_s[heap[0][1]]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def expect(self, device: int, end_s: float) -> None:
        """Note when a device will be done."""
        if self.end_s[device] != end_s:
            self.end_s[device] = end_s
            heapq.heappush(self._first[self._type_of[device]], (end_s, device))

    def put(self, job: int, device: int, seconds: float, end_s: float) -> None:
        """Put a job at the end of a queue that is then done at ``end_s``."""
        self.of[device].append(job)
        self.load_s[device] += seconds
        self.expect(device, end_s)

    def pop(self, device: int, seconds: float) -> int:
        """Take the first job, which takes ``seconds``, off a queue."""
        job = self.of[device].popleft()
        self.load_s[device] = self.load_s[device] - seconds if self.of[device] else 0.0  # no rounding error outlives a queue
        return job

    def best(self, state: State, seconds: list[float]) -> tuple[float, int, int]:
        """Return when a job that takes ``seconds`` on each type (inf: cannot run) would end first, on which type and device."""
        best = inf, -1, -1
        for device_type, time in enumerate(seconds):
            if time < inf and (first := self.first(device_type)):
                end = max(first[0], state.now_s) + time
                if end < best[0]:
                    best = end, device_type, first[1]
        return best
