"""Every policy by its name: the baselines, and ``hybrid``. A new policy becomes known here."""

from dataclasses import replace
from functools import partial

import numpy as np

from lib.errors import InputError, entry
from lib.schedule.baselines import BASELINES
from lib.schedule.gangs import with_gangs
from lib.schedule.hybrid import OBJECTIVES, hybrid
from lib.schedule.problem import Fleet
from lib.schedule.state import Action, Policy, Predict, Restart, Start, Starts, State

POLICIES: dict[str, Policy] = {**BASELINES, "hybrid": hybrid}


def policy_for(name: str, objective: str = "makespan") -> Policy:
    """Return a policy by name that pursues an objective; gangs are placed around it.

    Raises InputError for an unknown name or objective, and for a policy that takes no objective.
    """
    chosen = entry(POLICIES, name, "policy")
    entry(OBJECTIVES, objective, "objective")
    if name == "hybrid":
        chosen = partial(hybrid, objective=objective)
    elif objective != "makespan":
        raise InputError(f"the policy {name} takes no objective; {objective} is pursued by hybrid")
    return partial(with_gangs, policy=chosen)


def by_priority(state: State, predict: Predict, policy: Policy, priority: np.ndarray) -> list[Action]:
    """Let ``policy`` place the jobs of the highest priority first, then those of the next.

    ``priority`` is a number per job. No job starts on a device type while a job of higher priority
    waits that can run there.
    """
    actions: list[Action] = []
    free, free_cores = state.free, state.free_cores
    for level in sorted(set(priority[state.waiting].tolist()), reverse=True) or [0]:
        seen = replace(state, waiting=state.waiting[priority[state.waiting] == level], free=free, free_cores=free_cores)
        decided = policy(seen, predict)
        actions += decided
        starts = Starts(seen)
        for action in decided:
            if isinstance(action, Start):
                starts.start(action.job, [action.device, *action.others])
            elif isinstance(action, Restart):
                starts.idle(state.type_of[action.device]).remove(action.device)
        free = np.array(sorted(device for kind in range(len(state.counts)) for device in starts.idle(kind)), int)
        free_cores = starts.free_cores
        started = [action.job for action in decided if isinstance(action, Start)]
        still_waiting = seen.waiting[~np.isin(seen.waiting, started)]
        wanted = np.isfinite(predict.table[still_waiting]).any(axis=0)
        free = free[~wanted[state.type_of[free]]]
    return actions


def missing_device(name: str, fleet: Fleet) -> str:
    """Return which device a policy needs and a fleet has none of; empty if it can run there."""
    if name == "cpu-only" and not fleet.cpu.any():
        return "a CPU: a CPU's type begins with cpu"
    return "anything but a CPU" if name == "gpu-only" and fleet.cpu.all() else ""
