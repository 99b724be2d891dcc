"""Jobs on several devices at once, and plans that state how sure they are: whether they keep what they promise."""

from dataclasses import replace

import numpy as np
import pandas as pd

from lib import csv_files, paths
from lib.schedule import api, bounds, risk
from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs, Offers, Problem
from lib.schedule.runtime import run_record
from lib.schedule.simulation import metrics
from lib.schedule.simulation.events import simulate
from lib.studies.scheduler_eval.comparison import Mix, drifted, trials

FLEETS = ((40, 8), (80, 32))  # jobs, devices of one type
_FIRST = "first-come, fastest count"
_CASES = {"hybrid, count chosen": ("hybrid", "makespan", "chosen"),  # policy, objective, number of devices
          "hybrid for mean_jct, count chosen": ("hybrid", "mean_jct", "chosen"),
          "hybrid, one device each": ("hybrid", "makespan", "one"), _FIRST: ("first-come", "makespan", "fastest")}
_RESCALED = "Pollux-like, rescaled at no cost"
_PREDICTED = paths.REFERENCE / "amd-epyc-2c-ea2da3d4" / "predictions" / "networks.csv"
_JOBS, _BINS = 12, (0.0, 0.25, 0.5, 0.75, 0.85, 0.95, 1.0)
_DUE = (0.8, 1.4)  # deadlines over the planned ends


def moldable(count: int, devices: int, seed: int) -> Problem:
    """Return jobs that offer 1, 2, 4 and 8 devices, with efficiencies that fall by 5 to 50 % with each doubling."""
    draw, sizes = np.random.default_rng([seed, 11]), np.array([size for size in (1, 2, 4, 8) if size <= devices])
    alone_s = np.exp(draw.normal(4, 1, (count, 1, 1)))
    seconds = alone_s * (sizes[:, None] * draw.uniform(0.5, 0.95, (count, 1, 1)) ** np.log2(sizes)[:, None]) ** -1.0
    jobs = replace(Jobs.plain(count), devices=np.ones(count, int))
    return Problem(jobs, Fleet.from_counts({"gpu": devices}), seconds[:, 0], seconds[:, 0],
                   offers=Offers.of(np.tile(sizes, (count, 1)), seconds))


def rescaled_ends_s(problem: Problem) -> np.ndarray:
    """Return the end of each job (jobs) where the devices of running jobs change whenever one ends, at no cost.

    As Pollux does (Qiao and others, OSDI 2021), but ideally: in the order of their numbers jobs get one device each, then each
    further offer goes to the job whose speed, relative to one device, grows most by each device more. Of one device type.
    """
    sizes, speeds = problem.offers.counts[0], 1 / problem.offers.seconds[:, :, 0]  # the jobs' offers are alike in number
    left, ends, now_s = np.ones(len(speeds)), np.full(len(speeds), np.nan), 0.0
    while (active := np.flatnonzero(left > 0)[:len(problem.fleet)]).size:
        offer, free = np.zeros(len(active), int), len(problem.fleet) - len(active)
        while True:
            further = np.minimum(offer + 1, len(sizes) - 1)
            more = sizes[further] - sizes[offer]
            grown = (speeds[active, further] - speeds[active, offer]) / speeds[active, 0]
            gain = np.where((more > 0) & (more <= free), grown / np.maximum(more, 1), 0.0)
            if gain[first := gain.argmax()] <= 0:
                break
            offer[first], free = offer[first] + 1, free - more[first]
        speed = speeds[active, offer]
        step_s = (left[active] / speed).min()
        now_s += step_s
        left[active] = np.where(left[active] / speed <= step_s * (1 + 1e-12), 0.0, left[active] - step_s * speed)
        ends[active[left[active] == 0]] = now_s
    return ends


def gangs(seeds: int) -> pd.DataFrame:
    """Return ``devices, seed, policy``, makespan over the bound of moldable jobs, and mean completion over first-come's.

    The number of devices of each job is chosen, or fixed: one, or that on which it is fastest; or it changes (_RESCALED).
    """
    def rows(problem, _seed):
        bound_s, fastest = bounds.makespan_bound(problem), problem.offers.seconds.min(axis=2).argmin(axis=1)
        problems = {"chosen": problem, **{number: replace(problem.with_offers(offer), offers=None)
                                          for number, offer in (("one", 0 * fastest), ("fastest", fastest))}}
        figures = {case: api.schedule(problems[number], policy, objective).figures
                   for case, (policy, objective, number) in _CASES.items()}
        ends_s, first_s = rescaled_ends_s(problem), figures[_FIRST]["mean_jct_s"]
        figures[_RESCALED] = {"makespan_s": ends_s.max(), "mean_jct_s": ends_s.mean()}
        return [{"policy": case, "ratio": value["makespan_s"] / bound_s, "over_first": value["mean_jct_s"] / first_s}
                for case, value in figures.items()]

    return trials({devices: (lambda seed, count=count, devices=devices: moldable(count, devices, seed))
                   for count, devices in FLEETS}, "devices", seeds, rows)


def _ends_s(problem: Problem, policy: str = "first-come") -> np.ndarray:
    return api.schedule(problem, policy).outcome.done.sort_values("job")["end_s"].to_numpy()


def kept(seeds: int) -> pd.DataFrame:
    """Return with which probability each deadline was said to be kept (``said``), and whether it was (``kept``).

    Jobs are passes of networks on a CPU whose model never saw them: planned by the predictions and their ranges, run with the
    measured times, twelve on two slots. Deadlines lie about the planned ends.
    """
    table = csv_files.frame(_PREDICTED).query("mode == 'infer' and verdict != 'unusable' and not tuning")
    draw, said, in_time = np.random.default_rng(5), [], []
    for seed in range(seeds):
        some = table.sample(_JOBS, random_state=seed)
        predicted, high, real = (some[[f"{name}_ms"]].to_numpy() for name in ("predicted", "high", "latency"))
        plain = Problem(Jobs.plain(_JOBS), Fleet.from_counts({"cpu": 2}), predicted, predicted)
        problem = replace(plain, jobs=replace(plain.jobs, deadline_s=_ends_s(plain) * draw.uniform(*_DUE, _JOBS)))
        said += api.schedule(problem, "first-come", high_s=high).risk.in_time.tolist()
        in_time += (_ends_s(replace(problem, actual_s=real)) <= problem.jobs.deadline_s).tolist()
    return pd.DataFrame({"said": said, "kept": in_time})


def kept_in_runs(seeds: int) -> pd.DataFrame:
    """Return ``said`` and ``kept`` of jobs of the committed real runs, each judged by how far the other runs' times were off.

    Of the runs that told how likely deadlines are kept: these begin with all workers. Deadlines lie about the ends that were
    simulated beforehand; ``kept`` is by the end that was measured.
    """
    draw, said, in_time = np.random.default_rng(7), [], []
    records, errors = run_record.committed(), run_record.errors_by_run()
    for name, record in records.items():
        if not record.facts.get("in_time"):
            continue
        others = [error for other, error in errors.items() if other != name]
        real = record.side_by_side()
        planned, measured = (table.query("status == 'done'") for table in real.values())
        jobs, devices = (pd.Index(planned[column].unique()) for column in ("job_id", "device"))
        plan = planned.assign(job=jobs.get_indexer(planned["job_id"]), device_index=devices.get_indexer(planned["device"]))
        ends_s, real_s = (table.groupby("job_id")["end_s"].max().reindex(jobs).to_numpy() for table in (planned, measured))
        classes = pd.factorize(jobs.map(record.job_classes))[0]
        ones, (sigma, common) = np.ones((len(jobs), 1)), run_record.pooled(others)
        plain = Problem(Jobs.plain(len(jobs), job_class=classes), Fleet.from_counts({"cpu": len(devices)}), ones, ones)
        drawn_s = risk.ends_s(plain, plan, sigma * ones, common=common)
        for _ in range(seeds):
            due_s = ends_s * draw.uniform(*_DUE, len(jobs))
            said += risk.kept(replace(plain, jobs=replace(plain.jobs, deadline_s=due_s)), drawn_s).tolist()
            in_time += (real_s <= due_s).tolist()
    return pd.DataFrame({"said": said, "kept": in_time})


def careful(draw: Mix, spread: np.ndarray, seeds: int) -> pd.DataFrame:
    """Return by ``seed`` and ``objective`` what a plan by expected cost costs over one that takes predictions for the truth.

    Both are carried out by ``hybrid`` with times drawn from the ranges (``spread``: classes, types, log time). ``careful`` and
    ``plain``: the makespan in s, or the jobs that miss their deadline; ``taken``: the times that the careful plan rests on.
    """
    def rows(problem, seed):
        usual_s = _ends_s(problem, "hybrid") * np.random.default_rng([seed, 13]).uniform(*_DUE, len(problem.jobs))
        asked = replace(problem, jobs=replace(problem.jobs, deadline_s=usual_s))
        true = drifted(asked, spread, seed)
        for objective, figure in (("makespan", "makespan_s"), ("deadline", "late")):
            policy = registry.policy_for("hybrid", objective)
            planned, taken = risk.place(asked, policy, objective, spread[problem.jobs.job_class])
            plain = metrics.metrics(simulate(true, policy))[figure]
            careful = plain if taken == risk.PREDICTED else \
                metrics.metrics(simulate(true.with_predictions(planned.problem.predicted_s), policy))[figure]
            yield {"objective": objective, "taken": taken, "careful": careful, "plain": plain}

    return trials({"careful": draw}, "mix", seeds, rows)


def careful_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return by objective: careful over plain, of their sums and at least and most of a seed, and the times taken for plans."""
    lines = []
    for objective, part in table.groupby("objective", sort=False):
        ratio = part["careful"] / part["plain"].replace(0, np.nan)
        taken = part["taken"].value_counts()
        lines.append({"objective": objective, "seeds": len(part),
                      "careful": part["careful"].sum(), "plain": part["plain"].sum(),
                      "ratio": part["careful"].sum() / part["plain"].sum(), "least": ratio.min(), "most": ratio.max(),
                      "planned with": ", ".join(f"{name} ({count})" for name, count in taken.items())})
    return pd.DataFrame(lines)


def kept_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return by the probability that was said: number of deadlines, mean probability, and the share that was kept, in %."""
    grouped = (100 * table).groupby(pd.cut(table["said"], _BINS, include_lowest=True), observed=True)
    rows = grouped.agg(**{"deadlines": ("kept", "size"), "said %": ("said", "mean"), "kept %": ("kept", "mean")})
    return rows.reset_index(drop=True)
