"""Whole networks on GPUs: rows of counted work, kernels below their ceilings, learned efficiencies, and advice from them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lib.config import definitions
from lib.predict import held_out
from lib.predict.advice import suggestions
from lib.predict.cards import card_errors, card_model, features, fitting, kernel_sum, learning, rows, whole_networks
from lib.predict.cards.card_model import CardModel
from lib.predict.cards.features import Condition
from lib.predict.cards.kernel_sum import FittedWeights
from lib.predict.evaluation import models_at_hand
from lib.predict.operators.features_gpu import Chip
from lib.work import networks
from lib.work.building.timm_models import MERGED
from lib.work.graph import capture
from lib.work.networks import Network
from lib.work.run_config import RunConfig
from tests import advice_on
from tests.test_published import refused

EAGER = Condition("infer", "amp_fp16", "nchw", False, "2.9.1")
SEVERAL = (EAGER, replace(EAGER, compiled=True), replace(EAGER, layout="nhwc"))
CHIP = Chip(1e11, 5e10, 1e9, 100, 5e7, 2)
VENDORS = definitions.load_devices()
SCORES = {"mape": 8.1, "median": 5.2, "p90": 17.0, "bias": 0.4, "within_10": 74.0, "n": 1000.0, "families": 60.0}


def advised(device, name="resnet50", batch_size=256, dtype="fp16", **query):
    """Return the advice on one card, or on several."""
    return advice_on(device, name, batch_size, dtype=dtype, **query)


def answered(device, *query, **more):
    """Return the answer for one card."""
    return advised(device, *query, **more).table.iloc[0]


def change(advice, what):
    """Return one change that is suggested."""
    (found,) = (one for one in suggestions.suggestions(advice) if one.what == what)
    return found


def rows_at(batch):
    def small():
        return nn.Sequential(nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(2), nn.LayerNorm(64),
                             nn.Linear(64, 10))
    return rows.of_graph(capture.of_network(Network("small", small, (batch, 8, 8, 8)), "infer", device="cuda:0"))


@pytest.fixture(scope="module")
def table():
    return rows_at(rows.BATCH)


def test_rows_count_what_automatic_mixed_precision_moves(table):
    def moved(kind, stage="eager"):
        part = table[(table["kind"] == kind) & (table["stage"] == stage)]
        return (part["read"] * part["calls"]).tolist(), (part["written"] * part["calls"]).tolist()

    image, made = 2 * 8 * 64, 2 * 16 * 64
    assert moved("conv_1x1", "always") == ([2 * image], [2 * made])
    assert moved("batch_norm") == ([2 * made], [2 * made]), "16 bits in, 16 bits out"
    assert moved("layer_norm") == ([4 * made], [4 * made]), "autocast normalises layers in 32 bits"
    assert table.loc[table["kind"] == "conv_1x1", "flops"].item() == 2 * 2 * 64 * 8 * 16
    casts = table[table["kind"] == "cast"]
    assert casts["read"] @ casts["calls"] == 4 * image + 2 * made + 4 * made, "the image, to and from the layer norm"
    weights = 8 * 16 + 16 + 64 * 10 + 10
    assert casts["read_once"] @ casts["calls"] == 4 * weights, "each weight once a pass"


def test_kernels_keep_to_their_ceilings(table):
    """Twice the ceilings halve the time of each; however efficient, none is faster than their limits."""
    fast = replace(CHIP, flops_per_ms=2 * CHIP.flops_per_ms, vector_flops_per_ms=2 * CHIP.vector_flops_per_ms,
                   bytes_per_ms=2 * CHIP.bytes_per_ms)

    def kernels_ms(condition, chip, weights):
        weights[-2:] = -60.0  # no overheads
        terms = features.terms(table, 64.0, chip, condition)
        return terms, kernel_sum.kernels_ms(terms, torch.as_tensor(weights)).numpy()

    for condition in SEVERAL:
        (_, slow_ms), (_, fast_ms) = (kernels_ms(condition, chip, kernel_sum.usual()) for chip in (CHIP, fast))
        np.testing.assert_allclose(fast_ms, slow_ms / 2, rtol=1e-6)
    terms, ms = kernels_ms(EAGER, CHIP, np.full(kernel_sum.SIZE, 50.0))
    assert ms.sum() >= terms.move_ms @ terms.calls / kernel_sum.BEST["moving"] * 0.999


def weights(**more):
    """Return the usual weights with something added to some."""
    return kernel_sum.usual() + kernel_sum.flat(**{"computing": 0.0, "moving": 0.0, "overheads": 0.0, **more})


def log_ms(frame, parts, chip=CHIP):
    return kernel_sum.log_ms(features.terms(frame, 64.0, chip, EAGER), torch.as_tensor(parts)).item()


def synthetic(count, seed):
    """Return rows of networks of three kinds of work, drawn at random."""
    generator, frames = np.random.default_rng(seed), []
    for _ in range(count):
        sizes = generator.uniform(1e6, 1e8, 3)
        frame = pd.DataFrame({"calls": generator.integers(1, 20, 3), "scales": 1, "flops": [sizes[0] * 400, 0, 0],
                              "read": sizes, "written": sizes, "read_elements": sizes / 2, "written_elements": sizes / 2,
                              "m": [4096, 0, 0], "n": [512, 0, 0], "k": [512, 0, 0]})
        frames.append(frame.reindex(columns=list(rows.COLUMNS)).fillna(0.0).astype(float).assign(
            kind=pd.Categorical(["linear", "elementwise", "batch_norm"], rows.KERNEL_KINDS),
            stage=pd.Categorical(["always", "eager", "eager"], rows.STAGES)))
    return frames


def of_card(device, slower=0.0, count=70):
    """Return networks of a card under one condition whose memory is ``slower`` (log) than usual, and their rows."""
    frames, chip = synthetic(count, 3), features.sustained(VENDORS[device])
    parts = weights(moving=-slower * kernel_sum.INTERCEPTS["moving"])
    table = pd.DataFrame({"device": device, "network": [f"n{n}" for n in range(count)], "image_size": 224, "mode": "infer",
                          "module": [f"m{n % 7}" for n in range(count)], "batch_size": 64, "precision": "amp_fp16",
                          "layout": "nchw", "compiled": False, "torch": "2.9.1",
                          "latency_ms": np.exp([log_ms(frame, parts, chip) for frame in frames])})
    return learning.with_rows(table, {(name, 224): frame for name, frame in zip(table["network"], frames, strict=True)})


def test_efficiencies_are_found_again_through_the_sum():
    true = weights(computing=0.8 * (np.array(features.COMPUTING) == "linear")[:, None] * kernel_sum.INTERCEPTS["computing"],
                   moving=(np.array(features.KERNEL_KINDS) == "batch_norm")[:, None] * kernel_sum.INTERCEPTS["moving"] * 0.5)

    def errors(more):
        """Return the errors of 20 networks, all at batch 64 in eager mode; ``more``: what is wrong with log times."""
        log, train = np.array([log_ms(frame, true) for frame in frames]) + more, np.arange(60) < 40
        table = pd.DataFrame({"rows": frames, "batch_size": 64, "latency_ms": np.exp(log), "module": np.arange(60).astype(str)})
        cases = fitting.ConditionNetworks(table, EAGER, CHIP, ("exact",), kernel_sum.usual())
        predicted = cases.predicted(fitting.weights_of(fitting.fit([cases.of(train)]), cases.levels))
        return np.abs(np.expm1(learning.error(predicted) - more))[~train]

    frames = synthetic(60, 1)
    assert errors(np.zeros(60)).max() < 0.03
    assert np.median(errors(1.0 * (np.arange(60) % 10 == 0))) < 0.05, "a tenth of labels is off by e"


@pytest.fixture
def card():
    fast = kernel_sum.usual()
    fast[:-2] += 0.5
    weights = {condition: kernel_sum.usual() if condition == EAGER else fast for condition in SEVERAL}
    fitted = {condition: FittedWeights(weights[condition], 0.2, SCORES, (16, 1024)) for condition in SEVERAL}
    return CardModel("rtx-4090", fitted, "timm", "Apache-2.0")


def test_a_model_comes_back_from_its_file(card, tmp_path, table):
    corrected = replace(card.conditions[EAGER], basis="others", scored="eager-amp_fp16-nchw-2.4.0", corrected=11)
    again = CardModel.load(replace(card, conditions=card.conditions | {EAGER: corrected}).save(tmp_path / "rtx-4090.json"))
    for condition in SEVERAL:
        before, after = (whole_networks.answer(one, table, 256, condition) for one in (card, again))
        assert after.predicted_ms == pytest.approx(before.predicted_ms, rel=1e-4)
    assert replace(again.conditions[EAGER], weights=corrected.weights) == corrected
    assert card_model.of_device("rtx-3090", tmp_path) is None


@pytest.mark.parametrize("old, new", [("rtx-4090", "rtx-3090"), ('"schema": 1', '"schema": 9'), ("infer", "guess")])
def test_a_damaged_file_is_refused_in_one_line(card, tmp_path, old, new):
    path = card.save(tmp_path / "rtx-4090.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with refused("rtx-4090.json"):
        CardModel.load(path)


def test_training_writes_families_left_out_from_which_its_scores_come_and_leaves_the_final_ones_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(card_model, "FOLDER", tmp_path)
    shown = learning.ship(of_card("rtx-4090", slower=0.5))
    card = card_model.of_device("rtx-4090")
    (fitted,), lines = card.conditions.values(), card_errors.scores("rtx-4090", "networks")
    for name in ("mape", "n"):
        assert lines[name].iloc[0] == pytest.approx(fitted.scores[name], rel=1e-3, abs=1e-3)
    assert shown["mape"].tolist() == pytest.approx([fitted.scores["mape"]], rel=1e-3)
    assert fitted.scores["mape"] < 3 and fitted.scores["families"] == 7
    assert fitted.half < 0.1 and card_errors.half_of("rtx-4090", EAGER, "all") == pytest.approx(fitted.half, rel=1e-3)
    assert fitted.batches == (64, 64)
    rows_of = held_out.load(tmp_path / "rtx-4090.json")
    assert rows_of.groupby("group")["fold"].nunique().eq(1).all() and rows_of["fold"].nunique() == learning.FOLDS
    assert learning.is_final(pd.Series(["convnext", "resnet"])).tolist() == [True, False]


@pytest.mark.slow
def test_advise_answers_from_whole_networks_and_says_on_what_evidence(card, tmp_path, monkeypatch):
    card.save(tmp_path / "rtx-4090.json")
    monkeypatch.setattr(card_model, "FOLDER", tmp_path)
    advice = advised("rtx-4090", "resnet18", 64)
    row = advice.table.iloc[0]
    assert row["source"] == "learned from whole networks"
    assert row["high_ms"] / row["predicted_ms"] > np.exp(0.2), "nobody measured this board and its host"
    assert not row["out_of_range"]
    assert row["held_out_mape_pct"] == SCORES["mape"], "no scores by kind lie beside this file"
    assert row["held_out"].startswith("all networks on rtx-4090, infer, eager, amp_fp16, nchw, torch 2.9.1: MAPE 8.1 %, ")
    compiled = change(advice, "torch.compile")
    assert compiled.predicted_gain > 1
    assert compiled.why.endswith("none were held out"), "no gains lie beside this file"
    last = answered("rtx-4090", "resnet18", 64, layout="channels_last")
    assert 1 < row["predicted_ms"] / last["predicted_ms"] == pytest.approx(change(advice, "channels_last").predicted_gain)
    assert answered("rtx-4090", "resnet18", 1)["out_of_range"], "no network was measured at batch 1"
    with refused("no networks were measured in this condition .* for: rtx-3090"):
        advised(["rtx-4090", "rtx-3090"], "resnet18", 64, layout="channels_last")


@pytest.mark.slow
def test_a_training_step_takes_its_passes_from_whole_networks_where_they_were_learned():
    how = {"name": "resnet18", "batch_size": 64, "mode": "train"}
    advice = advised("rtx-3090", **how)
    row, predictor = advice.table.iloc[0], advice.answers[0].predictor
    assert row["source"] == "learned from whole networks"
    condition = whole_networks.condition_of(predictor.card, RunConfig(mode="train", dtype="fp16"))
    whole = whole_networks.answer(predictor.card, advice.captured.kernel_rows, 64, condition)
    passes = row["forward_ms"] + row["backward_ms"]
    assert 0.8 * whole.predicted_ms < passes < whole.predicted_ms, "the optimizer is a part of its own"
    assert advised("rtx-3090", **how, layout="channels_last").recommended == "rtx-3090"
    assert advised("rtx-4090", **how).table["source"][0] == "zero-shot from networks on rtx-3090"
    with refused("no networks were measured in this condition .* train.* for: rtx-3090, rtx-4090"):
        advised(["rtx-3090", "rtx-4090"], **how, compiled=True)


def test_the_registry_lists_every_condition_of_a_card(card, tmp_path, monkeypatch):
    card.save(tmp_path / "rtx-4090.json")
    (tmp_path / "rtx-3090.json").write_text("{}")
    monkeypatch.setattr(card_model, "FOLDER", tmp_path)
    table = models_at_hand.summary()
    own = table[table["part"].str.startswith("networks") & (table["device"] == "rtx-4090")]
    assert set(own["part"]) == {f"networks {one.name}" for one in SEVERAL}
    assert set(own["MAPE %"]) == {8.1}
    (damaged,) = table.loc[table["part"] == models_at_hand.UNUSABLE, "source"]
    assert "rtx-3090.json" in damaged


@pytest.mark.slow
def test_networks_whose_branches_were_merged_are_told_by_their_parameters():
    names = ["repghostnet_100", "repghostnet_100", "resnet18", "resnet18", "resnet18", "nonet_1"]
    table = pd.DataFrame({"network": names, "image_size": 64, "parameters_m": [4.07, 4.06, 11.69, 11.7, 11.18, 5.0],
                          "module": "m"})
    named, reasons = learning.captured(table)
    assert named["network"].tolist() == ["repghostnet_100", "repghostnet_100" + MERGED, "resnet18", "resnet18"]
    assert set(reasons) == {"nonet_1 64", "resnet18 64 of 11.18 M parameters"}
    assert reasons["resnet18 64 of 11.18 M parameters"] == \
        "timm builds it with 11.69 M, with merged branches with 11.69 M"
    plain, merged = named["rows"][:2]
    assert rows.parameters(plain) == pytest.approx(4.07e6, rel=2e-3)
    assert merged.loc[merged["stage"] == "eager", "calls"].sum() < 0.9 * plain.loc[plain["stage"] == "eager", "calls"].sum()
    assert networks.family(f"timm:repghostnet_100{MERGED}") == "repghost"

