"""The energy of schedules: joules of jobs from a table, else watts times seconds, and of idle devices."""

import numpy as np
import pandas as pd

from lib.schedule.problem import Fleet, Problem

SOURCES = ("measured", "modelled", "assumed")  # the most reliable first; watts of a devices table are assumed


def above_idle_j(times: np.ndarray, joules: np.ndarray | None, fleet: Fleet) -> np.ndarray:
    """Return the joules of running jobs above idling (jobs, types), by their ``times`` with set-up; NaN if unknown.

    ``joules`` (jobs, types) come from a table, without set-up, during which a device idles; NaN: use watts.
    """
    by_watts = times * (fleet.busy_w - fleet.idle_w)
    if joules is None:
        return by_watts
    return np.where(np.isnan(joules), by_watts, joules - np.nan_to_num(fleet.idle_w) * (times - fleet.setup_s))


def _attempts(fleet: Fleet, schedule: pd.DataFrame) -> tuple[np.ndarray, ...]:
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
