"""How sure a plan is where times are uncertain: chances of deadlines, the range of the makespan, time limits.

The time of a job is log-normal about its prediction, with the 95 % quantile at the high end of its 90 % range. A part of
the variance is common to all jobs of a device type, the rest to jobs of one class there. A plan keeps its devices and
their order: what ends late delays what comes after it.
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
_HIGH = NormalDist().inv_cdf(0.95)  # standard deviations from the prediction to the high end


class Risk(NamedTuple):
    """What may become of a plan, by simulated draws of the times of its jobs."""

    in_time: np.ndarray  # (jobs) probability that a deadline is kept, NaN without one
    all_in_time: float  # probability that all deadlines are kept
    makespan_s: tuple[float, float]  # 5 and 95 % quantiles
    time_limit_s: np.ndarray  # (jobs) what a job takes longer than with the probability ``limit_risk``
    limit_risk: float


def spread(problem: Problem, high_s: np.ndarray) -> np.ndarray:
    """Return the standard deviation of log times (jobs, types) from the high ends of 90 % ranges, 0 where a job cannot run.

    Raises InputError for a high end that is missing or below its prediction.
    """
    runs = np.isfinite(problem.predicted_s)
    for job, device_type in np.argwhere(runs & ~((high_s >= problem.predicted_s) & np.isfinite(high_s))):
        raise InputError(f"the high end of job {problem.jobs.ids[job]!r} on {problem.fleet.types[device_type]!r} is "
                         f"{high_s[job, device_type]:g} s: it is at least the predicted "
                         f"{problem.predicted_s[job, device_type]:g} s")
    return np.log(np.where(runs, high_s, 1.0) / np.where(runs, problem.predicted_s, 1.0)) / _HIGH


def ends_s(problem: Problem, plan: pd.DataFrame, sigma: np.ndarray, common: float = COMMON, seed: int = 0) -> np.ndarray:
    """Return drawn ends (DRAWS, jobs) of the jobs of a plan, in s; NaN for a job that is not in it.

    ``plan``: the rows of ``Outcome.attempts_done``. ``sigma`` (jobs, types): as ``spread``.
    """
    fleet, draw, (count, types) = problem.fleet, np.random.default_rng(seed), sigma.shape
    group = np.where(problem.jobs.job_class < 0, np.arange(count), count + problem.jobs.job_class)
    by_type = common**0.5 * draw.normal(size=(DRAWS, types))
    by_group = (1 - common)**0.5 * draw.normal(size=(DRAWS, group.max() + 1, types))
    ends, planned_s, drawn_s = np.full((DRAWS, count), np.nan), np.zeros(len(fleet)), np.zeros((DRAWS, len(fleet)))
    for job, rows in plan.sort_values("start_s", kind="stable").groupby("job", sort=False):
        devices = rows["device_index"].to_numpy(int)
        start_s, end_s = float(rows["start_s"].iloc[0]), float(rows["end_s"].iloc[0])
        kind, arrival_s = fleet.type_of[devices[0]], min(float(problem.jobs.arrival_s[job]), start_s)
        error = by_type[:, kind] + by_group[:, group[job], kind]
        work_s = (end_s - start_s - fleet.setup_s[kind]) * np.exp(sigma[job, kind] * error)
        idle_s = start_s - max(planned_s[devices].max(), arrival_s)  # what a plan leaves idle stays idle
        begin_s = np.maximum(drawn_s[:, devices].max(axis=1), arrival_s) + idle_s
        ends[:, job] = begin_s + fleet.setup_s[kind] + work_s
        planned_s[devices], drawn_s[:, devices] = end_s, ends[:, [job]]
    return ends


def kept(problem: Problem, ends: np.ndarray) -> np.ndarray:
    """Return the probability of each job to keep its deadline by drawn ends (draws, jobs), NaN without deadline or end."""
    due = np.isfinite(problem.jobs.deadline_s) & np.isfinite(ends).all(axis=0)
    return np.where(due, (ends <= problem.jobs.deadline_s).mean(axis=0), np.nan)


def assess(outcome: Outcome, sigma: np.ndarray, limit_risk: float = 0.05, common: float = COMMON) -> Risk:
    """Return the risk of a plan, a simulated ``outcome``; ``sigma`` (jobs, types) as ``spread``.

    Raises InputError for a risk that is not between 0 and 1.
    """
    if not 0 < limit_risk < 1:
        raise InputError(f"a risk of {limit_risk:g} is none to set a limit by: it lies between 0 and 1, such as 0.05")
    problem, done = outcome.problem, outcome.done.sort_values("job")
    ends = ends_s(problem, outcome.attempts_done, sigma, common)
    jobs = done["job"].to_numpy(int)
    types = problem.fleet.type_of[done["device_index"].to_numpy(int)]
    setup_s = problem.fleet.setup_s[types]
    work_s = (done["end_s"] - done["start_s"]).to_numpy() - setup_s
    limit_s = np.full(len(problem.jobs), np.nan)
    limit_s[jobs] = setup_s + work_s * np.exp(NormalDist().inv_cdf(1 - limit_risk) * sigma[jobs, types])
    low_s, high_s = np.nanquantile(np.nanmax(ends, axis=1), (0.05, 0.95))
    in_time = float((ends[:, jobs] <= problem.jobs.deadline_s[jobs]).all(axis=1).mean())
    return Risk(kept(problem, ends), in_time, (float(low_s), float(high_s)), limit_s, limit_risk)
