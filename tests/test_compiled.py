"""The compiled simulator gives the schedule of the Python one, bit for bit, for every policy that it knows."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import paths
from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.simulation import compiled, events
from lib.schedule.simulation.events import Faults
from lib.studies.scheduler_eval import comparison
from tests import refused

FAULTS = st.builds(Faults, st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([1, 2, 9]), st.integers(0, 99))


@st.composite
def problems(draw):
    """Draw problems; ``even`` ones have small whole numbers for times and arrivals, so that nearly everything is tied."""
    types = draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(0, 4), min_size=types, max_size=types).filter(any))
    even, arriving, noisy, alike, memory, wrong, far, mixed = (draw(st.booleans()) for _ in range(8))
    count, rng = draw(st.integers(1, 40)), np.random.default_rng(draw(st.integers(0, 10**6)))
    times = rng.integers(1, 4, (count, types)).astype(float) if even else np.exp(rng.normal(0, 1, (count, types)))
    wrong_by = draw(st.sampled_from([2.0, 2.0**60]))  # beside so long a job short ones are lost in rounding
    predicted = times * rng.choice([1.0, wrong_by], (count, 1 if alike else types)) if noisy else times.copy()
    predicted[rng.random(times.shape) < draw(st.sampled_from([0.0, 0.2]))] = np.inf
    if wrong:  # predicted where it cannot run
        times[rng.random(times.shape) < 0.2] = np.inf
    arrival = rng.integers(0, 12, count) / 2 if even else rng.uniform(0, 2 + count / 4, count)
    arrival = arrival * (arriving or far) + 2.0**53 * far  # far: only whole seconds are told apart, jobs fail as others arrive
    rooms = rng.choice([np.inf, 1, 2], types) if memory else np.full(types, np.inf)
    needs = rng.integers(0, 3, count) * float(memory)
    fleet = Fleet.from_counts(dict(zip(["cpu", "v100", "cpu-slow", "k80"], counts, strict=False)),
                              setup_s=rng.integers(0, 2, types) / 2, memory_mb=np.where(np.isinf(rooms), np.nan, rooms))
    if mixed:
        order = rng.permutation(len(fleet))
        fleet = replace(fleet, names=tuple(np.array(fleet.names)[order].tolist()), type_of=fleet.type_of[order])
    able = np.isfinite(predicted) & np.isfinite(times) & (needs[:, None] <= rooms) & (fleet.counts > 0)
    lost, place = ~able.any(axis=1), int(np.argmax(fleet.counts))
    predicted[lost, place], times[lost, place], needs[lost] = 1.0, 1.0, 0.0
    return Problem(replace(Jobs.plain(count, arrival), memory_mb=needs), fleet, predicted, times)


def check_equal(problem, name, faults=None):
    """Return the compiled simulator's outcome, which is the Python one's to the last bit."""
    slow, fast = events.simulate(problem, registry.policy(name), faults), compiled.simulate(problem, name, faults)
    pd.testing.assert_frame_equal(fast.schedule, slow.schedule, check_exact=True)
    for column in ("start_s", "end_s"):
        assert fast.schedule[column].to_numpy().tobytes() == slow.schedule[column].to_numpy().tobytes()
    assert not len(fast.decide_s)
    return fast


@pytest.mark.slow
@pytest.mark.parametrize("name", compiled.NAMES)
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
    return Problem(Jobs.plain(count, arrival), Fleet.from_counts({"cpu": 40, "v100": 30, "k80": 50}), times, times)


@pytest.mark.parametrize("name", compiled.NAMES)
@pytest.mark.parametrize("load", [None, 0.5, 2.0])
@pytest.mark.slow
def test_larger_problems_agree_too(name, load):
    check_equal(a_large_problem(load=load), name, Faults(0.1, seed=3))


def test_what_is_not_compiled_is_refused():
    problem = a_large_problem(5)
    limited = replace(problem, fleet=replace(problem.fleet, host_cores=8.0))
    for each, name, words in ((problem, "hybrid", "hybrid', with inf"), (limited, "first-come", "first-come', with 8 cores")):
        with refused(words):
            compiled.simulate(each, name)


def test_the_loop_is_compiled_once():
    """Whatever the layout of what is given: a second time would cost seconds."""
    problem = a_large_problem(10)
    strange, arrival, places = np.asfortranarray(problem.actual_s), np.arange(10.0), problem.fleet.type_of.astype(np.int32)
    for column in (strange, arrival, places):
        column.setflags(write=False)
    other = Problem(replace(problem.jobs, arrival_s=arrival), replace(problem.fleet, type_of=places), strange, strange)
    single = Problem(problem.jobs, Fleet.from_counts({"cpu": 1}), problem.actual_s[:, :1], problem.actual_s[:, :1])
    for name in compiled.NAMES:
        for each in (problem, other, single):
            compiled.simulate(each, name, Faults(0.5))
    assert len(compiled.run_events.signatures) == 1


def test_studies_use_it_where_they_can():
    problem = a_large_problem(200)
    decided = ("decide_s", "decide_p50_us", "decide_p99_us", "decide_max_us")
    for name in ("first-come", "longest-first"):
        fast, slow = comparison.run(problem, name), comparison.run(problem, name, compiled=False)
        assert min(slow[figure] for figure in decided) > 0 == slow["refine_s"]
        assert fast == {**slow, **dict.fromkeys((*decided, "refine_s"))}
    limited = replace(problem, fleet=replace(problem.fleet, host_cores=8.0))
    for each, name, options in ((limited, "first-come", {}), (problem, "hybrid", {"steps": 60_000})):
        assert comparison.run(each, name, **options)["decide_s"] > 0
    for uses in (False, True):
        assert comparison.speed(problem, ["fastest"], compiled=uses)["decide_p99_us"].isna().all() == uses


@pytest.mark.slow
def test_the_library_does_not_need_numba_to_be_imported():
    code = "import sys, lib.studies.scheduler_eval.comparison, lib.schedule.api, lib.__main__; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, check=False).returncode == 0
