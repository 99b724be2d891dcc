"""Starting waiting jobs on free devices, always the best pair by a key: what most baselines are made of."""

import heapq
from collections.abc import Callable, Iterable
from math import inf

from lib.schedule.state import Action, Predict, Start, State, Wait

Key = Callable[[int, int, int, list[float]], float]  # (job, order of arrival, device type, times on all types)
Allowed = Callable[[list[float]], Iterable[int]]  # times on all types -> the types that the job may take
NOTHING_STARTS = [Wait("every job waits for a device that it was given")]

_Entry = tuple[float, float, int]  # (key, seconds, job): the smallest first


class _Ready:
    """Waiting jobs in a heap for each device type that may take them; those started since are dropped when met."""

    def __init__(self, state: State, key: Key, allowed: Allowed | None):
        self._key, self._allowed, self._count = key, allowed, 0
        self._least_cores = inf  # that any job needs
        self._aside: list[tuple[int, _Entry]] = []
        self._heaps: list[list[_Entry]] = [[] for _ in state.fleet.types]

    def add(self, state: State, predict: Predict, jobs: Iterable[int]) -> None:
        """Take in jobs that arrived."""
        for job in jobs:
            row = predict.row(job)
            self._count += 1
            self._least_cores = min(self._least_cores, state.jobs.cpu_cores[job])
            for device_type in range(len(row)) if self._allowed is None else self._allowed(row):
                if row[device_type] < inf:
                    entry = self._key(job, self._count, device_type, row), row[device_type], job
                    heapq.heappush(self._heaps[device_type], entry)

    def first(self, device_type: int, gone: Callable[[int], bool]) -> _Entry | None:
        """Return the first job for a device type that has not gone, without taking it."""
        heap = self._heaps[device_type]
        while heap and gone(heap[0][2]):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def narrow(self, state: State, device_type: int, gone: Callable[[int], bool], cores: float) -> _Entry | None:
        """Return the first job for a type that needs no more than ``cores`` of the host; wider ones step aside."""
        cpu, most = state.fleet.is_cpu(device_type), cores + 1e-9
        if not cpu and self._least_cores > most:
            return None
        while (first := self.first(device_type, gone)) is not None and state.cores(first[2], device_type) > most:
            if cpu:
                return None  # on a CPU all take the same
            self._aside.append((device_type, heapq.heappop(self._heaps[device_type])))
        return first

    def restore(self) -> None:
        """Put those back that stepped aside."""
        for device_type, entry in self._aside:
            heapq.heappush(self._heaps[device_type], entry)
        self._aside.clear()


def greedy(state: State, predict: Predict, key: Key, allowed: Allowed | None = None) -> list[Action]:
    """Start waiting jobs on free devices, always the pair with the smallest key, and of equal ones the shortest time.

    A job that needs more of the host's cores than are free lets others go before it.
    """
    new = state.arrived if _Ready in state.memory else state.waiting
    ready = state.recall(_Ready, lambda: _Ready(state, key, allowed))
    ready.add(state, predict, new)
    waiting, cores, started, actions = state.waiting, state.free_cores, set(), []
    idle = {device_type: state.idle(device_type) for device_type, free in enumerate(state.free) if free}
    left = {device_type: len(state.free[device_type]) for device_type in idle}

    def gone(job: int) -> bool:
        return job in started or job not in waiting

    while idle:
        firsts = [(*first, device_type) for device_type in idle if (
            first := ready.first(device_type, gone) if cores == inf else ready.narrow(state, device_type, gone, cores))]
        if not firsts:
            break
        _, _, job, device_type = min(firsts)
        device = next(idle[device_type])
        left[device_type] -= 1
        if not left[device_type]:
            del idle[device_type]
        if cores != inf:
            cores -= state.cores(job, device_type)
        started.add(job)
        actions.append(Start(job, device))
    ready.restore()
    return actions or (NOTHING_STARTS if state.waiting else [])
