"""How sure a plan is where times and memory are uncertain, and which plan costs least on average.

The time of a job is log-normal about its prediction, with the 95 % quantile at the high end of its 90 % range. A part of the
error is common to all jobs of a device type, the rest to jobs of one class there. The memory of a job is log-normal in the same
way; an attempt that runs out of memory counts as lost at its end, and the job runs elsewhere. A plan keeps its devices and
their order: what ends late delays what comes after it.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.schedule import bounds
from lib.schedule.problem import Problem
from lib.schedule.simulation.events import Outcome, simulate
from lib.schedule.state import Policy

DRAWS = 500
COMMON = 0.5  # of the variance, between jobs of a device type
_QUANTILE = NormalDist().inv_cdf  # standard deviations from the median to a quantile
HIGH = _QUANTILE(0.95)  # of the log time, from the prediction to the high end
PREDICTED = "predicted times"
# what a policy may take for the time of a job, as the log over its prediction, by the standard deviation of that log
_TAKEN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    PREDICTED: lambda sigma: 0 * sigma, "expected times": lambda sigma: sigma**2 / 2,
    "80 % quantiles of the times": lambda sigma: _QUANTILE(0.8) * sigma,
    "95 % quantiles of the times": lambda sigma: HIGH * sigma}
_AVERAGED = ("makespan", "mean_jct", "p99_jct", "deadline")  # objectives whose cost follows from the ends of jobs
_MOST = 40.0  # standard deviations: beyond, nothing is drawn
_SURE = 2.0  # standard errors by which another plan must cost less than that with the predictions


class Risk(NamedTuple):
    """What may become of a plan. ``in_time`` (jobs): probabilities, NaN without a deadline; ``all_in_time``: of all jobs.

    ``out_of_memory`` (jobs): probabilities on the planned devices. ``makespan_s``: 5 and 95 % quantiles; ``time_limit_s``
    (jobs): what each exceeds with the probability ``limit_risk``.
    """

    in_time: np.ndarray
    all_in_time: float
    out_of_memory: np.ndarray
    makespan_s: tuple[float, float]
    time_limit_s: np.ndarray
    limit_risk: float


def spread(problem: Problem, high_s: np.ndarray) -> np.ndarray:
    """Return the standard deviation of log times (jobs, types) by the high ends of 90 % ranges, 0 where a job cannot run.

    Raises InputError for a high end that is missing or below its prediction.
    """
    able = np.isfinite(problem.predicted_s)
    for place in np.argwhere(able & ~((high_s >= problem.predicted_s) & np.isfinite(high_s))):
        job, device_type = problem.jobs.ids[place[0]], problem.fleet.types[place[1]]
        raise InputError(f"the high end of job {job!r} on {device_type!r} is {high_s[*place]:g} s: it is at least the "
                         f"predicted {problem.predicted_s[*place]:g} s")
    return np.log(np.where(able, high_s, 1.0) / np.where(able, problem.predicted_s, 1.0)) / HIGH


def out_of_memory(problem: Problem) -> np.ndarray:
    """Return the probability of each job to run out of memory on each type (jobs, types), by ``memory_high_mb``."""
    from scipy import special

    jobs, most_mb = problem.jobs, problem.fleet.memory_mb
    if jobs.memory_high_mb is None:
        return np.zeros(problem.predicted_s.shape)
    with np.errstate(divide="ignore", invalid="ignore"):  # jobs that need none
        sigma = np.log(jobs.memory_high_mb / jobs.memory_mb)[:, None] / HIGH
        room = np.log(most_mb / jobs.memory_mb[:, None])
        return np.where(np.isfinite(room) & (sigma > 0), special.ndtr(-room / sigma), 0.0)


def _elsewhere(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability of each job to need another type than each (jobs, types), and its least seconds there; else 0."""
    times = bounds.able_times(problem)
    others_s = [np.delete(times, number, axis=1).min(axis=1, initial=np.inf) for number in range(times.shape[1])]
    least_s = np.column_stack(others_s)
    return np.where(np.isfinite(least_s), (out_of_memory(problem), least_s), 0.0)


def ends_s(problem: Problem, plan: pd.DataFrame, sigma: np.ndarray, now_s: float = -np.inf, common: float = COMMON,
           seed: int = 0) -> np.ndarray:
    """Return drawn ends (DRAWS, jobs) of the jobs of a plan, in s; NaN for a job that is not in it.

    ``plan``: the rows of ``Outcome.schedule`` of the attempts that end well. ``sigma`` (jobs, types): as ``spread``. What began
    before ``now_s`` has not ended by then.
    """
    from scipy import special

    fleet, draw = problem.fleet, np.random.default_rng(seed)
    classes, (count, types) = problem.jobs.job_class[:, None], sigma.shape
    # the number of the error that a job has on a type (jobs, types), the same for jobs of one class on one type
    alike = np.where(classes >= 0, count + classes * types + np.arange(types), np.arange(count)[:, None])
    shared, rest, shape = draw.normal(size=(DRAWS, types)), draw.normal(size=(DRAWS, alike.max() + 1)), (DRAWS, count)
    chance, (lost, elsewhere_s) = draw.random(shape), _elsewhere(problem)
    ends, planned_s, drawn_s = np.full(shape, np.nan), np.full(len(fleet), -np.inf), np.full((DRAWS, len(fleet)), -np.inf)
    for job, part in plan.sort_values("start_s", kind="stable").groupby("job", sort=False):
        devices, (start_s, end_s) = part["device_index"].to_numpy(), part[["start_s", "end_s"]].iloc[0].to_numpy(float)
        device_type, runs = fleet.type_of[devices[0]], start_s < now_s
        cell, setup_s = (job, device_type), fleet.setup_s[device_type]
        scale, work_s = sigma[cell], end_s - start_s - setup_s
        error = common**0.5 * shared[:, device_type] + (1 - common)**0.5 * rest[:, alike[cell]]
        if runs and scale > 0:
            least = special.ndtr(np.log(max(now_s - start_s - setup_s, 1e-12) / work_s) / scale)
            error = np.minimum(special.ndtri(least + (1 - least) * special.ndtr(error)), _MOST)
        took_s = setup_s + work_s * np.exp(scale * error)
        if not runs:
            took_s = took_s + (chance[:, job] < lost[cell]) * elsewhere_s[cell]
        arrival_s = min(float(problem.jobs.arrival_s[job]), start_s)
        idle_s = start_s - max(planned_s[devices].max(), arrival_s)  # what a plan leaves idle stays idle
        begin_s = start_s if runs else np.maximum(drawn_s[:, devices].max(axis=1), arrival_s) + idle_s
        ends[:, job] = begin_s + took_s
        planned_s[devices], drawn_s[:, devices] = end_s, ends[:, [job]]
    return ends


def kept(problem: Problem, ends: np.ndarray) -> np.ndarray:
    """Return the probability of each job to keep its deadline by drawn ends (draws, jobs), NaN where it has none or no end."""
    due = np.isfinite(problem.jobs.deadline_s) & np.isfinite(ends).all(axis=0)
    return np.where(due, (ends <= problem.jobs.deadline_s).mean(axis=0), np.nan)


def assess(outcome: Outcome, sigma: np.ndarray, limit_risk: float = 0.05, common: float = COMMON) -> Risk:
    """Return the risk of a plan, which is a simulated ``outcome``, by the ``sigma`` of times (jobs, types), as ``spread``.

    Raises InputError for a risk that is not between 0 and 1.
    """
    if not 0 < limit_risk < 1:
        raise InputError(f"a risk of {limit_risk:g} is none to set a limit by: it lies between 0 and 1, such as 0.05")
    problem, planned = outcome.problem, outcome.done.sort_values("job")
    ends = ends_s(problem, outcome.attempts_done, sigma, common=common, seed=1)
    where = planned["job"].to_numpy(int), problem.fleet.type_of[planned["device_index"]]
    setup_s = problem.fleet.setup_s[where[1]]
    work_s = (planned["end_s"] - planned["start_s"]).to_numpy() - setup_s
    limit_s = setup_s + work_s * np.exp(_QUANTILE(1 - limit_risk) * sigma[where])
    makespan_s = np.quantile(ends.max(axis=1), (0.05, 0.95))
    return Risk(kept(problem, ends), float((ends <= problem.jobs.deadline_s).all(axis=1).mean()),
                out_of_memory(problem)[where], tuple(makespan_s.tolist()), limit_s, limit_risk)


# ------------------------------------------------------------------------------------------ the plan of least expected cost


def _cost(problem: Problem, ends: np.ndarray, objective: str) -> np.ndarray:
    """Return the cost of each draw (draws) of the ends of jobs (draws, jobs)."""
    took_s, makespan_s = ends - problem.jobs.arrival_s, ends.max(axis=1)
    if objective == "deadline":
        return (ends > problem.jobs.deadline_s).sum(axis=1) + makespan_s / (1e3 * makespan_s.mean())
    return {"mean_jct": took_s.mean(axis=1), "p99_jct": np.quantile(took_s, 0.99, axis=1)}.get(objective, makespan_s)


def place(problem: Problem, policy: Policy, objective: str, sigma: np.ndarray) -> tuple[Outcome, str]:
    """Return the plan that costs least on average, and which times the policy took for those of jobs (PREDICTED, ...).

    ``sigma`` (jobs, types): as ``spread``. The policy plans with the predictions and with times that are more careful, in which
    a job that may run out of memory also takes its time elsewhere; each plan's cost is that of drawn ends. Plans for energy,
    price and fair shares rest on the predictions. The problem's actual times are not looked at.
    """
    problem = replace(problem, actual_s=problem.predicted_s)
    (lost, elsewhere_s), plans = _elsewhere(problem), {}
    for name in _TAKEN if objective in _AVERAGED and (sigma.any() or lost.any()) else [PREDICTED]:
        taken_s = problem.predicted_s * np.exp(_TAKEN[name](sigma)) + lost * elsewhere_s * (name != PREDICTED)
        outcome = simulate(problem.with_predictions(taken_s, problem.sigma), policy)
        plans[name] = outcome, _cost(problem, ends_s(problem, outcome.attempts_done, sigma), objective)
    usual = plans[PREDICTED][1]
    gain = {name: (usual - cost).mean() - _SURE * (usual - cost).std() / DRAWS**0.5 for name, (_, cost) in plans.items()}
    chosen = max(gain, key=gain.get)
    return plans[chosen][0], chosen
