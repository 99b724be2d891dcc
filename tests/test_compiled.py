"""The compiled simulator gives the schedule of the Python one, bit for bit, for every policy that it knows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Problem
from lib.schedule.simulation import compiled, events
from lib.schedule.simulation.events import Faults
from tests import python, refused
from tests.test_schedule import a_problem
from tests.test_schedule_machine import SEEDS, a_world

FAULTS = st.builds(Faults, st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([1, 2, 9]), st.integers(0, 99))


@st.composite
def problems(draw):
    """Draw worlds without limits of cores: some nearly all tied, far from time 0, wrongly predicted, or without one type."""
    seed, tied, far, wrong = draw(SEEDS), *(draw(st.booleans()) for _ in range(3))
    world, rng = a_world(seed, draw(st.integers(1, 40)), draw(st.booleans())), np.random.default_rng(seed)
    predicted, actual, arrival = world.predicted_s.copy(), world.actual_s.copy(), world.jobs.arrival_s
    if tied:
        predicted, actual = (np.where(np.isinf(times), np.inf, np.ceil(np.minimum(times, 3))) for times in (predicted, actual))
        arrival = np.round(arrival) / 2
    if far:  # only whole seconds are told apart, jobs fail as others arrive
        arrival = arrival + 2.0**53
    predicted *= rng.choice([1.0, draw(st.sampled_from([1.0, 2.0, 2.0**60]))], (len(actual), 1))  # others are lost in rounding
    if wrong:  # predicted where it cannot run
        actual[:, 1:][rng.random(actual[:, 1:].shape) < 0.2] = np.inf
    gone = draw(st.integers(1, len(world.fleet.types)))
    places = rng.permutation(np.flatnonzero(world.fleet.type_of != gone))
    fleet = replace(world.fleet, names=tuple(np.array(world.fleet.names)[places].tolist()), host_cores=np.inf,
                    type_of=world.fleet.type_of[places])
    jobs = replace(world.jobs, arrival_s=arrival, cpu_cores=np.zeros(len(actual)))
    return Problem(jobs, fleet, predicted, actual)


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


@pytest.mark.parametrize("name", compiled.NAMES)
@pytest.mark.slow
def test_larger_problems_agree_too(name):
    """Jobs that arrive under load, on more devices than one word of a set holds."""
    problem = a_problem(count=2000)
    jobs = replace(problem.jobs, arrival_s=np.cumsum(np.random.default_rng(0).exponential(0.05, 2000)))
    fleet = Fleet.from_counts({"cpu": 40, "v100": 30, "p100": 50})
    check_equal(replace(problem, jobs=jobs, fleet=fleet), name, Faults(0.1, seed=3))


def test_what_is_not_compiled_is_refused():
    problem = a_problem()
    limited = replace(problem, fleet=replace(problem.fleet, host_cores=8.0))
    for each, name, words in ((problem, "hybrid", "hybrid', with inf"), (limited, "first-come", "first-come', with 8 cores")):
        with refused(words):
            compiled.simulate(each, name)


@pytest.mark.slow
def test_the_library_does_not_need_numba_to_be_imported():
    code = "import sys, lib.schedule.experiments, lib.schedule.api, lib.__main__; sys.exit('numba' in sys.modules)"
    python("-c", code)
