"""Predictions that are wrong in the same way for all jobs of a class: a stale profile, a cost model that errs on one device."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.schedule import bounds, portable
from lib.schedule.problem import Problem
from lib.studies.scheduler_eval import comparison

DRIFTS = (0.1, 0.2, 0.5)


def drifted(problem: Problem, spread: float | np.ndarray, seed: int, sigma: float = 0.0) -> Problem:
    """Return a problem whose jobs really take other times than predicted, by one log-normal factor a class and type.

    ``spread`` is in log time, one number or (classes, types). ``sigma`` is what the policy knows of it; 0: nothing.
    """
    classes = len(spread) if np.ndim(spread) else int(problem.jobs.job_class.max()) + 1  # few jobs: not of every class
    drawn = np.random.default_rng([seed, 3]).normal(0, 1, (classes, problem.predicted_s.shape[1]))
    factor = portable.exp(drawn * spread)
    actual_s = problem.predicted_s * factor[problem.jobs.job_class]
    return Problem(problem.jobs, problem.fleet, problem.predicted_s, actual_s, sigma)


def stale(draw: comparison.Mix, drifts: Sequence[float] = DRIFTS,
          names: Sequence[str] = ("longest-first", "earliest-finish", "hybrid"), seeds: int = 5) -> pd.DataFrame:
    """Return makespans with stale predictions, which policies take for exact.

    ``over_perfect``: over that of the same policy with the truth predicted; ``ratio``: over the bound.
    """
    return comparison.paired(draw, seeds, "stale", lambda problem, seed: (
        {"drift": drift, **row} for drift in drifts for row in _over(drifted(problem, drift, seed), names)))


def uncertain(draw: comparison.Mix, spread: np.ndarray, names: Sequence[str] = ("fastest", "longest-first", "hybrid"),
              seeds: int = 5) -> pd.DataFrame:
    """Return the same where the truth is drawn from the intervals of the predictions, whose mean spread policies know.

    ``spread`` (classes, types) in log time, 0 where a time was measured.
    """
    sigma = float(spread[spread > 0].mean()) if (spread > 0).any() else 0.0
    return comparison.paired(draw, seeds, "uncertain",
                             lambda problem, seed: _over(drifted(problem, spread, seed, sigma), names))


def _over(wrong: Problem, names: Sequence[str]) -> list[dict[str, float | str]]:
    perfect, bound_s = comparison.spans(wrong.with_predictions(wrong.actual_s), names), bounds.makespan_bound(wrong)
    return [{"policy": name, "over_perfect": span_s / perfect[name], "ratio": span_s / bound_s}
            for name, span_s in comparison.spans(wrong, names).items()]
