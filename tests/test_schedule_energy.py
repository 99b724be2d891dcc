"""Joules of schedules: known answers from tables and from watts, how they are known, and what spares them."""

from dataclasses import replace

import numpy as np
import pytest

from lib.schedule import energy, problem_files
from lib.schedule.policies import policy_for
from lib.schedule.problem import Fleet, JobEnergy, Jobs, Problem
from lib.schedule.simulate import simulate
from tests import output_of, refused
from tests.schedules import figures, files


def energy_of(problem, name="met", objective="makespan", faults=None):
    result = figures(problem, name, objective, faults)
    return result["energy_j"], result["energy_source"]


@pytest.mark.parametrize("table, joules, source", [
    # on the gpu for 9 s while the cpu idles at 5 W
    ("job_id,cpu,gpu\na,1,500\nb,1,900\nc,1,100\n", 500 + 900 + 100 + 45, "measured, idling assumed"),
    ("job_id,cpu,gpu,source\na,1,500,\nb,1,900,modelled\nc,1,100,measured\n", 1545, "modelled, idling assumed"),
    ("job_id,gpu,cpu,source\na,500,,measured\nb,900,,assumed\nc,100,,measured\n", 1545, "assumed, idling assumed"),
    ("job_id,cpu,gpu\na,1,500\nb,1,\nc,1,100\n", 500 + 4 * 300 + 100 + 45, "assumed, idling assumed"),
    ("", 9 * 300 + 45, "assumed")])
def test_joules_are_those_of_the_table_or_else_watts_times_seconds(tmp_path, table, joules, source):
    problem = problem_files.read(**files(tmp_path, **({"energy": table} if table else {})))
    assert energy_of(problem) == (pytest.approx(joules), source)


def test_what_is_not_known_is_none_and_idling_without_watts_is_not_in_it(tmp_path):
    table = "job_id,cpu,gpu\na,1,500\nb,1,900\nc,1,100\n"
    whole = files(tmp_path, devices="device,type,count\nc,cpu,1\ng,gpu,1\n", energy=table)
    assert energy_of(problem_files.read(**whole)) == (1500, "measured, without idling")
    assert energy_of(problem_files.read(whole["times"], whole["devices"])) == (None, None)
    whole["energy"].write_text(table.replace("900", ""))
    assert energy_of(problem_files.read(**whole)) == (None, None)


def test_a_device_idles_until_the_first_job_comes_and_in_its_set_up_and_an_attempt_that_died_took_its_share():
    fleet = Fleet.from_counts({"gpu": 1}, idle_w=[10], busy_w=[100], setup_s=[2])
    stated = JobEnergy(np.array([[80.0]]), ("modelled",))
    problem = Problem(Jobs.plain(1, np.array([3.0])), fleet, np.array([[4.0]]), np.array([[4.0]]), energy=stated)
    outcome = simulate(problem, policy_for("met"))
    for end_s, share in ((9.0, 1), (7.0, 0.5)):
        attempt = outcome.schedule.assign(end_s=end_s)
        assert energy.of_schedule(problem, attempt, end_s) == (pytest.approx(5 * 10 + share * 80), "modelled, idling assumed")


def test_a_policy_that_spares_energy_goes_by_the_table_and_not_by_watts():
    fleet = Fleet.from_counts({"cpu": 4, "gpu": 4}, idle_w=[0, 0], busy_w=[10, 1000])
    times, stated = np.tile([2.0, 1.0], (12, 1)), JobEnergy(np.tile([500.0, 1.0], (12, 1)), ("measured",) * 12)
    problem = Problem(Jobs.plain(12), fleet, times, times, energy=stated)
    for each, place in ((problem, 1), (replace(problem, energy=None), 0)):
        schedule = simulate(each, policy_for("hybrid", "energy")).schedule
        assert set(fleet.type_of[schedule["device_index"]]) == {place}
    stated.joules[0, 0] = np.nan
    with refused("needs idle_w and busy_w of every .* or a table of energy"):
        energy_of(replace(problem, fleet=Fleet.from_counts({"cpu": 4, "gpu": 4})), "hybrid", "energy")


def test_the_verb_says_how_the_joules_are_known(tmp_path):
    written = files(tmp_path, energy="job_id,cpu,gpu,source\na,1,5,modelled\nb,1,9,modelled\nc,1,1,modelled\n")
    out = output_of("schedule", "--policy", "met", *(f"--{name}={path}" for name, path in written.items()))
    assert "J (modelled, idling assumed)" in out
