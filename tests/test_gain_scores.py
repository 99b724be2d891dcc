"""Scores of predicted gains: signs, factors and the one factor of other folds, alike on cards and on a CPU."""

import math

import numpy as np
import pandas as pd
import pytest

from lib.predict import gain_scores
from lib.predict.composed import card_gains
from lib.predict.gains import model
from tests.test_card_gains import EAGER, LAST, networks


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
    before = networks(np.zeros(3), np.zeros(3))
    (of_card,) = card_gains.table("rtx-4090", {EAGER: before, LAST: networks(-np.log(gain), -np.log(predicted))},
                                  {f"m{n}": n for n in range(3)}).to_dict("records")
    assert of_cpu.pop("coverage") == pytest.approx(200 / 3)
    assert of_cpu == pytest.approx({name: of_card[name] for name in gain_scores.SCORES})
