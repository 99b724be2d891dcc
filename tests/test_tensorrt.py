"""TensorRT engines: what their files say, exact work, power brought to layers, and the folders of training data."""

import importlib.util
import json
import math
import subprocess
import sys
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import paths
from lib.measure.energy import power_log
from lib.measure.energy.power_log import PowerLog
from lib.tensorrt import engine
from lib.tensorrt.recordings import dataset, mapping
from tests import SHARED, called, fake_tensorrt, output_of, refusal, refused

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


def written(path, *layers):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"Layers": layers, "Bindings": ["x", "y"]}))
    return path


REFORMAT = {"Name": "r", "LayerType": "Reformat"}


def test_work_and_bytes_of_layers_are_exact(tmp_path):
    read = engine.read(written(tmp_path / "e.json", convolution(), pooling(), dense(), REFORMAT))
    macs = 4 * 8 * 8 * (8 // 2) * 9
    reads = 4 * 4 * 4 * 9  # the window is WindowSize, not the whole image
    assert [(layer.kind, layer.macs, layer.flops) for layer in read.layers] == [
        ("convolutional", macs, 2 * macs), ("pooling", reads, reads), ("dense", 5120, 2 * 5120), ("other", 0, 0)]
    assert read.layers[0].bytes == 2 * (8 * 16 * 16 + 4 * 8 * 8 + 144 + 4)


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
        engine.read(written(tmp_path / "e.json", *layers))
    assert "{" not in str(wrong.value), "no dictionary is quoted"
    (tmp_path / "e.json").write_text(json.dumps(layers))
    with refused("expected a mapping"):
        engine.read(tmp_path / "e.json")


def test_the_type_of_its_parameters_decides_the_kind_of_a_layer_of_another_type(tmp_path):
    pool = {"LayerType": "CudaPooling", "ParameterType": "Pooling"}
    changed = [pooling("a", **pool), convolution("b", LayerType="CudaDepthwiseConvolution"), pooling("c", **pool, Stride=[]),
               convolution("d", LayerType="CaskDeconvolutionV2"), {**REFORMAT, "Outputs": [tensor(-1, 8)]}]
    read = engine.read(written(tmp_path / "e.json", *changed))
    assert [layer.kind for layer in read.layers] == ["pooling", "convolutional", "other", "other", "other"]
    assert read.layers[0].flops == 4 * 4 * 4 * 9 and math.isnan(read.layers[4].bytes)


def with_profiles(path):
    """Write an engine of two optimisation profiles; layers of the second are of batch 8."""
    second = " [profile 1]"
    return written(path, convolution(), dense(), convolution(f"conv{second}", Inputs=[tensor(8, 8, 16, 16)],
                                                             Outputs=[tensor(8, 4, 8, 8)]), {**dense(), "Name": f"fc{second}"})


def test_the_layers_of_one_optimisation_profile_are_read(tmp_path):
    path = with_profiles(tmp_path / "raw/net/net.graph.json")
    first, second = engine.read(path), engine.read(path, 1)
    assert [layer.name for layer in first.layers] == ["conv", "fc"]
    assert [layer.name for layer in second.layers] == ["conv [profile 1]", "fc [profile 1]"]
    assert second.layers[0].flops == 8 * first.layers[0].flops and "profile 0 alone, of 0, 1" in first.notes[0]
    with refused("no optimisation profile 2; there are: 0, 1"):
        engine.read(path, 2)
    latency = path.with_name("net.profile.json")
    latency.write_text(json.dumps([{"name": layer.name, "medianMs": 0.5} for layer in second.layers]))
    with refused(r"the latencies are of optimisation profile 1 \(--profile\)"):
        dataset.preprocess(tmp_path / "raw", tmp_path / "pre")
    output_of("layer-power", "dataset", tmp_path / "raw", "--out", tmp_path, "--profile", 1)
    table = pd.read_csv(tmp_path / "training_data/net/convolutional.csv")
    assert table[["layer_name", "batch_size", "runtime"]].to_numpy().tolist() == [["conv [profile 1]", 8, 0.5]]
    predict = "layer-power", "predict", "--trt-engine-path", path, "--result-csv-path", tmp_path / "new/out.csv"
    for profile, batch in ((0, 1), (1, 8)):
        status, out, told = called(*predict, "--profile", profile)
        assert status == 0 and "2 of 2 layers predicted" in out and f"profile {profile} alone" in told
        assert (f"{tmp_path / 'new/out.csv'} replaces an earlier table" in told) == (batch == 8)
    (tmp_path / "link.csv").symlink_to(tmp_path / "new/out.csv")
    for target, what in ((path, "is the engine"), (tmp_path, "is a folder"), (tmp_path / "link.csv", "is a link")):
        assert what in refusal(*predict[:-1], target)


@pytest.mark.parametrize("content, runs", [
    ([{"count": 9}, *({"name": name, "medianMs": ms} for name, ms in (("conv", 1.0), ("r", 9.0), ("conv", 2.0), ("fc", 3.0)))],
     {"conv": [1.0], "conv #2": [2.0], "fc": [3.0], "r": [9.0]}),
    ({"conv": [1.0, 2.0, 1.5, 2.5], "fc": [3.0, 3.5]}, {"conv": [1.0, 1.5], "conv #2": [2.0, 2.5], "fc": [3.0, 3.5]}),
    ({"conv": [1.0, 2.0]}, {"conv": [1.0], "conv #2": [2.0]}),
    ({"conv": [1.0, 2.0], "fc": [3.0, 3.5]}, {"fc": [3.0, 3.5]}),  # one run per pass: whose is it?
    ({"conv": [1.0, 2.0, 3.0], "fc": [3.0, 3.5]}, {"fc": [3.0, 3.5]})])
def test_a_name_that_layers_share_is_numbered_in_engine_and_latencies_alike(tmp_path, content, runs):
    odd = {**REFORMAT, "Name": "r #2"}
    layers = convolution(), odd, REFORMAT, convolution(Stride=[1, 1]), dense(), REFORMAT
    read = engine.read(written(tmp_path / "e.json", *layers))
    assert [layer.name for layer in read.layers] == ["conv", "r #2", "r", "conv #2", "fc", "r #3"]
    (tmp_path / "l.json").write_text(json.dumps(content))
    times = mapping.read_times(tmp_path / "l.json", read)
    assert times.groupby("layer_name")["layer_run_time"].apply(list).to_dict() == runs
    assert times["cycle"].max() == max(map(len, runs.values()))
    notes = mapping.layerwise(read, times)[1]
    assert any("not one per layer" in note and "conv" in note for note in notes) == ("conv" not in runs)


def test_no_layer_gets_a_name_that_another_one_has(tmp_path):
    (tmp_path / "e.json").write_text(json.dumps({
        "Layers": [convolution(), convolution(), convolution("conv #2")], "Profile": 7, "path": "x"}))
    read = engine.read(tmp_path / "e.json")
    assert [layer.name for layer in read.layers] == ["conv", "conv #3", "conv #2"]
    assert (read.path, read.profile) == (tmp_path / "e.json", 0), "other entries of the file are not taken for these"
    (tmp_path / "l.json").write_text(json.dumps({"conv": [1.0, 2.0], "conv #2": [3.0]}))
    times = mapping.read_times(tmp_path / "l.json", read)
    assert dict(zip(times["layer_name"], times["layer_run_time"], strict=True)) == {"conv": 1.0, "conv #3": 2.0, "conv #2": 3.0}


def test_formats_that_are_not_known_are_counted_and_named(tmp_path):
    odd = convolution(Inputs=[tensor(1, 8, 16, 16, kind="Row major linear NF4")], Bias={"Type": "Odd", "Count": 4})
    nameless = pooling("p", Outputs=[{"Name": "t", "Dimensions": [1, 4, 4, 4]}])
    read = engine.read(written(tmp_path / "e.json", odd, convolution("b"), dense(), nameless))
    assert [layer.unknown_formats for layer in read.layers] == [("Row major linear NF4", "Odd"), (), (), ("no format",)]
    assert [math.isnan(layer.bytes) for layer in read.layers] == [True, False, False, True]
    (note,) = read.notes
    assert note.startswith("2 layers have unknown formats, and so no bytes: Row major linear NF4, Odd, no format;")


@pytest.mark.parametrize("path, gmacs", [
    (EDGE / "model_training/sample_data/resnet18_trt_engine_info.json", 1.814073344),
    (EDGE / "model_training/sample_data/vgg16_trt_engine_info.json", 15.470264320),
    (paths.REFERENCE / "amd-epyc-2c-ea2da3d4/engines/vgg16_trt_engine_info.json", 15.470264320)])
def test_multiply_adds_of_sample_engines_are_those_of_the_networks(path, gmacs):
    """The numbers are those of torchvision's ResNet-18 and VGG-16 at 224 x 224, counted by hand from their shapes."""
    if path.is_relative_to(EDGE) and not path.is_file():
        pytest.skip(f"the published engine files are not here: {path}")
    read = engine.read(path)
    assert sum(layer.macs for layer in read.layers if layer.kind in ("convolutional", "dense")) == round(gmacs * 1e9)
    assert all(math.isfinite(layer.bytes) for layer in read.layers if layer.kind != "other")


def test_latencies_with_and_without_time_stamps(tmp_path):
    path, read = tmp_path / "l.json", engine.read(written(tmp_path / "e.json", REFORMAT))
    path.write_text(json.dumps({"a": [0.5, 1.5], "b": [[0.25, "20241212-10:00:00.500000"]]}))
    times = mapping.read_times(path, read)
    assert times["layer_run_time"].tolist() == [0.5, 1.5, 0.25] and times["end_s"].isna().tolist() == [True, True, False]
    assert times["end_s"].iloc[2] % 1 == pytest.approx(0.5)
    path.write_text(json.dumps([{"count": 100}, {"name": "a", "timeMs": 2.0, "averageMs": 0.02, "percentage": 50.0}]))
    assert mapping.read_times(path, read)["layer_run_time"].tolist() == [0.02], "trtexec 8.2 and older have no median"


@pytest.mark.parametrize("content, words", [
    ("{}", "no latencies"), ('{"a": ["x"]}', "no latencies"), ('{"a": [[1, "yesterday"]]}', "yesterday"),
    ('{"a": [-1]}', "no latencies"), ('{"a": [NaN]}', "no latencies|not readable"),
    ('[{"name": "a", "timeMs": 1.0}]', "a.0.0 = None"), ('["a"]', "has a name and medianMs or averageMs"),
    ('[{"name": "r", "medianMs": 1.0}, {"name": "b", "medianMs": 1.0}]', "'r' 1 times, the engine 2 times.*profile_layers"),
    ('[{"name": "b", "medianMs": 1.0}, {"name": "b", "medianMs": 1.0}]', "'b' 2 times, the engine 1 times")])
def test_what_is_no_latency_is_refused(tmp_path, content, words):
    (tmp_path / "l.json").write_text(content)
    with refused(words):
        mapping.read_times(tmp_path / "l.json", engine.read(written(tmp_path / "e.json", REFORMAT, REFORMAT, pooling("b"))))


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
    mean_w, count = mapping.window_means(start_s, end_s, PowerLog(at_s, power_w))
    np.testing.assert_array_equal(count, inside.sum(axis=1))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(mean_w, inside @ power_w / inside.sum(axis=1))


@pytest.mark.parametrize("name, end_s, words", [
    ("pool", 100.0, "does not overlap"), ("pool", np.nan, "no time stamps"), ("other", 1.0, "not of one engine")])
def test_power_of_another_time_or_of_another_engine_is_brought_to_no_layer(tmp_path, name, end_s, words):
    log = PowerLog(np.array([0.0, 1.0]), np.full(2, 5.0))
    times = pd.DataFrame({"layer_name": [name], "cycle": 1, "layer_run_time": 1.0, "start_s": end_s - 1e-3, "end_s": end_s})
    with refused(words):
        mapping.layerwise(engine.read(written(tmp_path / "e.json", pooling())), times, log, 1.0)


def recording(folder, missing_s=0.0):
    """Write a raw recording of twelve cycles of three layers that draw 6, 4 and 8 W over 2 W idle, 0.1 s each."""
    layers = [convolution(), pooling(), dense()]
    written(folder / dataset.ENGINE, *layers, REFORMAT)
    ends_s = 1000 + 0.1 * np.arange(1, 37).reshape(12, 3)
    times = {layer["Name"]: [[100.0, stamped(end_s)] for end_s in ends_s[:, number]] for number, layer in enumerate(layers)}
    (folder / dataset.LATENCY).write_text(json.dumps(dict(reversed(times.items()))))
    at_s = np.arange(1000.0005, ends_s.max() - missing_s, 0.002)
    power_w = np.array([8.0, 6.0, 10.0])[((at_s - 1000) / 0.1).astype(int) % 3]
    power_log.write(PowerLog(at_s, power_w), folder / dataset.POWER)
    (folder / dataset.IDLE).write_text(json.dumps({"timestamp": "x", "avg_idle_power": 2_000_000}))


def converted(folder, words, **least):
    """Bring the one raw recording there to training data, with a note of these words; return its layers of a kind by kind."""
    (done,) = dataset.preprocess(folder / "raw", folder / "pre")
    assert any(words in note for note in done.notes)
    assert [path.name for path in done.written] == [dataset.LAYERWISE, dataset.ENGINE]
    dataset.convert(folder / "pre", folder / "train", **least)
    return {path.stem: pd.read_csv(path) for path in (folder / "train/alexnet").glob("*.csv")}


def test_from_raw_recordings_to_training_data(tmp_path):
    recording(tmp_path / "raw/alexnet/trt_profiling")
    tables = converted(tmp_path, "36 of 36 windows")
    for kind, watts in (("convolutional", 6.0), ("pooling", 4.0), ("dense", 8.0)):
        table = tables[kind]
        assert tuple(table) == (*dataset.ORIGINAL[kind], *dataset.OURS), "the original's columns come first"
        assert table["power"].tolist() == pytest.approx([watts], rel=0.02)
        assert table["runtime"].tolist() == pytest.approx([100.0])
        assert kind == "dense" or table[["kernel_0", "kernel_1"]].to_numpy().tolist() == [[3, 3]]


@pytest.mark.parametrize("missing_s, missing, words", [
    (0, [dataset.POWER], "no power: power_log.log missing"),
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
    (folder / dataset.POWER).rename(raw / "alexnet/alexnet_power_log.log")
    (folder / dataset.IDLE).rename(raw / dataset.IDLE)
    for name in ("60_seconds_idling_power_log.log", "idling_power_log_20240131-120000.log"):
        (raw / name).touch()
    assert converted(tmp_path, "36 of 36 windows")["dense"]["power"].tolist() == pytest.approx([8.0], rel=0.02)
    dataset.convert(tmp_path / "pre", tmp_path / "more", least_samples=13)
    assert pd.read_csv(tmp_path / "more/alexnet/dense.csv")["power"].isna().all(), "there are 12 cycles"
    (raw / "alexnet/alexnet_power_log.log").rename(raw / "power_log.log")
    with refused(f"{raw / 'power_log.log'} is used by no recording"):
        dataset.preprocess(raw, tmp_path / "pre")


def test_trtexecs_files_are_read_under_their_own_names(tmp_path):
    for stem in ("alexnet_fp16", "vgg16"):
        written(tmp_path / "raw" / f"{stem}.graph.json", dense())
        (tmp_path / "raw" / f"{stem}.profile.json").write_text('{"fc": [0.5]}')
    assert [done.model for done in dataset.preprocess(tmp_path / "raw", tmp_path / "pre")] == ["alexnet_fp16", "vgg16"]


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
    (made,) = dataset.preprocess(tmp_path / "raw", tmp_path / "pre")
    assert made.model == "my net" and pd.read_csv(made.written[0])["layer_run_time"].tolist() == [0.25]


@pytest.fixture
def profiler(monkeypatch):
    """Return params/profile_layers.py on a stand-in for TensorRT: two convolutions of one name, a pooling, a dense layer."""
    spec = importlib.util.spec_from_file_location("profile_layers", paths.PARAMS / "profile_layers.py")
    program, clock = importlib.util.module_from_spec(spec), [datetime(2026, 11, 28, 12)]
    spec.loader.exec_module(program)
    layers = [convolution(), convolution(Stride=[1, 1]), pooling(), dense()]
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.package(layers, [20.0, 40.0, 10.0, 30.0], clock))
    monkeypatch.setattr(program.ctypes, "CDLL", fake_tensorrt.cuda)
    monkeypatch.setattr(program, "now", lambda: clock[-1])
    return program


def test_layers_that_are_profiled_with_time_stamps_have_their_watts(tmp_path, profiler):
    folder, watts = tmp_path / "raw/net", {"conv": 6.0, "conv #2": 3.0, "pool": 4.0, "fc": 8.0}
    (tmp_path / "net.engine").write_bytes(b"engine")
    words = [str(tmp_path / "net.engine"), str(folder), "--runs", "12", "--warmup", "2"]
    assert profiler.main(words) == 0
    log = json.loads((folder / dataset.LATENCY).read_text())
    assert {name: len(runs) for name, runs in log.items()} == {"conv": 24, "pool": 12, "fc": 12}
    assert log["conv"][:2] == [[20.0, "20261128-12:00:00.235000"], [40.0, "20261128-12:00:00.275000"]], "run 3"
    assert log["fc"][0][1] == "20261128-12:00:00.315000"
    ends_s = np.array([power_log.seconds(stamp) for _, stamp in log["fc"]])
    at_s = np.arange(ends_s[0] - 0.2, ends_s[-1] + 0.1, 0.001) + 0.0003
    since_s = at_s - (ends_s[np.minimum(np.searchsorted(ends_s, at_s), len(ends_s) - 1)] - 0.1)
    layer = np.searchsorted([0.0, 0.02, 0.06, 0.07, 0.1], since_s)  # 0: before the first layer, 5: after the last one
    power_log.write(PowerLog(at_s, np.array([2.0, 8.0, 5.0, 6.0, 10.0, 2.0])[layer]), folder / dataset.POWER)
    (folder / dataset.IDLE).write_text(json.dumps({"timestamp": "x", "avg_idle_power": 2_000_000}))
    output_of("layer-power", "dataset", tmp_path / "raw", "--out", tmp_path)
    tables = pd.concat(map(pd.read_csv, (tmp_path / "training_data/net").glob("*.csv"))).set_index("layer_name")
    assert tables["power"].to_dict() == pytest.approx(watts, rel=0.02)
    assert tables["runtime"].to_dict() == {"conv": 20.0, "conv #2": 40.0, "pool": 10.0, "fc": 30.0}
    assert profiler.main(words) == 2, "nothing is overwritten"


@pytest.mark.parametrize("engine_bytes, words, told", [
    (None, [], "cannot be read"), (b"other", [], "is no engine of this TensorRT (10.3.0)"),
    (b"engine", ["--profile", "1"], "no optimisation profile 1; the engine has 1, and the first is 0"),
    (b"engine", ["--shape", "x=1x3"], "no input x; its inputs are: input"),
    (b"engine", ["--shape", "input=1x3x16x16"], "input does not take the shape 1x3x16x16")])
def test_the_profiler_of_layers_says_what_is_wrong_in_one_line(tmp_path, profiler, capsys, engine_bytes, words, told):
    if engine_bytes:
        (tmp_path / "e").write_bytes(engine_bytes)
    assert profiler.main([str(tmp_path / "e"), str(tmp_path / "out"), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line and not (tmp_path / "out").exists()


def test_an_input_that_stays_zero_is_named(profiler, capsys):
    given = SimpleNamespace(get_tensor_dtype=lambda name: "DataType.BF16")
    profiler.fill(sys.modules["tensorrt"], None, given, "tokens", (1, 8), 0)
    assert capsys.readouterr().err == (
        "input tokens is 0 in every run: random numbers are made for FP32 and FP16, not for DataType.BF16\n")


def test_folders_without_recordings_or_with_two_of_one_name_are_refused(tmp_path):
    with refused("holds no recording"):
        dataset.preprocess(tmp_path, tmp_path / "pre")
    with refused("layer-power preprocess"):
        dataset.convert(tmp_path, tmp_path / "train")
    for name in ("a/net", "a-net"):
        written(tmp_path / "raw" / name / dataset.ENGINE, dense())
    with refused("would both be called 'a-net'"):
        dataset.models(tmp_path / "raw")
