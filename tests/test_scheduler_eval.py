"""The evaluation of the scheduler: errors shared by a class, the front of time and energy, scenarios and their step times."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from lib.config import definitions
from lib.schedule import job_mixes
from lib.schedule.problem import Fleet
from lib.studies.scheduler_eval import comparison, scenario


def mix(rates, count, **fleet):
    """Return a mix of jobs; ``rates`` are steps a second of each kind by type of device."""
    return partial(job_mixes.draw, pd.DataFrame(rates), Fleet.from_counts(fleet), count)


@pytest.mark.slow
def test_drift_is_shared_by_kind_and_type():
    drawn = mix({"a": [1.0, 2.0], "b": [3.0, 1.0]}, 50, a=2, b=1)
    problem = drawn(0)
    drifted = comparison.drifted(problem, 0.5, 1)
    factor = (drifted.actual_s / drifted.predicted_s).round(9)
    assert [len(np.unique(factor[problem.jobs.job_class == job_class], axis=0)) for job_class in (0, 1)] == [1, 1]
    table = comparison.stale(drawn, (0.0, 0.5), 1)
    assert table["over_perfect"].iloc[0] == pytest.approx(1.0) and (table["ratio"] >= 1 - 1e-9).all()


@pytest.mark.slow
def test_the_front_holds_what_nothing_beats():
    fleet = Fleet.from_counts({"slow": 3, "fast": 1}, idle_w=[1, 5], busy_w=[5, 200])
    problem = job_mixes.draw(pd.DataFrame({"slow": [1.0, 1.0], "fast": [10.0, 3.0]}), fleet, 60, 0)
    front = comparison.pareto(problem, (0.0, 0.75, 1.0))
    kept = front[front["front"]].sort_values("makespan_s")
    assert (np.diff(kept["energy_j"]) <= 0).all()
    ours = front[front["policy"] == "hybrid"].set_index("weight")
    assert ours["energy_j"][1.0] < 0.95 * ours["energy_j"][0.0]
    assert ours["makespan_s"][0.0] < 1.01 * front["makespan_s"].min()


@pytest.mark.slow
def test_step_times_have_a_source():
    kinds, scenarios = definitions.load_scenarios()
    desk = scenarios["one_gpu"]
    result = scenario.step_times(desk.devices, [kinds["W1"], kinds["mobilenet_v2 infer"]])
    source, spread = result.wide("source", desk.devices), result.spread(list(desk.devices))
    assert (source["cpu"] == "measured").all()
    assert source["t4"].str.startswith(("predicted", "zero-shot")).all()
    assert (spread[:, 0] == 0).all() and (spread[:, 1] > 0.05).all()
    problem = scenario.draw(result, desk, 30, 0)
    assert problem.fleet.memory_mb[1] == 16000 and np.isnan(problem.fleet.memory_mb[0])
    assert (problem.jobs.memory_mb > 1).all()
