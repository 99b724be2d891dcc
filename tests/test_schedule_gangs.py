"""Jobs on several devices at once: known answers, laws under faults and wrong predictions, no starvation, bad input."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.schedule import api, bounds
from lib.schedule.policies import registry
from lib.schedule.policies.gangs import with_gangs
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.simulation.events import Faults, simulate
from tests import output_of, refusal, refused


def gang_problem(devices, times, counts, arrival_s=None):
    """Return jobs of ``times`` (jobs, types) that need so many devices at once."""
    jobs, times = replace(Jobs.plain(len(devices), arrival_s), devices=np.asarray(devices)), np.asarray(times, float)
    return Problem(jobs, Fleet.from_counts(counts), times, times)


def check(outcome):
    """Check that attempts hold their devices alone, all of one type, at once, and as many as the job needs."""
    table, problem = outcome.schedule, outcome.problem
    for _, rows in table.sort_values("start_s").groupby("device_index"):
        assert (rows["start_s"].to_numpy()[1:] >= rows["end_s"].to_numpy()[:-1] - 1e-9).all()
    for (job, _), rows in table.groupby(["job", "attempt"]):
        assert len(rows) == problem.jobs.gang[job]
        assert rows["start_s"].nunique() == rows["end_s"].nunique() == rows["status"].nunique() == 1
        assert len(set(problem.fleet.type_of[rows["device_index"]])) == 1


def test_known_answers():
    problem = gang_problem([2, 1, 1, 1], [[4.0], [3.0], [3.0], [1.0]], {"gpu": 2})
    answer = api.schedule(problem, "first-come")
    check(answer.outcome)
    assert answer.figures["makespan_s"] == 8.0 and answer.figures["lower_bound_s"] == pytest.approx(7.5)
    waiting = gang_problem([1, 2, 1, 1], [[4.0], [4.0], [3.0], [5.0]], {"gpu": 2}, np.array([0, 1, 2, 2.0]))
    starts = api.schedule(waiting, "first-come").schedule.set_index("job_id")["start_s"].groupby(level=0).first()
    assert starts.to_dict() == {"0": 0, "1": 4, "2": 8, "3": 8}, "3 s from 2 s would delay the gang, which 4 s are kept for"
    assert api.schedule(replace(waiting, jobs=replace(waiting.jobs, arrival_s=np.array([0, 1, 1, 2.0]))),
                        "first-come").schedule.query("job_id == '2'")["start_s"].iloc[0] == 1, "it ends as the gang begins"


def test_small_jobs_do_not_starve_a_gang():
    """A stream of small jobs keeps two of four devices busy; the gang of four starts once those before it have ended."""
    count = 60
    arrival_s = np.append(1.5, np.arange(count) * 0.5)
    problem = gang_problem([4, *[1] * count], [[5.0], *[[1.0]] * count], {"gpu": 4}, arrival_s)
    for name in ("first-come", "shortest-first", "hybrid"):
        table = api.schedule(problem, name).schedule
        assert table.query("job_id == '0'")["start_s"].iloc[0] <= 3.0, name


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(["hybrid", "first-come", "affinity"]), st.booleans())
def test_gangs_hold_their_devices_alone_whatever_fails_and_however_wrong_predictions_are(seed, name, fails):
    draw = np.random.default_rng(seed)
    count, counts = int(draw.integers(3, 25)), {"cpu": 2, "v100": int(draw.integers(1, 5)), "p100": 3}
    times = np.exp(draw.normal(1, 1, (count, 3)))
    devices = np.where(draw.random(count) < 0.4, draw.integers(2, 4, count), 1)
    problem = gang_problem(devices, times, counts, np.sort(draw.uniform(0, 10, count)) * draw.integers(0, 2))
    problem = problem.with_predictions(times * np.exp(draw.normal(0, 0.5, times.shape)), 0.5)
    policy = partial(with_gangs, policy=registry.policy(name))
    outcome = simulate(problem, policy, Faults(0.3 if fails else 0.0, seed=seed))
    check(outcome)
    ended = outcome.schedule[outcome.schedule["status"].isin(["done", "failed"])]
    assert sorted(set(ended["job"])) == list(range(count))
    if not fails:
        assert outcome.schedule["end_s"].max() >= bounds.makespan_bound(problem) * (1 - 1e-6)


def test_filling_in_before_a_gang_is_better_than_waiting_for_it():
    """Against first-come without filling in: nothing starts before what came first."""
    ratios = []
    for seed in range(10):
        draw = np.random.default_rng(seed)
        devices = np.where(draw.random(40) < 0.3, draw.choice([2, 4], 40), 1)
        problem = gang_problem(devices, np.exp(draw.normal(2, 0.8, (40, 1))), {"gpu": 8})
        ends, bound = [0.0] * 8, bounds.makespan_bound(problem)
        begin = 0.0
        for gang, seconds in zip(devices, problem.actual_s[:, 0], strict=True):
            ends.sort()
            begin = max(begin, ends[gang - 1])
            ends[:gang] = [begin + seconds] * gang
        ratios.append((max(ends) / bound, api.schedule(problem, "hybrid").figures["makespan_s"] / bound))
    strict, ours = np.mean(ratios, axis=0)
    assert ours < strict and ours < 1.25, (strict, ours)


def test_what_no_fleet_has_and_what_no_policy_does_is_refused(tmp_path):
    with refused("no device can run job '0'.* on 3 devices at once"):
        gang_problem([3], [[1.0]], {"gpu": 2})
    problem = gang_problem([2], [[1.0]], {"gpu": 2})
    with refused("the policy longest-first starts each job on one device; jobs on several go with .*first-come, .*hybrid"):
        api.schedule(problem, "longest-first")
    with refused("the objective price is not pursued where jobs need several devices"):
        api.schedule(problem, "hybrid", "price")
    for name, text in {"times": "job_id,gpu\na,10\nb,10\n", "devices": "device,type,count\ng,gpu,2\n",
                       "jobs": "job_id,devices\na,2\nb,\n", "wrong": "job_id,devices\na,0\nb,\n"}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    files = [word for name in ("times", "devices") for word in (f"--{name}", str(tmp_path / f"{name}.csv"))]
    text = output_of("schedule", *files, "--jobs", str(tmp_path / "jobs.csv"))
    assert "g[0]  a 0 to 10\n" in text and "g[1]  a 0 to 10; b 10 to 20" in text
    assert "devices of 'a' is '0'" in refusal("schedule", *files, "--jobs", str(tmp_path / "wrong.csv"))
    (tmp_path / "real.csv").write_text("job_id,workload_id,steps,devices\na,W1,2,64\n")
    assert "job 'a' needs 64 devices of one type at once; there are" in refusal("run-jobs", str(tmp_path / "real.csv"))
    (tmp_path / "real.csv").write_text("job_id,notebook,devices\na,notebooks/01_machine.ipynb,2\n")
    assert "job 'a' needs 2 devices at once: a notebook runs on one" in refusal("run-jobs", str(tmp_path / "real.csv"))
