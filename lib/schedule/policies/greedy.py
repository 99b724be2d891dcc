"""Starting waiting jobs on free devices, always the best pair by a key: what most baselines are made of."""

from collections.abc import Callable, Iterable
from math import inf

from lib.schedule.policies.queues import Entry, LazyHeap
from lib.schedule.state import Action, CoreBudget, Predict, Start, State, Wait

Key = Callable[[int, int, int, list[float]], float]  # (job, order of arrival, device type, times on all types)
Allowed = Callable[[list[float]], Iterable[int]]  # times on all types -> the types that the job may take
NOTHING_STARTS = [Wait("every job waits for a device that it was given")]


class _Ready:
    """Waiting jobs, one heap of (key, seconds, job) for each device type; ``least_cores`` is the least any job asks for."""

    def __init__(self, state: State):
        self.count, self.least_cores = 0, inf
        self.heaps = [LazyHeap() for _ in state.counts]

    def first(self, state: State, device_type: int, budget: CoreBudget, valid: Callable[[Entry], bool],
              aside: list[tuple[int, Entry]]) -> Entry | None:
        """Return the first job for a type that fits the cores that are left; wider jobs are put ``aside``."""
        heap = self.heaps[device_type]
        if budget.left == inf:
            return heap.first(valid)
        cpu = state.fleet.cpu[device_type]
        if not cpu and not budget.fits(self.least_cores):
            return None
        while (entry := heap.first(valid)) and not budget.has(entry[2], device_type):
            if cpu:
                return None  # all jobs take the cores of the slot
            aside += [(device_type, entry) for entry in heap.take(1, valid)]
        return entry


def greedy(state: State, predict: Predict, key: Key, allowed: Allowed | None = None) -> list[Action]:
    """Start waiting jobs on free devices, always the pair with the smallest key, and of equal keys the shortest time.

    A job that needs more host cores than are free lets others go first.
    """
    waiting, started, actions, aside, budget = state.waiting, set(), [], [], CoreBudget(state)
    new = state.new_jobs(_Ready)
    ready = state.recall(_Ready, lambda: _Ready(state))
    for job in new:
        row = predict.row(job)
        ready.count += 1
        ready.least_cores = min(ready.least_cores, state.jobs.cpu_cores[job])
        for device_type in range(len(row)) if allowed is None else allowed(row):
            if row[device_type] < inf:
                ready.heaps[device_type].push((key(job, ready.count, device_type, row), row[device_type], job))

    def valid(entry: Entry) -> bool:
        return entry[2] in waiting and entry[2] not in started

    idle = {device_type: state.idle(device_type, len(waiting))[::-1] for device_type, free in enumerate(state.free) if free}
    while True:
        firsts = [(*entry, device_type) for device_type, devices in idle.items()
                  if devices and (entry := ready.first(state, device_type, budget, valid, aside))]
        if not firsts:
            break
        _, _, job, device_type = min(firsts)
        budget.take(job, device_type)
        started.add(job)
        actions.append(Start(job, idle[device_type].pop()))
    for device_type, entry in aside:
        ready.heaps[device_type].push(entry)
    return actions or (NOTHING_STARTS if waiting else [])
