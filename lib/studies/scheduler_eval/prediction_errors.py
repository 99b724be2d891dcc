"""Predictions that are wrong in the same way for all jobs of a kind: a stale profile, a cost model that errs on one device."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from lib.schedule import bounds, portable
from lib.schedule.problem import Problem
from lib.studies.scheduler_eval import comparison

Progress = Callable[[Iterable, str], Iterable]
DRIFTS = (0.1, 0.2, 0.5)


def drifted(asked: Problem, spread: float | np.ndarray, seed: int, said: float = 0.0) -> Problem:
    """Return a problem whose jobs really take other times than predicted, by one log-normal factor a kind and type.

    ``spread`` is in log time, one number or (kinds, types). ``said`` is what the policy is told of it; 0: nothing.
    """
    kinds = int(asked.jobs.job_class.max()) + 1
    drawn = np.random.default_rng([seed, 3]).normal(0, 1, (kinds, asked.predicted_s.shape[1]))
    factor = portable.exp(drawn * spread)
    return Problem(asked.jobs, asked.fleet, asked.predicted_s, asked.predicted_s * factor[asked.jobs.job_class], said)


def stale(draw: comparison.Mix, drifts: Sequence[float] = DRIFTS,
          names: Sequence[str] = ("longest-first", "earliest-finish", "hybrid"), seeds: int = 5,
          progress: Progress = lambda items, _: items) -> pd.DataFrame:
    """Return makespans with stale predictions, which are said to be exact.

    ``over_perfect``: over that of the same policy told the truth; ``ratio``: over the bound.
    """
    return pd.DataFrame([{"drift": drift, "seed": seed, **row} for seed in progress(range(seeds), "stale") for drift in drifts
                         for row in _over(drifted(draw(seed), drift, seed), names)])


def uncertain(draw: comparison.Mix, spread: np.ndarray, names: Sequence[str] = ("fastest", "longest-first", "hybrid"),
              seeds: int = 5, progress: Progress = lambda items, _: items) -> pd.DataFrame:
    """Return the same where the truth is drawn from the intervals of the predictions, of whose mean spread policies are told.

    ``spread`` (kinds, types) in log time, 0 where a time was measured.
    """
    said = float(spread[spread > 0].mean()) if (spread > 0).any() else 0.0
    return pd.DataFrame([{"seed": seed, **row} for seed in progress(range(seeds), "uncertain")
                         for row in _over(drifted(draw(seed), spread, seed, said), names)])


def _over(told: Problem, names: Sequence[str]) -> list[dict[str, float | str]]:
    truth, bound_s = told.with_predictions(told.actual_s), bounds.makespan_bound(told)
    spans = {name: comparison.run(told, name)["makespan_s"] for name in names}
    return [{"policy": name, "over_perfect": span / comparison.run(truth, name)["makespan_s"], "ratio": span / bound_s}
            for name, span in spans.items()]
