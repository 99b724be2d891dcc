"""The verb layer-power: training tables, predictions of engines, and the registry of models in MLflow."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from lib import paths
from lib.tensorrt import layers as tables
from lib.tensorrt import predictions, recordings, training
from lib.tensorrt.engine import read_engine
from lib.tensorrt.layer_model import LayerModel, Setting, fit_layer_model
from lib.tensorrt.registry import Registry
from tests import called, output_of, refusal, refused
from tests.test_layer_models import RESNET18, TRAINING, layers

RTX = training.SHIPPED_DEVICE
PREDICT = "layer-power", "predict", "--trt-engine-path", RESNET18, "--result-csv-path"


def test_every_row_says_what_the_model_is_of():
    engine, shipped = read_engine(RESNET18), training.load_models(RTX, (training.SHIPPED,))
    rows = predictions.predict_engine(engine, shipped)
    assert tuple(rows) == predictions.COLUMNS and len(rows) == len(engine.layers)
    known = rows["kind"].isin(tables.ORIGINAL)
    assert known.sum() == 22 and (rows.loc[known, "runtime_low"] < rows.loc[known, "runtime_prediction"]).all()
    assert rows.loc[~known, "runtime_prediction"].isna().all() and rows["power_prediction"].isna().all()
    assert rows["note"].str.contains(f"trained on {RTX}, and the engine's device is not stated").all()
    assert rows.loc[known, "note"].str.contains(f"no power of .* layers was measured on {RTX}").all()
    assert not predictions.predict_engine(engine, shipped, RTX).loc[known, "note"].str.contains("trained on").any()
    with refused(f"trained on {RTX}, not on jetson-orin"):
        predictions.predict_engine(engine, shipped, "jetson-orin", strict=True)


def as_published(folder, networks=6, every=6):
    """Write training tables of some networks in the original study's columns alone, as published ones are."""
    ours = {kind: pd.concat([pd.read_csv(path) for path in sorted(TRAINING.glob(f"*/{kind}.csv"))])
            for kind in tables.ORIGINAL}
    for number in range(networks):
        (folder / f"n{number}").mkdir(parents=True)
        for kind, table in ours.items():
            rows = table.iloc[number::every][list(tables.ORIGINAL[kind])]
            rows.assign(power=3 + 10 * rows["runtime"]).to_csv(folder / f"n{number}" / f"{kind}.csv", index=False)
    return ours


def test_the_originals_training_tables_have_their_work_from_shapes(tmp_path):
    ours = as_published(tmp_path)
    back = tables.read_training(tmp_path)
    assert (back["groups"] == 1).all() and back["power_n"].isna().all()
    for kind in ("dense", "pooling"):
        np.testing.assert_allclose(sorted(back.loc[back["kind"] == kind, "flops"]), sorted(ours[kind]["flops"]))
    row = back[back["kind"] == "convolutional"].iloc[0]
    macs = row["output_size"] * row["input_size_0"] * row["kernel_0"] * row["kernel_1"]
    assert row["flops"] == 2 * macs and row["weight_bytes"] == 2 * macs / row["output_size_1"] / row["output_size_2"]


@pytest.mark.parametrize("change, words", [
    (lambda table: table.drop(columns="runtime"), "lacks the columns runtime"),
    (lambda table: table.assign(flops="x"), "row 1 below the header has x as flops: it is a number from 0"),
    (lambda table: table.assign(output_size=0), "row 1 below the header has 0 as output_size: it is a number from 1")])
def test_training_rows_that_cannot_be_are_refused(tmp_path, change, words):
    (tmp_path / "m").mkdir()
    change(pd.read_csv(TRAINING / "resnet18/dense.csv")).to_csv(tmp_path / "m/dense.csv", index=False)
    with refused(words):
        tables.read_training(tmp_path)


def test_power_that_is_not_measured_by_its_own_words_teaches_nothing(tmp_path):
    raw = shutil.copytree(RESNET18.parent, tmp_path / "raw/resnet18")
    for power, is_kept in (("synthetic", False), ("replayed", False), ("measured", True)):
        (raw / recordings.FACTS).write_text(json.dumps({"power": power}))
        status, _, told = called("layer-power", "dataset", tmp_path / "raw", "--output", tmp_path)
        assert status == 0 and (f"power is left out: it is {power}" in told) != is_kept
        table = tables.read_training(tmp_path / "training_data")
        assert table["power"].notna().any() == is_kept and (table["runtime"] > 0).all()


def test_the_verb_from_training_data_to_predictions(tmp_path):
    models, table = tmp_path / "models", tmp_path / "new/r.csv"
    train = ["layer-power", "train", TRAINING, "--output", models, "--device"]
    status, out, error = called(*train, "here")
    assert status == 0 and "runtime of convolutional layers, networks left out: MAPE" in out and "refused: 0 of" in error
    output_of(*train, "there", "--targets", "power", status=1)  # nothing was trained
    assert "22 of 68 layers predicted" in output_of(*PREDICT, table, "--models", models, "--device", "here", "--strict")
    rows = pd.read_csv(table)
    assert tuple(rows) == predictions.COLUMNS and rows["runtime_prediction"].notna().sum() == 22
    for target in (tmp_path, RESNET18):
        assert "is a folder or the engine" in refusal(*PREDICT, target)


# ------------------------------------------------------------------------------------------- the registry

@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """Give one registry for several tests: MLflow takes seconds to make one."""
    return Registry(f"sqlite:///{tmp_path_factory.mktemp('registry')}/mlflow.db", create=True)


@pytest.fixture
def model():
    return fit_layer_model(layers(), "dense", "runtime", "rtx-3060", Setting(), "EdgeProfiler", "Apache-2.0")


NO_NETWORK = """if True:
    import sys
    def no_network(event, arguments):
        if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            raise SystemExit(f"{event} {arguments}")
    sys.addaudithook(no_network)
    from lib.cli.main import main
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.nightly
def test_models_are_registered_without_network_chatter_or_files_elsewhere(tmp_path):
    line = ["layer-power", "train", TRAINING, "--targets", "runtime", "--device", "x", "--register"]
    done = subprocess.run([sys.executable, "-c", NO_NETWORK, *map(str, line)], cwd=tmp_path, capture_output=True, text=True,
                          check=False, env={**os.environ, "MLFLOW_TRACKING_URI": "", "PYTHONPATH": str(paths.ROOT),
                                            "LIB_OUTPUT": str(tmp_path)})
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("registered ") == 3
    assert sorted(path.name for path in (tmp_path / "data/mlflow").iterdir()) == ["artifacts", "mlflow.db"]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.slow
def test_a_model_comes_back_by_number_and_alias_with_its_scores(registry, model):
    other = fit_layer_model(layers(seed=5), "dense", "power", "rtx-3060", Setting())
    assert [registry.register("m", each) for each in (model, other)] == [1, 2]
    assert registry.register("another", other) == 1
    assert registry.load("m") == registry.load("m", "2") == registry.load("another") == other
    for arguments in (("m", "champion", "1"), ("m", "best", "7")):
        done = called("layer-power", "versions", arguments[0], "--alias", *arguments[1:], "--registry", registry.uri)
        assert (done[0], "not found" in done[2]) == ((0, False) if arguments[2] == "1" else (2, True))
    assert registry.load("m") == model
    assert {version.name for version in registry.versions()} >= {"m", "another"}
    first, second = registry.versions("m")
    assert (first.aliases, second.aliases, first.tags["source"]) == (["champion"], [], "EdgeProfiler")
    for name, version in (("n", "champion"), ("m", "7")):
        with refused("mlflow.db: the registry refuses: .*not found"):
            registry.load(name, version)


@pytest.mark.parametrize("uri", ["ftp://x", "http://me:secret@127.0.0.1:9", "sqlite:////dev/null/x.db"])
def test_a_registry_that_takes_nothing_is_one_line_without_its_password(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    line = refusal("layer-power", "train", TRAINING, "--device", "x", "--register", uri)
    assert "the registry refuses: " in line and "secret" not in line


def test_what_is_not_there_is_refused_and_not_made(tmp_path, monkeypatch, registry, model):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/new/x.db")
    assert "new/x.db: there is no registry; register a model first" in refusal("layer-power", "versions")
    assert not (tmp_path / "new").exists()
    registry.register("dense", model)
    line = refusal("layer-power", "versions", "dens", "--registry", registry.uri)
    assert "no model 'dens' in sqlite:///" in line and "; did you mean dense?" in line


@pytest.mark.slow
def test_the_originals_pipeline_is_trained_to_a_file_registered_and_asked_by_its_alias(tmp_path, registry):
    as_published(tmp_path / "training", networks=2, every=4)
    uri, models = registry.uri, tmp_path / "models"
    output_of("layer-power", "train", tmp_path / "training", "--device", "jetson", "--learner", "lasso", "--output", models,
              "--register", uri)
    model = LayerModel.load(models / "convolutional/runtime/jetson.json")
    assert model.setting.learner == "lasso" and model.scores["mape"] < 3
    listed = output_of("layer-power", "versions", "dense-power-jetson", "--alias", "old", "1", "--registry", uri)
    assert listed.startswith("dense-power-jetson 1: champion, old; MAPE, %: ")
    names = [f"{kind}-{target}-jetson" for kind in tables.ORIGINAL for target in ("runtime", "power")]
    output_of(*PREDICT, tmp_path / "registered.csv", "--registry", uri, "--model", *names[:-1], f"{names[-1]}@1")
    output_of(*PREDICT, tmp_path / "files.csv", "--models", models)
    registered, files = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("registered", "files"))
    pd.testing.assert_frame_equal(registered, files)
    assert registered.loc[registered["kind"].isin(tables.ORIGINAL), "power_prediction"].notna().all()
