"""Jobs on several devices at once: known answers, laws under faults and wrong predictions, no starvation, bad input."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.schedule import api, bounds, problem_files
from lib.schedule.policies import registry
from lib.schedule.policies.gangs import with_gangs
from lib.schedule.problem import Fleet, Jobs, Offers, Problem
from lib.schedule.simulation.events import Faults, simulate
from lib.studies.scheduler_eval import comparison, findings, promises
from tests import output_of, refusal, refused
from tests.schedules import files


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


def test_what_no_fleet_has_and_what_no_policy_does_is_refused(tmp_path):
    with refused("no device can run job '0'.* on 3 devices at once"):
        gang_problem([3], [[1.0]], {"gpu": 2})
    problem = gang_problem([2], [[1.0]], {"gpu": 2})
    with refused("the policy longest-first starts each job on one device; jobs on several go with .*first-come, .*hybrid"):
        api.schedule(problem, "longest-first")
    with refused("the objective price is not pursued where jobs need several devices"):
        api.schedule(problem, "hybrid", "price")
    written = files(tmp_path, times="job_id,gpu\na,10\nb,10\n", devices="device,type,count\ng,gpu,2\n",
                    jobs="job_id,devices\na,2\nb,\n", wrong="job_id,devices\na,0\nb,\n",
                    large="job_id,workload_id,steps,devices\na,W1,2,64\n",
                    notebook="job_id,notebook,devices\na,notebooks/01_machine.ipynb,2\n")
    line = "schedule", "--times", written["times"], "--devices", written["devices"], "--jobs"
    text = output_of(*line, written["jobs"])
    assert "g[0]  a 0 to 10\n" in text and "g[1]  a 0 to 10; b 10 to 20" in text
    assert "devices of 'a' is '0'" in refusal(*line, written["wrong"])
    assert "job 'a' needs 64 devices of one type at once; there are" in refusal("run-jobs", written["large"])
    assert "job 'a' is to run on several devices: a notebook runs on one" in refusal("run-jobs", written["notebook"])


def test_the_number_of_devices_is_chosen_where_a_job_offers_several(tmp_path):
    """Alone a job takes all; beside others of its kind each takes one, as two devices do less work each."""
    written = files(tmp_path, devices="device,type,count\ng,gpu,4\n", jobs="job_id,devices\na,2\n",
                    alone="job_id,devices,gpu\na,1,12\na,2,7\na,4,4\na,3,9\n",
                    four="job_id,devices,gpu\n" + "".join(f"{job},1,12\n{job},2,7\n{job},4,4\n" for job in "abcd"),
                    twice="job_id,devices,gpu\na,2,7\na,2,6\n")

    def read(name, **more):
        return problem_files.read(written[name], written["devices"], **more)

    alone, four = (api.schedule(read(name)) for name in ("alone", "four"))
    assert alone.outcome.problem.jobs.gang.tolist() == [4] and alone.figures["makespan_s"] == 4.0
    assert four.outcome.problem.jobs.gang.tolist() == [1] * 4 and four.figures["makespan_s"] == 12.0
    assert four.figures["lower_bound_s"] == pytest.approx(12) and alone.figures["lower_bound_s"] == pytest.approx(4)
    check(four.outcome)
    assert np.isinf(read("alone").offers.seconds[0, 2, 0]), "three devices take longer than two"
    with refused("'a' is there twice"):
        read("twice")
    with refused("both have devices at once of jobs"):
        read("alone", jobs=written["jobs"])
    with refused("--actual cannot go with it"):
        read("alone", actual=written["alone"])
    with refused("--high cannot go with it"):
        problem_files.read_high(written["alone"], read("alone"), written["alone"])
    with refused("the policy longest-first starts each job on one device"):
        api.schedule(read("alone"), "longest-first")


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_no_schedule_of_moldable_jobs_is_shorter_than_their_bound(seed):
    draw = np.random.default_rng(seed)
    count, sizes = int(draw.integers(2, 12)), np.array([1, 2, 4])
    alone = np.exp(draw.normal(2, 1, (count, 1, 2)))
    seconds = alone * sizes[None, :, None] ** -draw.uniform(0.3, 1, (count, 1, 1))
    offers = Offers.of(np.tile(sizes, (count, 1)), seconds)
    problem = Problem(replace(Jobs.plain(count), devices=np.ones(count, int)), Fleet.from_counts({"a": 4, "b": 3}),
                      seconds[:, 0], seconds[:, 0], offers=offers)
    answer = api.schedule(problem)
    check(answer.outcome)
    ones = bounds.makespan_bound(replace(problem, offers=None))
    assert bounds.makespan_bound(problem) <= min(ones, answer.figures["makespan_s"]) * (1 + 1e-6)


def test_devices_that_change_as_jobs_end_have_known_answers():
    """Jobs of 4 s that two devices halve: two run side by side, and a third has both from then on."""
    for count, ends_s in ((1, [2.0]), (2, [4.0, 4.0]), (3, [4.0, 4.0, 6.0])):
        offers = Offers.of(np.tile([1, 2], (count, 1)), np.tile([[4.0], [2.0]], (count, 1, 1)))
        problem = Problem(replace(Jobs.plain(count), devices=np.ones(count, int)), Fleet.from_counts({"gpu": 2}),
                          offers.seconds[:, 0], offers.seconds[:, 0], offers=offers)
        assert promises.rescaled_ends_s(problem) == pytest.approx(ends_s)


def test_a_policy_is_named_alone_only_where_paired_mixes_show_that_it_is_better():
    table = pd.DataFrame([{"mix": "m", "seed": seed, "policy": policy, "ratio": base * ratio}
                          for seed, base in enumerate((1.0, 3.0, 9.0, 2.0)) for policy, ratio in
                          (("a", 1.0), ("b", 1.0 + 0.02 * (-1)**seed), ("c", 1.1 + 0.01 * seed))])
    assert findings._no_worse(table, "ratio", "a") == ["a", "b"], "c is worse on each mix, b on every other one"
    assert findings._no_worse(table[table["seed"] == 0], "ratio", "a") == ["a"], "one pair shows nothing"


def test_a_policy_without_a_device_is_not_compared():
    def draw(kind):
        return lambda seed: Problem(Jobs.plain(3), Fleet.from_counts({kind: 2}), np.ones((3, 1)), np.ones((3, 1)))

    table = comparison.against_bound({kind: draw(kind) for kind in ("cpu", "gpu")}, ("cpu-only", "gpu-only", "fastest"), 1)
    compared = table.groupby("mix")["policy"].agg(list)
    assert compared.to_dict() == {"cpu": ["cpu-only", "fastest"], "gpu": ["gpu-only", "fastest"]}


def test_users_get_shares_by_weight_however_many_jobs_they_have():
    """Of two users one has nine times as many jobs: with fair shares the other ends as early as with its share alone."""
    ratios = []
    for seed in range(5):
        draw = np.random.default_rng(seed)
        user = np.repeat([0, 1], [90, 10])
        times = np.exp(draw.normal(1, 0.5, (100, 1))) * [[8.0, 1.0]]
        jobs = replace(Jobs.plain(100), user=user, weight=np.ones(100))
        problem = Problem(jobs, Fleet.from_counts({"cpu": 4, "gpu": 2}), times, times)
        plain, fair = (api.schedule(problem, objective=objective).figures for objective in ("makespan", "fair"))
        ratios.append((plain["worst_user"], fair["worst_user"], fair["makespan_s"] / plain["makespan_s"]))
    plain, fair, price = np.mean(ratios, axis=0)
    assert fair < plain / 2 and price < 1.6, (plain, fair, price)


def test_of_two_users_with_equal_jobs_the_one_of_the_larger_weight_ends_first():
    user, times = np.repeat([0, 1], 10), np.ones((20, 1))
    jobs = replace(Jobs.plain(20), user=user, weight=np.where(user, 3.0, 1.0))
    problem = Problem(jobs, Fleet.from_counts({"gpu": 2}), times, times)
    done = api.schedule(problem, objective="fair").outcome.done
    first, last = done.groupby(user[done["job"]])["end_s"].max()[[1, 0]]
    assert first < last
    with refused("the weight of the user of job '0' is 0: it is above 0"):
        replace(problem, jobs=replace(jobs, weight=np.zeros(20)))
