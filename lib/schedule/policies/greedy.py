"""Starting waiting jobs on free devices, always the best pair by a key: what most baselines are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from lib.schedule.policies.queues import Entry, LazyHeap, Valid
from lib.schedule.problem import Fleet
from lib.schedule.state import Action, CoreBudget, Predict, State

Key = Callable[[np.ndarray, np.ndarray], np.ndarray]  # numbers of jobs, their times (jobs, types) -> keys (jobs, types)
Allowed = Callable[[Fleet, np.ndarray], np.ndarray]  # fleet, times (jobs, types) -> the types that each job may take


class _Ready:
    """Waiting jobs, one heap of (key, seconds, job) for each device type; ``least_cores`` is the least any job asks for.

    ``turn`` numbers jobs as they arrived; one that failed arrives again, and its earlier entries are outdated.
    """

    def __init__(self, state: State):
        self.count, self.turn, self.least_cores = 0, {}, inf
        self.heaps = [LazyHeap() for _ in state.counts]

    def first(self, state: State, device_type: int, budget: CoreBudget, valid: Valid,
              aside: list[tuple[int, Entry]]) -> Entry | None:
        """Return the first job for a type that fits the cores that are left; wider jobs are put ``aside``."""
        heap, cpu = self.heaps[device_type], state.fleet.cpu[device_type]
        if not cpu and not budget.fits(self.least_cores):
            return None
        while (entry := heap.first(valid)) and not budget.has(entry[2], device_type):
            if cpu:
                return None  # all jobs take the cores of the slot
            aside.append((device_type, heap.take()))
        return entry


@dataclass(frozen=True)
class Greedy:
    """Start waiting jobs on free devices, always the pair with the smallest key, and of equal keys the shortest time.

    By default jobs start in the order in which they arrive, on any type that can run them. A job that needs more host cores
    than are free lets others go first.
    """

    key: Key | None = None
    allowed: Allowed | None = None

    def tables(self, fleet: Fleet, jobs: np.ndarray, times: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the keys, None for the order of arrival, and the times, inf where a job may not run (jobs, types)."""
        key = self.key and np.broadcast_to(self.key(jobs, times), times.shape)
        return key, times if self.allowed is None else np.where(self.allowed(fleet, times), times, inf)

    def __call__(self, state: State, predict: Predict) -> list[Action]:
        """Return the starts."""
        waiting, aside, budget = state.waiting, [], CoreBudget(state)
        started = budget.started
        ready, new = state.recall(_Ready, lambda: _Ready(state))
        if new:
            key, times = self.tables(state.fleet, np.array(new), predict.table[new])
            ready.least_cores = min(ready.least_cores, state.jobs.cpu_cores[new].min())
            for number, (job, row) in enumerate(zip(new, times.tolist(), strict=True)):
                ready.count += 1
                ready.turn[job] = ready.count
                keys = [ready.count] * len(row) if key is None else key[number].tolist()
                for heap, first, seconds in zip(ready.heaps, keys, row, strict=True):
                    if seconds < inf:
                        heap.push((first, seconds, job))

        def valid(entry: Entry) -> bool:
            key, _, job = entry
            return job in waiting and job not in started and (self.key is not None or key == ready.turn[job])

        idle = {device_type: state.idle(device_type, len(waiting))[::-1] for device_type, free in enumerate(state.free) if free}
        while firsts := [(*entry, device_type) for device_type, devices in idle.items()
                         if devices and (entry := ready.first(state, device_type, budget, valid, aside))]:
            _, _, job, device_type = min(firsts)
            budget.start(job, idle[device_type].pop())
        for device_type, entry in aside:
            ready.heaps[device_type].push(entry)
        return budget.actions
