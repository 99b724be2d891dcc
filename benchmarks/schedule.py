"""How near to the bound, how fast: policies on mixes of published throughputs (imported, or beside the checkout)."""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from lib import paths, store
from lib.schedule import bounds, experiments, gavel
from lib.schedule.policies import registry
from lib.schedule.problem import Problem
from lib.schedule.simulation import compiled
from lib.schedule.simulation.events import Outcome, simulate
from lib.schedule.simulation.metrics import metrics
from lib.schedule.state import Policy

SIZES = ((50, 2), (200, 4), (1000, 36), (5000, 36))  # jobs, devices of each type
ARRIVING, COMPILED, TIMED = (4000, 36), ((100_000, 334), (1_000_000, 3334)), (100_000, 334)
DECIDED = (100_000, 3334)
TOY = {"SIZES": ((10, 1),) * 4, "ARRIVING": (20, 1), "COMPILED": ((40, 2),), "TIMED": (40, 2), "DECIDED": (40, 2)}
NAMES = ("fastest", "earliest-finish", "longest-first", "hybrid")
GIVEN = paths.ROOT.parent / "shared" / "data" / "gavel" / "simulation_throughputs.json"



def published() -> pd.DataFrame | None:
    """Return the rates of published single-device jobs, None where they were not imported."""
    path = paths.IMPORTED / "gavel" / gavel.FILE
    return gavel.single(store.read(path, "throughputs")) if path.exists() else None


def mixes(table: pd.DataFrame, *chosen: int) -> dict[str, Callable[[int], Problem]]:
    """Return the mixes of these of SIZES."""
    return {f"{SIZES[one][0]} jobs, {SIZES[one][1]} of each": partial(gavel.mix, table, *SIZES[one]) for one in chosen}


def policies(*names: str, **options: str) -> dict[str, Policy]:
    """Return policies by name; ``options`` are those of hybrid."""
    return {name: registry.policy(name, **(options if name == "hybrid" else {})) for name in names}


def makespan(table: pd.DataFrame) -> pd.DataFrame:
    found = experiments.compare(mixes(table, 0, 1, 2, 3), policies(*NAMES), 5)
    return found.groupby(["mix", "policy"], sort=False)[["ratio", "decide_s"]].agg(["mean", "max"])


def completion(table: pd.DataFrame) -> pd.DataFrame:
    """Mean completion time over that of the matching, which is the least."""
    names = "first-come", "shortest-first", "affinity", "matching", "hybrid"
    found = experiments.compare(mixes(table, 0, 1, 2), policies(*names, objective="mean_jct"), 5, with_bound=False)
    jct_s = found.pivot_table("mean_jct_s", ["mix", "seed"], "policy")
    return jct_s.div(jct_s["matching"], axis=0).groupby("mix").agg(["mean", "max"]).T


def load(table: pd.DataFrame) -> pd.DataFrame:
    draws = {at: (lambda seed, at=at: gavel.mix(table, *ARRIVING, seed, at)) for at in (0.8, 0.95)}
    compared = policies("first-come", "shortest-first", "affinity", "hybrid", objective="mean_jct")
    compared["hybrid for p99_jct"] = registry.policy("hybrid", objective="p99_jct")
    found = experiments.compare(draws, compared, 5, with_bound=False)
    return found.groupby(["mix", "policy"], sort=False)[["mean_jct_s", "p99_jct_s", "mean_slowdown"]].mean()


def noise(table: pd.DataFrame) -> pd.DataFrame:
    """Makespan over that of the same policy with the truth predicted."""
    draws = {(name, sigma): (lambda seed, draw=draw, sigma=sigma: experiments.noisy(draw(seed), sigma, seed))
             for name, draw in mixes(table, 2, 3).items() for sigma in (0.0, 0.1, 0.3, 0.5, 1.0)}
    found = experiments.compare(draws, policies("longest-first", "earliest-finish", "hybrid"), 5, with_bound=False)
    found["name"], found["sigma"] = found["mix"].str[0], found["mix"].str[1]
    spans = found.pivot_table("makespan_s", ["name", "policy", "seed"], "sigma")
    return spans.div(spans[0.0], axis=0).groupby(["name", "policy"]).mean()


def adversarial(table: pd.DataFrame) -> pd.DataFrame:
    """Makespan with predictions swapped, over that of the best baseline without any."""
    columns = {}
    for name, draw in mixes(table, 2, 3).items():
        draws = {"swapped": lambda seed, draw=draw: experiments.swapped(draw(seed), seed),
                 "none": lambda seed, draw=draw: experiments.without_predictions(draw(seed))}
        found = experiments.compare(draws, policies("first-come", *NAMES), 5, with_bound=False)
        spans = found.pivot_table("makespan_s", "seed", ["mix", "policy"])
        columns[name] = spans.div(spans["none"][["first-come", "earliest-finish"]].min(axis=1), axis=0).mean()
    return pd.DataFrame(columns)


def simulated(problem: Problem, name: str) -> Outcome:
    """Simulate a policy, with its decisions timed."""
    return simulate(problem, registry.policy(name))


def speed(problem: Problem, names: Sequence[str], simulator: Callable[[Problem, str], Outcome]) -> pd.DataFrame:
    """Return the seconds of a whole simulation with all metrics, and of its decisions where they are timed, by policy."""
    rows = []
    for name in names:
        begin = time.perf_counter()
        figures = metrics(simulator(problem, name))
        took_s = time.perf_counter() - begin
        rows.append({"policy": name, "jobs": len(problem.jobs), "devices": len(problem.fleet), "simulation_s": took_s,
                     "jobs_per_s": len(problem.jobs) / took_s,
                     **{name: figures[name] for name in ("refine_s", "decide_p50_us", "decide_p99_us", "decide_max_us")}})
    return pd.DataFrame(rows)


def arriving(table: pd.DataFrame, count: int, devices: int, load: float) -> Problem:
    """As ``gavel.mix`` with a load, for so many jobs that the optimum of a few must do to tell how many can arrive."""
    few, asked = gavel.mix(table, 3000, devices, 0), gavel.mix(table, count, devices, 0)
    between_s = bounds.relaxation(few.actual_s, few.fleet.counts).makespan_s / len(few.jobs) / load
    arrival_s = np.cumsum(np.random.default_rng(0).exponential(between_s, count))
    return replace(asked, jobs=replace(asked.jobs, arrival_s=arrival_s))


def peak_mb() -> float:
    """Return the most memory that was resident so far; macOS counts bytes, others KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def scale(table: pd.DataFrame) -> pd.DataFrame:
    """Of 10^6 jobs on 10^4 devices, compiled; of fewer with the policies whose decisions are timed."""
    speed(gavel.mix(table, 10, 1, 0), ["fastest"], compiled.simulate)  # compiled, or read from the cache
    parts = []
    for count, devices in COMPILED:
        for mix, asked in (("batch", gavel.mix(table, count, devices, 0)), ("load 0.9", arriving(table, count, devices, 0.9))):
            parts.append(speed(asked, compiled.NAMES, compiled.simulate).assign(
                mix=mix, compiled=True, peak_mb=peak_mb()))
    names = [name for name in registry.POLICIES if name != "matching"]
    parts.append(speed(gavel.mix(table, *TIMED, 0), names, simulated).assign(
        mix="batch", compiled=False, peak_mb=peak_mb()))
    return pd.concat(parts, ignore_index=True)


def decision(table: pd.DataFrame) -> pd.DataFrame:
    """One placement decision among the devices of DECIDED, of three types, planning anew apart."""
    asked = gavel.mix(table, *DECIDED, 0)
    return speed(asked, ("hybrid", "first-come", "shortest-first", "earliest-finish"), simulated)


def main(names: Sequence[str] = ()) -> None:
    """Print the tables of all parts, or of the named ones."""
    if published() is None and GIVEN.exists():
        gavel.import_table(GIVEN)
    if (table := published()) is None:
        print("   skipped: python -m lib import gavel simulation_throughputs.json brings what it needs")
        return
    for what in (makespan, completion, load, noise, adversarial, scale, decision):
        if not names or what.__name__ in names:
            print(f"--- {what.__name__}", what(table).round(4).to_string(), sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
