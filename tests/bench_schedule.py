"""How near to the bound, how fast: policies on mixes of published throughputs (imported, or beside the checkout)."""

import sys
from functools import partial

import pandas as pd

from lib import paths, store
from lib.schedule import gavel, policies, study

SIZES = ((50, 2), (200, 4), (1000, 36), (5000, 36))
NAMES = ("fastest", "earliest-finish", "longest-first", "hybrid")
GIVEN = paths.ROOT.parent / "shared" / "data" / "gavel" / "simulation_throughputs.json"


def rates() -> pd.DataFrame | None:
    """Return the throughputs of single-device jobs, None where there are none."""
    path = paths.IMPORTED / "gavel" / gavel.FILE
    if not path.exists() and GIVEN.exists():
        gavel.bring_in(GIVEN)
    return gavel.single(store.read(path, "throughputs")) if path.exists() else None


def mixes(table: pd.DataFrame, sizes=SIZES) -> dict[str, study.Mix]:
    return {f"{count} jobs, {devices} of each": partial(gavel.mix, table, count, devices) for count, devices in sizes}


def makespan(table: pd.DataFrame) -> pd.DataFrame:
    found = study.against_bound(mixes(table), NAMES)
    return found.groupby(["mix", "policy"], sort=False)[["ratio", "headroom", "decide_s"]].agg(["mean", "max"])


def completion(table: pd.DataFrame) -> pd.DataFrame:
    return study.completion(mixes(table, SIZES[:3])).groupby(["mix", "policy"], sort=False)["ratio"].agg(["mean", "max"])


def load(table: pd.DataFrame) -> pd.DataFrame:
    found = study.under_load(lambda seed, load: gavel.mix(table, 4000, 36, seed, load), (0.8, 0.95))
    return found.groupby(["load", "policy"], sort=False)[["mean_jct_s", "p99_jct_s", "mean_slowdown"]].mean()


def noise(table: pd.DataFrame) -> pd.DataFrame:
    parts = [study.with_noise(draw, (0.1, 0.3, 0.5, 1.0)).assign(mix=name) for name, draw in mixes(table, SIZES[2:]).items()]
    return pd.concat(parts).pivot_table("over_perfect", ["mix", "policy"], "sigma")


def adversarial(table: pd.DataFrame) -> pd.DataFrame:
    parts = [study.adversarial(draw).assign(mix=name) for name, draw in mixes(table, SIZES[2:]).items()]
    return pd.concat(parts).pivot_table("over_blind", "policy", "mix")


def scale(table: pd.DataFrame) -> pd.DataFrame:
    return study.speed(gavel.mix(table, 100_000, 334, 0), [name for name in policies.registry() if name != "matching"])


def decision(table: pd.DataFrame) -> pd.DataFrame:
    """One placement decision among 10,002 devices of three types, planning anew apart."""
    asked = gavel.mix(table, 100_000, 3334, 0)
    return study.speed(asked, ("hybrid", "first-come", "shortest-first", "earliest-finish"))


def main() -> None:
    table = rates()
    if table is None:
        print("   skipped: python -m lib import gavel simulation_throughputs.json brings what it needs")
        return
    for what in (makespan, completion, load, noise, adversarial, scale, decision):
        if set(sys.argv[1:]) <= {"schedule"} or what.__name__ in sys.argv[1:]:
            print(f"--- {what.__name__}", what(table).round(4).to_string(), sep="\n", flush=True)


if __name__ == "__main__":
    main()
