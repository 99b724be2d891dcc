"""How good are the policies? The same jobs for each, paired by seed: against the bound, under load, with wrong predictions."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib.schedule import bounds, portable
from lib.schedule.contention import Contention
from lib.schedule.policies import registry
from lib.schedule.problem import Problem
from lib.schedule.simulation import metrics
from lib.schedule.simulation.events import simulate

Progress = Callable[[Iterable, str], Iterable]
Mix = Callable[[int], Problem]  # a seed -> the same kind of problem, drawn anew
NOISE = (0.0, 0.1, 0.3, 1.0)
LOADS = (0.5, 0.7, 0.85, 0.95)


def run(asked: Problem, name: str, bound_s: float | None = None, contention: Contention | None = None,
        compiled: bool = True, **options: Any) -> dict[str, Any]:
    """Return the figures of one policy on one problem; where it can be ``compiled``, no decision is timed."""
    if compiled and not contention and not options:
        from lib.schedule.simulation import compiled as machine  # numba: not before it is needed

        if machine.covers(asked, name):
            return metrics.metrics(machine.simulate(asked, name), bound_s)
    return metrics.metrics(simulate(asked, registry.policy(name, **options), contention=contention), bound_s)


def against_bound(mixes: dict[str, Mix], names: Sequence[str], seeds: int = 5,
                  progress: Progress = lambda items, _: items) -> pd.DataFrame:
    """Return ``mix, seed, policy`` and the figures of every policy on every mix; ``headroom`` is the share of what can be won.

    Headroom lies between the best policy that uses one type of device for each job (cpu-only, gpu-only, fastest) and the bound.
    """
    rows = []
    for mix, draw in mixes.items():
        for seed in progress(range(seeds), mix):
            asked = draw(seed)
            bound = bounds.makespan_bound(asked)
            rows += [{"mix": mix, "seed": seed, "policy": name, **run(asked, name, bound)} for name in names]
    if not rows:
        return pd.DataFrame(columns=["mix", "seed", "policy"])
    table = pd.DataFrame(rows)
    single = table[table["policy"].isin(("cpu-only", "gpu-only", "fastest"))]
    best = single.groupby(["mix", "seed"])["makespan_s"].min().rename("best_single_s")
    table = table.join(best, on=["mix", "seed"])
    room = table["best_single_s"] - table["lower_bound_s"]
    return table.assign(room=room / table["best_single_s"], headroom=(table["best_single_s"] - table["makespan_s"]) / room)


def completion(mixes: dict[str, Mix], seeds: int = 5, progress: Progress = lambda items, _: items) -> pd.DataFrame:
    """Return the mean completion time over that of the optimal matching, of batches that are all there at 0 s."""
    rows = []
    for mix, draw in mixes.items():
        for seed in progress(range(seeds), mix):
            asked = draw(seed)
            total, _, _ = bounds.matching(bounds.able_times(asked), asked.fleet.counts)
            for name, options in (("first-come", {}), ("shortest-first", {}), ("affinity", {}), ("matching", {}),
                                  ("hybrid", {"objective": "mean_jct"})):
                found = run(asked, name, **options)
                rows.append({"mix": mix, "seed": seed, "policy": name,
                             "ratio": found["mean_jct_s"] * len(asked.jobs) / total})
    return pd.DataFrame(rows)


def under_load(draw: Callable[[int, float], Problem], loads: Sequence[float] = LOADS, seeds: int = 5,
               progress: Progress = lambda items, _: items) -> pd.DataFrame:
    """Return mean and p99 completion times of jobs that arrive over time, by load and policy."""
    rows = []
    for load in loads:
        for seed in progress(range(seeds), f"load {load:g}"):
            asked = draw(seed, load)
            for label, name, options in (("first-come", "first-come", {}), ("shortest-first", "shortest-first", {}),
                                         ("affinity", "affinity", {}), ("hybrid", "hybrid", {"objective": "mean_jct"}),
                                         ("hybrid, for p99", "hybrid", {"objective": "p99_jct"})):
                found = run(asked, name, **options)
                rows.append({"load": load, "seed": seed, "policy": label, "mean_jct_s": found["mean_jct_s"],
                             "p99_jct_s": found["p99_jct_s"], "mean_slowdown": found["mean_slowdown"]})
    return pd.DataFrame(rows)


def with_noise(draw: Mix, sigmas: Sequence[float] = NOISE,
               names: Sequence[str] = ("longest-first", "earliest-finish", "hybrid"), seeds: int = 5,
               progress: Progress = lambda items, _: items) -> pd.DataFrame:
    """Return makespans when predictions are wrong by a log-normal factor of which policies are told; paired by seed.

    ``over_perfect``: over that of the same policy with perfect predictions; ``ratio``: over the bound.
    """
    rows = []
    for seed in progress(range(seeds), "noise"):
        asked = draw(seed)
        wrong = np.random.default_rng([seed, 1]).normal(0, 1, asked.actual_s.shape)
        bound_s = bounds.makespan_bound(asked)
        perfect = {name: run(asked, name)["makespan_s"] for name in names}
        for sigma in sigmas:
            told = asked.with_predictions(asked.actual_s * portable.exp(sigma * wrong), sigma)
            spans = {name: run(told, name)["makespan_s"] for name in names}
            rows += [{"sigma": sigma, "seed": seed, "policy": name, "over_perfect": span / perfect[name],
                      "ratio": span / bound_s} for name, span in spans.items()]
    return pd.DataFrame(rows)


def swapped(asked: Problem, seed: int, one: int = 0, two: int = -1) -> Problem:
    """Return a problem whose predictions are swapped between two types for a random half of the jobs."""
    half = np.random.default_rng([seed, 2]).random(len(asked.jobs)) < 0.5
    told = asked.predicted_s.copy()
    told[half, one], told[half, two] = asked.predicted_s[half, two], asked.predicted_s[half, one]
    return asked.with_predictions(np.where(np.isfinite(told) & np.isfinite(asked.actual_s), told, asked.actual_s))


def blind(asked: Problem) -> Problem:
    """Return a problem of which nothing is predicted but where a job can run at all."""
    return asked.with_predictions(np.where(np.isfinite(asked.actual_s), 1.0, np.inf))


def adversarial(draw: Mix, seeds: int = 5, progress: Progress = lambda items, _: items) -> pd.DataFrame:
    """Return makespans with predictions swapped between types for half of the jobs, over the best that uses none."""
    rows = []
    for seed in progress(range(seeds), "adversarial"):
        asked = draw(seed)
        told = swapped(asked, seed)
        unknowing = {f"{name}, blind": run(blind(asked), name)["makespan_s"] for name in ("first-come", "earliest-finish")}
        unknowing["hybrid, blind"] = run(blind(asked), "hybrid")["makespan_s"]
        best = min(unknowing["first-come, blind"], unknowing["earliest-finish, blind"])
        found = unknowing | {name: run(told, name)["makespan_s"] for name in ("fastest", "earliest-finish", "longest-first",
                                                                              "hybrid")}
        found["hybrid, perfect"] = run(asked, "hybrid")["makespan_s"]
        rows += [{"seed": seed, "policy": name, "over_blind": span / best} for name, span in found.items()]
    return pd.DataFrame(rows)


def speed(asked: Problem, names: Sequence[str], compiled: bool = False) -> pd.DataFrame:
    """Return seconds of a whole simulation with all metrics and, where it is not ``compiled``, of its decisions, by policy."""
    import time

    rows = []
    for name in names:
        begin = time.perf_counter()
        found = run(asked, name, compiled=compiled)
        took_s = time.perf_counter() - begin
        rows.append({"policy": name, "jobs": len(asked.jobs), "devices": len(asked.fleet), "simulation_s": took_s,
                     "jobs_per_s": len(asked.jobs) / took_s,
                     **{name: found[name] for name in ("refine_s", "decide_p50_us", "decide_p99_us", "decide_max_us")}})
    return pd.DataFrame(rows)
