"""TensorRT engines: exact work, latencies, power mapped to layers, recordings and training tables."""

import importlib.util
import json
import math
import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import paths
from lib.measure.energy import power_log
from lib.measure.energy.power_log import PowerLog
from lib.tensorrt import layers as tables
from lib.tensorrt import recordings
from lib.tensorrt.engine import read_engine
from lib.tensorrt.power_mapping import map_power, read_latencies, window_means
from tests import SHARED, fake_tensorrt, output_of, refused, write_power_log

EDGE = SHARED / "data/edgeprofiler"
HALF = "Channel major FP16 format where channel % 8 == 0"


def tensor(*dimensions, kind=HALF):
    return {"Name": "t", "Dimensions": list(dimensions), "Format/Datatype": kind}


def convolution(name="conv", **changes):
    return {"Name": name, "LayerType": "CaskConvolution", "Inputs": [tensor(1, 8, 16, 16)], "Outputs": [tensor(1, 4, 8, 8)],
            "ParameterType": "Convolution", "Kernel": [3, 3], "PrePadding": [1, 1], "PostPadding": [1, 1], "Stride": [2, 2],
            "OutMaps": 4, "Groups": 2, "Weights": {"Type": "Half", "Count": 144}, "Bias": {"Type": "Half", "Count": 4},
            **changes}


def pooling(name="pool", **changes):
    return {"Name": name, "LayerType": "CaskPooling", "Inputs": [tensor(1, 4, 8, 8)], "Outputs": [tensor(1, 4, 4, 4)],
            "WindowSize": [3, 3], "PrePadding": [1, 1], "PostPadding": [0, 0], "Stride": [2, 2], **changes}


def dense():
    return convolution("fc", LayerType="CaskGemmConvolution", Inputs=[tensor(1, 512, 1, 1)], Outputs=[tensor(1, 10, 1, 1)],
                       Kernel=[1, 1], Groups=1, OutMaps=10, Weights={"Type": "Half", "Count": 5120})


def read(path, *layers):
    return read_engine(written(path, *layers))


def written(path, *layers):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"Layers": layers, "Bindings": ["x", "y"]}))
    return path


REFORMAT = {"Name": "r", "LayerType": "Reformat"}


def test_work_and_bytes_of_layers_are_exact(tmp_path):
    engine = read(tmp_path / "e.json", convolution(), pooling(), dense(), REFORMAT)
    macs = 4 * 8 * 8 * (8 // 2) * 9
    reads = 4 * 4 * 4 * 9  # the window is WindowSize, not the whole image
    assert [(layer.kind, layer.macs, layer.flops) for layer in engine.layers] == [
        ("convolutional", macs, 2 * macs), ("pooling", reads, reads), ("dense", 5120, 2 * 5120), ("other", 0, 0)]
    assert engine.layers[0].bytes == 2 * (8 * 16 * 16 + 4 * 8 * 8 + 144 + 4)


@pytest.mark.parametrize("layers, what", [
    *(([convolution(**changes)], what) for changes, what in (
        ({"Stride": []}, "without Stride"), ({"Groups": 3}, "not divisible by 3 groups"),
        ({"Weights": {"Type": "Half", "Count": 100}}, "100 weights, its shapes make 144"),
        ({"Inputs": [tensor(1, 8)]}, "dimensions"), ({"Outputs": [tensor(1, -4, 8, 8)]}, "Outputs"))),
    ([convolution(Inputs=[tensor(-1, 8, 16, 16, kind="N/A due to dynamic shapes")])],
     "layer 'conv' has dynamic shapes .*: build the engine with fixed ones .*--shapes"),
    ([], r"Layers = \[\]"), (["a", "b"], "verbosity detailed")])
def test_an_engine_that_contradicts_itself_or_is_none_is_refused(tmp_path, layers, what):
    with refused(what) as wrong:
        read(tmp_path / "e.json", *layers)
    assert "{" not in str(wrong.value), "no dictionary is quoted"
    (tmp_path / "e.json").write_text(json.dumps(layers))
    with refused("expected a mapping"):
        read_engine(tmp_path / "e.json")


def test_latencies_of_a_name_that_layers_share_are_left_out_and_noted(tmp_path):
    engine = read(tmp_path / "e.json", convolution(), convolution(Stride=[1, 1]), dense(), REFORMAT)
    (tmp_path / "l.json").write_text(json.dumps({"conv": [1.0, 2.0], "fc": [3.0], "r": [4.0], "x": [5.0]}))
    latencies = read_latencies(tmp_path / "l.json", engine)
    table, notes = map_power(engine, latencies)
    assert table["layer_name"].tolist() == ["fc", "r"] and table.columns.tolist() == list(tables.COLUMNS)
    assert notes == ["1 latencies are of no layer of the engine", "2 of 4 layers have no latency (2 of them share their name)"]
    (tmp_path / "l.json").write_text(json.dumps([{"count": 9}, {"name": "conv", "medianMs": 1.0}]))
    with refused("trtexec mixes the times of all layers; use params/profile_layers.py"):
        read_latencies(tmp_path / "l.json", engine)


@pytest.mark.parametrize("path, gmacs", [
    (EDGE / "model_training/sample_data/resnet18_trt_engine_info.json", 1.814073344),
    (EDGE / "model_training/sample_data/vgg16_trt_engine_info.json", 15.470264320),
    (paths.REFERENCE / "amd-epyc-2c-ea2da3d4/engines/vgg16_trt_engine_info.json", 15.470264320)])
def test_multiply_adds_of_sample_engines_are_those_of_the_networks(path, gmacs):
    """The numbers are those of torchvision's ResNet-18 and VGG-16 at 224 x 224, counted by hand from their shapes."""
    if path.is_relative_to(EDGE) and not path.is_file():
        pytest.skip(f"the published engine files are not here: {path}")
    engine = read_engine(path)
    assert sum(layer.macs for layer in engine.layers if layer.kind in ("convolutional", "dense")) == round(gmacs * 1e9)
    assert all(math.isfinite(layer.bytes) for layer in engine.layers if layer.kind != "other")


def test_latencies_with_and_without_time_stamps(tmp_path):
    path, engine = tmp_path / "l.json", read(tmp_path / "e.json", REFORMAT)
    path.write_text(json.dumps({"a": [0.5, 1.5], "b": [[0.25, "20241212-10:00:00.500000"]]}))
    times = read_latencies(path, engine)
    assert times["layer_run_time"].tolist() == [0.5, 1.5, 0.25] and times["end_s"].isna().tolist() == [True, True, False]
    assert times["end_s"].iloc[2] % 1 == pytest.approx(0.5)
    path.write_text(json.dumps([{"count": 100}, {"name": "a", "timeMs": 2.0, "averageMs": 0.02, "percentage": 50.0}]))
    assert read_latencies(path, engine)["layer_run_time"].tolist() == [0.02], "trtexec 8.2 and older have no median"


@pytest.mark.parametrize("content, words", [
    ("{}", "no latencies"), ('{"a": ["x"]}', "no latencies"), ('{"a": [[1, "yesterday"]]}', "yesterday"),
    ('{"a": [-1]}', "no latencies"), ('{"a": [NaN]}', "no latencies|not readable"),
    ('[{"name": "a", "timeMs": 1.0}]', "a.0.0 = None"), ('["a"]', "has a name and medianMs or averageMs")])
def test_what_is_no_latency_is_refused(tmp_path, content, words):
    (tmp_path / "l.json").write_text(content)
    with refused(words):
        read_latencies(tmp_path / "l.json", read(tmp_path / "e.json", REFORMAT, REFORMAT, pooling("b")))


def stamped(at_s):
    return datetime.fromtimestamp(at_s, UTC).strftime(power_log.STAMP)


def test_a_power_log_survives_a_torn_line_and_a_clock_that_jumps_back(tmp_path):
    lines = [f"{stamped(100 + number / 10)},5000,{number}\n" for number in range(5)]
    lines[3] = f"{stamped(50)},5000,9\n"
    (tmp_path / "p.log").write_text("".join([*lines, "20241212-10:0"]))
    log = power_log.read(tmp_path / "p.log")
    assert log.power_w.tolist() == [0.0, 0.005, 0.01, 0.02] and len(log.notes) == 2


@pytest.mark.parametrize("line", ["20241212-10:00:00.5,5000", "20241212-10:00:00.5,5000,nan",
                                  "20241212-10:00:00.5,-5000,1", ""])
def test_a_line_that_is_no_sample_is_refused(tmp_path, line):
    (tmp_path / "p.log").write_text(f"20241212-10:00:00.1,5000,10\n{line}\n20241212-10:00:00.9,5000,10\n")
    with refused("line 2"):
        power_log.read(tmp_path / "p.log")


@given(samples=st.integers(1, 30), seed=st.integers(0, 2**32 - 1))
def test_a_window_has_the_mean_of_the_samples_within_it_and_none_without(samples, seed):
    rng = np.random.default_rng(seed)
    at_s, power_w, edges_s = np.sort(rng.uniform(0, 10, samples)), rng.uniform(3, 12, samples), rng.uniform(-1, 11, (2, 20))
    start_s, end_s = np.sort(edges_s, axis=0)
    start_s[0], end_s[1], start_s[2] = at_s[0], at_s[-1], np.nan
    inside = (start_s[:, None] <= at_s) & (at_s <= end_s[:, None])
    mean_w, count = window_means(start_s, end_s, PowerLog(at_s, power_w))
    np.testing.assert_array_equal(count, inside.sum(axis=1))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(mean_w, inside @ power_w / inside.sum(axis=1))


@pytest.mark.parametrize("name, end_s, words", [
    ("pool", 100.0, "does not overlap"), ("pool", np.nan, "0 latencies have time stamps"), ("other", 1.0, "not of one engine")])
def test_power_of_another_time_or_of_another_engine_is_brought_to_no_layer(tmp_path, name, end_s, words):
    log = PowerLog(np.array([0.0, 1.0]), np.full(2, 5.0))
    times = pd.DataFrame({"layer_name": [name], "cycle": 1, "layer_run_time": 1.0, "start_s": end_s - 1e-3, "end_s": end_s})
    with refused(words):
        map_power(read(tmp_path / "e.json", pooling()), times, log, 1.0)


def recording(folder, missing_s=0.0):
    """Write a raw recording of twelve cycles of three layers that draw 6, 4 and 8 W over 2 W idle, 0.1 s each."""
    layers = [convolution(), pooling(), dense()]
    written(folder / recordings.ENGINE, *layers, REFORMAT)
    ends_s = 1000 + 0.1 * np.arange(1, 37).reshape(12, 3)
    times = {layer["Name"]: [[100.0, stamped(end_s)] for end_s in ends_s[:, number]] for number, layer in enumerate(layers)}
    (folder / recordings.LATENCY).write_text(json.dumps(dict(reversed(times.items()))))
    at_s = np.arange(1000.0005, ends_s.max() - missing_s, 0.002)
    power_w = np.array([8.0, 6.0, 10.0])[((at_s - 1000) / 0.1).astype(int) % 3]
    write_power_log(PowerLog(at_s, power_w), folder / recordings.POWER)
    (folder / recordings.IDLE).write_text(json.dumps({"timestamp": "x", "avg_idle_power": 2_000_000}))


def converted(folder, words, **least):
    """Bring the one raw recording there to training data, with a note of these words; return its layers of a kind by kind."""
    ((place, notes),) = recordings.preprocess(folder / "raw", folder / "pre").items()
    assert any(words in note for note in notes)
    assert {path.name for path in place.iterdir()} == {recordings.LAYERWISE, recordings.ENGINE, recordings.FACTS}
    tables.convert(folder / "pre", folder / "train", **least)
    return {path.stem: pd.read_csv(path) for path in (folder / "train/alexnet").glob("*.csv")}


def test_from_raw_recordings_to_training_data(tmp_path):
    recording(tmp_path / "raw/alexnet/trt_profiling")
    by_kind = converted(tmp_path, "36 of 36 windows")
    for kind, watts in (("convolutional", 6.0), ("pooling", 4.0), ("dense", 8.0)):
        table = by_kind[kind]
        assert tuple(table) == (*tables.ORIGINAL[kind], *tables.OURS), "the original's columns come first"
        assert table["power"].tolist() == pytest.approx([watts], rel=0.02)
        assert table["runtime"].tolist() == pytest.approx([100.0])
        assert kind == "dense" or table[["kernel_0", "kernel_1"]].to_numpy().tolist() == [[3, 3]]


@pytest.mark.parametrize("missing_s, missing, words", [
    (0, [recordings.POWER], "no power: power_log.log or idling_power.json is missing"),
    (0.95, [], "27 of 36 windows hold a power sample, 9 lie outside of the log")])
def test_without_enough_of_a_power_log_runtime_is_there_and_power_is_empty(tmp_path, missing_s, missing, words):
    recording(tmp_path / "raw/alexnet", missing_s=missing_s)
    for name in missing:
        (tmp_path / "raw/alexnet" / name).unlink()
    table = converted(tmp_path, words)["dense"]
    assert table["power"].isna().all() and table["runtime"].notna().all()


def test_the_originals_folders_keep_their_watts_and_a_log_that_none_uses_is_refused(tmp_path):
    raw, folder = tmp_path / "raw", tmp_path / "raw/alexnet/trt_profiling"
    recording(folder)
    (folder / recordings.POWER).rename(raw / "alexnet/alexnet_power_log.log")
    (folder / recordings.IDLE).rename(raw / recordings.IDLE)
    for name in ("60_seconds_idling_power_log.log", "idling_power_log_20240131-120000.log"):
        (raw / name).touch()
    assert converted(tmp_path, "36 of 36 windows")["dense"]["power"].tolist() == pytest.approx([8.0], rel=0.02)
    tables.convert(tmp_path / "pre", tmp_path / "more", least_samples=13)
    assert pd.read_csv(tmp_path / "more/alexnet/dense.csv")["power"].isna().all(), "there are 12 cycles"
    recording(raw / ".ipynb_checkpoints/vgg16")
    (raw / "alexnet/alexnet_power_log.log").rename(tmp_path / "elsewhere.log")
    (raw / "alexnet/alexnet_power_log.log").symlink_to(tmp_path / "elsewhere.log")
    assert converted(tmp_path, "36 of 36 windows")["dense"]["power"].tolist() == pytest.approx([8.0], rel=0.02)
    (raw / "alexnet/alexnet_power_log.log").rename(raw / "power_log.log")
    with refused(f"{raw / 'power_log.log'} is used by no recording"):
        recordings.preprocess(raw, tmp_path / "pre")


def test_trtexecs_files_are_read_under_their_own_names(tmp_path):
    for stem in ("alexnet_fp16", "vgg16"):
        written(tmp_path / "raw" / f"{stem}.graph.json", dense())
        (tmp_path / "raw" / f"{stem}.profile.json").write_text('{"fc": [0.5]}')
    assert list(recordings.find_recordings(tmp_path / "raw")) == ["alexnet_fp16", "vgg16"]
    assert all(recordings.preprocess(tmp_path / "raw", tmp_path / "pre").values()), "there is no power"


TRTEXEC = """#!/bin/sh
for word; do case $word in --exportLayerInfo=*) info=${word#*=} ;; --exportProfile=*) profile=${word#*=} ;; esac; done
cp "$(dirname "$0")/info" "$info"; cp "$(dirname "$0")/profile" "$profile"; echo "$@"
"""


def test_the_script_profiles_an_engine_with_trtexec(tmp_path):
    written(tmp_path / "info", convolution())
    (tmp_path / "profile").write_text(json.dumps([{"count": 2}, {"name": "conv", "medianMs": 0.25}]))
    (tmp_path / "my net.onnx").touch()

    def script(*words, path=tmp_path):
        return subprocess.run(["sh", paths.PARAMS / "profile_engine.sh", *words], cwd=tmp_path, capture_output=True, text=True,
                              check=False, env={"PATH": f"{path}:/usr/bin:/bin"})

    assert "trtexec is not on the path" in script("my net.onnx").stderr
    (tmp_path / "trtexec").write_text(TRTEXEC)
    (tmp_path / "trtexec").chmod(0o755)
    assert "there is no file 'x.onnx'" in script("x.onnx").stderr
    done = script("my net.onnx", "raw", "--fp16")
    assert done.returncode == 0 and "--onnx=my net.onnx" in done.stdout and "--fp16" in done.stdout
    assert "is there already" in script("my net.onnx", "raw").stderr
    (place,) = recordings.preprocess(tmp_path / "raw", tmp_path / "pre")
    assert place.name == "my net" and pd.read_csv(place / recordings.LAYERWISE)["layer_run_time"].tolist() == [0.25]


@pytest.fixture
def profiler(monkeypatch):
    """Return params/profile_layers.py on a stand-in for TensorRT: two convolutions, a pooling, a dense layer."""
    spec = importlib.util.spec_from_file_location("profile_layers", paths.PARAMS / "profile_layers.py")
    program, clock = importlib.util.module_from_spec(spec), [datetime(2026, 11, 28, 12)]
    spec.loader.exec_module(program)
    layers = [convolution(), convolution("conv2", Stride=[1, 1]), pooling(), dense()]
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.package(layers, [20.0, 40.0, 10.0, 30.0], clock))
    monkeypatch.setattr(program.ctypes, "CDLL", fake_tensorrt.cuda)
    monkeypatch.setattr(program, "now", lambda: clock[-1])
    return program


def test_layers_that_are_profiled_with_time_stamps_have_their_watts(tmp_path, profiler):
    folder, watts = tmp_path / "raw/net", {"conv": 6.0, "conv2": 3.0, "pool": 4.0, "fc": 8.0}
    (tmp_path / "net.engine").write_bytes(b"engine")
    words = [str(tmp_path / "net.engine"), str(folder), "--runs", "12", "--warmup", "2"]
    assert profiler.main(words) == 0
    log = json.loads((folder / recordings.LATENCY).read_text())
    assert {name: len(runs) for name, runs in log.items()} == {"conv": 12, "conv2": 12, "pool": 12, "fc": 12}
    assert log["conv"][0] == [20.0, "20261128-12:00:00.235000"], "run 3"
    assert log["fc"][0][1] == "20261128-12:00:00.315000"
    ends_s = np.array([power_log.seconds(stamp) for _, stamp in log["fc"]])
    at_s = np.arange(ends_s[0] - 0.2, ends_s[-1] + 0.1, 0.001) + 0.0003
    since_s = at_s - (ends_s[np.minimum(np.searchsorted(ends_s, at_s), len(ends_s) - 1)] - 0.1)
    layer = np.searchsorted([0.0, 0.02, 0.06, 0.07, 0.1], since_s)  # 0: before the first layer, 5: after the last one
    write_power_log(PowerLog(at_s, np.array([2.0, 8.0, 5.0, 6.0, 10.0, 2.0])[layer]), folder / recordings.POWER)
    (folder / recordings.IDLE).write_text(json.dumps({"timestamp": "x", "avg_idle_power": 2_000_000}))
    output_of("layer-power", "dataset", tmp_path / "raw", "--output", tmp_path)
    tables = pd.concat(map(pd.read_csv, (tmp_path / "training_data/net").glob("*.csv"))).set_index("layer_name")
    assert tables["power"].to_dict() == pytest.approx(watts, rel=0.02)
    assert tables["runtime"].to_dict() == {"conv": 20.0, "conv2": 40.0, "pool": 10.0, "fc": 30.0}
    assert profiler.main(words) == 2, "nothing is overwritten"


@pytest.mark.parametrize("engine_bytes, words, told", [
    (None, [], "cannot be read"), (b"other", [], "is no engine of this TensorRT (10.3.0)"),
    (b"engine", ["--shape", "x=1x3"], "no input x; its inputs are: input"),
    (b"engine", ["--shape", "input=1x3x16x16"], "input does not take the shape 1x3x16x16")])
def test_the_profiler_of_layers_says_what_is_wrong_in_one_line(tmp_path, profiler, capsys, engine_bytes, words, told):
    if engine_bytes:
        (tmp_path / "e").write_bytes(engine_bytes)
    assert profiler.main([str(tmp_path / "e"), str(tmp_path / "out"), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line and not (tmp_path / "out").exists()


def test_folders_without_recordings_or_with_two_of_one_name_are_refused(tmp_path):
    with refused("holds no recording"):
        recordings.find_recordings(tmp_path)
    with refused("layer-power preprocess"):
        tables.convert(tmp_path, tmp_path / "train")
    for name in ("a/net", "a-net"):
        written(tmp_path / "raw" / name / recordings.ENGINE, dense())
    with refused("would both be called 'a-net'"):
        recordings.find_recordings(tmp_path / "raw")
