"""Policies and the simulator: known answers, bounds, bad input; laws are in test_schedule_machine."""


import numpy as np
import pytest

from lib.schedule import answers, bounds, problem_files
from lib.schedule.problem import PER_TYPE, Fleet, Jobs, Problem
from lib.schedule.simulate import Faults, simulate
from lib.schedule.state import PolicyError, Restart, Start, Wait
from tests import refused
from tests.schedules import figures, files


def a_problem(seed=0, count=30):
    """Return jobs of four classes, all there at once, for two devices of each of three types."""
    draw = np.random.default_rng(seed)
    times = np.exp(draw.normal(2, 1, (count, 1)) + draw.normal(0, 1, (count, 3)))
    times[draw.random(times.shape) < 0.1] = np.inf
    times[np.arange(count), draw.integers(3, size=count)] = np.exp(draw.normal(2, 1, count))
    jobs = Jobs.plain(count, job_class=draw.integers(4, size=count))
    return Problem(jobs, Fleet.from_counts({"cpu": 2, "v100": 2, "p100": 2}), times, times)


def test_known_answers():
    times = np.tile([2.0, 4.0], (3, 1))
    problem = Problem(Jobs.plain(3), Fleet.from_counts({"fast": 1, "slow": 1}), times, times)
    known = {"met": 6, "fcfs": 4, "hybrid": 4, "lpt": 4}
    assert {name: figures(problem, name)["makespan_s"] for name in known} == known
    for unit_s in (1e-9, 1e6):
        assert bounds.relaxation(times * unit_s, problem.fleet.counts).makespan_s / unit_s == pytest.approx(4, rel=1e-6)
    assert bounds.matching(times, problem.fleet.counts)[0] == pytest.approx(2 + 4 + 4)
    assert figures(problem, "allox")["mean_jct_s"] == pytest.approx((2 + 4 + 4) / 3)


def test_a_move_is_no_failure():
    """A job that is moved once and fails always is tried as often as one that is not moved."""
    def mover(state, predict):
        if len(state.waiting):
            return [Start(0, 0), Wait("a moment", state.now_s + 1e-6)]
        if state.memory.get("moved"):
            return []
        state.memory["moved"] = True
        return [Restart(0, 1)]

    problem = Problem(Jobs.plain(1), Fleet.from_counts({"cpu": 2}), np.array([[100.0]]), np.array([[100.0]]))
    table = simulate(problem, mover, Faults(1.0, attempts=3)).schedule
    assert table["status"].tolist() == ["moved", "retried", "retried", "failed"]
    assert table["attempt"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("actions", [[Start(0, 0), Start(0, 1)], [], [Wait("why not", -1.0)]])
def test_a_wrong_policy_is_found(actions):
    with pytest.raises(PolicyError):
        simulate(a_problem(), lambda state, predict: actions)


WRONG = {
    "times": [
        ("job_id,cpu,gpu\na,1,inf\n", "finite"), ("job_id,cpu,gpu\na,,\n", "no device"), ("", "readable"),
        ("job_id,cpu\na,1\n", "missing"), ("job_id,cpu,gpu\na,x,1\n", "x"),
        ("job_id,cpu,gpu\na,00:10:00,1\n", "cpu of 'a' is '00:10:00'"), ("job_id|cpu|gpu\na|1|1\n", "separated by bars"),
        ("job_id,cpu,gpu\na,0,1\n", "finite number of 1e-09 or more"), ("job_id,cpu,gpu\na,1e308,1\n", "at most 1e")],
    "devices": [
        ("device,type,count\nhost,cpu,0\ncard,gpu,0\n", "no device"), ("device,kind\na,cpu\n", "missing"),
        ("device,type,count\nhost,cpu,1.5\n", "whole"), ("device,type,count\na,cpu,1e9\n", "count is at most"),
        ("device,type,count,memory_mb\na,cpu,1,5\nb,cpu,1,6\n", "differ"),
        ("device,type,count\nc,cpu,2\nc[0],cpu,1\nd,gpu,1\n", r"two devices would be called 'c\[0\]'"),
        ("device,type,count\na,,1\n", "type of 'a' is empty"), ("device,type,count\na,job_id,1\n", "column of ids"),
        ("device,type,idle_w,busy_w\nc,cpu,200,5\n", "'c' draws 200 W when idle and 5 W at work; idle_w is at most busy_w"),
        *((f"device,type,{name}\na,cpu,-1\n", f"{name} of 'a' is '-1'") for name in PER_TYPE)],
    "actual": [("job_id,cpu,gpu\na,1,1\nc,1,1\n", "lacks jobs of .*: b")],
    "jobs": [("job_id\na\na\nb\n", "'a' in row 2 is there twice"), ("job_id\na\nd\n", "do not name the same jobs: b, c, d"),
             ("job_id,arrival_s\na,1e300\n", "at most 1e"),
             ("job_id,deadline_s\na,nan\n", "deadline_s of 'a' is 'nan'")],
    "energy": [("job_id,cpu,gpu\na,1,1\nb,1,1\n", "energy.csv lacks jobs of .*: c"),
               ("job_id,cpu\na,1\n", r"missing columns \[gpu\]"), ("job_id,cpu,gpu\na,-1,1\n", "cpu of 'a' is '-1'"),
               ("job_id,cpu,gpu,source\na,1,1,guessed\n", "source of 'a' is 'guessed': it takes one of measured")]}


@pytest.mark.parametrize("name, text, words", [(name, *case) for name, cases in WRONG.items() for case in cases])
def test_bad_files_are_refused(tmp_path, name, text, words):
    with refused(words):
        problem_files.read(**files(tmp_path, **{name: text}))


def test_a_cpu_is_one_in_capitals_too(tmp_path):
    paths_of = files(tmp_path, times="job_id,CPU,GPU\na,10,2\nb,20,4\nc,5,3\n", devices="device,type\nc,CPU\ng,GPU\n")
    answer = answers.schedule(problem_files.read(**paths_of), "cpu-only")
    assert set(answer.schedule["device"]) == {"c"} and answer.figures["makespan_s"] == 35


@pytest.mark.parametrize("due, words, late_s", [
    ((100, 40, 100), "1 of 3 missed: b 30 s late (due at 40 s, before it arrives at 50 s)", {"b": 30}),
    ((5, 69, 100), "2 of 3 missed: a 5 s late (due at 5 s); b 1 s late (due at 69 s)", {"a": 5, "b": 1}),
    ((100, 100, ""), "0 of 2 missed\n", {}), (("", "", ""), None, None)])
def test_an_answer_says_which_deadlines_are_missed(due, words, late_s, tmp_path):
    jobs = "".join(f"{job},{arrival},{end}\n" for job, arrival, end in zip("abc", (0, 50, 5), due, strict=True))
    paths_of = files(tmp_path, times="job_id,gpu,cpu\na,10,100\nb,20,200\nc,30,300\n",
                     devices="device,type,count\ngpu,gpu,2\ncpu,cpu,1\n", jobs=f"job_id,arrival_s,deadline_s\n{jobs}")
    answer = answers.schedule(problem_files.read(**paths_of), objective="deadline" if words else "makespan")
    assert answer.figures["late_s"] == late_s
    assert not words or f"  deadlines        {words}" in f"{answers.text(answer)}\n"
    assert ("deadlines" in answers.text(answer)) == bool(words)


def test_joules_and_prices_are_not_pursued_with_jobs_on_several_devices(tmp_path):
    paths_of = files(tmp_path, devices="device,type,count\nc,cpu,2\ng,gpu,2\n", jobs="job_id,devices\na,2\nb,1\nc,1\n")
    with refused("the objective energy is not pursued where jobs need several devices at once"):
        answers.schedule(problem_files.read(**paths_of), objective="energy")


@pytest.mark.parametrize("policy, objective, words", [
    ("cpu-only", "makespan", "none is a CPU: a CPU's type begins with cpu"), ("allox", "energy", "takes no objective"),
    ("hybrid", "speed", "no objective 'speed'"), ("magic", "makespan", "no policy 'magic'"),
    ("hybrid", "deadline", "the objective deadline needs deadline_s of some job")])
def test_a_policy_or_an_objective_that_means_nothing_is_refused(tmp_path, policy, objective, words):
    with refused(words):
        answers.schedule(problem_files.read(**files(tmp_path, devices="device,type\nd,gpu\n")), policy, objective)
