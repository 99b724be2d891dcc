"""Budgets hold within half of themselves, however slow the machine is, and whatever comes meanwhile."""

import math
import queue
import threading
import time

import numpy as np
import pandas as pd
import pytest
import torch

from lib import store
from lib.config.notebooks import MachineParams, ProfileParams, SweepParams
from lib.errors import InputError
from lib.measure import ceilings, load
from lib.measure.budget import Budget
from lib.measure.gpus.watch import GpuUse
from lib.measure.operators import device_sweep, isolated, points
from lib.measure.training import matrix, profile_run
from lib.tables import columns
from lib.work.training import Trainer

BUSY = load.Load(1.0, 1.0, 2.0, 0.0, 0.0)
IDENTITY = {"hardware": {"gpus": []}, "software_id": "s", "threads": 1}


class Clock:
    """A clock that only moves when told; work takes ``factor`` times as long from ``slow_from`` on."""

    def __init__(self, slow_from=np.inf, factor=1.0):
        self.now, self._slow_from, self._factor = 1000.0, slow_from, factor

    def work(self, seconds):
        self.now += seconds * (self._factor if self.now - 1000 > self._slow_from else 1.0)


@pytest.fixture
def clock(monkeypatch):
    """Put a clock in the place of the machine's own, on a machine where others hold all cores."""
    store.git_state()  # waits for a process, by the real clock
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: int(made.now * 1e9))
    monkeypatch.setattr(time, "sleep", made.work)
    monkeypatch.setattr(load.LoadWatch, "reading", lambda self: BUSY)
    return made


def spent_s(clock):
    return clock.now - 1000


def test_a_budget_counts_from_its_start_and_waits_for_a_part_of_itself(clock):
    budget = Budget(20)
    clock.now += 5
    assert (budget.left_s, budget.spent, budget.patience_s) == (15, False, 3.0)
    clock.now += 16
    assert (budget.left_s, budget.spent) == (0, True)
    assert (Budget(0).left_s, Budget(0).spent, Budget(0).patience_s) == (np.inf, False, 10.0)
    load.wait_for_quiet(2, patience_s=3.0)
    assert spent_s(clock) <= 21 + 3.5


@pytest.mark.parametrize("call_s", [1e-4, 0.02, 0.25])
def test_ceilings(clock, home, monkeypatch, call_s):
    def probe(number):
        row = {"dtype": "fp32", "level": "compute" if number % 2 else "RAM", "method": str(number)}
        return ceilings.Probe(row, 1e9 * (number % 2), 1e6, lambda: clock.work(0.1) or (lambda: clock.work(call_s)))

    monkeypatch.setattr(ceilings, "_compute_probes", lambda p, device: [probe(number) for number in range(40)])
    monkeypatch.setattr(ceilings, "_triad_probes", lambda p, device, threads: [])
    monkeypatch.setattr(ceilings, "overheads", lambda device, budget_s: clock.work(budget_s) or pd.DataFrame(
        [dict.fromkeys(columns("overheads"), 1.0) | {"device": "cpu", "what": "launch", "n": 9, "method": "none"}],
        columns=columns("overheads")))
    found = ceilings.measure_ceilings(MachineParams(budget_s=15, device="cpu"))
    assert spent_s(clock) <= 1.5 * 15
    assert len(found.table) == 40
    assert (found.table["n"] >= 1).all()
    assert set(found.table["verdict"]) == {"unusable"}, "two cores were taken"
    assert set(found.best["level"]) == {"compute", "RAM"}, "and still there is a best"
    assert "UNUSABLE" in found.warning


@pytest.mark.parametrize("wanted", [{"triad_max_mb": 60_000}, {"gemm_max": 32_768}])
def test_ceilings_of_sizes_that_take_longer_than_there_is(clock, home, monkeypatch, wanted):
    def triad(elements, device):
        clock.work(24 * elements / 2e9)
        return lambda: clock.work(24 * elements / 1e10)

    def gemm(dtype, n, device):
        if n > 256:
            clock.work(n**2 / 1e8)
        return lambda: clock.work(2 * n**3 / 1e12)

    monkeypatch.setattr(ceilings, "_triad", triad)
    monkeypatch.setattr(ceilings, "_gemm", gemm)
    monkeypatch.setattr(ceilings, "_convolution", lambda dtype, batch, device: lambda: clock.work(0.01))
    monkeypatch.setattr(ceilings.machine, "levels", lambda device, threads: {"L1": 2**16, "L2": 2**21, "L3": 2**25})
    monkeypatch.setattr(ceilings.machine, "free_bytes", lambda device: 2e11)
    monkeypatch.setattr(ceilings, "overheads", lambda device, budget_s: pd.DataFrame(
        [dict.fromkeys(columns("overheads"), 1.0) | {"device": "cpu", "what": "launch", "n": 9, "method": "none"}],
        columns=columns("overheads")))
    found = ceilings.measure_ceilings(MachineParams(budget_s=15, device="cpu", **wanted))
    assert spent_s(clock) <= 1.5 * 15
    assert {"compute", "L2", "L3", "RAM"} <= set(found.table["level"])
    expected = "Working sets end at" if "triad_max_mb" in wanted else "No GEMM of gemm_max = 32768 was measured"
    assert expected in found.note


def test_products_fit_into_the_free_memory(monkeypatch):
    monkeypatch.setattr(ceilings, "_first_rate", lambda dtype, device: 1e14)
    monkeypatch.setattr(ceilings.machine, "free_bytes", lambda device: 3e10)
    probes = ceilings._compute_probes(MachineParams(gemm_max=32_768, budget_s=3600), ceilings.machine.device("cpu"))
    sizes = [int(probe.row["method"].split("x")[-1]) for probe in probes if probe.row["method"].startswith("torch.mm")]
    assert max(sizes) == 16_384


@pytest.mark.parametrize(("free", "fits"), [(1e8, True), (6e7, False)])
def test_convolutions_fit_into_the_free_memory(monkeypatch, free, fits):
    monkeypatch.setattr(ceilings, "_first_rate", lambda dtype, device: 1e14 if dtype == "fp32" else 0.0)
    monkeypatch.setattr(ceilings.machine, "free_bytes", lambda device: free)
    probes = ceilings._compute_probes(MachineParams(budget_s=3600), ceilings.machine.device("cpu"))
    assert any("conv2d" in probe.row["method"] for probe in probes) is fits, "17 MB of images and outputs"


@pytest.mark.parametrize("fitting", [2, 0])
def test_probes_for_which_memory_runs_out_are_named_and_the_others_measured(clock, home, monkeypatch, fitting):
    def probe(number):
        def build():
            if number >= fitting:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return lambda: clock.work(1e-3)

        return ceilings.Probe({"dtype": "fp32", "level": "compute", "method": f"torch.mm {number}"}, 1e9, 1e6, build)

    monkeypatch.setattr(ceilings, "_compute_probes", lambda p, device: [probe(number) for number in range(4)])
    monkeypatch.setattr(ceilings, "_triad_probes", lambda p, device, threads: [])
    monkeypatch.setattr(ceilings, "overheads", lambda device, budget_s: pd.DataFrame(
        [dict.fromkeys(columns("overheads"), 1.0) | {"device": "cpu", "what": "launch", "n": 9, "method": "none"}],
        columns=columns("overheads")))
    if not fitting:
        with pytest.raises(InputError, match="cpu has too little memory left: not one probe of its ceilings fits"):
            ceilings.measure_ceilings(MachineParams(budget_s=15, device="cpu"))
        return
    measured = ceilings.measure_ceilings(MachineParams(budget_s=15, device="cpu"))
    assert measured.table["method"].tolist() == ["torch.mm 0", "torch.mm 1"]
    assert measured.note.endswith("Memory ran out for torch.mm 2 in fp32, torch.mm 3 in fp32.")


@pytest.mark.parametrize(("step_s", "slow_from", "epochs"), [
    (0.05, np.inf, 1), (0.5, np.inf, 1), (3.0, np.inf, 1), (6.0, np.inf, 1), (0.2, 8, 1), (0.5, np.inf, 1_000_000)])
def test_a_profiled_run(clock, home, monkeypatch, step_s, slow_from, epochs):
    place = Trainer._place
    clock._slow_from, clock._factor = slow_from, 4.0

    def slow(self, inputs):
        clock.work(step_s * (1.0 if self.model.training else 0.4))
        return place(self, inputs)

    monkeypatch.setattr(Trainer, "_place", slow)
    run = profile_run.measure(
        ProfileParams(workload="W6", device="cpu", data_source="synthetic", budget_s=24, iters=0, threads=1, epochs=epochs))
    assert spent_s(clock) <= 1.5 * 24
    counts = run.rows[~run.rows["warmup"]]["task_type"].value_counts()
    assert set(counts.index) == {"train", "eval", "test"}
    assert run.run["verdict"] == "unusable"
    assert "others took 2.0 cores" in run.run["reason"]
    if step_s < 0.1:
        assert counts["train"] > 50, "and what it has is used"


class Even:
    """A worker whose visits take a quarter of a second each."""

    def __init__(self, device, p):
        self._device = device

    def ready(self):
        return {"device": self._device, **IDENTITY}

    def visit(self, config, ops):
        time.sleep(0.25)
        return {"latency_ms": 1.0, "spread_ms": 0.01, "yardstick_ms": 1.0, "n": 5, "calls": 5, "at_s": 0.0, "visit_s": 0.25,
                "other_cores": 0.0, "stolen_cores": 0.0, "status": "ok", "reason": "",
                **GpuUse().columns}

    def shut_down(self):
        pass


def drive(p, folder):
    device_sweep.DeviceSweep("cpu", p, folder, queue.Queue(), threading.Event(), points.Points(p)).run()
    return store.read(folder / "cpu" / "repeats.csv", "repeats")


def test_a_sweep_spreads_it_over_all_rounds_and_an_earlier_call_counts(clock, home, monkeypatch, tmp_path):
    monkeypatch.setattr(device_sweep, "Visitor", Even)
    p = SweepParams(op="activation", device="cpu", budget_s=20.0, rounds=4)
    visits = drive(p, tmp_path)
    assert spent_s(clock) == 20.0
    assert list(visits.groupby("round")["config"].nunique()) == [20, 20, 20, 20]
    orders = [list(part["config"]) for _, part in visits.groupby("round")]
    assert len({tuple(order) for order in orders}) == 4, "each round has its own order"
    assert len({tuple(sorted(order)) for order in orders}) == 1
    assert len(drive(p, tmp_path)) == len(visits), "all of it was spent before"
    assert spent_s(clock) == 20.0


class Metered(Even):
    """One whose loops take as long as they may, and give their length as joules."""

    def ready(self):
        return {"device": self._device, "meter": "constant", **IDENTITY}

    def energy(self, config, ops, seconds):
        time.sleep(seconds)
        return {"energy_j": seconds, "calls": 1, "loop_s": seconds, "power_w": 1.0, "idle_w": 0.0, "energy_method": "constant",
                "energy_n": 100, "energy_disagreement": math.nan, "energy_reason": ""}


@pytest.mark.parametrize(("budget_s", "energy_s", "points"), [(60.0, 3.0, range(10, 17)), (20.0, 5.0, range(3, 5)),
                                                              (4.0, 5.0, {1})])
def test_a_sweep_with_energies_has_as_many_points_as_their_loops_leave_time_for(clock, home, monkeypatch, tmp_path, budget_s,
                                                                                energy_s, points):
    monkeypatch.setattr(device_sweep, "Visitor", Metered)
    for _ in range(2):  # the second call finds the budget spent, and all energies there
        drive(SweepParams(op="activation", device="cpu", budget_s=budget_s, rounds=4, energy_s=energy_s), tmp_path)
    loops = store.read(tmp_path / "cpu" / "energies.csv", "energies")
    visits = store.read(tmp_path / "cpu" / "repeats.csv", "repeats")
    assert spent_s(clock) <= 1.5 * budget_s
    assert visits["config"].nunique() in points
    assert len(loops) == visits["config"].nunique(), "each point has its energy"
    assert loops["energy_j"].max() <= energy_s
    assert loops["config"].is_unique


def test_a_sweep_that_is_slow_to_start_has_a_point(clock, home, monkeypatch, tmp_path):
    monkeypatch.setattr(device_sweep, "Visitor", Even)
    drawn = points.spaces.several
    monkeypatch.setattr(points.spaces, "several", lambda *them: (clock.work(8) or one for one in drawn(*them)))
    visits = drive(SweepParams(op="activation", device="cpu", budget_s=20.0, rounds=4), tmp_path)
    assert len(visits) >= 4
    assert spent_s(clock) <= 1.5 * 20


def test_a_sweep_on_a_machine_that_becomes_slower(clock, home, monkeypatch, tmp_path):
    monkeypatch.setattr(device_sweep, "Visitor", Even)
    clock._slow_from, clock._factor = 6, 8.0
    p = SweepParams(op="activation", device="cpu", budget_s=20.0, rounds=4)
    visits = drive(p, tmp_path)
    assert spent_s(clock) <= 1.5 * 20
    assert visits["round"].max() >= 1


def test_networks_and_operators_one_by_one(clock, monkeypatch):
    def item(kind, seconds):
        return isolated.Item({"kind": kind, "label": "x"}, lambda: lambda: clock.work(seconds))

    items = [item("network", 1.0), item("network", 0.5), *[item("operator", 0.1)] * 20]
    samples, failed = isolated._timed(items, isolated.machine.device("cpu"), Budget(20))
    assert spent_s(clock) <= 1.5 * 20
    assert all(len(part) for part in samples)
    assert not failed


def test_a_matrix_starts_no_run_that_would_end_too_late(clock, home, monkeypatch):
    cells = [matrix.Cell(f"box/net{number}/b1/fp32", matrix.workload_of("pathmnist-28", "resnet18", 1),
                         ProfileParams(device="cpu")) for number in range(9)]

    def measure(p, workload):
        clock.work(7.0)
        return pd.Series({"verdict": "stable", "run_id": "r", "images_per_sec": 1.0})

    rows = matrix.run_matrix(cells, 1, budget_s=20, measure=measure)
    assert len(rows) == 3
    assert spent_s(clock) <= 1.5 * 20
