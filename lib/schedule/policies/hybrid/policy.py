"""Our own policy: plan what is known, bind late, learn from what finishes, and move stragglers when that pays."""

from itertools import islice
from math import inf

import numpy as np

from lib.errors import InputError, choices
from lib.schedule import bounds
from lib.schedule.policies import baselines, colocation
from lib.schedule.policies.hybrid.estimator import Belief
from lib.schedule.policies.hybrid.late_binding import Lists
from lib.schedule.policies.hybrid.planner import Plan, believed_s
from lib.schedule.policies.hybrid.stragglers import Stragglers
from lib.schedule.state import Action, Predict, Start, State, Wait, refining

OBJECTIVES = ("makespan", "mean_jct", "p99_jct", "deadline", "energy", "price")
STEPS = 3_000_000  # of the first search; an ordinary core takes half a second for them
_AGAIN_SHARE, _LEAST_STEPS = 0.04, 12_000  # of the steps of the first plan, those of a later one
_ENDED, _LEAST_ENDED = 0.05, 2  # jobs that ended otherwise than believed, as a share of the waiting, and all is planned anew
_GROWN = 0.25  # share of the waiting jobs that came or were corrected since the last plan, and all is planned anew
_LEAST_WEIGHT = 1e-3  # of the makespan, where something else is wanted
_AGING = 2.0
_ROUGH = 0.02  # from this spread of the predictions on, in log time, jobs are bound late
_WAITS = [Wait("no waiting job would end earlier on the devices that are free")]


def hybrid(state: State, predict: Predict, objective: str = "makespan", steps: int = STEPS, seed: int = 0,
           weights: dict[str, float] | None = None, spoliation: bool = True) -> list[Action]:
    """Plan by local search of so many ``steps``, start late, correct predictions by what finished, restart stragglers.

    ``objective`` is one of OBJECTIVES; ``weights`` of makespan, energy and price make a weighted sum of them instead, each
    relative to its value in the first plan. Raises InputError for an objective that is not there or lacks watts or prices.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"no objective {objective!r}; there are: {choices(OBJECTIVES)}")
    belief = _belief(state, predict)
    if objective in ("makespan", "energy", "price"):
        wanted = weights or ({"makespan": 1.0} if objective == "makespan" else {objective: 1.0})
        if set(wanted) == {"makespan"} and belief.sigma > _ROUGH:
            state.memory["rough"] = True  # for good: predictions that were wrong once are not planned on again
        actions = _late(state, belief) if "rough" in state.memory else _planned(state, belief, wanted, steps, seed)
    else:
        actions = _ordered(state, predict, belief, objective)
    if spoliation and objective in ("makespan", "mean_jct", "p99_jct", "deadline"):
        stragglers: Stragglers | None = state.memory.get("stragglers")
        if stragglers is None:
            with refining(state):
                stragglers = state.memory["stragglers"] = Stragglers(state, belief)
        stragglers.see(state, belief)
        actions = [*actions, *stragglers.look(state, belief, actions)] if state.waiting else stragglers.moves(state, belief)
    return actions


def _belief(state: State, predict: Predict) -> Belief:
    """Return what is believed, what finished since the last call taken in."""
    belief: Belief | None = state.memory.get("belief")
    if belief is None:
        with refining(state):
            belief = state.memory["belief"] = Belief(state.jobs, colocation.contended(state, predict), state.setup_s)
    erring = belief.learn(state.finished)
    if erring is not None:
        with refining(state):
            belief.renew(erring)
    return belief


# ------------------------------------------------------------------------------------------ by a plan


def _able(state: State, jobs: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the times with inf where a job does not fit the memory, or no such device is there."""
    allowed = (state.jobs.memory_mb[jobs, None] <= np.array(state.room_mb)[None]) & (np.array(state.counts) > 0)[None]
    return np.where(allowed, times + state.fleet.setup_s[None], inf)


def _ready_s(state: State, belief: Belief) -> tuple[np.ndarray, np.ndarray]:
    """Return in how many seconds each device is expected to be free, and how long what runs there takes in all."""
    ready, whole = np.zeros(len(state.fleet)), np.zeros(len(state.fleet))
    for device, ran in state.running.items():
        place = state.type_of[device]
        elapsed = state.now_s - ran.start_s - state.setup_s[place]
        ready[device] = belief.left_s(ran.job, place, elapsed)
        whole[device] = max(belief.seconds(ran.job, place), elapsed)
    return ready, whole


def _weighed(state: State, times: np.ndarray, ready_s: np.ndarray,
             weights: dict[str, float]) -> tuple[float, np.ndarray | None]:
    """Return the weight of the makespan, and what running a job on a type costs beside it (jobs, types), in like units.

    Energy is what running takes above idling, for each job, and idling, which lasts as long as the makespan.
    """
    if set(weights) == {"makespan"}:
        return weights["makespan"], None
    fleet = state.fleet
    span_s = bounds.fluid(times, fleet.counts, np.bincount(fleet.type_of, ready_s, minlength=len(fleet.types))).makespan_s
    of_span, extra = weights.get("makespan", _LEAST_WEIGHT), np.zeros(times.shape)
    for name, weight in weights.items():
        if name == "makespan" or not weight:
            continue
        busy = fleet.busy_w if name == "energy" else fleet.price_per_hour
        idle = fleet.idle_w if name == "energy" else np.zeros(len(fleet.types))
        if np.isnan(busy).any() or np.isnan(idle).any():
            columns = "idle_w and busy_w" if name == "energy" else "price_per_hour"
            raise InputError(f"the objective {name} needs {columns} of every type of device in the devices file")
        cost = np.where(np.isfinite(times), times * (busy - idle)[None], inf)
        idling = float((fleet.counts * idle).sum()) * span_s
        least = cost.min(axis=1).sum() + idling
        extra += weight * np.where(np.isfinite(cost), cost, 0.0) / max(least, 1e-12)
        of_span += weight * idling / max(least, 1e-12)
    return of_span, extra


def _plan_anew(state: State, belief: Belief, plan: Plan, weights: dict[str, float], steps: int, seed: int) -> None:
    from lib.schedule.policies.hybrid import local_search  # compiled by numba, which takes a second to import

    jobs = np.array(list(state.waiting), int)
    times, (ready, whole) = _able(state, jobs, belief.rows(jobs)), _ready_s(state, belief)
    ready += colocation.blocked_s(state, jobs, times, ready)
    type_of, held = state.fleet.type_of, plan.given()
    start = np.array([held.get(job, -1) for job in jobs.tolist()], int) if plan.size else None
    if start is not None and (start < 0).any():
        start = None
    weight, extra = _weighed(state, times, ready, weights)
    assign = local_search.plan(times, type_of, ready, steps, seed, extra, start, weight, belief.sigma, whole)
    own = times[np.arange(len(jobs)), type_of[assign]]
    plan.lay(jobs, own, assign, state.now_s + local_search.loads(times, type_of, ready, assign))


def _planned(state: State, belief: Belief, weights: dict[str, float], steps: int, seed: int) -> list[Action]:
    plan: Plan | None = state.memory.get("plan")
    first = plan is None
    if first:
        plan = state.memory["plan"] = Plan(state)
    news = list(state.waiting) if first else state.arrived
    plan.new += len(news)
    plan.ended += len(state.finished)
    waiting = len(state.waiting)
    grown = plan.new >= max(1, _GROWN * waiting)
    corrected = waiting and plan.ended >= max(_LEAST_ENDED, _ENDED * waiting) and (belief.changed() or belief.erred())
    again = bool(news and grown or corrected)
    if again:
        with refining(state):
            _plan_anew(state, belief, plan, weights, steps if first else max(_LEAST_STEPS, int(steps * _AGAIN_SHARE)), seed)
    given = [] if again else [plan.append(state, belief, job) for job in news]
    held, plan.held = plan.held, False
    if again or held:
        asked = [device for free in state.free for device in reversed(free)]
    else:
        idle = [next(state.idle(place)) for place, free in enumerate(state.free) if free] if news else []
        asked = [device for device in dict.fromkeys([*given, *state.freed, *idle])
                 if device in state.free[state.type_of[device]]]
    asked = colocation.in_order(state, asked)
    return plan.starts(state, belief, asked, set(weights) == {"makespan"}) or (_WAITS if state.waiting else [])


def _late(state: State, belief: Belief) -> list[Action]:
    """Start jobs from lists of types, made anew as jobs come and end: what is known roughly is not planned to the second."""
    lists: Lists | None = state.memory.get("lists")
    if lists is not None:
        for job in state.arrived:
            lists.add(job, believed_s(state, belief, job))
        lists.ended += len(state.finished)
    if state.waiting and (lists is None or lists.ended >= max(_LEAST_ENDED, _ENDED * len(state.waiting))):
        with refining(state):
            jobs = np.array(list(state.waiting), int)
            times, ready = _able(state, jobs, belief.rows(jobs)), _ready_s(state, belief)[0]
            ready += colocation.blocked_s(state, jobs, times, ready)
            lists = state.memory["lists"] = Lists(state, belief, jobs, times, ready)
    actions: list[Action] = []
    gone: set[int] = set()
    cores = state.free_cores
    for place in colocation.types_in_order(state) if len(state.waiting) else ():
        free = state.free[place]
        for device in islice(reversed(free), len(free)):
            job = lists.take(state, place, gone) if len(gone) < len(state.waiting) else None
            if job is None:
                break
            need = state.cores(job, place) if cores != inf else 0.0
            if need > cores + 1e-9:
                lists.back(job, place)
                cores = 0.0  # kept for this one
                break
            cores -= need
            gone.add(job)
            actions.append(Start(job, device))
    return actions or (_WAITS if state.waiting else [])


# ------------------------------------------------------------------------------------------ by an order


def _ordered(state: State, predict: Predict, belief: Belief, objective: str) -> list[Action]:
    """Start jobs in an order: by the matching where all are there, else short ones where they are at home, or by deadline."""
    if objective == "mean_jct" and not state.expected and len(state.jobs) <= baselines.MATCHED and \
            state.memory.setdefault("batch", not state.jobs.arrival_s.any()):
        return baselines.matching(state, Predict(belief.rows(np.arange(len(state.jobs))))
                                 if "plan" not in state.memory or state.arrived else predict)

    if objective == "deadline":
        def key(job: int, _: int, place: int, row: list[float]) -> float:
            return float(state.jobs.deadline_s[job])
    elif objective == "p99_jct":
        def key(job: int, _: int, place: int, row: list[float]) -> float:
            return float(state.jobs.arrival_s[job]) + _AGING * row[place] * row[place] / min(row)
    else:
        def key(job: int, _: int, place: int, row: list[float]) -> float:
            return row[place] * row[place] / min(row)
    return baselines.greedy(state, predict, key)
