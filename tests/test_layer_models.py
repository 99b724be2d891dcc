"""Layer models: known rates come back, intervals cover, files are data, power is made of measured rows alone."""

import json

import numpy as np
import pandas as pd
import pytest

from lib.tensorrt.models import baselines, layer_model
from lib.tensorrt.models.layer_model import Setting
from tests import refused

RATES = dict(zip(layer_model.TERMS, (0.005, 0.05, 0.15, 0.25, 0.1, 0.002, 0.003, 0.0, 0.005, 2.0), strict=True))


def layers(rows=90, seed=0):
    """Return layers of three networks whose runtime, and energy above idle, are made of known rates."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(["convolutional", "pooling", "dense"], rows)
    moved = rng.uniform(1e5, 1e7, rows)
    table = pd.DataFrame({
        "kind": kinds, "network": rng.choice(["a", "b", "c"], rows), "dtype": rng.choice(["FP16", "FP32"], rows),
        "groups": np.where((kinds == "convolutional") & (rng.random(rows) < 0.3), 8, 1), "flops": rng.uniform(1e6, 5e8, rows),
        "bytes": moved, "weight_bytes": moved * np.where(kinds == "pooling", 0.0, rng.uniform(0.1, 0.9, rows)),
        "output_size": rng.integers(1000, 200_000, rows)})
    table["runtime"] = layer_model.work(table)[:, :-1] @ np.array(list(RATES.values()))[:-1]
    table["power"] = layer_model.work(table) @ np.array(list(RATES.values())) / table["runtime"]
    return table


KINDS = ("convolutional", "pooling", "dense")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", layer_model.TARGETS)
def test_known_rates_predict_what_was_left_out(target, kind):
    model, fresh = layer_model.fit(layers(), kind, target, "board"), layers(seed=1).query("kind == @kind")
    predicted = model.predict(fresh)
    np.testing.assert_allclose(predicted["prediction"], fresh[target], rtol=1e-6)
    assert predicted["prediction"].between(predicted["low"], predicted["high"]).all()
    assert model.half < 1e-6 and model.scores["mape"] < 1e-6


def test_nominal_90_percent_intervals_cover_noisy_layers_of_new_networks():
    def noisy(seed):
        table = layers(300, seed)
        return table.assign(runtime=table["runtime"] * np.exp(np.random.default_rng(seed).normal(0, 0.2, len(table))))

    inside = []
    for kind in KINDS:
        fresh = noisy(1).query("kind == @kind")
        predicted = layer_model.fit(noisy(0), kind, "runtime", "board").predict(fresh)
        inside += [fresh["runtime"].between(predicted["low"], predicted["high"])]
    assert 0.85 <= pd.concat(inside).mean() <= 0.95


def test_the_mean_and_the_roofline_are_what_their_names_say():
    train = pd.DataFrame({"flops": [8.0, 1.0, 2.0], "bytes": [1.0, 8.0, 2.0], "runtime": [2.0, 2.0, 2.0]})
    test = pd.DataFrame({"flops": [80.0, 0.0, 8.0, 0.0], "bytes": [0.0, 40.0, 8.0, 0.0]})
    np.testing.assert_array_equal(baselines.mean(train, test, "runtime"), 2.0)
    rate = 4 - 0.1 * 3  # the 95th percentile of 0.5, 1 and 4 FLOPs a unit of time, and of as many bytes
    np.testing.assert_allclose(baselines.roofline(train, test, "runtime"), [80 / rate, 40 / rate, 8 / rate, 2.0])


def test_a_model_comes_back_from_its_file_and_a_damaged_one_is_one_line(tmp_path):
    model = layer_model.fit(layers(), "dense", "runtime", "board", Setting(relative=0.5), "source", "licence")
    assert model.setting.relative == 0.5
    path = model.save(tmp_path / "m.json")
    back = layer_model.LayerModel.load(path)
    pd.testing.assert_frame_equal(back.predict(layers(seed=2)), model.predict(layers(seed=2)))
    content = json.loads(path.read_text())
    for name, value in (("rates", {"launch": 1.0}), ("rates", {**content["rates"], "launch": -1}), ("half", -1), ("kind", "x"),
                        ("setting", {"relative": 2}), ("schema", 2), ("target", "x"), ("more", 1), ("rows", {"dense": "x"})):
        path.write_text(json.dumps({**content, name: value}))
        with refused(name):
            layer_model.LayerModel.load(path)
