"""Jobs on several devices at once, and plans that state how sure they are: whether they keep what they promise."""

from dataclasses import replace

import numpy as np
import pandas as pd

from lib import csv_files, paths
from lib.schedule import api, bounds
from lib.schedule.problem import Fleet, Jobs, Offers, Problem
from lib.studies.scheduler_eval.comparison import trials

FLEETS = ((40, 8), (100, 32))  # jobs, devices of one type
_CASES = ("hybrid, count chosen", "hybrid, one device each", "first-come, fastest count")
_PREDICTED = paths.REFERENCE / "amd-epyc-2c-ea2da3d4" / "predictions" / "networks.csv"
_JOBS, _BINS = 12, (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)


def moldable(count: int, devices: int, seed: int) -> Problem:
    """Return jobs that offer 1, 2, 4 and 8 devices, with efficiencies that fall by 5 to 50 % with each doubling."""
    draw, sizes = np.random.default_rng([seed, 11]), np.array([size for size in (1, 2, 4, 8) if size <= devices])
    alone_s = np.exp(draw.normal(4, 1, (count, 1, 1)))
    seconds = alone_s * (sizes[:, None] * draw.uniform(0.5, 0.95, (count, 1, 1)) ** np.log2(sizes)[:, None]) ** -1.0
    jobs = replace(Jobs.plain(count), devices=np.ones(count, int))
    return Problem(jobs, Fleet.from_counts({"gpu": devices}), seconds[:, 0], seconds[:, 0],
                   offers=Offers.of(np.tile(sizes, (count, 1)), seconds))


def gangs(seeds: int) -> pd.DataFrame:
    """Return ``devices, seed, policy``, makespan over the bound of moldable jobs, and mean completion over first-come's.

    The number of devices of each job is chosen, or fixed: one, or that on which it is fastest.
    """
    def rows(problem, _seed):
        bound_s, fastest = bounds.makespan_bound(problem), problem.offers.seconds.min(axis=2).argmin(axis=1)
        fixed = {"chosen": problem, "one device each": problem.with_offers(0 * fastest),
                 "fastest count": problem.with_offers(fastest)}
        fixed = {name: asked if name == "chosen" else replace(asked, offers=None) for name, asked in fixed.items()}
        figures = {case: api.schedule(fixed[case.partition(", ")[2].removeprefix("count ")], case.partition(",")[0]).figures
                   for case in _CASES}
        first_s = figures[_CASES[-1]]["mean_jct_s"]
        return [{"policy": case, "ratio": value["makespan_s"] / bound_s, "over_first": value["mean_jct_s"] / first_s}
                for case, value in figures.items()]

    return trials({devices: (lambda seed, count=count, devices=devices: moldable(count, devices, seed))
                   for count, devices in FLEETS}, "devices", seeds, rows)


def _ends_s(problem: Problem) -> np.ndarray:
    return api.schedule(problem, "first-come").outcome.done.sort_values("job")["end_s"].to_numpy()


def kept(seeds: int) -> pd.DataFrame:
    """Return with which probability each deadline was said to be kept (``said``), and whether it was (``kept``).

    Jobs are passes of networks on a CPU whose model never saw them: planned by the predictions and their ranges, run with the
    measured times, twelve on two slots. Deadlines lie about the planned ends.
    """
    table = csv_files.frame(_PREDICTED)
    table = table[(table["mode"] == "infer") & (table["verdict"] != "unusable") & ~table["tuning"]]
    draw, said, in_time = np.random.default_rng(5), [], []
    for seed in range(seeds):
        some = table.sample(_JOBS, random_state=seed)
        predicted, high, real = (some[[f"{name}_ms"]].to_numpy() for name in ("predicted", "high", "latency"))
        plain = Problem(Jobs.plain(_JOBS), Fleet.from_counts({"cpu": 2}), predicted, predicted)
        problem = replace(plain, jobs=replace(plain.jobs, deadline_s=_ends_s(plain) * draw.uniform(0.9, 1.3, _JOBS)))
        said += api.schedule(problem, "first-come", high_s=high).risk.in_time.tolist()
        in_time += (_ends_s(replace(problem, actual_s=real)) <= problem.jobs.deadline_s).tolist()
    return pd.DataFrame({"said": said, "kept": in_time})


def kept_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return by the probability that was said: number of deadlines, mean probability, and the share that was kept, in %."""
    grouped = table.groupby(pd.cut(table["said"], _BINS, include_lowest=True), observed=True)
    rows = grouped.agg(deadlines=("kept", "size"), said=("said", "mean"), kept=("kept", "mean"))
    rows = rows.reset_index(drop=True)
    return rows.assign(said=100 * rows["said"], kept=100 * rows["kept"]).rename(columns={"said": "said %", "kept": "kept %"})
