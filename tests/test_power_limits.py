"""Power limits of GPUs: laws, known physics learned again, refusals, and answers."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lib.config.definitions import load_devices
from lib.predict.evaluation import power_limits
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


def runs(model):
    """Return runs of two cards that obey a model."""
    shares = np.random.default_rng(0).uniform((0.35, 0, 0), (0.95, 1, 1), (300, 3))
    rows = pd.DataFrame(shares, columns=["limit", "busy", "memory"])
    rows = rows.assign(device=["v100-pcie-32gb", "a40"] * 150, bit=list(limits.ENERGY_PER_BIT.values()) * 150,
                       network=list("aabb") * 75, dataset="", optimizer="", batch_size=1, limit_w=1.0)
    rows.loc[:3, "busy"] = 0.0  # of each card and network
    static = model.static * rows["bit"]
    rows["drawn"] = limits.draw(model.drawn, static, rows["busy"], rows["memory"])
    rows = rows.assign(**model.factors(static, rows["limit"], rows["drawn"]))
    return rows.assign(power=rows["energy"] / rows["time"])


def test_known_physics_is_learned_again_and_serves_a_card_that_was_left_out():
    table = power_limits.left_out(runs(replace(SHIPPED, static=0.12)))
    assert table.groupby(["what", "left_out"]).size().tolist() == [300] * 4
    assert np.abs(table["predicted"] / table["measured"] - 1).groupby(table["left_out"]).mean().lt(0.01).all()


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
