"""Figures of a schedule: makespan, completion times, slowdown, energy, price, missed deadlines."""

from typing import Any

import numpy as np
import pandas as pd

from lib.schedule import bounds, energy
from lib.schedule.simulate import Outcome

_ROUNDED = 1e-9  # share of an end by which sums of seconds may be rounded


def metrics(outcome: Outcome, lower_bound_s: float | None = None) -> dict[str, Any]:
    """Return the figures of one run, from time 0; None for unknown ones, as energy without watts.

    A job completion time (``jct``) counts from the arrival; the slowdown is its ratio to the time
    on the fastest device that can run the job. ``decide_s`` is all time in the policy.
    """
    problem, done, rows = outcome.problem, outcome.done, outcome.schedule
    attempts, jobs = rows.drop_duplicates(["job", "attempt"]), done["job"].to_numpy(int)
    jct_s = done["end_s"] - problem.jobs.arrival_s[jobs]
    slowdown = jct_s / bounds.able_times(problem).min(axis=1)[jobs]
    makespan_s = float(rows["end_s"].max())
    joules, source = energy.of_schedule(problem, rows, makespan_s)
    price = (energy.busy_s(problem.fleet, rows) * problem.fleet.price_per_hour).sum() / 3600
    return {"makespan_s": makespan_s, "mean_jct_s": float(jct_s.mean()),
            "p99_jct_s": float(jct_s.quantile(0.99)), "mean_slowdown": float(slowdown.mean()),
            "moved": int((attempts["status"] == "moved").sum()),
            "energy_j": joules, "energy_source": source,
            "price": None if np.isnan(price) else float(price), "lower_bound_s": lower_bound_s,
            "ratio": makespan_s / lower_bound_s if lower_bound_s else None,
            "decide_s": float(outcome.decide_s.sum()) if len(outcome.decide_s) else None}


def late_s(outcome: Outcome) -> dict[str, float] | None:
    """Return by how many seconds late jobs miss their deadlines, the latest first.

    None if no job has a deadline.
    """
    jobs, done = outcome.problem.jobs, outcome.done
    if not np.isfinite(jobs.deadline_s).any():
        return None
    numbers, end_s = done["job"].to_numpy(int), done["end_s"].to_numpy()
    late = pd.Series(end_s - jobs.deadline_s[numbers], [jobs.ids[number] for number in numbers])
    return late[late > _ROUNDED * end_s].sort_values(ascending=False, kind="stable").to_dict()
