"""Priorities for any policy: what a policy is not shown while jobs of higher priority wait."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lib.schedule.state import Action, Policy, Predict, State


@dataclass
class _Shown:
    """The highest priority that waits for each device type, and what the policy remembers since that was last another."""

    highest: tuple[float, ...]
    memory: dict[type, Any] = field(default_factory=dict)


def ranked(policy: Policy, priority: Callable[[int], int]) -> Policy:
    """Return a policy that obeys priorities (by job number, the highest goes first) and decides the rest as ``policy`` does.

    **No job starts on a device type while one of higher priority waits that can run there.** ``policy`` is shown neither such
    types nor jobs that have no other. It begins anew whenever the highest priority that waits for a type has changed.
    """
    def decide(state: State, predict: Predict) -> list[Action]:
        ranks = {job: priority(job) for job in state.waiting}
        if len(set(ranks.values())) <= 1:
            if _Shown in state.memory:
                state.memory.clear()
            return policy(state, predict)
        part, table = _part(state, predict.table, np.array(list(ranks)), np.array(list(ranks.values()), float)[:, None])
        return policy(part, Predict(table, predict.sigma))

    return decide


def _part(state: State, table: np.ndarray, jobs: np.ndarray, rank: np.ndarray) -> tuple[State, np.ndarray]:
    """Return the state as it is shown, and the predicted seconds (jobs, types); ``rank`` (jobs) is that of those that wait."""
    able_s, table = table[jobs], table.copy()
    highest = np.where(np.isfinite(able_s), rank, -np.inf).max(axis=0)
    shown_s = np.where(rank < highest, np.inf, able_s)
    shown = np.isfinite(shown_s).any(axis=1)
    table[jobs] = np.where(shown[:, None], shown_s, 1.0)  # no NaN in a mean; those that are not shown do not wait
    waiting, changed = dict.fromkeys(jobs[shown].tolist()), set(jobs[(shown_s != able_s).any(axis=1)].tolist())
    arrived = [job for job in state.arrived if job in waiting]
    before = state.memory.get(_Shown)
    if before and before.highest == tuple(highest) and not changed.intersection(arrived):
        return replace(state, waiting=waiting, arrived=arrived, memory=before.memory), table
    state.memory.clear()
    state.memory[_Shown] = _Shown(tuple(highest))
    return replace(state, waiting=waiting, arrived=[], started=[], freed=[], finished=[],
                   memory=state.memory[_Shown].memory), table
