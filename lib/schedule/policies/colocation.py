"""What a policy makes of one host: cores that jobs on GPUs hold, and jobs that slow each other down."""

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
    factor = state.contention.expected(state.jobs.kind, state.fleet.type_of)
    return Predict(predict.table * factor, predict.sigma)


def types_in_order(state: State) -> Sequence[int]:
    """Return the types in the order in which they are given cores: GPUs first, for theirs are the ones that count."""
    places = range(len(state.counts))
    return places if state.free_cores == inf else sorted(places, key=state.fleet.is_cpu)


def in_order(state: State, devices: Iterable[int]) -> Iterable[int]:
    """Return devices in the order in which they are given cores."""
    return devices if state.free_cores == inf else sorted(devices, key=lambda device: state.fleet.is_cpu(state.type_of[device]))


def blocked_s(state: State, jobs: np.ndarray, times: np.ndarray, ready_s: np.ndarray) -> np.ndarray:
    """Return for how long each device is expected to stand idle because other jobs hold the cores that it needs.

    That follows from the fluid optimum with the host's cores in it; the last CPU slots are those that wait.
    """
    found = np.zeros(len(ready_s))
    host = bounds.host_of(state.jobs, state.fleet)
    if host is None:
        return found
    mine, fleet = host.some(jobs), state.fleet
    solved = bounds.fluid(times, fleet.counts, np.bincount(fleet.type_of, ready_s, minlength=len(fleet.types)), mine)
    spent = np.where(solved.share > 0, solved.share * np.where(np.isfinite(times), times, 0.0), 0.0)
    for place in range(len(fleet.types)):
        own = state.cores(0, place) if fleet.is_cpu(place) else 0.0
        if not own:
            continue
        others = (spent * mine.held).sum() - spent[:, place].sum() * own
        idle_s = fleet.counts[place] * solved.makespan_s - (host.cores * solved.makespan_s - others) / own
        for device in np.flatnonzero(fleet.type_of == place)[::-1]:
            found[device] = min(max(0.0, idle_s), solved.makespan_s)
            idle_s -= found[device]
    return found


class Company:
    """Which of several jobs suits best what runs now, where contention is known."""

    def __init__(self, state: State):
        self._known, self.knows = state.contention, state.contention is not None
        self._kinds = state.jobs.kind.tolist()
        self._usual: dict[tuple[int, int], float] = {}
        if self.knows:
            self._mix = [(kind, place) for kind in sorted(set(self._kinds)) for place in range(len(state.counts))]

    def pick(self, state: State, jobs: Sequence[int], place: int) -> int:
        """Return which of the first jobs of a queue to start: the one that is less in the way here than it usually is."""
        if not self.knows or len(jobs) < 3 or not state.running:
            return 0
        beside = [(self._kinds[ran.job], state.type_of[device]) for device, ran in state.running.items()]
        best, least, seen = 0, inf, set()
        for number in range(min(LOOK, len(jobs))):
            kind = self._kinds[jobs[number]]
            if kind in seen:
                continue
            seen.add(kind)
            cost = self._known.mutual((kind, place), beside) / len(beside) - self._typical(kind, place)
            if cost < least - 1e-9:
                best, least = number, cost
        return best

    def _typical(self, kind: int, place: int) -> float:
        if (kind, place) not in self._usual:
            self._usual[kind, place] = self._known.mutual((kind, place), self._mix) / len(self._mix)
        return self._usual[kind, place]
