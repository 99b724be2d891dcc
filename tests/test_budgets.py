"""Budgets hold within half of themselves, however slow the machine is, and whatever comes meanwhile."""

import math
import threading
import time

import numpy as np
import pandas as pd
import pytest
import torch

from lib import store
from lib.config.notebooks import MachineParams, ProfileParams, SweepParams
from lib.measure import ceilings
from lib.measure import probes as ceiling_probes
from lib.measure.operators import device_sweep
from lib.measure.training import matrix, profile_run
from lib.work.training import Trainer
from tests import refused, row
from tests.visitors import Visitor, identified


@pytest.fixture
def probes(clock, home, monkeypatch):
    """Return what puts other probes in the place of a machine's own, given how to build each; overheads take their budget."""
    def overheads(device, budget_s):
        clock.work(budget_s)
        return row("overheads", device="cpu", what="launch")

    def use(*builds):
        made = [ceiling_probes.Probe("fp32", "RAM" if number % 2 else "compute", f"torch.mm {number}",
                               1e9 * (1 - number % 2), 1e6, build) for number, build in enumerate(builds)]
        monkeypatch.setattr(ceiling_probes, "compute_probes", lambda p, device: made)
        monkeypatch.setattr(ceiling_probes, "triad_probes", lambda p, device, threads: [])

    monkeypatch.setattr(ceiling_probes, "overheads", overheads)
    return use


def measured(**more):
    return ceilings.measure_ceilings(MachineParams(budget_s=15, device="cpu", **more))


@pytest.mark.parametrize("call_s", [1e-4, 0.25])
def test_ceilings(clock, probes, call_s):
    probes(*[lambda: clock.work(0.1) or (lambda: clock.work(call_s))] * 40)
    found = measured()
    assert clock.spent_s <= 1.5 * 15
    assert len(found.table) == 40
    assert set(found.table["verdict"]) == {"unusable"}, "two cores were taken"
    assert set(found.best["level"]) == {"compute", "RAM"}, "and still there is a best"
    assert "UNUSABLE" in found.warning


def test_probes_for_which_memory_runs_out_are_named_and_the_others_measured(clock, probes):
    def without_room():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    probes(without_room)
    with refused("cpu has too little memory left: no probe of its ceilings fits"):
        measured()
    probes(*[lambda: lambda: clock.work(1e-3)] * 2, without_room, without_room)
    found = measured()
    assert found.table["method"].tolist() == ["torch.mm 0", "torch.mm 1"]
    assert found.note.endswith("Memory ran out for torch.mm 2 in fp32, torch.mm 3 in fp32.")


@pytest.mark.parametrize("step_s, slow_from, epochs", [
    (0.3, np.inf, 1_000_000), (6.0, np.inf, 1), (0.2, 8, 1)])
@pytest.mark.slow
def test_a_profiled_run(clock, home, monkeypatch, step_s, slow_from, epochs):
    place = Trainer._place
    clock.slow_from, clock.factor = slow_from, 4.0

    def slow(self, inputs):
        clock.work(step_s * (1.0 if self.model.training else 0.4))
        return place(self, inputs)

    monkeypatch.setattr(Trainer, "_place", slow)
    run = profile_run.measure(
        ProfileParams(workload="W6", device="cpu", data_source="synthetic", budget_s=24, iters=0, threads=1, epochs=epochs))
    assert clock.spent_s <= 1.5 * 24
    counts = run.rows[~run.rows["warmup"]]["task_type"].value_counts()
    assert set(counts.index) == {"train", "eval", "test"}
    assert run.run["verdict"] == "unusable"
    if step_s == 0.3:
        assert counts["train"] > 10, "and what it has is used"


class Even(Visitor):
    """A worker whose visits take a quarter of a second each."""

    def ready(self):
        return identified(meter="constant")

    def visit(self, config, ops):
        time.sleep(0.25)
        return {**super().visit(config, ops), "visit_s": 0.25}

    def energy(self, config, ops, seconds):
        """Loop as long as it may, and give the length as joules."""
        time.sleep(seconds)
        return {"energy_j": seconds, "calls": 1, "loop_s": seconds, "power_w": 1.0, "idle_w": 0.0, "energy_method": "constant",
                "energy_n": 100, "energy_disagreement": math.nan, "energy_reason": ""}


@pytest.fixture
def even(clock, home, monkeypatch):
    monkeypatch.setattr(device_sweep, "Visitor", Even)


def drive(folder, **more):
    p = SweepParams(op="activation", device="cpu", rounds=4, **{"budget_s": 20.0, **more})
    device = device_sweep.DeviceSweep("cpu", p, folder, threading.Event())
    device.ready()
    device.run()
    device.close()
    assert device.failure == ""
    return store.read(folder / "cpu/repeats.csv", "repeats")


def test_a_sweep_spreads_it_over_all_rounds_and_an_earlier_call_counts(clock, even, tmp_path):
    visits = drive(tmp_path)
    assert clock.spent_s == 20.0
    orders = [tuple(part["config"]) for _, part in visits.groupby("round")]
    assert [len(set(order)) for order in orders] == [20] * 4
    assert len(set(orders)) == 4, "each round has its own order"
    assert len(drive(tmp_path)) == len(visits), "all of it was spent before"
    assert clock.spent_s == 20.0


@pytest.mark.parametrize("budget_s, energy_s, points", [(60.0, 3.0, range(10, 17)), (4.0, 5.0, {1})])
def test_a_sweep_with_energies_has_as_many_points_as_their_loops_leave_time_for(clock, even, tmp_path, budget_s, energy_s,
                                                                                points):
    for _ in range(2):  # the second call finds the budget spent, and all energies there
        visits = drive(tmp_path, budget_s=budget_s, energy_s=energy_s)
    loops = store.read(tmp_path / "cpu/energies.csv", "energies")
    assert clock.spent_s <= 1.5 * budget_s
    assert visits["config"].nunique() in points
    assert sorted(loops["config"]) == sorted(set(visits["config"])), "each point has its energy"
    assert loops["energy_j"].max() <= energy_s


def test_a_matrix_starts_no_run_that_would_end_too_late(clock, home, monkeypatch):
    cells = [matrix.Cell(f"box/net{number}/b1/fp32", matrix.workload_of("pathmnist-28", "resnet18", 1),
                         ProfileParams(device="cpu")) for number in range(9)]

    def measure(p, workload):
        clock.work(7.0)
        return pd.Series({"verdict": "stable", "run_id": "r", "images_per_sec": 1.0})

    monkeypatch.setattr(matrix, "in_a_process", measure)
    rows = matrix.run_matrix(cells, 1, budget_s=20)
    assert len(rows) == 3
    assert clock.spent_s <= 1.5 * 20
