"""Every policy in a world that does as it likes: jobs come, fail, are cancelled; devices die and recover; nothing is lost."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.schedule import bounds, metrics
from lib.schedule.baselines import BASELINES
from lib.schedule.hybrid import OBJECTIVES
from lib.schedule.loop import Back, Cancelled, Ended, Loop, Lost
from lib.schedule.policies import by_priority, policy_for
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.simulate import Faults, SimulatedBackend, simulate, table
from lib.schedule.state import Start
from tests import FEW
from tests.schedules import check_schedule

ALONE = ("hybrid for energy", "hybrid for price")  # these place jobs on one device alone
CASES = [*BASELINES, *(f"hybrid for {objective}" for objective in OBJECTIVES)]
pytestmark = pytest.mark.slow
SEEDS = st.integers(0, 10**6)


def a_policy(case):
    name, _, objective = case.partition(" for ")
    return policy_for(name, objective or "makespan")


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


class UnreliableBackend(SimulatedBackend):
    """A simulation in which devices are lost and come back, and jobs are cancelled; at ``quiet_s`` all devices are back."""

    def __init__(self, problem, seed, quiet_s=60.0):
        super().__init__(problem, Faults(0.2, seed=seed))
        self._chance, self._quiet_s, self._on, self._away = np.random.default_rng(seed), quiet_s, {}, set()
        self.cancelled = set()

    def start(self, attempt, job, devices):
        super().start(attempt, job, devices)
        self._on[attempt] = devices

    def events(self, until_s):
        if self.now_s >= self._quiet_s and self._away:
            return [Back(self._away.pop()) for _ in range(len(self._away))]
        happened = super().events(min(until_s, self._quiet_s) if self._away else until_s)
        if happened is None or self.now_s >= self._quiet_s:
            return happened
        device = int(self._chance.integers(len(self.problem.fleet)))
        if device in self._away:
            self._away.remove(device)
            return [*happened, Back(device)]
        if self._chance.random() < 0.3:
            self._away.add(device)
            ran = [attempt for attempt in self._running if device in self._on[attempt]]
            for attempt in ran:
                del self._running[attempt]
            return [*happened, *(Ended(attempt, "lost") for attempt in ran), Lost(device)]
        if self._chance.random() < 0.1:
            job = int(self._chance.integers(len(self.problem.jobs)))
            self.cancelled.add(job)
            return [*happened, Cancelled(job)]
        return happened


@pytest.mark.parametrize("case", CASES)
@FEW
@given(seed=SEEDS, gangs=st.booleans())
def test_nothing_is_lost_whatever_happens(case, seed, gangs):
    problem = a_world(seed)
    if gangs and case not in ALONE:
        most = problem.fleet.counts[np.isfinite(problem.predicted_s).argmax(axis=1)]
        wanted = np.minimum(np.random.default_rng(seed).integers(1, 3, len(problem.jobs)), most)
        fleet = replace(problem.fleet, host_cores=np.inf, memory_mb=np.full(len(problem.fleet.types), np.nan))
        problem = replace(problem, fleet=fleet, jobs=replace(problem.jobs, devices=wanted))
    backend = UnreliableBackend(problem, seed)
    loop = Loop(a_policy(case), backend)
    loop.run()
    rows = pd.DataFrame(loop.rows).drop_duplicates(["job", "attempt"])
    ends = rows[rows["status"].isin(["done", "failed", "cancelled"])].groupby("job")["status"].agg(list)
    assert (ends.map(len) == 1).all(), "a job ends once"
    assert set(ends.index) | backend.cancelled == set(range(len(problem.jobs))), "no job is lost"
    assert not backend._running
    failures = rows[rows["status"].isin(["retried", "failed"])].groupby("job")["status"].agg(list)
    assert all(("failed" in statuses) == (len(statuses) == 3) for statuses in failures), "a job is tried three times"
    attempts = table(problem, loop.rows)
    for _, here in attempts.sort_values("start_s").groupby("device_index"):
        assert (here["start_s"].to_numpy()[1:] >= here["end_s"].to_numpy()[:-1] - 1e-9).all()
    jobs, types = attempts["job"].to_numpy(), problem.fleet.type_of[attempts["device_index"]]
    assert problem.feasible[jobs, types].all()
    start_s, end_s = attempts["start_s"].to_numpy(), attempts["end_s"].to_numpy()
    together = (start_s <= start_s[:, None]) & (end_s > start_s[:, None] + 1e-9)
    assert (together @ problem.cores[jobs, types] <= problem.fleet.host_cores + 1e-9).all()


@pytest.mark.parametrize("case", ["fcfs", "spt", "affinity", "edf"])
@FEW
@given(seed=SEEDS)
def test_no_device_idles_while_a_waiting_job_could_run_there(case, seed):
    problem = a_world(seed)
    problem = replace(problem, fleet=replace(problem.fleet, host_cores=np.inf))

    def checked(state, predict):
        actions = a_policy(case)(state, predict)
        idle = np.setdiff1d(state.free, [action.device for action in actions])
        left = np.setdiff1d(state.waiting, [action.job for action in actions])
        can_run = np.isfinite(predict.table[np.ix_(left, state.type_of[idle])])
        assert not can_run.any()
        return actions

    check_schedule(simulate(problem, checked))


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


TIMES = st.sampled_from([(1.0, 5.0), (2.0, np.inf), (np.inf, 1.0), (5.0, 2.0), (2.0, 2.0)])
PRIORITIZED = st.tuples(TIMES, st.integers(0, 2), st.sampled_from([0.0, 1.0, 3.0]), st.booleans())


@given(case=st.sampled_from(CASES), jobs=st.lists(PRIORITIZED, min_size=4, max_size=12))
def test_no_job_starts_where_a_job_of_higher_priority_waits(case, jobs):
    """On each device type the jobs that start are of the highest priority that waits for it; some need two devices."""
    times, priority, arrival, two = map(np.array, zip(*jobs, strict=True))
    two &= np.isfinite(times[:, 0]) & (case not in ALONE)
    times[two, 1] = np.inf  # there is only one GPU

    def checked(state, predict):
        actions = by_priority(state, predict, a_policy(case), priority)
        starts = [action for action in actions if isinstance(action, Start)]
        left = np.setdiff1d(state.waiting, [start.job for start in starts])
        for start in starts:
            can_run = np.isfinite(predict.table[left, state.type_of[start.device]])
            assert priority[start.job] >= priority[left[can_run]].max(initial=0)
        return actions

    fleet = Fleet.from_counts({"cpu": 2, "gpu": 1}, idle_w=[5, 50], busy_w=[60, 300], price_per_hour=[1, 9])
    problem = Problem(replace(Jobs.plain(len(jobs), arrival), devices=1 + two), fleet, times, times)
    assert simulate(problem, checked).schedule["job"].nunique() == len(jobs)
