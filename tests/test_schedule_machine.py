"""Every policy in a world that does as it likes: jobs come, fail, drag on; devices die and recover; nothing is lost."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from lib.schedule import bounds
from lib.schedule.policies import baselines, registry
from lib.schedule.policies.hybrid.policy import OBJECTIVES
from lib.schedule.problem import PER_TYPE, Fleet, Jobs, Problem
from lib.schedule.simulation import metrics
from lib.schedule.simulation.events import Faults, Simulation, simulate
from lib.schedule.state import CoreBudget
from tests import FEW
from tests.schedules import WORK_CONSERVING, check_schedule

CASES = [*baselines.BASELINES, *(f"hybrid for {objective}" for objective in OBJECTIVES)]
ATTEMPTS, LATER_S = 3, 1e6
pytestmark = pytest.mark.slow
SEEDS, NUMBERS = st.integers(0, 10**6), st.integers(0, 8)


def a_policy(case):
    name, _, objective = case.partition(" for ")
    return registry.policy(name, **({"objective": objective, "steps": 6_000} if objective else {}))


def a_world(seed, count=14, arrivals=True):
    """Return a problem with little memory, few cores of the host, set-up, watts, prices, deadlines; at times whole times."""
    draw = np.random.default_rng(seed)
    types = int(draw.integers(2, 4))
    numbers = {"memory_mb": [np.nan, 60, 90][:types], "cpu_cores": [1, np.nan, np.nan][:types],
               "idle_w": draw.uniform(5, 50, types), "busy_w": draw.uniform(60, 300, types),
               "price_per_hour": draw.uniform(1, 9, types), "setup_s": draw.choice([0.0, 0.5], types)}
    fleet = Fleet.from_counts(dict(zip(("cpu", "gpu", "old"), draw.integers(1, 4, types).tolist(), strict=False)), **numbers)
    fleet = replace(fleet, host_cores=float(draw.choice([np.inf, 2.0, 4.0])))
    times = np.exp(draw.normal(1, 1, (count, 1)) + draw.normal(0, 1, (count, types)))
    times = np.ceil(times) if draw.random() < 0.5 else times  # whole times end at once
    times[:, 1:][draw.random((count, types - 1)) < 0.2] = np.inf
    jobs = Jobs(tuple(map(str, range(count))), np.sort(draw.uniform(0, 20, count)) if arrivals else np.zeros(count),
                draw.choice([np.inf, 10.0, 30.0], count), draw.choice([0.0, 50.0, 80.0], count),
                draw.integers(0, 4, count).astype(float), draw.integers(-1, 3, count))
    sigma = float(draw.choice([0.0, 0.4]))
    actual = times * np.exp(draw.normal(0, sigma, times.shape)) if sigma else times * draw.choice([1.0, 1.0, 3.0], (count, 1))
    return Problem(jobs, fleet, times, actual, sigma)


class World(RuleBasedStateMachine):
    """A simulation to which anything may happen; it checks what a policy wants, and this that nothing is lost."""

    case = ""

    @initialize(seed=SEEDS, known=st.booleans(), first=st.integers(1, 8))
    def begin(self, seed, known, first):
        self.problem, self.known = a_world(seed), known
        self.problem.jobs.arrival_s[:] = LATER_S
        self.simulation = Simulation(self.problem, a_policy(self.case), Faults(attempts=ATTEMPTS), None)
        self.simulation._events.clear()
        self.state, self.fleet = self.simulation.state, self.problem.fleet
        self.coming, self.away = list(range(len(self.problem.jobs))), set()
        self.submit(first)

    def decide(self):
        self.simulation.decide()
        self.something_will_happen()

    def something_will_happen(self):
        state, budget = self.state, CoreBudget(self.state)
        if state.waiting and not state.running and not self.away:
            assert self.simulation._events, "all devices are free, jobs wait, and nothing will ever happen"
        for place, free in enumerate(state.free):
            could = [job for job in state.waiting if self.simulation.predict(job, place) < np.inf and budget.has(job, place)]
            assert not (self.case in WORK_CONSERVING and free and could), f"{could} could run on {self.fleet.types[place]}"

    def end(self, device, fails):
        self.simulation._version[device] += 1
        self.simulation._fails[device] = fails
        self.simulation._end(device)

    def recover(self, device):
        self.away.remove(device)
        self.state.enable(device)
        self.decide()

    def advance(self, until_s):
        while self.simulation._events and self.simulation._events[0][0] <= until_s:
            self.simulation.step()
            self.something_will_happen()
        if until_s < np.inf:
            self.state.now_s = until_s

    @property
    def ended(self):
        return {job: status for job, _, _, _, _, status in self.simulation.rows if status in ("done", "failed")}

    @invariant()
    def each_job_and_device_is_somewhere(self):
        state = self.state
        free = [device for devices in state.free for device in devices]
        assert sorted([*free, *state.running, *self.away]) == list(range(len(self.fleet)))
        ended = [row[0] for row in self.simulation.rows if row[-1] in ("done", "failed")]
        ran = [running.job for running in state.running.values()]
        assert sorted([*state.waiting, *ran, *ended, *self.coming]) == list(range(len(self.problem.jobs)))
        taken = sum(state.cores(running.job, state.type_of[device]) for device, running in state.running.items())
        assert taken <= self.fleet.host_cores + 1e-9
        assert self.fleet.host_cores == np.inf or state.free_cores == pytest.approx(self.fleet.host_cores - taken)

    @precondition(lambda self: self.coming)
    @rule(count=st.integers(1, 4))
    def submit(self, count):
        for job in self.coming[:count]:
            self.problem.jobs.arrival_s[job] = self.state.now_s
            self.state.arrive(job)
        del self.coming[:count]
        self.state.expected = len(self.coming) if self.known else 0
        self.decide()

    @rule(passing=st.sampled_from([0.1, 1.0, 5.0]))
    def time_passes(self, passing):
        self.advance(self.state.now_s + passing)

    def chosen(self, devices, number):
        return sorted(devices)[number % len(devices)]

    @precondition(lambda self: self.state.running)
    @rule(number=NUMBERS, fails=st.booleans())
    def completes_early_or_fails(self, number, fails):
        self.end(self.chosen(self.state.running, number), fails)
        self.decide()

    @precondition(lambda self: self.state.running)
    @rule(number=NUMBERS, seconds=st.sampled_from([3.0, 200.0]))
    def slows_down(self, number, seconds):
        device = self.chosen(self.state.running, number)
        self.simulation._version[device] += 1
        self.simulation._work(device, seconds)

    @precondition(lambda self: len(self.away) < len(self.fleet))
    @rule(number=NUMBERS)
    def dies(self, number):
        device = self.chosen(set(range(len(self.fleet))) - self.away, number)
        if device in self.state.running:
            self.end(device, True)
        self.state.disable(device)
        self.away.add(device)
        self.decide()

    @precondition(lambda self: self.away)
    @rule(number=NUMBERS)
    def recovers(self, number):
        self.recover(self.chosen(self.away, number))

    def teardown(self):
        """Let every job that came end."""
        for device in sorted(self.away):
            self.recover(device)
        self.advance(np.inf)
        rows = self.simulation.rows
        assert sorted([*self.ended, *self.coming]) == list(range(len(self.problem.jobs)))
        for job, status in self.ended.items():
            failures = sum(row[0] == job and row[-1] in ("retried", "failed") for row in rows)
            assert (status == "failed") == (failures == ATTEMPTS)
        self.each_job_and_device_is_somewhere()


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_whatever_happens(case):
    run_state_machine_as_test(type("World", (World,), {"case": case}), settings=settings(stateful_step_count=25))


# ------------------------------------------------------------------------------------------ laws


@pytest.mark.parametrize("case", CASES)
@FEW
@given(seed=SEEDS, arrivals=st.booleans(), chance=st.sampled_from([0.0, 0.3]))
def test_schedules_are_sound_no_better_than_the_bounds_and_the_same_again(case, seed, arrivals, chance):
    """The same also where the policy is asked about another problem in the midst of it: it keeps nothing to itself."""
    policy, problem, other = a_policy(case), a_world(seed, 9, arrivals), a_world(seed + 1, 9)
    outcome, elsewhere = simulate(problem, policy, Faults(chance, seed=seed)), simulate(other, policy).schedule
    calls = []

    def disturbed(state, predict):
        calls.append(state.now_s)
        if len(calls) in (1, 5):
            pd.testing.assert_frame_equal(simulate(other, policy).schedule, elsewhere)
        return policy(state, predict)

    again = simulate(problem, disturbed, Faults(chance, seed=seed))
    pd.testing.assert_frame_equal(again.schedule, outcome.schedule)
    assert len(calls) >= 5
    check_schedule(outcome, failures=chance > 0)
    if len(outcome.done) == len(problem.jobs):
        assert outcome.schedule["end_s"].max() >= bounds.makespan_bound(problem) * (1 - 1e-9)
        least = bounds.matching(bounds.able_times(problem), problem.fleet.counts)[0]
        assert arrivals or metrics.metrics(outcome)["mean_jct_s"] * len(problem.jobs) >= least * (1 - 1e-9)


@pytest.mark.parametrize("case", CASES)
@FEW
@given(seed=SEEDS, factor=st.sampled_from([0.25, 8.0, 1024.0]))
def test_all_times_scale_alike(case, seed, factor):
    problem = a_world(seed, 9)
    jobs = replace(problem.jobs, arrival_s=problem.jobs.arrival_s * factor, deadline_s=problem.jobs.deadline_s * factor)
    fleet = replace(problem.fleet, setup_s=problem.fleet.setup_s * factor)
    scaled = Problem(jobs, fleet, problem.predicted_s * factor, problem.actual_s * factor, problem.sigma)
    end_s, scaled_s = (simulate(each, a_policy(case)).schedule["end_s"].max() for each in (problem, scaled))
    assert end_s * factor == pytest.approx(scaled_s, rel=1e-9)


@pytest.mark.parametrize("case", ["longest-first", "shortest-first", "affinity", "matching"])
@given(seed=SEEDS)
def test_names_and_places_do_not_matter(case, seed):
    """Jobs and devices in another order, all there at once, no two times alike: the same makespan."""
    draw = np.random.default_rng(seed)
    fleet = a_world(seed).fleet
    types = len(fleet.types)
    times = np.exp(draw.normal(1, 1, (14, 3)))[:, :types]
    order, devices, kinds = draw.permutation(14), draw.permutation(len(fleet)), draw.permutation(types)
    other = Fleet(tuple(fleet.names[device] for device in devices), np.argsort(kinds)[fleet.type_of[devices]],
                  tuple(fleet.types[kind] for kind in kinds), **{name: getattr(fleet, name)[kinds] for name in PER_TYPE},
                  host_cores=fleet.host_cores)
    again = times[order][:, kinds]
    problems = (Problem(Jobs.plain(14), fleet, times, times),
                Problem(replace(Jobs.plain(14), ids=tuple(map(str, order))), other, again, again))
    ends = [simulate(each, a_policy(case)).schedule.set_index("job_id")["end_s"].sort_index().to_numpy() for each in problems]
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)
