"""The model of GPUs: rows of counted work, the form and its ceilings, levels and their fit, and advice from them."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lib.config.definitions import load_devices
from lib.predict import held_out, registry
from lib.predict.gpu import features, fit, form, kinds, model, rows, scores
from lib.predict.gpu.levels import Condition, chip_of, levels_of
from lib.predict.gpu_training import cases, training
from lib.predict.operators.chip import Chip
from lib.work import networks
from lib.work.building.timm_models import MERGED
from lib.work.graph import capture
from lib.work.networks import Network
from tests import output_of, refusal, refused
from tests.gpu_networks import EAGER, advised, answered, case_of, change, predicted_ms, synthetic, weights

SEVERAL = (EAGER, replace(EAGER, compiled=True), replace(EAGER, layout="nhwc"), replace(EAGER, precision="fp32"))
CHIP = Chip(1e11, 5e10, 1e9, 100, 5e7, 2)


def rows_of(*layers, shape=(2, 8, 8, 8)):
    network = Network("small", lambda: nn.Sequential(*layers), shape)
    return rows.of_graph(capture.of_network(network, "infer", device="cuda:0"))


@pytest.fixture(scope="module")
def table():
    return rows_of(nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(2), nn.LayerNorm(64), nn.Linear(64, 10))


def of_kind(table, kind, stage="eager"):
    return table[(table["kind"] == kind) & (table["stage"] == stage)]


def test_rows_count_what_automatic_mixed_precision_moves(table):
    def moved(kind, stage="eager"):
        part = of_kind(table, kind, stage)
        return (part["read"] * part["calls"]).tolist(), (part["written"] * part["calls"]).tolist()

    image, made = 2 * 8 * 64, 2 * 16 * 64
    assert moved("conv_1x1", "always") == ([2 * image], [2 * made])
    assert moved("batch_norm") == ([2 * made], [2 * made]), "16 bits in, 16 bits out"
    assert moved("layer_norm") == ([4 * made], [4 * made]), "autocast normalises layers in 32 bits"
    assert table.loc[table["kind"] == "conv_1x1", "flops"].item() == 2 * 2 * 64 * 8 * 16
    casts = table[table["kind"] == "cast"]
    assert casts["read"] @ casts["calls"] == 4 * image + 2 * made + 4 * made, "the image, to and from the layer norm"
    assert casts["read_once"] @ casts["calls"] == 4 * (8 * 16 + 16 + 64 * 10 + 10), "each weight once a pass"


def test_the_bias_of_a_convolution_is_a_kernel_that_is_not_launched_by_itself(table):
    (bias,) = of_kind(table, "elementwise").to_dict("records")
    assert bias["launches"] == 0 and bias["read_elements"] == bias["written_elements"] == 2 * 16 * 64
    assert of_kind(rows_of(nn.Conv2d(8, 16, 1, bias=False)), "elementwise").empty


@pytest.mark.parametrize("layer, shape, classes", [
    (nn.Conv2d(32, 32, 3), (2, 32, 8, 8), ()), (nn.Conv1d(32, 32, 3), (2, 32, 8), ("one_d",)),
    (nn.Conv3d(32, 32, 3), (2, 32, 8, 8, 8), ("three_d",)), (nn.ConvTranspose2d(32, 32, 3), (2, 32, 8, 8), ("transposed",)),
    (nn.Conv2d(32, 8, 3, dilation=2), (2, 32, 8, 8), ("dilated", "few_out"))])
def test_rare_convolutions_are_told_by_their_class(layer, shape, classes):
    terms = features.terms(rows_of(layer, shape=shape), 1.0, CHIP, EAGER)
    flags = dict(zip(features.COMPUTING_FEATURES, terms.computing[0].tolist(), strict=True))
    assert {name for name in features.CLASSES if flags[name]} == set(classes)


def test_few_long_reductions_leave_a_gpu_idle():
    few, many = (rows_of(nn.LayerNorm(shape[1:]), shape=shape) for shape in ((4, 2, 1 << 20), (1 << 14, 2, 256)))
    few_ms, many_ms = (features.terms(frame, 1.0, CHIP, EAGER).move_ms.max().item() for frame in (few, many))
    assert few_ms > 10 * many_ms, "as many bytes, but four blocks of threads"


def test_a_recurrent_layer_runs_step_by_step():
    frame = rows_of(_First(nn.GRU(16, 32, 2, batch_first=True)), shape=(4, 50, 16))
    steps = of_kind(frame, "recurrent")
    assert steps["calls"].sum() == 2 * 50 and steps["launches"] @ steps["calls"] == pytest.approx(2)
    t = answered("l4", "tests.test_gpu:gru", 10, "fp32", input_shape="512x128")
    assert 10 < t["predicted_ms"] < 40, "20 ms on an L4 of KernelBench"


class _First(nn.Module):
    """The output of a recurrent layer without its state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


def gru():
    """Return KernelBench's L3_039 with the batch first."""
    return _First(nn.GRU(128, 256, 6, batch_first=True))


def test_kernels_keep_to_their_ceilings(table):
    """Twice the ceilings halve the time of each; however efficient, none is faster than their limits."""
    fast = replace(CHIP, flops_per_ms=2 * CHIP.flops_per_ms, vector_flops_per_ms=2 * CHIP.vector_flops_per_ms,
                   bytes_per_ms=2 * CHIP.bytes_per_ms)
    table = table[table["kind"] != "layer_norm"]  # two blocks of threads, which wait for memory

    def kernels_ms(condition, chip, values):
        values[-len(form.OVERHEADS):] = -60.0
        terms = features.terms(table, 32.0, chip, condition)
        return terms, form.kernels_ms(terms, torch.as_tensor(values)[None]).numpy()

    for condition in SEVERAL:
        (_, slow_ms), (_, fast_ms) = (kernels_ms(condition, chip, form.usual()) for chip in (CHIP, fast))
        np.testing.assert_allclose(fast_ms, slow_ms / 2, rtol=1e-6)
    terms, ms = kernels_ms(EAGER, CHIP, np.full(form.SIZE, 50.0))
    assert ms.sum() >= terms.move_ms @ terms.calls / form.BEST["moving"] * 0.999


def test_tf32_is_of_convolutions_unless_it_is_asked_for():
    vendor, fp32 = load_devices()["a100-sxm-40gb"], replace(EAGER, precision="fp32")
    chip = chip_of(vendor, fp32)
    assert (chip.flops_per_ms, chip.convolution_flops_per_ms) == (19.5e9, 156e9)
    assert chip_of(vendor, replace(fp32, precision="tf32")).flops_per_ms == 156e9
    assert chip_of(load_devices()["t4"], fp32).convolution_flops_per_ms == 0, "it has none"


def test_efficiencies_are_found_again_through_the_sum():
    computing = (np.array(kinds.COMPUTING) == "linear")[:, None] * form.INTERCEPTS["computing"]
    true = weights(computing=0.8 * computing,
                   moving=(np.array(kinds.KERNEL_KINDS) == "batch_norm")[:, None] * form.INTERCEPTS["moving"] * 0.5)
    frames, first = synthetic(60, 1), np.arange(60) < 40

    def errors(more):
        case = case_of("rtx-4090", true, frames, more=more)
        fitted = fit.fit([case.of(first)])
        return np.abs(predicted_ms(fitted, case) / np.exp(case.log_ms - more) - 1)[~first]

    assert errors(np.zeros(60)).max() < 0.03
    assert np.median(errors(1.0 * (np.arange(60) % 10 == 0))) < 0.05, "a tenth of labels is off by e"


@pytest.fixture(scope="module")
def two_cards():
    """Give networks of two cards, of which one has slower memory than usual."""
    frames = synthetic(70, 3)
    slower = weights(moving=-1.0 * form.INTERCEPTS["moving"])
    return [case_of("rtx-3090", weights(), frames), case_of("rtx-4090", slower, frames)]


def test_levels_tell_two_cards_apart_and_a_third_is_between(two_cards):
    fitted = fit.fit(two_cards)
    for case in two_cards:
        assert np.median(np.abs(predicted_ms(fitted, case) / np.exp(case.log_ms) - 1)) < 0.03
    third = replace(two_cards[0], levels=levels_of(load_devices()["t4"], EAGER))
    fast_ms, between_ms, slow_ms = (fit.predicted_ms(fitted, two_cards[0], case.levels).sum()
                                    for case in (two_cards[0], third, two_cards[1]))
    assert fast_ms < between_ms < slow_ms
    known = fit.fit(two_cards[:1], fitted)
    pd.testing.assert_frame_equal(known, fitted.loc[known.index]), "known levels stay"


@pytest.mark.slow
def test_a_training_scores_cards_and_families_left_out_and_its_file_answers(two_cards, tmp_path, monkeypatch):
    monkeypatch.setattr(model, "PATH", tmp_path / "gpu.json")
    monkeypatch.setattr(fit, "ITERATIONS", 40)
    predicted = training.ship(two_cards)
    for scope, part in predicted.groupby("scope"):
        assert part.groupby(["device", "network"]).size().eq(1).all(), scope
    assert predicted.groupby("family")["fold"].nunique().eq(1).all()
    bias = np.log(predicted["predicted"] / predicted["measured"]).groupby([predicted["scope"], predicted["device"]]).median()
    assert bias[model.NEW, "rtx-4090"] < -0.1 < 0.1 < bias[model.NEW, "rtx-3090"], "one is slower than the other"
    assert bias[model.MEASURED].abs().max() < 0.05
    table = scores.rows()
    assert set(table["what"]) == {held_out.NETWORKS, held_out.NEW_CARDS} and len(table) == len(predicted)
    inside = table["measured"].between(table["low"], table["high"])
    assert inside.groupby(table["what"]).mean().between(0.85, 1).all()
    answer = model.shipped().predict(load_devices()["rtx-4090"], EAGER, two_cards[1].table["rows"][0], 32.0)
    assert answer.predicted_ms == pytest.approx(two_cards[1].table["latency_ms"][0], rel=0.1)
    assert (answer.scope, model.shipped().scope(load_devices()["t4"], EAGER)) == (model.MEASURED, model.NEW)


@pytest.mark.parametrize("old, new", [('"schema": 1', '"schema": 9'), ('"shape"', '"form"'), ("intervals", "ranges")])
def test_a_damaged_file_is_refused_in_one_line(old, new, tmp_path):
    path = tmp_path / "gpu.json"
    text = model.PATH.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with refused("gpu.json"):
        model.GpuModel.load(path)


def test_a_gpu_is_answered_under_every_condition_with_an_honest_range():
    fp32 = answered("h100-sxm", "resnet18", 64, "fp32")
    for more in ({}, {"layout": "channels_last"}, {"compiled": True}, {"mode": "train"}):
        row = answered("h100-sxm", "resnet18", 64, "fp16", **more)
        assert row["low_ms"] < row["predicted_ms"] < row["high_ms"], more
        assert "MAPE" in row["held_out"] and row["source"].startswith("learned from"), more
    assert answered("a100-sxm-40gb", "vit_b_16", 64, "tf32")["predicted_ms"] < \
        answered("a100-sxm-40gb", "vit_b_16", 64, "fp32")["predicted_ms"], "matrix products, too"
    assert answered("h100-sxm", "resnet18", 64, "bf16", autocast=False)["predicted_ms"] < fp32["predicted_ms"]
    with refused("no networks were measured in this condition"):
        advised("cpu", "resnet18", 1, "tf32")


def test_a_users_host_decides_on_a_network_that_waits_for_it():
    def predicted(*more):
        (row,) = re.findall(r'"predicted_ms": ([0-9.]+)', output_of(
            "advise", "resnet18", "--device", "h100-sxm", "--json", *more))
        return float(row)

    assert predicted("--host-us", "5") < predicted() < predicted("--host-us", "100")
    assert "--host-us" in refusal("advise", "resnet18", "--host-us", "-1")


def test_changes_are_predicted_and_their_errors_quoted():
    gain = change(advised("rtx-4090", "resnet18"), "channels_last")
    assert 0.5 < gain.predicted_gain < 3
    scored = scores.gains().query("condition == 'eager-amp_fp16-nchw to eager-amp_fp16-nhwc' and left_out == 'families'")
    assert f"% of {len(scored):,} cases" in gain.why


def test_what_ships_was_scored_on_cards_and_modules_left_out():
    table = scores.rows()
    for part, worst in ((table["source"] == "timm", 0.16), (table["source"].str.startswith("KernelBench"), 0.3)):
        new = table[part & (table["what"] == held_out.NEW_CARDS)]
        error = np.log(new["predicted"] / new["measured"]).abs()
        assert error.median() < worst
        assert new["measured"].between(new["low"], new["high"]).mean() > 0.85


@pytest.mark.slow
def test_networks_whose_branches_were_merged_are_told_by_their_parameters():
    names = ["repghostnet_100", "repghostnet_100", "resnet18", "resnet18", "resnet18", "nonet_1"]
    table = pd.DataFrame({"network": names, "image_size": 64, "parameters_m": [4.07, 4.06, 11.69, 11.7, 11.18, 5.0],
                          "module": "m"})
    named, reasons = cases.captured(table)
    assert named["network"].tolist() == ["repghostnet_100", "repghostnet_100" + MERGED, "resnet18", "resnet18"]
    assert set(reasons) == {"nonet_1 64", "resnet18 64 of 11.18 M parameters"}
    assert reasons["resnet18 64 of 11.18 M parameters"] == \
        "timm builds it with 11.69 M, with merged branches with 11.69 M"
    plain, merged = named["rows"][:2]
    assert rows.parameters(plain) == pytest.approx(4.07e6, rel=2e-3)
    assert merged.loc[merged["stage"] == "eager", "calls"].sum() < 0.9 * plain.loc[plain["stage"] == "eager", "calls"].sum()
    assert networks.family(f"timm:repghostnet_100{MERGED}") == "repghost"


def test_every_level_that_ships_is_one_that_an_answer_may_have():
    levels = {level for vendor in load_devices().values() if vendor.multiprocessors
                         for precision in ("fp32", "fp16") for layout in ("nchw", "nhwc")
                         for mode, compiled in (("infer", False), ("infer", True), ("train", False))
                         for level in levels_of(vendor, Condition(mode, precision, layout, compiled))}
    assert set(model.shipped().levels) <= levels


def test_every_gpu_that_is_answered_has_a_range_of_its_scope():
    for predictor in registry.for_devices([], "fp32"):
        if predictor.device_type == "cuda":
            row = answered(predictor.device, "resnet18", 8, "fp32")
            assert np.isfinite(row["high_ms"]), predictor.device
