"""Scheduling policies: each one small function of the state and the predictions; ``POLICIES`` names them.

``policy(state, predict)`` returns what to start, restart, or wait for. What it remembers lies in ``state.memory``.
"""

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import inf
from statistics import fmean

import numpy as np

from lib.schedule import bounds
from lib.schedule.policies.queues import Queues
from lib.schedule.state import Action, Policy, Predict, Start, State, Wait, refining

Key = Callable[[int, int, int, list[float]], float]  # (job, order of arrival, type, times on all types) -> smallest first
MATCHED = 1500  # waiting jobs that are matched at once, the shortest first
IDLE = "every job waits for a device that it was given"
_IDLE = [Wait(IDLE)]


def fits(state: State, job: int, place: int, seconds: float) -> bool:
    """Return whether a job can run on a type of device at all: it has a time there and fits the memory."""
    return seconds < inf and state.need_mb[job] <= state.room_mb[place]


class _Ready:
    """Waiting jobs in a heap for each type of device that may take them; those started since are dropped when met."""

    def __init__(self, state: State, predict: Predict, key: Key, allowed: Callable[[list[float]], Iterable[int]] | None):
        self._key, self._allowed, self._count = key, allowed, 0
        self._least_cores = inf  # that any job needs
        self._aside: list[tuple[int, tuple[float, float, int]]] = []
        self.heaps: list[list[tuple[float, float, int]]] = [[] for _ in state.fleet.types]
        self._plain = not state.jobs.memory_mb.any()
        self.add(state, predict, state.waiting)

    def add(self, state: State, predict: Predict, jobs: Iterable[int]) -> None:
        """Take in jobs that arrived."""
        for job in jobs:
            row = predict.row(job)
            self._count += 1
            self._least_cores = min(self._least_cores, state.jobs.cpu_cores[job])
            if not self._plain:
                need = state.need_mb[job]
                row = [time if need <= most else inf for time, most in zip(row, state.room_mb, strict=True)]
            places = range(len(row)) if self._allowed is None else self._allowed(row)
            for place in places:
                if row[place] < inf:
                    heapq.heappush(self.heaps[place], (self._key(job, self._count, place, row), row[place], job))

    def first(self, place: int, gone: Callable[[int], bool]) -> tuple[float, float, int] | None:
        """Return the first job for a type of device that has not gone, without taking it."""
        heap = self.heaps[place]
        while heap and gone(heap[0][2]):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def narrow(self, state: State, place: int, gone: Callable[[int], bool], cores: float) -> tuple[float, float, int] | None:
        """Return the first job for a type that needs no more than ``cores`` of the host; wider ones step aside."""
        cpu, most = state.fleet.is_cpu(place), cores + 1e-9
        if not cpu and self._least_cores > most:
            return None
        while (first := self.first(place, gone)) is not None and state.cores(first[2], place) > most:
            if cpu:
                return None  # on a CPU all take the same
            self._aside.append((place, heapq.heappop(self.heaps[place])))
        return first

    def restore(self) -> None:
        """Put those back that stepped aside."""
        for place, one in self._aside:
            heapq.heappush(self.heaps[place], one)
        self._aside.clear()


def _news(state: State, predict: Predict, key: Key, allowed=None) -> _Ready:
    ready = state.memory.get("ready")
    if ready is None:
        ready = state.memory["ready"] = _Ready(state, predict, key, allowed)
    else:
        ready.add(state, predict, state.arrived)
    return ready


def greedy(state: State, predict: Predict, key: Key, allowed=None) -> list[Action]:
    """Start waiting jobs on free devices, always the pair with the smallest key, and of equal ones the shortest time.

    A job that needs more of the host's cores than are free lets others go before it.
    """
    ready, started, actions = _news(state, predict, key, allowed), set(), []
    waiting, cores = state.waiting, state.free_cores
    idle = {place: state.idle(place) for place, free in enumerate(state.free) if free}
    left = {place: len(state.free[place]) for place in idle}

    def gone(job: int) -> bool:
        return job in started or job not in waiting

    while idle:
        found = [(*first, place) for place in idle if (first := ready.first(place, gone) if cores == inf else
                                                       ready.narrow(state, place, gone, cores))]
        if not found:
            break
        _, _, job, place = min(found)
        device = next(idle[place])
        left[place] -= 1
        if not left[place]:
            del idle[place]
        if cores != inf:
            cores -= state.cores(job, place)
        started.add(job)
        actions.append(Start(job, device))
    ready.restore()
    return actions or (_IDLE if state.waiting else [])


# ------------------------------------------------------------------------------------------ baselines


def _in_order(job: int, count: int, place: int, row: list[float]) -> float:
    return count


def _fastest_types(row: list[float]) -> tuple[int, ...]:
    return (row.index(min(row)),)


def first_come(state: State, predict: Predict) -> list[Action]:
    """First come, first served, on the fastest device that is free."""
    return greedy(state, predict, _in_order)


def fastest(state: State, predict: Predict) -> list[Action]:
    """First come, first served, each job only on the type that is fastest for it."""
    return greedy(state, predict, _in_order, _fastest_types)


def _only(state: State, predict: Predict, cpu: bool) -> list[Action]:
    mine = [place for place in range(len(state.fleet.types)) if state.fleet.is_cpu(place) == cpu]

    def allowed(row: list[float]) -> list[int]:
        return [place for place in mine if row[place] < inf] or [place for place in range(len(row)) if row[place] < inf]

    return greedy(state, predict, _in_order, allowed)


def cpu_only(state: State, predict: Predict) -> list[Action]:
    """First come, first served, on CPUs; a job that no CPU can run goes where it can."""
    return _only(state, predict, cpu=True)


def gpu_only(state: State, predict: Predict) -> list[Action]:
    """First come, first served, on what is no CPU; a job that none of them can run goes where it can."""
    return _only(state, predict, cpu=False)


def by_size(state: State, predict: Predict) -> list[Action]:
    """Small jobs to the slow types, large ones to the fast types, split at the share of devices that each type has.

    Size is a job's longest time; the share is taken of the jobs seen so far.
    """
    sizes: list[float] = state.memory.setdefault("sizes", [])
    new = state.arrived if "ready" in state.memory else list(state.waiting)
    for job in new:
        insort(sizes, max(time for time in predict.row(job) if time < inf))
    if "speed" not in state.memory:
        rows = np.array([predict.row(job) for job in new]) if new else np.ones((1, len(state.fleet.types)))
        known = [column[np.isfinite(column)] for column in rows.T]
        order = np.argsort([-np.median(times) if len(times) else 0.0 for times in known], kind="stable").tolist()
        state.memory["speed"] = order, (np.cumsum(state.fleet.counts[order]) / len(state.fleet)).tolist()
    order, shares = state.memory["speed"]

    def allowed(row: list[float]) -> list[int]:
        share = bisect_left(sizes, max(time for time in row if time < inf)) / len(sizes)
        place = order[min(bisect_left(shares, share + 1e-12), len(order) - 1)]
        return [place] if row[place] < inf else [place for place in order if row[place] < inf][-1:]

    return greedy(state, predict, _in_order, allowed)


def shortest_first(state: State, predict: Predict) -> list[Action]:
    """Start the shortest waiting job first, by its shortest time, on the fastest device that is free."""
    return greedy(state, predict, lambda job, count, place, row: min(row))


def affinity(state: State, predict: Predict) -> list[Action]:
    """Start the job that is short on the free device, and shorter there than elsewhere, first: time x (time / shortest)."""
    return greedy(state, predict, lambda job, count, place, row: row[place] * row[place] / min(row))


# ------------------------------------------------------------------------------------------ bound to a device


def _binding(state: State, predict: Predict, jobs: list[int], queues: Queues) -> Iterator[int]:
    """Give jobs, one after the other, to the device on which each ends first; yield the devices."""
    for job in jobs:
        need = state.need_mb[job]
        row = [time + setup if need <= most else inf
               for time, setup, most in zip(predict.row(job), state.setup_s, state.room_mb, strict=True)]
        end, place, device = queues.best(state, row)
        queues.put(job, device, row[place], end)
        yield device


def _bound(state: State, predict: Predict, order: Callable[[list[int]], list[int]]) -> list[Action]:
    """Bind arriving jobs, in an order, to the device where they end first; correct what is expected as devices are freed."""
    queues: Queues | None = state.memory.get("queues")
    if queues is None:
        queues, new = state.memory.setdefault("queues", Queues(state)), list(state.waiting)
    else:
        new = state.arrived
        for device in state.freed:
            queues.expect(device, state.now_s + queues.load_s[device])
    asked = {device for device in state.freed if queues.of[device]}
    asked.update(_binding(state, predict, order(list(new)), queues) if new else ())
    actions, cores = [], state.free_cores
    for device in sorted(asked | state.memory.pop("held", set())):
        place = state.type_of[device]
        if device not in state.free[place]:
            continue
        job = queues.of[device][0]
        if cores != inf and state.cores(job, place) > cores + 1e-9:
            state.memory.setdefault("held", set()).add(device)
            continue
        cores -= state.cores(job, place) if cores != inf else 0.0
        actions.append(Start(queues.pop(device, predict(job, place) + state.setup_s[place]), device))
    return actions or (_IDLE if state.waiting else [])


def earliest_finish(state: State, predict: Predict) -> list[Action]:
    """Bind each job, as it comes, to the device where it is expected to end first (StarPU's dmda)."""
    return _bound(state, predict, lambda jobs: jobs)


def longest_first(state: State, predict: Predict) -> list[Action]:
    """Bind jobs, those that take longest on average first, to the device where they end first (HEFT, of independent tasks)."""
    def mean(job: int) -> float:
        return fmean(time for time in predict.row(job) if time < inf)

    return _bound(state, predict, lambda jobs: sorted(jobs, key=mean, reverse=True))


# ------------------------------------------------------------------------------------------ matching


def matching(state: State, predict: Predict) -> list[Action]:
    """Start jobs as the matching with the least sum of completion times says (AlloX); solved again when jobs arrive."""
    plan: list[deque[int]] | None = state.memory.get("plan")
    if plan is None or state.arrived:
        plan = state.memory["plan"] = matched(state, predict)
    actions, cores = [], state.free_cores
    for place, row in enumerate(plan):
        for device in state.first_idle(place, len(row)):
            if cores != inf and state.cores(row[0], place) > cores + 1e-9:
                break
            cores -= state.cores(row[0], place) if cores != inf else 0.0
            actions.append(Start(row.popleft(), device))
    if not actions and state.waiting and not any(plan):
        state.memory["plan"] = matched(state, predict)  # those that did not fit into the last one
        return matching(state, predict) if any(state.memory["plan"]) and any(state.free) else _IDLE
    return actions or (_IDLE if state.waiting else [])


def matched(state: State, predict: Predict) -> list[deque[int]]:
    """Return, for each type, the waiting jobs that the matching gives it, in the order in which to start them."""
    with refining(state):
        return _matched(state, predict)


def _matched(state: State, predict: Predict) -> list[deque[int]]:
    jobs = np.array(list(state.waiting), int)
    plan: list[deque[int]] = [deque() for _ in state.fleet.types]
    if not len(jobs):
        return plan
    times = predict.table[jobs] + state.fleet.setup_s[None]
    memory = np.where(np.isnan(state.fleet.memory_mb), inf, state.fleet.memory_mb)
    times = np.where((state.jobs.memory_mb[jobs, None] <= memory[None]) & (state.fleet.counts > 0)[None], times, inf)
    if len(jobs) > MATCHED:
        chosen = np.argsort(times.min(axis=1), kind="stable")[:MATCHED]
        jobs, times = jobs[chosen], times[chosen]
    _, kinds, places = bounds.matching(times, state.fleet.counts)
    own = times[np.arange(len(jobs)), kinds]
    for number in np.lexsort((own, -places)):
        plan[kinds[number]].append(int(jobs[number]))
    return plan


BASELINES: dict[str, Policy] = {
    "cpu-only": cpu_only, "gpu-only": gpu_only, "fastest": fastest, "first-come": first_come, "by-size": by_size,
    "earliest-finish": earliest_finish, "longest-first": longest_first, "shortest-first": shortest_first, "affinity": affinity,
    "matching": matching}
WORK_CONSERVING = ("first-come", "shortest-first", "affinity")
