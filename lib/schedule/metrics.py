"""Figures of a schedule: makespan, completion times, slowdown, use, energy, price, missed deadlines."""

from typing import Any

import numpy as np
import pandas as pd

from lib.schedule import bounds, energy
from lib.schedule.simulate import Outcome

_ROUNDED = 1e-9  # share of an end by which sums of seconds may be rounded


def metrics(outcome: Outcome, lower_bound_s: float | None = None) -> dict[str, Any]:
    """Return the figures of one run, from time 0; unknown ones (energy without watts, untimed decisions) are None.

    A job completion time (``jct``) counts from the arrival; the slowdown is its ratio to the time on the fastest device that
    can run the job. ``decide_s`` is all time in the policy, ``decide_p50_us`` and so on are of single decisions.
    """
    problem, done, rows = outcome.problem, outcome.done, outcome.schedule
    attempts, fleet, jobs = rows.drop_duplicates(["job", "attempt"]), problem.fleet, done["job"].to_numpy(int)
    jct_s = done["end_s"] - problem.jobs.arrival_s[jobs]
    slowdown = jct_s / bounds.able_times(problem).min(axis=1)[jobs]
    makespan_s, used_s = float(rows["end_s"].max()), energy.busy_s(fleet, rows)
    joules, source = energy.of_schedule(problem, rows, makespan_s)
    figures = {"makespan_s": makespan_s, "mean_jct_s": float(jct_s.mean()), "p50_jct_s": float(jct_s.median()),
               "p95_jct_s": float(jct_s.quantile(0.95)), "p99_jct_s": float(jct_s.quantile(0.99)),
               "mean_slowdown": float(slowdown.mean()), "worst_slowdown": float(slowdown.max()),
               "fairness": float(slowdown.mean() ** 2 / (slowdown ** 2).mean()), "late": len(late_s(outcome) or {}),
               "failed": int((attempts["status"] == "failed").sum()), "moved": int((attempts["status"] == "moved").sum()),
               "energy_j": joules, "energy_source": source, "price": None, "lower_bound_s": lower_bound_s,
               "ratio": makespan_s / lower_bound_s if lower_bound_s else None}
    if not np.isnan(fleet.price_per_hour).any():
        figures["price"] = float((used_s * fleet.price_per_hour).sum() / 3600)
    for name, seconds, count in zip(fleet.types, used_s, fleet.counts, strict=True):
        figures[f"used_{name}"] = float(seconds / (count * makespan_s)) if count else 0.0
    decide_us = np.percentile(outcome.decide_s, (50, 99, 100)) * 1e6 if len(outcome.decide_s) else [None] * 3
    figures |= dict(zip(("decide_p50_us", "decide_p99_us", "decide_max_us"), decide_us, strict=True))
    return figures | {"decide_s": float(np.sum(outcome.decide_s)) if len(outcome.decide_s) else None}


def late_s(outcome: Outcome) -> dict[str, float] | None:
    """Return by how many seconds each late job misses its deadline, the latest first; None if no job has a deadline."""
    jobs, done = outcome.problem.jobs, outcome.done
    if not np.isfinite(jobs.deadline_s).any():
        return None
    numbers = done["job"].to_numpy(int)
    late = pd.Series(done["end_s"].to_numpy() - jobs.deadline_s[numbers], [jobs.ids[number] for number in numbers])
    is_late = late > _ROUNDED * done["end_s"].to_numpy()
    return late[is_late].sort_values(ascending=False, kind="stable").to_dict()
