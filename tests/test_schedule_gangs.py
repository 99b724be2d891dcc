"""Jobs on several devices at once: known answers, and no starvation."""

from dataclasses import replace

import numpy as np
import pytest

from lib.schedule import answers
from lib.schedule.problem import Fleet, Jobs, Problem


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
    answer = answers.schedule(problem, "fcfs")
    check(answer.outcome)
    assert answer.figures["makespan_s"] == 8.0 and answer.figures["lower_bound_s"] == pytest.approx(7.5)
    waiting = gang_problem([1, 2, 1, 1], [[4.0], [4.0], [3.0], [5.0]], {"gpu": 2}, np.array([0, 1, 2, 2.0]))
    starts = answers.schedule(waiting, "fcfs").schedule.set_index("job_id")["start_s"].groupby(level=0).first()
    assert starts.to_dict() == {"0": 0, "1": 4, "2": 8, "3": 8}, "3 s from 2 s would delay the gang, which 4 s are kept for"
    assert answers.schedule(replace(waiting, jobs=replace(waiting.jobs, arrival_s=np.array([0, 1, 1, 2.0]))),
                        "fcfs").schedule.query("job_id == '2'")["start_s"].iloc[0] == 1, "it ends as the gang begins"


@pytest.mark.parametrize("small, policies", [(1, ("fcfs", "spt", "mct", "lpt", "allox", "hybrid")), (2, ("hybrid",))])
def test_small_jobs_do_not_starve_a_gang(small, policies):
    """A stream of small jobs keeps two of four devices busy; the gang of four starts once those before it have ended."""
    count = 60
    arrival_s = np.append(1.5, np.arange(count) * 0.5)
    problem = gang_problem([4, *[small] * count], [[5.0], *[[1.0]] * count], {"gpu": 4}, arrival_s)
    for name in policies:
        table = answers.schedule(problem, name).schedule
        assert table.query("job_id == '0'")["start_s"].iloc[0] <= 3.0, name
