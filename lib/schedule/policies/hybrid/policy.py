"""The hybrid policy: plan what is known, bind late, learn from finished jobs, restart stragglers when that pays."""

from math import inf

import numpy as np

from lib.errors import InputError, entry
from lib.schedule import bounds, energy
from lib.schedule.policies import host_cores
from lib.schedule.policies.baselines import MATCHED, MatchingPlan, affinity, matching, short_and_apt
from lib.schedule.policies.fair import fair
from lib.schedule.policies.greedy import Greedy
from lib.schedule.policies.hybrid.estimator import Estimator
from lib.schedule.policies.hybrid.late_binding import TypeLists
from lib.schedule.policies.hybrid.planner import Planner
from lib.schedule.policies.hybrid.stragglers import Stragglers
from lib.schedule.state import Action, CoreBudget, Predict, State, refining

OBJECTIVES = ("makespan", "mean_jct", "p99_jct", "deadline", "energy", "price", "fair")
_WEIGHED = ("makespan", "energy", "price")  # objectives of a plan; the others start jobs in an order
STEPS = 3_000_000  # of the first search, which take an ordinary core half a second
_AGAIN_SHARE, _LEAST_STEPS = 0.04, 12_000  # a later search takes this share of the steps, but at least so many
_ENDED, _LEAST_ENDED = 0.05, 2  # plan again when so many jobs ended, as a share of the waiting, and estimates were wrong
_FEW = 20  # waiting jobs, of which the lists are made again with each that ends
_GROWN = 0.25  # plan again when so many jobs came since the last plan, as a share of the waiting
_LEAST_WEIGHT = 1e-3  # of the makespan, where another objective is pursued
_AGING = 2.0
_ROUGH = 0.02  # from this spread of the predictions on, in log time, jobs are bound late


class HybridMemory:
    """What ``hybrid`` remembers between calls; None where it was not needed yet."""

    def __init__(self, state: State, predict: Predict):
        with refining(state):
            self.estimator = Estimator(state.jobs, predict, state.setup_s)
        self.batch = not state.jobs.arrival_s.any()  # whether all jobs are there from the start
        self.rough = False  # once predictions were wrong, jobs are always bound late
        self.lists, self.stragglers = None, None


def check_objective(objective: str) -> None:
    """Raise InputError for an objective that is not one of OBJECTIVES."""
    entry(OBJECTIVES, objective, "objective")


def hybrid(state: State, predict: Predict, objective: str = "makespan", steps: int = STEPS,
           weights: dict[str, float] | None = None) -> list[Action]:
    """Plan by a local search of so many ``steps``, bind late, correct predictions by finished jobs, restart stragglers.

    ``objective`` is one of OBJECTIVES. ``weights`` of makespan, energy and price make a weighted sum of them instead, each
    relative to its value in the first plan. Raises InputError for an unknown objective and for missing watts or prices.
    """
    check_objective(objective)
    memory, _ = state.recall(HybridMemory, lambda: HybridMemory(state, predict))
    estimator, stragglers = memory.estimator, memory.stragglers
    overdue = stragglers.overdue(state) if stragglers else []
    sigma = estimator.learn(state.finished, overdue)
    if sigma is not None:
        with refining(state):
            estimator.renew(sigma)
    if objective in _WEIGHED:
        weights = weights or {objective: 1.0}
        memory.rough |= state.jobs.has_gangs or (set(weights) == {"makespan"} and estimator.sigma > _ROUGH)
        actions = _late(state, memory, len(overdue)) if memory.rough else _planned(state, memory, weights, steps)
    else:
        actions = _ordered(state, predict, memory, objective)
    if objective in ("energy", "price", "fair"):
        return actions
    if stragglers is None:
        with refining(state):
            stragglers = memory.stragglers = Stragglers(state, estimator)
    stragglers.update(state, estimator)
    if state.waiting:
        return [*actions, *stragglers.look_again(state, estimator, actions)]
    return stragglers.restarts(state, estimator)


# ------------------------------------------------------------------------------------------ by a plan


def _outlook(state: State, estimator: Estimator) -> tuple[np.ndarray, ...]:
    """Return the waiting jobs, their times with set-up (jobs, types), and two columns of devices.

    The columns are the seconds until a device is expected to be free, blocked time included, and how long what runs there takes
    in all.
    """
    jobs = np.array(list(state.waiting), int)
    times = estimator.rows(jobs) + state.fleet.setup_s
    ready_s, running_s = np.zeros((2, len(state.fleet)))
    for device, ran in state.running.items():
        ready_s[device] = estimator.left_s(state, ran)
        running_s[device] = max(estimator.seconds(ran.job, state.type_of[device]), state.worked_s(ran))
    return jobs, times, ready_s + host_cores.blocked_s(state, jobs, times, ready_s), running_s


def _weighted(state: State, jobs: np.ndarray, times: np.ndarray, ready_s: np.ndarray,
              weights: dict[str, float]) -> tuple[float, np.ndarray | float]:
    """Return the weight of the makespan, and what running ``jobs`` on a type costs beside it (jobs, types), in like units.

    Energy is that of each job above idling, and idling, which lasts as long as the makespan.
    """
    if set(weights) == {"makespan"}:
        return weights["makespan"], 0.0
    fleet = state.fleet
    span_s = bounds.relaxation(times, fleet.counts, fleet.by_type(ready_s)).makespan_s
    of_span, extra = weights.get("makespan", _LEAST_WEIGHT), np.zeros(times.shape)
    for name, weight in weights.items():
        if name == "makespan" or not weight:
            continue
        cost, idle = _cost(state, jobs, times, name)
        idling = float((fleet.counts * idle).sum()) * span_s
        least = max(cost.min(axis=1).sum() + idling, 1e-12)
        extra += weight * np.where(np.isfinite(cost), cost, 0.0) / least
        of_span += weight * idling / least
    return of_span, extra


def _cost(state: State, jobs: np.ndarray, times: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what running jobs costs above idling (jobs, types), inf where they cannot run, and idling by type and second.

    Raises InputError for missing prices, and for missing watts of a job without a row in the table of energy.
    """
    fleet, able = state.fleet, np.isfinite(times)
    times = np.where(able, times, 0.0)
    if name == "price":
        cost, idle = times * fleet.price_per_hour, np.zeros(len(fleet.types))
        needed = "price_per_hour of every device type in the devices file"
    else:
        joules = None if state.joules is None else state.joules[jobs]
        cost = energy.above_idle_j(times, joules, fleet)
        idle = fleet.idle_w if joules is None else np.nan_to_num(fleet.idle_w)
        needed = "idle_w and busy_w of every device type in the devices file, or a table of energy with every job"
    if np.isnan(cost[able]).any() or np.isnan(idle).any():
        raise InputError(f"the objective {name} needs {needed}")
    return np.where(able, cost, inf), idle


def _planned(state: State, memory: HybridMemory, weights: dict[str, float], steps: int) -> list[Action]:
    """Start jobs from the queues of a plan, made again as jobs come and end otherwise than estimated."""
    first, estimator, waiting = Planner not in state.memory, memory.estimator, len(state.waiting)
    planner, new = state.recall(Planner, lambda: Planner(state))
    planner.new += len(new)
    planner.ended += len(state.finished)
    again = bool(new and planner.new >= max(1, _GROWN * waiting)
                 or waiting and planner.ended >= max(_LEAST_ENDED, _ENDED * waiting) and estimator.misled())
    if again:
        with refining(state):
            from lib.schedule.policies.hybrid import local_search  # numba takes a second to import

            jobs, times, ready_s, running_s = _outlook(state, estimator)
            type_of, assigned = state.fleet.type_of, {job: device for device, queue in enumerate(planner.jobs) for job in queue}
            start = np.array([assigned.get(job, -1) for job in jobs.tolist()], int)
            weight, extra = _weighted(state, jobs, times, ready_s, weights)
            plan = local_search.plan(
                times, type_of, ready_s, steps if first else max(_LEAST_STEPS, int(steps * _AGAIN_SHARE)), extra=extra,
                start=start if (start >= 0).all() else None, weight=weight, sigma=estimator.sigma, running_s=running_s)
            seconds = times[np.arange(len(jobs)), type_of[plan]]
            planner.fill(jobs, seconds, plan, state.now_s + local_search.loads(times, type_of, ready_s, plan))
    appended = [] if again else [planner.append(state, estimator, job) for job in new]
    every, planner.blocked = again or bool(planner.blocked), set()
    most = inf if every else min(1, len(new))
    devices = [device for device_type in range(len(state.counts)) for device in state.idle(device_type, most)]
    if not every:
        devices = [device for device in dict.fromkeys([*appended, *state.freed, *devices])
                   if device in state.free[state.type_of[device]]]
    devices = host_cores.gpus_first(state, devices, state.type_of.__getitem__)
    return planner.starts(state, estimator, devices, set(weights) == {"makespan"})


def _late(state: State, memory: HybridMemory, overdue: int) -> list[Action]:
    """Start jobs from lists by device type, made again as jobs come, end, or become ``overdue`` (how many did)."""
    waiting, lists = state.waiting, memory.lists
    if lists is not None:
        for job in state.arrived:
            lists.add(job, memory.estimator.with_setup(job))
        lists.ended += len(state.finished) + overdue
    least = 1 if len(waiting) <= _FEW else max(_LEAST_ENDED, _ENDED * len(waiting))
    if waiting and (lists is None or lists.ended >= least):
        with refining(state):
            jobs, times, ready_s, _ = _outlook(state, memory.estimator)
            lists = memory.lists = TypeLists(state, memory.estimator.sigma, jobs, times, ready_s)
    budget = CoreBudget(state)
    for device_type in host_cores.gpus_first(state, range(len(state.counts)), int) if waiting else ():
        for device in state.idle(device_type, len(waiting) - len(budget.started)):
            job = lists.take(state, device_type, budget.waits)
            if job is None:
                break
            if not budget.start(job, device):
                lists.put_back(job, device_type)
                budget.left = 0.0  # these cores are kept for this job
                break
    return budget.actions


# ------------------------------------------------------------------------------------------ by an order


def _ordered(state: State, predict: Predict, memory: HybridMemory, objective: str) -> list[Action]:
    """Start jobs by the matching where all are there, else short ones where they are fastest, or by deadline."""
    if objective == "mean_jct":
        if not memory.batch or state.expected or state.jobs.has_gangs or len(state.jobs) > MATCHED:
            return affinity(state, predict)
        if MatchingPlan not in state.memory or state.arrived:  # it will be solved
            predict = Predict(memory.estimator.rows(np.arange(len(state.jobs))))
        return matching(state, predict)
    if objective == "fair":
        return fair(state, predict)
    if objective == "deadline":
        return Greedy(key=lambda jobs, times: state.jobs.deadline_s[jobs, None])(state, predict)
    return Greedy(key=lambda jobs, times: state.jobs.arrival_s[jobs, None] + _AGING * short_and_apt(jobs, times))(
        state, predict)
