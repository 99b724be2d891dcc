"""Scores with a vote per row and per family, and gains of channels_last and of compiling on cards."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lib.predict import held_out
from lib.predict.cards import card_errors, card_model
from lib.predict.scores import score, score_by, score_families, score_gains
from tests.test_cards import EAGER, advised, change

LAST, COMPILED = replace(EAGER, layout="nhwc"), replace(EAGER, compiled=True)


def networks(log_ms, log_predicted, condition=EAGER, batch_size=64):
    """Return rows of networks as they were measured and predicted, each of a family and in a fold of its own."""
    numbers = np.arange(len(log_ms))
    part = pd.DataFrame({"device": "rtx-4090", "network": numbers.astype(str), "image_size": 224, "module": numbers.astype(str),
                         "batch_size": batch_size, "fold": numbers, "condition": condition.name, "half": 0.2,
                         "kind": "CNN", "log_ms": log_ms, "log_predicted": log_predicted})
    return card_errors.rows(part, what=held_out.NETWORKS, left_out="families of timm")


def gains(*parts):
    """Return the rows of the one change that there is between networks of several conditions."""
    ((_, _, rows),) = card_errors.gains(pd.concat(parts, ignore_index=True))
    return rows


def test_a_score_is_of_rows_that_were_measured_and_a_family_has_one_vote():
    measured, predicted = np.array([1.0, 2.0, 4.0, 4.0, 0.0]), np.array([1.1, 2.0, 2.0, 4.0, 3.0])
    scored = score(measured, predicted, predicted - 1, predicted + 1)
    assert [scored[name] for name in ("mape", "median", "bias", "within_10", "cover", "n")] == pytest.approx(
        [15, 5, -10, 50, 75, 4])
    assert scored["mape_low"] < scored["mape"] < scored["mape_high"] and scored["p90"] == pytest.approx(38)
    assert math.isnan(score(measured, predicted, np.full(5, np.nan), measured)["cover"])
    assert score(measured[4:], predicted[4:])["n"] == 0
    texts = dict.fromkeys(("device", "what", "mode", "condition", "case", "left_out", "source"), "x")
    rows = held_out.frame(**texts, measured=measured, predicted=predicted, low=predicted - 1, high=predicted + 1,
                          group=["a", "b", "c", "c", "c"])
    by_family = score_families(rows)
    assert [by_family[name] for name in ("mape", "cover", "short", "n")] == pytest.approx(
        [(10 + 0 + 25) / 3, 250 / 3, 100 / 3, 3])
    assert not score_families(rows.assign(group="")), "no family is recorded"
    assert score_by(rows, ["group"])["n"].tolist() == [1, 1, 2]


def test_gains_are_quotients_of_two_conditions_scored_by_sign_and_factor_an_image():
    """Four networks on which channels_last gives 20 % more, 20 % less, and 2 % more twice; one factor of each is off."""
    measured, predicted = np.log([1.2, 0.8, 1.02, 1.02]), np.log([1.2, 1.6, 1.02, 0.99])
    rows = gains(networks(np.zeros(4), 0), networks(np.log(0.5) - measured, np.log(0.5) - predicted, LAST, batch_size=32))
    scored = score_gains(rows)
    assert rows["measured"].tolist() == pytest.approx([1.2, 0.8, 1.02, 1.02])
    assert scored["n"] == 4 and scored["sign"] == 50.0
    assert scored["mape"] == pytest.approx((100 + (1 - 0.99 / 1.02) * 100) / 4)
    assert scored["median"] == pytest.approx((1 - 0.99 / 1.02) * 50)
    assert scored["constant_mape"] == pytest.approx(
        (abs(1.02 / 1.2 - 1) + abs(1.02 / 0.8 - 1)) * 25), "the median gain of the other families"


@pytest.mark.slow
@pytest.mark.parametrize("device, what, after, left_out", [
    ("rtx-4090", "torch.compile", COMPILED, "families"),
    ("rtx-5090", "channels_last", LAST, "families and the card")])
def test_advice_quotes_the_errors_of_gains_and_not_those_of_times(device, what, after, left_out):
    gain = change(advised(device, "resnet18"), what)
    assert 0.5 < gain.predicted_gain < 3
    lines = card_errors.scores(card_model.ANY if "card" in left_out else device, held_out.GAINS)
    lines = lines[(lines["before"] == EAGER.name_without_torch) & (lines["after"] == after.name_without_torch)]
    scored = lines.sort_values("torch").iloc[-1]
    assert f"with {left_out} left out whether it is faster was right in {scored['sign']:.0f} % of {scored['n']:,} cases " \
        f"with torch {scored['torch']}" in gain.why
    assert f"its factor off by {scored['mape']:.1f} %" in gain.why


def test_every_change_that_is_predicted_has_its_errors_beside_the_models():
    """One without: run python -m lib models --train timm."""
    trained = False
    for device in card_model.files_of_cards():
        several = list(card_errors.changes(card_model.of_device(device).conditions))
        assert several, device
        assert all(card_errors.of_change(device, *change) for change in several)
        trained |= any(before.mode == "train" for before, _ in several)
    assert trained, "of training, too"
