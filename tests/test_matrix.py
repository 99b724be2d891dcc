"""The run matrix: its cells, resuming, failures as rows, and throughput that is averaged over nothing but repeats."""

import functools
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pandas as pd
import pytest
import torch

from lib import locks, paths, store, tables
from lib.config import definitions
from lib.config.base import build
from lib.measure import archive, machine
from lib.measure.training import environment, matrix, matrix_tables, profile_run
from lib.measure.worker import WorkerLostError
from tests import called, cut_training, output_of, refused, test_nsight

pytestmark = pytest.mark.slow

SHORT = {"iters": 2, "warmup_iters": 2, "warmup_s": 0, "budget_s": 30, "data_source": "synthetic"}
CPU = {"models": ["simple_cnn", "resnet18"], "batch_sizes": [8], "precisions": ["fp32"], "options": SHORT}
CELL = "simple_cnn/b8/fp32"


def small(**more):
    values = {"environment": "box", "dataset": "pathmnist", "size": 28, "repeats": 2, "options": {"profile": False},
              "grids": {"cpu": CPU}, **more}
    return build(definitions.Matrix, values, "here")


@functools.cache
def reference_run():
    return archive.runs("replay").iloc[0].to_dict()


def run_row(**more):
    """Return a row of ``runs`` like a reference one."""
    return {**reference_run(), "verdict": "stable", **more}


def pretend(cell_params, workload, **more):
    """Write a run as a measurement would, without measuring."""
    run_id = store.fresh_name("run_x", lambda name: (paths.RUNS / f"{name}.csv").exists())
    row = run_row(run_id=run_id, label=cell_params.label, arch=workload.model, hardware_id=machine.ids()["hardware_id"],
                  images_per_sec=100.0, **more)
    store.write(pd.DataFrame([row], columns=tables.columns("runs")), paths.RUNS / f"{run_id}.csv", "runs")
    return pd.Series(row)


def test_cells_of_the_default_matrix():
    plan = definitions.load_matrix()
    found = matrix.cells(plan, "cpu")
    assert [cell.name for cell in found] == [
        f"{model}/b{batch}/fp32{optimizer}" for model in ("resnet50", "vgg16", "mobilenet_v2") for batch in (16, 32, 64)
        for optimizer in ("", "/sgd")], "the CPU has every cell that it had in the original, and each with both optimizers"
    cell = found[0]
    assert cell.workload.id == "pathmnist-224" and cell.params.batch_size == 16
    assert cell.label == f"{machine.name()}/resnet50/b16/fp32" and cell.params.optimizer == "adam"
    assert all(cell.params.random_crop for cell in found), "as in the original, unless --no-augment is given"
    one, = matrix.cells(plan, "cpu", ["vgg16/b16/fp32"], {"iters": "3", "random_crop": "false"})
    assert one.name == "vgg16/b16/fp32" and one.params.iters == 3 and not one.params.random_crop


@pytest.mark.parametrize("device, instructions, precision", [
    ("cpu", ("avx512_bf16",), "bf16"), ("cpu", (), "fp32"), ("cuda:0", (), "fp16")])
def test_amp_is_what_the_device_computes_in_and_no_cell_is_there_twice(monkeypatch, device, instructions, precision):
    monkeypatch.setattr(machine, "instructions", lambda dtype: instructions)
    monkeypatch.setattr(machine, "device", torch.device)
    grid = {**CPU, "models": ["simple_cnn"], "precisions": ["fp32", "amp"]}
    found = matrix.cells(small(grids={device.partition(":")[0]: grid}), device)
    assert [cell.params.precision for cell in found] == list(dict.fromkeys(["fp32", precision]))


@pytest.mark.parametrize("ask, words", [
    ({"wanted": ["vgg19/b1/fp32"]}, "no cell 'vgg19/b1/fp32'; there are: simple_cnn/b8/fp32"),
    ({"options": {"sauce": 1}}, "unknown name 'sauce'"), ({"options": {"batch_size": 3}}, "batch_size is no option")])
def test_wrong_questions(ask, words):
    with refused(words):
        matrix.cells(small(), **{"device": "cpu", **ask})


def test_a_cell_that_fails_is_a_row_and_the_rest_goes_on_and_resumes(home, monkeypatch):
    found, told = matrix.cells(small(), "cpu"), []

    def measure(cell_params, workload):
        if workload.model == "resnet18":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore words")
        return pretend(cell_params, workload)

    monkeypatch.setattr(matrix, "in_a_process", measure)
    rows = matrix.run_matrix(found, 2, report=told.append)
    assert sorted(zip(rows["status"], rows["reason"], strict=True)) == [
        ("failed", "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"), ("ok", ""), ("ok", "")], "not tried again"
    assert len(told) == 3
    assert matrix.repeats_done(found) == {"box/simple_cnn/b8/fp32": 2, "box/resnet18/b8/fp32": 0}
    monkeypatch.setattr(matrix, "in_a_process", pretend)
    again = matrix.run_matrix(found, 2)
    assert again["arch"].tolist() == ["resnet18", "resnet18"], "only what is missing"
    monkeypatch.setattr(matrix, "in_a_process", measure)
    assert matrix.run_matrix(found, 2).empty
    assert sorted(store.read(paths.MATRIX / "cells.csv", "cells")["images_per_sec"].isna()) == [False] * 4 + [True]


def test_a_real_cell_in_a_process_of_its_own(home):
    found = matrix.cells(small(repeats=1), "cpu", [CELL])
    rows = matrix.run_matrix(found, 1)
    run = archive.runs("measure").iloc[0]
    counted = run["verdict"] != "unusable"  # neighbours may disturb it
    assert rows["reason"].item() == ("" if counted else f"unusable, so it does not count: {run['reason']}")
    assert matrix.repeats_done(found) == {found[0].label: int(counted)}
    assert run["label"] == "box/simple_cnn/b8/fp32" and run["arch"] == "simple_cnn" and run["workload_id"] == "pathmnist-28"
    assert run["batch_size"] == 8 and run["measured_iters"] == 2


def test_a_device_that_others_hold_is_no_failed_cell(home, monkeypatch):
    held = locks.HeldError("device cpu is being measured by another process")
    monkeypatch.setattr(matrix, "in_a_process", Mock(side_effect=held))
    with refused("device cpu is being measured"):
        matrix.run_matrix(matrix.cells(small(), "cpu"), 1)
    assert not (paths.MATRIX / "cells.csv").exists()


@pytest.mark.parametrize("measure, status, reason", [
    (functools.partial(pretend, verdict="unusable", reason="others took 1.0 cores"), "ok",
     "unusable, so it does not count: others took 1.0 cores"),
    (Mock(side_effect=WorkerLostError("the worker was killed")), "failed", "the worker was killed")])
def test_what_does_not_count_has_a_reason(home, monkeypatch, measure, status, reason):
    found = matrix.cells(small(), "cpu", [CELL])
    monkeypatch.setattr(matrix, "in_a_process", measure)
    row = matrix.run_matrix(found, 1).squeeze()
    assert row["status"] == status and row["reason"] == reason
    assert matrix.repeats_done(found) == {found[0].label: 0}


def test_throughput_averages_repeats_and_nothing_else_and_each_environment_has_its_table(home):
    runs = pd.concat([environment_of("lab", {"net": [100.0, 110.0, 120.0]}),
                      environment_of("lab", {"net": [999.0]}, hardware_id="other"),
                      environment_of("lab", {"net": [50.0]}, verdict="unusable"),
                      environment_of("cloud", {"net": [50.0]}, channels_last=True, num_workers=8)])
    table = matrix.throughput(runs)
    assert table.attrs["unusable"] == 1
    assert sorted(table["n"]) == [1, 1, 3]
    assert table.loc[table["n"] == 3, ["mean", "std", "median"]].to_numpy().tolist() == [[110.0, 10.0, 110.0]]
    assert [path.name for path in matrix_tables.write(runs)] == [
        "throughput_cloud.csv", "throughput_cloud.md", "throughput_lab.csv", "throughput_lab.md"]
    lab, cloud = (store.read(paths.MATRIX / f"throughput_{name}.csv", "matrix") for name in ("lab", "cloud"))
    assert lab.loc[lab["n"] == 3, ["images_per_sec", "std", "low", "high"]].to_numpy().tolist() == [[110.0, 10.0, 100.0, 120.0]]
    assert cloud["settings"].tolist() == ["synthetic channels_last=True num_workers=8"] and cloud["std"].isna().all()
    text = (paths.MATRIX / "throughput_lab.md").read_text()
    assert text.startswith("# Throughput of lab, images/s\n") and "| net | cpu | 8 | fp32 | synthetic | 3 | 110 |" in text


@pytest.fixture
def verb(home, monkeypatch):
    """Return a function that calls the verb for a plan, and gives its exit status, stdout and stderr."""
    def call(*words, plan=small, device="cpu"):
        monkeypatch.setattr(definitions, "load_matrix", plan)
        return called("measure", "matrix", "--device", device, *words)

    monkeypatch.setattr(matrix, "in_a_process", pretend)
    return call


def test_the_verb_measures_what_is_missing_and_keeps_a_record_of_each_call(verb):
    noted = functools.partial(small, notes="of the file")
    status, shown, _ = verb("--dry-run")
    assert status == 0 and shown.splitlines()[1] == "box/resnet18/b8/fp32: 0 of 2 runs are there"
    status, shown, _ = verb("--repeats", "1", "-p", "iters", "3", plan=noted)
    assert status == 0 and "| box |" in shown
    assert str(paths.MATRIX / "throughput_box.md") in shown
    assert verb("--notes", "of the call")[0] == 0
    assert verb("--notes", "of a call that measures nothing")[0] == 0
    assert verb("--cells", "none")[0] == 2
    first, second = store.read_json(environment.path_of("box"))
    assert first["notes"] == "of the file" and second["notes"] == "of the call"
    assert {"hardware", "software", "hardware_id", "software_id", "commit", "started_utc", "ended_utc"} <= set(second)


def environment_of(name, rates, **more):
    runs = [run_row(run_id=f"{name}{model}{n}", label=f"{name}/{model}/b8/fp32", arch=model, batch_size=8, precision="fp32",
                    images_per_sec=rate, workload_id="pathmnist-28", **more)
            for model, several in rates.items() for n, rate in enumerate(several)]
    return pd.DataFrame(runs)


@pytest.mark.parametrize("rates, word, status", [  # the interval is over cells
    ({"net": [50.0, 52.0], "other": [9.0], "third": [0.8]}, "B is slower", 1),
    ({"net": [105.0, 99.0], "other": [10.1], "third": [0.85]}, "No difference is shown beyond 3 %", 0)])
def test_two_environments_are_compared_cell_by_cell(home, rates, word, status):
    rates_a = {"net": [100.0, 104.0], "other": [10.0], "third": [1.0], "fourth": [5.0]}
    matrix_tables.write(pd.concat([environment_of("a", rates_a), environment_of("b", rates, hardware_id="other")]))
    shown = output_of("compare", "a", paths.MATRIX / "throughput_b.csv", status=status)
    assert word in shown
    assert "3 pairs, 1 rows without a usable partner" in shown and "hardware_id differs" in shown


def test_a_cell_of_a_folder_of_images_is_trained_on_all_of_them_by_sgd(home, quiet, monkeypatch):
    folder = cut_training.pictures(home / "pets", {"train": 9, "val": 4})
    plan = small(dataset="imagefolder", folder=str(folder), options={}, grids={"cpu": {
        **CPU, "models": ["simple_cnn"], "optimizers": ["sgd"], "options": {"iters": 0, "warmup_s": 0, "budget_s": 0}}})
    cell, = matrix.cells(plan, "cpu")
    monkeypatch.setattr(matrix, "load_matrix", lambda: plan)
    assert matrix.workload_of("imagefolder-28", "simple_cnn", 8) == cell.workload, "as the roofline asks for a run's workload"
    measured = profile_run.measure(cell.params, workload=cell.workload)
    run, rows = measured.run, measured.rows[~measured.rows["warmup"]]
    assert rows.groupby("task_type")["batch_size"].sum().to_dict() == {"train": 18, "eval": 8}
    assert run["label"] == "box/simple_cnn/b8/fp32/sgd" and run["optimizer"] == "sgd" and run["data_source"] == "imagefolder"
    assert run["dataset"] == "imagefolder"


def test_the_clocks_of_a_gpu_are_what_nvml_says(monkeypatch):
    """As it answered for an RTX card: clocks, no application clocks, a power limit."""
    not_supported = Mock(side_effect=RuntimeError("Not Supported"))
    nvml = SimpleNamespace(
        NVMLError=RuntimeError, nvmlInit=Mock(), nvmlDeviceGetHandleByIndex=Mock(),
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 2520, 2: 10_501}[kind],
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: {1: 3120, 2: 10_501}[kind],
        nvmlDeviceGetApplicationsClock=not_supported, nvmlDeviceGetEnforcedPowerLimit=lambda handle: 450_000)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert environment.clocks("cuda:0") == {
        "sm_mhz": 2520, "memory_mhz": 10_501, "most_sm_mhz": 3120, "most_memory_mhz": 10_501, "limit_w": 450.0}
    nvml.nvmlInit = not_supported
    assert "Not Supported" in environment.clocks("cuda:0")["reason"]


@pytest.fixture
def counted(tmp_path, monkeypatch, verb, with_card):
    """Return a function that calls the verb with a profiler that writes a page, and keeps the words that it is called with."""
    def call(content):
        monkeypatch.setenv("PATH", test_nsight.fake_profiler(tmp_path, content))
        return verb("--cells", "resnet18/b8/fp32", "--nsight", "-p", "iters", "3", device="cuda",
                    plan=lambda: small(grids={"cuda": {**CPU, "options": {}}}))

    return call


def test_counters_of_a_cell_are_collected_and_warn_where_tensor_cores_are_not_counted(home, counted):
    page = test_nsight.page([test_nsight.kernel()], metrics=test_nsight.NEEDED)
    status, shown, _ = counted(page)
    path = paths.MATRIX / "nsight_box-resnet18-b8-fp32.csv"
    assert status == 0 and shown.splitlines()[0] == str(path) and path.is_file()
    assert "WARNING: nsight_box-resnet18-b8-fp32 lacks counters of tensor cores" in shown
    words = (home / "seen").read_text().split("\n")
    assert words[words.index("matrix"):][1:7] == ["--device", "cuda:0", "--cells", "resnet18/b8/fp32", "--repeats", "1"]
    assert words[words.index("iters") + 1] == "3"
    assert words[-2] not in ("", str(home)), "its runs are kept elsewhere, and thrown away"


def test_a_cell_without_counters_says_why(counted):
    status, shown, _ = counted("==ERROR== ERR_NVGPUCTRPERM")
    assert status == 1 and shown.count("\n") == 1
    assert shown.startswith("failed  box/resnet18/b8/fp32: no counters: error: the driver lets only administrators read the")


def test_counters_are_a_gpus(verb):
    status, shown, _ = verb("--cells", "resnet18/b8/fp32", "--nsight")
    assert status == 1 and "counts what a CUDA device does, not cpu" in shown
