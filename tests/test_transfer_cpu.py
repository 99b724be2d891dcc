"""A CPU without a model of its own: the nearest reference model, its scaling by measured ceilings, calibrated compositions."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import machines
from lib import locks, paths, store
from lib.config.definitions import JobClass
from lib.finetune import finished
from lib.measure import disturbance, machine
from lib.predict import calibrate_networks, network_training, registry, steps, transfer_cpu
from lib.predict.advice import advise_text
from lib.predict.analytic.scaling import Scaling
from lib.predict.networks.composition import Composition
from lib.predict.operators.cost_model import CostModel
from lib.predict.scores import score
from lib.predict.transfer_cpu import Host
from lib.schedule import scenarios
from lib.schedule.run import slots
from lib.tables import columns
from lib.work import networks
from tests import advice_on, called

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("flops, moved, ms, scaled_ms", [
    (0.0, 1e8, 11.0, 14), (1e9, 1e8, 20.0, 30), (1e9, 1e8, 16.0, 24)])
def test_known_answers_of_a_scaling(flops, moved, ms, scaled_ms):
    """The roofs are 10, 20 and 20 ms."""
    scaling = Scaling(compute=0.5, memory=1.0, rest=0.25, gflops=100.0, gbps=10.0)
    assert scaling.scaled_ms(ms, flops, moved) == pytest.approx(scaled_ms)


@pytest.fixture(scope="module")
def reference():
    return registry.shipped_cpu("fp32")


@pytest.fixture(scope="module")
def swept():
    """Give measured kernels of the reference CPU, of all families but convolutions."""
    table = store.read(next(paths.REFERENCE.glob("*/sweeps/others_kernel_cold/sweep.parquet")), "sweep")
    return table[table["status"] == "ok"]


@pytest.fixture(scope="module")
def measured(swept):
    return swept.groupby("op").head(20)


def _save_ceilings(peak_gflops=100.0, peak_gbps=10.0, touch_us=2.0, core_us=0.0, number=1, **changed):
    """Write ceilings as 01_machine would; 0 us were not measured."""
    shared = {"device": "cpu", "threads": torch.get_num_threads(), "source": "measured", "method": "test", "n": 9,
              "working_set_mb": 1.0, "p99_us": 1.0, "verdict": "stable", **machine.ids(), **changed}
    tables = {"ceilings": [{"dtype": "fp32", "level": "compute", "peak_gflops": peak_gflops},
                           {"dtype": "fp64", "level": "RAM", "peak_gbps": peak_gbps}],
              "overheads": [{"what": "first_touch", "median_us": touch_us},
                            *({"what": what, "median_us": core_us} for what in ("launch", "timer_call"))]}
    for name, rows in tables.items():
        table = pd.DataFrame([shared | row | changed for row in rows], columns=columns(name))
        store.write(table, paths.CEILINGS / f"{name}_cpu-v{number}.csv", name)


def _cpu_and_without_ceilings():
    """Return what is advised of this machine's CPU, and whether it would be scaled by ceilings if there were any."""
    row = advice_on("cpu", "simple_cnn", 4, "3x28x28").table.iloc[0]
    return row, registry.predictor("cpu", "fp32").is_unscaled


def test_with_another_number_of_threads_it_is_another_machine(home, monkeypatch, reference):
    monkeypatch.setattr(registry, "SHIPPED", paths.MODELS)  # which may be of this very machine
    threads = torch.get_num_threads()
    own = transfer_cpu.scaled(reference, Host(**transfer_cpu.identity(), peak_gflops=100.0, peak_gbps=10.0,
                                              first_touch_ms_per_mb=None, core_us=1.0))
    own = replace(own, device=registry.cpu_here(), parts={name: replace(part, origin="") for name, part in own.parts.items()})
    own.save(registry.path_of(own.device, "fp32"))
    first, without = _cpu_and_without_ceilings()
    assert first["source"] == "predicted" and not without
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    second, without = _cpu_and_without_ceilings()
    assert second["source"] == f"zero-shot from {own.device}, not scaled" and without
    assert second["high_ms"] / second["low_ms"] > 1.5 * first["high_ms"] / first["low_ms"]
    _save_ceilings(50.0, 5.0, core_us=2 * (threads + 1) / threads)
    third, without = _cpu_and_without_ceilings()
    assert third["source"] == (f"zero-shot from {own.device}, scaled by ceilings measured here (compute x0.50, memory x0.50, "
                               "rest x0.50)") and not without
    assert third["predicted_ms"] == pytest.approx(2 * first["predicted_ms"], rel=1e-3) and third["out_of_range"], \
        "all but the cost of a call is scaled"


def test_what_replays_is_the_reference_machine_whatever_was_measured_here(home, monkeypatch):
    classes = [JobClass(id=mode, model="simple_cnn", mode=mode, batch_size=4) for mode in ("infer", "train")]
    results = finished.reference()
    real = registry.for_devices
    monkeypatch.setattr(registry, "for_devices", lambda devices, *how, **named: real(devices or ["cpu", "t4"], *how, **named))

    def replayed():
        return scenarios.class_times(["cpu", "t4"], classes), finished.predicted_steps(results, shipped=True)

    before = replayed()
    _save_ceilings(10.0, 1.0)
    gpu = registry.load(registry.path_of("t4", "fp32", registry.SHIPPED))
    replace(gpu, facts=gpu.facts | {"launch_ms": 9.0}).save(registry.path_of("t4", "fp32"))
    assert registry.for_devices(["t4"], "fp32")[0].roof.launch_us == 9e3, "answers of this machine have changed"
    for one, other in zip(before, replayed(), strict=True):
        pd.testing.assert_frame_equal(one, other)


def test_the_best_ceilings_of_this_machine_and_as_many_threads_count(home):
    here = Host(**transfer_cpu.identity(), peak_gflops=200.0, peak_gbps=20.0, first_touch_ms_per_mb=pytest.approx(2.0),
                doubtful=True)
    assert transfer_cpu.host() is None
    _save_ceilings(hardware_id="deadbeef", number=1)
    _save_ceilings(threads=here.threads + 1, number=2)
    assert transfer_cpu.host() is None
    _save_ceilings(200.0, 20.0, 8.192, number=3, verdict="unusable")
    assert transfer_cpu.host() == here
    _save_ceilings(250.0, 30.0, 4.096, number=4)
    _save_ceilings(300.0, 25.0, 5.0, number=5, core_us=0.5)
    assert transfer_cpu.host() == replace(here, peak_gflops=300.0, peak_gbps=30.0, first_touch_ms_per_mb=pytest.approx(1.0),
                                          doubtful=False, core_us=pytest.approx(0.5), gbps_by_mb={"1": 30.0})


@pytest.mark.parametrize("cores, doubtful, factor", [(0.02, False, 1.5), (0.4, True, 1.0), (1.4, True, 1.0)])
def test_ceilings_measured_beside_other_processes_scale_nothing(cores, doubtful, factor, home, reference, monkeypatch):
    """Rows of a machine a third busy are noisy, not unusable; two answers of one machine differed by 1.5 for them."""
    monkeypatch.setattr(disturbance, "own_cores", lambda: range(torch.get_num_threads()))
    peaks = {name: reference.facts[name] / 1.5 for name in ("peak_gflops", "peak_gbps")}
    _save_ceilings(**peaks, number=1, verdict="noisy")
    seen = {"other_cores": cores, "stolen_cores": 0.0}
    store.write_meta(paths.CEILINGS / "ceilings_cpu-v1.csv", "ceilings", load_at_end=seen)
    here = transfer_cpu.host()
    model = transfer_cpu.transferred([reference], here)[0]
    assert here.doubtful == doubtful and model.facts[transfer_cpu.DOUBTFUL] == doubtful
    assert (model.scaling is None) == doubtful
    assert factor == pytest.approx(1 / model.scaling.compute if model.scaling else 1.0)
    _save_ceilings(**peaks, number=2)
    assert not transfer_cpu.host().doubtful, "a quiet moment counts"


@pytest.mark.parametrize("verb", ["advise simple_cnn --input-size 3x28x28", "advise-op linear gemm_m=64 gemm_k=64 gemm_n=64"])
def test_a_verb_looks_where_it_may_and_again_where_the_machine_was_busy(verb, home, monkeypatch):
    looks, beside = [], [9.0]
    monkeypatch.setattr(disturbance, "wait_for_quiet", lambda *_: disturbance.Load(0.5, 0.0, beside[0], 0.0, 0.0))
    status, out, error = called(*f"{verb} --device cpu --json".split())
    assert status == 0 and not looks and "the answer is not scaled to it: others took 9.0 cores" in error
    beside[0] = 0.0
    monkeypatch.setattr(transfer_cpu, "measure_ceilings", lambda **_: looks.append(_save_ceilings(
        number=len(looks) + 1, verdict="stable" if looks else "unusable")))
    for device, number, busy in (("cpu --no-ceilings", 0, False), ("t4", 0, False), ("cpu", 1, True), ("cpu", 2, False),
                                 ("cpu", 2, False)):
        before = len(looks)
        status, out, error = called(*f"{verb} --device {device} --json".split())
        assert status == 0 and len(looks) == number
        assert ("measuring its ceilings first" in error) == (number > before)
        assert ("zero-shot from cpu-" in out) == ("cpu" in device)
        if verb.startswith("advise "):
            assert (", scaled by ceilings measured here" in out) == (number > 0 and not busy)
            assert ("not scaled: busy here" in out) == ("the ceilings measured here are unusable" in out) == busy


def test_an_answer_does_not_wait_for_another_measurement(home, monkeypatch):
    monkeypatch.setattr(disturbance, "wait_for_quiet", lambda *_: disturbance.Load(0.5, 0.0, 0.0, 0.0, 0.0))
    with locks.device("cpu"):
        status, out, error = called(*"advise-op linear gemm_m=64 gemm_k=64 gemm_n=64 --device cpu --json".split())
    assert status == 0 and "not scaled to this machine: device cpu is being measured by another process" in error
    assert json.loads(out)[0]["device"] == "cpu"


def test_what_was_measured_with_other_threads_is_not_shown_as_measured(reference):
    (predictor,) = registry.for_devices([reference.device.removeprefix("cpu-")], "fp32")
    other = replace(predictor, model=replace(predictor.model, facts=predictor.model.facts | {"threads": 1}))
    assert [[one.measured_operators.empty, one.measured_networks.empty, np.isnan(steps.measured_step_ms(one, "W1", 64))]
            for one in (predictor, other)] == [[False] * 3, [True] * 3]


def test_the_nearest_of_several_reference_machines_by_ceilings(reference):
    small = CostModel("cpu-small-1", reference.facts | {"peak_gflops": 20.0, "peak_gbps": 8.0}, reference.parts)
    chosen = transfer_cpu.transferred([reference, small], Host("1", 2, 30.0, 9.0, None))[0]
    assert chosen.device == "cpu-small-1" and str(chosen.scaling) == "compute x1.50, memory x1.12, rest x1.00"
    assert transfer_cpu.transferred([reference, small], Host("1", 2, 480.0, 40.0, None))[0].device == reference.device
    assert transfer_cpu.transferred([small, reference], None)[0].device == "cpu-small-1"


def test_gemms_scale_by_gemms_memory_by_all_working_sets_of_both_and_the_rest_by_threads_and_cores(reference):
    model = replace(reference, facts=reference.facts | {
        "peak_gflops": 400.0, "gemm_gflops": 200.0, "threads": 4, "core_us": 0.3,
        "gbps_by_mb": {"1": 100.0, "64": 40.0, "2e+03": 9.0}})
    here = Host("1", 2, 100.0, 5.0, None, gemm_gflops=100.0, core_us=0.3, gbps_by_mb={"1": 50.0, "64": 5.0, "0.5": 200.0})
    scalings = {name: part.scaling for name, part in transfer_cpu.scaled(model, here).parts.items()}
    assert {name: (one.compute, one.memory, one.rest) for name, one in scalings.items()} == {
        name: (0.5 if name.startswith(("gemm", "attention")) else 0.25, pytest.approx(0.25), 0.5) for name in model.parts}
    assert [transfer_cpu.scaling(model, replace(here, threads=threads, core_us=core_us)).rest
            for threads, core_us in ((8, 0.6), (1, None))] == pytest.approx([1.0, 0.25])


def _answers(model, table):
    return model.predict(table)[["predicted_ms", "low_ms", "high_ms"]].to_numpy()


def test_where_everything_takes_nine_times_as_long_so_do_the_answers_with_the_same_interval(measured, reference):
    """The interval is that of the time where the model was trained, not of a kernel that takes as long there."""
    model = replace(reference, facts=reference.facts | {"first_touch_ms_per_mb": 0.2})
    there = Host.of(model.facts)
    here = replace(there, peak_gflops=there.peak_gflops / 9, gemm_gflops=there.gemm_gflops / 9, core_us=9 * there.core_us,
                   gbps_by_mb={mb: gbps / 9 for mb, gbps in there.gbps_by_mb.items()},
                   first_touch_ms_per_mb=1.8)
    scaled = transfer_cpu.scaled(model, here)
    assert _answers(scaled, measured) == pytest.approx(9 * _answers(model, measured))
    for case, fitted in model.compositions.items():
        assert scaled.compositions[case].rates == pytest.approx(
            fitted.rates | {"fresh_mb": 9 * fitted.rates["fresh_mb"]})


BASE = {f"{mode} {heap}": Composition({"sum_ms": 0.9, "moved_ms": 0.9, "fresh_mb": 0.25 * (heap == "default")},
                                      0.15 if heap == "kept" else 0.4, 16)
        for mode in ("infer", "train") for heap in ("kept", "default")}


def _networks(count, factor, fresh=0.25, noise=0.05, seed=0):
    """Return networks measured on a machine that takes ``factor`` times as long as the base composition says."""
    draw, rows = np.random.default_rng(seed), []
    for number in range(count):
        own = draw.normal(0, noise)
        for mode in ("infer", "train"):
            terms = {"sum_ms": draw.uniform(20, 200), "moved_ms": draw.uniform(5, 50), "fresh_mb": draw.uniform(0, 400)}
            for heap in ("kept", "default"):
                computing = factor * 0.9 * (terms["sum_ms"] + terms["moved_ms"])
                measured = (computing + fresh * terms["fresh_mb"] * (heap == "default")) * np.exp(own + draw.normal(0, 0.01))
                rows.append({"network": f"n{number}", "mode": mode, "memory": heap, "latency_ms": measured, "outside": 0.0,
                             "moment": 0, **terms})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("factor, fresh", [(1.4, 0.25), (0.7, 0.6)])
def test_a_few_networks_calibrate_the_compositions_of_both_heaps(factor, fresh):
    corrected = calibrate_networks.calibrated(BASE, _networks(5, factor, fresh, seed=1))
    for case, rows in _networks(60, factor, fresh, seed=2).groupby(["mode", "memory"]):
        fitted, base = corrected[" ".join(case)], BASE[" ".join(case)]
        predicted, low, high = np.transpose([fitted.predict(row) for row in rows.to_dict("records")])
        error = score(rows["latency_ms"], predicted)
        assert fitted.networks == 5 and abs(error["bias"]) < 8 and error["mape"] < 10
        assert rows["latency_ms"].between(low, high).mean() >= 0.85
        assert fitted.half < 0.9 * base.half or "kept" in case


def test_a_mode_with_one_network_keeps_its_composition_and_one_heap_calibrates_both():
    few, one = _networks(4, 1.5).query("mode == 'infer' and memory == 'default'"), _networks(1, 1.5).query("mode == 'train'")
    rows = pd.concat([few, one], ignore_index=True)
    corrected = calibrate_networks.calibrated(BASE, rows)
    assert corrected["train kept"] == BASE["train kept"] and corrected["train default"] == BASE["train default"]
    assert corrected["infer kept"].rates["sum_ms"] > 1.2 * 0.9 and corrected["infer kept"].scores == {}
    assert corrected["infer default"].scores["n"] == 4


def test_advice_and_slots_have_fewer_threads_beside_a_busy_neighbour(home, monkeypatch):
    advice, of_gpu = (advice_on(device, "simple_cnn", 1, "3x28x28") for device in ("cpu", "t4"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(slots, "allowed_cores", lambda: [0, 1])
    monkeypatch.setattr(disturbance, "free_cores", lambda: 2)
    assert advise_text.cpu_load_note(advice, 2).startswith("The CPU's time is that of an idle machine with 2 threads")
    assert slots.slots_here(1)[0].threads == 2
    monkeypatch.setattr(disturbance, "free_cores", lambda: 1)
    note = advise_text.cpu_load_note(advice, 1)
    assert note.endswith("; others hold cores now: set OMP_NUM_THREADS=1 meanwhile.")
    for count in (1, 2):
        assert [slot.threads for slot in slots.slots_here(count) if slot.cores] == [1] * count
    assert advise_text.cpu_load_note(of_gpu, 1) == "" and "note" not in advise_text.records(of_gpu)[0]


def test_no_family_that_was_fitted_to_validates():
    tuning, calibrating, unseen, others = (
        {networks.family(name) for name in names if not name.startswith("benchmarks.")}
        for names in (network_training.TUNING, calibrate_networks.NETWORKS, machines.UNSEEN, machines.OTHERS))
    assert not (tuning | calibrating) & unseen and not calibrating & others
