"""Priorities for any policy: what a policy is not shown while jobs of higher priority wait."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lib.schedule.state import Action, Policy, Predict, State


def ranked(policy: Policy, priority: Callable[[int], int]) -> Policy:
    """Return a policy that obeys priorities (by job number, the highest goes first) and decides the rest as ``policy`` does.

    **No job starts on a device type while one of higher priority waits that can run there.** ``policy`` is shown neither such
    types nor jobs that have no other, and while the priorities of waiting jobs differ it begins anew at each decision.
    """
    def decide(state: State, predict: Predict) -> list[Action]:
        ranks = {job: priority(job) for job in state.waiting}
        if len(set(ranks.values())) <= 1:
            return policy(state, predict)
        state.memory.clear()
        jobs = np.array(list(ranks))
        able_s, rank = predict.table[jobs], np.array(list(ranks.values()), float)[:, None]
        highest = np.where(np.isfinite(able_s), rank, -np.inf).max(axis=0)
        shown_s = np.where(rank < highest, np.inf, able_s)
        shown = np.isfinite(shown_s).any(axis=1)
        table = predict.table.copy()
        table[jobs] = np.where(shown[:, None], shown_s, 1.0)  # no NaN in a mean; those that are not shown do not wait
        part = replace(state, waiting=dict.fromkeys(jobs[shown].tolist()), arrived=[], started=[], freed=[], finished=[],
                       memory={})
        return policy(part, Predict(table, predict.sigma))

    return decide
