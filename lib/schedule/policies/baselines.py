"""The baselines: each one small function of the state and the predictions; ``BASELINES`` names them."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from statistics import fmean

import numpy as np

from lib.schedule.policies.greedy import NOTHING_STARTS, greedy
from lib.schedule.policies.matching import matching
from lib.schedule.policies.queues import Queues
from lib.schedule.state import Action, Policy, Predict, Start, State

# ------------------------------------------------------------------------------------------ started from one pool


def _in_order(job: int, count: int, device_type: int, row: list[float]) -> float:
    return count


def _fastest_type(row: list[float]) -> tuple[int, ...]:
    return (row.index(min(row)),)


def first_come(state: State, predict: Predict) -> list[Action]:
    """First come, first served, on the fastest device that is free."""
    return greedy(state, predict, _in_order)


def fastest(state: State, predict: Predict) -> list[Action]:
    """First come, first served, each job only on the type that is fastest for it."""
    return greedy(state, predict, _in_order, _fastest_type)


def _only(state: State, predict: Predict, cpu: bool) -> list[Action]:
    preferred = [device_type for device_type in range(len(state.fleet.types)) if state.fleet.is_cpu(device_type) == cpu]

    def allowed(row: list[float]) -> list[int]:
        return [one for one in preferred if row[one] < inf] or [one for one in range(len(row)) if row[one] < inf]

    return greedy(state, predict, _in_order, allowed)


def cpu_only(state: State, predict: Predict) -> list[Action]:
    """First come, first served, on CPUs; a job that no CPU can run goes where it can."""
    return _only(state, predict, cpu=True)


def gpu_only(state: State, predict: Predict) -> list[Action]:
    """First come, first served, on what is no CPU; a job that none of them can run goes where it can."""
    return _only(state, predict, cpu=False)


def shortest_first(state: State, predict: Predict) -> list[Action]:
    """Start the shortest waiting job first, by its shortest time, on the fastest device that is free."""
    return greedy(state, predict, lambda job, count, device_type, row: min(row))


def affinity(state: State, predict: Predict) -> list[Action]:
    """Start the job that is short on the free device, and shorter there than elsewhere, first: time x (time / shortest)."""
    return greedy(state, predict, lambda job, count, device_type, row: row[device_type] * row[device_type] / min(row))


@dataclass
class _SizeSplit:
    """The longest times of the jobs so far, in order; the types, the slowest first, and their shares of devices, summed up."""

    sizes: list[float]
    order: list[int]
    shares: list[float]

    @classmethod
    def at_start(cls, state: State, predict: Predict) -> "_SizeSplit":
        """Return the split of no jobs yet, the types in the order of their median times of those that wait."""
        rows = np.array([predict.row(job) for job in state.waiting] or [[1.0] * len(state.fleet.types)])
        known = [column[np.isfinite(column)] for column in rows.T]
        order = np.argsort([-np.median(times) if len(times) else 0.0 for times in known], kind="stable").tolist()
        return cls([], order, (np.cumsum(state.fleet.counts[order]) / len(state.fleet)).tolist())

    def allowed(self, row: list[float]) -> list[int]:
        """Return the type for a job of these times, or the fastest on which it can run."""
        share = bisect_left(self.sizes, max(time for time in row if time < inf)) / len(self.sizes)
        chosen = self.order[min(bisect_left(self.shares, share + 1e-12), len(self.order) - 1)]
        return [chosen] if row[chosen] < inf else [one for one in self.order if row[one] < inf][-1:]


def by_size(state: State, predict: Predict) -> list[Action]:
    """Small jobs to the slow types, large ones to the fast types, split at the share of devices that each type has.

    Size is a job's longest time; the share is taken of the jobs seen so far.
    """
    new = state.arrived if _SizeSplit in state.memory else list(state.waiting)
    split = state.recall(_SizeSplit, lambda: _SizeSplit.at_start(state, predict))
    for job in new:
        insort(split.sizes, max(time for time in predict.row(job) if time < inf))
    return greedy(state, predict, _in_order, split.allowed)


# ------------------------------------------------------------------------------------------ bound to a device


@dataclass
class _Bound:
    """Queues of bound jobs, and the free devices whose next job waits for cores of the host."""

    queues: Queues
    blocked: set[int] = field(default_factory=set)


def _binding(state: State, predict: Predict, jobs: list[int], queues: Queues) -> Iterator[int]:
    """Give jobs, one after the other, to the device on which each ends first; yield the devices."""
    for job in jobs:
        row = [time + setup for time, setup in zip(predict.row(job), state.setup_s, strict=True)]
        end, device_type, device = queues.best(state, row)
        queues.put(job, device, row[device_type], end)
        yield device


def _bind(state: State, predict: Predict, order: Callable[[list[int]], list[int]]) -> list[Action]:
    """Bind arriving jobs, in an order, to the device where they end first; correct what is expected as devices are freed."""
    first = _Bound not in state.memory
    bound = state.recall(_Bound, lambda: _Bound(Queues(state)))
    queues, new = bound.queues, list(state.waiting if first else state.arrived)
    for device in state.freed if not first else ():
        queues.expect(device, state.now_s + queues.load_s[device])
    devices = {device for device in state.freed if queues.of[device]} | bound.blocked
    devices.update(_binding(state, predict, order(new), queues))
    bound.blocked = set()
    actions, cores = [], state.free_cores
    for device in sorted(devices):
        device_type = state.type_of[device]
        if device not in state.free[device_type]:
            continue
        job = queues.of[device][0]
        if cores != inf and state.cores(job, device_type) > cores + 1e-9:
            bound.blocked.add(device)
            continue
        cores -= state.cores(job, device_type) if cores != inf else 0.0
        actions.append(Start(queues.pop(device, predict(job, device_type) + state.setup_s[device_type]), device))
    return actions or (NOTHING_STARTS if state.waiting else [])


def earliest_finish(state: State, predict: Predict) -> list[Action]:
    """Bind each job, as it comes, to the device where it is expected to end first (StarPU's dmda)."""
    return _bind(state, predict, lambda jobs: jobs)


def longest_first(state: State, predict: Predict) -> list[Action]:
    """Bind jobs, those that take longest on average first, to the device where they end first (HEFT, of independent tasks)."""
    def mean(job: int) -> float:
        return fmean(time for time in predict.row(job) if time < inf)

    return _bind(state, predict, lambda jobs: sorted(jobs, key=mean, reverse=True))


BASELINES: dict[str, Policy] = {
    "cpu-only": cpu_only, "gpu-only": gpu_only, "fastest": fastest, "first-come": first_come, "by-size": by_size,
    "earliest-finish": earliest_finish, "longest-first": longest_first, "shortest-first": shortest_first, "affinity": affinity,
    "matching": matching}
