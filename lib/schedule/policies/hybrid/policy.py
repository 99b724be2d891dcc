"""Our own policy: plan what is known, bind late, learn from what finishes, and restart stragglers when that pays."""

from dataclasses import dataclass
from itertools import islice
from math import inf

import numpy as np

from lib.errors import InputError, choices
from lib.schedule import bounds, energy
from lib.schedule.policies import colocation
from lib.schedule.policies.greedy import greedy
from lib.schedule.policies.hybrid.estimator import Estimator
from lib.schedule.policies.hybrid.late_binding import TypeLists
from lib.schedule.policies.hybrid.planner import Planner
from lib.schedule.policies.hybrid.stragglers import Stragglers
from lib.schedule.policies.matching import MATCHED, MatchingPlan, matching
from lib.schedule.state import Action, Predict, Start, State, Wait, refining

OBJECTIVES = ("makespan", "mean_jct", "p99_jct", "deadline", "energy", "price")
STEPS = 3_000_000  # of the first search; an ordinary core takes half a second for them
_AGAIN_SHARE, _LEAST_STEPS = 0.04, 12_000  # of the steps of the first search, those of a later one
_ENDED, _LEAST_ENDED = 0.05, 2  # jobs that ended otherwise than estimated, as a share of the waiting, and all is planned anew
_GROWN = 0.25  # share of the waiting jobs that came or were corrected since the last plan, and all is planned anew
_LEAST_WEIGHT = 1e-3  # of the makespan, where something else is wanted
_AGING = 2.0
_ROUGH = 0.02  # from this spread of the predictions on, in log time, jobs are bound late
_WAITS = [Wait("no waiting job would end earlier on the devices that are free")]


@dataclass
class HybridMemory:
    """What ``hybrid`` remembers from call to call; what has not been needed yet is None."""

    estimator: Estimator
    batch: bool  # whether all jobs are there from the start
    rough: bool = False  # predictions that were wrong once are not planned on again
    planner: Planner | None = None
    lists: TypeLists | None = None
    stragglers: Stragglers | None = None

    @classmethod
    def at_start(cls, state: State, predict: Predict) -> "HybridMemory":
        """Return the memory of the first call."""
        with refining(state):
            estimator = Estimator(state.jobs, colocation.contended(state, predict), state.setup_s)
        return cls(estimator, batch=not state.jobs.arrival_s.any())


def hybrid(state: State, predict: Predict, objective: str = "makespan", steps: int = STEPS, seed: int = 0,
           weights: dict[str, float] | None = None) -> list[Action]:
    """Plan by local search of so many ``steps``, start late, correct predictions by what finished, restart stragglers.

    ``objective`` is one of OBJECTIVES; ``weights`` of makespan, energy and price make a weighted sum of them instead, each
    relative to its value in the first plan. Raises InputError for an objective that is not there or lacks watts or prices.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"no objective {objective!r}; there are: {choices(OBJECTIVES)}")
    memory = state.recall(HybridMemory, lambda: HybridMemory.at_start(state, predict))
    _learn(state, memory.estimator)
    if objective in ("makespan", "energy", "price"):
        wanted = weights or ({"makespan": 1.0} if objective == "makespan" else {objective: 1.0})
        memory.rough |= set(wanted) == {"makespan"} and memory.estimator.sigma > _ROUGH
        actions = _late(state, memory) if memory.rough else _planned(state, memory, wanted, steps, seed)
    else:
        actions = _ordered(state, predict, memory, objective)
    if objective in ("makespan", "mean_jct", "p99_jct", "deadline"):
        actions = _restarted(state, memory, actions)
    return actions


def _learn(state: State, estimator: Estimator) -> None:
    """Take in what finished since the last call."""
    erring = estimator.learn(state.finished)
    if erring is not None:
        with refining(state):
            estimator.renew(erring)


def _restarted(state: State, memory: HybridMemory, actions: list[Action]) -> list[Action]:
    """Return the actions with restarts of stragglers or, while jobs wait, the time at which to look for some."""
    if memory.stragglers is None:
        with refining(state):
            memory.stragglers = Stragglers(state, memory.estimator)
    memory.stragglers.update(state, memory.estimator)
    if state.waiting:
        return [*actions, *memory.stragglers.look_again(state, memory.estimator, actions)]
    return memory.stragglers.restarts(state, memory.estimator)


# ------------------------------------------------------------------------------------------ by a plan


def _ready_s(state: State, estimator: Estimator) -> tuple[np.ndarray, np.ndarray]:
    """Return in how many seconds each device is expected to be free, and how long what runs there takes in all."""
    ready, whole = np.zeros(len(state.fleet)), np.zeros(len(state.fleet))
    for device, ran in state.running.items():
        device_type = state.type_of[device]
        elapsed = state.now_s - ran.start_s - state.setup_s[device_type]
        ready[device] = estimator.left_s(ran.job, device_type, elapsed)
        whole[device] = max(estimator.seconds(ran.job, device_type), elapsed)
    return ready, whole


def _outlook(state: State, estimator: Estimator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the waiting jobs, their times with set-up (jobs, types), and what ``_ready_s`` does, blocked devices included."""
    jobs = np.array(list(state.waiting), int)
    times, (ready, whole) = estimator.rows(jobs) + state.fleet.setup_s[None], _ready_s(state, estimator)
    return jobs, times, ready + colocation.blocked_s(state, jobs, times, ready), whole


def _weighted(state: State, jobs: np.ndarray, times: np.ndarray, ready_s: np.ndarray,
              weights: dict[str, float]) -> tuple[float, np.ndarray | None]:
    """Return the weight of the makespan, and what running ``jobs`` on a type costs beside it (jobs, types), in like units.

    Energy is what running takes above idling, for each job, and idling, which lasts as long as the makespan.
    """
    if set(weights) == {"makespan"}:
        return weights["makespan"], None
    fleet = state.fleet
    busy_s = np.bincount(fleet.type_of, ready_s, minlength=len(fleet.types))
    span_s = bounds.relaxation(times, fleet.counts, busy_s).makespan_s
    of_span, extra = weights.get("makespan", _LEAST_WEIGHT), np.zeros(times.shape)
    for name, weight in weights.items():
        if name == "makespan" or not weight:
            continue
        cost, idle = _cost(state, jobs, times, name)
        idling = float((fleet.counts * idle).sum()) * span_s
        least = cost.min(axis=1).sum() + idling
        extra += weight * np.where(np.isfinite(cost), cost, 0.0) / max(least, 1e-12)
        of_span += weight * idling / max(least, 1e-12)
    return of_span, extra


def _cost(state: State, jobs: np.ndarray, times: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what running jobs costs above idling (jobs, types), inf where they cannot run, and idling by type and second.

    Raises InputError where watts, for which no table of energy stands in, or prices are not known.
    """
    fleet, able = state.fleet, np.isfinite(times)
    times = np.where(able, times, 0.0)
    if name == "price":
        cost, idle, columns = times * fleet.price_per_hour[None], np.zeros(len(fleet.types)), "price_per_hour"
    else:
        joules = None if state.joules is None else state.joules[jobs]
        cost = energy.above_idle_j(times, joules, fleet.idle_w, fleet.busy_w, fleet.setup_s)
        idle, columns = fleet.idle_w if joules is None else np.nan_to_num(fleet.idle_w), "idle_w and busy_w"
    if np.isnan(cost[able]).any() or np.isnan(idle).any():
        stands_in = ", or a table of energy with every job" if name == "energy" else ""
        raise InputError(f"the objective {name} needs {columns} of every device type in the devices file{stands_in}")
    return np.where(able, cost, inf), idle


def _plan_anew(state: State, estimator: Estimator, planner: Planner, weights: dict[str, float], steps: int, seed: int) -> None:
    from lib.schedule.policies.hybrid import local_search  # compiled by numba, which takes a second to import

    jobs, times, ready, whole = _outlook(state, estimator)
    type_of, assigned = state.fleet.type_of, planner.assignment()
    start = np.array([assigned.get(job, -1) for job in jobs.tolist()], int) if planner.size else None
    if start is not None and (start < 0).any():
        start = None
    weight, extra = _weighted(state, jobs, times, ready, weights)
    plan = local_search.plan(times, type_of, ready, steps, seed, extra, start, weight, estimator.sigma, whole)
    own = times[np.arange(len(jobs)), type_of[plan]]
    planner.fill(jobs, own, plan, state.now_s + local_search.loads(times, type_of, ready, plan))


def _planned(state: State, memory: HybridMemory, weights: dict[str, float], steps: int, seed: int) -> list[Action]:
    """Start jobs from the queues of a plan, made anew as jobs come and end otherwise than estimated."""
    first, estimator = memory.planner is None, memory.estimator
    planner = memory.planner = memory.planner or Planner(state)
    news = list(state.waiting) if first else state.arrived
    planner.new += len(news)
    planner.ended += len(state.finished)
    waiting = len(state.waiting)
    grown = planner.new >= max(1, _GROWN * waiting)
    corrected = waiting and planner.ended >= max(_LEAST_ENDED, _ENDED * waiting) and (estimator.changed() or estimator.erred())
    again = bool(news and grown or corrected)
    if again:
        with refining(state):
            later = max(_LEAST_STEPS, int(steps * _AGAIN_SHARE))
            _plan_anew(state, estimator, planner, weights, steps if first else later, seed)
    appended = [] if again else [planner.append(state, estimator, job) for job in news]
    blocked, planner.blocked = planner.blocked, False
    if again or blocked:
        devices = [device for free in state.free for device in reversed(free)]
    else:
        idle = [next(state.idle(device_type)) for device_type, free in enumerate(state.free) if free] if news else []
        devices = [device for device in dict.fromkeys([*appended, *state.freed, *idle])
                   if device in state.free[state.type_of[device]]]
    devices = colocation.in_order(state, devices)
    return planner.starts(state, estimator, devices, set(weights) == {"makespan"}) or (_WAITS if state.waiting else [])


def _late(state: State, memory: HybridMemory) -> list[Action]:
    """Start jobs from lists of types, made anew as jobs come and end: what is known roughly is not planned to the second."""
    if memory.lists is not None:
        for job in state.arrived:
            memory.lists.add(job, memory.estimator.with_setup(job))
        memory.lists.ended += len(state.finished)
    if state.waiting and (memory.lists is None or memory.lists.ended >= max(_LEAST_ENDED, _ENDED * len(state.waiting))):
        with refining(state):
            jobs, times, ready, _ = _outlook(state, memory.estimator)
            memory.lists = TypeLists(state, memory.estimator.sigma, jobs, times, ready)
    actions: list[Action] = []
    gone: set[int] = set()
    cores = state.free_cores
    for device_type in colocation.types_in_order(state) if state.waiting else ():
        free = state.free[device_type]
        for device in islice(reversed(free), len(free)):
            job = memory.lists.take(state, device_type, gone) if len(gone) < len(state.waiting) else None
            if job is None:
                break
            need = state.cores(job, device_type) if cores != inf else 0.0
            if need > cores + 1e-9:
                memory.lists.put_back(job, device_type)
                cores = 0.0  # kept for this one
                break
            cores -= need
            gone.add(job)
            actions.append(Start(job, device))
    return actions or (_WAITS if state.waiting else [])


# ------------------------------------------------------------------------------------------ by an order


def _ordered(state: State, predict: Predict, memory: HybridMemory, objective: str) -> list[Action]:
    """Start jobs in an order: by the matching where all are there, else short ones where they are at home, or by deadline."""
    if objective == "mean_jct" and memory.batch and not state.expected and len(state.jobs) <= MATCHED:
        if MatchingPlan not in state.memory or state.arrived:  # it will be solved
            predict = Predict(memory.estimator.rows(np.arange(len(state.jobs))))
        return matching(state, predict)

    if objective == "deadline":
        def key(job: int, _: int, device_type: int, row: list[float]) -> float:
            return float(state.jobs.deadline_s[job])
    elif objective == "p99_jct":
        def key(job: int, _: int, device_type: int, row: list[float]) -> float:
            return float(state.jobs.arrival_s[job]) + _AGING * row[device_type] * row[device_type] / min(row)
    else:
        def key(job: int, _: int, device_type: int, row: list[float]) -> float:
            return row[device_type] * row[device_type] / min(row)
    return greedy(state, predict, key)
