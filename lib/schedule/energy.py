"""Energy and price: the joules of a schedule, and what a job costs on each device type where that is the objective."""

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.schedule.problem import Fleet, Problem
from lib.schedule.state import State

SOURCES = ("measured", "modelled", "assumed")  # the most reliable first; watts of a devices table are assumed
_LEAST_RATE = 1e-3  # of a second of makespan, as a share of the least cost of all jobs over their time


def objective_cost_s(state: State, jobs: np.ndarray, times: np.ndarray, objective: str) -> np.ndarray:
    """Return what jobs cost on each type (jobs, types), as the seconds of makespan that cost as much.

    For ``energy``, a second of makespan costs the idle watts of all devices, and a job its joules above idling; for
    ``price`` the makespan hardly counts. Raises InputError where watts or prices are missing.
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
        needed = "idle_w and busy_w of every device type in the devices file, or a table of energy with every job"
    if np.isnan(cost[runs]).any() or np.isnan(rate):
        raise InputError(f"the objective {objective} needs {needed}")
    least = np.where(runs, cost, np.inf).min(axis=1).sum() * len(fleet) / times.min(axis=1).sum()
    return np.where(runs, cost, 0.0) / max(rate, _LEAST_RATE * least, 1e-12)


def _attempts(fleet: Fleet, schedule: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the device type and the seconds of each attempt."""
    return fleet.type_of[schedule["device_index"].to_numpy(int)], (schedule["end_s"] - schedule["start_s"]).to_numpy(float)


def busy_s(fleet: Fleet, schedule: pd.DataFrame) -> np.ndarray:
    """Return the seconds for which the devices of each type were in use, lost attempts included."""
    return np.bincount(*_attempts(fleet, schedule), minlength=len(fleet.types))


def of_schedule(problem: Problem, schedule: pd.DataFrame, span_s: float) -> tuple[float | None, str | None]:
    """Return the joules of a schedule's attempts and of idle devices over ``span_s``, and their source.

    The source is that of the least reliable attempt, and names the source of idling; both are None if needed watts are unknown.
    The joules of an attempt scale with its actual time. Beside a table, unknown idle watts count as 0, and the source says so.
    """
    fleet = problem.fleet
    if problem.energy is None:
        used_s = busy_s(fleet, schedule)
        joules = float((used_s * fleet.busy_w + (fleet.counts * span_s - used_s) * fleet.idle_w).sum())
        return (None, None) if np.isnan(joules) else (joules, "assumed")
    (of_type, seconds), job = _attempts(fleet, schedule), schedule["job"].to_numpy(int)
    table = problem.energy.joules[job, of_type]
    stated = ~np.isnan(table)
    setup_s = np.where(stated, np.minimum(fleet.setup_s[of_type], seconds), 0.0)
    shares = (seconds - setup_s) / problem.actual_s[job, of_type]
    attempts = np.where(stated, table * shares / problem.jobs.gang[job], seconds * fleet.busy_w[of_type])
    idle_s = fleet.counts * span_s - np.bincount(of_type, seconds - setup_s, minlength=len(fleet.types))
    joules = float(attempts.sum() + (idle_s * np.nan_to_num(fleet.idle_w)).sum())
    if np.isnan(joules):
        return None, None
    sources = [problem.energy.sources[number] for number in np.unique(job[stated])] + ["assumed"] * (not stated.all())
    idling = "without idling" if np.isnan(fleet.idle_w).any() else "idling assumed"
    return joules, f"{max(sources, key=SOURCES.index, default='assumed')}, {idling}"
