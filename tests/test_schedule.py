"""Policies and the simulator: known answers, bounds, bad input, an independent referee; laws are in test_schedule_machine."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lib import paths, store
from lib.schedule import api, bounds, gavel, problem_files
from lib.schedule.policies import registry
from lib.schedule.policies.hybrid import local_search
from lib.schedule.policies.hybrid.policy import HybridMemory
from lib.schedule.portable import compiled
from lib.schedule.problem import PER_TYPE, Fleet, JobEnergy, Jobs, Problem
from lib.schedule.simulation.events import Faults, PolicyError, simulate
from lib.schedule.state import Restart, Start, Wait
from tests import refused
from tests.schedules import DEVICES, check_schedule, figures, files


def a_policy(name):
    return registry.policy(name, **({"steps": 12_000} if name == "hybrid" else {}))


def a_problem(seed=0, count=30, holes=0.1):
    """Return jobs of four classes, all there at once, for two devices of each of three types."""
    draw = np.random.default_rng(seed)
    times = np.exp(draw.normal(2, 1, (count, 1)) + draw.normal(0, 1, (count, 3)))
    times[draw.random(times.shape) < holes] = np.inf
    times[np.arange(count), draw.integers(3, size=count)] = np.exp(draw.normal(2, 1, count))
    jobs = Jobs.plain(count, job_class=draw.integers(4, size=count))
    return Problem(jobs, Fleet.from_counts({"cpu": 2, "v100": 2, "p100": 2}), times, times)


def test_known_answers():
    times = np.tile([2.0, 4.0], (3, 1))
    problem = Problem(Jobs.plain(3), Fleet.from_counts({"fast": 1, "slow": 1}), times, times)
    known = {"fastest": 6, "first-come": 4, "hybrid": 4, "longest-first": 4}
    assert {name: figures(problem, name)["makespan_s"] for name in known} == known
    for unit_s in (1e-9, 1e-3, 1, 1e6):
        assert bounds.relaxation(times * unit_s, problem.fleet.counts).makespan_s / unit_s == pytest.approx(4, rel=1e-6)
    assert bounds.matching(times, problem.fleet.counts)[0] == pytest.approx(2 + 4 + 4)
    assert figures(problem, "matching")["mean_jct_s"] == pytest.approx((2 + 4 + 4) / 3)


@pytest.mark.parametrize(("count", "predicted_s", "actual_s", "statuses"), [
    (1, 1e-9, 1e-9, ["done"]), (2, 1e-9, 1e-9, ["done", "done"]),  # at 1e9 s such a job ends as it starts, to the last bit
    (1, 9e-8, 1.0, ["moved", "done"])])  # it will be overdue in a seventh of a bit, and is moved a bit later
def test_a_look_sooner_than_the_clock_can_tell_is_not_past(count, predicted_s, actual_s, statuses):
    predicted, actual = (np.full((count, 2), seconds) for seconds in (predicted_s, actual_s))
    problem = Problem(Jobs.plain(count, np.full(count, 1e9)), Fleet.from_counts({"cpu": 2, "gpu": 2}), predicted, actual, 0.3)
    assert simulate(problem, a_policy("hybrid")).schedule["status"].tolist() == statuses


def test_restarts_at_once_share_the_cores_that_are_free():
    """Two stragglers on slots that bring no cores, and cores for one of the two: no event would tell, but both are moved."""
    fleet = replace(Fleet.from_counts({"cpu": 2, "gpu": 2}), host_cores=3.0)
    jobs = replace(Jobs.plain(2), cpu_cores=np.full(2, 2.0))
    result = simulate(Problem(jobs, fleet, np.tile([1.0, 2.0], (2, 1)), np.tile([100.0, 2.0], (2, 1)), 0.3), a_policy("hybrid"))
    check_schedule(result)
    assert result.schedule["status"].tolist().count("moved") == 2 and result.schedule["end_s"].max() < 20
    assert result.done["device"].str.startswith("gpu").all()


def test_a_move_is_no_failure():
    """A job that is moved once and fails always is tried as often as one that is not moved."""
    def mover(state, predict):
        if state.waiting:
            return [Start(0, 0), Wait("a moment", state.now_s + 1e-6)]
        if 0 not in state.running or Restart in state.memory:
            return []
        return [state.recall(Restart, lambda: Restart(0, 1))]

    problem = Problem(Jobs.plain(1), Fleet.from_counts({"cpu": 2}), np.array([[100.0]]), np.array([[100.0]]))
    table = simulate(problem, mover, Faults(1.0, attempts=3)).schedule
    assert table["status"].tolist() == ["moved", "retried", "retried", "failed"]
    assert table["attempt"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("actions", [[Start(0, 0), Start(0, 1)], [], [Wait("why not", -1.0)]])
def test_a_wrong_policy_is_found(actions):
    with pytest.raises(PolicyError):
        simulate(a_problem(), lambda state, predict: actions)


def test_simpy_agrees():
    """SimPy, an independent simulator, gives first-come on one type the same completion times."""
    simpy = pytest.importorskip("simpy")
    draw = np.random.default_rng(4)
    arrival, times = np.sort(draw.uniform(0, 40, 80)), draw.uniform(1, 6, (80, 1))
    problem = Problem(Jobs.plain(80, arrival), Fleet.from_counts({"gpu": 4}), times, times)
    ours = simulate(problem, a_policy("first-come")).done.set_index("job")["end_s"]
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
    assert ours.to_dict() == pytest.approx(ends)


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
        times, counts, busy_s = times[:, :1], counts[:1], busy_s[:1]
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


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_that_was_far_off_is_improved(seed):
    """Loads fall by orders of magnitude as jobs leave the slow devices where they were: sums of their powers do not vanish."""
    draw = np.random.default_rng(seed)
    count, devices = int(draw.integers(4, 12)), int(draw.integers(4, 20))
    times = np.column_stack([draw.uniform(0.5, 1, count), draw.uniform(0.001, 0.01, count)])
    type_of, ready = np.repeat([0, 1], devices), np.zeros(2 * devices)
    plans = (local_search.plan(times, type_of, ready, 60_000, seed, start=start)
             for start in (draw.integers(devices, size=count), None))
    improved_s, anew_s = (local_search.loads(times, type_of, ready, plan).max() for plan in plans)
    assert improved_s <= 1.2 * anew_s


def test_set_up_is_no_error_of_the_predictions():
    """Exact predictions stay believed where devices take long to set up."""
    problem = a_problem(4, count=80, holes=0.0)
    state = []

    def watched(seen, predict):
        state[:] = [seen]
        return a_policy("hybrid")(seen, predict)

    slow = replace(problem.fleet, setup_s=np.array([5.0, 20.0, 1.0]))
    check_schedule(simulate(replace(problem, fleet=slow), watched))
    memory = state[0].memory[HybridMemory]
    assert memory.estimator.sigma == 0 and not memory.rough


@pytest.mark.parametrize(("part", "column", "values", "words"), [
    ("jobs", "arrival_s", np.zeros(6), r"arrival_s is \(6,\), there are 5 jobs and 3"),
    ("jobs", "job_class", np.zeros(4), r"job_class is \(4,\), there are 5 jobs and 3"),
    *(("fleet", "type_of", types, "type_of gives each of the 6 devices the number of its type, 0 to 2")
      for types in (np.full(6, 3), np.zeros(5, int), np.full(6, -1))),
    (None, "energy", JobEnergy(np.ones((4, 3)), ("measured",) * 4), r"energy is \(4, 3\), there are 5 jobs")])
def test_columns_that_are_not_aligned_are_refused(part, column, values, words):
    problem = a_problem(count=5)
    changed = {part: replace(getattr(problem, part), **{column: values})} if part else {column: values}
    with refused(words):
        replace(problem, **changed)


def test_what_a_job_may_not_use_is_not_told():
    """A type whose host has too few cores, or whose real time is missing, is no choice: every policy ends every job."""
    fleet = replace(Fleet.from_counts({"cpu": 1, "gpu": 1}, cpu_cores=[1, np.nan]), host_cores=2.0)
    jobs = replace(Jobs.plain(4), cpu_cores=np.array([0.0, 3.0, 1.0, 0.0]))
    predicted = np.array([[9.0, 1.0]] * 4)
    problem = Problem(jobs, fleet, predicted, np.where(np.arange(4)[:, None] == [[9, 3]], np.inf, predicted))
    assert problem.feasible_s.tolist() == [[9, 1], [9, np.inf], [9, 1], [9, np.inf]]
    for name in registry.POLICIES:
        check_schedule(simulate(problem, a_policy(name)))
    with refused("no device can run job '1'"):
        Problem(jobs, replace(fleet, cpu_cores=np.array([4.0, np.nan])), predicted, predicted)


WRONG = {
    "times": [
        ("job_id,cpu,gpu\na,1,inf\n", "finite"), ("job_id,cpu,gpu\na,,\n", "no device"), ("", "readable"),
        ("job_id,cpu\na,1\n", "missing"), ("job_id,cpu,gpu\na,x,1\n", "x"),
        ("job_id,cpu,gpu\na,0,1\n", "finite number, 1e-09 or more"), ("job_id,cpu,gpu\na,1e-320,1\n", "1e-09 or more"),
        ("job_id,cpu,gpu\na,1e308,1\n", "at most 1e"), ("job_id,cpu,gpu, gpu\na,1,2,3\n", "column gpu is there twice"),
        ("job_id,cpu,gpu\na,nan,1\n", "'nan'")],
    "devices": [
        ("device,type,count\nhost,cpu,0\ncard,gpu,0\n", "no device"), ("device,type,count\nhost,cpu,-1\n", "count"),
        ("device,type,count\nhost,cpu,1.5\n", "whole"), ("device,kind\na,cpu\n", "missing"),
        ("device,type,count,memory_mb\na,cpu,1,5\nb,cpu,1,6\n", "differ"),
        ("device,type,count\nc,cpu,2\nc[0],cpu,1\nd,gpu,1\n", r"two devices would be called 'c\[0\]'"),
        ("device,type,count\nc[1],gpu,1\nc,cpu,2\n", r"two devices would be called 'c\[1\]'"),
        ("device,type,count\na,,1\n", "no type"), ("device,type,count\na,job_id,1\n", "column of ids"),
        ("device,type,idle_w,busy_w\nc,cpu,200,5\n", "'c' draws 200 W when idle and 5 W at work; idle_w is at most busy_w"),
        *((f"device,type,count\na,cpu,{count}\n", "count of 'a'|count is at most") for count in ("1e30", "inf", "nan", "1e9")),
        *((f"device,type,{name}\na,cpu,{value}\n", f"{name} of 'a' is '{value}'") for name in PER_TYPE
          for value in ("inf", "nan", "-1"))],
    "actual": [("job_id,cpu,gpu\na,1,1\na,2,1\nb,1,1\n", "'a' is there twice"),
               ("job_id,cpu,gpu\na,1,1\nc,1,1\n", "lacks jobs of .*: b")],
    "jobs": [("job_id\na\na\nb\n", "'a' is there twice"), ("job_id\na\nd\n", "do not name the same jobs: b, c, d"),
             ("job_id,arrival_s\na,1e300\n", "at most 1e"),
             *((f"job_id,{column}\na,{value}\n", f"{column} of 'a' is '{value}'")
               for column in ("arrival_s", "deadline_s") for value in ("nan", "inf", "-1", "1e999"))],
    "energy": [("job_id,cpu,gpu\na,1,1\nb,1,1\n", "energy.csv lacks jobs of .*: c"),
               ("job_id,cpu\na,1\n", r"missing columns \[gpu\]"), ("job_id,cpu,gpu\na,-1,1\n", "cpu of 'a' is '-1'"),
               ("job_id,cpu,gpu\na,1,1\na,1,1\n", "'a' is there twice"), ("job_id,cpu,gpu\na,lots,1\n", "'lots'"),
               ("job_id,cpu,gpu,source\na,1,1,guessed\n", "source of 'a' is 'guessed': it is one of measured")]}


@pytest.mark.parametrize(("name", "text", "words"), [(name, *case) for name, cases in WRONG.items() for case in cases])
def test_bad_files_are_refused(tmp_path, name, text, words):
    with refused(words) as error:
        problem_files.read(**files(tmp_path, **{name: text}))
    assert "\n" not in str(error.value)


def test_published_throughputs_become_problems(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "IMPORTED", tmp_path)
    rates = {"v100": {"('A', 1)": {"null": 4.0}, "('B', 1)": {"null": 2.0}, "('A', 2)": {"null": 7.0}},
             "p100": {"('A', 1)": {"null": 2.0}, "('B', 1)": {"null": 0}, "('A', 2)": {"null": 3.0}},
             "k80": {"('A', 1)": {"null": 1.0}, "('B', 1)": {"null": 1.0}, "('A', 2)": {"null": 1.0}}}
    source = tmp_path / "given.json"
    source.write_text(json.dumps(rates))
    path, rows = gavel.import_table(source)
    assert rows == 9
    table = gavel.single(store.read(path, "throughputs"))
    assert table.loc["A"].tolist() == [4, 2, 1] and table.loc["B"].tolist() == [2, 0, 1]
    problem = gavel.mix(table, 40, 2, seed=1)
    own = problem.actual_s[problem.jobs.job_class == 1]
    assert np.isinf(own[:, 1]).all() and own[:, 2] == pytest.approx(2 * own[:, 0])  # what does not fit cannot run there
    fastest = problem.actual_s.min(axis=1)
    assert 60 * 10**1.5 <= fastest.min() <= fastest.max() <= 60 * 10**4
    for text in ("[]", "{", json.dumps({"v100": {"__import__('os')": {"null": 1}}}), json.dumps({"v100": {"('A', 1)": {}}})):
        source.write_text(text)
        with refused("no throughput file"):
            gavel.import_table(source)


@pytest.mark.parametrize(("name", "objective", "words"), [
    ("matching", "energy", "takes no objective"), ("hybrid", "speed", "no objective 'speed'"),
    ("magic", "makespan", "no policy 'magic'")])
def test_only_hybrid_takes_an_objective(name, objective, words):
    with refused(words):
        registry.aimed(name, objective)


def test_a_cpu_is_one_in_capitals_too(tmp_path):
    paths_of = files(tmp_path, times="job_id,CPU,GPU\na,10,2\nb,20,4\nc,5,3\n", devices="device,type\nc,CPU\ng,GPU\n")
    answer = api.schedule(problem_files.read(**paths_of), "cpu-only")
    assert set(answer.schedule["device"]) == {"c"} and answer.figures["makespan_s"] == 35


@pytest.mark.parametrize(("devices", "options", "words"), [
    ("device,type\nd,gpu\n", {"policy": "cpu-only"}, "none is a CPU: a CPU's type begins with cpu"),
    ("device,type\nd,cpu\n", {"policy": "gpu-only"}, "none is anything but a CPU"),
    (DEVICES, {"objective": "deadline"}, "the objective deadline needs deadline_s of some job")])
def test_a_policy_or_an_objective_that_means_nothing_is_refused(tmp_path, devices, options, words):
    with refused(words):
        api.schedule(problem_files.read(**files(tmp_path, devices=devices)), **options)


def test_without_a_place_for_the_cache_functions_are_compiled_all_the_same(monkeypatch):
    import numba

    njit = numba.njit

    def refusing(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'f': no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", refusing)
    assert compiled()(lambda number: number + 1)(1) == 2
