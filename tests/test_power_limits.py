"""Power and joules of networks on GPUs, and power limits: laws, refusals, and answers."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.config.definitions import load_devices
from lib.predict.power import limits
from tests import advice_on, output_of, refused

SHIPPED = limits.shipped()


@pytest.mark.parametrize("device, busy, memory", [("p100-pcie-16gb", 0.9, 0.1), ("t4", 0.5, 0.9), ("h100-sxm", 0.1, 0.5)])
def test_less_power_takes_longer_and_no_limit_changes_nothing(device, busy, memory):
    card = load_devices()[device]
    table = pd.DataFrame([SHIPPED.ratios(device, limit_w, busy, memory)
                          for limit_w in np.linspace(card.least_power_w, card.power_w, 20)])
    assert table["time_ratio"].is_monotonic_decreasing and (table["energy_ratio"] <= table["time_ratio"]).all()
    assert table[["time_ratio", "energy_ratio"]].iloc[-1].tolist() == [1, 1]
    assert SHIPPED.ratios(device, card.least_power_w, 0.0, memory)["time_ratio"] == 1, "kernels that wait for the host"


@pytest.mark.parametrize("device, limit, words", [
    ("t4", 71, "t4 takes power limits of 60 to 70 W, not 71 W"), ("cpu", 60, "cpu has no known power"),
    ("b200", 900, "b200 has no known power limits")])
def test_limits_that_a_device_does_not_take_are_refused(device, limit, words):
    with refused(words):
        advice_on(device, "simple_cnn", 8, "3x28x28", power_limit_w=limit)


def test_an_answer_under_a_limit_and_the_limit_that_is_suggested():
    usual, limited = (advice_on("t4", "simple_cnn", 4096, "3x28x28", "train", power_limit_w=limit) for limit in (0, 60))
    row = limited.table.iloc[0]
    assert row["predicted_ms"] == pytest.approx(usual.table["predicted_ms"].iloc[0] * row["time_ratio"])
    assert row["time_ratio"] > 1
    shared = [advice_on("t4", "simple_cnn", 4096, "3x28x28", "train", gpus=2, power_limit_w=limit).table for limit in (0, 60)]
    assert shared[0]["scaling_efficiency"].tolist() == pytest.approx(shared[1]["scaling_efficiency"].tolist())
    question = ["advise", "resnet18", "--batch-size", "64", "--device", "v100-pcie-32gb"]
    assert "v100-pcie-32gb limited to 150 W" in output_of(*question, "--power-limit", "150")
    assert "nvidia-smi -pl" in output_of(*question)


@given(st.sampled_from(["t4", "h200-sxm", "l40s"]), st.floats(1e-4, 5), st.floats(0, 1))
def test_power_lies_between_static_power_and_the_maximum_of_the_board(device, busy, memory):
    watts = SHIPPED.watts(device, busy, memory)
    assert 0 < SHIPPED.watts(device, 0.0, memory) <= watts <= load_devices()[device].power_w
    assert watts <= SHIPPED.watts(device, 2 * busy, memory)


def test_joules_are_power_times_time_on_any_card_with_a_stated_power():
    question = ["advise", "resnet18", *"--batch-size 8 --device t4 --device cpu --no-ceilings --json".split()]
    card, cpu = sorted(json.loads(output_of(*question)), key=lambda row: row["device"], reverse=True)
    answer = advice_on("t4", "resnet18", 8).answers[0]
    watts = SHIPPED.watts("t4", *answer.roofline)
    assert 10 < watts < 70
    assert card["energy_j"] == pytest.approx(watts * card["predicted_ms"] / 1e3 / 8)
    assert card["energy_low_j"] < card["energy_j"] < card["energy_high_j"]
    assert cpu["energy_j"] is None
    assert "J/image: predicted power of the board times predicted time" in output_of(*question[:-1], "--explain")
    limited = advice_on("t4", "resnet18", 8, power_limit_w=60).table.iloc[0]
    assert limited["energy_j"] == pytest.approx(card["energy_j"] * limited["energy_ratio"])
