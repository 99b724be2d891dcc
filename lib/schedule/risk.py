"""How sure a schedule is where times are uncertain: which deadlines it keeps, and time limits at a stated risk.

The time of a job is log-normal about its prediction, with the 95 % quantile at the high end of its 90 % range. A part of the
error is common to all jobs of a device type. The policy plans with the predictions, and is simulated on drawn times.
"""

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from lib.errors import InputError
from lib.progress import track
from lib.schedule.problem import Problem
from lib.schedule.simulation.events import Outcome, simulate
from lib.schedule.state import Policy

DRAWS = 100
_SPREADS = NormalDist().inv_cdf  # standard deviations from the median to a quantile
_HIGH = _SPREADS(0.95)  # of the log time, from the prediction to the high end
_COMMON = 0.5  # of the variance; with 0.2, plans of held-out networks that said 93 % were kept in 88 %, with 0.5 (92) in 90 %


@dataclass(frozen=True)
class Risk:
    """What may become of a schedule. ``in_time`` (jobs): probabilities, NaN without a deadline; ``all_in_time``: of all jobs.

    ``makespan_s``: 5 and 95 % quantiles; ``time_limit_s`` (jobs): what each exceeds with the probability ``limit_risk``.
    """

    in_time: np.ndarray
    all_in_time: float
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
    return np.log(np.where(able, high_s, 1.0) / np.where(able, problem.predicted_s, 1.0)) / _HIGH


def assess(outcome: Outcome, policy: Policy, high_s: np.ndarray, limit_risk: float = 0.05, draws: int = DRAWS) -> Risk:
    """Return the risk of the schedule of an ``outcome`` that ``policy`` planned; ``high_s``: high ends (jobs, types) in s.

    Raises InputError for a risk that is not between 0 and 1, and for wrong high ends.
    """
    if not 0 < limit_risk < 1:
        raise InputError(f"a risk of {limit_risk:g} is none to set a limit by: it lies between 0 and 1, such as 0.05")
    problem, sigma = outcome.problem, spread(outcome.problem, high_s)
    draw, deadline_s = np.random.default_rng(0), problem.jobs.deadline_s
    usual, ends = float(np.median(sigma[np.isfinite(problem.predicted_s)])), []
    for _ in track(range(draws), "draws"):
        common, rest = draw.normal(size=sigma.shape[1]), draw.normal(size=sigma.shape)
        error = sigma * (_COMMON**0.5 * common + (1 - _COMMON)**0.5 * rest)
        drawn = replace(problem, actual_s=problem.predicted_s * np.exp(error), sigma=usual)
        done = simulate(drawn, policy).done
        ends.append(done.set_index("job")["end_s"].reindex(range(len(deadline_s))).to_numpy(float))
    kept, due = np.array(ends) <= deadline_s, np.isfinite(deadline_s)
    planned = outcome.done.set_index("job")["device_index"].reindex(range(len(deadline_s))).to_numpy(int)
    where = np.arange(len(planned)), problem.fleet.type_of[planned]
    limit_s = problem.fleet.setup_s[where[1]] + problem.predicted_s[where] * np.exp(_SPREADS(1 - limit_risk) * sigma[where])
    makespan_s = np.quantile(np.array(ends).max(axis=1), (0.05, 0.95))
    return Risk(np.where(due, kept.mean(axis=0), np.nan), float(kept[:, due].all(axis=1).mean()), tuple(makespan_s.tolist()),
                limit_s, limit_risk)
