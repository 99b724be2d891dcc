"""The matching of jobs to places in the devices' queues that has the least sum of completion times (AlloX, EuroSys 2020)."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from lib.schedule import bounds
from lib.schedule.policies.greedy import NOTHING_STARTS
from lib.schedule.state import Action, Predict, Start, State, refining

MATCHED = 1500  # waiting jobs that are matched at once, the shortest first


@dataclass
class MatchingPlan:
    """For each device type the jobs that the matching gives it, in the order in which to start them."""

    queues: list[deque[int]]


def matching(state: State, predict: Predict) -> list[Action]:
    """Start jobs as the matching with the least sum of completion times says (AlloX); solved again when jobs arrive."""
    if MatchingPlan not in state.memory or state.arrived:
        state.memory[MatchingPlan] = _matched(state, predict)
    queues = state.memory[MatchingPlan].queues
    actions, cores = [], state.free_cores
    for device_type, queue in enumerate(queues):
        for device in state.first_idle(device_type, len(queue)):
            if cores != np.inf and state.cores(queue[0], device_type) > cores + 1e-9:
                break
            cores -= state.cores(queue[0], device_type) if cores != np.inf else 0.0
            actions.append(Start(queue.popleft(), device))
    if not actions and state.waiting and not any(queues):
        plan = state.memory[MatchingPlan] = _matched(state, predict)  # those for which the last one had no room
        return matching(state, predict) if any(plan.queues) and any(state.free) else NOTHING_STARTS
    return actions or (NOTHING_STARTS if state.waiting else [])


def _matched(state: State, predict: Predict) -> MatchingPlan:
    plan = MatchingPlan([deque() for _ in state.fleet.types])
    jobs = np.array(list(state.waiting), int)
    if not len(jobs):
        return plan
    with refining(state):
        times = predict.table[jobs] + state.fleet.setup_s[None]
        if len(jobs) > MATCHED:
            chosen = np.argsort(times.min(axis=1), kind="stable")[:MATCHED]
            jobs, times = jobs[chosen], times[chosen]
        _, types, places = bounds.matching(times, state.fleet.counts)
        own = times[np.arange(len(jobs)), types]
        for number in np.lexsort((own, -places)):
            plan.queues[types[number]].append(int(jobs[number]))
    return plan
