"""Fair shares: whenever a device is free, the user who had the least of the devices, by weight, starts a job.

A user who comes late, or comes back, begins with what the one who had least has: nobody saves up (start-time fair queueing;
Goyal, Vin and Cheng, 1996). Where all have jobs left, it gives max-min shares, without stopping a job (compare Gavel, OSDI
2020).
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from lib.schedule.policies.baselines import short_and_apt
from lib.schedule.policies.queues import LazyHeap
from lib.schedule.state import Action, CoreBudget, Predict, State


@dataclass
class FairShares:
    """What each user had, in seconds of its jobs on their fastest types over its weight, and its jobs, one heap per type."""

    had_s: np.ndarray
    waiting: dict[int, list[LazyHeap]]


def fair(state: State, predict: Predict) -> list[Action]:
    """Start jobs of the users who had least; of a user's jobs, those that are short and apt for a type go first."""
    users, weights = state.jobs.users, state.jobs.user_weights
    shares, new = state.recall(FairShares, lambda: FairShares(np.zeros(len(weights)), {}))
    active = {users.item(job) for job in (*(set(state.waiting) - set(new)), *(ran.job for ran in state.running.values()))}
    level_s = min((shares.had_s.item(user) for user in active), default=0.0)
    keys = short_and_apt(np.array(new, int), predict.table[new]) if new else []
    for job, row in zip(new, keys, strict=True):
        user = users.item(job)
        if user not in active:
            shares.had_s[user] = max(shares.had_s.item(user), level_s)
        heaps = shares.waiting.setdefault(user, [LazyHeap() for _ in state.counts])
        for heap, key, seconds in zip(heaps, row.tolist(), predict.table[job].tolist(), strict=True):
            if seconds < inf:
                heap.push((key, job))
    budget = CoreBudget(state)
    idle = {device_type: state.idle(device_type)[::-1] for device_type, free in enumerate(state.free) if free}
    while choice := _next(shares, idle, budget):
        job, device_type = choice
        user = users.item(job)
        shares.had_s[user] += predict.table[job].min() / weights.item(user)
        budget.start(job, idle[device_type].pop())
    return budget.actions


def _next(shares: FairShares, idle: dict[int, list[int]], budget: CoreBudget) -> tuple[int, int] | None:
    """Return the next job and its type: of the user who had least among those with a job for a device that is free."""
    for user in sorted(shares.waiting, key=shares.had_s.item):
        heaps = shares.waiting[user]
        firsts = [(*entry, device_type) for device_type, devices in idle.items()
                  if devices and (entry := heaps[device_type].first(budget.waits)) and budget.has(entry[1], device_type)]
        if firsts:
            _, job, device_type = min(firsts)
            return job, device_type
    return None
