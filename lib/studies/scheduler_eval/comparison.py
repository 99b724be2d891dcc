"""How good are the policies? The same jobs for each, paired by seed: against the bound, under load, with wrong predictions."""

from collections.abc import Callable, Sequence
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
_NOTHING = 1e-9  # of a makespan, that rounding may leave
LOADS = (0.5, 0.7, 0.85, 0.95)


def run(problem: Problem, name: str, bound_s: float | None = None, contention: Contention | None = None,
        compiled: bool = True, **options: Any) -> dict[str, Any]:
    """Return the figures of one policy on one problem; where it can be ``compiled``, no decision is timed."""
    if compiled and not contention and not options:
        from lib.schedule.simulation import compiled as machine  # numba: not before it is needed

        if machine.covers(problem, name):
            return metrics.metrics(machine.simulate(problem, name), bound_s)
    return metrics.metrics(simulate(problem, registry.policy(name, **options), contention=contention), bound_s)


def against_bound(mixes: dict[str, Mix], names: Sequence[str], seeds: int = 5) -> pd.DataFrame:
    """Return ``mix, seed, policy`` and the figures of every policy on every mix; ``headroom`` is the share of what can be won.

    Headroom lies between the best policy that uses one type of device for each job (cpu-only, gpu-only, fastest) and the bound;
    NaN where there is none, as with few jobs of which one is the longest by far.
    """
    rows = []
    for mix, draw in mixes.items():
        for seed in track(range(seeds), mix):
            problem = draw(seed)
            bound = bounds.makespan_bound(problem)
            rows += [{"mix": mix, "seed": seed, "policy": name, **run(problem, name, bound)} for name in names]
    if not rows:
        return pd.DataFrame(columns=["mix", "seed", "policy"])
    table = pd.DataFrame(rows)
    single = table[table["policy"].isin(("cpu-only", "gpu-only", "fastest"))]
    best = single.groupby(["mix", "seed"])["makespan_s"].min().rename("best_single_s")
    table = table.join(best, on=["mix", "seed"])
    room_s = table["best_single_s"] - table["lower_bound_s"]
    share = room_s / table["best_single_s"]
    won = (table["best_single_s"] - table["makespan_s"]) / room_s.where(share > _NOTHING)
    return table.assign(room=share, headroom=won)


def completion(mixes: dict[str, Mix], seeds: int = 5) -> pd.DataFrame:
    """Return the mean completion time over that of the optimal matching, of batches that are all there at 0 s."""
    rows = []
    for mix, draw in mixes.items():
        for seed in track(range(seeds), mix):
            problem = draw(seed)
            total, _, _ = bounds.matching(bounds.able_times(problem), problem.fleet.counts)
            for name, options in (("first-come", {}), ("shortest-first", {}), ("affinity", {}), ("matching", {}),
                                  ("hybrid", {"objective": "mean_jct"})):
                figures = run(problem, name, **options)
                rows.append({"mix": mix, "seed": seed, "policy": name,
                             "ratio": figures["mean_jct_s"] * len(problem.jobs) / total})
    return pd.DataFrame(rows)


def under_load(draw: Callable[[int, float], Problem], loads: Sequence[float] = LOADS, seeds: int = 5) -> pd.DataFrame:
    """Return mean and p99 completion times of jobs that arrive over time, by load and policy."""
    rows = []
    for load in loads:
        for seed in track(range(seeds), f"load {load:g}"):
            problem = draw(seed, load)
            for label, name, options in (("first-come", "first-come", {}), ("shortest-first", "shortest-first", {}),
                                         ("affinity", "affinity", {}), ("hybrid", "hybrid", {"objective": "mean_jct"}),
                                         ("hybrid, for p99", "hybrid", {"objective": "p99_jct"})):
                figures = run(problem, name, **options)
                rows.append({"load": load, "seed": seed, "policy": label, "mean_jct_s": figures["mean_jct_s"],
                             "p99_jct_s": figures["p99_jct_s"], "mean_slowdown": figures["mean_slowdown"]})
    return pd.DataFrame(rows)


def with_noise(draw: Mix, sigmas: Sequence[float] = NOISE,
               names: Sequence[str] = ("longest-first", "earliest-finish", "hybrid"), seeds: int = 5) -> pd.DataFrame:
    """Return makespans when predictions are wrong by a log-normal factor whose spread policies know; paired by seed.

    ``over_perfect``: over that of the same policy with perfect predictions; ``ratio``: over the bound.
    """
    rows = []
    for seed in track(range(seeds), "noise"):
        problem = draw(seed)
        errors = np.random.default_rng([seed, 1]).normal(0, 1, problem.actual_s.shape)
        bound_s = bounds.makespan_bound(problem)
        perfect = {name: run(problem, name)["makespan_s"] for name in names}
        for sigma in sigmas:
            wrong = problem.with_predictions(problem.actual_s * portable.exp(sigma * errors), sigma)
            spans = {name: run(wrong, name)["makespan_s"] for name in names}
            rows += [{"sigma": sigma, "seed": seed, "policy": name, "over_perfect": span / perfect[name],
                      "ratio": span / bound_s} for name, span in spans.items()]
    return pd.DataFrame(rows)


def swapped(problem: Problem, seed: int, one: int = 0, two: int = -1) -> Problem:
    """Return a problem whose predictions are swapped between two types for a random half of the jobs."""
    half = np.random.default_rng([seed, 2]).random(len(problem.jobs)) < 0.5
    predicted_s = problem.predicted_s.copy()
    predicted_s[half, one], predicted_s[half, two] = problem.predicted_s[half, two], problem.predicted_s[half, one]
    known = np.isfinite(predicted_s) & np.isfinite(problem.actual_s)
    return problem.with_predictions(np.where(known, predicted_s, problem.actual_s))


def blind(problem: Problem) -> Problem:
    """Return a problem whose predictions say nothing but where a job can run at all."""
    return problem.with_predictions(np.where(np.isfinite(problem.actual_s), 1.0, np.inf))


def adversarial(draw: Mix, seeds: int = 5) -> pd.DataFrame:
    """Return makespans with predictions swapped between types for half of the jobs, over the best that uses none."""
    rows = []
    for seed in track(range(seeds), "adversarial"):
        problem = draw(seed)
        wrong = swapped(problem, seed)
        spans = {f"{name}, blind": run(blind(problem), name)["makespan_s"]
                 for name in ("first-come", "earliest-finish", "hybrid")}
        best = min(spans["first-come, blind"], spans["earliest-finish, blind"])
        spans |= {name: run(wrong, name)["makespan_s"] for name in ("fastest", "earliest-finish", "longest-first", "hybrid")}
        spans["hybrid, perfect"] = run(problem, "hybrid")["makespan_s"]
        rows += [{"seed": seed, "policy": name, "over_blind": span / best} for name, span in spans.items()]
    return pd.DataFrame(rows)


def speed(problem: Problem, names: Sequence[str], compiled: bool = False) -> pd.DataFrame:
    """Return seconds of a whole simulation with all metrics and, where it is not ``compiled``, of its decisions, by policy."""
    import time

    rows = []
    for name in names:
        begin = time.perf_counter()
        figures = run(problem, name, compiled=compiled)
        took_s = time.perf_counter() - begin
        rows.append({"policy": name, "jobs": len(problem.jobs), "devices": len(problem.fleet), "simulation_s": took_s,
                     "jobs_per_s": len(problem.jobs) / took_s,
                     **{name: figures[name] for name in ("refine_s", "decide_p50_us", "decide_p99_us", "decide_max_us")}})
    return pd.DataFrame(rows)
