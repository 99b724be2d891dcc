"""Experiments with policies: paired comparisons, wrong predictions, and how often deadlines are kept."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from lib import csv_files
from lib.measure import archive
from lib.schedule import bounds, risk
from lib.schedule.metrics import metrics
from lib.schedule.policies import missing_device, policy_for
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.run import record as run_record
from lib.schedule.simulate import Outcome, simulate
from lib.schedule.state import Policy

COLUMNS = ["mix", "seed", "policy", "makespan_s", "lower_bound_s", "ratio", "mean_jct_s",
           "p99_jct_s", "mean_slowdown", "energy_j", "energy_source", "decide_s"]
_HELD_OUT = "predictions/networks.csv"  # of a reference machine
_DUE = (0.8, 1.4)  # deadlines over planned ends


def compare(mixes: Mapping[object, Callable[[int], Problem]], policies: Mapping[str, Policy], seeds: int,
            with_bound: bool = True) -> pd.DataFrame:
    """Simulate every policy on the same jobs; return one row (COLUMNS) per mix, seed and policy.

    ``mixes`` draw a problem from a seed. A policy that has no device in a mix (gpu-only without a
    GPU) is left out there. ``with_bound``: also the makespan's lower bound, and its ratio to it.
    """
    rows = []
    for mix, draw in mixes.items():
        for seed in range(seeds):
            problem = draw(seed)
            bound_s = bounds.makespan_bound(problem) if with_bound else None
            rows += [{"mix": mix, "seed": seed, "policy": name,
                      **metrics(simulate(problem, policy), bound_s)}
                     for name, policy in policies.items()
                     if not missing_device(name, problem.fleet)]
    return pd.DataFrame(rows, columns=COLUMNS)


def noisy(problem: Problem, sigma: float, seed: int) -> Problem:
    """Multiply each predicted time by a log-normal error; policies know its spread ``sigma``."""
    errors = np.random.default_rng([seed, 1]).normal(0, 1, problem.actual_s.shape)
    return replace(problem, predicted_s=problem.actual_s * np.exp(sigma * errors), sigma=sigma)


def drifted(problem: Problem, spread: float | np.ndarray, seed: int, sigma: float = 0.0) -> Problem:
    """Multiply the actual times by one log-normal factor per job class and device type.

    ``spread`` is in log time, a number or (classes, types). Policies know ``sigma`` of it; 0: nothing.
    """
    classes = len(spread) if np.ndim(spread) else int(problem.jobs.job_class.max()) + 1
    drawn = np.random.default_rng([seed, 3]).normal(0, 1, (classes, problem.predicted_s.shape[1]))
    factor = np.exp(drawn * spread)[problem.jobs.job_class]
    return replace(problem, actual_s=problem.predicted_s * factor, sigma=sigma)


def swapped(problem: Problem, seed: int) -> Problem:
    """Swap predictions of the first and the last device type for a random half of the jobs."""
    chosen = np.random.default_rng([seed, 2]).random(len(problem.jobs)) < 0.5
    predicted_s = problem.predicted_s.copy()
    predicted_s[chosen, 0] = problem.predicted_s[chosen, -1]
    predicted_s[chosen, -1] = problem.predicted_s[chosen, 0]
    runs = np.isfinite(predicted_s) & np.isfinite(problem.actual_s)
    return replace(problem, predicted_s=np.where(runs, predicted_s, problem.actual_s))


def without_predictions(problem: Problem) -> Problem:
    """Predict the same time for every job on every device that can run it."""
    return replace(problem, predicted_s=np.where(np.isfinite(problem.actual_s), 1.0, np.inf))


def deadlines_of_networks(seeds: int, reference: str = "", count: int = 12) -> tuple[pd.DataFrame, str]:
    """Return for drawn deadlines the stated ``probability`` and whether they were ``kept``, and a note.

    The note is empty, or says which other machine stands in for the reference.

    Inference passes of networks that the CPU's model never saw, on two CPU slots, are planned by
    predictions, and run for the measured times.
    """
    what = "held-out predictions of networks"
    machine, note = archive.stand_in(_HELD_OUT, what, reference)
    table = csv_files.frame(archive.machine_with(_HELD_OUT, what, machine)[1])
    usable = (table["mode"] == "infer") & (table["verdict"] != "unusable") & ~table["tuning"].astype(bool)
    rng, policy, rows = np.random.default_rng(5), policy_for("fcfs"), []
    for seed in range(seeds):
        drawn = table[usable].sample(count, random_state=seed)
        predicted, high, measured = (drawn[[f"{name}_ms"]].to_numpy() for name in ("predicted", "high", "latency"))
        problem = Problem(Jobs.plain(count), Fleet.from_counts({"cpu": 2}), predicted, predicted)
        plan = simulate(problem, policy)
        due = _ends(plan) * rng.uniform(*_DUE, count)
        asked = replace(problem, jobs=replace(problem.jobs, deadline_s=due))
        chances = risk.assess(replace(plan, problem=asked), risk.spread(problem, high)).in_time
        run = simulate(replace(problem, actual_s=measured), policy)
        rows.append(pd.DataFrame({"probability": chances, "kept": _ends(run) <= due}))
    return pd.concat(rows, ignore_index=True), note


def _ends(outcome: Outcome) -> np.ndarray:
    return outcome.done.sort_values("job")["end_s"].to_numpy()


def deadlines_of_runs(seeds: int, records: run_record.Records | None = None) -> pd.DataFrame:
    """Return the same for jobs of real runs (None: the committed ones).

    The errors of the other runs say how far times may be off. Only runs whose workers began
    together are taken (those whose record has ``in_time``).
    """
    rng, rows = np.random.default_rng(7), []
    records = run_record.committed() if records is None else records
    errors = run_record.errors_by_run(records)
    for name, record in records.items():
        if not record.facts.get("in_time"):
            continue
        sigma, common = run_record.pooled([error for other, error in errors.items() if other != name])
        planned, measured = (table[table["status"] == "done"] for table in record.side_by_side().values())
        jobs, devices = pd.Index(planned["job_id"].unique()), pd.Index(planned["device"].unique())
        plan = planned.assign(job=jobs.get_indexer(planned["job_id"]),
                              device_index=devices.get_indexer(planned["device"]))
        planned_s, measured_s = (table.groupby("job_id")["end_s"].max().reindex(jobs).to_numpy()
                                 for table in (planned, measured))
        ones, classes = np.ones((len(jobs), 1)), pd.factorize(jobs.map(record.job_classes))[0]
        problem = Problem(Jobs.plain(len(jobs), job_class=classes),
                          Fleet.from_counts({"cpu": len(devices)}), ones, ones)
        drawn_s = risk.ends_s(problem, plan, sigma * ones, common=common)
        for _ in range(seeds):
            due = planned_s * rng.uniform(*_DUE, len(jobs))
            asked = replace(problem, jobs=replace(problem.jobs, deadline_s=due))
            rows.append(pd.DataFrame({"probability": risk.kept(asked, drawn_s), "kept": measured_s <= due}))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=["probability", "kept"])
