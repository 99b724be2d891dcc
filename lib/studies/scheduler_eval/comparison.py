"""How good are the policies? The same jobs for each, paired by seed: against the bound, under load, with wrong predictions.

And what is given up for what: energy for time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lib.progress import track
from lib.schedule import bounds, portable
from lib.schedule.policies import registry
from lib.schedule.problem import Problem
from lib.schedule.simulation import metrics
from lib.schedule.simulation.events import simulate

Mix = Callable[[int], Problem]  # a seed -> the same kind of problem, drawn anew
NOISE = (0.0, 0.1, 0.3, 1.0)
DRIFTS = (0.1, 0.2, 0.5)
LOADS = (0.5, 0.7, 0.85, 0.95)
WEIGHTS = (0.0, 0.6, 0.75, 0.85, 0.95, 1.0)
_PREDICTING = ("longest-first", "earliest-finish", "hybrid")
_NOTHING = 1e-9  # of a makespan, that rounding may leave
_SHORT_WAITS = {"objective": "mean_jct"}
_OFFLINE: dict[str, dict] = {"first-come": {}, "shortest-first": {}, "affinity": {}, "matching": {}, "hybrid": _SHORT_WAITS}
_ONLINE: dict[str, dict] = {"first-come": {}, "shortest-first": {}, "affinity": {}, "hybrid": _SHORT_WAITS,
                            "hybrid, for p99": {"objective": "p99_jct"}}


def run(problem: Problem, name: str, bound_s: float | None = None, compiled: bool = True, **options: Any) -> dict[str, Any]:
    """Return the figures of one policy on one problem; where it can be ``compiled``, no decision is timed."""
    if compiled and not options:
        from lib.schedule.simulation import compiled as machine  # numba: not before it is needed

        if machine.covers(problem, name):
            return metrics.metrics(machine.simulate(problem, name), bound_s)
    return metrics.metrics(simulate(problem, registry.policy(name, **options)), bound_s)


def trials(draws: Mapping[Any, Mix], column: str, seeds: int, rows: Callable) -> pd.DataFrame:
    """Return the rows (dicts) of ``rows(problem, seed)`` of the problem of each draw and seed; ``column`` names the draw."""
    return pd.DataFrame([{column: name, "seed": seed, **row} for name, draw in draws.items()
                         for seed in track(range(seeds), f"{column} {name}") for row in rows(draw(seed), seed)])


def against_bound(mixes: Mapping[str, Mix], names: Sequence[str], seeds: int = 5) -> pd.DataFrame:
    """Return ``mix, seed, policy`` and the figures of every policy on every mix; ``headroom`` is the share of what can be won.

    Headroom lies between the best simple rule (cpu-only, gpu-only, fastest) and the bound; NaN where there is none, as with few
    jobs of which one is the longest by far. A policy without a device in a mix has no row there.
    """
    def rows(problem, _seed):
        bound_s = bounds.makespan_bound(problem)
        return [{"policy": name, **run(problem, name, bound_s)} for name in names if not registry.lacks(name, problem.fleet)]

    table = trials(mixes, "mix", seeds, rows)
    if table.empty:
        return pd.DataFrame(columns=["mix", "seed", "policy"])
    simple_s = table["makespan_s"].where(table["policy"].isin(("cpu-only", "gpu-only", "fastest")))
    best_s = simple_s.groupby([table["mix"], table["seed"]]).transform("min")
    room_s = best_s - table["lower_bound_s"]
    won = (best_s - table["makespan_s"]) / room_s.where(room_s / best_s > _NOTHING)
    return table.assign(room=room_s / best_s, headroom=won)


def completion(mixes: Mapping[str, Mix], seeds: int = 5) -> pd.DataFrame:
    """Return the mean completion time over that of the optimal matching, of batches that are all there at 0 s."""
    def rows(problem, _seed):
        total, _, _ = bounds.matching(bounds.able_times(problem), problem.fleet.counts)
        return [{"policy": name, "ratio": run(problem, name, **options)["mean_jct_s"] * len(problem.jobs) / total}
                for name, options in _OFFLINE.items()]

    return trials(mixes, "mix", seeds, rows)


def under_load(draw: Callable[[int, float], Problem], loads: Sequence[float] = LOADS, seeds: int = 5) -> pd.DataFrame:
    """Return mean and p99 completion times of jobs that arrive over time, by load and policy."""
    return trials({load: partial(draw, load=load) for load in loads}, "load", seeds, lambda problem, _seed: (
        {"policy": label, **run(problem, label.partition(",")[0], **options)} for label, options in _ONLINE.items()))


def makespan(problem: Problem, name: str) -> float:
    """Return the makespan of a policy."""
    return run(problem, name)["makespan_s"]


# ------------------------------------------------------------------------------------------------- wrong predictions

def _with_errors(draw: Mix, column: str, sizes: Sequence, wrong: Callable, names: Sequence[str], seeds: int) -> pd.DataFrame:
    """Return makespans with predictions that ``wrong(problem, size, seed)`` makes wrong.

    ``over_perfect``: over that of the same policy with the truth predicted; ``ratio``: over the bound.
    """
    def rows(drawn, seed):
        of_truth: dict[bytes, dict[str, float]] = {}  # makespans with the truth predicted, by the truth
        for size in sizes:
            problem = wrong(drawn, size, seed)
            perfect, bound_s = problem.with_predictions(problem.actual_s), bounds.makespan_bound(problem)
            perfect_s = of_truth.setdefault(problem.actual_s.tobytes(), {})
            for name in names:
                span_s = makespan(problem, name)
                perfect_s[name] = perfect_s.get(name) or makespan(perfect, name)
                yield {column: size, "policy": name, "over_perfect": span_s / perfect_s[name], "ratio": span_s / bound_s}

    return trials({"wrong": draw}, "predictions", seeds, rows)


def _noisy(problem: Problem, sigma: float, seed: int) -> Problem:
    errors = np.random.default_rng([seed, 1]).normal(0, 1, problem.actual_s.shape)
    return problem.with_predictions(problem.actual_s * portable.exp(sigma * errors), sigma)


def with_noise(draw: Mix, sigmas: Sequence[float] = NOISE, seeds: int = 5) -> pd.DataFrame:
    """Return makespans when predictions are wrong by a log-normal factor whose spread policies know; see ``_with_errors``."""
    return _with_errors(draw, "sigma", sigmas, _noisy, _PREDICTING, seeds)


def drifted(problem: Problem, spread: float | np.ndarray, seed: int, sigma: float = 0.0) -> Problem:
    """Return a problem whose jobs really take other times than predicted, by one log-normal factor a class and type.

    ``spread`` is in log time, one number or (classes, types). ``sigma`` is what the policy knows of it; 0: nothing.
    """
    classes = len(spread) if np.ndim(spread) else int(problem.jobs.job_class.max()) + 1  # few jobs: not of every class
    drawn = np.random.default_rng([seed, 3]).normal(0, 1, (classes, problem.predicted_s.shape[1]))
    factor = portable.exp(drawn * spread)
    return replace(problem, actual_s=problem.predicted_s * factor[problem.jobs.job_class], sigma=sigma)


def stale(draw: Mix, drifts: Sequence[float] = DRIFTS, seeds: int = 5) -> pd.DataFrame:
    """Return makespans with stale predictions, which policies take for exact; see ``_with_errors``."""
    return _with_errors(draw, "drift", drifts, drifted, _PREDICTING, seeds)


def uncertain(draw: Mix, spread: np.ndarray, seeds: int) -> pd.DataFrame:
    """Return the same where the truth is drawn from the intervals of the predictions, whose mean spread policies know.

    ``spread`` (classes, types) in log time, 0 where a time was measured.
    """
    sigma = float(spread[spread > 0].mean()) if (spread > 0).any() else 0.0
    return _with_errors(draw, "sigma", [sigma], lambda problem, _, seed: drifted(problem, spread, seed, sigma),
                        ("fastest", "longest-first", "hybrid"), seeds)


def swapped(problem: Problem, seed: int) -> Problem:
    """Return a problem whose predictions are swapped between the first and the last type for a random half of the jobs."""
    chosen = np.random.default_rng([seed, 2]).random(len(problem.jobs)) < 0.5
    predicted_s = problem.predicted_s.copy()
    predicted_s[chosen, 0], predicted_s[chosen, -1] = problem.predicted_s[chosen, -1], problem.predicted_s[chosen, 0]
    runs = np.isfinite(predicted_s) & np.isfinite(problem.actual_s)
    return problem.with_predictions(np.where(runs, predicted_s, problem.actual_s))


def adversarial(draw: Mix, seeds: int = 5) -> pd.DataFrame:
    """Return makespans with predictions swapped between types for half of the jobs, over the best baseline that uses none.

    ``over_better``: over the better of that and ``hybrid`` without predictions.
    """
    def rows(problem, seed):
        nothing = problem.with_predictions(np.where(np.isfinite(problem.actual_s), 1.0, np.inf))  # but where a job can run
        spans_s = {f"{name}, blind": makespan(nothing, name) for name in ("first-come", "earliest-finish", "hybrid")}
        least_s, wrong = min(spans_s["first-come, blind"], spans_s["earliest-finish, blind"]), swapped(problem, seed)
        spans_s |= {name: makespan(wrong, name) for name in ("fastest", "earliest-finish", "longest-first", "hybrid")}
        spans_s["hybrid, perfect"] = makespan(problem, "hybrid")
        better_s = min(least_s, spans_s["hybrid, blind"])
        return [{"policy": name, "over_blind": span_s / least_s, "over_better": span_s / better_s}
                for name, span_s in spans_s.items()]

    return trials({"adversarial": draw}, "predictions", seeds, rows)


# ------------------------------------------------------------------------------------------------- trade-offs

def pareto(problem: Problem, weights: Sequence[float] = WEIGHTS) -> pd.DataFrame:
    """Return makespan and energy of ``hybrid`` for weights between them (1: energy alone matters), and which are on the front.

    A point is on the front when no other is at least as good in both and better in one. Beside it stand the baselines
    (``weight`` NaN). Raises InputError where watts are not known.
    """
    hybrid = {"objective": "makespan", "weights": {"makespan": 1.0}}
    policies = [("hybrid", weight, {"objective": "energy", "weights": {"makespan": max(1e-3, 1 - weight), "energy": weight}}
                 if weight else hybrid) for weight in weights]
    policies += [(name, np.nan, {}) for name in ("gpu-only", "fastest", "earliest-finish", "longest-first")]
    table = pd.DataFrame([{"policy": name, "weight": weight, **run(problem, name, compiled=False, **options)}
                          for name, weight, options in policies])
    values = table[["makespan_s", "energy_j"]].to_numpy(float)
    beaten = [bool(((values <= point).all(axis=1) & (values < point).any(axis=1)).any()) for point in values]
    return table.assign(front=~np.array(beaten))


def speed(problem: Problem, names: Sequence[str], compiled: bool = False) -> pd.DataFrame:
    """Return seconds of a whole simulation with all metrics and, where it is not ``compiled``, of its decisions, by policy."""
    rows = []
    for name in names:
        begin = time.perf_counter()
        figures = run(problem, name, compiled=compiled)
        took_s = time.perf_counter() - begin
        rows.append({"policy": name, "jobs": len(problem.jobs), "devices": len(problem.fleet), "simulation_s": took_s,
                     "jobs_per_s": len(problem.jobs) / took_s,
                     **{name: figures[name] for name in ("refine_s", "decide_p50_us", "decide_p99_us", "decide_max_us")}})
    return pd.DataFrame(rows)
