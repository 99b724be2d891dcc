"""How sure a schedule is: known probabilities, laws, time limits, bad input, and the verb."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lib.schedule import api
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.studies.scheduler_eval import promises
from tests import output_of, refused


def assessed(deadlines, high=1.5, fleet=None, **how):
    """Return the risk of jobs of 10 s that may take ``high`` times as long; by default each has a device of its own."""
    count = len(deadlines)
    fleet = fleet or Fleet.from_counts({"gpu": count})
    times = np.full((count, len(fleet.types)), 10.0)
    jobs = replace(Jobs.plain(count), deadline_s=np.asarray(deadlines, float))
    return api.schedule(Problem(jobs, fleet, times, times), "first-come", high_s=times * high, **how).risk


def test_a_job_is_in_time_as_often_as_its_range_says():
    answer = assessed([10.0, 15.0, 6.0, np.inf], limit_risk=0.05)
    assert answer.in_time[:3] == pytest.approx([0.5, 0.95, 0.02], abs=0.12) and np.isnan(answer.in_time[3])
    assert answer.all_in_time <= answer.in_time[2]
    assert answer.time_limit_s == pytest.approx(np.full(4, 15.0), rel=1e-3), "95 of 100 run within the high end"


def test_what_waits_for_others_is_less_sure_and_certain_times_are_certain():
    queue = assessed([30.0, 30.0, 30.5], fleet=Fleet.from_counts({"gpu": 1}))
    assert queue.in_time[0] > queue.in_time[1] > queue.in_time[2] == pytest.approx(0.55, abs=0.15)
    certain = assessed([30.0, 30.0, 30.5], high=1.0, fleet=Fleet.from_counts({"gpu": 1}))
    assert (certain.in_time == 1).all() and certain.makespan_s == (30.0, 30.0) and (certain.time_limit_s == 10).all()


@pytest.mark.parametrize("limit_risk", [0.01, 0.2, 0.6])
def test_a_smaller_risk_has_a_longer_limit(limit_risk):
    assert (assessed([20.0], limit_risk=limit_risk).time_limit_s > assessed([20.0], limit_risk=0.7).time_limit_s).all()


def test_wrong_risks_and_ranges_are_refused():
    for wrong in (0.0, 1.0, -1.0):
        with refused(f"a risk of {wrong:g} is none to set a limit by"):
            assessed([1.0], limit_risk=wrong)
    with refused("the high end of job '0' on 'gpu' is 5 s: it is at least the predicted 10 s"):
        assessed([1.0], high=0.5)


def test_plans_keep_what_they_promise_with_the_errors_of_held_out_networks():
    said, kept = promises.kept(20).to_numpy(float).T
    for least, most in ((0.05, 0.5), (0.5, 0.85), (0.85, 0.999)):
        group = (said >= least) & (said <= most)
        assert group.sum() >= 50
        assert kept[group].mean() == pytest.approx(said[group].mean(), abs=0.08)


def test_the_verb_tells_probabilities_and_limits(tmp_path):
    for name, text in {"times": "job_id,gpu\na,10\nb,10\n", "high": "job_id,gpu\na,15\nb,15\n",
                       "devices": "device,type,count\ng,gpu,1\n", "jobs": "job_id,deadline_s\na,12\nb,\n"}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    files = [word for name in ("times", "high", "devices", "jobs") for word in (f"--{name}", str(tmp_path / f"{name}.csv"))]
    text = output_of("schedule", *files, "--time-limit-risk", "0.1")
    assert "least sure: a " in text and "overrun with 10%: a " in text
    figures = json.loads(output_of("schedule", *files, "--json"))
    assert set(figures["in_time"]) == {"a"} and set(figures["time_limit_s"]) == {"a", "b"}
