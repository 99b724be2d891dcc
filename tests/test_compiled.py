"""The compiled simulator gives the schedule of the Python one, bit for bit, for every policy that it knows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.simulation import compiled, events
from lib.schedule.simulation.events import Faults
from lib.studies.scheduler_eval import comparison
from tests import python, refused
from tests.test_schedule import a_problem

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


def test_a_job_that_failed_comes_anew_and_takes_the_faster_of_two_free_devices():
    fleet = Fleet.from_counts({"cpu": 1, "v100": 1})
    times = np.array([[9.0, 1.0], [200.0, 100.0]])  # the second finds the faster device taken, and free when it has failed
    done = check_equal(Problem(Jobs.plain(2), fleet, times, times), "first-come", Faults(1.0, 2)).schedule
    assert done.loc[done["job"] == 1, "device"].tolist() == ["cpu", "v100"]


@pytest.mark.parametrize("name", compiled.NAMES)
@pytest.mark.slow
def test_larger_problems_agree_too(name):
    """Jobs that arrive under load, on more devices than one word of a set holds."""
    problem = a_problem(count=2000)
    jobs = replace(problem.jobs, arrival_s=np.cumsum(np.random.default_rng(0).exponential(0.05, 2000)))
    fleet = Fleet.from_counts({"cpu": 40, "v100": 30, "p100": 50})
    check_equal(replace(problem, jobs=jobs, fleet=fleet), name, Faults(0.1, seed=3))


def test_studies_use_it_where_they_can_and_what_is_not_compiled_is_refused():
    problem = a_problem()
    decided = ("decide_s", "decide_p50_us", "decide_p99_us", "decide_max_us")
    fast, slow = comparison.run(problem, "first-come"), comparison.run(problem, "first-come", compiled=False)
    assert min(slow[figure] for figure in decided) > 0 == slow["refine_s"]
    assert fast == {**slow, **dict.fromkeys((*decided, "refine_s"))}
    limited = replace(problem, fleet=replace(problem.fleet, host_cores=8.0))
    for each, name, words in ((problem, "hybrid", "hybrid', with inf"), (limited, "first-come", "first-come', with 8 cores")):
        assert comparison.run(each, name)["decide_s"] > 0
        with refused(words):
            compiled.simulate(each, name)


@pytest.mark.slow
def test_the_library_does_not_need_numba_to_be_imported():
    code = "import sys, lib.studies.scheduler_eval.comparison, lib.schedule.api, lib.__main__; sys.exit('numba' in sys.modules)"
    python("-c", code)
