"""Whole networks on GPUs: rows of work against counted ones, laws of the model, and efficiencies that are found again."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lib.config import definitions
from lib.errors import InputError
from lib.predict.advice import advise, suggestions
from lib.predict.composed import answers, evaluation, features, fusion, model, model_file, rows, training
from lib.predict.composed.features import Condition
from lib.predict.composed.model import Fitted
from lib.predict.composed.model_file import Composed
from lib.predict.evaluation import models_at_hand
from lib.predict.operators.features_gpu import Chip
from lib.work import networks
from lib.work.building.inputs import Input
from lib.work.graph import capture
from lib.work.networks import Network

EAGER = Condition("infer", "amp_fp16", "nchw", False, "2.9.1")
SEVERAL = (EAGER, replace(EAGER, compiled=True), replace(EAGER, layout="nhwc"))
CHIP = Chip(1e11, 5e10, 1e9, 100, 5e7, 2)
SCORES = {"mape": 8.1, "median": 5.2, "p90": 17.0, "bias": 0.4, "within_10": 74.0, "n": 1000.0, "families": 60.0}


def small():
    return nn.Sequential(nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(2), nn.LayerNorm(64), nn.Linear(64, 10))


def rows_at(batch):
    return rows.of_graph(capture.of_network(Network("small", small, (batch, 8, 8, 8)), "infer", device="cuda:0"))


@pytest.fixture(scope="module")
def table():
    return rows_at(rows.BATCH)


def moved(table, kind, stage="eager", once=False):
    part = table[(table["kind"] == kind) & (table["stage"] == stage)]
    end = "_once" if once else ""
    return [(float(row[f"read{end}"] * row["calls"]), float(row[f"written{end}"] * row["calls"])) for _, row in part.iterrows()]


def test_rows_count_what_automatic_mixed_precision_moves(table):
    image, made = 2 * 8 * 64, 2 * 16 * 64
    assert moved(table, "conv_1x1", "always") == [(2.0 * image, 2.0 * made)]
    assert moved(table, "batch_norm") == [(2.0 * made, 2.0 * made)], "16 bits in, 16 bits out"
    assert moved(table, "layer_norm") == [(4.0 * made, 4.0 * made)], "autocast normalises layers in 32 bits"
    assert table.loc[table["kind"] == "conv_1x1", "flops"].item() == 2 * 2 * 64 * 8 * 16
    casts = table[table["kind"] == "cast"]
    assert (casts["read"] * casts["calls"]).sum() == 4 * image + 2 * made + 4 * made, "the image, to and from the layer norm"
    weights = 8 * 16 + 16 + 64 * 10 + 10
    assert (casts["read_once"] * casts["calls"]).sum() == 4 * weights, "each weight once a pass"


def test_rows_at_one_batch_say_what_there_is_at_another(table):
    other = rows_at(6)
    assert len(other) == len(table)
    for name in ("read", "written", "flops"):
        assert (other[name] * other["calls"]).sum() == pytest.approx(3 * (table[name] * table["calls"]).sum())
    for name in ("read_once", "written_once"):
        assert (other[name] * other["calls"]).sum() == (table[name] * table["calls"]).sum()


def test_what_a_compiler_fuses_moves_less():
    size = (100, True, 2)
    chain = [fusion.Node("linear", {0: size}, {1: size}), fusion.Node("elementwise", {1: size, 9: size}, {2: size}),
             fusion.Node("activation", {2: size}, {3: size}), fusion.Node("linear", {3: size}, {4: size})]
    (fused,) = fusion.rows(chain)
    assert (fused["kind"], fused["read"], fused["written"]) == ("fused", 400, 200), "what passes between them stays inside"
    size_read = [fusion.Node("batch_norm", {0: size}, {1: size}), fusion.Node("reduction", {1: size}, {2: (1, True, 2)}),
                 fusion.Node("conv_1x1", {2: (1, True, 2)}, {3: (1, True, 2)}),
                 fusion.Node("elementwise", {1: size, 3: (1, True, 2)}, {4: size})]
    first, gated = fusion.rows(size_read)
    assert (first["written"], gated["read"]) == (202, 202), "what waits for a convolution is a kernel of its own"
    twice = [fusion.Node("layer_norm", {0: size}, {1: size}), fusion.Node("softmax", {1: size}, {2: size})]
    assert [one["kind"] for one in fusion.rows(twice)] == ["fused_norm", "fused_norm"], "no kernel reduces twice"


def test_doubled_ceilings_halve_the_time_of_every_kernel(table):
    weights = model.usual()
    weights[-2:] = -60.0  # no overheads
    parts = model.split(torch.as_tensor(weights))
    fast = replace(CHIP, flops_per_ms=2 * CHIP.flops_per_ms, vector_flops_per_ms=2 * CHIP.vector_flops_per_ms,
                   bytes_per_ms=2 * CHIP.bytes_per_ms)
    for condition in SEVERAL:
        slow_ms, fast_ms = (model.kernels_ms(features.terms(table, 64.0, chip, condition), parts).numpy()
                            for chip in (CHIP, fast))
        np.testing.assert_allclose(fast_ms, slow_ms / 2, rtol=1e-6)


def test_no_kernel_is_faster_than_the_limits_of_its_ceilings(table):
    weights = np.full(model.SIZE, 50.0)
    weights[-2:] = -60.0
    terms = features.terms(table, 64.0, CHIP, EAGER)
    total = model.kernels_ms(terms, model.split(torch.as_tensor(weights))).sum()
    assert total >= (terms.move_ms * terms.calls).sum() / model.BEST["moving"] * 0.999


def test_launches_bound_a_small_batch_and_not_a_large_one(table):
    parts = model.split(torch.as_tensor(model.usual()))
    one, two, many, more = (float(model.log_ms(features.terms(table, batch, CHIP, EAGER), parts).exp())
                            for batch in (1.0, 2.0, 1e6, 2e6))
    assert two == pytest.approx(one, rel=0.01)
    assert more == pytest.approx(2 * many, rel=0.01)


def synthetic(count, seed):
    """Return rows of networks of three kinds of work, drawn at random."""
    generator, frames = np.random.default_rng(seed), []
    for _ in range(count):
        sizes = generator.uniform(1e6, 1e8, 3)
        frame = pd.DataFrame({"kind": ["linear", "elementwise", "batch_norm"], "stage": ["always", "eager", "eager"],
                              "calls": generator.integers(1, 20, 3).astype(float), "scales": 1.0,
                              "flops": [sizes[0] * 400, 0, 0],
                              "read": sizes, "written": sizes, "read_elements": sizes / 2, "written_elements": sizes / 2,
                              "m": [4096.0, 0, 0], "n": [512.0, 0, 0], "k": [512.0, 0, 0]}).reindex(columns=list(rows.COLUMNS))
        numbers = [name for name in rows.COLUMNS if name not in ("kind", "stage")]
        frame[numbers] = frame[numbers].fillna(0.0)
        frames.append(frame.assign(kind=pd.Categorical(frame["kind"], rows.KINDS),
                                   stage=pd.Categorical(frame["stage"], rows.STAGES)))
    return frames


def test_efficiencies_are_found_again_through_the_sum():
    frames = synthetic(60, 1)
    joined, network = pd.concat(frames, ignore_index=True), np.repeat(np.arange(60), 3)
    terms = features.terms(joined, 64.0, CHIP, EAGER, network, 60)
    true = model.split(torch.as_tensor(model.usual()))
    true["computing"][features.COMPUTING.index("linear"), 0] += 0.8
    true["moving"][features.KINDS.index("elementwise"), 0] -= 0.7
    true["moving"][features.KINDS.index("batch_norm"), 0] += 0.5
    logs = model.log_ms(terms, true).numpy()
    apart = np.arange(60).astype(str)
    cases = training.Cases(terms, logs, ("exact",), apart)
    train = np.arange(60) < 40
    weights = training.fit({"a": cases}, {"a": train})
    error = np.abs(np.expm1(training.predict(cases, weights) - logs))
    assert error[~train].max() < 0.03
    spoiled = training.Cases(terms, logs + np.where(np.arange(60) % 10 == 0, 1.0, 0.0), ("exact",), apart)
    robust = training.fit({"a": spoiled}, {"a": train})
    assert np.median(np.abs(np.expm1(training.predict(cases, robust) - logs))[~train]) < 0.05, "a tenth of labels is off by e"


def test_a_level_that_was_never_seen_adds_nothing():
    values = np.stack([model.usual(), np.ones(model.SIZE)])
    weights = training.Weights(values, ("card:a",))
    np.testing.assert_array_equal(weights.of(("card:b",)), model.usual())
    np.testing.assert_array_equal(weights.of(("card:a",)), model.usual() + 1)


@pytest.fixture
def composed():
    fast = model.usual()
    fast[:-2] += 0.5
    return Composed("rtx-4090", {condition: Fitted(model.usual() if condition == EAGER else fast, 0.2, SCORES, (16, 1024))
                                 for condition in SEVERAL}, "timm", "Apache-2.0")


def test_a_model_comes_back_from_its_file(composed, tmp_path, table):
    path = composed.save(tmp_path / "rtx-4090.json")
    again = Composed.load(path)
    for condition in SEVERAL:
        assert answers.answer(again, table, 256, condition).predicted_ms == pytest.approx(
            answers.answer(composed, table, 256, condition).predicted_ms, rel=1e-4)
    assert answers.answer(again, table, 256, EAGER).source == "timm"
    corrected = replace(composed.conditions[EAGER], basis="others", scored="eager-amp_fp16-nchw-2.4.0", corrected=11)
    again = Composed.load(replace(composed, conditions={EAGER: corrected}).save(path)).conditions[EAGER]
    assert (again.basis, again.scored, again.corrected) == ("others", "eager-amp_fp16-nchw-2.4.0", 11)
    assert model_file.of_device("rtx-3090", tmp_path) is None


@pytest.mark.parametrize(("old", "new"), [("rtx-4090", "rtx-3090"), ('"schema": 1', '"schema": 9'), ("infer", "guess"),
                                          ("{", "")])
def test_a_damaged_file_is_refused_in_one_line(composed, tmp_path, old, new):
    path = composed.save(tmp_path / "rtx-4090.json")
    text = path.read_text()
    assert old in text or old.replace(" ", "") in text
    path.write_text(text.replace(old, new, 1).replace(old.replace(" ", ""), new.replace(" ", ""), 1))
    with pytest.raises(InputError, match="rtx-4090.json") as error:
        Composed.load(path)
    assert "\n" not in str(error.value)


def test_families_stay_whole_in_folds():
    table = pd.DataFrame({"network": [f"n{n}" for n in range(40)], "image_size": 224,
                          "module": [f"m{n % 8}" for n in range(40)]})
    place = evaluation.folds(table)
    assert place.groupby(table["module"]).nunique().eq(1).all()
    assert place.nunique() == evaluation.FOLDS


def test_training_scores_families_left_out_and_leaves_the_final_ones_alone():
    frames = synthetic(70, 2)
    table = pd.DataFrame({"device": "rtx-4090", "network": [f"n{n}" for n in range(70)], "image_size": 224, "mode": "infer",
                          "module": [f"m{n % 7}" for n in range(70)], "batch_size": 64, "precision": "amp_fp16",
                          "layout": "nchw", "compiled": False, "torch": "2.9.1"})
    chip = Chip.of(definitions.load_devices()["rtx-4090"], "fp16")
    parts = model.split(torch.as_tensor(model.usual()))
    parts["moving"][features.KINDS.index("elementwise"), 0] -= 0.5
    logs = [float(model.log_ms(features.terms(frame, 64.0, chip, EAGER), parts)) for frame in frames]
    captures = {(f"n{number}", 224): frame for number, frame in enumerate(frames)}
    table = table.assign(latency_ms=np.exp(logs))
    several = evaluation.cases(table, captures, "rtx-4090")
    predicted = evaluation.left_out(several, evaluation.folds)
    composed = evaluation.of_left_out("rtx-4090", several, predicted, "timm", "Apache-2.0")
    (fitted,) = composed.conditions.values()
    assert fitted.scores["mape"] < 3
    assert fitted.scores["families"] == 7
    assert fitted.half < 0.1
    assert fitted.batches == (64, 64)
    assert evaluation.is_final(pd.Series(["convnext", "resnet"])).tolist() == [True, False]


def test_a_network_is_given_its_inputs_by_their_names():
    class Named(torch.nn.Conv2d):
        def forward(self, *, pixel_values):
            return super().forward(pixel_values)

    def build():
        return Named(3, 8, 1)
    named = networks.Network("named", build, (5, 3, 8, 8), (Input((5, 3, 8, 8), name="pixel_values"),))
    plain = networks.Network("plain", lambda: torch.nn.Conv2d(3, 8, 1), (7, 3, 8, 8))
    pd.testing.assert_frame_equal(rows.of_network(named), rows.of_network(plain))


def test_training_needs_enough_networks():
    table = pd.DataFrame({"device": "rtx-4090", "network": ["a"], "image_size": [224], "module": "m", "batch_size": 8,
                          "latency_ms": 1.0, "mode": "infer", "precision": "amp_fp16", "layout": "nchw", "compiled": False,
                          "torch": "2.9.1"})
    with pytest.raises(InputError, match="rtx-4090: no condition with 50 networks"):
        evaluation.ship(table, {})


def test_advise_answers_from_whole_networks_and_says_on_what_evidence(composed, tmp_path, monkeypatch):
    composed.save(tmp_path / "rtx-4090.json")
    monkeypatch.setattr(model_file, "FOLDER", tmp_path)
    query = advise.Query("resnet18", 64, dtype="fp16")
    advice = advise.advise(query, ["rtx-4090"], crossovers=False)
    row = advice.table.iloc[0]
    assert row["source"] == "learned from whole networks"
    assert row["high_ms"] / row["predicted_ms"] == pytest.approx(np.exp(0.2))
    assert not row["out_of_range"]
    assert row["held_out_mape_pct"] == SCORES["mape"], "no scores by kind lie beside this file"
    assert row["held_out"].startswith("all networks on rtx-4090, infer, eager, amp_fp16, nchw, torch 2.9.1: MAPE 8.1 %, ")
    several = {change.what: change for change in suggestions.suggestions(advice)}
    gains = {what: change.predicted_gain for what, change in several.items()}
    assert gains["torch.compile"] > 1
    assert several["torch.compile"].why.endswith("none were held out"), "no gains lie beside this file"
    assert gains["channels_last"] > 1
    last = advise.advise(replace(query, layout="channels_last"), ["rtx-4090"], crossovers=False).table.iloc[0]
    assert row["predicted_ms"] / last["predicted_ms"] == pytest.approx(gains["channels_last"])
    single = advise.advise(replace(query, batch_size=1), ["rtx-4090"], crossovers=False).table.iloc[0]
    assert single["out_of_range"], "no network was measured at batch 1"
    with pytest.raises(InputError, match="no networks that ran so .* on: rtx-3090"):
        advise.advise(replace(query, layout="channels_last"), ["rtx-4090", "rtx-3090"])


def test_a_training_step_takes_its_passes_from_whole_networks_where_they_were_learned():
    query = advise.Query("resnet18", 64, mode="train", dtype="fp16")
    advice = advise.advise(query, ["rtx-3090"], crossovers=False)
    row, (predictor,) = advice.table.iloc[0], advice.predictors
    assert row["source"] == "learned from whole networks"
    condition = answers.condition_of(predictor.composed, "fp16", "train")
    whole = answers.answer(predictor.composed, advice.captured.rows, 64, condition)
    passes = row["forward_ms"] + row["backward_ms"]
    assert 0.8 * whole.predicted_ms < passes < whole.predicted_ms, "the optimizer is a part of its own"
    assert row["predicted_ms"] == pytest.approx(passes + row["optimizer_ms"] + row["h2d_ms"] + row["loader_wait_ms"])
    assert advise.advise(replace(query, layout="channels_last"), ["rtx-3090"], crossovers=False).recommended == "rtx-3090"
    with pytest.raises(InputError, match="no networks that ran so .* train.* on: rtx-4090"):
        advise.advise(replace(query, layout="channels_last"), ["rtx-4090"])
    with pytest.raises(InputError, match="no networks that ran so .* train.* on: rtx-3090"):
        advise.advise(replace(query, compiled=True), ["rtx-3090"])


@pytest.mark.parametrize(("device", "images_per_sec"), [("rtx-3090", 3000), ("rtx-4090", 4000), ("rtx-pro-6000-max-q", 5000)])
def test_models_that_ship_answer_and_say_how_right_they_are(device, images_per_sec):
    composed = model_file.of_device(device)
    assert all(fitted.scores["mape"] < 15 and fitted.scores["families"] > 30 for fitted in composed.conditions.values())
    condition = answers.condition_of(composed, "bf16")
    captured = rows.of_network(networks.network("resnet50"))
    answer = answers.answer(composed, captured, 256, condition)
    assert 0.5 * images_per_sec < 256 / answer.predicted_ms * 1e3 < 2 * images_per_sec, "an order of magnitude, no score"
    twice = answers.answer(composed, captured, 512, condition)
    assert 1.9 < twice.predicted_ms / answer.predicted_ms < 2.1


def test_the_registry_lists_every_condition_of_a_card(composed, tmp_path, monkeypatch):
    composed.save(tmp_path / "rtx-4090.json")
    (tmp_path / "rtx-3090.json").write_text("{}")
    monkeypatch.setattr(model_file, "FOLDER", tmp_path)
    table = models_at_hand.summary()
    own = table[table["part"].str.startswith("networks") & (table["device"] == "rtx-4090")]
    assert set(own["part"]) == {f"networks {one.name}" for one in SEVERAL}
    assert set(own["MAPE %"]) == {8.1}
    (damaged,) = table.loc[table["part"] == models_at_hand.UNUSABLE, "source"]
    assert "rtx-3090.json" in damaged


def test_the_final_set_was_scored_once_a_condition():
    table = pd.read_csv(model_file.FOLDER / "final.csv")
    assert not table.duplicated(["date", "device", "condition"]).any()
    assert {*table["device"]} == {*model_file.files_of_cards()} - {model_file.ANY}
