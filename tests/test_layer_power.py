"""From recordings to predictions of an engine: training tables, settings, the search, the verb."""

import json
import shutil
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from lib import paths
from lib.tensorrt import engine
from lib.tensorrt.models import evaluation, layer_model, predictions, training
from lib.tensorrt.recordings import dataset, engine_run
from tests import SHARED, output_of, refused
from tests.test_layer_models import layers

RTX = "rtx-3060-laptop"


@pytest.fixture
def small_engine():
    return engine.read(min(paths.REFERENCE.glob("*/layer_power/raw_data/resnet18/trt_engine_info.json")))


def test_every_row_says_what_the_model_is_of(small_engine):
    shipped = training.load_models(RTX, (training.SHIPPED,))
    rows = predictions.of_engine(small_engine, shipped)
    assert tuple(rows) == predictions.COLUMNS and len(rows) == len(small_engine.layers)
    known = rows["kind"].isin(["convolutional", "pooling", "dense"])
    assert (rows.loc[known, "runtime_low"] < rows.loc[known, "runtime_prediction"]).all()
    assert rows.loc[~known, "runtime_prediction"].isna().all() and rows["power_prediction"].isna().all()
    assert rows["note"].str.contains(f"trained on {RTX}, and the engine's device is not stated").all()
    assert rows.loc[known, "note"].str.contains(f"no power of .* layers was measured on {RTX}").all()
    assert not predictions.of_engine(small_engine, shipped, RTX).loc[known, "note"].str.contains("trained on").any()
    with refused(f"trained on {RTX}, not on jetson-orin"):
        predictions.of_engine(small_engine, shipped, "jetson-orin", strict=True)


def test_a_total_is_the_sum_of_what_is_predicted():
    rows = pd.DataFrame({"layer_type": ["a", "b", "b"], "runtime_prediction": [1.0, 3.0, np.nan], "power_prediction": 2.0,
                         "runtime_low": [0.5, 2.0, np.nan], "runtime_high": [2.0, 4.0, np.nan]})
    sums = predictions.total(rows)
    assert sums.pop("others").to_dict() == {"b": 1}
    assert sums == {"runtime_ms": 4.0, "low_ms": 2.5, "high_ms": 6.0, "power_w": 2.0, "energy_mj": 8.0, "covered": 2,
                    "layers": 3}
    without_power = predictions.total(rows.assign(power_prediction=[2.0, np.nan, 2.0]))
    assert without_power["runtime_ms"] == 4.0 and np.isnan(without_power["energy_mj"])


def test_models_are_found_by_their_device(tmp_path):
    folders = (tmp_path / "own", tmp_path / "shipped")

    def refused_to_load(words, device=""):
        with refused(words):
            training.load_models(device, folders)

    refused_to_load("no layer models in .*; there are those of: no device")
    for folder, device in zip((*folders, folders[1]), ("a", "a", "b"), strict=True):
        for model in training.train(layers(), "runtime", device, source=folder.name)[0]:
            training.save(model, folder)
    refused_to_load("several layer models")
    refused_to_load("no layer models of 'c' .*; there are those of: a, b", "c")
    assert {model.source for model in training.load_models("a", folders)} == {"own"}


@pytest.mark.slow
def test_a_search_sees_training_networks_alone_and_goes_on(tmp_path, monkeypatch):
    def search(trials=1, test=("c",), power=1.0, target="runtime", storage="optuna"):
        table = layers(200).assign(power=power)
        return training.search(table, "dense", target, "board", training.Settings(test=test), trials, 0,
                             tmp_path / f"{storage}.sqlite")

    held_out = Mock(wraps=training.layer_model.held_out)
    monkeypatch.setattr(training.layer_model, "held_out", held_out)
    first = search(2)
    assert {name for call in held_out.call_args_list for name in call.args[0]["network"]} == {"a", "b"}
    assert len(first.trials) == 2 and first.best_value <= first.trials[0].value
    assert len(search().trials) == 3
    (tmp_path / "bad.sqlite").write_text("this is no database" * 100)
    for changes, words in (
            ({"test": ("b", "c")}, "a choice needs 2 networks apart from b, c; there are: a"),
            ({"target": "power", "power": np.nan}, "no dense layers with a measured power"),
            ({"storage": "bad"}, "cannot be used as Optuna's storage")):
        with refused(words):
            search(**changes)


def test_settings_that_were_found_are_written_beside_the_comments(tmp_path):
    path = tmp_path / "layer_power.yaml"
    shutil.copy(training.SETTINGS, path)
    training.write({("runtime", "dense"): training.Setting(relative=0.25, without=("weight_mb",))}, path)
    assert training.load_settings(path).of("runtime", "dense").relative == 0.25
    assert path.read_text().splitlines()[0] == training.SETTINGS.read_text().splitlines()[0]


def as_published(folder, networks=6):
    """Write training tables in the original study's columns alone: a published one has no others."""
    source = min(paths.REFERENCE.glob("*/layer_power/training_data"))
    tables = {kind: pd.concat([pd.read_csv(path) for path in sorted(source.glob(f"*/{kind}.csv"))])
              for kind in dataset.ORIGINAL}
    for number in range(networks):
        (folder / f"n{number}").mkdir(parents=True)
        for kind, table in tables.items():
            rows = table.iloc[number::networks][list(dataset.ORIGINAL[kind])]
            rows.assign(power=3 + 10 * rows["runtime"]).to_csv(folder / f"n{number}" / f"{kind}.csv", index=False)
    return tables


def test_the_originals_training_tables_have_their_work_from_shapes(tmp_path):
    ours = as_published(tmp_path)
    back = dataset.read_training(tmp_path)
    assert (back["groups"] == 1).all() and back["power_n"].isna().all()
    for kind in ("dense", "pooling"):
        np.testing.assert_allclose(sorted(back.loc[back["kind"] == kind, "flops"]), sorted(ours[kind]["flops"]))
    row = back[back["kind"] == "convolutional"].iloc[0]
    macs = row["output_size"] * row["input_size_0"] * row["kernel_0"] * row["kernel_1"]
    assert row["flops"] == 2 * macs and row["weight_bytes"] == 2 * macs / row["output_size_1"] / row["output_size_2"]


@pytest.mark.slow
def test_the_originals_pipeline_is_trained_to_a_file_registered_and_asked_by_its_alias(tmp_path, small_engine):
    as_published(tmp_path / "training", networks=2)
    uri, models = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "models"
    output_of("layer-power", "train", tmp_path / "training", "--device", "jetson", "--learner", "lasso", "--out", models,
              "--register", uri)
    model = layer_model.LayerModel.load(models / "convolutional/runtime/jetson.json")
    assert model.setting.learner == "lasso" and model.scores["mape"] < 3
    listed = output_of("layer-power", "versions", "dense-power-jetson", "--alias", "old", "1", "--registry", uri)
    assert listed.startswith("dense-power-jetson 1: champion, old; MAPE ")
    names = [f"{kind}-{target}-jetson" for kind in dataset.ORIGINAL for target in ("runtime", "power")]
    predict = "layer-power", "predict", "--trt-engine-path", small_engine.path, "--result-csv-path"
    output_of(*predict, tmp_path / "registered.csv", "--registry", uri, "--model", *names[:-1], f"{names[-1]}@1")
    output_of(*predict, tmp_path / "files.csv", "--models", models)
    registered, files = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("registered", "files"))
    pd.testing.assert_frame_equal(registered, files)
    assert registered.loc[registered["kind"].isin(dataset.ORIGINAL), "power_prediction"].notna().all()


@pytest.mark.parametrize("change, words", [
    (lambda table: table.drop(columns="runtime"), "lacks the columns runtime"),
    (lambda table: table.assign(flops="x"), "flops hold what is no number"),
    (lambda table: table.assign(output_size=0), "row 1 below the header has .* as output_size: it is a number")])
def test_training_rows_that_cannot_be_are_refused(tmp_path, change, words):
    source = min(paths.REFERENCE.glob("*/layer_power/training_data/resnet18/dense.csv"))
    (tmp_path / "m").mkdir()
    change(pd.read_csv(source)).to_csv(tmp_path / "m/dense.csv", index=False)
    with refused(words):
        dataset.read_training(tmp_path)


@pytest.mark.slow
def test_published_recordings_are_predicted_at_a_fraction_of_the_originals_error(home):
    """RTX 3060 Laptop, each network left out with its three export routes."""
    raw = SHARED / "data/edgeprofiler/desktop"
    if not raw.is_dir():
        pytest.skip(f"the published recordings are not here: {raw}")
    run, layers = engine_run.read(raw), dataset.read_training(dataset.build(raw))
    assert run.power == "not measured" and run.samples.empty and run.passes["power_w"].isna().all()
    assert set(layers["network"]) == {"alexnet", "mobilenet_v2", "resnet18"}
    assert layers["kind"].value_counts().to_dict() == {"convolutional": 159, "dense": 81, "pooling": 17}
    table = evaluation.held_out(layers, training.load_settings())
    table["error"] = (table["predicted_ms"] / table["measured_ms"] - 1).abs()
    error = table.groupby(["model", "kind"])["error"].mean()
    ours = error[evaluation.OURS]
    assert ours["pooling"] < 0.6 * error[evaluation.ORIGINAL, "pooling"]
    assert ours["convolutional"] < 0.22 and ours["dense"] < 0.2
    sums = table[table["model"] == evaluation.OURS].groupby("network")[["predicted_ms", "measured_ms"]].sum()
    assert (sums["predicted_ms"] / sums["measured_ms"] - 1).abs().max() < 0.5
    with refused("no recording 'x' in .*; there are"):
        engine_run.read(raw, "x")


def test_a_run_of_an_engine_has_its_samples_and_the_power_of_each_window():
    raw = min(paths.REFERENCE.glob("*/layer_power/raw_data"))
    run = engine_run.read(raw)
    assert run.power == "synthetic" and run.layers["median_ms"].notna().all() and run.passes["start_ms"].min() == 0
    window = run.passes[run.passes["power_w"].notna()].iloc[0]
    inside = run.samples[run.samples["at_ms"].between(window["start_ms"], window["end_ms"])]
    assert window["power_w"] == pytest.approx(inside["power_w"].mean() - run.idle_w)


def test_held_out_layers_were_not_seen():
    """A network whose layers take ten times as long as all others is predicted by the others' rates."""
    table = dataset.read_training(min(paths.REFERENCE.glob("*/layer_power/training_data")))
    dense = table[(table["kind"] == "dense") & table["network"].isin(["alexnet", "vgg11"])]
    slower = dense.assign(runtime=dense["runtime"].where(dense["network"] != "vgg11", 10 * dense["runtime"]))
    before, after = (evaluation.held_out(rows, training.load_settings()) for rows in (dense, slower))
    unseen = before["network"] == "vgg11"
    np.testing.assert_allclose(before.loc[unseen, "predicted_ms"], after.loc[unseen, "predicted_ms"])
    assert (after.loc[~unseen, "predicted_ms"] > 2 * before.loc[~unseen, "predicted_ms"]).any()
    assert evaluation.held_out(dense[dense["network"] == "vgg11"], training.load_settings()).empty


def test_what_is_not_measured_by_its_own_words_teaches_nothing(tmp_path):
    assert dataset.power_source(tmp_path) == dataset.MEASURED, "as boards give recordings"
    path = tmp_path / dataset.RECORDING
    for word in dataset.SOURCES:
        path.write_text(json.dumps({"power": word}))
        assert dataset.power_source(tmp_path) == word
    path.write_text(json.dumps({"power": ["synthetic"]}))
    with refused("it is one of measured, replayed, synthetic, not measured"):
        dataset.power_source(tmp_path)


