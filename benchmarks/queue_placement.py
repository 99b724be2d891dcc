"""A mixed queue on two CPU slots, one slowed by a set factor: beside its plan, first come first served, and a fresh plan."""

import statistics
import tempfile
from pathlib import Path

from tests import placed

JOBS, MEAN_S, SEEDS = 40, 0.4, range(5)
TOY = {"JOBS": 6, "MEAN_S": 0.05, "SEEDS": range(1)}


def main() -> None:
    """Print the makespans of 40 sleeping jobs for five seeds, and of as many with a third of them added while it runs."""
    against_plan, against_first, added = [], [], []
    for seed in SEEDS:
        specs = placed.jobs_of(JOBS, MEAN_S, seed)
        with tempfile.TemporaryDirectory() as home:
            hybrid = placed.run(Path(home) / "hybrid", specs, "hybrid")
            first = placed.run(Path(home) / "first", specs, "first-come")
            late = placed.run(Path(home) / "late", specs[:-JOBS // 3], "hybrid", specs[-JOBS // 3:])
        against_plan.append(hybrid.ratio)
        against_first.append(hybrid.actual_s / first.actual_s)
        added.append(late.ratio)
        print(f"   seed {seed}: hybrid {hybrid.actual_s:.2f} s, planned {hybrid.planned_s:.2f} s; first come first served "
              f"{first.actual_s:.2f} s; a third added meanwhile {late.actual_s:.2f} s, a fresh plan {late.planned_s:.2f} s")
    for what, ratios in (("to its plan", against_plan), ("to first come first served", against_first),
                         ("to a fresh plan, jobs added", added)):
        print(f"   {what}: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
