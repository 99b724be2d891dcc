"""How near to the bound, how fast: policies on mixes of published throughputs (imported, or beside the checkout)."""

import resource
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from lib import paths
from lib.schedule import bounds, gavel
from lib.schedule.policies import registry
from lib.schedule.problem import Problem
from lib.schedule.simulation import compiled
from lib.studies.scheduler_eval import comparison
from lib.studies.scheduler_eval.mixes import published

SIZES = ((50, 2), (200, 4), (1000, 36), (5000, 36))  # jobs, devices of each type
ARRIVING, COMPILED, TIMED = (4000, 36), ((100_000, 334), (1_000_000, 3334)), (100_000, 334)
DECIDED = (100_000, 3334)
TOY = {"SIZES": ((10, 1),) * 4, "ARRIVING": (20, 1), "COMPILED": ((40, 2),), "TIMED": (40, 2), "DECIDED": (40, 2)}
NAMES = ("fastest", "earliest-finish", "longest-first", "hybrid")
GIVEN = paths.ROOT.parent / "shared" / "data" / "gavel" / "simulation_throughputs.json"



def mixes(table: pd.DataFrame, *chosen: int) -> dict[str, comparison.Mix]:
    """Return the mixes of these of SIZES."""
    return {f"{SIZES[one][0]} jobs, {SIZES[one][1]} of each": partial(gavel.mix, table, *SIZES[one]) for one in chosen}


def makespan(table: pd.DataFrame) -> pd.DataFrame:
    found = comparison.against_bound(mixes(table, 0, 1, 2, 3), NAMES)
    return found.groupby(["mix", "policy"], sort=False)[["ratio", "headroom", "decide_s"]].agg(["mean", "max"])


def completion(table: pd.DataFrame) -> pd.DataFrame:
    return comparison.completion(mixes(table, 0, 1, 2)).groupby(["mix", "policy"], sort=False)["ratio"].agg(["mean", "max"])


def load(table: pd.DataFrame) -> pd.DataFrame:
    found = comparison.under_load(lambda seed, load: gavel.mix(table, *ARRIVING, seed, load), (0.8, 0.95))
    return found.groupby(["load", "policy"], sort=False)[["mean_jct_s", "p99_jct_s", "mean_slowdown"]].mean()


def noise(table: pd.DataFrame) -> pd.DataFrame:
    parts = [comparison.with_noise(draw, (0.1, 0.3, 0.5, 1.0)).assign(mix=name)
             for name, draw in mixes(table, 2, 3).items()]
    return pd.concat(parts).pivot_table("over_perfect", ["mix", "policy"], "sigma")


def adversarial(table: pd.DataFrame) -> pd.DataFrame:
    parts = [comparison.adversarial(draw).assign(mix=name) for name, draw in mixes(table, 2, 3).items()]
    return pd.concat(parts).pivot_table("over_blind", "policy", "mix")


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
    comparison.speed(gavel.mix(table, 10, 1, 0), ["fastest"], compiled=True)  # compiled, or read from the cache
    parts = []
    for count, devices in COMPILED:
        for mix, asked in (("batch", gavel.mix(table, count, devices, 0)), ("load 0.9", arriving(table, count, devices, 0.9))):
            parts.append(comparison.speed(asked, compiled.NAMES, compiled=True).assign(
                mix=mix, compiled=True, peak_mb=peak_mb()))
    names = [name for name in registry.POLICIES if name != "matching"]
    parts.append(comparison.speed(gavel.mix(table, *TIMED, 0), names).assign(
        mix="batch", compiled=False, peak_mb=peak_mb()))
    return pd.concat(parts, ignore_index=True)


def decision(table: pd.DataFrame) -> pd.DataFrame:
    """One placement decision among the devices of DECIDED, of three types, planning anew apart."""
    asked = gavel.mix(table, *DECIDED, 0)
    return comparison.speed(asked, ("hybrid", "first-come", "shortest-first", "earliest-finish"))


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
