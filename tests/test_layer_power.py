"""From a network that is recorded here to predictions of an engine: recordings, synthetic power, settings, the verb."""

import json
import os
import shutil
import sqlite3
from collections import Counter
from contextlib import closing

import numpy as np
import pandas as pd
import pytest

from lib import __main__ as command
from lib import paths
from lib.config.notebooks import LayerPowerParams
from lib.errors import InputError
from lib.measure.energy import power_log
from lib.measure.energy.power_log import PowerLog
from lib.studies.layer_power import study
from lib.tensorrt import engine
from lib.tensorrt.models import baselines, predictions, trained_models, training, tuning
from lib.tensorrt.recordings import captured_engine, dataset, latencies, recording, synthetic_power
from lib.work import networks
from lib.work.graph import capture, counts
from tests import SHARED
from tests.test_layer_models import layers

SMALL = "3x32x32"


def recorded(folder, name="simple_cnn", runs=3):
    recording.record(networks.network(name, 1, SMALL), folder / name, runs)
    return folder / name


def test_a_captured_network_is_an_engine_with_its_exact_work(tmp_path):
    graph = capture.of_network(networks.network("resnet18", 1))
    path = tmp_path / "e.json"
    path.write_text(json.dumps({"Layers": [layer for _, layer in captured_engine.layers(graph)]}))
    read = engine.read(path)
    known = [layer.kind for layer in read.layers if layer.kind != "other"]
    assert Counter(known) == {"convolutional": 20, "pooling": 1, "dense": 1}
    assert sum(layer.flops for layer in read.layers if layer.kind in ("convolutional", "dense")) == sum(
        map(counts.matrix_flops, graph.ops))
    published = SHARED / "data" / "edgeprofiler" / "model_training" / "sample_data" / "resnet18_trt_engine_info.json"
    if published.is_file():
        theirs = [layer.macs for layer in engine.read(published).layers if layer.kind in ("convolutional", "dense")]
        assert sorted(theirs) == sorted(layer.macs for layer in read.layers if layer.kind in ("convolutional", "dense"))


def test_a_network_without_such_layers_is_refused():
    with pytest.raises(InputError, match="no 2D convolution, pooling or linear layer"):
        captured_engine.layers(capture.capture(__import__("torch").nn.ReLU(), (1, 3, 4, 4)))


def test_a_recording_is_whole_read_back_and_never_overwritten(tmp_path):
    folder = recorded(tmp_path)
    read, times = engine.read(folder / dataset.ENGINE), latencies.read(folder / dataset.LATENCY)
    assert [layer.name for layer in read.layers] == list(times)
    assert all(len(one) == 3 and (one.latency_ms > 0).all() for one in times.values())
    ends = np.array([one.end_s for one in times.values()])
    assert (np.diff(ends, axis=0) >= 0).all(), "layers end in their order in every pass"
    facts = json.loads((folder / dataset.RECORDING).read_text())
    assert facts["power"] in ("measured", "not measured") and bool(facts["reason"]) == (facts["power"] == "not measured")
    with pytest.raises(InputError, match="is there already"):
        recorded(tmp_path)


@pytest.mark.parametrize("step", ["_timed", "write_power", "finish"])
def test_a_recording_that_was_killed_is_none_and_the_same_line_records_what_is_missing(tmp_path, monkeypatch, capsys, step):
    """It is of one session, so what is there of a killed one is of no use, and in nobody's way."""
    def killed(*_):
        os._exit(9)

    raw, line = tmp_path / "raw", ["layer-power", "record", "simple_cnn", "mlp", "--runs", "10", "--synthetic-power", "--out"]
    raw.mkdir()
    networks_here = {name: networks.network("simple_cnn", 1, SMALL) for name in ("simple_cnn", "mlp")}
    monkeypatch.setattr(networks, "network", lambda name, _: networks_here[name])
    recording.record(networks_here["mlp"], raw / "mlp", 10, finish=synthetic_power.add)
    if not (child := os.fork()):
        if step != "finish":
            monkeypatch.setattr(recording, step, killed)
        recording.record(networks_here["simple_cnn"], raw / "simple_cnn", 10, finish=killed if step == "finish" else
                         synthetic_power.add)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert (raw / ".new-simple_cnn").is_dir()
    assert list(dataset.models(raw)) == ["mlp"]
    before = (raw / "mlp" / dataset.LATENCY).read_bytes()
    assert command.main([*line, str(raw)]) == 0
    assert f"{raw / 'mlp'}: was recorded already" in capsys.readouterr().out
    assert sorted(path.name for path in raw.iterdir() if path.is_dir()) == ["mlp", "simple_cnn"]
    assert dataset.power_source(raw / "simple_cnn") == dataset.SYNTHETIC
    assert (raw / "mlp" / dataset.LATENCY).read_bytes() == before
    assert command.main([*line[:-3], "11", *line[-2:], str(raw)]) == 2
    assert "is another recording: runs is 10, not 11; a recording is never overwritten" in capsys.readouterr().err


def test_synthetic_power_is_recovered_and_teaches_nothing(tmp_path):
    folder = recorded(tmp_path / "raw", runs=40)
    for name in (dataset.POWER, dataset.IDLE):  # of a machine with a meter
        (folder / name).unlink(missing_ok=True)
    synthetic_power.add(folder)
    with pytest.raises(InputError, match="synthetic power never takes the place of a log"):
        synthetic_power.add(folder)
    notes = dataset.preprocess(tmp_path / "raw", tmp_path / "pre")[0].notes
    assert any("windows hold a power sample" in note for note in notes)
    converted = dataset.convert(tmp_path / "pre", tmp_path / "training")[0]
    assert "it is synthetic" in converted.notes[0]
    table = dataset.read_training(tmp_path / "training")
    assert table["power"].isna().all() and (table["runtime"] > 0).all() and set(table["network"]) == {"simple_cnn"}
    models, refused = training.train(table, "power", "board")
    assert not models and len(refused) == 3


def test_the_log_says_what_runs_and_what_idles(tmp_path):
    folder = recorded(tmp_path, runs=5)
    read, times = engine.read(folder / dataset.ENGINE), latencies.read(folder / dataset.LATENCY)
    log = synthetic_power.log(read, times)
    before = log.at_s < min(one.end_s[0] - one.latency_ms[0] / 1e3 for one in times.values())
    assert before.sum() > 10 and abs(log.power_w[before].mean() / synthetic_power.IDLE_W - 1) < 0.02


def test_the_originals_mapping_takes_what_lies_between_windows():
    log = PowerLog(np.arange(10) / 10, np.arange(10.0))
    start_s, end_s = np.array([0.15, 0.55, 0.56]), np.array([0.25, 0.58, 0.59])
    np.testing.assert_allclose(baselines.original_window_means(start_s, end_s, log), [1.0, 4.0, 0.0])


@pytest.fixture
def shipped(tmp_path):
    """Return an engine's file, and the models that ship."""
    graph = capture.of_network(networks.network("simple_cnn", 1, SMALL))
    path = tmp_path / "e.json"
    path.write_text(json.dumps({"Layers": [layer for _, layer in captured_engine.layers(graph)]}))
    return path, trained_models.load(trained_models.SHIPPED_DEVICE, (trained_models.SHIPPED,))


def test_every_row_says_what_the_model_is_of(shipped):
    path, models = shipped
    read = engine.read(path)
    rows = predictions.of_engine(read, models)
    assert tuple(rows) == predictions.COLUMNS and len(rows) == len(read.layers)
    known = rows["kind"].isin(["convolutional", "pooling", "dense"])
    assert (rows.loc[known, "runtime_low"] < rows.loc[known, "runtime_prediction"]).all()
    assert rows.loc[~known, "runtime_prediction"].isna().all() and rows["power_prediction"].isna().all()
    assert rows["note"].str.contains("trained on rtx-3060-laptop, and the engine's device is not stated").all()
    assert rows.loc[known, "note"].str.contains("no power of .* layers was measured on rtx-3060-laptop").all()
    assert not predictions.of_engine(read, models, "rtx-3060-laptop").loc[known, "note"].str.contains("trained on").any()
    with pytest.raises(InputError, match="trained on rtx-3060-laptop, not on jetson-orin"):
        predictions.of_engine(read, models, "jetson-orin", strict=True)


def test_a_row_without_bytes_says_which_format_is_not_known(shipped):
    path, models = shipped
    content = json.loads(path.read_text())
    content["Layers"][0]["Inputs"][0]["Format/Datatype"] = "Row major linear NF4"
    path.write_text(json.dumps(content))
    rows = predictions.of_engine(engine.read(path), models)
    assert np.isnan(rows["runtime_prediction"].iloc[0])
    assert rows["note"].iloc[0].startswith("bytes are not known: a tensor is 'Row major linear NF4'; no power")
    assert not rows["note"].iloc[1:].str.contains("bytes are not known").any()


def test_a_total_is_the_sum_of_what_is_predicted(shipped):
    path, models = shipped
    rows = predictions.of_engine(engine.read(path), models)
    total = predictions.total(rows)
    assert total.runtime_ms == pytest.approx(rows["runtime_prediction"].sum())
    assert total.low_ms < total.runtime_ms < total.high_ms
    assert total.covered + sum(total.others.values()) == total.layers == len(rows) and np.isnan(total.energy_mj)
    known = rows.assign(power_prediction=2.0)
    assert predictions.total(known).energy_mj == pytest.approx(2 * total.runtime_ms)
    assert predictions.total(known).power_w == pytest.approx(2.0)
    nothing = predictions.total(rows.assign(runtime_prediction=np.nan))
    assert nothing.covered == 0 and np.isnan(nothing.runtime_ms)


def test_models_are_found_by_their_device(tmp_path):
    folders = (tmp_path / "own", tmp_path / "shipped")
    with pytest.raises(InputError, match="no layer models in .*; there are those of: no device"):
        trained_models.load("", folders)
    for folder, device in zip((*folders, folders[1]), ("a", "a", "b"), strict=True):
        for model in training.train(layers(), "runtime", device, source=folder.name)[0]:
            trained_models.save(model, folder)
    with pytest.raises(InputError, match="several layer models"):
        trained_models.load("", folders)
    assert {model.source for model in trained_models.load("a", folders).models.values()} == {"own"}
    with pytest.raises(InputError, match="no layer models of 'c' .*; there are those of: a, b"):
        trained_models.load("c", folders)
    path = folders[0] / "dense" / "runtime" / "a.json"
    path.write_text((folders[0] / "pooling" / "runtime" / "a.json").read_text())
    with pytest.raises(InputError, match="is a model of runtime of pooling layers, not of runtime of dense ones"):
        trained_models.load("a", folders)


def test_a_search_sees_training_networks_alone_and_goes_on(tmp_path, monkeypatch):
    table, seen, storage = layers(200), set(), tmp_path / "optuna.sqlite"
    held_out = tuning.layer_model.held_out

    def watched(rows, *rest):
        seen.update(rows["network"])
        return held_out(rows, *rest)

    monkeypatch.setattr(tuning.layer_model, "held_out", watched)
    settings = training.Settings(test=("c",))
    first = tuning.search(table, "dense", "runtime", "board", settings, 4, 0, storage)
    assert seen == {"a", "b"} and len(first.trials) == 4 and first.best_value <= first.trials[0].value
    assert len(tuning.search(table, "dense", "runtime", "board", settings, 3, 0, storage).trials) == 7
    path = tmp_path / "layer_power.yaml"
    path.write_text(training.SETTINGS.read_text())
    tuning.write({("runtime", "dense"): training.Setting(relative=0.25, without=("weight_mb",))}, path)
    assert training.load_settings(path).of("runtime", "dense").relative == 0.25
    assert path.read_text().splitlines()[0] == training.SETTINGS.read_text().splitlines()[0], "comments stay"
    with pytest.raises(InputError, match="a choice needs 2 networks apart from b, c; there are: a"):
        tuning.search(table, "dense", "runtime", "board", training.Settings(test=("b", "c")), 1, 0, storage)
    with pytest.raises(InputError, match="no pooling layers with a measured power"):
        tuning.search(table.assign(power=np.nan), "pooling", "power", "board", settings, 1, 0, storage)
    with pytest.raises(InputError, match=r"layer_power.yaml: test names x, y, of .* no rows; the networks .* are: a, b, c$"):
        tuning.search(table, "dense", "runtime", "board", training.Settings(test=("x", "c", "y")), 1, 0, storage)
    (tmp_path / "bad.sqlite").write_text("this is no database" * 100)
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        other.execute("CREATE TABLE alembic_version (version_num TEXT)")
        other.execute("INSERT INTO alembic_version VALUES ('dc11669786a5')")
        other.commit()
    for name in ("bad", "other"):
        with pytest.raises(InputError, match="cannot be used as Optuna's storage") as error:
            tuning.search(table, "dense", "runtime", "board", settings, 1, 0, tmp_path / f"{name}.sqlite")
        assert "\n" not in str(error.value)


def test_the_verb_from_raw_recordings_to_predictions(tmp_path, capsys):
    for name in ("simple_cnn", "squeezenet1_1"):
        recording.record(networks.network(name, 1, "3x64x64"), tmp_path / "raw" / name, 3)
    out = ["--out", str(tmp_path / "built")]
    assert command.main(["layer-power", "dataset", str(tmp_path / "raw"), *out]) == 0
    training_data = str(tmp_path / "built" / "training_data")
    assert command.main(["layer-power", "train", training_data, "--device", "here", "--out", str(tmp_path / "models")]) == 0
    said = capsys.readouterr()
    assert "runtime of convolutional layers, networks left out: MAPE" in said.out and "refused: 0 of" in said.err
    path = tmp_path / "raw" / "simple_cnn" / dataset.ENGINE
    predict = ["layer-power", "predict", "--trt-engine-path", str(path), "--result-csv-path", str(tmp_path / "r.csv")]
    assert command.main([*predict, "--models", str(tmp_path / "models"), "--device", "here", "--strict"]) == 0
    rows = pd.read_csv(tmp_path / "r.csv")
    assert tuple(rows) == predictions.COLUMNS and rows["runtime_prediction"].notna().sum() > 3
    with pytest.raises(SystemExit):
        command.main(predict)
    assert "exists already and is not overwritten" in capsys.readouterr().err
    assert command.main(["layer-power", "train", training_data, "--device", "there", "--out", str(tmp_path / "models"),
                         "--targets", "runtime"]) == 0
    again = [*predict[:-1], str(tmp_path / "again.csv"), "--models", str(tmp_path / "models")]
    assert command.main(again) == 2 and "several layer models" in capsys.readouterr().err
    assert command.main([*again, "--device", "there", "--strict"]) == 0, "a device's own models are asked"
    nowhere = ["--out", str(tmp_path / "o"), "--push", "foo://x"]
    assert command.main(["layer-power", "dataset", str(tmp_path / "raw"), *nowhere]) == 2
    assert "Protocol not known: foo" in capsys.readouterr().err
    assert not (tmp_path / "o").exists(), "nothing is built for a remote that is none"
    assert command.main(["layer-power", "dataset", str(tmp_path / "nowhere"), *out]) == 2
    assert "holds no recording" in capsys.readouterr().err


def test_training_tables_of_others_are_refused_in_one_line(tmp_path):
    (tmp_path / "m").mkdir()
    for text, words in (("a,b\n1,2\n", "lacks the columns"), ("", "has no header")):
        (tmp_path / "m" / "dense.csv").write_text(text)
        with pytest.raises(InputError, match=words):
            dataset.read_training(tmp_path)
    header = [*dataset.ORIGINAL["dense"], *dataset.OURS]
    (tmp_path / "m" / "dense.csv").write_text(",".join(header) + "\n" + ",".join(["x"] * len(header)) + "\n")
    with pytest.raises(InputError, match="hold what is no number"):
        dataset.read_training(tmp_path)


@pytest.mark.slow
def test_the_study_takes_recordings_of_others(tmp_path, monkeypatch):
    raw = SHARED / "data" / "edgeprofiler" / "desktop" / "torch_trt"
    if not raw.is_dir():
        pytest.skip(f"the published recordings are not here: {raw}")
    monkeypatch.setattr(study.paths, "DATA", tmp_path)
    results = study.study(LayerPowerParams(recordings=str(raw), device_name="rtx-3060-laptop"))
    assert results.recorded.power == "not measured" and study.recovered(results.recorded).empty
    assert set(results.layers["network"]) == {"alexnet", "mobilenet_v2", "resnet18"}
    assert study.totals(results)["error"].abs().max() < 0.5
    with pytest.raises(InputError, match="holds no recording 'x'; there are"):
        study.study(LayerPowerParams(recordings=str(raw), network="x"))


def test_a_log_without_idle_power_says_what_is_missing(tmp_path):
    folder = recorded(tmp_path / "raw")
    for name in (dataset.POWER, dataset.IDLE):
        (folder / name).unlink(missing_ok=True)
    power_log.write(PowerLog(np.arange(5.0), np.ones(5)), folder / dataset.POWER)
    assert "no power: idling_power.json missing" in dataset.preprocess(tmp_path / "raw", tmp_path / "pre")[0].notes


def test_what_is_not_measured_by_its_own_words_teaches_nothing(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    assert dataset.power_source(folder) == dataset.MEASURED, "as boards give recordings"
    path = folder / dataset.RECORDING
    for word, good in (("measured", True), ("replayed", True), ("synthetic", True), ("Synthetic", False),
                       (["synthetic"], False), (None, False)):
        path.write_text(json.dumps({"power": word}))
        if good:
            assert dataset.power_teaches(folder) == (word == "measured")
        else:
            with pytest.raises(InputError, match="it is one of measured, replayed, synthetic, not measured"):
                dataset.power_source(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError):
        dataset.power_source(folder)


def test_recordings_that_would_share_a_name_are_refused_and_one_alone_has_its_own(tmp_path):
    first = recorded(tmp_path / "c" / "a", "simple_cnn")
    assert list(dataset.models(first)) == ["simple_cnn"]
    shutil.copytree(first, tmp_path / "c" / "a-simple_cnn")
    with pytest.raises(InputError, match="would both be called 'a-simple_cnn'"):
        dataset.models(tmp_path / "c")


@pytest.mark.parametrize(("column", "value"), [("batch_size", -1), ("flops", -1), ("weight_bytes", 1e308), ("output_size", 0)])
def test_training_rows_that_cannot_be_are_refused(tmp_path, column, value):
    source = next(iter(sorted(paths.REFERENCE.glob("*/layer_power/training_data/resnet18/dense.csv"))))
    table = pd.read_csv(source).astype({column: float})
    table.loc[0, column] = value
    (tmp_path / "m").mkdir()
    table.to_csv(tmp_path / "m" / "dense.csv", index=False)
    with pytest.raises(InputError, match=f"row 1 below the header has .* as {column}: it is a number from"):
        dataset.read_training(tmp_path)


def test_a_replayed_meter_is_no_measurement(tmp_path, monkeypatch):
    log = PowerLog(np.arange(0, 60, 0.05), np.full(1200, 7.0))
    monkeypatch.setenv("LIB_METER", str(power_log.write(log, tmp_path / "power.log")))
    folder = recorded(tmp_path / "raw", runs=5)
    assert json.loads((folder / dataset.RECORDING).read_text())["power"] == "replayed"
