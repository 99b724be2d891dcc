"""How sure a plan is: chances of deadlines, range of the makespan, time limits.

The time of a job is log-normal about its prediction, with the 95 % quantile at the high end of its
90 % range. A part of the variance is common to all jobs of a device type, the rest to jobs of one
class there. A plan keeps its devices and their order: what ends late delays what comes after it.
"""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.schedule.problem import Problem
from lib.schedule.simulate import Outcome

DRAWS = 200
COMMON = 0.5  # share of the variance that all jobs of a device type have in common
_QUANTILE = NormalDist().inv_cdf  # standard deviations from the median to a quantile


class Risk(NamedTuple):
    """What may become of a plan, by simulated draws of the times of its jobs."""

    in_time: np.ndarray  # (jobs) probability that a deadline is kept, NaN without one
    all_in_time: float  # probability that all deadlines are kept
    makespan_s: tuple[float, float]  # 5 and 95 % quantiles
    time_limit_s: np.ndarray  # (jobs) exceeded with the probability ``limit_risk``
    limit_risk: float


def spread(problem: Problem, high_s: np.ndarray) -> np.ndarray:
    """Return the standard deviation of log times (jobs, types), 0 where a job cannot run.

    It follows from the high ends of 90 % ranges. Raises InputError for a high end that is missing
    or below its prediction.
    """
    runs = np.isfinite(problem.predicted_s)
    least_s, high_s = np.where(runs, problem.predicted_s, 1.0), np.where(runs, high_s, 1.0)
    for job, kind in np.argwhere(~((high_s >= least_s) & np.isfinite(high_s))):
        raise InputError(f"the high end of job {problem.jobs.ids[job]!r} on "
                         f"{problem.fleet.types[kind]!r} is {high_s[job, kind]:g} s: it is at "
                         f"least the predicted {least_s[job, kind]:g} s")
    return np.log(high_s / least_s) / _QUANTILE(0.95)


def ends_s(problem: Problem, plan: pd.DataFrame, sigma: np.ndarray,
           common: float = COMMON) -> np.ndarray:
    """Return drawn ends (DRAWS, jobs) of the jobs of a plan, in s; NaN for a job that is not in it.

    ``plan``: the rows of ``Outcome.attempts_done``. ``sigma`` (jobs, types): as ``spread``.
    """
    fleet, draw, (count, types) = problem.fleet, np.random.default_rng(0), sigma.shape
    classes = problem.jobs.job_class
    group = np.where(classes < 0, np.arange(count), count + classes)
    of_type = common**0.5 * draw.normal(size=(DRAWS, types))
    of_group = (1 - common)**0.5 * draw.normal(size=(DRAWS, group.max() + 1, types))
    ends, drawn_s = np.full((DRAWS, count), np.nan), np.zeros((DRAWS, len(fleet)))
    planned_s = np.zeros(len(fleet))
    for job, rows in plan.sort_values("start_s", kind="stable").groupby("job", sort=False):
        devices = rows["device_index"].to_numpy(int)
        start_s, end_s = float(rows["start_s"].iloc[0]), float(rows["end_s"].iloc[0])
        kind, arrival_s = fleet.type_of[devices[0]], min(problem.jobs.arrival_s[job], start_s)
        error = sigma[job, kind] * (of_type[:, kind] + of_group[:, group[job], kind])
        work_s = (end_s - start_s - fleet.setup_s[kind]) * np.exp(error)
        idle_s = start_s - max(planned_s[devices].max(), arrival_s)  # what is left idle stays idle
        begin_s = np.maximum(drawn_s[:, devices].max(axis=1), arrival_s) + idle_s
        ends[:, job] = begin_s + fleet.setup_s[kind] + work_s
        planned_s[devices], drawn_s[:, devices] = end_s, ends[:, [job]]
    return ends


def kept(problem: Problem, ends: np.ndarray) -> np.ndarray:
    """Return the probability (jobs) of deadlines by drawn ends (draws, jobs), NaN without one."""
    due = np.isfinite(problem.jobs.deadline_s) & np.isfinite(ends).all(axis=0)
    return np.where(due, (ends <= problem.jobs.deadline_s).mean(axis=0), np.nan)


def assess(outcome: Outcome, sigma: np.ndarray, limit_risk: float = 0.05,
           common: float = COMMON) -> Risk:
    """Return the risk of a plan, a simulated ``outcome``; ``sigma`` (jobs, types): as ``spread``.

    Raises InputError for a risk that is not between 0 and 1.
    """
    if not 0 < limit_risk < 1:
        raise InputError(f"a risk of {limit_risk:g} is none to set a limit by: it lies between 0 "
                         "and 1, such as 0.05")
    problem, done = outcome.problem, outcome.done.sort_values("job")
    ends = ends_s(problem, outcome.attempts_done, sigma, common)
    types = problem.fleet.type_of[done["device_index"]]
    setup_s, seconds = problem.fleet.setup_s[types], (done["end_s"] - done["start_s"]).to_numpy()
    factor = np.exp(_QUANTILE(1 - limit_risk) * sigma[done["job"], types])
    low_s, high_s = np.quantile(ends.max(axis=1), (0.05, 0.95)).tolist()
    all_in_time = float((ends <= problem.jobs.deadline_s).all(axis=1).mean())
    return Risk(kept(problem, ends), all_in_time, (low_s, high_s),
                setup_s + (seconds - setup_s) * factor, limit_risk)
