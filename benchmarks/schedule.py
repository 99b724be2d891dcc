"""How near to the bound, how fast: policies on mixes of the training throughputs that were published with Gavel (OSDI 2020).

python -m benchmarks.schedule simulation_throughputs.json    # of stanford-futuredata/gavel, scheduler/
"""

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths
from lib.errors import InputError
from lib.schedule import experiments, job_mixes
from lib.schedule.policies import POLICIES, policy_for
from lib.schedule.problem import Fleet, Problem
from lib.schedule.simulate import simulate
from lib.schedule.state import Policy

TYPES = ("v100", "p100", "k80")
SPAN_S = (600 * sqrt(10), 600_000.0)  # 10^1.5 to 10^4 minutes on the fastest type, as in Gavel's traces
SIZES = ((50, 2), (200, 4), (1000, 36))  # jobs, devices of each type
ARRIVING, TIMED = (1000, 36), (10_000, 36)
TOY = {"SIZES": ((10, 1),) * 3, "ARRIVING": (20, 1), "TIMED": (40, 2)}
NAMES = ("met", "mct", "lpt", "hybrid")
GIVEN = paths.ROOT.parent / "shared" / "data" / "gavel" / "simulation_throughputs.json"
_JOB = re.compile(r"\('(?P<job>.+)', (?P<devices>\d+)\)")


def published(path: Path) -> pd.DataFrame:
    """Return steps/s of Gavel's jobs on one device, one row per job and one column per type; 0: does not fit.

    The file holds for each device type texts of ``('job', devices)``, each with ``null``: steps/s alone.
    """
    rates: dict[str, dict[str, float]] = {}
    for device_type, entries in json.loads(path.read_text()).items():
        for text, beside in entries.items():
            match = _JOB.fullmatch(text)
            if match is None:
                raise InputError(f"{path}: {device_type}: {text!r} is no ('job', devices)")
            if match["devices"] == "1":
                rates.setdefault(device_type, {})[match["job"]] = float(beside["null"])
    return pd.DataFrame(rates)[list(TYPES)].sort_index()


def mix(rates: pd.DataFrame, count: int, devices: int, seed: int, load: float = 0.0) -> Problem:
    """Draw jobs for so many devices of each type."""
    return job_mixes.draw(rates, Fleet.from_counts(dict.fromkeys(rates.columns, devices)), count, seed, load, SPAN_S)


def mixes(rates: pd.DataFrame, sizes: Sequence[tuple[int, int]]) -> dict[str, Callable[[int], Problem]]:
    return {f"{count} jobs, {devices} of each": partial(mix, rates, count, devices) for count, devices in sizes}


def policies(names: Sequence[str], objective: str = "makespan") -> dict[str, Policy]:
    """Return policies by name; the objective is that of hybrid."""
    return {name: policy_for(name, objective if name == "hybrid" else "makespan") for name in names}


def makespan(rates: pd.DataFrame) -> pd.DataFrame:
    found = experiments.compare(mixes(rates, SIZES), policies(NAMES), 5)
    return found.groupby(["mix", "policy"], sort=False)[["ratio", "decide_s"]].agg(["mean", "max"])


def completion(rates: pd.DataFrame) -> pd.DataFrame:
    """Mean completion time over that of the matching, which is the least."""
    names = ("fcfs", "spt", "affinity", "allox", "hybrid")
    found = experiments.compare(mixes(rates, SIZES), policies(names, "mean_jct"), 5, with_bound=False)
    jct_s = found.pivot_table("mean_jct_s", ["mix", "seed"], "policy")
    return jct_s.div(jct_s["allox"], axis=0).groupby("mix").agg(["mean", "max"]).T


def load(rates: pd.DataFrame) -> pd.DataFrame:
    draws = {at: (lambda seed, at=at: mix(rates, *ARRIVING, seed, at)) for at in (0.8, 0.95)}
    compared = policies(("fcfs", "spt", "affinity", "hybrid"), "mean_jct")
    compared["hybrid for p99_jct"] = policy_for("hybrid", "p99_jct")
    found = experiments.compare(draws, compared, 5, with_bound=False)
    return found.groupby(["mix", "policy"], sort=False)[["mean_jct_s", "p99_jct_s", "mean_slowdown"]].mean()


def noise(rates: pd.DataFrame) -> pd.DataFrame:
    """Makespan over that of the same policy with the truth predicted."""
    draws = {(name, sigma): (lambda seed, draw=draw, sigma=sigma: experiments.noisy(draw(seed), sigma, seed))
             for name, draw in mixes(rates, SIZES[1:2]).items() for sigma in (0.0, 0.1, 0.3, 0.5, 1.0)}
    found = experiments.compare(draws, policies(("lpt", "mct", "hybrid")), 5, with_bound=False)
    found["name"], found["sigma"] = found["mix"].str[0], found["mix"].str[1]
    spans = found.pivot_table("makespan_s", ["name", "policy", "seed"], "sigma")
    return spans.div(spans[0.0], axis=0).groupby(["name", "policy"]).mean()


def adversarial(rates: pd.DataFrame) -> pd.DataFrame:
    """Makespan with predictions swapped, over that of the best baseline without any."""
    columns = {}
    for name, draw in mixes(rates, SIZES[1:2]).items():
        draws = {"swapped": lambda seed, draw=draw: experiments.swapped(draw(seed), seed),
                 "none": lambda seed, draw=draw: experiments.without_predictions(draw(seed))}
        found = experiments.compare(draws, policies(("fcfs", *NAMES)), 5, with_bound=False)
        spans = found.pivot_table("makespan_s", "seed", ["mix", "policy"])
        columns[name] = spans.div(spans["none"][["fcfs", "mct"]].min(axis=1), axis=0).mean()
    return pd.DataFrame(columns)


def speed(rates: pd.DataFrame) -> pd.DataFrame:
    """Seconds of a simulation of TIMED jobs, and of its decisions, by baseline; hybrid on a fifth of the jobs."""
    rows = []
    for name in [name for name in POLICIES if name != "allox"]:
        count, devices = TIMED
        problem = mix(rates, count // 5 if name == "hybrid" else count, devices, 0)
        begin = time.perf_counter()
        outcome = simulate(problem, policy_for(name))
        took_s = time.perf_counter() - begin
        decide_us = np.percentile(outcome.decide_s, (50, 99, 100)) * 1e6
        rows.append({"policy": name, "jobs": len(problem.jobs), "simulation_s": took_s,
                     "jobs_per_s": len(problem.jobs) / took_s,
                     **dict(zip(("decide_p50_us", "decide_p99_us", "decide_max_us"), decide_us, strict=True))})
    return pd.DataFrame(rows)


def main(names: Sequence[str] = ()) -> None:
    """Print the tables of all parts, or of the named parts; a name that ends with .json is Gavel's file."""
    path = next((Path(name) for name in names if name.endswith(".json")), GIVEN)
    if not path.exists():
        print("   skipped: it needs simulation_throughputs.json of stanford-futuredata/gavel")
        return
    rates, parts = published(path), [name for name in names if not name.endswith(".json")]
    for part in (makespan, completion, load, noise, adversarial, speed):
        if not parts or part.__name__ in parts:
            print(f"--- {part.__name__}", part(rates).round(4).to_string(), sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
