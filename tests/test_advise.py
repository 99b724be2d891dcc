"""Advice: what is answered, for what, and what is refused; the models at hand; calibration's choice of points."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from torch import nn

from lib import __main__, paths
from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.measure.budget import Budget
from lib.predict import calibrate, registry
from lib.predict.advice import advise, advise_operator, advise_text, suggestions
from lib.predict.advice.query import Query
from lib.predict.networks import work
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.features_gpu import Chip
from lib.tables import columns
from lib.work import networks
from lib.work.graph import spaces

MINE = """
import torch
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
class Needs(Net):
    def __init__(self, width):
        super().__init__()
"""


@pytest.fixture(scope="module")
def answer():
    return advise.advise(Query("resnet18", 4))


@pytest.mark.slow
def test_every_device_with_a_model_answers(answer):
    table = answer.table
    assert {"cpu", "t4", "v100-pcie-32gb", "p100-pcie-16gb", "h100-sxm", "h200-sxm", "l40s", "b200"} <= set(table["device"])
    assert (table["low_ms"] > 0).all()
    assert ((table["low_ms"] < table["predicted_ms"]) & (table["predicted_ms"] < table["high_ms"])).all()
    assert np.isfinite(table[["predicted_ms", "high_ms", "images_per_sec", "memory_mb"]].to_numpy()).all()
    assert table["predicted_ms"].is_monotonic_increasing
    assert answer.recommended == table[table["fits"]]["device"].iloc[0]
    assert answer.recommended in answer.reason
    assert table["images_per_sec"].to_numpy() == pytest.approx(4e3 / table["predicted_ms"].to_numpy())
    zero = table[table["source"].str.startswith("zero-shot")]
    assert len(zero) and zero["out_of_range"].all(), "what was never measured there is said to be outside"
    assert "ms" in advise_text.text(answer)


def test_larger_batches_take_longer_and_scale_like_captured_ones(answer):
    asked = answer.captured
    one = next(one for one in answer.predictors if one.device == "cpu")
    line, real = asked.scaled(16), asked.work(16)
    assert line.flops == pytest.approx(real.flops)
    assert line.peak_bytes == pytest.approx(real.peak_bytes, rel=0.01)
    assert one.estimate(line).predicted_ms == pytest.approx(one.estimate(real).predicted_ms, rel=0.02)
    assert one.estimate(line).predicted_ms > one.estimate(asked.work()).predicted_ms


@pytest.mark.parametrize(("name", "mode"), [("resnet18", "infer"), ("mobilenet_v3_small", "train"), ("squeezenet1_0", "infer")])
def test_memory_scales_from_a_single_sample_like_that_of_captured_batches(name, mode):
    """One sample has convolutions of other memory: it is not on the line of the others."""
    asked = advise.CapturedQuery(Query(name, 1, mode=mode))
    for batch in (4, 32):
        assert asked.scaled(batch).memory_mb == pytest.approx(asked.work(batch).memory_mb, rel=0.01)
    assert asked.scaled(1) is asked.work()


def test_resident_memory_is_what_a_fresh_process_grows_by():
    """Of the libraries, weights and tensors: more than the tensors, with the optimizer's state where a step is asked for."""
    (cpu,) = registry.for_devices(["cpu"], "fp32", shipped=True)
    for mode in ("infer", "train"):
        captured = advise.CapturedQuery(Query("resnet18", 8, mode=mode), shipped=True)
        row = advise.row(cpu, captured, captured.work())
        assert row["memory_mb"] + 150 < row["rss_mb"] < 2 * row["memory_mb"] + 250
        assert row["rss_low_mb"] < row["rss_mb"] < row["rss_high_mb"]
        small = advise.row(replace(cpu, memory_mb=row["memory_mb"] + 50), captured, captured.work())
        assert row["fits"] and not small["fits"], "a process that does not fit is no answer, though its tensors would"
    words = advise_text.text(advise.advise(Query("resnet18", 8), [f"cpu@{cpu.origin.removeprefix('cpu-')}"], crossovers=False))
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


def test_what_no_model_is_of_and_which_times_are_of_kernels_alone_is_said():
    query = Query("tests.test_advise:Recurrent", input_shape="3x8x8")
    said = advise_text.text(advise.advise(query, ["cpu"], crossovers=False))
    assert "not modelled: mkldnn_rnn_layer (as bmm); others answer for them, of like work" in said
    for dtype, words in (("bf16", "kernels alone, as CUDA graphs run them, without launches: h100-sxm"),
                         ("fp32", "launched one by one, end to end: h100-sxm")):
        found = advise.advise(Query("tests.test_advise:Wide", 65_536, "4096", dtype=dtype), ["h100-sxm"], crossovers=False)
        assert words in advise_text.text(found) and "not modelled" not in advise_text.text(found)
        assert advise_text.records(found)[0]["latency_type"] == ("kernel" if dtype == "bf16" else "end_to_end")


def test_what_to_change_comes_with_a_gain_or_the_reason_why_not(answer):
    several = suggestions.suggestions(answer)
    assert {"channels_last", "torch.compile"} <= {change.what for change in several}
    for change in several:
        assert change.why
        assert change.predicted_gain > 0 or np.isnan(change.predicted_gain)
    text = advise_text.changes(several)
    assert all(change.what in text for change in several)


@pytest.mark.slow
def test_the_command_line_answers_in_json(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    question = "mine:Net --input 3x32x32 --batch-size 2 --mode train --json --no-look".split()
    done = subprocess.run([sys.executable, "-m", "lib", "advise", *question], capture_output=True, text=True, cwd=tmp_path,
                          check=True, env={**os.environ, "PYTHONPATH": str(paths.ROOT)})
    rows = json.loads(done.stdout)
    needed = {"device", "source", "predicted_ms", "low_ms", "high_ms", "images_per_sec", "memory_mb", "bound", "out_of_range"}
    assert rows
    assert all(needed <= set(row) for row in rows)
    assert "NaN" not in done.stdout


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_told_in_one_line(tmp_path):
    line = f"set -o pipefail; {sys.executable} -m lib advise W1 --device cpu --no-look | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(paths.ROOT)})
    assert (done.returncode, done.stderr) == (1, "error: standard output was closed before all was written to it\n")


@pytest.mark.parametrize("device", ["cpu", "h100-sxm"])
def test_a_share_is_one_of_its_whole(device, tmp_path, monkeypatch):
    """A network of activations alone: all of its operators can be fused, no more."""
    (tmp_path / "fusible.py").write_text("from torch import nn\ndef net():\n    return nn.Sequential(*[nn.ReLU()] * 9)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fusible", raising=False)
    several = suggestions.suggestions(advise.advise(Query("fusible:net", 1, "8x224x224"), [device], crossovers=False))
    why = next(change.why for change in several if change.what == "torch.compile")
    assert why == "not predicted; operators that it could fuse take 100% of the predicted time of all operators"


def test_what_was_verified_is_in_the_json(monkeypatch, capsys):
    def verified(advice, several):
        return 1.5, [replace(several[0], measured_gain=2.0), *several[1:]]

    monkeypatch.setattr(suggestions, "verified", verified)
    assert __main__.main("advise simple_cnn --input 3x28x28 --device cpu --device t4 --json --verify --no-look".split()) == 0
    rows = {row["device"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["cpu"]["verified_ms"] == 1.5
    assert rows["cpu"]["changes"][0]["measured_gain"] == 2.0
    assert None in [change["predicted_gain"] for change in rows["cpu"]["changes"]], "what is not known is null"
    assert "verified_ms" not in rows["t4"]


@pytest.mark.parametrize("arguments", [
    "advise resnet18 --batch-size -1", "advise resnet18 --batch-size 0", "advise resnet18 --batch-size 1e3",
    "advise resnet18 --batch-size 99999999999", "advise resnet18 --batch-size nan", "advise resnet18 --device t4 --device t4",
    "advise resnet18 --device=", "advise resnet18 --input=-1", "advise resnet18 --input 3x0x224", "advise resnet18 --input x",
    "advise resnet18 --input 3x999999999x999999999", "calibrate --budget-s nan", "calibrate --budget-s inf",
    "calibrate --budget-s -5", "calibrate --budget-s 1", "calibrate --budget-s 1e12", "calibrate --budget-s x",
    "calibrate --device abacus", "calibrate --device cpu,cpu", "calibrate --dtype fp64", "models --train x"])
def test_odd_options_are_one_line_before_anything_is_measured(arguments, monkeypatch, capsys):
    monkeypatch.setattr(calibrate.sweep, "measure_sweep", lambda *_, **__: pytest.fail("it was measured"))
    try:
        status = __main__.main(arguments.split())
    except SystemExit as ended:
        status = ended.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1), err


def test_a_budget_that_is_no_time_is_refused_before_measuring():
    for budget_s in (float("nan"), float("inf"), -1.0):
        with pytest.raises(InputError, match="is too short to measure anything, or has no end"):
            calibrate.calibrate("cpu", budget_s=budget_s)


@pytest.mark.parametrize(("arguments", "words"), [
    (["resnet18", "--device", "abacus"], "no fp32 model of a device 'abacus'; there are models of: .*calibrate"),
    (["alexnet", "--input", "3x8x8"], "does not run on an input of shape"),
    (["resnet_18"], "no model 'resnet_18'"),
    (["W1", "--input", "3x99x99"], "workload W1 has inputs of 3x28x28"),
    (["mine:Needs", "--input", "3x32x32"], "must be buildable without arguments"),
    (["mine:Absent"], "has no class or function 'Absent'")])
def test_questions_without_an_answer_are_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("mine", None)
    assert __main__.main(["advise", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(words, error), error


def test_questions_that_cannot_be_asked():
    with pytest.raises(InputError, match="no element type 'int8'"):
        advise.advise(Query("resnet18", 1, dtype="int8"))
    with pytest.raises(InputError, match="no mode 'fit'"):
        advise.advise(Query("resnet18", 1, mode="fit"))


def test_shipped_models_say_where_they_come_from():
    held = registry.model_files()
    assert len(held) >= 9
    for (device, dtype), path in held.items():
        model = CostModel.load(path)
        assert model.device in (device, registry.ANY_GPU)
        assert {"source", "licence", "dtype"} <= set(model.facts), path
        assert model.facts["dtype"] == dtype
        for part in model.parts.values():
            assert part.scores["n"] == part.rows
            assert part.scores["mape"] < 100


def test_a_gpu_without_a_model_is_answered_by_its_ceilings_alone():
    found = registry.for_devices(["rtx-4090"], "fp32")[0]
    assert all(part.origin for part in found.model.parts.values())
    assert found.model.chip == Chip.of(load_devices()["rtx-4090"], "fp32")
    with pytest.raises(InputError, match="states no bf16 rate or no multiprocessors of t4"):
        Chip.of(load_devices()["t4"], "bf16")


@pytest.mark.slow
def test_points_that_teach_are_spread_over_the_parts():
    model = registry.shipped_cpu("fp32")
    configs, rows = calibrate._pool("fp32")
    teach, judge = calibrate.choose(model, rows, 120)
    assert not set(teach) & set(judge)
    assert 100 < len(teach) + len(judge) < 170
    assert rows.loc[teach, "op"].nunique() >= 10
    assert len(configs) == len(rows)
    with pytest.raises(InputError, match="is too short to measure anything"):
        calibrate.calibrate("cpu", budget_s=1)
    with pytest.raises(InputError, match="is not here; this machine has"):
        calibrate.calibrate("cuda:7")


def _measured(monkeypatch, verdict, change=lambda rows: rows):
    """Let a sweep measure half as fast as the model predicts, and judge its points so."""
    model, chosen = registry.shipped_cpu("fp32"), []

    def measure(p, chosen=(), swept=chosen):
        swept.extend(chosen)
        return paths.SWEEPS / p.name

    def read(folder):
        rows = [{"op": config.op, **dict(config.parameters), "pass": config.passes, "config": config.key,
                 **dict(zip(("flops", "bytes"), spaces.work(config.ops()), strict=True))} for config in chosen]
        table = pd.DataFrame(rows).assign(status="ok", verdict=verdict, hardware_id="here", device="cpu", dtype="fp32",
                                          threads=2, latency_type="kernel", cache="cold", latency_iqr_ms=0.0)
        table = change(table.assign(latency_ms=2 * model.predict(table)["predicted_ms"]))
        return SimpleNamespace(table=table, visits=table[["config", "latency_ms"]].assign(yardstick_ms=np.nan))

    monkeypatch.setattr(calibrate, "_POOL", 120)
    monkeypatch.setattr(calibrate.sweep, "measure_sweep", measure)
    monkeypatch.setattr(calibrate.aggregate, "read", read)
    monkeypatch.setattr(calibrate.transfer_cpu, "look", lambda: None)
    monkeypatch.setattr(calibrate.calibrate_networks, "measure", lambda *_: (pd.DataFrame(columns=columns("networks")), {}))


def test_a_calibration_is_used_afterwards(home, monkeypatch):
    _measured(monkeypatch, "stable")
    before = advise.advise(Query("simple_cnn", 4, "3x28x28"), ["cpu"])
    result = calibrate.calibrate("cpu", budget_s=30)
    assert result.path.parent == paths.MODELS and result.after["median"] < 20 < result.before["median"]
    words = calibrate.summary(result)
    assert "fine-tuned by" in words and "0 are usable, two or more are needed: the composition stays that of" in words
    after = advise.advise(Query("simple_cnn", 4, "3x28x28"), ["cpu"])
    assert after.table["predicted_ms"][0] > 1.4 * before.table["predicted_ms"][0]


def _end_to_end(monkeypatch, verdicts, factor=1.5):
    """Let networks take so many times as long as the zero-shot model says, a verdict a network."""
    predictor, calls = registry.predictor("cpu", "fp32"), []

    def measure(cases, device, rounds, case_s, budget_s, raw):
        assert budget_s > 0
        calls.append({heap for _, heap in cases})
        rows = []
        for case, heap in cases:
            item = work.captured(networks.network(case.network, case.batch_size), case.mode)
            ms = factor * predictor.estimate(item, heap).predicted_ms
            rows.append({**vars(case), "memory": heap, "latency_ms": ms, "verdict": verdicts[case.network], "status": "ok"})
        return pd.DataFrame(rows, columns=columns("networks")), {}

    monkeypatch.setattr(calibrate.calibrate_networks, "NETWORKS", tuple(verdicts))
    monkeypatch.setattr(calibrate.calibrate_networks, "_PROCESS_S", 0.1)
    monkeypatch.setattr(calibrate.calibrate_networks, "_PASSES", 0)
    monkeypatch.setattr(calibrate.calibrate_networks, "Budget", lambda seconds: SimpleNamespace(left_s=seconds))  # no clock
    monkeypatch.setattr(calibrate.calibrate_networks.campaign, "measure", measure)
    monkeypatch.setattr(calibrate.calibrate_networks.campaign, "write", lambda *_, **__: None)
    monkeypatch.setattr(calibrate.calibrate_networks.campaign, "kernel_ms", lambda rows, _: pd.Series(np.nan, rows.index))
    return calls


@pytest.mark.slow
def test_a_calibration_by_whole_networks_too_predicts_others_with_honest_intervals(home, monkeypatch):
    networks_measure = calibrate.calibrate_networks.measure
    _measured(monkeypatch, "stable")
    monkeypatch.setattr(calibrate.calibrate_networks, "measure", networks_measure)
    calls = _end_to_end(monkeypatch, {"simple_cnn": "stable", "resnet18_2d": "stable", "cnn3d": "noisy"})
    query = Query("simple_cnn", 32, "3x28x28")
    zero_shot = advise.advise(query, ["cpu"]).table.iloc[0]
    result = calibrate.calibrate("cpu", budget_s=30)
    composition = registry.predictor("cpu", "fp32").composition("infer", "default")
    assert calls == [{"default"}, {"default", "kept"}]  # all networks first, the retained heap if time is left
    assert result.networks.count == composition.networks == 3 and result.networks.after["n"] == 8
    assert result.networks.after["mape"] < result.networks.before["mape"] == pytest.approx(100 / 3, rel=0.01)
    assert "3 networks end to end (8 cases), each left out: MAPE 33.3 % before (bias -33.3 %)" in calibrate.summary(result)
    answer = advise.advise(query, ["cpu"]).table.iloc[0]
    assert answer["low_ms"] < 1.5 * zero_shot["predicted_ms"] < answer["high_ms"]
    assert answer["predicted_ms"] == pytest.approx(1.5 * zero_shot["predicted_ms"], rel=0.15)


@pytest.mark.parametrize(("longest_ms", "batches"), [(1e6, (8, 8)), (0.0, (1, 1))])
def test_networks_of_a_calibration_infer_one_sample_or_several_in_turn_and_batches_that_take_long_are_halved(
        monkeypatch, longest_ms, batches):
    networks_, model = calibrate.calibrate_networks, registry.shipped_cpu("fp32")
    monkeypatch.setattr(networks_, "NETWORKS", ("simple_cnn", "resnet18_2d", "cnn3d"))
    monkeypatch.setattr(networks_, "_LONGEST_MS", longest_ms)
    chosen, works = networks_._chosen(model, Budget(60))
    assert [(case.network, case.mode, case.batch_size) for case, heap in chosen if heap == "default"] == [
        ("simple_cnn", "infer", 1), ("simple_cnn", "train", batches[1]), ("resnet18_2d", "infer", batches[0]),
        ("resnet18_2d", "train", batches[1]), ("cnn3d", "infer", 1), ("cnn3d", "train", batches[1])]
    assert {case.network for case, heap in chosen if heap == "kept"} == {"simple_cnn"}
    assert works.keys() == {(case.network, case.mode, case.batch_size) for case, _ in chosen}
    few, _ = networks_._chosen(model, Budget(1e-9))
    assert {case.network for case, _ in few} == {"simple_cnn", "resnet18_2d"}, "two at least, whatever the budget"


def test_a_calibration_that_makes_networks_worse_is_refused_and_not_saved(home, monkeypatch):
    networks_measure = calibrate.calibrate_networks.measure
    _measured(monkeypatch, "stable")
    monkeypatch.setattr(calibrate.calibrate_networks, "measure", networks_measure)
    _end_to_end(monkeypatch, {"simple_cnn": "stable", "resnet18_2d": "stable"}, factor=1.0)  # operators take twice as long
    with pytest.raises(InputError, match=r"did not help: networks measured end to end err by \d+ % after it, by 0 % before"):
        calibrate.calibrate("cpu", budget_s=30)
    assert not paths.MODELS.exists()


def test_errors_have_grown_where_they_did_so_for_the_networks_together():
    network = pd.Series(["a", "a", "b", "b", "c"])
    before = pd.Series([0.1, 0.1, 0.1, 0.1, 0.1])
    for grown, worse in (([0.1] * 5, True), ([0.3, 0.1, 0.2, 0.2, 0.1], True), ([0.4, 0.4, -0.1, -0.1, 0.0], False),
                         ([-0.1] * 5, False), ([0.0] * 5, False)):
        assert calibrate.calibrate_networks._worse(network, before, before + grown) == worse


def test_a_slow_machine_that_measures_a_part_of_the_points_calibrates_all_the_same(home, monkeypatch):
    _measured(monkeypatch, "stable", lambda rows: rows.head(45))
    result = calibrate.calibrate("cpu", budget_s=60)
    assert 30 <= result.points <= 43 and result.after["n"] == 45 - result.points


def test_one_usable_network_leaves_the_composition_as_it_was(home, monkeypatch):
    networks_measure = calibrate.calibrate_networks.measure
    _measured(monkeypatch, "stable")
    monkeypatch.setattr(calibrate.calibrate_networks, "measure", networks_measure)
    _end_to_end(monkeypatch, {"simple_cnn": "stable", "resnet18_2d": "unusable"})
    before = registry.predictor("cpu", "fp32").composition("infer")
    result = calibrate.calibrate("cpu", budget_s=30)
    assert registry.predictor("cpu", "fp32").composition("infer") == before
    assert "1 are usable, two or more are needed" in calibrate.summary(result)


@pytest.mark.parametrize("change", [lambda rows: rows.assign(verdict="unusable"), lambda rows: rows.assign(status="failed"),
                                    lambda rows: rows.head(0), lambda rows: rows.head(20)])
def test_a_calibration_without_usable_points_is_one_line_and_keeps_them(change, home, monkeypatch):
    _measured(monkeypatch, "stable", change)
    with pytest.raises(InputError, match="measured points are usable, 20 or more are needed .* the points are in .*sweeps"):
        calibrate.calibrate("cpu", budget_s=10)
    assert not paths.MODELS.exists()


def test_a_calibration_whose_points_are_of_one_shape_falls_back_to_one_factor(home, monkeypatch):
    def of_one_shape(rows):
        same = rows[rows["op"] == "batch_norm"].iloc[[0] * 40].assign(config=list(rows["config"].head(40)))
        return pd.concat([same, rows], ignore_index=True).drop_duplicates("config")

    _measured(monkeypatch, "stable", of_one_shape)
    result = calibrate.calibrate("cpu", budget_s=30)
    assert result.after["median"] < result.before["median"]


def test_gains_of_one_device_are_not_measured_on_another():
    found = advise.advise(Query("simple_cnn", 2, "3x28x28"), ["t4"], crossovers=False)
    with pytest.raises(InputError, match="what is measured here is cpu, and the query was about t4: add cpu"):
        suggestions.verified(found, [])


def test_what_a_step_takes_beside_its_passes_is_that_of_its_own_batch(monkeypatch):
    found = advise.advise(Query("simple_cnn", 2, "3x28x28", mode="train"), ["cpu"], crossovers=False)
    monkeypatch.setattr(suggestions, "_median_ms", lambda case, *_: 0.5 * case.batch_size)
    _, (larger,) = suggestions.verified(found, [suggestions.Change("batch size 8", np.nan, "", {"batch_size": 8})])
    small, large = (found.captured.predicted(found.predictors[0], found.captured.work(batch)).beside_ms for batch in (2, 8))
    assert larger.measured_gain == pytest.approx(4 * (1 + small) / (4 + large), rel=0.02)
    assert large < 3 * small, "the optimizer's part is the same"


def test_the_other_element_type_of_a_machine_s_gpu_is_predicted(home):
    shipped = registry.path_of("h100-sxm", "bf16", registry.SHIPPED)
    registry.load(shipped).save(paths.IMPORTED / "box" / "trained" / shipped.name)
    captured = advise.CapturedQuery(Query("simple_cnn", 2, "3x28x28"))
    gpu = registry.for_devices(["h100-sxm"], "fp32")[0]
    for device, is_predicted in (("h100-sxm@box", True), ("t4", False)):
        half = next(one for one in suggestions.changes(captured, replace(gpu, device=device)) if "bf16" in one.what)
        assert np.isfinite(half.predicted_gain) == is_predicted
        assert half.why.startswith("by the bf16 model" if is_predicted else "not predicted: no bf16 model of a device 't4'")


@pytest.mark.slow
def test_a_prediction_is_verified_on_this_machine():
    found = advise.advise(Query("simple_cnn", 2, "3x28x28"), ["cpu"], crossovers=False)
    larger = [change for change in suggestions.suggestions(found) if "batch" in change.what]
    measured_ms, several = suggestions.verified(found, larger[:1], budget_s=0.05)
    assert measured_ms > 0
    assert several[0].measured_gain > 0
    assert "the interval" in advise_text.verdict(found, measured_ms)


CONV = "batch=8 in_channels=64 out_channels=64 height=56 width=56 kernel=3 stride=1 padding=1".split()


def test_one_operator_has_a_time_a_bandwidth_a_rate_a_bound_and_an_interval(capsys):
    assert __main__.main(["advise-op", "conv2d", *CONV, "--device", "cpu", "--device", "t4", "--json", "--no-look"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["device"] for row in rows} == {"cpu", "t4"}
    flops, moved = 2 * 8 * 64 * 56 * 56 * 64 * 9, 4 * (2 * 8 * 64 * 56 * 56 + 64 * 64 * 9)
    for row in rows:
        assert 0 < row["low_ms"] < row["predicted_ms"] < row["high_ms"]
        assert row["gflops"] * row["predicted_ms"] * 1e6 == pytest.approx(flops)
        assert row["gbps"] * row["predicted_ms"] * 1e6 == pytest.approx(moved)
        assert row["bound"] == "compute"
        assert 0 < row["pct_of_attainable"] < 150
    assert __main__.main(["advise-op", "conv2d", *CONV, "--device", "t4"]) == 0
    assert "1.85e+09 FLOPs, 1.299e+07 compulsory bytes" in capsys.readouterr().out


def test_an_operator_is_what_each_device_type_runs_for_it():
    """On CUDA another kernel attends, which writes other numbers beside the result."""
    shape = "kind=sdpa batch=2 heads=4 q_len=64 kv_len=64 head_dim=32".split()
    wanted = advise_operator.config("attention", shape)
    table = advise_operator.advise(wanted, ["cpu", "t4"])
    works = {"cpu": spaces.work(wanted.ops()), "t4": spaces.work(wanted.ops("cuda"))}
    assert works["cpu"] != works["t4"]
    for row in table.itertuples():
        assert row.gbps * row.predicted_ms * 1e6 == pytest.approx(works[row.device][1])
    assert re.search("cpu: .* FLOPs, .* compulsory bytes; cuda: ", advise_operator.text(wanted, table))


def test_a_device_that_is_left_out_of_json_is_named(monkeypatch, capsys):
    real = advise_operator._row

    def row(predictor, described):
        if predictor.device == "t4":
            raise InputError("no part conv2d")
        return real(predictor, described)

    monkeypatch.setattr(advise_operator, "_row", row)
    assert __main__.main(["advise-op", "conv2d", *CONV, "--device", "cpu", "--device", "t4", "--json", "--no-look"]) == 0
    shown = capsys.readouterr()
    assert [one["device"] for one in json.loads(shown.out)] == ["cpu"] and shown.err == "left out: t4: no part conv2d\n"


def test_the_short_names_are_those_of_all_axes():
    whole = [part for part in CONV if not part.startswith(("kernel", "stride", "padding"))]
    whole += ["kernel_h=3", "kernel_w=3", "stride_h=1", "stride_w=1", "padding_h=1", "padding_w=1"]
    assert advise_operator.config("conv2d", CONV).key == advise_operator.config("conv2d", whole).key


def test_an_operator_that_was_measured_on_the_device_says_so():
    name = registry.shipped_cpus("fp32")[0].name.removeprefix("cpu-").partition("_")[0]
    (predictor,) = registry.for_devices([name], "fp32")
    row = predictor.measured_operators.query("op == 'linear'").iloc[0]
    wanted = advise_operator.config("linear", [f"{name}={int(row[name])}" for name in ("gemm_m", "gemm_k", "gemm_n")]
                                    + [f"layout={row['layout']}"])
    assert advise_operator.advise(wanted, [name])["measured_ms"].tolist() == [row["latency_ms"]]


@pytest.mark.parametrize(("arguments", "words"), [
    ("conv9 batch=1", "no operator family 'conv9'; there are: conv2d"), ("linear", "missing \\[gemm_m, gemm_k, gemm_n\\]"),
    ("linear gemm_m", "'gemm_m' is no NAME=VALUE; linear takes: gemm_m"), ("linear gemm_m=x", "is a whole number"),
    ("linear gemm_m=-1", "is a whole number"), ("linear gemm_m=9999999999", "is a whole number of at most 9 digits"),
    ("linear gemm_m=1 gemm_m=2", "gemm_m is given twice"), ("linear gemm_m=0 gemm_k=1 gemm_n=1", "gemm_m 0 is no number"),
    ("linear gemm_m=1 gemm_k=1 gemm_n=1 layout=zz", "layout 'zz' is none"),
    ("conv2d batch=1 in_channels=1 out_channels=1 height=2 width=2 kernel=9 stride=1", "conv2d"),
    ("linear gemm_m=1 gemm_k=1 gemm_n=1 --device nope", "no fp32 model of a device 'nope'"),
    ("linear gemm_m=1 gemm_k=1 gemm_n=1 --dtype fp64", "invalid choice")])
def test_an_operator_that_is_none_is_one_line(capsys, arguments, words):
    try:
        status = __main__.main(["advise-op", *arguments.split()])
    except SystemExit as ended:
        status = ended.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert re.search(words, err)


@pytest.mark.parametrize(("name", "device"), [
    ("NVIDIA L40S", "l40s"), ("NVIDIA L4", "l4"), ("NVIDIA A10", "a10"), ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
    ("A100-PCIE-80GB", "a100-pcie-80gb"), ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
    ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("GeForce RTX 3090", "rtx-3090"),
    ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
    ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("NVIDIA H200", "h200-sxm")])
def test_a_card_is_known_by_its_whole_name(name, device):
    assert registry.vendor_of(name) == device


def test_each_card_is_known_by_its_own_name():
    assert {registry.vendor_of(device.name): device.id for device in load_devices().values()} == \
        {device: device for device in load_devices()}


@pytest.mark.parametrize(("name", "near"), [
    ("NVIDIA L40", "NVIDIA L40S"), ("NVIDIA A10G", "NVIDIA A10"), ("Tesla V100-SXM3-32GB", "Tesla V100-SXM2-32GB"),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB"), ("NVIDIA H200 NVL", "NVIDIA H200"), ("A100", "A10"),
    ("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 3090"), ("NVIDIA", "NVIDIA"), ("", "")])
def test_a_card_that_is_not_listed_is_refused_with_the_nearest_names(name, near):
    with pytest.raises(InputError, match=f"no device named '{name}' .the nearest: .*{near}.*01_machine"):
        registry.vendor_of(name)
