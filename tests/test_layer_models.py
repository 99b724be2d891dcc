"""Layer models: known rates come back, intervals cover, damaged files, the search sees training networks alone."""

import json
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from lib import paths
from lib.measure.energy.power_log import PowerLog
from lib.tensorrt import layer_model, training, tune
from lib.tensorrt.layer_model import LayerModel, Setting, fit_layer_model, predict_left_out
from lib.tensorrt.layers import layer_table, read_training
from lib.tensorrt.physics import TERMS, predict_physics
from lib.tensorrt.power_mapping import map_power
from lib.tensorrt.recordings import read_recording
from tests import SHARED, output_of, refused

RATES = dict(zip(TERMS, (0.005, 0.05, 0.15, 0.25, 0.1, 0.002, 0.003, 0.0, 0.005, 2.0), strict=True))
KINDS = ("convolutional", "pooling", "dense")
RESNET18 = min(paths.REFERENCE.glob("*/layer_power/raw_data/resnet18/trt_engine_info.json"))
TRAINING = min(paths.REFERENCE.glob("*/layer_power/training_data"))


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
    table["runtime"] = predict_physics(table, RATES, "runtime")
    return table.assign(power=predict_physics(table, RATES, "power"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", layer_model.TARGETS)
def test_known_rates_predict_what_was_left_out(target, kind):
    model, fresh = fit_layer_model(layers(), kind, target, "board", Setting()), layers(seed=1).query("kind == @kind")
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
        predicted = fit_layer_model(noisy(0), kind, "runtime", "board", Setting()).predict(fresh)
        inside += [fresh["runtime"].between(predicted["low"], predicted["high"])]
    assert 0.85 <= pd.concat(inside).mean() <= 0.95


def synthetic_log(engine, latencies, idle_w=4.0):
    """Return a power log of layers that draw 1.5 W, 60 pJ per FLOP and 150 pJ per byte above idle, with 2 % of noise."""
    picojoules = {layer.name: 60 * layer.flops + 150 * np.nan_to_num(layer.bytes) for layer in engine.layers}
    median_ms = latencies.groupby("layer_name")["layer_run_time"].median()
    layer_w = 1.5 + 1e-9 * pd.Series(picojoules) / median_ms
    runs = latencies.assign(drawn_w=latencies["layer_name"].map(layer_w)).sort_values("start_s")
    at_s = np.arange(runs["start_s"].min() - 0.1, runs["end_s"].max() + 0.1, 0.00135)
    running = pd.merge_asof(pd.DataFrame({"start_s": at_s}), runs, on="start_s")
    power_w = idle_w + running["drawn_w"].where(running["end_s"] >= at_s, 0.0).to_numpy()
    return PowerLog(at_s, power_w * np.random.default_rng(0).normal(1, 0.02, len(at_s))), layer_w


def test_power_of_known_truth_is_recovered_and_learned():
    recording = read_recording(RESNET18)
    log, truth_w = synthetic_log(recording.engine, recording.latencies)
    layerwise, _ = map_power(recording.engine, recording.latencies, log, 4.0)
    table = layer_table(recording.engine, layerwise, least_samples=10).assign(network="resnet18")
    recovered = table.dropna(subset="power").set_index("layer_name")["power"]
    assert len(recovered) >= 15 and (recovered / truth_w[recovered.index] - 1).abs().max() < 0.03
    model = fit_layer_model(table, "convolutional", "power", "board", Setting())
    predicted = model.predict(table[table["kind"] == "convolutional"].set_index("layer_name"))["prediction"]
    assert (predicted / truth_w[predicted.index] - 1).abs().median() < 0.05


@pytest.mark.slow
def test_published_recordings_are_predicted_at_a_fraction_of_the_originals_error(tmp_path):
    """RTX 3060 Laptop, each network left out with its three export routes."""
    raw = SHARED / "data/edgeprofiler/desktop"
    if not raw.is_dir():
        pytest.skip(f"the published recordings are not here: {raw}")
    output_of("layer-power", "dataset", raw, "--output", tmp_path)
    table = read_training(tmp_path / "training_data")
    assert table["kind"].value_counts().to_dict() == {"convolutional": 159, "dense": 81, "pooling": 17}
    assert set(table["network"]) == {"alexnet", "mobilenet_v2", "resnet18"} and table["power"].isna().all()
    errors = {}
    for learner in ("physics", "lasso"):
        models, refusals = training.train_models(table, "runtime", "rtx", learner)
        errors[learner] = {model.kind: model.scores["mape"] for model in models}
    assert not refusals and errors["physics"]["pooling"] < 0.6 * errors["lasso"]["pooling"]
    assert errors["physics"]["convolutional"] < 0.22 and errors["physics"]["dense"] < 0.2
    rows = layer_model.with_measured(table, "runtime").assign(predicted=np.nan)
    for kind in KINDS:
        of_kind = rows["kind"] == kind
        predicted = predict_left_out(rows, kind, "runtime", training.load_settings().of("runtime", kind))
        rows.loc[of_kind, "predicted"] = predicted[of_kind]
    sums = rows.groupby("network")[["predicted", "runtime"]].sum()
    assert (sums["predicted"] / sums["runtime"] - 1).abs().max() < 0.5


def test_a_model_comes_back_from_its_file_and_a_damaged_one_is_one_line(tmp_path):
    model = fit_layer_model(layers(), "dense", "runtime", "board", Setting(relative=0.5), "source", "licence")
    path = model.save(tmp_path / "m.json")
    pd.testing.assert_frame_equal(LayerModel.load(path).predict(layers(seed=2)), model.predict(layers(seed=2)))
    content = json.loads(path.read_text())
    for name, value in (("rates", {"launch": 1.0}), ("rates", {**content["rates"], "launch": -1}), ("half", -1), ("kind", "x"),
                        ("setting", {"relative": 2}), ("schema", 2), ("target", "x"), ("more", 1), ("rows", {"dense": "x"})):
        path.write_text(json.dumps({**content, name: value}))
        with refused(name):
            LayerModel.load(path)


def test_models_are_found_by_their_device(tmp_path):
    folders = (tmp_path / "own", tmp_path / "shipped")
    with refused("no layer models of '' in .*; there are those of: no device"):
        training.load_models("", folders)
    for folder, device in zip((*folders, folders[1]), ("a", "a", "b"), strict=True):
        for model in training.train_models(layers(), "runtime", device, source=folder.name)[0]:
            training.save_model(model, folder)
    for device in ("", "c"):
        with refused(f"no layer models of '{device}' .*; there are those of: a, b"):
            training.load_models(device, folders)
    assert {model.source for model in training.load_models("a", folders)} == {"own"}
    assert {model.device for model in training.load_models("", folders, or_else="b")} == {"b"}
    assert {model.device for model in training.load_models("", folders[:1], or_else="c")} == {"a"}


@pytest.mark.slow
def test_a_search_sees_training_networks_alone_and_goes_on(tmp_path, monkeypatch):
    def search(trials=1, test=("c",), power=1.0, target="runtime", storage="optuna"):
        table = layers(200).assign(power=power)
        settings = training.Settings(test=test)
        return tune.tune(table, "dense", target, "board", settings, trials, 0, tmp_path / f"{storage}.sqlite")

    predicted = Mock(wraps=predict_left_out)
    monkeypatch.setattr(tune, "predict_left_out", predicted)
    first = search(2)
    assert {name for call in predicted.call_args_list for name in call.args[0]["network"]} == {"a", "b"}
    assert len(first.trials) == 2 and first.best_value <= first.trials[0].value
    assert len(search().trials) == 3
    (tmp_path / "bad.sqlite").write_text("this is no database" * 100)
    for changes, words in (
            ({"test": ("b", "c")}, "in two networks apart from b, c"), ({"test": ("x",)}, "test names x, .* are: a, b, c"),
            ({"target": "power", "power": np.nan}, "needs dense layers with a measured power"),
            ({"storage": "bad"}, "cannot be used as Optuna's storage")):
        with refused(words):
            search(**changes)
