"""Jobs that share one host: the cores that jobs on GPUs take, and how much jobs slow each other down."""

from collections.abc import Callable, Iterable, Sequence
from math import inf

import numpy as np

from lib.schedule import bounds
from lib.schedule.state import State

CANDIDATES = 8  # jobs at the head of a queue among which the best neighbour is chosen


def gpus_first(state: State, items: Iterable[int], type_of: Callable[[int], int]) -> Iterable[int]:
    """Return devices or types in the order in which they get host cores: if these are limited, CPUs come last."""
    return items if state.free_cores == inf else sorted(items, key=lambda item: state.fleet.cpu[type_of(item)])


def blocked_s(state: State, jobs: np.ndarray, times: np.ndarray, ready_s: np.ndarray) -> np.ndarray:
    """Return for how long each device is expected to stand idle because other jobs take the cores that it needs.

    This follows from the LP relaxation with the host's cores; the last CPU slots are those that wait.
    """
    blocked = np.zeros(len(ready_s))
    fleet = state.fleet
    host = bounds.host_of(state.jobs, fleet, jobs)
    if host is None:
        return blocked
    relaxed = bounds.relaxation(times, fleet.counts, fleet.by_type(ready_s), host)
    spent = np.where(relaxed.share > 0, relaxed.share * np.where(np.isfinite(times), times, 0.0), 0.0)
    for device_type in np.flatnonzero(fleet.cpu & (fleet.cpu_cores > 0)):
        cores = fleet.cpu_cores[device_type]
        elsewhere = (spent * host.taken).sum() - spent[:, device_type].sum() * cores
        idle_s = fleet.counts[device_type] * relaxed.makespan_s - (host.cores * relaxed.makespan_s - elsewhere) / cores
        for device in np.flatnonzero(fleet.type_of == device_type)[::-1]:
            blocked[device] = min(max(0.0, idle_s), relaxed.makespan_s)
            idle_s -= blocked[device]
    return blocked


class Colocation:
    """Chooses, if contention is known (``active``), which job suits best what runs now."""

    def __init__(self, state: State):
        self.active = state.contention is not None
        self._classes = state.jobs.job_class.tolist()
        self._typical = {}  # by job class and type: the mean of ``mutual`` over the mix
        self._mix = [(job_class, device_type) for job_class in sorted(set(self._classes))
                     for device_type in range(len(state.counts))]

    def pick(self, state: State, jobs: Sequence[int], device_type: int) -> int:
        """Return the place in a queue of the job to start: of the first few, the one that disturbs less here than usual."""
        if not self.active or len(jobs) < 3 or not state.running:
            return 0
        neighbours = [(self._classes[ran.job], state.type_of[device]) for device, ran in state.running.items()]
        best, least, seen = 0, inf, set()
        for number in range(min(CANDIDATES, len(jobs))):
            occupant = self._classes[jobs[number]], device_type
            if occupant in seen:
                continue
            seen.add(occupant)
            if occupant not in self._typical:
                self._typical[occupant] = state.contention.mutual(occupant, self._mix) / len(self._mix)
            cost = state.contention.mutual(occupant, neighbours) / len(neighbours) - self._typical[occupant]
            if cost < least - 1e-9:
                best, least = number, cost
        return best
