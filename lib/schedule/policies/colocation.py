"""What a policy makes of one host: cores that jobs on GPUs take, and jobs that slow each other down."""

from collections.abc import Iterable, Sequence
from math import inf

import numpy as np

from lib.schedule import bounds
from lib.schedule.state import Predict, State

LOOK = 8  # jobs at the head of a queue among which the best neighbour is chosen


def contended(state: State, predict: Predict) -> Predict:
    """Return predictions with the slowdown that is expected where every other device is busy with jobs of the same mix."""
    if state.contention is None:
        return predict
    factor = state.contention.expected(state.jobs.job_class, state.fleet.type_of)
    return Predict(predict.table * factor, predict.sigma)


def types_in_order(state: State) -> Sequence[int]:
    """Return the types in the order in which they are given cores: GPUs first, for theirs are the ones that count."""
    types = range(len(state.counts))
    return types if state.free_cores == inf else sorted(types, key=state.fleet.is_cpu)


def in_order(state: State, devices: Iterable[int]) -> Iterable[int]:
    """Return devices in the order in which they are given cores."""
    return devices if state.free_cores == inf else sorted(devices, key=lambda device: state.fleet.is_cpu(state.type_of[device]))


def blocked_s(state: State, jobs: np.ndarray, times: np.ndarray, ready_s: np.ndarray) -> np.ndarray:
    """Return for how long each device is expected to stand idle because other jobs take the cores that it needs.

    That follows from the LP relaxation with the host's cores in it; the last CPU slots are those that wait.
    """
    blocked = np.zeros(len(ready_s))
    host = bounds.host_of(state.jobs, state.fleet)
    if host is None:
        return blocked
    host, fleet = host.subset(jobs), state.fleet
    relaxed = bounds.relaxation(times, fleet.counts, np.bincount(fleet.type_of, ready_s, minlength=len(fleet.types)), host)
    spent = np.where(relaxed.share > 0, relaxed.share * np.where(np.isfinite(times), times, 0.0), 0.0)
    for device_type in range(len(fleet.types)):
        own = state.cores(0, device_type) if fleet.is_cpu(device_type) else 0.0
        if not own:
            continue
        others = (spent * host.taken).sum() - spent[:, device_type].sum() * own
        idle_s = fleet.counts[device_type] * relaxed.makespan_s - (host.cores * relaxed.makespan_s - others) / own
        for device in np.flatnonzero(fleet.type_of == device_type)[::-1]:
            blocked[device] = min(max(0.0, idle_s), relaxed.makespan_s)
            idle_s -= blocked[device]
    return blocked


class Colocation:
    """Which of several jobs suits best what runs now, where contention is ``known``."""

    def __init__(self, state: State):
        self._contention, self.known = state.contention, state.contention is not None
        self._classes = state.jobs.job_class.tolist()
        self._usual: dict[tuple[int, int], float] = {}
        if self.known:
            self._mix = [(job_class, device_type) for job_class in sorted(set(self._classes))
                         for device_type in range(len(state.counts))]

    def pick(self, state: State, jobs: Sequence[int], device_type: int) -> int:
        """Return which of the first jobs of a queue to start: the one that is less in the way here than it usually is."""
        if not self.known or len(jobs) < 3 or not state.running:
            return 0
        beside = [(self._classes[ran.job], state.type_of[device]) for device, ran in state.running.items()]
        best, least, seen = 0, inf, set()
        for number in range(min(LOOK, len(jobs))):
            job_class = self._classes[jobs[number]]
            if job_class in seen:
                continue
            seen.add(job_class)
            mutual = self._contention.mutual((job_class, device_type), beside) / len(beside)
            cost = mutual - self._typical(job_class, device_type)
            if cost < least - 1e-9:
                best, least = number, cost
        return best

    def _typical(self, job_class: int, device_type: int) -> float:
        if (job_class, device_type) not in self._usual:
            mutual = self._contention.mutual((job_class, device_type), self._mix)
            self._usual[job_class, device_type] = mutual / len(self._mix)
        return self._usual[job_class, device_type]
