"""Figures of a schedule: makespan, completion times, slowdown, use, energy, price, fairness, missed deadlines."""

from typing import Any

import numpy as np
import pandas as pd

from lib.schedule import bounds, energy
from lib.schedule.problem import Problem
from lib.schedule.simulation.events import Outcome

_SHARES = (50, 95, 99)  # percentiles of completion times
_ROUNDED = 1e-9  # share of an end by which sums of seconds may be rounded


def metrics(outcome: Outcome, lower_bound_s: float | None = None) -> dict[str, Any]:
    """Return the figures of one run, from time 0; unknown ones (energy without watts, untimed decisions) are None.

    A completion time (``jct``) counts from the arrival; the slowdown is its ratio to the time on the fastest device that can
    run the job. ``decide_s`` is all time in the policy, ``refine_s`` its part for planning again; ``decide_..._us`` are of
    single calls without that part.
    """
    problem, done, rows = outcome.problem, outcome.done, outcome.schedule
    attempts, fleet, jobs = rows.drop_duplicates(["job", "attempt"]), problem.fleet, done["job"].to_numpy(int)
    jct_s = done["end_s"] - problem.jobs.arrival_s[jobs]
    slowdown = jct_s / bounds.able_times(problem).min(axis=1)[jobs]
    makespan, used = float(rows["end_s"].max()), energy.busy_s(fleet, rows)
    joules, source = energy.of_schedule(problem, rows, makespan)
    return {"makespan_s": makespan, "mean_jct_s": float(jct_s.mean()),
            **{f"p{share}_jct_s": float(jct_s.quantile(share / 100)) for share in _SHARES},
            "mean_slowdown": float(slowdown.mean()), "worst_slowdown": float(slowdown.max()),
            "fairness": float(slowdown.mean() ** 2 / (slowdown ** 2).mean()),
            "late": len(late_s(outcome) or {}), "worst_user": _worst_user(problem, done),
            **{status: int((attempts["status"] == status).sum()) for status in ("failed", "moved")},
            "energy_j": joules, "energy_source": source,
            "price": None if np.isnan(fleet.price_per_hour).any() else float((used * fleet.price_per_hour).sum() / 3600),
            **{f"used_{name}": float(seconds / (count * makespan)) if count else 0.0
               for name, seconds, count in zip(fleet.types, used, fleet.counts, strict=True)},
            "lower_bound_s": lower_bound_s, "ratio": makespan / lower_bound_s if lower_bound_s else None,
            **_decisions(outcome)}


def late_s(outcome: Outcome) -> dict[str, float] | None:
    """Return by how many seconds each late job misses its deadline, the latest first; None if no job has a deadline."""
    jobs, done = outcome.problem.jobs, outcome.done
    if not np.isfinite(jobs.deadline_s).any():
        return None
    numbers = done["job"].to_numpy(int)
    late = pd.Series(done["end_s"].to_numpy() - jobs.deadline_s[numbers], [jobs.ids[number] for number in numbers])
    is_late = late > _ROUNDED * done["end_s"].to_numpy()
    return late[is_late].sort_values(ascending=False, kind="stable").to_dict()


def _worst_user(problem: Problem, done: pd.DataFrame) -> float | None:
    """Return finish-time fairness: the worst user's last end over its bound on its share of each device; None for one user.

    Up to 1 nobody would have ended earlier with devices of one's own (Mahajan and others, Themis, NSDI 2020).
    """
    users, weights = problem.jobs.users, problem.jobs.user_weights
    if len(weights) < 2:
        return None
    jobs = done["job"].to_numpy(int)
    waited_s = (done["end_s"] - problem.jobs.arrival_s[jobs].min()).groupby(users[jobs]).max()
    work_s = bounds.able_times(problem) * problem.jobs.gang[:, None]
    return max(seconds / (bounds.relaxation(work_s[users == user], problem.fleet.counts).makespan_s
                          * weights.sum() / weights[user]) for user, seconds in waited_s.items())


def _decisions(outcome: Outcome) -> dict[str, float | None]:
    names = ("decide_p50_us", "decide_p99_us", "decide_max_us")
    if not len(outcome.decide_s):
        return dict.fromkeys(("decide_s", "refine_s", *names))
    plain_us = np.percentile(outcome.decide_s - outcome.refine_s, (50, 99, 100)) * 1e6
    return {"decide_s": float(outcome.decide_s.sum()), "refine_s": float(outcome.refine_s.sum()),
            **dict(zip(names, plain_us.tolist(), strict=True))}
