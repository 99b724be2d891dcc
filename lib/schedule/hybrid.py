"""Our own policy: plan what is known, bind late, learn from what finishes, and move stragglers when that pays."""

from collections import deque
from math import inf

import numpy as np

from lib.errors import InputError, choices
from lib.schedule import bounds, policies, search
from lib.schedule.belief import Belief
from lib.schedule.late import Lists
from lib.schedule.state import Action, Predict, Restart, Start, State, Wait

OBJECTIVES = ("makespan", "mean_jct", "p99_jct", "deadline", "energy", "price")
_LIMIT_S = 0.5
_AGAIN_SHARE, _LEAST_LIMIT_S = 0.04, 0.002
_ENDED, _LEAST_ENDED = 0.05, 2  # jobs that ended otherwise than believed, as a share of the waiting, and all is planned anew
_GROWN = 0.25  # share of the waiting jobs that came or were corrected since the last plan, and all is planned anew
_LEAST_WEIGHT = 1e-3  # of the makespan, where something else is wanted
_PAYS = 0.8  # of what is left of a running job, that a restart elsewhere may take
_AGING = 2.0
_ROUGH = 0.02  # from this spread of the predictions on, in log time, jobs are bound late
_WAITS = [Wait("no waiting job would end earlier on the devices that are free")]


class _Plan:
    """A queue for each device, and when each is expected to be done with it."""

    def __init__(self, devices: int):
        self.queues: list[deque[int]] = [deque() for _ in range(devices)]
        self.end_s = np.zeros(devices)
        self.size, self.new, self.ended = 0, 0, 0

    def lay(self, jobs: np.ndarray, times: np.ndarray, assign: np.ndarray, own: np.ndarray, ends: np.ndarray) -> None:
        """Fill the queues, the longest job of each device first."""
        for queue in self.queues:
            queue.clear()
        for number in np.argsort(-own, kind="stable"):
            self.queues[assign[number]].append(int(jobs[number]))
        self.end_s, self.size, self.new, self.ended = ends, len(jobs), 0, 0

    def given(self) -> dict[int, int]:
        """Return the device of each queued job."""
        return {job: device for device, queue in enumerate(self.queues) for job in queue}


def hybrid(state: State, predict: Predict, objective: str = "makespan", limit_s: float = _LIMIT_S, seed: int = 0,
           weights: dict[str, float] | None = None, spoliation: bool = True) -> list[Action]:
    """Plan by local search within ``limit_s``, start late, correct predictions by what finished, restart stragglers.

    ``objective`` is one of OBJECTIVES; ``weights`` of makespan, energy and price make a weighted sum of them instead, each
    relative to its value in the first plan. Raises InputError for an objective that is not there or lacks watts or prices.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"no objective {objective!r}; there are: {choices(OBJECTIVES)}")
    belief: Belief | None = state.memory.get("belief")
    if belief is None:
        belief = state.memory["belief"] = Belief(state.jobs, predict)
    belief.learn(state.finished)
    if objective in ("makespan", "energy", "price"):
        wanted = weights or ({"makespan": 1.0} if objective == "makespan" else {objective: 1.0})
        if set(wanted) == {"makespan"} and belief.sigma > _ROUGH:
            state.memory["rough"] = True  # for good: predictions that were wrong once are not planned on again
        actions = _late(state, belief) if "rough" in state.memory else _planned(state, belief, wanted, limit_s, seed)
    else:
        actions = _ordered(state, predict, belief, objective)
    if spoliation and objective in ("makespan", "mean_jct", "p99_jct", "deadline"):
        actions = [*actions, *_looked(state, belief, actions)] if state.waiting else _moved(state, belief)
    return actions


# ------------------------------------------------------------------------------------------ by a plan


def _able(state: State, jobs: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the times with inf where a job does not fit the memory, or no such device is there."""
    memory = np.where(np.isnan(state.fleet.memory_mb), inf, state.fleet.memory_mb)
    allowed = (state.jobs.memory_mb[jobs, None] <= memory[None]) & (state.fleet.counts > 0)[None]
    return np.where(allowed, times + state.fleet.setup_s[None], inf)


def _ready_s(state: State, belief: Belief) -> tuple[np.ndarray, np.ndarray]:
    """Return in how many seconds each device is expected to be free, and how long what runs there takes in all."""
    ready, whole = np.zeros(len(state.fleet)), np.zeros(len(state.fleet))
    for device, ran in state.running.items():
        place = int(state.fleet.type_of[device])
        elapsed = state.now_s - ran.start_s - state.fleet.setup_s[place]
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


def _plan_anew(state: State, belief: Belief, plan: _Plan, weights: dict[str, float], limit_s: float, seed: int) -> None:
    jobs = np.array(list(state.waiting), int)
    times, (ready, whole) = _able(state, jobs, belief.rows(jobs)), _ready_s(state, belief)
    type_of, held = state.fleet.type_of, plan.given()
    start = np.array([held.get(job, -1) for job in jobs.tolist()], int) if plan.size else None
    if start is not None and (start < 0).any():
        start = None
    weight, extra = _weighed(state, times, ready, weights)
    assign = search.plan(times, type_of, ready, limit_s, seed, extra, start, weight, belief.sigma, whole)
    own = times[np.arange(len(jobs)), type_of[assign]]
    plan.lay(jobs, times, assign, own, state.now_s + search.loads(times, type_of, ready, assign))


def _planned(state: State, belief: Belief, weights: dict[str, float], limit_s: float, seed: int) -> list[Action]:
    plan: _Plan | None = state.memory.get("plan")
    first = plan is None
    if first:
        plan = state.memory["plan"] = _Plan(len(state.fleet))
    news = list(state.waiting) if first else state.arrived
    plan.new += len(news)
    plan.ended += len(state.finished)
    waiting = len(state.waiting)
    grown = plan.new >= max(1, _GROWN * waiting)
    corrected = waiting and plan.ended >= max(_LEAST_ENDED, _ENDED * waiting) and (belief.changed() or belief.erred())
    if news and grown or corrected:
        again = limit_s if first else max(_LEAST_LIMIT_S, limit_s * _AGAIN_SHARE)
        _plan_anew(state, belief, plan, weights, again, seed)
    else:
        for job in news:
            _append(state, belief, plan, job)
    asked = [device for free in state.free for device in reversed(free)] if news or corrected or state.memory.pop(
        "held", False) else [device for device in state.freed if device in state.free[state.fleet.type_of[device]]]
    return _starts(state, belief, plan, asked, "makespan" in weights)


def _append(state: State, belief: Belief, plan: _Plan, job: int) -> None:
    """Put a job that came late where it ends first."""
    times = _able(state, np.array([job]), belief.rows(np.array([job])))[0]
    ends = np.maximum(plan.end_s, state.now_s) + times[state.fleet.type_of]
    device = int(ends.argmin())
    plan.queues[device].append(job)
    plan.end_s[device] = ends[device]


def _starts(state: State, belief: Belief, plan: _Plan, asked: list[int], steal: bool) -> list[Action]:
    actions: list[Action] = []
    cores, left = state.free_cores, len(state.waiting)
    for device in asked:
        place = int(state.fleet.type_of[device])
        queue = plan.queues[device]
        if not queue and left and steal:
            _steal(state, belief, plan, device, place)
        if not queue:
            plan.end_s[device] = state.now_s
            continue
        if cores != inf and state.cores(queue[0], place) > cores + 1e-9:
            state.memory["held"] = True
            continue
        cores -= state.cores(queue[0], place) if cores != inf else 0.0
        left -= 1
        actions.append(Start(queue.popleft(), device))
    return actions or (_WAITS if state.waiting else [])


def _steal(state: State, belief: Belief, plan: _Plan, device: int, place: int) -> None:
    """Take a job from the queue that is expected to end last, if it ends earlier here."""
    ends = np.where([len(queue) > 0 for queue in plan.queues], plan.end_s, -inf)
    for victim in np.argsort(-ends)[:3].tolist():
        best, gain = None, 0.0
        for job in plan.queues[victim]:
            here = belief.seconds(job, place)
            if policies.fits(state, job, place, here):
                saved = plan.end_s[victim] - (state.now_s + here + state.fleet.setup_s[place])
                if saved > gain:
                    best, gain = job, saved
        if best is not None:
            plan.queues[victim].remove(best)
            plan.queues[device].append(best)
            other = int(state.fleet.type_of[victim])
            plan.end_s[victim] -= belief.seconds(best, other) + state.fleet.setup_s[other]
            plan.end_s[device] = state.now_s + belief.seconds(best, place) + state.fleet.setup_s[place]
            return


def _late(state: State, belief: Belief) -> list[Action]:
    """Start jobs from lists of types, made anew as jobs come and end: what is known roughly is not planned to the second."""
    lists: Lists | None = state.memory.get("lists")
    if lists is not None:
        for job in state.arrived:
            lists.add(job, _able(state, np.array([job]), belief.rows(np.array([job])))[0])
        lists.ended += len(state.finished)
    if state.waiting and (lists is None or lists.ended >= max(_LEAST_ENDED, _ENDED * len(state.waiting))):
        jobs = np.array(list(state.waiting), int)
        lists = state.memory["lists"] = Lists(state, belief, jobs, _able(state, jobs, belief.rows(jobs)),
                                              _ready_s(state, belief)[0])
    actions: list[Action] = []
    gone: set[int] = set()
    cores = state.free_cores
    for place in range(len(state.fleet.types)) if len(state.waiting) else ():
        for device in state.first_idle(place, len(state.waiting)):
            job = lists.take(state, place, gone) if len(gone) < len(state.waiting) else None
            if job is None:
                break
            need = state.cores(job, place) if cores != inf else 0.0
            if need > cores + 1e-9:
                lists.back(job, place)
                break
            cores -= need
            gone.add(job)
            actions.append(Start(job, device))
    return actions or (_WAITS if state.waiting else [])


# ------------------------------------------------------------------------------------------ by an order


def _ordered(state: State, predict: Predict, belief: Belief, objective: str) -> list[Action]:
    """Start jobs in an order: by the matching where all are there, else short ones where they are at home, or by deadline."""
    if objective == "mean_jct" and not state.expected and len(state.jobs) <= policies.MATCHED and \
            state.memory.setdefault("batch", not state.jobs.arrival_s.any()):
        return policies.matching(state, Predict(belief.rows(np.arange(len(state.jobs))))
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
    return policies.greedy(state, predict, key)


# ------------------------------------------------------------------------------------------ stragglers


def _looked(state: State, belief: Belief, actions: list[Action]) -> list[Action]:
    """Ask to look again when the first job should have ended, if all jobs run and devices are left to move one to."""
    starts = [action for action in actions if isinstance(action, Start)]
    if belief.sigma <= 0 or len(starts) < len(state.waiting) or len(starts) >= sum(map(len, state.free)):
        return []
    look_s: float = state.memory.get("look_s", 0.0)
    if look_s <= state.now_s:  # the last look is over: of all that runs
        left_s = _ready_s(state, belief)[0]
        look_s = state.now_s + min((float(left_s[device]) for device in state.running), default=inf)
    first_s = min(belief.seconds(job, int(state.fleet.type_of[device])) for job, device in starts)
    state.memory["look_s"] = look_s = min(look_s, state.now_s + first_s)
    return [Wait("a job that was started may become a straggler", look_s)]


def _moved(state: State, belief: Belief) -> list[Action]:
    """Restart running jobs on free devices where they would end much earlier than where they are."""
    idle = [place for place, free in enumerate(state.free) if free]
    if not idle or not state.running:
        return []
    late = sorted(((belief.left_s(ran.job, int(state.fleet.type_of[device]), state.now_s - ran.start_s), ran)
                   for device, ran in state.running.items()), key=lambda one: -one[0])
    actions, taken, look_s, cores = [], set(), inf, state.free_cores
    left_types: dict[int, set[int]] = state.memory.setdefault("left", {})  # where a job was stopped, it does not go back
    for left_s, ran in late[:4]:
        kind = int(state.fleet.type_of[ran.device])
        for there_s, place in sorted((belief.seconds(ran.job, place) + state.fleet.setup_s[place], place) for place in idle):
            device = next((device for device in state.idle(place) if device not in taken), None)
            if device is None or place == kind or place in left_types.get(ran.job, ()) or \
                    not policies.fits(state, ran.job, place, there_s) or state.cores(ran.job, place) > cores:
                continue
            if there_s < _PAYS * left_s:
                taken.add(device)
                cores -= state.cores(ran.job, place)
                left_types.setdefault(ran.job, set()).add(kind)
                actions.append(Restart(ran.job, device))
                again_s = there_s
            else:  # when it will be so overdue that moving it pays
                again_s = max(there_s / (_PAYS * max(belief.sigma, 1e-9)) - (state.now_s - ran.start_s), 0.01 * there_s)
            look_s = min(look_s, again_s)
            break
    if look_s < inf and belief.sigma > 0:
        state.memory["look_s"] = state.now_s + look_s
        actions.append(Wait("a running job may become a straggler", state.memory["look_s"]))
    return actions
