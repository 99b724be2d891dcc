"""Joules of schedules: known answers from tables and from watts, how they are known, and what spares them."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lib.cli.main import main
from lib.config import definitions
from lib.errors import InputError
from lib.schedule import energy, problem_files
from lib.schedule.policies.registry import policy
from lib.schedule.problem import Fleet, JobEnergy, Jobs, Problem
from lib.schedule.simulation import metrics
from lib.schedule.simulation.events import Faults, simulate
from lib.studies.scheduler_eval import findings, mixes, tradeoffs
from lib.studies.scheduler_eval.scenario import StepTimes
from tests.test_schedule import a_problem

TIMES, DEVICES = "job_id,cpu,gpu\na,10,2\nb,20,4\nc,6,3\n", "device,type,count,idle_w,busy_w\nc,cpu,1,5,50\ng,gpu,1,20,300\n"


def files(folder, **texts):
    for name, text in {"times": TIMES, "devices": DEVICES, **texts}.items():
        (folder / f"{name}.csv").write_text(text)
    return {name: folder / f"{name}.csv" for name in ("times", "devices", *texts)}


def figures(problem, name="fastest"):
    return metrics.metrics(simulate(problem, policy(name)))


@pytest.mark.parametrize(("table", "joules", "source"), [
    # on the gpu for 9 s while the cpu idles at 5 W
    ("job_id,cpu,gpu\na,1,500\nb,1,900\nc,1,100\n", 500 + 900 + 100 + 45, "measured, idling assumed"),
    ("job_id,cpu,gpu,source\na,1,500,\nb,1,900,modelled\nc,1,100,measured\n", 1545, "modelled, idling assumed"),
    ("job_id,gpu,cpu,source\na,500,,measured\nb,900,,assumed\nc,100,,measured\n", 1545, "assumed, idling assumed"),
    ("job_id,cpu,gpu\na,1,500\nb,1,\nc,1,100\n", 500 + 4 * 300 + 100 + 45, "assumed, idling assumed"),
    ("", 9 * 300 + 45, "assumed")])
def test_joules_are_those_of_the_table_or_else_watts_times_seconds(tmp_path, table, joules, source):
    problem = problem_files.read(**files(tmp_path, **({"energy": table} if table else {})))
    assert figures(problem)["energy_j"] == pytest.approx(joules)
    assert figures(problem)["energy_source"] == source


def test_what_is_not_known_is_none_and_idling_without_watts_is_not_in_it(tmp_path):
    table = "job_id,cpu,gpu\na,1,500\nb,1,900\nc,1,100\n"
    whole = files(tmp_path, devices="device,type,count\nc,cpu,1\ng,gpu,1\n", energy=table)
    assert (figures(problem_files.read(**whole))["energy_j"], figures(problem_files.read(**whole))["energy_source"]) == (
        1500, "measured, without idling")
    assert figures(problem_files.read(whole["times"], whole["devices"]))["energy_source"] is None
    (tmp_path / "energy.csv").write_text(table.replace("900", ""))
    holed = problem_files.read(**whole)
    assert figures(holed)["energy_j"] is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("faults", [Faults(), Faults(chance=0.3, seed=1)])
def test_a_table_of_watts_times_seconds_changes_nothing(seed, faults):
    problem = a_problem(seed, count=30)
    types = len(problem.fleet.types)
    watts = {"idle_w": np.arange(types) + 3.0, "busy_w": np.arange(types) * 40 + 50.0, "setup_s": np.zeros(types)}
    plain = replace(problem, fleet=replace(problem.fleet, **watts))
    joules = np.where(np.isfinite(plain.actual_s), plain.actual_s, np.nan) * watts["busy_w"]
    stated = replace(plain, energy=JobEnergy(joules, ("measured",) * len(plain.jobs)))
    one, other = (metrics.metrics(simulate(each, policy("fastest"), faults)) for each in (plain, stated))
    assert one["energy_j"] == pytest.approx(other["energy_j"])
    fleet, able = plain.fleet, np.isfinite(plain.actual_s)
    by_watts, by_table = (energy.above_idle_j(np.where(able, plain.actual_s, 0.0), table, fleet.idle_w, fleet.busy_w,
                                              fleet.setup_s) for table in (None, joules))
    assert by_table == pytest.approx(by_watts)


def test_set_up_idles_and_an_attempt_that_died_took_its_share():
    fleet = Fleet.of({"gpu": 1}, idle_w=[10], busy_w=[100], setup_s=[2])
    stated = JobEnergy(np.array([[80.0]]), ("modelled",))
    problem = Problem(Jobs.plain(1), fleet, np.array([[4.0]]), np.array([[4.0]]), energy=stated)
    assert figures(problem)["energy_j"] == pytest.approx(2 * 10 + 80)
    outcome = simulate(problem, policy("fastest"))
    half = outcome.schedule.assign(end_s=4.0, status="failed")
    assert energy.of_schedule(problem, half, 4.0) == (pytest.approx(2 * 10 + 40), "modelled, idling assumed")


def test_a_policy_that_spares_energy_goes_by_the_table_and_not_by_watts():
    fleet = Fleet.of({"cpu": 4, "gpu": 4}, idle_w=[0, 0], busy_w=[10, 1000])
    times, count = np.tile([2.0, 1.0], (12, 1)), 12
    joules = np.tile([500.0, 1.0], (count, 1))
    problem = Problem(Jobs.plain(count), fleet, times, times, energy=JobEnergy(joules, ("measured",) * count))
    schedule = simulate(problem, policy("hybrid", objective="energy", steps=20_000)).schedule
    assert set(fleet.type_of[schedule["device_index"]]) == {1}
    plain = simulate(replace(problem, energy=None), policy("hybrid", objective="energy", steps=20_000)).schedule
    assert set(fleet.type_of[plain["device_index"]]) == {0}


def test_energy_can_be_spared_without_watts_where_the_table_is_whole():
    fleet = Fleet.of({"cpu": 1, "gpu": 1})
    ones = np.ones((2, 2))
    problem = Problem(Jobs.plain(2), fleet, ones, ones, energy=JobEnergy(ones, ("measured",) * 2))
    assert metrics.metrics(simulate(problem, policy("hybrid", objective="energy")))["energy_j"] == 2
    holed = replace(problem, energy=JobEnergy(np.array([[1, 1], [1, np.nan]]), ("measured",) * 2))
    with pytest.raises(InputError, match="needs idle_w and busy_w of every .* or a table of energy"):
        simulate(holed, policy("hybrid", objective="energy"))


@pytest.mark.parametrize(("text", "words"), [
    ("job_id,cpu,gpu\na,1,1\nb,1,1\n", "energy.csv lacks jobs of .*: c"), ("job_id,cpu\na,1\n", r"missing columns \[gpu\]"),
    ("job_id,cpu,gpu\na,-1,1\nb,1,1\nc,1,1\n", "cpu of 'a' is '-1'"), ("job_id,cpu,gpu\na,1,1\na,1,1\n", "'a' is there twice"),
    ("job_id,cpu,gpu,source\na,1,1,guessed\nb,1,1,\nc,1,1,\n", "source of 'a' is 'guessed': it is one of measured"),
    ("job_id,cpu,gpu\na,lots,1\nb,1,1\nc,1,1\n", "'lots'")])
def test_bad_tables_of_energy_are_refused(tmp_path, text, words):
    with pytest.raises(InputError, match=words) as error:
        problem_files.read(**files(tmp_path, energy=text))
    assert "\n" not in str(error.value)


def test_no_device_type_is_called_as_the_column_of_sources(tmp_path):
    with pytest.raises(InputError, match="no device type can have that name"):
        problem_files.read(**files(tmp_path, times="job_id,source\na,1\n", devices="device,type\nd,source\n", energy=TIMES))


def test_energy_that_is_not_aligned_is_refused():
    problem = a_problem(count=5)
    with pytest.raises(InputError, match=r"energy is \(4, 3\), there are 5 jobs"):
        replace(problem, energy=JobEnergy(np.ones((4, 3)), ("measured",) * 4))


def test_the_verb_says_how_the_joules_are_known(tmp_path, capsys):
    paths = files(tmp_path, energy="job_id,cpu,gpu,source\na,1,5,modelled\nb,1,9,modelled\nc,1,1,modelled\n")
    options = [part for name, path in paths.items() for part in (f"--{name}", str(path))]
    assert main(["schedule", *options, "--policy", "fastest"]) == 0
    assert "J (modelled, idling assumed)" in capsys.readouterr().out
    assert main(["schedule", *options, "--policy", "fastest", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["energy_source"] == "modelled, idling assumed"


def test_joules_of_a_step_are_watts_times_time_unless_a_file_states_them(tmp_path):
    rows = [{"job_class": name, "device": device, "step_ms": step_ms, "low_ms": np.nan, "high_ms": np.nan, "source": "measured",
             "memory_mb": 1.0} for name, device, step_ms in (("W1", "cpu", 20.0), ("W1", "t4", 2.0), ("W2", "cpu", 30.0),
                                                             ("W2", "t4", np.nan))]
    one = definitions.scenario("one_gpu").model_copy(update={"kinds": ("W1", "W2")})
    chosen = mixes.Mixes(StepTimes(pd.DataFrame(rows)), (one,), None)
    plain = mixes.energy_table(chosen).set_index("job_class")
    assert plain.loc["W1"].tolist() == ["0.16 (assumed)", "0.14 (assumed)"]  # 8 W and 70 W
    assert plain.loc["W2"].tolist() == ["0.24 (assumed)", "does not fit"]
    (tmp_path / "energy.csv").write_text("job_id,cpu,t4,source\nW2,0.5,,modelled\nW1,0.1,,measured\n")
    path = str(tmp_path / "energy.csv")
    stated = mixes.energy_table(chosen, path).set_index("job_class")
    assert stated.loc["W1"].tolist() == ["0.1 (measured)", "0.14 (assumed)"] and stated.loc["W2"]["cpu"] == "0.5 (modelled)"
    problem = mixes.with_energy(chosen, 10, path)
    steps = problem.actual_s[:, 0] / np.array([0.02, 0.03])[problem.jobs.job_class]
    assert problem.energy.joules[:, 0] == pytest.approx(steps * np.array([0.1, 0.5])[problem.jobs.job_class])
    front = tradeoffs.pareto(problem, (0.0,))
    assert set(front["energy_source"]) == {"assumed, idling assumed"}
    assert findings.pareto_words(front.assign(front=True, policy="hybrid")).endswith("schedules: assumed, idling assumed.")
    assert mixes.with_energy(chosen, 10).energy is None
    (tmp_path / "energy.csv").write_text("job_id,cpu,t4\nW1,1,1\n")
    with pytest.raises(InputError, match="energy.csv lacks jobs of the scenario one_gpu: W2"):
        mixes.with_energy(chosen, 10, path)
