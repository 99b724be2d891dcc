"""How good are the policies? The same jobs for each, paired by seed: against the bound, under load, with wrong predictions."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lib.progress import track
from lib.schedule import bounds, portable
from lib.schedule.contention import Contention
from lib.schedule.policies import registry
from lib.schedule.problem import Problem
from lib.schedule.simulation import metrics
from lib.schedule.simulation.events import simulate

Mix = Callable[[int], Problem]  # a seed -> the same kind of problem, drawn anew
NOISE = (0.0, 0.1, 0.3, 1.0)
LOADS = (0.5, 0.7, 0.85, 0.95)
_NOTHING = 1e-9  # of a makespan, that rounding may leave
_SHORT_WAITS = {"objective": "mean_jct"}
_OFFLINE: dict[str, dict] = {"first-come": {}, "shortest-first": {}, "affinity": {}, "matching": {}, "hybrid": _SHORT_WAITS}
_ONLINE: dict[str, dict] = {"first-come": {}, "shortest-first": {}, "affinity": {}, "hybrid": _SHORT_WAITS,
                            "hybrid, for p99": {"objective": "p99_jct"}}


def run(problem: Problem, name: str, bound_s: float | None = None, contention: Contention | None = None,
        compiled: bool = True, **options: Any) -> dict[str, Any]:
    """Return the figures of one policy on one problem; where it can be ``compiled``, no decision is timed."""
    if compiled and not contention and not options:
        from lib.schedule.simulation import compiled as machine  # numba: not before it is needed

        if machine.covers(problem, name):
            return metrics.metrics(machine.simulate(problem, name), bound_s)
    return metrics.metrics(simulate(problem, registry.policy(name, **options), contention=contention), bound_s)


def paired(draw: Mix, seeds: int, label: str, rows: Callable) -> pd.DataFrame:
    """Return the rows (dicts) of ``rows(problem, seed)`` of the problem of each seed; ``label`` stands at the progress bar."""
    return pd.DataFrame([{"seed": seed, **row} for seed in track(range(seeds), label) for row in rows(draw(seed), seed)])


def against_bound(mixes: dict[str, Mix], names: Sequence[str], seeds: int = 5) -> pd.DataFrame:
    """Return ``mix, seed, policy`` and the figures of every policy on every mix; ``headroom`` is the share of what can be won.

    Headroom lies between the best policy that uses one type of device for each job (cpu-only, gpu-only, fastest) and the bound;
    NaN where there is none, as with few jobs of which one is the longest by far.
    """
    def rows(problem, _seed):
        bound_s = bounds.makespan_bound(problem)
        return [{"policy": name, **run(problem, name, bound_s)} for name in names]

    if not mixes:
        return pd.DataFrame(columns=["mix", "seed", "policy"])
    table = pd.concat([paired(draw, seeds, mix, rows).assign(mix=mix) for mix, draw in mixes.items()], ignore_index=True)
    single = table[table["policy"].isin(("cpu-only", "gpu-only", "fastest"))]
    best = single.groupby(["mix", "seed"])["makespan_s"].min().rename("best_single_s")
    table = table.join(best, on=["mix", "seed"])
    room_s = table["best_single_s"] - table["lower_bound_s"]
    share = room_s / table["best_single_s"]
    won = (table["best_single_s"] - table["makespan_s"]) / room_s.where(share > _NOTHING)
    return table.assign(room=share, headroom=won)


def completion(mixes: dict[str, Mix], seeds: int = 5) -> pd.DataFrame:
    """Return the mean completion time over that of the optimal matching, of batches that are all there at 0 s."""
    def rows(problem, _seed):
        total, _, _ = bounds.matching(bounds.able_times(problem), problem.fleet.counts)
        return [{"policy": name, "ratio": run(problem, name, **options)["mean_jct_s"] * len(problem.jobs) / total}
                for name, options in _OFFLINE.items()]

    return pd.concat([paired(draw, seeds, mix, rows).assign(mix=mix) for mix, draw in mixes.items()], ignore_index=True)


def under_load(draw: Callable[[int, float], Problem], loads: Sequence[float] = LOADS, seeds: int = 5) -> pd.DataFrame:
    """Return mean and p99 completion times of jobs that arrive over time, by load and policy."""
    def rows(problem, _seed):
        for label, options in _ONLINE.items():
            figures = run(problem, label.partition(",")[0], **options)
            yield {"policy": label, **{name: figures[name] for name in ("mean_jct_s", "p99_jct_s", "mean_slowdown")}}

    return pd.concat([paired(partial(draw, load=load), seeds, f"load {load:g}", rows).assign(load=load) for load in loads],
                     ignore_index=True)


def spans(problem: Problem, names: Sequence[str]) -> dict[str, float]:
    """Return the makespan of each policy."""
    return {name: run(problem, name)["makespan_s"] for name in names}


def with_noise(draw: Mix, sigmas: Sequence[float] = NOISE,
               names: Sequence[str] = ("longest-first", "earliest-finish", "hybrid"), seeds: int = 5) -> pd.DataFrame:
    """Return makespans when predictions are wrong by a log-normal factor whose spread policies know; paired by seed.

    ``over_perfect``: over that of the same policy with perfect predictions; ``ratio``: over the bound.
    """
    def rows(problem, seed):
        errors = np.random.default_rng([seed, 1]).normal(0, 1, problem.actual_s.shape)
        bound_s, perfect = bounds.makespan_bound(problem), spans(problem, names)
        for sigma in sigmas:
            wrong = problem.with_predictions(problem.actual_s * portable.exp(sigma * errors), sigma)
            for name, span_s in spans(wrong, names).items():
                yield {"sigma": sigma, "policy": name, "over_perfect": span_s / perfect[name], "ratio": span_s / bound_s}

    return paired(draw, seeds, "noise", rows)


def swapped(problem: Problem, seed: int) -> Problem:
    """Return a problem whose predictions are swapped between the first and the last type for a random half of the jobs."""
    chosen = np.random.default_rng([seed, 2]).random(len(problem.jobs)) < 0.5
    predicted_s = problem.predicted_s.copy()
    predicted_s[chosen, 0], predicted_s[chosen, -1] = problem.predicted_s[chosen, -1], problem.predicted_s[chosen, 0]
    runs = np.isfinite(predicted_s) & np.isfinite(problem.actual_s)
    return problem.with_predictions(np.where(runs, predicted_s, problem.actual_s))


def blind(problem: Problem) -> Problem:
    """Return a problem whose predictions say nothing but where a job can run at all."""
    return problem.with_predictions(np.where(np.isfinite(problem.actual_s), 1.0, np.inf))


def adversarial(draw: Mix, seeds: int = 5) -> pd.DataFrame:
    """Return makespans with predictions swapped between types for half of the jobs, over the best that uses none."""
    def rows(problem, seed):
        unpredicted = spans(blind(problem), ("first-come", "earliest-finish", "hybrid"))
        wrong = spans(swapped(problem, seed), ("fastest", "earliest-finish", "longest-first", "hybrid"))
        best = min(unpredicted["first-come"], unpredicted["earliest-finish"])
        every = {f"{name}, blind": span_s for name, span_s in unpredicted.items()} | wrong
        every |= {f"{name}, perfect": span_s for name, span_s in spans(problem, ("hybrid",)).items()}
        return [{"policy": name, "over_blind": span_s / best} for name, span_s in every.items()]

    return paired(draw, seeds, "adversarial", rows)


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
