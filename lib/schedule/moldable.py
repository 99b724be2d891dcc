"""Moldable jobs, which can run on one of several numbers of devices: which number each takes.

The numbers are chosen before jobs are placed: for each job the one of least work (devices times seconds) among those that take
no longer than a limit (two phases; Turek, Wolf and Yu, SPAA 1992). Limits are tried, and that whose schedule is best is kept.
"""

from operator import itemgetter

import numpy as np

from lib.schedule import bounds
from lib.schedule.problem import Problem
from lib.schedule.simulation import metrics
from lib.schedule.simulation.events import Outcome, simulate
from lib.schedule.state import Policy

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of all times, as limits
_SHARES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0, 1.2)  # of the bound of the makespan, as limits
_FIGURES = {"mean_jct": "mean_jct_s", "p99_jct": "p99_jct_s", "deadline": "late"}  # of objectives; else the makespan


def candidates(problem: Problem) -> list[np.ndarray]:
    """Return choices of offers (jobs), one for each of some limits of the time of a job, without repeats."""
    there = problem.offered_s.min(axis=2)  # jobs, offers
    work_s, chosen = there * problem.offers.counts, {}
    bound_s, usual_s = bounds.makespan_bound(problem), there[np.isfinite(there)]
    for limit_s in (*np.quantile(usual_s, _QUANTILES), *(share * bound_s for share in _SHARES)):
        within = np.where(there <= limit_s, work_s, np.inf)
        least = np.where(np.isfinite(within).any(axis=1), within.argmin(axis=1), there.argmin(axis=1))
        chosen.setdefault(least.tobytes(), least)
    return list(chosen.values())


def place(problem: Problem, policy: Policy, objective: str = "makespan") -> Outcome:
    """Return the best simulated schedule of moldable jobs over the candidates; its problem has the offers chosen."""
    cost = itemgetter(_FIGURES.get(objective, "makespan_s"), "makespan_s")
    outcomes = [simulate(problem.with_offers(chosen), policy) for chosen in candidates(problem)]
    return min(outcomes, key=lambda outcome: cost(metrics.metrics(outcome)))
