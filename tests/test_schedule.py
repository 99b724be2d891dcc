"""Policies and the simulator: laws that hold for every policy, known answers, bounds, bad input, an independent referee."""

import heapq
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lib.schedule
from lib import paths, store
from lib.errors import InputError
from lib.schedule import api, bounds, gavel, problem_files
from lib.schedule.compilation import compiled
from lib.schedule.policies import registry
from lib.schedule.policies.hybrid import local_search
from lib.schedule.policies.hybrid.policy import HybridMemory
from lib.schedule.problem import PER_TYPE, Fleet, Jobs, Problem, feasible
from lib.schedule.simulation import metrics, trace
from lib.schedule.simulation.events import Faults, PolicyError, simulate
from lib.schedule.state import Restart, Start, Wait
from lib.studies.scheduler_eval import comparison
from tests.schedules import WORK_CONSERVING, contention_of

NAMES = list(registry.POLICIES)
CHANCES = st.sampled_from([0.0, 0.2])
QUICK = {"hybrid": {"steps": 12_000}}


def a_policy(name, **options):
    return registry.policy(name, **QUICK.get(name, {}), **options)


def a_problem(seed=0, count=30, types=3, devices=2, holes=0.1, arrivals=False, sigma=0.0):
    draw = np.random.default_rng(seed)
    times = np.exp(draw.normal(2, 1, (count, 1)) + draw.normal(0, 1, (count, types)))
    times[draw.random(times.shape) < holes] = np.inf
    times[np.arange(count), draw.integers(types, size=count)] = np.exp(draw.normal(2, 1, count))
    names = ["cpu", "v100", "p100", "k80"][:types]
    jobs = Jobs.plain(count, np.sort(draw.uniform(0, 50, count)) if arrivals else None, draw.integers(4, size=count))
    predicted = times * np.exp(draw.normal(0, sigma, times.shape)) if sigma else times
    return Problem(jobs, Fleet.of(dict.fromkeys(names, devices)), predicted, times, sigma)


def check_schedule(outcome, failures=False):
    table, problem = outcome.schedule, outcome.problem
    done = table[table["status"] == "done"]
    ended = table[table["status"].isin(["done", "failed"])]
    assert sorted(ended["job"]) == list(range(len(problem.jobs)))  # every job ends exactly once
    assert failures or len(done) == len(problem.jobs)
    for _, rows in table.sort_values("start_s").groupby("device_index"):
        assert (rows["start_s"].to_numpy()[1:] >= rows["end_s"].to_numpy()[:-1] - 1e-9).all()  # one at a time
    able = feasible(problem)
    assert able[table["job"], problem.fleet.type_of[table["device_index"]]].all()
    assert (table["start_s"].to_numpy() >= problem.jobs.arrival_s[table["job"]] - 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), arrivals=st.booleans(), sigma=st.sampled_from([0.0, 0.5]), chance=CHANCES)
def test_laws(name, seed, arrivals, sigma, chance):
    problem = a_problem(seed, arrivals=arrivals, sigma=sigma)
    outcome = simulate(problem, a_policy(name), Faults(chance, seed=seed))
    check_schedule(outcome, failures=chance > 0)
    again = simulate(problem, a_policy(name), Faults(chance, seed=seed))
    pd.testing.assert_frame_equal(outcome.schedule, again.schedule)  # the same seed, the same schedule
    if not chance:
        assert metrics.metrics(outcome)["makespan_s"] >= bounds.makespan_bound(problem) - 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_scaling_times_scales_the_makespan(name):
    problem = a_problem(3)
    larger = Problem(problem.jobs, problem.fleet, problem.predicted_s * 4, problem.actual_s * 4)
    one, four = (metrics.metrics(simulate(each, a_policy(name)))["makespan_s"] for each in (problem, larger))
    assert four == pytest.approx(4 * one, rel=1e-9)


@pytest.mark.parametrize("name", WORK_CONSERVING)
def test_no_device_is_idle_while_a_job_could_run_there(name):
    outcome = simulate(a_problem(5, count=40, arrivals=True), a_policy(name))
    table, problem = outcome.done, outcome.problem
    able, waited = feasible(problem), 0
    for device, place in enumerate(problem.fleet.type_of):
        mine = table[table["device_index"] == device].sort_values("start_s")
        gaps = list(zip([0.0, *mine["end_s"]], [*mine["start_s"], np.inf], strict=True))
        for row in table[able[table["job"], place]].itertuples():
            waited += row.start_s > problem.jobs.arrival_s[row.job] + 1e-9
            for begin, end in gaps:
                assert min(end, row.start_s) - max(begin, problem.jobs.arrival_s[row.job]) < 1e-9
    assert waited  # or nothing was checked


def test_known_answers():
    fleet = Fleet.of({"fast": 1, "slow": 1})
    times = np.array([[2.0, 4.0], [2.0, 4.0], [2.0, 4.0]])
    problem = Problem(Jobs.plain(3), fleet, times, times)
    result = {name: metrics.metrics(simulate(problem, a_policy(name)))["makespan_s"] for name in NAMES}
    assert result["fastest"] == 6 and result["first-come"] == 4 and result["hybrid"] == 4 and result["longest-first"] == 4
    assert bounds.relaxation(times, fleet.counts).makespan_s == pytest.approx(4.0)
    total, _, _ = bounds.matching(times, fleet.counts)
    assert total == pytest.approx(2 + 4 + 4)
    assert metrics.metrics(simulate(problem, a_policy("matching")))["mean_jct_s"] == pytest.approx(total / 3)


def test_matching_reaches_its_own_optimum():
    problem = a_problem(1, count=60, holes=0.0)
    total, _, _ = bounds.matching(problem.actual_s, problem.fleet.counts)
    for name, options in (("matching", {}), ("hybrid", {"objective": "mean_jct"})):
        assert metrics.metrics(simulate(problem, a_policy(name, **options)))["mean_jct_s"] == pytest.approx(total / 60)


def test_energy_objective_spares_energy():
    fleet = Fleet.of({"cpu": 2, "v100": 2}, idle_w=[10, 10], busy_w=[50, 400])
    draw = np.random.default_rng(0)
    times = np.column_stack([draw.uniform(2, 4, 40), np.ones(40)])
    problem = Problem(Jobs.plain(40), fleet, times, times)
    fast, green = (metrics.metrics(simulate(problem, a_policy("hybrid", objective=name))) for name in ("makespan", "energy"))
    assert green["energy_j"] < fast["energy_j"] and green["makespan_s"] > fast["makespan_s"]
    nothing = Problem(Jobs.plain(2), Fleet.of({"cpu": 1}), np.ones((2, 1)), np.ones((2, 1)))
    with pytest.raises(InputError, match="idle_w"):
        simulate(nothing, a_policy("hybrid", objective="energy"))
    assert metrics.metrics(simulate(nothing, a_policy("hybrid")))["energy_j"] is None


def test_restart_rescues_a_straggler():
    fleet = Fleet.of({"cpu": 1, "gpu": 1})
    predicted = np.array([[1.0, 2.0], [3.0, 1.0]])
    actual = np.array([[100.0, 2.0], [3.0, 1.0]])
    problem = Problem(Jobs.plain(2), fleet, predicted, actual, 0.3)
    assert metrics.metrics(simulate(problem, a_policy("hybrid")))["makespan_s"] < 20
    assert metrics.metrics(simulate(problem, a_policy("earliest-finish")))["makespan_s"] == 100  # who never restarts


@pytest.mark.parametrize("count", [1, 2])
def test_a_look_at_jobs_shorter_than_a_bit_of_the_clock_is_not_past(count):
    """At 1e9 s a job of 1 ns ends at the same instant to the last bit: the next look is a bit later."""
    times = np.full((count, 2), 1e-9)
    problem = Problem(Jobs.plain(count, np.full(count, 1e9)), Fleet.of({"cpu": 2, "gpu": 2}), times, times, 0.3)
    assert simulate(problem, a_policy("hybrid")).schedule["status"].tolist() == ["done"] * count


def test_a_look_at_what_is_nearly_overdue_is_not_past():
    """A straggler at 1e9 s will be overdue in a seventh of a bit of the clock: it is looked at, and moved, a bit later."""
    fleet = Fleet.of({"cpu": 1, "gpu": 1})
    problem = Problem(Jobs.plain(1, np.array([1e9])), fleet, np.full((1, 2), 9e-8), np.ones((1, 2)), 0.3)
    assert simulate(problem, a_policy("hybrid")).schedule["status"].tolist() == ["moved", "done"]


def test_restarts_at_once_share_the_cores_that_are_free():
    """Two stragglers on slots that bring no cores, and cores for one of the two: no event would tell, but both are moved."""
    fleet = Fleet(**{**Fleet.of({"cpu": 2, "gpu": 2}).__dict__, "host_cores": 3.0})
    jobs = Jobs(**{**Jobs.plain(2).__dict__, "cpu_cores": np.array([2.0, 2.0])})
    problem = Problem(jobs, fleet, np.array([[1.0, 2.0]] * 2), np.array([[100.0, 2.0]] * 2), 0.3)
    result = simulate(problem, a_policy("hybrid"))
    check_schedule(result)
    assert result.schedule["status"].tolist().count("moved") == 2 and result.schedule["end_s"].max() < 20
    assert result.done["device"].str.startswith("gpu").all()


def test_a_move_is_no_failure():
    """A job that is moved once and fails always is tried as often as one that is not moved."""
    class Moved:
        pass

    def mover(state, predict):
        if state.waiting:
            return [Start(0, 0), Wait("a moment", state.now_s + 1e-6)]
        if 0 not in state.running or Moved in state.memory:
            return []
        state.recall(Moved, Moved)
        return [Restart(0, 1)]

    problem = Problem(Jobs.plain(1), Fleet.of({"cpu": 2}), np.array([[100.0]]), np.array([[100.0]]))
    table = simulate(problem, mover, Faults(1.0, attempts=3)).schedule
    assert table["status"].tolist() == ["moved", "retried", "retried", "failed"]
    assert table["attempt"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("unit_s", [1e-9, 1e-3, 1e6])
def test_bounds_hold_in_any_unit(unit_s):
    problem = a_problem(3)
    bound = bounds.relaxation(problem.actual_s, problem.fleet.counts).makespan_s
    scaled = bounds.relaxation(problem.actual_s * unit_s, problem.fleet.counts).makespan_s
    assert scaled == pytest.approx(bound * unit_s, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_predictions_said_to_be_exact_and_swapped_are_survived(seed):
    """Planned on, found wrong, bound late from then on: every job still ends once."""
    problem = a_problem(seed, count=120, holes=0.0)
    outcome = simulate(comparison.swapped(problem, seed), a_policy("hybrid"))
    check_schedule(outcome)


def test_host_cores_are_never_exceeded():
    fleet = Fleet.of({"cpu": 2, "gpu": 2}, cpu_cores=[2, 0])
    fleet = Fleet(**{**fleet.__dict__, "host_cores": 4.0})
    jobs = Jobs.plain(20)
    jobs = Jobs(**{**jobs.__dict__, "cpu_cores": np.full(20, 2.0)})
    draw = np.random.default_rng(0)
    times = draw.uniform(1, 5, (20, 2))
    problem = Problem(jobs, fleet, times, times)
    for name in NAMES:
        table = simulate(problem, a_policy(name)).schedule
        for at in table["start_s"]:
            assert ((table["start_s"] <= at) & (table["end_s"] > at + 1e-12)).sum() * 2 <= 4


def test_contention_slows_neighbours():
    fleet = Fleet.of({"cpu": 2})
    problem = Problem(Jobs.plain(2), fleet, np.ones((2, 1)), np.ones((2, 1)))
    outcome = simulate(problem, a_policy("first-come"), contention=contention_of(np.array([[1.5]])))
    assert outcome.schedule["end_s"].tolist() == pytest.approx([1.5, 1.5])
    alone = Problem(Jobs.plain(1), fleet, np.ones((1, 1)), np.ones((1, 1)))
    contended = simulate(alone, a_policy("first-come"), contention=contention_of(np.array([[1.5]])))
    assert contended.schedule["end_s"][0] == 1.0


def test_a_wrong_policy_is_found():
    problem = a_problem()
    for wrong in (lambda state, predict: [Start(0, 0), Start(0, 1)], lambda state, predict: [],
                  lambda state, predict: [Wait("why not", state.now_s - 1)]):
        with pytest.raises(PolicyError):
            simulate(problem, wrong)


def test_simpy_agrees():
    """SimPy, an independent simulator, gives first-come on one type the same completion times."""
    simpy = pytest.importorskip("simpy")
    draw = np.random.default_rng(4)
    arrival, times = np.sort(draw.uniform(0, 40, 80)), draw.uniform(1, 6, (80, 1))
    problem = Problem(Jobs.plain(80, arrival), Fleet.of({"gpu": 4}), times, times)
    ours = simulate(problem, a_policy("first-come")).done.set_index("job")["end_s"].sort_index()
    world = simpy.Environment()
    devices, ends = simpy.Resource(world, 4), {}

    def job(number):
        yield world.timeout(arrival[number])
        with devices.request() as request:
            yield request
            yield world.timeout(times[number, 0])
        ends[number] = world.now

    for number in range(80):
        world.process(job(number))
    world.run()
    assert ours.tolist() == pytest.approx([ends[number] for number in range(80)])


def test_longest_first_is_what_it_says():
    """A few lines of heapq, written independently, bind the same."""
    problem = a_problem(9, holes=0.0)
    free = [[(0.0, device) for device in range(2)] for _ in range(3)]
    makespan = 0.0
    for number in np.argsort(-problem.predicted_s.mean(axis=1), kind="stable"):
        ends = [free[kind][0][0] + problem.predicted_s[number, kind] for kind in range(3)]
        kind = int(np.argmin(ends))
        heapq.heapreplace(free[kind], (ends[kind], free[kind][0][1]))
        makespan = max(makespan, ends[kind])
    assert metrics.metrics(simulate(problem, a_policy("longest-first")))["makespan_s"] == pytest.approx(makespan)


def test_search_beats_list_scheduling_and_repeats():
    problem = a_problem(2, count=60)
    type_of, ready = problem.fleet.type_of, np.zeros(len(problem.fleet))
    first = local_search.list_plan(problem.actual_s, type_of, ready)
    result = local_search.plan(problem.actual_s, type_of, ready, 300_000)
    assert (result == local_search.plan(problem.actual_s, type_of, ready, 300_000)).all()
    makespans = [local_search.loads(problem.actual_s, type_of, ready, one).max() for one in (result, first)]
    assert makespans[0] <= makespans[1]
    assert np.isfinite(problem.actual_s[np.arange(60), type_of[result]]).all()


@pytest.mark.parametrize("case", ["plain", "holes", "alike", "one type", "one long job", "idle type"])
def test_sifting_finds_the_optimum_of_the_whole_programme(case):
    draw = np.random.default_rng(0)
    times = np.exp(draw.normal(0, 1, (6000, 1)) + draw.normal(0, 1, (6000, 3)))
    counts, busy_s = np.array([5, 9, 2]), np.array([0.0, 40.0, 7.0])
    if case == "holes":
        times[draw.random(times.shape) < 0.3] = np.inf
        times[~np.isfinite(times).any(axis=1), 0] = 1.0
    elif case == "alike":
        times = np.outer(times[:, 0], [1.0, 2.0, 4.0])
    elif case == "one type":
        times = times[:, :1]
        counts, busy_s = counts[:1], busy_s[:1]
    elif case == "one long job":
        times[7] = 1e6
    elif case == "idle type":
        times[:, 2] = 1e5
    result = bounds.relaxation(times, counts, busy_s)
    whole = bounds._solved(times, counts, busy_s, float(times.min(axis=1).max()))
    assert result.makespan_s == pytest.approx(whole.makespan_s, rel=1e-8)
    assert result.share.sum(axis=1) == pytest.approx(np.ones(6000))
    used_s = np.where(result.share > 0, times, 0.0) * result.share
    assert (used_s.sum(axis=0) + busy_s <= counts * result.makespan_s * (1 + 1e-8)).all()


def test_search_survives_a_start_that_is_far_from_good():
    times = np.array([[24.0, 0.4], [36.0, 0.3]])
    result = local_search.plan(times, np.array([0, 1, 1]), np.zeros(3), 12_000, start=np.array([0, 0]))
    assert sorted(result) == [1, 2]


def test_set_up_is_no_error_of_the_predictions():
    """Exact predictions stay believed where devices take long to set up."""
    problem = a_problem(4, count=80, holes=0.0)
    slow = replace(problem, fleet=replace(problem.fleet, setup_s=np.array([5.0, 20.0, 1.0])))
    state = []

    def watched(seen, predict):
        state[:] = [seen]
        return a_policy("hybrid")(seen, predict)

    check_schedule(simulate(slow, watched))
    memory = state[0].memory[HybridMemory]
    assert memory.estimator.sigma == 0 and not memory.rough


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_that_was_far_off_is_improved(seed):
    """Loads fall by orders of magnitude as jobs leave the slow devices where they were: sums of their powers do not vanish."""
    draw = np.random.default_rng(seed)
    count, devices = int(draw.integers(4, 12)), int(draw.integers(4, 20))
    times = np.column_stack([draw.uniform(0.5, 1, count), draw.uniform(0.001, 0.01, count)])
    type_of, ready = np.repeat([0, 1], devices), np.zeros(2 * devices)
    result = local_search.plan(times, type_of, ready, 60_000, seed, start=draw.integers(devices, size=count))
    anew = local_search.plan(times, type_of, ready, 60_000, seed)
    spans = [local_search.loads(times, type_of, ready, one).max() for one in (result, anew)]
    assert spans[0] <= 1.2 * spans[1]


def test_what_a_job_may_not_use_is_not_told():
    """A type whose host has too few cores, or whose real time is missing, is no choice: every policy ends every job."""
    fleet = Fleet(**{**Fleet.of({"cpu": 1, "gpu": 1}, cpu_cores=[1, np.nan]).__dict__, "host_cores": 2.0})
    jobs = Jobs(**{**Jobs.plain(4).__dict__, "cpu_cores": np.array([0.0, 3.0, 1.0, 0.0])})
    predicted = np.array([[9.0, 1.0]] * 4)
    problem = Problem(jobs, fleet, predicted, np.where(np.arange(4)[:, None] == [[9, 3]], np.inf, predicted))
    assert problem.feasible_s.tolist() == [[9, 1], [9, np.inf], [9, 1], [9, np.inf]]
    for name in NAMES:
        check_schedule(simulate(problem, a_policy(name)))
    wide = Fleet(**{**fleet.__dict__, "cpu_cores": np.array([4.0, np.nan])})
    with pytest.raises(InputError, match="no device can run job '1'"):
        Problem(jobs, wide, predicted, predicted)


@pytest.mark.parametrize("text, word", [
    ("job_id,cpu,gpu\na,1,-2\n", "gpu"), ("job_id,cpu,gpu\na,1,inf\n", "finite"), ("job_id,cpu,gpu\na,,\n", "no device"),
    ("job_id,cpu,gpu\na,1,1\na,1,1\n", "twice"), ("job_id,cpu\na,1\n", "missing"), ("job_id,cpu,gpu\na,x,1\n", "x"),
    ("job_id,cpu,gpu\na,0,1\n", "finite number, 1e-09 or more"), ("", "readable"), ("job_id,cpu,gpu\n", "no row"),
    ("job_id,cpu,gpu\n100,1,2,3\n101,4,5,6\n", "line 2 has 4 fields, the header has 3"),
    ("job_id,cpu,gpu\na,1\n", "line 2 has 2 fields"), ("job_id,cpu,gpu,cpu\na,1,2,3\n", "column cpu is there twice"),
    ("job_id,cpu,gpu, gpu\na,1,2,3\n", "column gpu is there twice"), ("job_id,cpu,gpu\n,1,1\n", "no job_id"),
    ("job_id,cpu,gpu\nNA,1,1\n", "empty cell"), ("job_id,cpu,gpu\na,nan,1\n", "'nan'"),
    ("job_id,cpu,gpu\na,1e999,1\n", "1e999")])
def test_bad_times_are_refused(tmp_path, text, word):
    times, devices = tmp_path / "times.csv", tmp_path / "devices.csv"
    times.write_text(text)
    devices.write_text("device,type,count\nhost,cpu,1\ncard,gpu,2\n")
    with pytest.raises(InputError, match=word):
        problem_files.read(times, devices)


def test_columns_that_are_not_aligned_are_refused():
    problem = a_problem(count=5)
    for wrong in ({"arrival_s": np.zeros(6)}, {"job_class": np.zeros(4, int)}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} holds [46] values, there are 5 jobs"):
            replace(problem, jobs=replace(problem.jobs, **wrong))
    for places in (np.full(6, 3), np.zeros(5, int), np.full(6, -1)):
        with pytest.raises(InputError, match="type_of gives each of the 6 devices the number of its type, 0 to 2"):
            replace(problem, fleet=replace(problem.fleet, type_of=places))


@pytest.mark.parametrize("text, word", [
    ("device,type,count\nhost,cpu,0\ncard,gpu,0\n", "no device"), ("device,type,count\nhost,cpu,-1\n", "count"),
    ("device,type,count\nhost,cpu,1.5\n", "whole"), ("device,type,count\nhost,cpu,1\nhost,gpu,1\n", "twice"),
    ("device,type,count,memory_mb\na,cpu,1,5\nb,cpu,1,6\n", "differ"), ("device,kind\na,cpu\n", "missing"),
    ("device,type,count\nc,cpu,2\nc[0],cpu,1\nd,gpu,1\n", r"two devices would be called 'c\[0\]'"),
    ("device,type,count\nc[1],gpu,1\nc,cpu,2\n", r"two devices would be called 'c\[1\]'"),
    ("device,type,count\nc,cpu,1,2\n", "line 2 has 4 fields"), ("device,type,type\na,cpu,gpu\n", "column type is there twice"),
    ("device,type,count\n,cpu,1\n", "no device"), ("device,type,count\nNA,cpu,1\n", "empty cell"),
    ("device,type,count\na,,1\n", "no type"), ("device,type,count\na,job_id,1\n", "column of ids"),
    *((f"device,type,count\na,cpu,{count}\n", "count of 'a'|count is at most") for count in ("1e30", "inf", "nan", "1e9")),
    *((f"device,type,{name}\na,cpu,{value}\n", f"{name} of 'a' is '{value}'") for name in PER_TYPE
      for value in ("inf", "nan", "-1"))])
def test_bad_devices_are_refused(tmp_path, text, word):
    times, devices = tmp_path / "times.csv", tmp_path / "devices.csv"
    times.write_text("job_id,cpu,gpu\na,1,1\n")
    devices.write_text(text)
    with pytest.raises(InputError, match=word):
        problem_files.read(times, devices)


@pytest.mark.parametrize("name, text, word", [
    ("actual", "job_id,cpu\na,1\na,2\nb,1\n", "'a' is there twice"), ("actual", "job_id,cpu\na,1\n", "lacks jobs of .*: b"),
    ("actual", "job_id,cpu,cpu\na,1,2\nb,1,2\n", "column cpu is there twice"),
    ("jobs", "job_id\na\na\nb\n", "'a' is there twice"), ("jobs", "job_id\na\nc\n", "do not name the same jobs: b, c"),
    *(("jobs", f"job_id,{column}\na,{value}\nb,1\n", f"{column} of 'a' is '{value}'")
      for column in ("arrival_s", "deadline_s") for value in ("nan", "inf", "-1", "1e999"))])
def test_bad_jobs_and_actual_times_are_refused(tmp_path, name, text, word):
    for file, content in (("times", "job_id,cpu\na,1\nb,2\n"), ("devices", "device,type,count\nhost,cpu,2\n"), (name, text)):
        (tmp_path / f"{file}.csv").write_text(content)
    with pytest.raises(InputError, match=word):
        problem_files.read(tmp_path / "times.csv", tmp_path / "devices.csv", **{name: tmp_path / f"{name}.csv"})


def test_trace_is_what_perfetto_reads(tmp_path):
    outcome = simulate(a_problem(), a_policy("hybrid"))
    result = trace.events(outcome.schedule)
    slices = [event for event in result if event["ph"] == "X"]
    assert len(slices) == len(outcome.schedule)
    for track in {event["tid"] for event in slices}:
        mine = sorted((event["ts"], event["ts"] + event["dur"]) for event in slices if event["tid"] == track)
        assert all(later[0] >= earlier[1] - 1e-3 for earlier, later in zip(mine, mine[1:], strict=False))
    assert trace.write(outcome.schedule, tmp_path / "t.json").stat().st_size > 100


def test_published_throughputs_become_problems(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "IMPORTED", tmp_path)
    rates = {"v100": {"('A', 1)": {"null": 4.0}, "('B', 1)": {"null": 2.0}, "('A', 2)": {"null": 7.0}},
             "p100": {"('A', 1)": {"null": 2.0}, "('B', 1)": {"null": 0}, "('A', 2)": {"null": 3.0}},
             "k80": {"('A', 1)": {"null": 1.0}, "('B', 1)": {"null": 1.0}, "('A', 2)": {"null": 1.0}}}
    source = tmp_path / "given.json"
    source.write_text(json.dumps(rates))
    path, rows = gavel.bring_in(source)
    assert rows == 9
    table = gavel.single(store.read(path, "throughputs"))
    assert table.loc["A"].tolist() == [4, 2, 1] and table.loc["B"].tolist() == [2, 0, 1]
    problem = gavel.mix(table, 40, 2, seed=1)
    own = problem.actual_s[problem.jobs.job_class == 1]
    assert np.isinf(own[:, 1]).all() and own[:, 2] == pytest.approx(2 * own[:, 0])  # what does not fit cannot run there
    assert (problem.actual_s.min(axis=1) >= 60 * 10 ** 1.5).all() and (problem.actual_s.min(axis=1) <= 60 * 10 ** 4).all()
    for text in ("[]", "{", json.dumps({"v100": {"__import__('os')": {"null": 1}}}), json.dumps({"v100": {"('A', 1)": {}}})):
        source.write_text(text)
        with pytest.raises(InputError, match="no throughput file"):
            gavel.bring_in(source)


def test_files_import_only_from_the_lines_above_them():
    """The order in the package's docstring is the one that holds."""
    lines = [re.findall(r"[a-z_]+", line[4:].partition("  ")[0].replace("/", "")) for line in lib.schedule.__doc__.splitlines()
             if re.match(r"    [a-z]", line)]
    rank = {name: number for number, names in enumerate(lines) for name in names}
    folder = Path(lib.schedule.__file__).parent
    assert set(rank) == {path.stem for path in folder.iterdir() if path.stem not in ("__init__", "__pycache__")}
    for path in folder.rglob("*.py"):
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        text = path.read_text()
        imported = set(re.findall(r"from lib\.schedule\.([a-z_]+)", text))
        imported |= {name for names in re.findall(r"from lib\.schedule import ([a-z_, ]+)", text) for name in names.split(", ")}
        for name in imported if own != "__init__" else ():
            assert rank[name] <= rank[own], f"{path.relative_to(folder)} imports {name}"


def test_only_hybrid_takes_an_objective():
    for name, objective, word in (("matching", "energy", "takes no objective"), ("hybrid", "speed", "no objective 'speed'"),
                                  ("magic", "makespan", "no policy 'magic'")):
        with pytest.raises(InputError, match=word):
            registry.aimed(name, objective)


@pytest.mark.parametrize(("seconds", "what"), [("1e-320", "1e-09 or more"), ("1e308", "at most 1e"), ("0", "1e-09 or more")])
def test_times_that_no_sum_can_hold_are_refused(tmp_path, seconds, what):
    (tmp_path / "d.csv").write_text("device,type,count\nc,cpu,1\n")
    (tmp_path / "t.csv").write_text(f"job_id,cpu\na,{seconds}\nb,1\n")
    with pytest.raises(InputError, match=what):
        problem_files.read(tmp_path / "t.csv", tmp_path / "d.csv")
    (tmp_path / "t.csv").write_text("job_id,cpu\na,1\n")
    (tmp_path / "j.csv").write_text("job_id,arrival_s\na,1e300\n")
    with pytest.raises(InputError, match="at most 1e"):
        problem_files.read(tmp_path / "t.csv", tmp_path / "d.csv", tmp_path / "j.csv")


def _problem(tmp_path, devices, times="job_id,CPU,GPU\na,10,2\nb,20,4\nc,5,3\n"):
    (tmp_path / "d.csv").write_text(devices)
    (tmp_path / "t.csv").write_text(times)
    return tmp_path / "t.csv", tmp_path / "d.csv"


def test_a_cpu_is_one_in_capitals_too(tmp_path):
    files = _problem(tmp_path, "device,type,count\nc,CPU,1\ng,GPU,1\n")
    answer = api.schedule_files(*files, policy="cpu-only")
    assert set(answer.schedule["device"]) == {"c"} and answer.figures["makespan_s"] == 35


@pytest.mark.parametrize(("policy", "kind", "words"), [("cpu-only", "GPU", "none is a CPU: a CPU's type begins with cpu"),
                                                       ("gpu-only", "CPU", "none is anything but a CPU")])
def test_a_policy_without_a_device_of_its_kind_is_refused(tmp_path, policy, kind, words):
    files = _problem(tmp_path, f"device,type,count\nd,{kind},2\n")
    with pytest.raises(InputError, match=words):
        api.schedule_files(*files, policy=policy)


def test_swapped_watts_and_an_objective_without_a_deadline_are_refused(tmp_path):
    files = _problem(tmp_path, "device,type,count,idle_w,busy_w\nc,CPU,1,200,5\ng,GPU,1,10,300\n")
    with pytest.raises(InputError, match="'c' draws 200 W when idle and 5 W at work; idle_w is at most busy_w"):
        api.schedule_files(*files, objective="energy")
    files = _problem(tmp_path, "device,type,count\nc,CPU,1\ng,GPU,1\n")
    with pytest.raises(InputError, match="the objective deadline needs deadline_s of some job"):
        api.schedule_files(*files, objective="deadline")


def test_without_a_place_for_the_cache_functions_are_compiled_all_the_same(monkeypatch):
    import numba

    njit = numba.njit

    def refusing(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'f': no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", refusing)
    assert compiled()(lambda number: number + 1)(1) == 2
