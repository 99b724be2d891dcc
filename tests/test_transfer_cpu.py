"""A CPU without a model of its own: the nearest reference model, its scaling by measured ceilings, calibrated compositions."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import machines
from lib import __main__, locks, paths, store
from lib.config.definitions import JobClass
from lib.config.notebooks import FinetuneParams
from lib.errors import InputError
from lib.measure import archive, ceilings, load, machine
from lib.predict import calibrate_networks, network_training, registry, steps, transfer_cpu
from lib.predict.advice import advise, advise_text
from lib.predict.advice.query import Query
from lib.predict.analytic.scaling import Scaling
from lib.predict.networks import calibration
from lib.predict.networks.composition import Composition
from lib.predict.networks.step_file import StepModel
from lib.predict.operators import inputs
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.fine_tuning import fine_tuned
from lib.predict.transfer_cpu import Host
from lib.schedule.runtime import local_site
from lib.studies.finetune import study as finetune_study
from lib.studies.scheduler_eval import scenario
from lib.work import networks

RATES = st.floats(1e-3, 1e3)
TIMES = st.floats(1e-3, 1e6)  # ms
WORK = st.integers(0, 10**13).map(float)  # FLOPs, bytes


@given(TIMES, WORK, WORK, st.tuples(RATES, RATES, RATES), RATES, RATES)
def test_an_operator_takes_longer_by_no_more_than_the_slowest_of_all_ratios(ms, flops, moved, ratios, gflops, gbps):
    scaled = float(Scaling(*ratios, gflops, gbps).scaled_ms(ms, flops, moved))
    assert ms / max(ratios) * (1 - 1e-9) <= scaled <= ms / min(ratios) * (1 + 1e-9)


def _between(first, other):
    """Return the scaling from one CPU's peak GFLOP/s, GB/s and speed of the rest to another's."""
    return Scaling(*np.divide(other, first), *first[:2])


MACHINES = st.tuples(RATES, RATES, RATES)


@given(MACHINES, MACHINES, MACHINES, TIMES, WORK, WORK)
def test_scaling_by_way_of_a_third_machine_is_the_same(one, two, three, ms, flops, moved):
    direct = _between(one, three).scaled_ms(ms, flops, moved)
    by_way = _between(two, three).scaled_ms(_between(one, two).scaled_ms(ms, flops, moved), flops, moved)
    assert direct == pytest.approx(by_way)
    assert _between(two, three).after(_between(one, two)).scaled_ms(ms, flops, moved) == pytest.approx(direct)
    assert _between(one, one).scaled_ms(ms, flops, moved) == pytest.approx(ms)


def test_known_answers_of_a_scaling():
    half_the_flops = _between((100.0, 10.0, 1.0), (50.0, 10.0, 0.25))
    flops, moved = np.array([1e9, 0.0, 1e9, 0.0, 1e9]), np.array([0.0, 1e8, 1e8, 0.0, 1e8])
    ms = np.array([10.0, 10.0, 20.0, 1.0, 16.0])  # the roofs are 10, 10, 20, 0 and 20
    assert half_the_flops.scaled_ms(ms, flops, moved) == pytest.approx([20, 10, 30, 4, 24])
    assert half_the_flops.scaled_ms(ms + 1, flops, moved)[:4] == pytest.approx([24, 14, 34, 8])
    assert str(half_the_flops) == "compute x0.50, memory x1.00, rest x0.25"


def _save_ceilings(peak_gflops=100.0, peak_gbps=10.0, touch_us=2.0, threads=0, hardware_id="", number=1, verdict="stable",
                   core_us=0.0):
    """Write ceilings as 01_machine would."""
    ids = {**machine.ids(), **({"hardware_id": hardware_id} if hardware_id else {})}
    shared = {"device": "cpu", "threads": threads or torch.get_num_threads(), "source": "measured", "method": "test",
              "working_set_mb": 1.0, "median_ms": 1.0, "iqr_ms": 0.0, "n": 9, "verdict": verdict, **ids}
    rows = [{**shared, "dtype": "fp32", "level": "compute", "peak_gflops": peak_gflops, "peak_gbps": np.nan},
            {**shared, "dtype": "fp64", "level": "RAM", "peak_gflops": np.nan, "peak_gbps": peak_gbps}]
    us_by_what = {"first_touch": touch_us, "launch": core_us, "timer_call": core_us}
    overheads = [{"device": "cpu", "what": what, "median_us": us, "p99_us": us, "n": 4, "method": "test", **ids}
                 for what, us in us_by_what.items() if us]
    path = paths.CEILINGS / f"ceilings_cpu-v{number}.csv"
    store.write(pd.DataFrame(rows, columns=ceilings.columns("ceilings")), path, "ceilings")
    store.write_meta(path, "ceilings", **{**machine.identity(), "started_utc": f"2026-01-0{number}"})
    store.write(pd.DataFrame(overheads, columns=ceilings.columns("overheads")),
                path.with_name(f"overheads_cpu-v{number}.csv"), "overheads")


def test_a_cpu_without_a_model_is_scaled_by_its_ceilings_and_says_so(home):
    query = Query("simple_cnn", 4, "3x28x28")
    before = advise.advise(query, ["cpu"]).table.iloc[0]
    assert advise.without_ceilings(registry.predictor("cpu", "fp32")) and "scaled" not in before["source"]
    reference = registry.shipped_cpu("fp32")
    rest = torch.get_num_threads() / reference.facts["threads"] / 3
    _save_ceilings(reference.facts["peak_gflops"] / 3, reference.facts["peak_gbps"] / 3, core_us=3 * reference.facts["core_us"])
    after = advise.advise(query, ["cpu"]).table.iloc[0]
    assert not advise.without_ceilings(registry.predictor("cpu", "fp32"))
    assert after["source"] == (f"zero-shot from {reference.device}, scaled by ceilings measured here (compute x0.33, "
                               f"memory x0.33, rest x{rest:.2f})")
    assert after["out_of_range"] and after["predicted_ms"] > 2.5 * before["predicted_ms"]
    assert after["high_ms"] / after["low_ms"] >= before["high_ms"] / before["low_ms"]


def test_what_replays_is_the_reference_machine_whatever_was_measured_here(home):
    classes = [JobClass(id="small", model="simple_cnn", mode="infer", batch_size=4),
               JobClass(id="trained", model="simple_cnn", mode="train", batch_size=4)]
    results = finetune_study.study(FinetuneParams(source="replay"))
    before = scenario.step_times(["cpu", "t4"], classes).table, finetune_study.predicted(results, shipped=True)
    _save_ceilings(10.0, 1.0)
    gpu = registry.load(registry.path_of("t4", "fp32", registry.SHIPPED))
    replace(gpu, facts={**gpu.facts, "launch_ms": 9.0}).save(registry.path_of("t4", "fp32"))
    learned = StepModel.load(min((registry.SHIPPED / steps.FOLDER).glob(f"cpu-*{steps.SUFFIX}")))
    slower = {name: replace(one, rates={term: 9 * rate for term, rate in one.rates.items()})
              for name, one in learned.costs.items()}
    for name in (f"cpu-{machine.name()}", "t4"):
        replace(learned, device=name, costs=slower).save(steps.path_of(name))
    assert registry.for_devices(["t4"], "fp32")[0].roof.launch_us == 9e3, "answers of this machine have changed"
    after = scenario.step_times(["cpu", "t4"], classes).table, finetune_study.predicted(results, shipped=True)
    for one, other in zip(before, after, strict=True):
        pd.testing.assert_frame_equal(one, other)


def test_the_best_ceilings_of_this_machine_and_as_many_threads_count(home):
    assert transfer_cpu.host() is None
    _save_ceilings(hardware_id="deadbeef", number=1)
    _save_ceilings(threads=torch.get_num_threads() + 1, number=2)
    assert transfer_cpu.host() is None
    own = machine.ids()["hardware_id"]
    _save_ceilings(200.0, 20.0, 8.192, number=3, verdict="unusable")
    assert transfer_cpu.host() == Host(own, torch.get_num_threads(), 200.0, 20.0, pytest.approx(2.0), True,
                                       gbps_by_mb={"1": 20.0})
    _save_ceilings(250.0, 30.0, 4.096, number=4)
    _save_ceilings(300.0, 25.0, 5.0, number=5, core_us=0.5)
    assert transfer_cpu.host() == Host(own, torch.get_num_threads(), 300.0, 30.0, pytest.approx(1.0),
                                       core_us=pytest.approx(0.5), gbps_by_mb={"1": 30.0})


def test_a_look_on_a_busy_machine_says_so_and_is_repeated(home, monkeypatch, capsys):
    looks = []
    monkeypatch.setattr(transfer_cpu, "look", lambda **_: looks.append(_save_ceilings(
        number=len(looks) + 1, verdict="stable" if looks else "unusable")))
    arguments = "advise simple_cnn --input 3x28x28 --device cpu --json".split()
    for number in (1, 2, 2):
        assert __main__.main(arguments) == 0 and len(looks) == number
        assert ("measured here, on a busy machine," in capsys.readouterr().out) == (number == 1)


def test_the_nearest_of_several_reference_machines_by_ceilings(home):
    first = registry.shipped_cpu("fp32")
    small = CostModel("cpu-small-1", {**first.facts, "peak_gflops": 20.0, "peak_gbps": 8.0}, first.parts)
    here = Host("1", 2, 30.0, 9.0, None)
    chosen = transfer_cpu.nearest([first, small], here)
    assert chosen.device == "cpu-small-1" and str(chosen.scaling) == "compute x1.50, memory x1.12, rest x1.00"
    assert transfer_cpu.nearest([first, small], Host("1", 2, 480.0, 40.0, None)).device == first.device
    assert transfer_cpu.nearest([small, first], None).device == "cpu-small-1"


def test_gemms_scale_by_gemms_and_memory_by_all_working_sets_of_both():
    model = replace(registry.shipped_cpu("fp32"))
    by_mb = {"1": 100.0, "64": 40.0, "2e+03": 9.0}
    model.facts = {**model.facts, "peak_gflops": 400.0, "gemm_gflops": 200.0, "gbps_by_mb": by_mb}
    here = Host("1", 2, 100.0, 5.0, None, gemm_gflops=100.0, gbps_by_mb={"1": 50.0, "64": 5.0, "0.5": 200.0})
    parts = transfer_cpu.scaled(model, here).parts
    assert {name: part.scaling.compute for name, part in parts.items()} == {
        name: 0.5 if name.startswith(("gemm", "attention")) else 0.25 for name in parts}
    assert [part.scaling.memory for part in parts.values()] == pytest.approx([0.25] * len(parts))
    bare = transfer_cpu.scaled(model, Host("1", 2, 100.0, 12.0, None))
    assert bare.parts["gemm forward"].scaling == bare.scaling
    assert bare.scaling.memory == 12.0 / model.facts["peak_gbps"]


def test_fresh_memory_costs_more_as_its_first_touch_does_or_else_the_bandwidth():
    model = registry.shipped_cpu("fp32")
    facts = model.facts
    known = replace(model, facts={**facts, "first_touch_ms_per_mb": 0.2})
    slower = "1", 2, facts["peak_gflops"], facts["peak_gbps"] / 2
    for base, touch, expected in ((known, 0.5, lambda rate: 2.5 * rate), (known, None, lambda rate: 2.0 * rate),
                                  (model, 0.5, lambda rate: 0.5 if rate else 0.0)):
        scaled = transfer_cpu.scaled(base, Host(*slower, touch)).compositions
        for case, fitted in model.compositions.items():
            assert scaled[case]["rates"]["fresh_mb"] == pytest.approx(expected(fitted["rates"]["fresh_mb"]))


def _answers(model, table):
    return model.predict(table)[["predicted_ms", "low_ms", "high_ms"]].to_numpy()


@pytest.fixture(scope="module")
def measured():
    """Give measured kernels of the reference CPU, of all families but convolutions."""
    table = store.read(next(paths.REFERENCE.glob("*/sweeps/others_kernel_cold/sweep.parquet")), "sweep")
    return table[table["status"] == "ok"].groupby("op").head(20)


@pytest.mark.parametrize("touch", [None, 0.2])
def test_a_model_scaled_by_its_own_ceilings_gives_the_same_answers(touch, measured):
    model = replace(registry.shipped_cpu("fp32"))
    model.facts = {**model.facts, "first_touch_ms_per_mb": touch}
    same = transfer_cpu.scaled(model, Host.of(model.facts))
    assert _answers(same, measured) == pytest.approx(_answers(model, measured))
    for case, fitted in model.compositions.items():
        assert same.compositions[case]["rates"] == pytest.approx(fitted["rates"])


def test_scaling_twice_is_scaling_once_and_every_part_keeps_its_own(measured, tmp_path):
    model = registry.shipped_cpu("fp32")
    slow, slower = Host("1", 2, 50.0, 20.0, None), Host("1", 1, 25.0, 15.0, None)
    twice, once = transfer_cpu.scaled(transfer_cpu.scaled(model, slow), slower), transfer_cpu.scaled(model, slower)
    assert _answers(twice, measured) == pytest.approx(_answers(once, measured))
    assert (twice.facts["threads"], twice.facts["sweeps"]) == (1, [])
    mixed = replace(model, parts={**model.parts, "gemm forward": once.parts["gemm forward"]})
    again = CostModel.load(mixed.save(tmp_path / "m.json.gz"))
    several = dict(inputs.by_part(measured, None))
    for name, rows in several.items():
        assert _answers(again, rows) == pytest.approx(_answers(once if name == "gemm forward" else model, rows))
    assert {"gemm forward", "memory forward"} <= set(several)


def test_the_rest_scales_with_the_threads_and_with_the_speed_of_a_core():
    model = replace(registry.shipped_cpu("fp32"))
    model.facts = {**model.facts, "threads": 4, "core_us": 0.3}
    for threads, core_us, expected in ((4, 0.3, 1.0), (2, 0.3, 0.5), (8, 0.6, 1.0), (1, None, 0.25)):
        here = Host("1", threads, 100.0, 5.0, None, core_us=core_us)
        assert transfer_cpu.scaling(model, here).rest == pytest.approx(expected)
    model.facts = {**model.facts, "threads": None, "core_us": None}
    assert transfer_cpu.scaling(model, Host("1", 3, 100.0, 5.0, None, core_us=0.3)).rest == 1.0


def test_an_interval_is_that_of_the_time_on_the_machine_that_was_trained_on(measured):
    """A kernel of a machine of half the speed has the interval of the same kernel, not of one that takes twice as long."""
    model = registry.shipped_cpu("fp32")
    slower = transfer_cpu.scaled(model, Host("1", 2, model.facts["peak_gflops"] / 9, model.facts["peak_gbps"] / 9, None,
                                             core_us=9 * model.facts["core_us"]))
    assert _answers(slower, measured) == pytest.approx(9 * _answers(model, measured))


def test_without_ceilings_the_answers_are_another_machines_and_its_measurements_are_not_this_ones(home, measured):
    other = registry.shipped_cpu("fp32")
    model = transfer_cpu.nearest([other], None)
    answer = model.predict(measured)
    assert (answer["origin"] == other.device).all() and answer["out_of_range"].all()
    assert model.is_of(**transfer_cpu.identity()) and not model.facts["sweeps"]
    (predictor,) = registry.for_devices(["cpu"], "fp32")
    assert predictor.measured_operators.empty
    assert predictor.measured_networks.empty or other.is_of(machine.ids()["hardware_id"], other.facts["threads"])


def _save_own(threads, gflops=100.0, device=""):
    """Save a model of this machine's CPU with so many threads, as a calibration does."""
    model = transfer_cpu.scaled(registry.shipped_cpu("fp32"), Host(machine.ids()["hardware_id"], threads, gflops, 10.0, None,
                                                                         core_us=1.0))
    model.device = device or f"cpu-{machine.name()}"
    model.parts = {name: replace(part, origin="") for name, part in model.parts.items()}
    model.save(registry.path_of(model.device, "fp32"))
    return model


def _without_ceilings():
    return advise.without_ceilings(registry.predictor("cpu", "fp32"))


def test_with_another_number_of_threads_it_is_another_machine(home, monkeypatch):
    threads, query = torch.get_num_threads(), Query("simple_cnn", 4, "3x28x28")
    own = _save_own(threads)
    first = advise.advise(query, ["cpu"])
    assert first.table["source"][0] == "predicted" and not _without_ceilings()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    second = advise.advise(query, ["cpu"])
    assert second.table["source"][0] == f"zero-shot from {own.device}" and _without_ceilings()
    spread = [advice.table["high_ms"][0] / advice.table["low_ms"][0] for advice in (first, second)]
    assert spread[1] > 1.5 * spread[0]
    _save_ceilings(50.0, 5.0, core_us=2 * (threads + 1) / threads)
    third = advise.advise(query, ["cpu"])
    assert third.table["source"][0].endswith("scaled by ceilings measured here (compute x0.50, memory x0.50, rest x0.50)")
    assert third.table["predicted_ms"][0] == pytest.approx(2 * first.table["predicted_ms"][0])


def test_what_was_measured_with_other_threads_is_not_shown_as_measured():
    (predictor,) = registry.for_devices([registry.shipped_cpus("fp32")[0].name.removeprefix("cpu-").partition("_")[0]], "fp32")
    assert len(predictor.measured_operators) and len(predictor.measured_networks)
    model = replace(predictor.model, facts={**predictor.model.facts, "threads": 1})
    other = replace(predictor, model=model)
    assert other.measured_operators.empty and other.measured_networks.empty
    runs = archive.runs("replay")
    batch = int(runs[runs["workload_id"] == "W1"]["batch_size"].iloc[0])
    assert steps.measured_step_ms(predictor, "W1", batch) > 0 and np.isnan(steps.measured_step_ms(other, "W1", batch))


@pytest.mark.parametrize(("count", "within"), [(60, 0.1), (8, 0.35)])
def test_few_points_correct_a_scaled_model_by_what_the_scaling_left(count, within):
    model = transfer_cpu.scaled(registry.shipped_cpu("fp32"), Host("1", 2, 50.0, 20.0, None))
    table = store.read(next(paths.REFERENCE.glob("*/sweeps/others_kernel_cold/sweep.parquet")), "sweep")
    rows = table[(table["op"] == "linear") & (table["status"] == "ok") & (table["pass"] == "forward")].head(300)
    rows = rows.assign(latency_ms=1.8 * model.predict(rows)["predicted_ms"], verdict="stable")
    tuned = fine_tuned(model, rows.head(count))
    unseen = rows.tail(100)
    assert np.median(np.abs(tuned.predict(unseen)["predicted_ms"] / unseen["latency_ms"] - 1)) < within
    assert tuned.scaling == model.scaling
    assert bool(tuned.parts["gemm forward"].origin) == (count < 10)
    other = tuned.parts["memory forward"].correction.mean
    assert 0.9 * np.log(1.8) < other < 1.1 * np.log(1.8)  # as the others err, as far as is known


def test_a_scaled_model_is_saved_and_a_forged_scaling_refused(tmp_path):
    model = transfer_cpu.scaled(registry.shipped_cpu("fp32"), Host("1", 2, 50.0, 5.0, None))
    again = CostModel.load(model.save(tmp_path / "m.json.gz"))
    assert {part.scaling for part in again.parts.values()} == {model.scaling} and again.facts["peak_gflops"] == 50.0
    model.parts["gemm forward"].scaling = Scaling(-1.0, 1.0, 1.0, 1.0, 1.0)
    with pytest.raises(InputError, match="scaling"):
        model.save(tmp_path / "n.json.gz")


BASE = {f"{mode} {heap}": Composition({"sum_ms": 0.9, "moved_ms": 0.9, "fresh_mb": 0.25 * (heap == "default")},
                                      0.15 if heap == "kept" else 0.4, 16)
        for mode in ("infer", "train") for heap in ("kept", "default")}


def _networks(count, factor, fresh=0.25, noise=0.05, seed=0, modes=("infer", "train"), heaps=("kept", "default")):
    """Return networks measured on a machine that takes ``factor`` times as long as the base composition says."""
    draw, rows = np.random.default_rng(seed), []
    for number in range(count):
        own = draw.normal(0, noise)
        for mode in modes:
            terms = {"sum_ms": draw.uniform(20, 200), "moved_ms": draw.uniform(5, 50),
                     "fresh_mb": draw.uniform(0, 400)}
            for heap in heaps:
                computing = factor * 0.9 * (terms["sum_ms"] + terms["moved_ms"])
                measured = (computing + fresh * terms["fresh_mb"] * (heap == "default")) * np.exp(own + draw.normal(0, 0.01))
                rows.append({"network": f"n{number}", "mode": mode, "memory": heap, "latency_ms": measured, "outside": 0.0,
                             **terms})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("factor", "fresh"), [(1.0, 0.25), (1.4, 0.25), (0.7, 0.6), (2.5, 0.1)])
def test_a_few_networks_calibrate_the_compositions_of_both_heaps(factor, fresh):
    corrected = calibration.calibrated(BASE, _networks(5, factor, fresh, seed=1))
    unseen = _networks(60, factor, fresh, seed=2)
    for case, fitted in corrected.items():
        mode, heap = case.split()
        rows = unseen[(unseen["mode"] == mode) & (unseen["memory"] == heap)]
        answers = [fitted.predict(row) for row in rows.to_dict("records")]
        error = calibrate_networks.errors(rows["latency_ms"], [answer[0] for answer in answers])
        assert fitted.networks == 5 and abs(error["bias"]) < 8 and error["mape"] < 10
        covered = np.mean([low <= ms <= high for (_, low, high), ms in zip(answers, rows["latency_ms"], strict=True)])
        assert covered >= 0.85
        assert fitted.half < 0.9 * BASE[case].half or heap == "kept"


@pytest.mark.parametrize("seed", range(6))
def test_more_networks_are_believed_more(seed):
    few, many = (calibration.calibrated(BASE, _networks(count, 2.0, 0.5, seed=seed))["infer kept"].rates["sum_ms"] / 0.9
                 for count in (2, 30))
    assert 1.4 < few < 2.4 and many == pytest.approx(2.0, rel=0.1)


def test_a_mode_with_one_network_keeps_its_composition_and_one_heap_calibrates_both():
    rows = pd.concat([_networks(4, 1.5, modes=("infer",), heaps=("default",)), _networks(1, 1.5, modes=("train",))],
                     ignore_index=True)
    corrected = calibration.calibrated(BASE, rows)
    assert corrected["train kept"] == BASE["train kept"] and corrected["train default"] == BASE["train default"]
    assert corrected["infer kept"].rates["sum_ms"] > 1.2 * 0.9 and corrected["infer kept"].scores == {}
    assert corrected["infer default"].scores["n"] == 4
    left_out = calibration.left_one_out(BASE, rows)
    assert (left_out["predicted_ms"] > 0).all()


def test_a_network_left_out_does_not_predict_itself():
    rows = _networks(4, 1.0, noise=0.0)
    odd = rows.assign(latency_ms=rows["latency_ms"] * np.where(rows["network"] == "n0", 3.0, 1.0))
    left_out = calibration.left_one_out(BASE, odd)
    own = left_out[left_out["network"] == "n0"]
    assert (own["predicted_ms"] < 0.5 * own["latency_ms"]).all()
    assert calibration.calibrated(BASE, odd)["infer kept"].half > calibration.calibrated(BASE, rows)["infer kept"].half


@pytest.mark.parametrize("verb", ["advise simple_cnn --input 3x28x28 --device cpu --json",
                                  "advise-op linear gemm_m=64 gemm_k=64 gemm_n=64 --device cpu --json"])
def test_a_verb_looks_once_and_not_where_it_is_told_not_to(verb, home, monkeypatch, capsys):
    looks = []
    monkeypatch.setattr(transfer_cpu, "look", lambda **_: looks.append(_save_ceilings()))
    arguments = verb.split()
    assert __main__.main([*arguments, "--no-look"]) == 0 and not looks
    assert __main__.main("advise simple_cnn --input 3x28x28 --device t4 --json".split()) == 0 and not looks
    assert "ceilings" not in capsys.readouterr().err
    assert __main__.main(arguments) == 0 and len(looks) == 1
    shown = capsys.readouterr()
    assert "its ceilings are measured" in shown.err and "zero-shot from cpu-" in shown.out
    assert ("scaled by ceilings measured here" in shown.out) == ("advise " in verb)
    assert __main__.main(arguments) == 0 and len(looks) == 1


def test_an_answer_does_not_wait_for_another_measurement(home, capsys):
    arguments = "advise-op linear gemm_m=64 gemm_k=64 gemm_n=64 --device cpu --json".split()
    with locks.device("cpu"):
        assert __main__.main(arguments) == 0
    shown = capsys.readouterr()
    assert "not scaled to this machine: device cpu is being measured by another process" in shown.err
    assert json.loads(shown.out)[0]["device"] == "cpu"


@pytest.mark.parametrize(("others", "stolen", "usable", "free"), [(0.0, 0.0, 4, 4), (0.4, 0.0, 4, 4), (0.6, 0.0, 4, 3),
                                                                 (1.0, 1.0, 4, 2), (9.0, 0.0, 4, 1), (1.0, 0.0, 2, 1)])
def test_cores_that_neighbours_hold_are_not_free(monkeypatch, others, stolen, usable, free):
    monkeypatch.setattr(load, "own_cores", lambda: list(range(usable)))
    monkeypatch.setattr(load.LoadWatch, "reading", lambda self: load.Load(0.3, 0.0, others, stolen, 0.0))
    assert load.free_cores(0.0) == free


def test_advice_and_slots_have_fewer_threads_beside_a_busy_neighbour(home, monkeypatch):
    advice = advise.advise(Query("simple_cnn", 1, "3x28x28"), ["cpu"])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(local_site, "cores_here", lambda: [0, 1])
    monkeypatch.setattr(load, "free_cores", lambda: 2)
    assert advise_text.neighbours(advice) == "cpu: the time is that of an idle machine with 2 threads"
    assert local_site.slots_here(1)[0].threads == 2
    monkeypatch.setattr(load, "free_cores", lambda: 1)
    note = advise_text.neighbours(advice)
    assert "1 is free" in note and note.endswith("set OMP_NUM_THREADS=1")
    assert advise_text.records(advice, note=note)[0]["note"] == note
    assert [slot.threads for slot in local_site.slots_here(1) if slot.cores] == [1]
    assert [slot.threads for slot in local_site.slots_here(2) if slot.cores] == [1, 1]
    gpu = advise.advise(Query("simple_cnn", 1, "3x28x28"), ["t4"])
    assert advise_text.neighbours(gpu) == "" and "note" not in advise_text.records(gpu)[0]


def test_the_table_of_emulated_machines_counts_unusable_rows_and_tells_unseen_families_apart():
    shared = {"emulated": "avx2-1", "zero_shot_low_ms": 50.0, "zero_shot_high_ms": 90.0, "calibrated_ms": 100.0,
              "calibrated_low_ms": 90.0, "calibrated_high_ms": 110.0, "latency_ms": 100.0, "measured_ms": 125.0,
              "refused": False}
    rows = pd.DataFrame([{**shared, "zero_shot_ms": 60.0, "unseen_family": True, "verdict": "stable"},
                         {**shared, "zero_shot_ms": 80.0, "unseen_family": False, "verdict": "noisy"},
                         {**shared, "zero_shot_ms": 1.0, "unseen_family": False, "verdict": "unusable"}])
    (line,) = machines.summary(rows).to_dict("records")
    assert (line["machine"], line["cases"], line["unusable"], line["refused"]) == ("avx2-1", 2, 1, False)
    assert line["zero_shot_mape"] == pytest.approx(30) and line["zero_shot_bias"] == pytest.approx(-30)
    assert line["unseen_zero_shot_mape"] == pytest.approx(40) and line["zero_shot_coverage"] == 0
    assert line["calibrated_mape_as_measured"] == pytest.approx(20)
    assert line["calibrated_mape"] == 0 and line["calibrated_coverage"] == line["unseen_calibrated_coverage"] == 100


def test_an_emulated_machine_whose_calibration_is_refused_counts_with_its_zero_shot_answers(home, monkeypatch, capsys):
    _save_ceilings()
    table = pd.DataFrame([{"network": "alexnet", "mode": "infer", "batch_size": 1, "memory": "default", "threads": 1,
                           "hardware_id": "1", "latency_ms": 100.0, "verdict": "stable", "status": "ok"}])
    monkeypatch.setattr(machines.campaign, "measure", lambda *_, **__: (table, {}))
    monkeypatch.setattr(machines.campaign, "write", lambda *_, **__: None)
    monkeypatch.setattr(machines.campaign, "kernel_ms", lambda rows, _: pd.Series(np.nan, rows.index))
    monkeypatch.setattr(machines, "_predicted", lambda predictor, rows, name: pd.DataFrame(
        {f"{name}{end}": [60.0 if predictor.origin else 1.0] for end in ("_ms", "_low_ms", "_high_ms")}, index=rows.index))

    def refuse(*_, **__):
        raise InputError("the calibration did not help")

    monkeypatch.setattr(machines.calibrate, "calibrate", refuse)
    machines.one_machine(10.0, ["alexnet"], home / "predictions.csv")
    assert "not calibrated: the calibration did not help" in capsys.readouterr().out
    (line,) = machines.summary(pd.read_csv(home / "predictions.csv").assign(emulated="avx2-1")).to_dict("records")
    assert line["refused"] and line["zero_shot_mape"] == line["calibrated_mape"] == pytest.approx(40)


@pytest.mark.parametrize("build", [machines.Encoder, machines.Mixer, machines.Pyramid])
def test_networks_of_no_library_run(build):
    with torch.no_grad():
        assert torch.isfinite(build().eval()(torch.zeros(1, 3, 224, 224))).all()
    families = {networks.family(name) for name in (*network_training.TUNING, *calibrate_networks.NETWORKS)}
    assert not families & {networks.family(name) for name in machines.UNSEEN if ":" not in name}
    assert not {networks.family(name) for name in calibrate_networks.NETWORKS} & set(map(networks.family, machines.OTHERS))
