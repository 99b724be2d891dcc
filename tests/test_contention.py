"""Jobs on one host slow each other down: measured in pairs, believed by policies, simulated; scenarios and what is traded."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from lib.config import definitions
from lib.schedule import job_mixes
from lib.schedule.contention import ALONE, Contention
from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.runtime import interference
from lib.schedule.runtime.workers import Slot
from lib.schedule.simulation.events import simulate
from lib.studies.scheduler_eval import comparison, scenario
from tests import killed, refusal, refused
from tests.schedules import contention_of

STEP_S = {"light": 0.01, "heavy": 0.1}
SLOWED = {("light", "heavy"): 1.5, ("heavy", "heavy"): 2.0}  # (who, beside whom)


class Clockwork(killed.Inline):
    """A worker whose steps take what STEP_S and SLOWED say, by who starts at the same moment."""

    asked: dict = {}  # by slot: what was sent last; all slots see it, as they share a host

    def __init__(self, slot, limits):
        super().__init__(slot, limits)
        self.slot, self.answered_s = slot.name, 0.0

    def send(self, *message):
        if message[0] == "run":
            self.asked[self.slot] = message[3]

    def messages(self):
        mine = self.asked.get(self.slot)
        if mine and mine["at_s"] > self.answered_s:
            factors = [SLOWED.get((mine["workload_id"], other["workload_id"]), 1.0) for slot, other in self.asked.items()
                       if slot != self.slot and other["at_s"] == mine["at_s"]]
            self.outbox.append(("done", "pair", {"step_s": STEP_S[mine["workload_id"]] * np.prod(factors), "n": 3}))
            self.answered_s = mine["at_s"]
        return super().messages()

    def shut_down(self):
        self.asked.pop(self.slot, None)


def measured(slots=3, workloads=("light", "heavy"), rounds=2):
    return interference.measure([Slot(f"cpu[{number}]") for number in range(slots)], workloads, rounds, Clockwork)


@pytest.fixture(scope="module")
def table():
    return measured()


@pytest.fixture
def known(table):
    return Contention.from_table(table, ["light", "heavy"], ["cpu"])


def test_pairs_are_found(table):
    result = table.set_index(["workload_id", "beside"])
    expected = {("light", ALONE[0]): 1.0, ("heavy", ALONE[0]): 1.0, ("light", "light"): 1.0, ("heavy", "light"): 1.0,
                ("light", "heavy"): 1.5, ("heavy", "heavy"): 2.0}
    assert result["slowdown"].to_dict() == pytest.approx(expected)
    assert result["step_ms"].to_dict() == pytest.approx({case: 1e3 * STEP_S[case[0]] * by for case, by in expected.items()})
    assert set(table["n"]) == {4}  # two rounds, from either side (or on either slot)


@pytest.mark.parametrize("options, words", [
    ({"slots": 1}, "two slots"), ({"rounds": 0}, "a round and a workload at least"), ({"workloads": []}, "a round and a")])
def test_nothing_is_not_measured_with_success(options, words):
    with refused(words):
        measured(**options)


def test_more_slots_than_cores_are_refused(home):
    assert "4097 slots" in refusal("contention", "--slots", 4097)


def test_the_newest_table_is_the_last_version(table, tmp_path):
    for number in range(1, 12):
        interference.write(table.assign(n=number), tmp_path)
    assert set(interference.newest(table["hardware_id"][0], tmp_path)["n"]) == {11}


def test_cores_are_shared_by_time_and_a_class_that_was_not_measured_slows_and_is_slowed_as_the_median(known):
    assert list(contention_of(np.ones((2, 2)), cores=2.0).rates({0: (0, 0), 1: (0, 1)}, wanted_cores=4.0).values()) == [0.5] * 2
    assert known.rates({0: (-1, 0), 1: (7, 0)})[0] == pytest.approx(1 / np.median([1.0, 1.5, 1.0, 2.0]))


@pytest.mark.parametrize("change, words", [
    (lambda table: pd.concat([table, table.head(1)]), "is there twice"), (lambda table: table.assign(slowdown=0.0), "is 0"),
    (lambda table: table[table["beside"] != ALONE[0]], "has no row of what it takes beside nothing")])
def test_a_table_from_a_file_has_each_case_once_and_all_that_it_is_compared_with(table, tmp_path, change, words):
    path = interference.write(table, tmp_path)
    assert len(interference.read(path)) == len(table)
    path.write_text(change(table).to_csv(index=False))
    with refused(words):
        interference.read(path)


def test_what_was_measured_is_simulated(known):
    times = np.array([[3.0], [2.0]])
    problem = Problem(Jobs.plain(2, job_class=[0, 1]), Fleet.from_counts({"cpu": 2}), times, times)
    ends = simulate(problem, registry.policy("first-come"), contention=known).done.set_index("job")["end_s"]
    assert ends[1] == pytest.approx(2.0)  # heavy does not notice light
    assert ends[0] == pytest.approx(2.0 + (3.0 - 2.0 / 1.5))  # light is slowed until heavy is gone


def mix(rates, count, **fleet):
    """Return a mix of jobs; ``rates`` are steps a second of each kind by type of device."""
    return partial(job_mixes.draw, pd.DataFrame(rates), Fleet.from_counts(fleet), count)


@pytest.mark.slow
def test_knowing_of_contention_makes_foresight_right(known):
    drawn = mix({"cpu": [100.0, 10.0]}, 40, cpu=2)
    error = comparison.ignoring(drawn, known, seeds=1).set_index(["policy", "known"])["error"].abs()
    for name in ("longest-first", "hybrid"):
        assert error[name, "every pair"] < 1e-9
        assert error[name, "nothing"] > 0.1


@pytest.mark.slow
def test_drift_is_shared_by_kind_and_type():
    drawn = mix({"a": [1.0, 2.0], "b": [3.0, 1.0]}, 50, a=2, b=1)
    problem = drawn(0)
    drifted = comparison.drifted(problem, 0.5, 1)
    factor = (drifted.actual_s / drifted.predicted_s).round(9)
    assert [len(np.unique(factor[problem.jobs.job_class == job_class], axis=0)) for job_class in (0, 1)] == [1, 1]
    table = comparison.stale(drawn, (0.0, 0.5), 1)
    assert table["over_perfect"].iloc[0] == pytest.approx(1.0) and (table["ratio"] >= 1 - 1e-9).all()


@pytest.mark.slow
def test_the_front_holds_what_nothing_beats():
    fleet = Fleet.from_counts({"slow": 3, "fast": 1}, idle_w=[1, 5], busy_w=[5, 200])
    problem = job_mixes.draw(pd.DataFrame({"slow": [1.0, 1.0], "fast": [10.0, 3.0]}), fleet, 60, 0)
    front = comparison.pareto(problem, (0.0, 0.75, 1.0))
    kept = front[front["front"]].sort_values("makespan_s")
    assert (np.diff(kept["energy_j"]) <= 0).all()
    ours = front[front["policy"] == "hybrid"].set_index("weight")
    assert ours["energy_j"][1.0] < 0.95 * ours["energy_j"][0.0]
    assert ours["makespan_s"][0.0] < 1.01 * front["makespan_s"].min()


@pytest.mark.slow
def test_step_times_have_a_source():
    kinds, scenarios = definitions.load_scenarios()
    desk = scenarios["one_gpu"]
    result = scenario.step_times(desk.devices, [kinds["W1"], kinds["mobilenet_v2 infer"]])
    source, spread = result.wide("source", desk.devices), result.spread(list(desk.devices))
    assert (source["cpu"] == "measured").all()
    assert source["t4"].str.startswith(("predicted", "zero-shot")).all()
    assert (spread[:, 0] == 0).all() and (spread[:, 1] > 0.05).all()
    problem = scenario.draw(result, desk, 30, 0)
    assert problem.fleet.memory_mb[1] == 16000 and np.isnan(problem.fleet.memory_mb[0])
    assert (problem.jobs.memory_mb > 1).all()
