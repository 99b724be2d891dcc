"""The run matrix: its cells, resuming, failures as rows, and throughput averaged over repeats."""

import functools
import os
from unittest.mock import Mock

import pandas as pd
import pytest
import torch

from lib import locks, paths, store, tables
from lib.config import definitions
from lib.config.base import build
from lib.measure import archive, machine
from lib.measure.training import environment, matrix, profile_run, throughput
from lib.measure.worker import WorkerLostError
from tests import called, cut_training, output_of, refused, written

pytestmark = pytest.mark.slow

SHORT = {"iters": 2, "warmup_iters": 2, "warmup_s": 0, "budget_s": 30, "data_source": "synthetic"}
CPU = {"models": ["simple_cnn", "resnet18"], "batch_sizes": [8], "precisions": ["fp32"],
       "options": SHORT}
CELL = "simple_cnn/b8/fp32"


def small(**more):
    values = {"environment": "box", "dataset": "pathmnist", "size": 28, "repeats": 2,
              "options": {"profile": False}, "grids": {"cpu": CPU}, **more}
    return build(definitions.Matrix, values, "here")


def run_row(**more):
    """Return a row of ``runs`` like a reference one."""
    return {**archive.runs("replay").iloc[0], "verdict": "stable", **more}


def pretend(cell_params, workload, **more):
    """Write a run as a measurement would, without measuring."""
    run_id = store.fresh_name("run_x", lambda name: (paths.RUNS / f"{name}.csv").exists())
    row = run_row(run_id=run_id, label=cell_params.label, arch=workload.model,
                  hardware_id=machine.ids()["hardware_id"], images_per_sec=100.0, **more)
    frame = pd.DataFrame([row], columns=tables.columns("runs"))
    store.write(frame, paths.RUNS / f"{run_id}.csv", "runs")
    return pd.Series(row)


def test_cells_of_the_default_matrix():
    plan = definitions.load_matrix()
    cells = matrix.cells(plan, "cpu")
    assert [cell.name for cell in cells] == [
        f"{model}/b{batch}/fp32{optimizer}" for model in ("resnet50", "vgg16", "mobilenet_v2")
        for batch in (16, 32, 64) for optimizer in ("", "/sgd")]
    assert cells[0].label == f"{machine.name()}/resnet50/b16/fp32"
    assert cells[0].workload.id == "pathmnist-224" and cells[0].params.batch_size == 16
    assert all(cell.params.random_crop for cell in cells), "as in the original"
    options = {"iters": "3", "random_crop": "false"}
    one, = matrix.cells(plan, "cpu", ["vgg16/b16/fp32"], options)
    assert one.name == "vgg16/b16/fp32"
    assert one.params.iters == 3 and not one.params.random_crop


@pytest.mark.parametrize("device, instructions, precision", [
    ("cpu", ("avx512_bf16",), "bf16"), ("cpu", (), "fp32"), ("cuda:0", (), "fp16")])
def test_amp_is_the_precision_of_the_device_and_no_cell_is_doubled(monkeypatch, device,
                                                                   instructions, precision):
    monkeypatch.setattr(machine, "instructions", lambda dtype: instructions)
    monkeypatch.setattr(machine, "device", torch.device)
    grid = {**CPU, "models": ["simple_cnn"], "precisions": ["fp32", "amp"]}
    cells = matrix.cells(small(grids={device.partition(":")[0]: grid}), device)
    assert [cell.params.precision for cell in cells] == list(dict.fromkeys(["fp32", precision]))


@pytest.mark.parametrize("ask, words", [
    ({"wanted": ["vgg19/b1/fp32"]}, "no cell 'vgg19/b1/fp32'; there are: simple_cnn/b8/fp32"),
    ({"options": {"sauce": 1}}, "unknown name 'sauce'"),
    ({"options": {"batch_size": 3}}, "batch_size is no option")])
def test_unknown_cells_and_options_are_refused(ask, words):
    with refused(words):
        matrix.cells(small(), **{"device": "cpu", **ask})


def test_a_failed_cell_is_a_row_and_the_rest_goes_on_and_resumes(home, monkeypatch):
    cells, reported = matrix.cells(small(), "cpu"), []

    def measure(cell_params, workload):
        if workload.model == "resnet18":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore words")
        return pretend(cell_params, workload)

    monkeypatch.setattr(matrix, "in_a_process", measure)
    rows = matrix.run_matrix(cells, 2, report=reported.append)
    assert sorted(zip(rows["status"], rows["reason"], strict=True)) == [
        ("failed", "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"),
        ("ok", ""), ("ok", "")], "not tried again"
    assert len(reported) == 3
    assert matrix.repeats_done(cells) == {f"box/{CELL}": 2, "box/resnet18/b8/fp32": 0}
    monkeypatch.setattr(matrix, "in_a_process", pretend)
    assert matrix.run_matrix(cells, 2)["arch"].tolist() == ["resnet18"] * 2, "what is missing"
    assert matrix.run_matrix(cells, 2).empty
    assert len(store.read(paths.MATRIX / "cells.csv", "cells")) == 5


def test_a_real_cell_in_its_own_process(home):
    cells = matrix.cells(small(repeats=1), "cpu", [CELL])
    rows = matrix.run_matrix(cells, 1)
    run = archive.runs("measure").iloc[0]
    assert rows["run_id"].item() == run["run_id"] and run["label"] == f"box/{CELL}"
    assert run["arch"] == "simple_cnn" and run["workload_id"] == "pathmnist-28"
    assert run["batch_size"] == 8 and 1 <= run["measured_iters"] <= 2


def test_a_held_device_is_an_error_and_no_failed_cell(home, monkeypatch):
    held = locks.HeldError("device cpu is being measured by another process")
    monkeypatch.setattr(matrix, "in_a_process", Mock(side_effect=held))
    with refused("device cpu is being measured"):
        matrix.run_matrix(matrix.cells(small(), "cpu"), 1)
    assert not (paths.MATRIX / "cells.csv").exists()


@pytest.mark.parametrize("measure, status, reason", [
    (functools.partial(pretend, verdict="unusable", reason="others took 1.0 cores"), "ok",
     "unusable, so it does not count: others took 1.0 cores"),
    (Mock(side_effect=WorkerLostError("the worker was killed")), "failed",
     "the worker was killed")])
def test_a_run_that_does_not_count_has_a_reason(home, monkeypatch, measure, status, reason):
    cells = matrix.cells(small(), "cpu", [CELL])
    monkeypatch.setattr(matrix, "in_a_process", measure)
    row = matrix.run_matrix(cells, 1).squeeze()
    assert row["status"] == status and row["reason"] == reason
    assert matrix.repeats_done(cells) == {cells[0].label: 0}


def environment_of(name, rates, **more):
    return pd.DataFrame([
        run_row(run_id=f"{name}{model}{number}", label=f"{name}/{model}/b8/fp32", arch=model,
                batch_size=8, precision="fp32", images_per_sec=rate, workload_id="pathmnist-28",
                **more)
        for model, repeats in rates.items() for number, rate in enumerate(repeats)])


def test_throughput_averages_repeats_alone_with_a_table_per_environment(home):
    runs = pd.concat([environment_of("lab", {"net": [100.0, 110.0, 120.0]}),
                      environment_of("lab", {"net": [999.0]}, hardware_id="other"),
                      environment_of("lab", {"net": [50.0]}, verdict="unusable"),
                      environment_of("cloud", {"net": [5.0]}, channels_last=True, num_workers=8)])
    assert throughput.throughput(runs).attrs["unusable"] == 1
    assert [path.name for path in throughput.write(runs)] == [
        "throughput_cloud.csv", "throughput_cloud.md", "throughput_lab.csv", "throughput_lab.md"]
    lab, cloud = (store.read(throughput.path_of(name), "matrix") for name in ("lab", "cloud"))
    numbers = lab.set_index("n").loc[3, ["images_per_sec", "std", "low", "high"]]
    assert numbers.tolist() == [110.0, 10.0, 100.0, 120.0] and sorted(lab["n"]) == [1, 3]
    assert cloud["settings"].tolist() == ["synthetic channels_last=True num_workers=8"]
    text = (paths.MATRIX / "throughput_lab.md").read_text()
    assert text.startswith("# Throughput of lab, images/s\n")
    assert "| net | cpu | 8 | fp32 | synthetic | 3 | 110 |" in text


@pytest.mark.parametrize("rates, word, status", [  # the interval is over cells
    ({"net": [50.0, 52.0], "other": [9.0], "third": [0.8]}, "B is slower", 1),
    ({"net": [105.0, 99.0], "other": [10.1], "third": [0.85]}, "No difference is shown", 0)])
def test_two_environments_are_compared_cell_by_cell(home, rates, word, status):
    a = {"net": [100.0, 104.0], "other": [10.0], "third": [1.0], "fourth": [5.0]}
    throughput.write(pd.concat([environment_of("a", a),
                                environment_of("b", rates, hardware_id="other")]))
    shown = output_of("compare", "a", throughput.path_of("b"), status=status)
    assert word in shown and "hardware_id differs" in shown
    assert "3 pairs, 1 rows without a usable partner" in shown


@pytest.fixture
def verb(home, monkeypatch):
    """Return a function that calls the verb for a plan; gives its exit status and output."""
    def call(*words, plan=small, device="cpu"):
        monkeypatch.setattr(definitions, "load_matrix", plan)
        return called("measure", "matrix", "--device", device, *words)

    monkeypatch.setattr(matrix, "in_a_process", pretend)
    return call


def test_the_verb_measures_what_is_missing_and_records_each_call(home, monkeypatch, verb):
    status, shown, _ = verb("--dry-run")
    assert status == 0
    assert shown.splitlines()[1] == "box/resnet18/b8/fp32: 0 of 2 runs are there"
    noted = functools.partial(small, notes="of the file")
    smi = written(home, {"nvidia-smi": "#!/bin/sh\necho SM: 2520 MHz\n"}) / "nvidia-smi"
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    status, shown, _ = verb("--repeats", "1", "-p", "iters", "3", plan=noted)
    assert status == 0 and str(paths.MATRIX / "throughput_box.md") in shown
    assert [verb()[0], verb()[0]] == [0, 0], "the third call measures nothing"
    assert verb("--cells", "none")[0] == 2
    first, second = store.read_json(environment.path_of("box"))
    assert first["notes"] == "of the file"
    assert {"hardware", "software", "commit", "started_utc", "ended_utc"} <= set(second)
    assert first["clocks_at_start"] == second["clocks_at_end"] == "SM: 2520 MHz\n"


def test_a_record_that_is_no_list_is_refused_and_kept(home):
    path = store.write_json({"mine": 1}, environment.path_of("box"))
    with refused("environment_box.json holds no records of an environment; move it away"):
        environment.add("box", "cpu", "2026-01-01T00:00:00Z", "", "")
    assert store.read_json(path) == {"mine": 1}


def test_a_cell_of_a_folder_of_images_trains_on_all_of_them_by_sgd(home, quiet, monkeypatch):
    folder = cut_training.pictures(home / "pets", {"train": 9, "val": 4})
    options = {"iters": 0, "warmup_s": 0, "budget_s": 0}
    grid = {**CPU, "models": ["simple_cnn"], "optimizers": ["sgd"], "options": options}
    plan = small(dataset="imagefolder", folder=str(folder), options={}, grids={"cpu": grid})
    cell, = matrix.cells(plan, "cpu")
    monkeypatch.setattr(matrix, "load_matrix", lambda: plan)
    assert matrix.workload_of("imagefolder-28", "simple_cnn", 8) == cell.workload
    measured = profile_run.measure(cell.params, workload=cell.workload)
    run, rows = measured.run, measured.rows[~measured.rows["warmup"]]
    assert rows.groupby("task_type")["batch_size"].sum().to_dict() == {"train": 18, "eval": 8}
    assert run["label"] == f"box/{CELL}/sgd" and run["optimizer"] == "sgd"
    assert run["dataset"] == run["data_source"] == "imagefolder"
