"""The baselines: small functions of the state and the predictions, named in ``BASELINES``."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

import numpy as np

from lib.schedule import bounds
from lib.schedule.policies.greedy import NOTHING_STARTS, greedy
from lib.schedule.policies.queues import Queues
from lib.schedule.state import Action, CoreBudget, Policy, Predict, Start, State, refining

MATCHED = 1500  # waiting jobs that are matched at once, the shortest first

# ------------------------------------------------------------------------------------------ one pool of jobs


def _in_order(job: int, count: int, device_type: int, row: list[float]) -> float:
    return count


def _fastest_type(row: list[float]) -> tuple[int, ...]:
    return (row.index(min(row)),)


def first_come(state: State, predict: Predict) -> list[Action]:
    """First come, first served, on the fastest free device."""
    return greedy(state, predict, _in_order)


def fastest(state: State, predict: Predict) -> list[Action]:
    """First come, first served, each job only on its fastest type."""
    return greedy(state, predict, _in_order, _fastest_type)


def _only(state: State, predict: Predict, cpu: bool) -> list[Action]:
    preferred = np.flatnonzero(state.fleet.cpu == cpu).tolist()

    def allowed(row: list[float]) -> Sequence[int]:
        return [number for number in preferred if row[number] < inf] or range(len(row))

    return greedy(state, predict, _in_order, allowed)


def cpu_only(state: State, predict: Predict) -> list[Action]:
    """First come, first served, on CPUs; a job that no CPU can run goes where it can."""
    return _only(state, predict, cpu=True)


def gpu_only(state: State, predict: Predict) -> list[Action]:
    """First come, first served, on devices that are no CPU; a job that none of them can run goes where it can."""
    return _only(state, predict, cpu=False)


def shortest_first(state: State, predict: Predict) -> list[Action]:
    """Start the shortest waiting job first, by its shortest time, on the fastest free device."""
    return greedy(state, predict, lambda job, count, device_type, row: min(row))


def affinity(state: State, predict: Predict) -> list[Action]:
    """Start the job with the least time x (time / shortest) first: short here, and shorter here than elsewhere."""
    return greedy(state, predict, lambda job, count, device_type, row: row[device_type] * row[device_type] / min(row))


@dataclass
class _SizeSplit:
    """The longest times of the jobs so far, in order; the types, the slowest first; their cumulative shares of devices."""

    sizes: list[float]
    order: list[int]
    shares: list[float]

    @classmethod
    def at_start(cls, state: State, predict: Predict) -> "_SizeSplit":
        """Return the split of no jobs yet, with the types in the order of the median times of waiting jobs."""
        rows = np.array([predict.row(job) for job in state.waiting] or [[1.0] * len(state.fleet.types)])
        finite = [column[np.isfinite(column)] for column in rows.T]
        order = np.argsort([-np.median(times) if len(times) else 0.0 for times in finite], kind="stable").tolist()
        return cls([], order, (np.cumsum(state.fleet.counts[order]) / len(state.fleet)).tolist())

    def allowed(self, row: list[float]) -> list[int]:
        """Return the type for a job of these times, or the fastest on which it can run."""
        share = bisect_left(self.sizes, max(time for time in row if time < inf)) / len(self.sizes)
        chosen = self.order[min(bisect_left(self.shares, share + 1e-12), len(self.order) - 1)]
        return [chosen] if row[chosen] < inf else [number for number in self.order if row[number] < inf][-1:]


def by_size(state: State, predict: Predict) -> list[Action]:
    """Start small jobs on slow types and large jobs on fast types; each type gets its share of devices of the jobs so far.

    The size of a job is its longest time.
    """
    new = state.new_jobs(_SizeSplit)
    split = state.recall(_SizeSplit, lambda: _SizeSplit.at_start(state, predict))
    for job in new:
        insort(split.sizes, max(time for time in predict.row(job) if time < inf))
    return greedy(state, predict, _in_order, split.allowed)


# ------------------------------------------------------------------------------------------ a queue per device


def _bind(state: State, predict: Predict, order: Callable[[list[int]], list[int]]) -> list[Action]:
    """Bind arriving jobs, in an order, to the device where they end first; a freed device corrects what is expected of it."""
    freed, new = state.freed if Queues in state.memory else [], state.new_jobs(Queues)
    queues = state.recall(Queues, lambda: Queues(state))
    for device in freed:
        queues.expect(device, state.now_s + queues.load_s[device])
    devices = {device for device in freed if queues.jobs[device]} | queues.blocked
    for job in order(new):
        row = [time + setup for time, setup in zip(predict.row(job), state.setup_s, strict=True)]
        end_s, device_type, device = queues.earliest(state, row)
        queues.put(job, device, row[device_type], end_s)
        devices.add(device)
    queues.blocked = set()
    actions, budget = [], CoreBudget(state)
    for device in sorted(devices):
        device_type, job = state.type_of[device], queues.jobs[device][0]
        if device not in state.free[device_type]:
            continue
        if budget.take(job, device_type):
            actions.append(Start(queues.pop(device, predict(job, device_type) + state.setup_s[device_type]), device))
        else:
            queues.blocked.add(device)
    return actions or (NOTHING_STARTS if state.waiting else [])


def earliest_finish(state: State, predict: Predict) -> list[Action]:
    """Bind each arriving job to the device where it is expected to end first (StarPU's dmda)."""
    return _bind(state, predict, lambda jobs: jobs)


def longest_first(state: State, predict: Predict) -> list[Action]:
    """Bind jobs, the longest on average first, to the device where they end first (HEFT for independent tasks)."""
    def mean(job: int) -> float:
        return fmean(time for time in predict.row(job) if time < inf)

    return _bind(state, predict, lambda jobs: sorted(jobs, key=mean, reverse=True))


# ------------------------------------------------------------------------------------------ a matching


@dataclass
class MatchingPlan:
    """For each device type the jobs that the matching gives it, in the order of their starts."""

    queues: list[deque[int]]


def matching(state: State, predict: Predict) -> list[Action]:
    """Start jobs by the matching to places in the queues that has the least sum of completion times (AlloX, EuroSys 2020).

    It is solved again when jobs arrive.
    """
    if MatchingPlan not in state.memory or state.arrived:
        state.memory[MatchingPlan] = _solved(state, predict)
    queues = state.memory[MatchingPlan].queues
    actions, budget = [], CoreBudget(state)
    for device_type, queue in enumerate(queues):
        for device in state.idle(device_type, len(queue)):
            if not budget.take(queue[0], device_type):
                break
            actions.append(Start(queue.popleft(), device))
    if not actions and state.waiting and not any(queues):  # the last plan had no room for those that wait
        plan = state.memory[MatchingPlan] = _solved(state, predict)
        return matching(state, predict) if any(plan.queues) and any(state.free) else NOTHING_STARTS
    return actions or (NOTHING_STARTS if state.waiting else [])


def _solved(state: State, predict: Predict) -> MatchingPlan:
    plan = MatchingPlan([deque() for _ in state.counts])
    jobs = np.array(list(state.waiting), int)
    if not len(jobs):
        return plan
    with refining(state):
        times = predict.table[jobs] + state.fleet.setup_s[None]
        if len(jobs) > MATCHED:
            shortest = np.argsort(times.min(axis=1), kind="stable")[:MATCHED]
            jobs, times = jobs[shortest], times[shortest]
        _, types, places = bounds.matching(times, state.fleet.counts)
        seconds = times[np.arange(len(jobs)), types]
        for number in np.lexsort((seconds, -places)):
            plan.queues[types[number]].append(int(jobs[number]))
    return plan


BASELINES: dict[str, Policy] = {
    "cpu-only": cpu_only, "gpu-only": gpu_only, "fastest": fastest, "first-come": first_come, "by-size": by_size,
    "earliest-finish": earliest_finish, "longest-first": longest_first, "shortest-first": shortest_first, "affinity": affinity,
    "matching": matching}
