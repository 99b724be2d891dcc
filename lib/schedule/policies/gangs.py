"""Jobs that need several devices at once, around a policy that starts all other jobs.

The gang that waits longest has a reservation: the moment at which enough devices of one type are expected to be free. Until
then other jobs run there only if they are expected to end before (EASY backfilling; Lifka, 1995), so that small jobs never
starve a gang, and gangs never wait for one another in a circle.
"""

from copy import copy
from math import inf

import numpy as np

from lib.schedule.policies.greedy import Greedy
from lib.schedule.policies.hybrid.policy import hybrid
from lib.schedule.state import Action, CoreBudget, Policy, Predict, Restart, Start, State

_SLOWER = 2.0  # times its least time that a job may take where it fills in before a gang


class Gangs(set[int]):
    """The free devices that the policy of other jobs saw at the last call."""


class _Plan:
    """Gangs that start, and devices that are reserved until ``shadow_s`` (by type) for one that cannot start yet."""

    def __init__(self):
        self.starts, self.reserved, self.shadow_s = [], {}, {}

    @property
    def hidden(self) -> set[int]:
        """Return the devices that other jobs do not see."""
        taken = (place for start in self.starts for place in (start.device, *start.others))
        return {*taken, *(place for places in self.reserved.values() for place in places)}


def bears_gangs(policy: Policy) -> bool:
    """Return whether a policy starts what waits, whatever else did: ``Greedy`` and ``hybrid`` do, queues per device do not."""
    return isinstance(policy, Greedy) or getattr(policy, "func", policy) is hybrid


def with_gangs(state: State, predict: Predict, policy: Policy) -> list[Action]:
    """Start gangs, then let ``policy`` start other jobs on what is left, then fill in before a gang that waits."""
    if not state.jobs.has_gangs:
        return policy(state, predict)
    plan, budget, ends_s, gang = _Plan(), CoreBudget(state), _ends(state, predict), state.jobs.gang
    for job in state.waiting:
        if gang[job] > 1:
            _place(job, plan, state, predict, budget, ends_s)
    rest = _without_gangs(state, plan, budget)
    actions = [action for action in policy(rest, predict) if not (isinstance(action, Restart) and gang[action.job] > 1)]
    state.refined_s = rest.refined_s
    for action in actions:
        if isinstance(action, Start | Restart):
            budget.take(action.job, state.type_of[action.device])
            budget.started.add(action.job)
    _fill_in(plan, state, predict, budget)
    return [*plan.starts, *actions, *budget.actions]


def _ends(state: State, predict: Predict) -> list[list[float]]:
    """Return by type when what runs is expected to end, in order."""
    ends_s = [[] for _ in state.counts]
    for device, ran in state.running.items():
        device_type = state.type_of[device]
        expected = ran.start_s + state.setup_s[device_type] + predict(ran.job, device_type)
        ends_s[device_type].append(max(expected, state.now_s))
    return [sorted(times) for times in ends_s]


def _place(job: int, plan: _Plan, state: State, predict: Predict, budget: CoreBudget, ends_s: list[list[float]]) -> None:
    """Start a gang where it is expected to end first, or reserve its devices there, if no other gang has them."""
    gang, options, hidden = int(state.jobs.gang[job]), [], plan.hidden
    idle = [[place for place in state.idle(device_type) if place not in hidden] for device_type in range(len(state.counts))]
    for device_type, places in enumerate(idle):
        seconds = predict(job, device_type) + state.setup_s[device_type]
        if seconds < inf:
            free_s = [*[state.now_s] * len(places), *ends_s[device_type]]
            ready_s = free_s[gang - 1] if len(free_s) >= gang else inf  # devices that are away
            options.append((ready_s + seconds, ready_s, device_type))
    end_s, ready_s, device_type = min(options)
    cores = state.cores(job, device_type) * gang
    if len(idle[device_type]) >= gang and budget.fits(cores) and end_s <= plan.shadow_s.get(device_type, inf):
        first, *others = idle[device_type][:gang]
        plan.starts.append(Start(job, first, tuple(others)))
        ends_s[device_type] = sorted([*ends_s[device_type], *[end_s] * gang])
        budget.left -= cores
    elif device_type not in plan.shadow_s:
        spare = len(idle[device_type]) + sum(end <= ready_s for end in ends_s[device_type]) - gang
        plan.reserved[device_type] = idle[device_type][max(0, spare):]
        plan.shadow_s[device_type] = ready_s


def _without_gangs(state: State, plan: _Plan, budget: CoreBudget) -> State:
    """Return the state without gangs and the devices that they take or keep, for the policy of other jobs."""
    rest, hidden, gang, before = copy(state), plan.hidden, state.jobs.gang, state.memory.get(Gangs, set())
    rest.free = [{place: None for place in places if place not in hidden} for places in state.free]
    visible = state.memory[Gangs] = Gangs(place for places in rest.free for place in places)
    rest.waiting = {job: None for job in state.waiting if gang[job] == 1}
    rest.arrived = [job for job in state.arrived if gang[job] == 1]
    rest.freed = [*(place for place in state.freed if place in visible), *sorted(visible - before - set(state.freed))]
    rest.free_cores = budget.left
    return rest


def _fill_in(plan: _Plan, state: State, predict: Predict, budget: CoreBudget) -> None:
    """Start other jobs that end before a reservation on the devices that are reserved, the longest that fit first."""
    for device_type, places in plan.reserved.items():
        left_s = plan.shadow_s[device_type] - state.now_s - state.setup_s[device_type]
        jobs = np.array([job for job in state.waiting if state.jobs.gang[job] == 1], int)
        times = predict.table[jobs]
        here = times[:, device_type]
        fits = (here <= left_s) & (here <= _SLOWER * times.min(axis=1, initial=inf))
        order = jobs[fits][np.argsort(-here[fits], kind="stable")].tolist()
        for place in places:
            started = next((job for job in order if job not in budget.started and budget.start(job, place)), None)
            if started is None:
                break
