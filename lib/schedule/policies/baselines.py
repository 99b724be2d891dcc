"""The baselines: small policies of the state and the predictions, named in ``BASELINES``."""

from bisect import insort
from collections import deque
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from lib.schedule import bounds
from lib.schedule.policies.greedy import Greedy, Key
from lib.schedule.policies.queues import Queues
from lib.schedule.problem import Fleet
from lib.schedule.state import Action, CoreBudget, Policy, Predict, State, refining

MATCHED = 1500  # waiting jobs that are matched at once, the shortest first

# ------------------------------------------------------------------------------------------ one pool of jobs


def _fastest_type(fleet: Fleet, times: np.ndarray) -> np.ndarray:
    return times.argmin(axis=1)[:, None] == np.arange(times.shape[1])


def _cpu(fleet: Fleet, times: np.ndarray, cpu: bool = True) -> np.ndarray:
    """Return the CPUs, or else the types that are none; all types for a job that can run on none of those."""
    preferred = fleet.cpu == cpu
    return preferred | ~((times < inf) & preferred).any(axis=1)[:, None]


def shortest(jobs: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the shortest time of each job."""
    return times.min(axis=1, keepdims=True)


def short_and_apt(jobs: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return time x (time / shortest): small for jobs that are short here, and shorter here than elsewhere."""
    with np.errstate(over="ignore", under="ignore"):
        return times * times / times.min(axis=1, keepdims=True)


affinity = Greedy(key=short_and_apt)


class _SizeSplit:
    """The longest times of the jobs so far, in order; the types, the slowest first; their cumulative shares of devices.

    The slowest type is that with the longest median time of the jobs that wait at first.
    """

    def __init__(self, state: State, predict: Predict):
        finite = [column[np.isfinite(column)] for column in predict.table[list(state.waiting)].T]
        self.sizes = []
        self.order = np.argsort([-np.median(times) if len(times) else 0.0 for times in finite], kind="stable")
        self.shares = np.cumsum(state.fleet.counts[self.order]) / len(state.fleet)

    def allowed(self, fleet: Fleet, times: np.ndarray) -> np.ndarray:
        """Return the type for jobs of these times, or the fastest on which they can run."""
        share = np.searchsorted(self.sizes, _longest(times)) / len(self.sizes)
        place = np.minimum(np.searchsorted(self.shares, share + 1e-12), len(self.order) - 1)[:, None]
        able, places = np.isfinite(times[:, self.order]), np.arange(len(self.order))
        last = np.where(able, places, -1).max(axis=1, keepdims=True)
        return (np.where(np.take_along_axis(able, place, 1), place, last) == places)[:, np.argsort(self.order)]


def _longest(times: np.ndarray) -> np.ndarray:
    return times.max(axis=1, where=np.isfinite(times), initial=0.0)


def by_size(state: State, predict: Predict) -> list[Action]:
    """Start small jobs on slow types and large jobs on fast types; each type gets its share of devices of the jobs so far.

    The size of a job is its longest time.
    """
    split, new = state.recall(_SizeSplit, lambda: _SizeSplit(state, predict))
    for size in _longest(predict.table[new]).tolist():
        insort(split.sizes, size)
    return Greedy(allowed=split.allowed)(state, predict)


# ------------------------------------------------------------------------------------------ a queue per device


def _longest_mean(jobs: np.ndarray, times: np.ndarray) -> np.ndarray:
    return -times.mean(axis=1, where=np.isfinite(times))


@dataclass(frozen=True)
class Bind:
    """Bind arriving jobs to the device where they are expected to end first, those with the smallest ``turn`` first.

    A device that becomes free corrects what is expected of it.
    """

    turn: Key | None = None

    def __call__(self, state: State, predict: Predict) -> list[Action]:
        """Return the starts."""
        freed = state.freed if Queues in state.memory else []
        queues, new = state.recall(Queues, lambda: Queues(state))
        for device in freed:
            queues.expect(device, state.now_s + queues.load_s[device])
        devices = {device for device in freed if queues.jobs[device]} | queues.blocked
        if self.turn and new:
            new = np.array(new)[np.argsort(self.turn(new, predict.table[new]), kind="stable")].tolist()
        for job in new:
            row = (predict.table[job] + state.fleet.setup_s).tolist()
            end_s, device_type, device = queues.earliest(state, row)
            queues.put(job, device, row[device_type], end_s)
            devices.add(device)
        queues.blocked = set()
        budget = CoreBudget(state)
        for device in sorted(devices):
            device_type, job = state.type_of[device], queues.jobs[device][0]
            if device not in state.free[device_type]:
                continue
            if budget.start(job, device):
                queues.pop(device, predict(job, device_type) + state.setup_s[device_type])
            else:
                queues.blocked.add(device)
        return budget.actions


# ------------------------------------------------------------------------------------------ a matching


class MatchingPlan(list[deque[int]]):
    """For each device type the jobs that the matching gives it, in the order of their starts."""


def matching(state: State, predict: Predict) -> list[Action]:
    """Start jobs by the matching to places in the queues that has the least sum of completion times (AlloX, EuroSys 2020).

    It is solved again when jobs arrive.
    """
    plan = state.memory.get(MatchingPlan)
    if not plan or state.arrived or state.waiting and not any(plan):  # empty: it had no room for those that wait
        plan = state.memory[MatchingPlan] = _solved(state, predict)
    budget = CoreBudget(state)
    for device_type, queue in enumerate(plan):
        for device in state.idle(device_type, len(queue)):
            if not budget.start(queue[0], device):
                break
            queue.popleft()
    return budget.actions


def _solved(state: State, predict: Predict) -> MatchingPlan:
    plan = MatchingPlan(deque() for _ in state.counts)
    jobs = np.array(list(state.waiting), int)
    if not len(jobs):
        return plan
    with refining(state):
        times = predict.table[jobs] + state.fleet.setup_s
        if len(jobs) > MATCHED:
            shortest = np.argsort(times.min(axis=1), kind="stable")[:MATCHED]
            jobs, times = jobs[shortest], times[shortest]
        _, types, places = bounds.matching(times, state.fleet.counts)
        seconds = times[np.arange(len(jobs)), types]
        for number in np.lexsort((seconds, -places)):
            plan[types[number]].append(int(jobs[number]))
    return plan


# first come first served on any device, on the fastest type, on CPUs or on others; StarPU's dmda; HEFT of independent tasks
BASELINES: dict[str, Policy] = {
    "cpu-only": Greedy(allowed=_cpu), "gpu-only": Greedy(allowed=partial(_cpu, cpu=False)),
    "fastest": Greedy(allowed=_fastest_type), "first-come": Greedy(), "by-size": by_size, "earliest-finish": Bind(),
    "longest-first": Bind(_longest_mean), "shortest-first": Greedy(key=shortest), "affinity": affinity, "matching": matching}
