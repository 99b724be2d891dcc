"""Energy and price: the joules of a schedule, and what jobs cost where that is the objective."""

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.schedule.problem import Fleet, Problem
from lib.schedule.state import State

SOURCES = ("measured", "modelled", "assumed")  # the most reliable first
_LEAST_RATE = 1e-3  # cost of a second of makespan, as a share of what all devices cost at work


def objective_cost_s(state: State, jobs: np.ndarray, times: np.ndarray,
                     objective: str) -> np.ndarray:
    """Return what jobs cost (jobs, types), as the seconds of makespan that cost as much.

    For ``energy``, a second of makespan costs the idle watts of all devices, and a job its joules
    above idling; for ``price`` the makespan hardly counts. ``times`` (jobs, types) have set-up.
    Raises InputError where watts or prices are missing.
    """
    fleet, runs = state.fleet, np.isfinite(times)
    seconds, rate = np.where(runs, times, 0.0), 0.0
    if objective == "price":
        cost = seconds * fleet.price_per_hour
        needed = "price_per_hour of every device type in the devices file"
    else:
        cost, idle_w = seconds * (fleet.busy_w - fleet.idle_w), fleet.idle_w
        if state.joules is not None:  # without set-up, during which a device idles
            joules, idle_w = state.joules[jobs], np.nan_to_num(idle_w)
            cost = np.where(np.isnan(joules), cost, joules - idle_w * (seconds - fleet.setup_s))
        rate = float(fleet.counts @ idle_w)
        needed = ("idle_w and busy_w of every device type in the devices file, or a table of "
                  "energy with every job")
    if np.isnan(cost[runs]).any() or np.isnan(rate):
        raise InputError(f"the objective {objective} needs {needed}")
    least = np.where(runs, cost, np.inf).min(axis=1).sum() * len(fleet) / times.min(axis=1).sum()
    return np.where(runs, cost, 0.0) / max(rate, _LEAST_RATE * least, 1e-12)


def busy_s(fleet: Fleet, schedule: pd.DataFrame) -> np.ndarray:
    """Return the seconds for which devices of each type were in use, lost attempts included."""
    types = fleet.type_of[schedule["device_index"]]
    seconds = (schedule["end_s"] - schedule["start_s"]).to_numpy(float)
    return np.bincount(types, seconds, minlength=len(fleet.types))


def of_schedule(problem: Problem, schedule: pd.DataFrame,
                span_s: float) -> tuple[float | None, str | None]:
    """Return the joules of attempts and of idle devices over ``span_s``, and how they are known.

    That is the source of the least reliable attempt, and of idling; None if watts are missing.
    Beside a table of joules unknown idle watts count as 0, and the source says so.
    """
    fleet = problem.fleet
    if problem.energy is None:
        used_s = busy_s(fleet, schedule)
        idle_j = (fleet.counts * span_s - used_s) * fleet.idle_w
        joules = float((used_s * fleet.busy_w + idle_j).sum())
        return (None, None) if np.isnan(joules) else (joules, "assumed")
    job, types = schedule["job"].to_numpy(int), fleet.type_of[schedule["device_index"]]
    seconds = (schedule["end_s"] - schedule["start_s"]).to_numpy(float)
    table = problem.energy.joules[job, types]
    stated = ~np.isnan(table)
    setup_s = np.where(stated, np.minimum(fleet.setup_s[types], seconds), 0.0)
    shares = (seconds - setup_s) / problem.actual_s[job, types]
    attempts = np.where(stated, table * shares / problem.jobs.gang[job],
                        seconds * fleet.busy_w[types])
    worked_s = np.bincount(types, seconds - setup_s, minlength=len(fleet.types))
    idle_j = (fleet.counts * span_s - worked_s) * np.nan_to_num(fleet.idle_w)
    joules = float(attempts.sum() + idle_j.sum())
    if np.isnan(joules):
        return None, None
    sources = [problem.energy.sources[number] for number in np.unique(job[stated])]
    if not stated.all():
        sources.append("assumed")
    idling = "without idling" if np.isnan(fleet.idle_w).any() else "idling assumed"
    return joules, f"{max(sources, key=SOURCES.index, default='assumed')}, {idling}"
