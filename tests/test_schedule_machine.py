"""Every policy in a world that does as it likes: jobs come, fail, drag on; devices die and recover; nothing is lost."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from lib.schedule import bounds
from lib.schedule.policies import baselines, registry
from lib.schedule.policies.hybrid.policy import OBJECTIVES
from lib.schedule.problem import Fleet, Jobs, Problem, feasible
from lib.schedule.simulation import metrics
from lib.schedule.simulation.events import Faults, simulate
from lib.schedule.state import Finished, Predict, Restart, Start, State, Wait
from tests.schedules import WORK_CONSERVING, contention_of

CASES = [*baselines.BASELINES, *(f"hybrid for {objective}" for objective in OBJECTIVES)]
ATTEMPTS, LATER_S = 3, 1e6
pytestmark = pytest.mark.slow
CALM = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 10**6)


def a_policy(case):
    name, _, objective = case.partition(" for ")
    return registry.policy(name, **({"objective": objective, "steps": 6_000} if objective else {}))


def a_world(seed, count=14, arrivals=True):
    """Return a problem with little memory, few cores of the host, set-up, watts, prices, deadlines; at times whole times."""
    draw = np.random.default_rng(seed)
    types = int(draw.integers(2, 4))
    numbers = {"memory_mb": [np.nan, 60, 90][:types], "cpu_cores": [1, np.nan, np.nan][:types],
               "idle_w": draw.uniform(5, 50, types),
               "busy_w": draw.uniform(60, 300, types), "price_per_hour": draw.uniform(1, 9, types),
               "setup_s": draw.choice([0.0, 0.5], types)}
    fleet = Fleet.of(dict(zip(("cpu", "gpu", "old"), draw.integers(1, 4, types).tolist(), strict=False)), **numbers)
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


class World:
    """An engine in virtual time that checks whatever a policy asks for, and what a policy must never let happen."""

    def __init__(self, case, seed, known):
        self.case, self.policy, self.problem = case, a_policy(case), a_world(seed)
        self.problem.jobs.arrival_s[:] = LATER_S
        self.state = State.at_start(self.problem.jobs, self.problem.fleet)
        self.predict, self.known = Predict(self.problem.feasible_s, self.problem.sigma), known
        self.coming = list(range(len(self.problem.jobs)))
        self.state.expected = len(self.coming) if known else 0
        self.end_s, self.away, self.wake_s = {}, set(), np.inf
        self.failures, self.ended, self.begun = {}, {}, {}
        self.last_s = [0.0] * len(self.problem.fleet)

    def submit(self, count):
        for job in self.coming[:count]:
            self.problem.jobs.arrival_s[job] = self.state.now_s
            self.state.waiting[job] = None
            self.state.arrived.append(job)
        del self.coming[:count]
        self.state.expected = len(self.coming) if self.known else 0
        self.decide()

    def decide(self):
        actions = self.policy(self.state, self.predict)
        self.state.clear_news()
        self.wake_s = np.inf
        for action in actions:
            if isinstance(action, Wait):
                assert action.until_s > self.state.now_s and action.reason
                self.wake_s = min(self.wake_s, action.until_s)
            elif isinstance(action, Restart):
                source = next(device for device, ran in self.state.running.items() if ran.job == action.job)
                assert source != action.device
                self.stop(source)
                self.state.waiting[action.job] = None
                self.start(Start(*action))
            else:
                self.start(action)
        if self.case in WORK_CONSERVING:
            self.nothing_is_idle()
        if self.state.waiting and not self.state.running and not self.away:
            assert self.wake_s < np.inf, "all devices are free, jobs wait, and nothing will ever happen"

    def start(self, action):
        job, device = action
        state, place = self.state, int(self.problem.fleet.type_of[device])
        assert job in state.waiting and device in state.free[place] and device not in self.away
        assert feasible(self.problem)[job, place]
        assert not self.problem.jobs.memory_mb[job] > self.problem.fleet.memory_mb[place]
        assert state.cores(job, place) <= state.free_cores + 1e-9
        assert state.now_s >= self.last_s[device]
        self.begun[job] = self.begun.get(job, 0) + 1
        state.start(job, device, self.begun[job])
        self.end_s[device] = state.now_s + self.problem.actual_s[job, place] + self.problem.fleet.setup_s[place]

    def stop(self, device):
        del self.end_s[device]
        self.last_s[device] = self.state.now_s
        return self.state.stop(device)

    def complete(self, device):
        ran, place = self.stop(device), int(self.problem.fleet.type_of[device])
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
            return self.end(job, "failed")
        self.state.waiting[job] = None
        return self.state.arrived.append(job)

    def kill(self, device):
        if device in self.state.running:
            self.fail(device)
        self.state.disable(device)
        self.away.add(device)
        self.decide()

    def recover(self, device):
        self.away.remove(device)
        self.state.enable(device)
        self.decide()

    def advance(self, until_s):
        """Let time pass; return whether anything happened."""
        happened = False
        while (next_s := min([*self.end_s.values(), self.wake_s])) <= until_s and next_s < np.inf:
            happened, self.state.now_s = True, next_s
            for device in [device for device, end_s in self.end_s.items() if end_s == next_s]:
                self.complete(device)
            self.decide()
        self.state.now_s = until_s if until_s < np.inf else self.state.now_s
        return happened

    def nothing_is_idle(self):
        state, able = self.state, feasible(self.problem)
        for place, free in enumerate(state.free):
            could = [job for job in state.waiting if able[job, place] and state.cores(job, place) <= state.free_cores + 1e-9]
            assert not (free and could), f"{could} could run on {self.problem.fleet.types[place]}"

    def check(self):
        state, fleet = self.state, self.problem.fleet
        free = [device for held in state.free for device in held]
        assert sorted([*free, *state.running, *self.away]) == list(range(len(fleet)))  # each is one of the three
        ran = [one.job for one in state.running.values()]
        assert sorted([*state.waiting, *ran, *self.ended, *self.coming]) == list(range(len(self.problem.jobs)))
        taken = sum(state.cores(one.job, int(fleet.type_of[device])) for device, one in state.running.items())
        assert taken <= fleet.host_cores + 1e-9
        assert fleet.host_cores == np.inf or state.free_cores == pytest.approx(fleet.host_cores - taken)

    def drain(self):
        for device in sorted(self.away):
            self.recover(device)
        for _ in range(10):
            if not self.state.waiting and not self.state.running:
                break
            self.advance(np.inf)
        assert sorted([*self.ended, *self.coming]) == list(range(len(self.problem.jobs)))
        for job, how in self.ended.items():
            assert (how == "failed") == (self.failures.get(job, 0) == ATTEMPTS)


class Machine(RuleBasedStateMachine):
    """What may happen to a world, in any order."""

    case = ""

    @initialize(seed=SEEDS, known=st.booleans(), first=st.integers(1, 8))
    def begin(self, seed, known, first):
        self.world = World(self.case, seed, known)
        self.world.submit(first)

    def _one(self, among, number):
        return sorted(among)[number % len(among)]

    @precondition(lambda self: self.world.coming)
    @rule(count=st.integers(1, 4))
    def submit(self, count):
        self.world.submit(count)

    @rule(passing=st.sampled_from([0.1, 1.0, 5.0]))
    def time_passes(self, passing):
        self.world.advance(self.world.state.now_s + passing)

    @precondition(lambda self: self.world.state.running)
    @rule(number=st.integers(0, 8))
    def completes_early(self, number):
        self.world.complete(self._one(self.world.state.running, number))
        self.world.decide()

    @precondition(lambda self: self.world.state.running)
    @rule(number=st.integers(0, 8))
    def fails(self, number):
        self.world.fail(self._one(self.world.state.running, number))
        self.world.decide()

    @precondition(lambda self: self.world.state.running)
    @rule(number=st.integers(0, 8), factor=st.sampled_from([1.5, 20.0]))
    def slows_down(self, number, factor):
        device, now = self._one(self.world.state.running, number), self.world.state.now_s
        self.world.end_s[device] = now + factor * (self.world.end_s[device] - now)

    @precondition(lambda self: len(self.world.away) < len(self.world.problem.fleet))
    @rule(number=st.integers(0, 8))
    def dies(self, number):
        self.world.kill(self._one(set(range(len(self.world.problem.fleet))) - self.world.away, number))

    @precondition(lambda self: self.world.away)
    @rule(number=st.integers(0, 8))
    def recovers(self, number):
        self.world.recover(self._one(self.world.away, number))

    @invariant()
    def holds(self):
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.drain()
            self.world.check()


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_whatever_happens(case):
    machine = type("Machine", (Machine,), {"case": case})
    run_state_machine_as_test(machine, settings=settings(CALM, max_examples=30, stateful_step_count=25))


# ------------------------------------------------------------------------------------------ laws


def a_run(case, problem, seed=0, chance=0.0, contention=None):
    return simulate(problem, a_policy(case), Faults(chance, seed=seed), contention)


@pytest.mark.parametrize("case", CASES)
@settings(CALM, max_examples=10)
@given(seed=SEEDS, chance=st.sampled_from([0.0, 0.3]), slow=st.booleans())
def test_the_same_seed_gives_the_same_schedule(case, seed, chance, slow):
    problem = a_world(seed)
    beside = contention_of(np.full((len(problem.fleet.types),) * 2, 1.2)) if slow else None
    one, two = (a_run(case, problem, seed, chance, beside).schedule for _ in range(2))
    pd.testing.assert_frame_equal(one, two)


@pytest.mark.parametrize("case", CASES)
@settings(CALM, max_examples=10)
@given(seed=SEEDS, factor=st.sampled_from([0.25, 8.0, 1024.0]))
def test_all_times_scale_alike(case, seed, factor):
    problem = a_world(seed)
    jobs = replace(problem.jobs, arrival_s=problem.jobs.arrival_s * factor, deadline_s=problem.jobs.deadline_s * factor)
    fleet = replace(problem.fleet, setup_s=problem.fleet.setup_s * factor)
    scaled = Problem(jobs, fleet, problem.predicted_s * factor, problem.actual_s * factor, problem.sigma)
    one, other = a_run(case, problem).schedule, a_run(case, scaled).schedule
    assert one["end_s"].max() * factor == pytest.approx(other["end_s"].max(), rel=1e-9)


@pytest.mark.parametrize("case", ["longest-first", "shortest-first", "affinity", "matching"])
@settings(CALM, max_examples=25)
@given(seed=SEEDS)
def test_names_and_places_do_not_matter(case, seed):
    """Jobs and devices in another order, all there at once, no two times alike: the same makespan."""
    draw = np.random.default_rng(seed)
    fleet, times = a_world(seed).fleet, np.exp(draw.normal(1, 1, (14, 3)))
    types = len(fleet.types)
    order, devices, kinds = draw.permutation(14), draw.permutation(len(fleet)), draw.permutation(types)
    problem = Problem(Jobs.plain(14), fleet, times[:, :types], times[:, :types])
    per_type = {name: getattr(fleet, name)[kinds] for name in ("memory_mb", "cpu_cores", "idle_w", "busy_w", "setup_s",
                                                               "price_per_hour")}
    other = Fleet(tuple(fleet.names[device] for device in devices), np.argsort(kinds)[fleet.type_of[devices]],
                  tuple(fleet.types[kind] for kind in kinds), **per_type, host_cores=fleet.host_cores)
    again = times[order][:, kinds]
    named = Problem(replace(Jobs.plain(14), ids=tuple(map(str, order))), other, again, again)
    one, two = (a_run(case, each).schedule for each in (problem, named))
    assert one["end_s"].max() == pytest.approx(two["end_s"].max(), rel=1e-12)
    ends = [each.set_index("job_id")["end_s"].sort_index().to_numpy() for each in (one, two)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)


@pytest.mark.parametrize("case", CASES)
@settings(CALM, max_examples=10)
@given(seed=SEEDS, arrivals=st.booleans(), chance=st.sampled_from([0.0, 0.3]))
def test_no_schedule_beats_the_bounds(case, seed, arrivals, chance):
    problem = a_world(seed, arrivals=arrivals)
    outcome = a_run(case, problem, seed, chance)
    if (outcome.schedule["status"] == "failed").any():
        return
    assert outcome.schedule["end_s"].max() >= bounds.makespan_bound(problem) * (1 - 1e-9)
    if not arrivals:
        least, _, _ = bounds.matching(bounds.able_times(problem), problem.fleet.counts)
        assert metrics.metrics(outcome)["mean_jct_s"] * len(problem.jobs) >= least * (1 - 1e-9)


@pytest.mark.parametrize("case", CASES)
@settings(CALM, max_examples=5)
@given(seed=SEEDS)
def test_a_policy_keeps_nothing_to_itself(case, seed):
    """One policy, problem about another problem in the midst of a first, answers both as if it had been problem once."""
    policy, problem, other = a_policy(case), a_world(seed), a_world(seed + 1)
    alone, beside = (a_run(case, each).schedule for each in (problem, other))
    calls = []

    def disturbed(state, predict):
        calls.append(len(calls))
        if len(calls) in (1, 5, 12):
            pd.testing.assert_frame_equal(simulate(other, policy).schedule, beside)
        return policy(state, predict)

    pd.testing.assert_frame_equal(simulate(problem, disturbed).schedule, alone)
    assert len(calls) >= 5
