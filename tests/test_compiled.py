"""The compiled simulator gives the schedule of the Python one, bit for bit, for every policy that it knows."""

import subprocess
import sys
from dataclasses import replace
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import paths
from lib.errors import InputError
from lib.schedule.policies import baselines, registry
from lib.schedule.problem import Fleet, Jobs, Problem, feasible
from lib.schedule.simulation import compiled, compiled_loop, events, metrics
from lib.schedule.simulation.events import Faults
from lib.studies.scheduler_eval import comparison
from tests.schedules import contention_of

FAULTS = st.builds(Faults, st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([1, 2, 9]), st.integers(0, 99))


@st.composite
def problems(draw):
    """Draw problems; ``even`` ones have small whole numbers for times and arrivals, so that nearly everything is tied."""
    flag, types = st.booleans(), draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(0, 4), min_size=types, max_size=types).filter(any))
    even, arriving, noisy, alike, memory, wrong, far = (draw(flag) for _ in range(7))
    count, seed = draw(st.integers(1, 40)), draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    times = rng.integers(1, 4, (count, types)).astype(float) if even else np.exp(rng.normal(0, 1, (count, types)))
    wrong_by = draw(st.sampled_from([2.0, 2.0**60]))  # beside so long a job short ones are lost in rounding
    predicted = times * rng.choice([1.0, wrong_by], (count, 1 if alike else types)) if noisy else times.copy()
    predicted[rng.random(times.shape) < draw(st.sampled_from([0.0, 0.2]))] = np.inf
    if wrong:  # predicted where it cannot run
        times[rng.random(times.shape) < 0.2] = np.inf
    arrival = rng.integers(0, 12, count) / 2 if even else rng.uniform(0, 2 + count / 4, count)
    arrival += 2.0**53 if far else 0.0  # only whole seconds are told apart: jobs fail together, and as others arrive
    fleet = Fleet.of(dict(zip(["cpu", "v100", "cpu-slow", "k80"], counts, strict=False)), setup_s=rng.integers(0, 2, types) / 2,
                     memory_mb=rng.choice([np.nan, 1, 2], types) if memory else np.full(types, np.nan))
    if draw(flag):
        order = rng.permutation(len(fleet))
        fleet = replace(fleet, names=tuple(np.array(fleet.names)[order].tolist()), type_of=fleet.type_of[order])
    needs = rng.integers(0, 3, count).astype(float) if memory else np.zeros(count)
    jobs = replace(Jobs.plain(count, arrival if arriving or far else None), memory_mb=needs)
    room = np.where(np.isnan(fleet.memory_mb), np.inf, fleet.memory_mb)
    able = np.isfinite(predicted) & np.isfinite(times) & (needs[:, None] <= room) & (fleet.counts > 0)
    lost, place = ~able.any(axis=1), int(np.argmax(fleet.counts))
    predicted[lost, place], times[lost, place], needs[lost] = 1.0, 1.0, 0.0
    return Problem(jobs, fleet, predicted, times)


def check_equal(problem, name, faults=None):
    slow, fast = events.simulate(problem, registry.policy(name), faults), compiled.simulate(problem, name, faults)
    pd.testing.assert_frame_equal(fast.schedule, slow.schedule, check_exact=True)
    for column in ("start_s", "end_s"):
        assert fast.schedule[column].to_numpy().tobytes() == slow.schedule[column].to_numpy().tobytes()
    assert not len(fast.decide_s)
    return fast


@pytest.mark.slow
@pytest.mark.parametrize("name", compiled.NAMES)
@settings(max_examples=120, deadline=None, derandomize=True)
@given(problem=problems(), faults=FAULTS)
def test_the_schedule_is_that_of_the_simulator(name, problem, faults):
    check_equal(problem, name, faults)


def a_large_problem(count=5000, load=None, seed=0):
    """Return jobs with heavy tails, of which some are tied, on more devices than one word of a set holds."""
    draw = np.random.default_rng(seed)
    times = np.exp(draw.normal(2, 1, (count, 1)) + draw.normal(0, 1, (count, 3))).round(1) + 0.1
    times[draw.random(times.shape) < 0.1] = np.inf
    times[:, 0] = np.where(np.isfinite(times[:, 0]), times[:, 0], 9.0)
    arrival = None if load is None else np.cumsum(draw.exponential(3.0 / 120 / load, count))
    return Problem(Jobs.plain(count, arrival), Fleet.of({"cpu": 40, "v100": 30, "k80": 50}), times, times)


@pytest.mark.parametrize("name", compiled.NAMES)
@pytest.mark.parametrize("load", [None, 0.5, 2.0])
def test_larger_problems_agree_too(name, load):
    check_equal(a_large_problem(load=load), name, Faults(0.1, seed=3))


def test_the_log_grows_with_the_attempts():
    problem = a_large_problem(50)
    for name in compiled.NAMES:
        assert len(check_equal(problem, name, Faults(0.95, attempts=200)).schedule) > 4 * (50 + len(problem.fleet))


@pytest.mark.parametrize("name", compiled.NAMES)
def test_jobs_go_only_where_they_can_run(name):
    """Not to a type of which there is no device, nor where they are faster by what is predicted but have no actual time."""
    times = np.array([[1.0, 2.0], [3.0, 2.0], [1.0, 3.0]])
    none = Problem(Jobs.plain(3), Fleet.of({"v100": 0, "k80": 1}), times, times)
    assert check_equal(none, name).done["job"].tolist() == ([2, 0, 1] if name == "longest-first" else [0, 1, 2])
    lacking = times.copy()
    lacking[1, 1] = np.inf
    lost = Problem(Jobs.plain(3), Fleet.of({"v100": 1, "k80": 1}), times, lacking)
    done = check_equal(lost, name).done
    assert len(done) == 3 and done.set_index("job")["device"][1] == "v100"


def test_what_is_not_compiled_is_refused():
    problem = a_large_problem(5)
    with pytest.raises(InputError, match="'hybrid' is not compiled; these are: first-come, fastest"):
        compiled.simulate(problem, "hybrid")
    limited = replace(problem, fleet=replace(problem.fleet, host_cores=8.0))
    with pytest.raises(InputError, match="no limit of the host's cores, here 8"):
        compiled.simulate(limited, "first-come")
    assert set(compiled.NAMES) <= set(baselines.BASELINES)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), spread=st.sampled_from([0.1, 1, 20, 60]), types=st.integers(1, 7))
def test_means_are_those_of_the_standard_library(seed, spread, types):
    draw = np.random.default_rng(seed)
    times = np.exp(draw.normal(0, spread, (50, types)))
    times[draw.random(times.shape) < 0.2] = np.inf
    times[:, 0] = 1 / 3
    assert compiled._means(times).tolist() == [fmean(time for time in row if time < np.inf) for row in times.tolist()]


def test_the_loop_is_compiled_once():
    """Whatever the layout of what is given: a second time would cost seconds."""
    problem = a_large_problem(10)
    strange = np.asfortranarray(problem.actual_s)
    arrival, places = np.arange(10.0), problem.fleet.type_of.astype(np.int32)
    for one in (strange, arrival, places):
        one.setflags(write=False)
    other = Problem(replace(problem.jobs, arrival_s=arrival), replace(problem.fleet, type_of=places), strange, strange)
    single = Problem(problem.jobs, Fleet.of({"cpu": 1}), problem.actual_s[:, :1], problem.actual_s[:, :1])
    for name in compiled.NAMES:
        for one in (problem, other, single):
            compiled.simulate(one, name, Faults(0.5))
    assert len(compiled_loop.play.signatures) == 1


def test_studies_use_it_where_they_can():
    problem = a_large_problem(200)
    for name in ("first-come", "longest-first"):
        fast, slow = comparison.run(problem, name), comparison.run(problem, name, compiled=False)
        timed = ("decide_s", "refine_s", "decide_p50_us", "decide_p99_us", "decide_max_us")
        assert [fast.pop(figure) for figure in timed] == [None] * len(timed)
        assert slow.pop("refine_s") == 0 and all(slow.pop(figure) > 0 for figure in timed if figure != "refine_s")
        assert fast == slow
    limited = replace(problem, fleet=replace(problem.fleet, host_cores=8.0))
    beside = contention_of(np.full((3, 3), 1.5))
    assert comparison.run(limited, "first-come")["decide_s"] > 0
    assert comparison.run(problem, "first-come", contention=beside)["decide_s"] > 0
    assert comparison.run(problem, "hybrid", steps=60_000)["decide_s"] > 0
    assert (comparison.speed(problem, ["fastest"])["decide_p99_us"] > 0).all()
    assert comparison.speed(problem, ["fastest"], compiled=True)["decide_p99_us"].isna().all()


def test_figures_are_what_they_are_called():
    outcome = compiled.simulate(a_large_problem(200, 0.5), "first-come")
    result, table = metrics.metrics(outcome), metrics.job_table(outcome)
    for share in (50, 95, 99):
        assert result[f"p{share}_jct_s"] == np.percentile(table["jct_s"].to_numpy(), share)
    assert table["job_id"].tolist() == [outcome.problem.jobs.ids[job] for job in table["job"]]
    assert feasible(outcome.problem)[table["job"], outcome.problem.fleet.type_of[table["device_index"]]].all()


def test_the_library_does_not_need_numba_to_be_imported():
    code = "import sys, lib.studies.scheduler_eval.comparison, lib.schedule.api, lib.__main__; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, check=False).returncode == 0
