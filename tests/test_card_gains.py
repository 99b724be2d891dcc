"""Gains of channels_last and of compiling: how they are scored, on cards and on a CPU, and what is quoted of them on cards."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lib.errors import InputError
from lib.predict import gain_scores
from lib.predict.composed import card_gains, model_file
from lib.predict.gains import model
from tests.test_composed import EAGER, advised, change

LAST, COMPILED = replace(EAGER, layout="nhwc"), replace(EAGER, compiled=True)


def networks(log_ms, log_predicted, batch_size=64):
    """Return networks as they were measured and predicted, each of a family of its own."""
    numbers = np.arange(len(log_ms)).astype(str)
    return pd.DataFrame({"device": "rtx-4090", "network": numbers, "image_size": 224, "module": numbers,
                         "batch_size": batch_size, "log_ms": log_ms, "log_predicted": log_predicted})


def scored(several, device="rtx-4090"):
    """Return the gains of networks, each family in a fold of its own."""
    return card_gains.table(device, several, {str(number): number for number in range(4)})


def test_signs_matter_from_a_gain_of_5_percent_on_either_way():
    measured = np.log([1.051, 1.049, 1 / 1.051, 1 / 1.049])
    scores = gain_scores.scores(np.full(4, 0.1), measured, np.zeros(4))
    assert (scores["sign"], scores["n_large"], scores["sign_large"]) == (50, 2, 50)
    none = gain_scores.scores(np.zeros(1), np.log([1.01]), np.zeros(1))
    assert none["n_large"] == 0 and math.isnan(none["sign_large"])


def test_one_factor_is_that_of_the_families_of_other_folds_that_are_usable():
    gains, fold = np.log([2.0, 2.0, 3.0, 8.0]), np.array([0, 0, 1, 2])
    assert np.exp(gain_scores.constants(gains, fold)) == pytest.approx([np.sqrt(24), np.sqrt(24), 2, 2])
    usable = np.array([True, True, True, False])
    assert np.exp(gain_scores.constants(gains, fold, usable)) == pytest.approx([3, 3, 2, 2])
    assert np.isnan(gain_scores.constants(gains[:2], fold[:2])).all(), "no other fold"


def test_a_card_and_a_cpu_score_the_same_gains_alike():
    gain, predicted = np.array([1.3, 0.9, 1.04]), np.array([1.2, 1.1, 1.0])
    of_cpu = model.scores(pd.DataFrame({"gain": gain, "predicted": predicted, "low": 0.5, "high": 1.25,
                                        "constant": np.exp(gain_scores.constants(np.log(gain), np.arange(3)))}))
    of_card = scored({EAGER: networks(np.zeros(3), 0), LAST: networks(-np.log(gain), -np.log(predicted))})
    assert of_cpu.pop("coverage") == pytest.approx(200 / 3)
    assert of_cpu == pytest.approx(of_card[list(gain_scores.SCORES)].iloc[0].to_dict())


def test_a_change_is_one_thing_of_one_torch_under_autocast():
    both, bf16 = replace(LAST, compiled=True), replace(COMPILED, precision="amp_bf16")
    several = (EAGER, LAST, COMPILED, both, bf16, replace(LAST, torch="2.4.0"), replace(COMPILED, precision="bf16"),
               replace(LAST, mode="train"))
    assert set(card_gains.changes(several)) == {(EAGER, LAST), (EAGER, COMPILED), (LAST, both), (COMPILED, both), (EAGER, bf16),
                                                (bf16, both)}


def test_gains_are_scored_by_sign_and_factor_an_image():
    """Four networks on which channels_last gives 20 % more, 20 % less, and 2 % more twice; one factor of each is off."""
    measured, predicted = np.log([1.2, 0.8, 1.02, 1.02]), np.log([1.2, 1.6, 1.02, 0.99])
    after = networks(np.log(0.5) - measured, np.log(0.5) - predicted, batch_size=32)
    (row,) = scored({EAGER: networks(np.zeros(4), 0), LAST: after}).to_dict("records")
    assert (row["before"], row["after"], row["torch"]) == ("eager-amp_fp16-nchw", "eager-amp_fp16-nhwc", "2.9.1")
    assert (row["n"], row["sign"], row["n_large"], row["sign_large"]) == (4, 50.0, 2, 50.0)
    assert row["mape"] == pytest.approx((100 + (1 - 0.99 / 1.02) * 100) / 4)
    assert row["median"] == pytest.approx((1 - 0.99 / 1.02) * 50)
    assert row["constant_mape"] == pytest.approx(
        (abs(1.02 / 1.2 - 1) + abs(1.02 / 0.8 - 1)) * 25), "the median gain of the other families"


def test_networks_that_ran_one_way_alone_tell_no_gain():
    ran = networks(np.zeros(2), 0)
    assert scored({EAGER: ran, LAST: ran.assign(network=["a", "b"])}).empty


def test_gains_that_are_saved_stand_in_place_of_those_of_the_same_card(tmp_path):
    zero = networks(np.zeros(3), 0.1)
    conditions = [replace(one, torch=torch) for torch in ("2.9.1", "2.10.0") for one in (EAGER, LAST)]
    for device in ("rtx-4090", "rtx-3090", "rtx-4090"):
        card_gains.save(scored(dict.fromkeys(conditions, zero), device), tmp_path)
    several = pd.read_csv(tmp_path / card_gains.FILE, dtype={"torch": str})
    assert several["device"].value_counts().to_dict() == {"rtx-4090": 2, "rtx-3090": 2}
    assert card_gains.of_change("rtx-4090", EAGER, LAST, tmp_path)["torch"] == "2.9.1"
    newest = card_gains.of_change("rtx-4090", *(replace(one, torch="2.11.0") for one in (EAGER, LAST)), tmp_path)
    assert newest["torch"] == "2.10.0", "the newest that was held out"
    assert "in 100 % of 3 cases with torch 2.10.0" in card_gains.words(newest), "and said to be"
    assert card_gains.of_change("rtx-4090", EAGER, COMPILED, tmp_path) is None
    (tmp_path / card_gains.FILE).write_text("device,before\nrtx-4090,a\n")
    with pytest.raises(InputError, match="gains.csv lacks the columns"):
        card_gains.of_change("rtx-3090", EAGER, LAST, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "what", "after", "left_out"), [
    ("rtx-4090", "torch.compile", COMPILED, "families"), ("rtx-3090", "channels_last", LAST, "families"),
    ("rtx-3090", "torch.compile", COMPILED, "families and the card"),
    ("rtx-5090", "channels_last", LAST, "families and the card")])
def test_advice_quotes_the_errors_of_gains_and_not_those_of_times(device, what, after, left_out):
    gain = change(advised(device, "resnet18"), what)
    assert 0.5 < gain.predicted_gain < 3
    change_of = (model_file.ANY if "card" in left_out else device, EAGER.how, after.how)
    held_out = card_gains.read().sort_values("torch").set_index(["device", "before", "after"]).loc[[change_of]].iloc[-1]
    assert f"with {left_out} left out whether it is faster was right in {held_out['sign']:.0f} % of {held_out['n']:,} cases " \
        f"with torch {held_out['torch']}" in gain.why
    assert f"its factor off by {held_out['mape']:.1f} %" in gain.why


def test_every_change_that_is_predicted_has_its_errors_beside_the_models():
    """One without: run python -m lib models --train timm, which writes gains.csv."""
    trained = False
    for device in model_file.files_of_cards():
        several = list(card_gains.changes(model_file.of_device(device).conditions))
        assert several, device
        assert all(card_gains.of_change(device, *change) for change in several)
        trained |= any(before.mode == "train" for before, _ in several)
    assert trained, "of training, too"
