"""How good a schedule is: makespan, completion times, slowdown, use, energy, price, fairness, missed deadlines."""

import math
from typing import Any

import numpy as np
import pandas as pd

from lib.schedule import bounds, energy
from lib.schedule.problem import Problem
from lib.schedule.simulation.events import Outcome


def job_table(outcome: Outcome) -> pd.DataFrame:
    """Return a row a finished job: arrival, start, end, ``jct_s`` (completion minus arrival), and its slowdown.

    Slowdown is the completion time over the time on the fastest device that can run it.
    """
    problem, done = outcome.problem, outcome.done
    jobs = done["job"].to_numpy(int)
    best = bounds.able_times(problem).min(axis=1)[jobs]
    arrival = problem.jobs.arrival_s[jobs]
    jct = done["end_s"].to_numpy(float) - arrival
    return done.assign(arrival_s=arrival, jct_s=jct, slowdown=jct / best,
                       late=done["end_s"].to_numpy() > problem.jobs.deadline_s[jobs])


def busy_s(outcome: Outcome) -> np.ndarray:
    """Return the seconds for which the devices of each type were in use, lost attempts included."""
    rows = outcome.schedule
    seconds = (rows["end_s"] - rows["start_s"]).to_numpy(float)
    return np.bincount(outcome.problem.fleet.type_of[rows["device_index"].to_numpy(int)], seconds,
                       minlength=len(outcome.problem.fleet.types))


def price(problem: Problem, used_s: np.ndarray) -> float | None:
    """Return what the used time costs; None where a type's price is not known."""
    return None if np.isnan(problem.fleet.price_per_hour).any() else float((used_s * problem.fleet.price_per_hour).sum() / 3600)


def metrics(outcome: Outcome, lower_bound_s: float | None = None) -> dict[str, Any]:
    """Return the figures of one run, from time 0; what is not known (energy without watts, untimed decisions) is None.

    ``decide_s`` is all time in the policy, ``refine_s`` what it took to plan anew; ``decide_..._us`` are of single calls
    without that.
    """
    problem, table = outcome.problem, job_table(outcome)
    fleet, jct = problem.fleet, table["jct_s"].to_numpy(float)
    makespan = float(outcome.schedule["end_s"].max()) if len(outcome.schedule) else math.nan
    used = busy_s(outcome)
    slowdown = table["slowdown"].to_numpy(float)
    shares = (50, 95, 99)
    percentiles = np.percentile(jct, shares).tolist() if len(jct) else [math.nan] * len(shares)
    joules, source = energy.of_schedule(problem, outcome.schedule, makespan)
    return {"makespan_s": makespan, "mean_jct_s": float(jct.mean()) if len(jct) else math.nan,
            **{f"p{share}_jct_s": value for share, value in zip(shares, percentiles, strict=True)},
            "mean_slowdown": float(slowdown.mean()) if len(jct) else math.nan,
            "worst_slowdown": float(slowdown.max()) if len(jct) else math.nan,
            "fairness": float(slowdown.sum() ** 2 / (len(slowdown) * (slowdown ** 2).sum())) if len(jct) else math.nan,
            "late": int(table["late"].sum()), "failed": int((outcome.schedule["status"] == "failed").sum()),
            "moved": int((outcome.schedule["status"] == "moved").sum()),
            "energy_j": joules, "energy_source": source, "price": price(problem, used),
            **{f"used_{name}": float(seconds / (count * makespan)) if count else 0.0
               for name, seconds, count in zip(fleet.types, used, fleet.counts, strict=True)},
            "lower_bound_s": lower_bound_s, "ratio": makespan / lower_bound_s if lower_bound_s else None,
            **_decisions(outcome)}


def _decisions(outcome: Outcome) -> dict[str, float | None]:
    names = (("p50", 50), ("p99", 99), ("max", 100))
    if not len(outcome.decide_s):
        return {"decide_s": None, "refine_s": None, **{f"decide_{name}_us": None for name, _ in names}}
    plain_us = np.percentile(outcome.plain_s, [share for _, share in names]) * 1e6
    return {"decide_s": float(outcome.decide_s.sum()), "refine_s": float(outcome.refine_s.sum()),
            **{f"decide_{name}_us": float(value) for (name, _), value in zip(names, plain_us, strict=True)}}
