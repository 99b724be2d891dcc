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
from lib.schedule.problem import PER_TYPE, Fleet, Jobs, Problem, feasible
from lib.schedule.simulation import metrics
from lib.schedule.simulation.events import Faults, simulate
from lib.schedule.state import Finished, Predict, Restart, State, Wait
from tests import FEW
from tests.schedules import WORK_CONSERVING, check_schedule, contention_of

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
    """An engine in virtual time, to which anything may happen; it checks what a policy wants, and that nothing is lost."""

    case = ""

    @initialize(seed=SEEDS, known=st.booleans(), first=st.integers(1, 8))
    def begin(self, seed, known, first):
        self.policy, self.problem, self.known = a_policy(self.case), a_world(seed), known
        self.fleet, self.able = self.problem.fleet, feasible(self.problem)
        self.problem.jobs.arrival_s[:] = LATER_S
        self.state = State.at_start(self.problem.jobs, self.fleet)
        self.predict = Predict(self.problem.feasible_s, self.problem.sigma)
        self.coming = list(range(len(self.problem.jobs)))
        self.end_s, self.away, self.wake_s = {}, set(), np.inf
        self.failures, self.ended, self.begun = {}, {}, {}
        self.last_s = [0.0] * len(self.fleet)
        self.submit(first)

    def decide(self):
        actions = self.policy(self.state, self.predict)
        self.state.clear_news()
        self.wake_s = np.inf
        for action in actions:
            if isinstance(action, Wait):
                assert action.until_s > self.state.now_s and action.reason
                self.wake_s = min(self.wake_s, action.until_s)
                continue
            if isinstance(action, Restart):
                source = next(device for device, ran in self.state.running.items() if ran.job == action.job)
                assert source != action.device
                self.stop(source)
                self.state.waiting[action.job] = None
            self.start(*action)
        if self.case in WORK_CONSERVING:
            self.nothing_is_idle()
        if self.state.waiting and not self.state.running and not self.away:
            assert self.wake_s < np.inf, "all devices are free, jobs wait, and nothing will ever happen"

    def start(self, job, device):
        state, place = self.state, int(self.fleet.type_of[device])
        assert job in state.waiting and device in state.free[place] and device not in self.away
        assert self.able[job, place] and state.cores(job, place) <= state.free_cores + 1e-9
        assert state.now_s >= self.last_s[device]
        self.begun[job] = self.begun.get(job, 0) + 1
        state.start(job, device, self.begun[job])
        self.end_s[device] = state.now_s + self.problem.actual_s[job, place] + self.fleet.setup_s[place]

    def stop(self, device):
        del self.end_s[device]
        self.last_s[device] = self.state.now_s
        return self.state.stop(device)

    def complete(self, device):
        ran, place = self.stop(device), int(self.fleet.type_of[device])
        self.state.finished.append(Finished(ran.job, place, max(1e-3, self.state.now_s - ran.start_s)))
        self.state.done += 1
        self.end(ran.job, "done")

    def end(self, job, how):
        assert job not in self.ended
        self.ended[job] = how

    def fail(self, device):
        job = self.stop(device).job
        self.failures[job] = self.failures.get(job, 0) + 1
        if self.failures[job] == ATTEMPTS:
            self.end(job, "failed")
        else:
            self.state.waiting[job] = None
            self.state.arrived.append(job)

    def recover(self, device):
        self.away.remove(device)
        self.state.enable(device)
        self.decide()

    def advance(self, until_s):
        while (next_s := min([*self.end_s.values(), self.wake_s])) <= until_s and next_s < np.inf:
            self.state.now_s = next_s
            for device in [device for device, end_s in self.end_s.items() if end_s == next_s]:
                self.complete(device)
            self.decide()
        self.state.now_s = until_s if until_s < np.inf else self.state.now_s

    def nothing_is_idle(self):
        state = self.state
        for place, free in enumerate(state.free):
            could = [job for job in state.waiting
                     if self.able[job, place] and state.cores(job, place) <= state.free_cores + 1e-9]
            assert not (free and could), f"{could} could run on {self.fleet.types[place]}"

    @invariant()
    def each_job_and_device_is_somewhere(self):
        state = self.state
        free = [device for held in state.free for device in held]
        assert sorted([*free, *state.running, *self.away]) == list(range(len(self.fleet)))
        ran = [one.job for one in state.running.values()]
        assert sorted([*state.waiting, *ran, *self.ended, *self.coming]) == list(range(len(self.problem.jobs)))
        taken = sum(state.cores(one.job, int(self.fleet.type_of[device])) for device, one in state.running.items())
        assert taken <= self.fleet.host_cores + 1e-9
        assert self.fleet.host_cores == np.inf or state.free_cores == pytest.approx(self.fleet.host_cores - taken)

    @precondition(lambda self: self.coming)
    @rule(count=st.integers(1, 4))
    def submit(self, count):
        for job in self.coming[:count]:
            self.problem.jobs.arrival_s[job] = self.state.now_s
            self.state.waiting[job] = None
            self.state.arrived.append(job)
        del self.coming[:count]
        self.state.expected = len(self.coming) if self.known else 0
        self.decide()

    @rule(passing=st.sampled_from([0.1, 1.0, 5.0]))
    def time_passes(self, passing):
        self.advance(self.state.now_s + passing)

    def one_of(self, devices, number):
        return sorted(devices)[number % len(devices)]

    @precondition(lambda self: self.state.running)
    @rule(number=NUMBERS, what=st.sampled_from([complete, fail]))
    def completes_early_or_fails(self, number, what):
        what(self, self.one_of(self.state.running, number))
        self.decide()

    @precondition(lambda self: self.state.running)
    @rule(number=NUMBERS, factor=st.sampled_from([1.5, 20.0]))
    def slows_down(self, number, factor):
        device, now = self.one_of(self.state.running, number), self.state.now_s
        self.end_s[device] = now + factor * (self.end_s[device] - now)

    @precondition(lambda self: len(self.away) < len(self.fleet))
    @rule(number=NUMBERS)
    def dies(self, number):
        device = self.one_of(set(range(len(self.fleet))) - self.away, number)
        if device in self.state.running:
            self.fail(device)
        self.state.disable(device)
        self.away.add(device)
        self.decide()

    @precondition(lambda self: self.away)
    @rule(number=NUMBERS)
    def recovers(self, number):
        self.recover(self.one_of(self.away, number))

    def teardown(self):
        """Let every job that came end."""
        for device in sorted(self.away):
            self.recover(device)
        for _ in range(10):
            if self.state.waiting or self.state.running:
                self.advance(np.inf)
        assert sorted([*self.ended, *self.coming]) == list(range(len(self.problem.jobs)))
        for job, how in self.ended.items():
            assert (how == "failed") == (self.failures.get(job, 0) == ATTEMPTS)
        self.each_job_and_device_is_somewhere()


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_whatever_happens(case):
    run_state_machine_as_test(type("World", (World,), {"case": case}), settings=settings(stateful_step_count=25))


# ------------------------------------------------------------------------------------------ laws


@pytest.mark.parametrize("case", CASES)
@FEW
@given(seed=SEEDS, arrivals=st.booleans(), chance=st.sampled_from([0.0, 0.3]), slow=st.booleans())
def test_schedules_are_sound_no_better_than_the_bounds_and_the_same_again(case, seed, arrivals, chance, slow):
    """The same also where the policy is asked about another problem in the midst of it: it keeps nothing to itself."""
    policy, problem, other = a_policy(case), a_world(seed, 9, arrivals), a_world(seed + 1, 9)
    beside = contention_of(np.full((len(problem.fleet.types),) * 2, 1.2)) if slow else None
    outcome, elsewhere = simulate(problem, policy, Faults(chance, seed=seed), beside), simulate(other, policy).schedule
    calls = []

    def disturbed(state, predict):
        calls.append(state.now_s)
        if len(calls) in (1, 5):
            pd.testing.assert_frame_equal(simulate(other, policy).schedule, elsewhere)
        return policy(state, predict)

    again = simulate(problem, disturbed, Faults(chance, seed=seed), beside)
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
