"""Advice: what is answered, for what, and what is refused; the models at hand; calibration's choice of points."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lib import locks, paths
from lib.config.definitions import load_devices
from lib.measure import disturbance, machine
from lib.measure.networks import end_to_end
from lib.measure.reference_kernel import KernelNow
from lib.predict import calibrate, calibrate_networks, registry
from lib.predict.advice import advise, advise_operator, advise_text, suggestions
from lib.predict.networks import work
from lib.predict.trust import quote
from lib.tables import columns
from lib.work import networks
from lib.work.run_config import RunConfig
from tests import advice_on, output_of, refusal, refused

pytestmark = pytest.mark.slow


def advised(*devices, batch_size=2, mode="infer"):
    return advice_on(devices, "simple_cnn", batch_size, "3x28x28", mode)


@pytest.fixture(scope="module")
def answer():
    return advised(batch_size=4)


def test_every_device_with_a_model_answers(answer):
    table = answer.table
    assert {"cpu", "t4", "v100-pcie-32gb", "p100-pcie-16gb", "h100-sxm", "h200-sxm", "l40s", "b200"} <= set(table["device"])
    assert table.eval("0 < low_ms < predicted_ms < high_ms").all()
    assert np.isfinite(table[["high_ms", "images_per_sec", "memory_mb"]].to_numpy()).all()
    assert table["predicted_ms"].is_monotonic_increasing
    assert answer.recommended == table[table["fits"]]["device"].iloc[0]
    assert table["loader_wait_ms"].isna().all(), "inference has no parts of a step"
    assert table["images_per_sec"].to_numpy() == pytest.approx(4e3 / table["predicted_ms"].to_numpy())
    moved = answer.captured.work(device_type="cpu").bytes
    assert table["predicted_gbps"].to_numpy() == pytest.approx(moved / table["predicted_ms"].to_numpy() / 1e6)
    assert "GB/s" in advise_text.table(answer)
    zero = table[table["source"].str.startswith("zero-shot")]
    assert len(zero) and zero["out_of_range"].all(), "what was never measured there is said to be outside"
    assert all(line in advise_text.text(answer) for line in advise_text.verdicts(answer))


@pytest.mark.parametrize("name, mode", [("resnet18", "infer"), ("simple_cnn", "train")])
def test_other_batches_scale_from_a_single_sample_like_captured_ones(name, mode):
    """One sample has convolutions of other memory: it is not on the line of the others."""
    query = advise.CapturedQuery(RunConfig(name, 1, "3x64x64", mode))
    (cpu,) = registry.for_devices(["cpu"], "fp32")
    longest_ms = cpu.estimate(query.scaled(1)).predicted_ms
    for batch in (4, 32):
        line, real = query.scaled(batch), query.work(batch)
        assert (line.memory_mb, line.peak_bytes) == pytest.approx((real.memory_mb, real.peak_bytes), rel=0.01)
        assert line.flops == pytest.approx(real.flops)
        predicted_ms = cpu.estimate(line).predicted_ms
        assert longest_ms < predicted_ms == pytest.approx(cpu.estimate(real).predicted_ms, rel=0.02)
        longest_ms = predicted_ms
    assert query.scaled(1) is query.work()


def test_resident_memory_is_what_a_fresh_process_grows_by():
    """Of the libraries, weights and tensors: more than the tensors, with the optimizer's state where a step is asked for."""
    (cpu,) = registry.for_devices(["cpu"], "fp32", shipped=True)
    for mode in ("infer", "train"):
        captured = advise.CapturedQuery(RunConfig("simple_cnn", 8, "3x28x28", mode))
        row = advise.Answer(captured, cpu).columns
        assert row["memory_mb"] + 150 < row["rss_mb"] < 2 * row["memory_mb"] + 250
        assert row["rss_low_mb"] < row["rss_mb"] < row["rss_high_mb"]
        small = advise.Answer(captured, replace(cpu, memory_mb=row["memory_mb"] + 50)).columns
        assert row["fits"] and not small["fits"], "a process that does not fit is no answer, though its tensors would"
    words = advise_text.text(advice_on(f"cpu@{cpu.origin.removeprefix('cpu-')}", "simple_cnn"))
    assert re.search(r"resident memory of a fresh process, beyond Python and torch: \d+ MB \(\d+ to \d+\)", words)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(8, 16, batch_first=True)

    def forward(self, x):
        return self.layer(x.flatten(2).mean(1, keepdim=True)[..., :8])[0]


class Wide(nn.Sequential):
    """Products that take most of its time, of a card's own kernels; under autocast the casts of weights take some, too."""

    def __init__(self):
        super().__init__(*[nn.Linear(4096, 4096) for _ in range(3)])


def test_what_no_model_is_of_and_whose_hosts_nobody_measured_is_said():
    shown = advise_text.text(advice_on("cpu", "tests.test_advise:Recurrent", input_shape="3x8x8"))
    assert "not modelled: mkldnn_rnn_layer (as bmm); the time of a similar operator, or of the same one in" in shown
    words = ("nobody measured the host that launches the kernels of h100-sxm: ranges include launches of 0.3 to 2.25 times "
             "the usual")
    for dtype in ("bf16", "fp32"):
        advice = advice_on("h100-sxm", "tests.test_advise:Wide", 65_536, "4096", dtype=dtype)
        assert words in advise_text.text(advice) and "not modelled" not in advise_text.text(advice)
        assert advise_text.records(advice)[0]["latency_type"] == "end_to_end"


class Inverted(nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x)


class ComplexProduct(nn.Module):
    def forward(self, x):
        return (x.to(torch.complex64) @ x.to(torch.complex64)).abs()


def test_work_that_is_not_known_is_in_every_form_of_answer_and_its_interval_has_no_upper_end(tmp_path):
    network = "tests.test_advise:Inverted"
    (tmp_path / "q.csv").write_text(f"model,batch_size,input,device\n{network},16,1024x1024,a100-pcie-40gb\n")
    options = ["--input-size", "1024x1024", "--batch-size", "16", "--device", "a100-pcie-40gb"]
    text = output_of("advise", network, *options, "--explain")
    assert " or more, confidence" in text and "no upper end" in text
    assert "FLOPs not known: _linalg_check_errors, linalg_inv_ex" in text
    for arguments in ([network, *options], ["--questions", tmp_path / "q.csv"]):
        (row,) = json.loads(output_of("advise", *arguments, "--json"))
        assert row["high_ms"] is None and row["low_ms"] > 0
        assert "linalg_inv_ex (as elementwise)" in row["not_modelled"] and "linalg_inv_ex" in row["flops_not_known"]


def test_what_no_family_covers_takes_no_less_than_its_flops_do():
    advice = advice_on("a100-pcie-40gb", "tests.test_advise:ComplexProduct", 16, "1024x1024")
    (row,) = advice.table.to_dict("records")
    least_ms = 8 * 16 * 1024**3 / load_devices()["a100-pcie-40gb"].peak_gflops["fp32"] / 1e6
    assert least_ms <= row["predicted_ms"] < 2 * least_ms and row["not_modelled"]
    assert row["low_ms"] > 0.8 * least_ms


def _row(low, high, **changes):
    return {"device": "t4", "source": "predicted", "predicted_ms": 10.0, "low_ms": low, "high_ms": high, "out_of_range": False,
            "fits": True, "images_per_sec": 100.0, "memory_mb": 50.0, "bound": "memory", "measured_ms": math.nan,
            "not_modelled": "", "scaling_efficiency": 1.0, **changes}


@pytest.mark.parametrize("row, grade", [
    (_row(9, 12), "A"), (_row(7, 12), "B"), (_row(9, 14), "B"), (_row(9, 20), "C"), (_row(9, math.inf), "D"),
    (_row(9, 12, out_of_range=True), "C"), (_row(9, 12, source="zero-shot from any-gpu"), "C"),
    (_row(1, 12, source="zero-shot from any-gpu"), "D"),
    (_row(9, 12, source="zero-shot from cpu-x, not scaled: busy here"), "D")])
def test_confidence_falls_with_the_reach_of_the_interval_and_is_c_at_best_for_what_was_learned_elsewhere(row, grade):
    assert advise_text.grade(row) == grade


def test_the_answer_fits_on_a_screen_and_a_guess_that_is_fastest_is_called_one(answer):
    several = suggestions.suggestions(answer)
    lines = advise_text.screen(answer, several, "The CPU waits.").splitlines()
    assert lines[0] == advise_text.heading(answer) and "The CPU waits." in lines
    assert len(lines) < 20 + len(answer.table) and max(map(len, lines)) <= advise_text.WIDTH
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert named[:1 + len(answer.table)] == ["device", *answer.table["device"]]
    for line in lines:
        assert "nan" not in line.split() and "inf" not in line.split()
    rows = [_row(3, 18, source="zero-shot from any-gpu", device="b200", predicted_ms=6.0), _row(9, 12)]
    shown = advise_text.screen(replace(answer, table=pd.DataFrame(rows)), [])
    assert "Fastest: b200, 6 ms (3 to 18, confidence D), learned from other GPUs.\n" in shown
    assert "Best that can be trusted: t4, 10 ms (9 to 12, confidence A)" in shown
    assert "No change is predicted" in shown
    none = advise_text.screen(replace(answer, table=pd.DataFrame([_row(9, 12, fits=False)])), [])
    assert "It fits into none of these devices: it needs 50 MB" in none and "50 (too much)" in none


@pytest.mark.parametrize("second, words", [
    ({"predicted_ms": 5.1, "bound": "launch"}, "Fastest: b200, t4 tie at 5 to 5.1 ms (confidence D): launching kernels takes "
                                               "most of the time."),
    ({"predicted_ms": 5.0}, "Fastest: b200, t4 tie at 5 ms (confidence D): their times differ by less than the predictions"),
    ({"predicted_ms": 6.0}, "Fastest: b200, 5 ms (1.5 to 15, confidence D), learned from other GPUs; 46 networks measured on "
                            "it show a typical error of 34 %."),
    ({"predicted_ms": 5.1, "low_ms": 4.9, "high_ms": 5.3}, "Fastest: b200, 5 ms (1.5 to 15, confidence D)")])
def test_devices_whose_times_are_close_beside_their_ranges_tie(second, words, answer):
    first = _row(1.5, 15, device="b200", predicted_ms=5.0, source="zero-shot from any-gpu", bound="launch",
                 held_out=f"{quote.ON_CARD}: MAPE 31 %", held_out_n=46.0, held_out_median_pct=34.1)
    table = pd.DataFrame([first, _row(1.5, 15, **second), _row(90, 120, device="cpu", predicted_ms=100.0)])
    advice = replace(answer, table=table)
    assert words in " ".join(advise_text.verdicts(advice))


@pytest.mark.parametrize("kernel, learned, origin, words", [
    (KernelNow(0.6), True, "", "On this CPU: 10 ms usually; 20 ms now (at 0.50 of its usual speed)."),
    (KernelNow(0.6, "others took 1.4 cores"), True, "", "too busy to tell its speed now (others took 1.4 cores)."),
    (KernelNow(1.3), True, "", "too busy to tell its speed now (the reference kernel takes over 4 times its usual time)."),
    (KernelNow(0.6), False, "", "The CPU's time is that of an idle machine"),
    (KernelNow(0.6), True, "cpu-other", "like other, not scaled to this one: no ceilings were measured here.")])
def test_a_busy_machine_has_no_speed_and_one_that_was_not_calibrated_no_usual_one(kernel, learned, origin, words, answer):
    busy, learned_here, cpu = "too busy" in words, learned and not origin, answer.of("cpu")
    facts = cpu.predictor.model.facts | ({"processor_speed": {"usual_ms": 0.3, "elasticity": 1.0}} if learned else {})
    model = replace(cpu.predictor.model, scaling=None, facts=facts)
    cpu = replace(cpu, predictor=replace(cpu.predictor, origin=origin, model=model))
    vars(cpu)["estimate"] = SimpleNamespace(times={"predicted_ms": 10.0, "low_ms": 8.0, "high_ms": 12.0}, predicted_ms=10.0)
    advice = replace(answer, answers=[cpu])
    assert words in advise_text.cpu_load_note(advice, 99, kernel)
    row, = (row for row in advise_text.records(advice, kernel=kernel) if row["device"] == "cpu")
    assert ("now_ms" in row) == learned_here and (row.get("now_ms") is None) == (busy or not learned_here)


@pytest.mark.parametrize("gain, is_named", [(1.3, True), (1.1, False)])
def test_both_heaps_are_told_where_page_faults_take_much_of_the_time(gain, is_named, answer, monkeypatch):
    change = suggestions.Change("retain", gain, "", {"memory": "kept"})
    monkeypatch.setattr(advise_text, "retained_memory", lambda _: change)
    retained_ms = answer.of("cpu").estimate.predicted_ms / gain
    text = advise_text.screen(answer, [change]).replace("\n", " ")
    assert (f"with {suggestions.RETAINING} set it takes {retained_ms:,.3g} ms" in text) == is_named
    row, = (row for row in advise_text.records(answer) if row["device"] == "cpu")
    assert row["retained_ms"] == pytest.approx(retained_ms)


def test_an_answer_that_nobody_reads_is_told_in_one_line(tmp_path):
    line = f"set -o pipefail; {sys.executable} -m lib advise W1 --device cpu --no-ceilings | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(paths.ROOT)})
    assert done.returncode == 1 and done.stderr == "error: standard output was closed before all was written to it\n"


def test_the_command_line_answers_in_json_and_what_was_verified_is_in_it(monkeypatch):
    def verified(advice, several):
        return 1.5, [replace(several[0], measured_gain=2.0), *several[1:]]

    monkeypatch.setattr(suggestions, "verified", verified)
    network = "tests.test_advise:Recurrent --input-size 3x8x8 --mode train"
    out = output_of(*f"advise {network} --device cpu --device t4 --json --verify --no-ceilings".split())
    rows = {row["device"]: row for row in json.loads(out)}
    assert "NaN" not in out and rows.keys() == {"cpu", "t4"}
    needed = {"source", "images_per_sec", "memory_mb", "bound", "out_of_range"}
    assert all(needed <= row.keys() for row in rows.values())
    assert rows["cpu"]["verified_ms"] == 1.5 and rows["cpu"]["changes"][0]["measured_gain"] == 2.0
    assert None in [change["predicted_gain"] for change in rows["cpu"]["changes"]], "what is not known is null"
    assert "verified_ms" not in rows["t4"]


@pytest.mark.parametrize("arguments, words", [
    *((arguments, "") for arguments in (
        "advise resnet18 --batch-size 0", "advise resnet18 --batch-size 99999999999", "advise resnet18 --device t4 --device t4",
        "advise resnet18 --input-size x", "advise resnet18 --input-size 3x999999999x999999999", "calibrate --budget-s nan",
        "calibrate --budget-s 1", "calibrate --device abacus", "calibrate --device cpu,cpu", "calibrate --dtype fp64",
        "models --train x")),
    ("calibrate --device t4", "a GPU such as t4 is corrected by networks measured on it: .* by --networks"),
    ("advise resnet18 --device abacus", "no fp32 model of a device 'abacus'; there are models of: .*calibrate"),
    ("advise alexnet --input-size 3x8x8", "does not run on an input of shape"),
    ("advise resnet_181", "no model 'resnet_181'.*did you mean resnet18"),
    ("advise W1 --input-size 3x99x99", "workload W1 has inputs of 3x28x28"),
    ("advise", "advise takes a network, or --questions"), ("advise resnet18 --output new.csv", "--output is of --questions"),
    ("advise --questions absent.csv", "absent.csv is missing"),
    ("advise-op conv9 batch=1", "no operator family 'conv9'; there are: conv2d"),
    ("advise-op linear", "missing \\[gemm_m, gemm_k, gemm_n\\]"),
    ("advise-op linear gemm_m", "'gemm_m' is no NAME=VALUE; linear takes: gemm_m"),
    ("advise-op linear gemm_m=9999999999", "is a whole number of at most 9 digits"),
    ("advise-op linear gemm_m=1 gemm_m=2", "gemm_m is given twice"),
    ("advise-op linear gemm_m=0 gemm_k=1 gemm_n=1", "gemm_m 0 is no number"),
    ("advise-op linear gemm_m=1 gemm_k=1 gemm_n=1 layout=zz", "layout 'zz' is none"),
    ("advise-op conv2d batch=1 in_channels=1 out_channels=1 height=2 width=2 kernel=9 stride=1", "conv2d")])
def test_a_wrong_question_is_one_line_before_anything_is_measured(arguments, words, tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate.sweep, "measure_sweep", lambda *_, **__: pytest.fail("it was measured"))
    monkeypatch.chdir(tmp_path)
    assert re.search(words, refusal(*arguments.split()))


def test_a_calibration_that_could_not_be_written_is_not_measured(home, monkeypatch):
    monkeypatch.setattr(calibrate.sweep, "measure_sweep", lambda *_, **__: pytest.fail("it was measured"))
    monkeypatch.setattr(calibrate, "_bases", lambda *_: [])
    with locks.writer(registry.path_of(registry.cpu_here(), "fp32")), refused("is being written by another process"):
        calibrate.calibrate()
    shutil.rmtree(paths.MODELS)
    paths.MODELS.write_text("")
    with refused("cannot be written"):
        calibrate.calibrate()


def test_shipped_models_say_where_they_come_from():
    files = registry.model_files(shipped=True).values()
    assert len(files) >= 9
    for path in files:
        model = registry.load(path)
        assert {"source", "licence"} <= model.facts.keys(), path
        assert all(part.scores["n"] == part.rows and part.scores["mape"] < 100 for part in model.parts.values()), path


@pytest.fixture(scope="module")
def pool():
    """Draw configurations as a calibration does, fewer and once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "_POOL", 300)
        return calibrate._pool("fp32")


def test_a_card_of_this_machine_is_asked_for_as_it_is_called_here(monkeypatch):
    monkeypatch.setattr(machine, "devices", lambda: ["cpu"])
    with refused("device 'cuda:0': torch finds no CUDA GPU in this machine"):
        registry.for_devices(["cuda:0"], "fp32")
    monkeypatch.setattr(machine, "devices", lambda: ["cpu", "cuda:0"])
    monkeypatch.setattr(machine, "device_name", lambda where: "Tesla T4")
    assert [registry.for_devices([name], "fp32")[0].device for name in ("cuda", "cuda:0")] == ["t4"] * 2
    for names, words in ((["cuda:0", "t4"], "a device is named twice: t4, t4"), (["cuda:1"], "'cuda:1' is not here")):
        with refused(words):
            registry.for_devices(names, "fp32")


captured = cache(work.captured)


@pytest.fixture
def calibrated(home, monkeypatch, pool):
    """Give a calibration of a CPU whose kernels take twice as long as was predicted, and networks ``factor`` times as long.

    It returns the result, and the heaps of each call that measured networks. ``verdicts`` are of networks by their names.
    """
    predictor, swept, heaps = registry.predictor("cpu", "fp32"), [], []
    timing = calibrate._timing(predictor.model)
    points = pool[1].assign(config=[replace(one, **timing).key for one in pool[0]], status="ok", verdict="stable",
                            hardware_id="here", device="cpu", dtype="fp32", threads=2, latency_type="kernel", cache="cold",
                            latency_iqr_ms=0.0, latency_ms=2 * predictor.model.predict(pool[1])["predicted_ms"])

    def of_verdicts(verdicts, factor=1.5, change=lambda rows: rows):
        def read(folder):
            table = change(points.set_index("config").loc[[one.key for one in swept]].reset_index())
            visits = table[["config", "latency_ms"]].assign(yardstick_ms=np.nan)
            return SimpleNamespace(table=table, visits=visits, folder=folder)

        def sweep_of(p, chosen):
            swept[:] = chosen
            return paths.SWEEPS / p.name

        def measure(cases, device, rounds, case_s, budget_s, raw):
            assert budget_s > 0
            heaps.append({heap for _, heap in cases})
            rows = []
            for case, heap in cases:
                item = captured(networks.network(case.network, case.batch_size), case.mode)
                rows.append({**vars(case), "memory": heap, "latency_ms": factor * predictor.estimate(item, heap).predicted_ms,
                             "verdict": verdicts[case.network], "status": "ok"})
            return pd.DataFrame(rows, columns=columns("networks")), {}

        monkeypatch.setattr(calibrate, "_pool", lambda _: pool)
        monkeypatch.setattr(calibrate.sweep, "measure_sweep", sweep_of)
        monkeypatch.setattr(calibrate.aggregate, "read", read)
        monkeypatch.setattr(calibrate.transfer_cpu, "measure_ceilings", lambda: None)
        campaign = SimpleNamespace(measure=measure, write=Mock(), reference_ms=lambda rows, _: pd.Series(np.nan, rows.index))
        for name, value in {"NETWORKS": tuple(verdicts), "_PROCESS_S": 0.1, "_PASSES": 0, "campaign": campaign}.items():
            monkeypatch.setattr(calibrate_networks, name, value)
        return calibrate.calibrate(budget_s=30), heaps

    return of_verdicts


def test_a_calibration_by_whole_networks_too_predicts_others_with_honest_intervals(calibrated):
    zero_shot = advised("cpu", batch_size=32).table.iloc[0]
    result, heaps = calibrated({"simple_cnn": "stable", "resnet18_2d": "stable", "cnn3d": "noisy"})
    composition = registry.predictor("cpu", "fp32").composition("infer", "default")
    assert heaps == [{"default", "kept"}, {"default"}, {"default", "kept"}]  # before, amid and after the operators
    assert result.networks.count == composition.networks == 3 and result.networks.after["n"] == 2 * 8
    assert result.networks.after["mape"] < result.networks.before["mape"] == pytest.approx(100 / 3, rel=0.01)
    words = "3 networks end to end (16 cases), each predicted by others at other moments: MAPE 33.3 % before (bias -33.3 %)"
    assert words in calibrate.summary(result)
    answer = advised("cpu", batch_size=32).table.iloc[0]
    assert answer["low_ms"] < 1.5 * zero_shot["predicted_ms"] < answer["high_ms"]
    assert answer["predicted_ms"] == pytest.approx(1.5 * zero_shot["predicted_ms"], rel=0.15)


def test_a_calibration_that_makes_networks_worse_is_refused_and_not_saved(calibrated, monkeypatch):
    monkeypatch.setattr(calibrate_networks, "_CERTAIN", 0.5)  # of two networks: it is enough that the mean error grows
    with refused(r"did not help: networks measured end to end err by \d+ % after it, by 0 % before"):
        calibrated({"simple_cnn": "stable", "resnet18_2d": "stable"}, factor=1.0)
    assert not list(paths.MODELS.glob("*.json.gz"))


@pytest.mark.parametrize("change", [lambda rows: rows.assign(verdict="unusable"), lambda rows: rows.head(10)])
def test_a_calibration_without_usable_points_is_one_line_and_keeps_them(change, calibrated):
    with refused("measured points are usable, 20 or more are needed .* the points are in .*sweeps"):
        calibrated({}, change=change)
    assert not list(paths.MODELS.glob("*.json.gz"))


def test_a_prediction_is_verified_on_this_machine(home, networks_here, monkeypatch):
    with refused("measures this machine's cpu; the query is about t4: add --device cpu"):
        suggestions.verified(advised("t4"), [])
    monkeypatch.setattr(suggestions, "_BUDGET_S", 0.05)
    others = iter([0.0, 0.1, 1.9, 0.0, 1.9])  # cores that they hold in each measurement
    reading = SimpleNamespace(reading=lambda: disturbance.Load(1.0, 1.0, next(others), 0.0, 0.0))
    monkeypatch.setattr(suggestions, "LoadWatch", lambda: reading)
    advice = advised("cpu")
    larger = next(change for change in suggestions.suggestions(advice) if "batch" in change.what)
    measured_ms, (measured,) = suggestions.verified(advice, [larger])
    assert measured_ms > 0 and measured.measured_gain > 0
    assert "the interval" in advise_text.verdict(advice, measured_ms)
    visit = SimpleNamespace(reason="", samples_ms=[5.0])
    monkeypatch.setattr(end_to_end, "in_a_process", lambda *_: ([visit], {}))
    busy_ms, (left,) = suggestions.verified(advice, [larger])
    assert math.isnan(busy_ms) and left == larger
    words = advise_text.verdict(advice, busy_ms)
    assert "not compared with a measurement: other processes held this machine's cores" in words and "off by" not in words
    measured_ms, (left,) = suggestions.verified(advice, [larger])
    assert measured_ms > 0 and math.isnan(left.measured_gain) and left.why.endswith("other processes held its cores meanwhile")


CONV = "batch=8 in_channels=64 out_channels=64 height=56 width=56 kernel=3 stride=1 padding=1".split()


def test_one_operator_has_a_time_a_bandwidth_a_rate_a_bound_and_an_interval():
    command = ["advise-op", "conv2d", *CONV, *"--device t4 --device cpu --json --no-ceilings".split()]
    rows = json.loads(output_of(*command))
    assert {row["device"] for row in rows} == {"cpu", "t4"}
    flops, moved = 2 * 8 * 64 * 56 * 56 * 64 * 9, 4 * (2 * 8 * 64 * 56 * 56 + 64 * 64 * 9)
    for row in rows:
        assert 0 < row["low_ms"] < row["predicted_ms"] < row["high_ms"]
        assert row["gflops"] * row["predicted_ms"] * 1e6 == pytest.approx(flops)
        assert row["gbps"] * row["predicted_ms"] * 1e6 == pytest.approx(moved)
        assert row["bound"] == "compute" and 0 < row["pct_of_attainable"] < 150
    assert "1.85e+09 FLOPs, 1.299e+07 compulsory bytes" in output_of(*command[:-4])


@pytest.mark.parametrize("batch, bound", [(1, "launch"), (256, "compute")])
def test_a_step_whose_kernels_take_less_than_half_of_it_is_bound_by_its_launches(batch, bound):
    """Backward launches take longer than forward ones: a step 54 times above its roofline time was called compute-bound."""
    assert advice_on("b200", "resnet18", batch, mode="train").table["bound"].tolist() == [bound]


@pytest.mark.parametrize("size, passes, bound", [(512, "backward", "launch"), (4096, "backward", "compute")])
def test_an_operator_whose_time_no_roof_explains_is_bound_by_its_launch(size, passes, bound):
    wanted = advise_operator.config("linear", [f"gemm_{name}={size}" for name in "mkn"], passes=passes)
    assert advise_operator.advise(wanted, ["h100-sxm"])["bound"].tolist() == [bound]


def test_an_operator_that_was_measured_on_the_device_says_so():
    name = registry.shipped_cpu("fp32").device.removeprefix("cpu-")
    (predictor,) = registry.for_devices([name], "fp32")
    row = predictor.measured_operators.query("op == 'linear'").iloc[0]
    wanted = advise_operator.config("linear", [f"{name}={row[name]}" for name in ("gemm_m", "gemm_k", "gemm_n", "layout")])
    assert advise_operator.advise(wanted, [name])["measured_ms"].tolist() == [row["latency_ms"]]


@pytest.mark.parametrize("name, near", [
    ("NVIDIA L40", "NVIDIA L40S"), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB"),
    ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 3090")])
def test_a_card_that_is_not_listed_is_refused_with_the_nearest_names(name, near):
    with refused(f"no device named '{name}'; did you mean .*{near}.*01_machine"):
        registry.vendor_of(name)
