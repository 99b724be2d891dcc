"""Jobs on several devices at once: known answers, laws under faults and wrong predictions, no starvation, bad input."""

from dataclasses import replace

import numpy as np
import pytest

from lib.schedule import api
from lib.schedule.problem import Fleet, Jobs, Problem
from tests import refused


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
