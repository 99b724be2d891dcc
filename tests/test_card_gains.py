"""Gains of channels_last and of compiling on cards: how right they were on what was held out, and what is quoted of it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lib.errors import InputError
from lib.predict.advice import advise, suggestions
from lib.predict.composed import card_gains, model_file
from lib.predict.composed.features import Condition

EAGER = Condition("infer", "amp_fp16", "nchw", False, "2.9.1")
LAST, COMPILED = replace(EAGER, layout="nhwc"), replace(EAGER, compiled=True)


def networks(log_ms, log_predicted, batch_size=64):
    return pd.DataFrame({"device": "rtx-4090", "network": [f"n{n}" for n in range(len(log_ms))], "image_size": 224,
                         "module": [f"m{n}" for n in range(len(log_ms))], "batch_size": batch_size, "log_ms": log_ms,
                         "log_predicted": log_predicted})


def folds(several):
    """Each family is a fold of its own."""
    return {f"m{n}": n for n in range(several)}


def test_a_change_is_one_thing_of_one_torch_under_autocast():
    several = (EAGER, LAST, COMPILED, replace(LAST, compiled=True), replace(LAST, torch="2.4.0"),
               replace(COMPILED, precision="bf16"), replace(COMPILED, precision="amp_bf16"), replace(LAST, mode="train"))
    assert set(card_gains.changes(several)) == {
        (EAGER, LAST), (EAGER, COMPILED), (LAST, several[3]), (COMPILED, several[3]), (EAGER, several[6]),
        (several[6], several[3])}


def test_gains_are_scored_by_sign_and_factor_an_image():
    """Four networks on which channels_last gives 20 % more, 20 % less, and 2 % more twice; one factor of each is off."""
    measured = np.log([1.2, 0.8, 1.02, 1.02])
    predicted = np.log([1.2, 1.6, 1.02, 0.99])
    before = networks(np.zeros(4), np.zeros(4))
    after = networks(np.log(0.5) - measured, np.log(0.5) - predicted, batch_size=32)
    (row,) = card_gains.table("rtx-4090", {EAGER: before, LAST: after}, folds(4)).to_dict("records")
    assert (row["before"], row["after"], row["torch"]) == ("eager-amp_fp16-nchw", "eager-amp_fp16-nhwc", "2.9.1")
    assert (row["n"], row["sign"], row["n_large"], row["sign_large"]) == (4, 50.0, 2, 50.0)
    assert row["mape"] == pytest.approx((100 + (1 - 0.99 / 1.02) * 100) / 4)
    assert row["median"] == pytest.approx((1 - 0.99 / 1.02) * 50)
    assert row["constant_mape"] == pytest.approx(
        (abs(1.02 / 1.2 - 1) + abs(1.02 / 0.8 - 1)) * 25), "the median gain of the other families"


def test_networks_that_ran_one_way_alone_tell_no_gain():
    other = networks(np.zeros(2), np.zeros(2)).assign(network=["a", "b"])
    assert card_gains.table("rtx-4090", {EAGER: networks(np.zeros(2), np.zeros(2)), LAST: other}, folds(2)).empty


def test_gains_that_are_saved_stand_in_place_of_those_of_the_same_card(tmp_path):
    zero = networks(np.zeros(3), np.full(3, 0.1))
    for device in ("rtx-4090", "rtx-3090", "rtx-4090"):
        card_gains.save(card_gains.table(device, {EAGER: zero, LAST: zero, replace(LAST, torch="2.10.0"): zero,
                                        replace(EAGER, torch="2.10.0"): zero}, folds(3)), tmp_path)
    several = pd.read_csv(tmp_path / card_gains.FILE, dtype={"torch": str})
    assert several["device"].value_counts().to_dict() == {"rtx-4090": 2, "rtx-3090": 2}
    assert card_gains.of_change("rtx-4090", EAGER, LAST, tmp_path)["torch"] == "2.9.1"
    newer = (replace(one, torch="2.11.0") for one in (EAGER, LAST))
    scored = card_gains.of_change("rtx-4090", *newer, tmp_path)
    assert scored["torch"] == "2.10.0", "the newest that was held out"
    assert "in 100 % of 3 cases with torch 2.10.0" in card_gains.words(scored), "and said to be"
    assert card_gains.of_change("rtx-4090", EAGER, COMPILED, tmp_path) is None
    (tmp_path / card_gains.FILE).write_text("device,before\nrtx-4090,a\n")
    with pytest.raises(InputError, match="gains.csv lacks the columns"):
        card_gains.of_change("rtx-3090", EAGER, LAST, tmp_path)


@pytest.mark.parametrize(("device", "change", "left_out"), [
    ("rtx-4090", "torch.compile", "with families left out"), ("rtx-3090", "channels_last", "with families left out"),
    ("rtx-3090", "torch.compile", "with families and the card left out"),
    ("rtx-5090", "channels_last", "with families and the card left out")])
def test_advice_quotes_the_errors_of_gains_and_not_those_of_times(device, change, left_out):
    query = advise.Query("resnet50", 256, dtype="fp16")
    advice = advise.advise(query, [device], crossovers=False)
    (gain,) = [one for one in suggestions.suggestions(advice) if one.what == change]
    assert 0.5 < gain.predicted_gain < 3
    table = pd.read_csv(model_file.FOLDER / card_gains.FILE, dtype={"torch": str})
    after = "compiled-amp_fp16-nchw" if change == "torch.compile" else "eager-amp_fp16-nhwc"
    own = table[(table["device"] == (model_file.ANY if "card" in left_out else device)) & (table["after"] == after)
                & (table["before"] == "eager-amp_fp16-nchw")]
    held_out = own.sort_values("torch").iloc[-1]
    assert f"{left_out} whether it is faster was right in {held_out['sign']:.0f} % of {held_out['n']:,} cases with torch " \
        f"{held_out['torch']}" in gain.why
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
