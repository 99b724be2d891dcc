"""Profiled runs: complete, honest, intact after a kill, marked when something else ran."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lib import paths, store
from lib.config import definitions
from lib.config.notebooks import ProfileParams
from lib.measure import archive, budget, load, machine
from lib.measure.energy import meters
from lib.measure.training import passes, profile_run, profiler, summary
from lib.work import medmnist_files
from lib.work.training import PHASES
from tests import cut_training, refused
from tests.conftest import home_paths

pytestmark = pytest.mark.slow


def short(workload="W6", **more):
    values = {"device": "cpu", "data_source": "synthetic", "iters": 3, "warmup_iters": 2, "warmup_s": 0, "budget_s": 0, **more}
    return ProfileParams(workload=workload, **values)


@pytest.mark.parametrize("name", [f"W{n}" for n in range(1, 8)])
def test_every_workload_completes_all_passes(home, quiet, monkeypatch, name):
    monkeypatch.setattr(medmnist_files, "_SYNTHETIC_MB", 4)
    size = {"W3": 4, "W4": 2, "W5": 2}.get(name, 0)
    run = profile_run.measure(short(name, iters=1, warmup_iters=1, batch_size=size))
    rows, workload = run.rows, definitions.workload(name)
    train, evaluated = rows[rows["task_type"] == "train"], rows[rows["task_type"] != "train"]
    assert set(rows["task_type"]) == {"train", "eval", "test"}
    assert rows["batch_size"].max() == size or workload.batch_size
    if name in ("W4", "W5", "W7"):
        assert (train if name == "W7" else evaluated)["batch_size"].iloc[-1] == 1, "of 22,433 images, or 971 volumes"
    assert (evaluated[["backward_time_ms", "optimizer_ms"]] == 0).all(axis=None)
    assert (rows["dim3"] == (workload.size if "3d" in workload.dataset else 0)).all()
    assert summary.unaccounted(train) < 0.02
    assert np.isfinite(rows["loss"]).all()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two runs of one seed and one of another, of two epochs each, in a home of their own."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name, path in home_paths(home).items():
            patch.setattr(paths, name, path)
        patch.setenv("LIB_LOCKS", str(home))
        patch.setattr(load, "wait_for_quiet", lambda threads, **_: load.Load(0.5, 0.0, 0.0, 0.0, 0.0))
        yield [profile_run.measure(short(epochs=2, seed=seed)) for seed in (1, 1, 2)]


def test_the_rows_add_up(runs):
    rows = runs[0].rows
    train = rows[rows["task_type"] == "train"]
    assert train["global_step"].tolist() == list(range(len(train)))
    assert train["warmup"].tolist() == [True] * 2 + [False] * 8, "two warm-up batches, then two epochs of 3 and the odd one"
    assert train["epoch"].tolist() == [0] * 6 + [1] * 4
    np.testing.assert_allclose(rows["data_time_ms"], rows["loader_wait_ms"] + rows["h2d_ms"], atol=1e-4)
    np.testing.assert_allclose(rows["images_per_sec"], rows["batch_size"] / rows["step_time_ms"] * 1000, rtol=1e-4)
    np.testing.assert_allclose(rows["forward_time_pct"], rows["forward_time_ms"] / rows["step_time_ms"] * 100, rtol=1e-3)
    assert (train.groupby("warmup")["pipelined_ms"].count() == [8, 0]).all(), "measured before the profiled epochs"


def test_warm_up_goes_on_until_steady_and_no_longer(home, quiet, monkeypatch):
    passed = iter([SimpleNamespace(step_s=step_s) for step_s in (1.0, 2.0, 2.5, 2.51, 9.9)])
    monkeypatch.setattr(passes, "_clocked", lambda *_: next(passed))
    run = SimpleNamespace(p=short(warmup_s=60), budget=budget.Budget(0))
    assert passes._warm_up(run) == 2.51
    run.p = short()
    assert passes._warm_up(run) == 9.9, "a single pass without warmup_s"


def test_each_run_has_its_own_name_and_its_seed_decides_the_losses(runs):
    first, last = "run_W6_organmnist3d_cnn3d_cpu", "run_W6_organmnist3d_cnn3d_cpu-v3"
    assert [run.run["run_id"] for run in runs] == [first, f"{first}-v2", last]
    meta = store.read_json(paths.PROFILES / f"{first}_train.meta.json")
    assert meta["parameters"]["workload"] == "W6"
    assert {"commit", "dirty", "hardware", "software", "load_at_start", "load_at_end", "started_utc"} <= set(meta)
    table = archive.runs("measure")
    assert len(table) == 3 and table.sort_values("timestamp")["run_id"].tolist()[-1] == last
    one, two, other = (run.rows["loss"].to_numpy() for run in runs)
    np.testing.assert_allclose(one, two, rtol=1e-4)
    assert not np.allclose(one, other, rtol=1e-3)


def test_replay_reads_what_was_measured(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE", tmp_path)
    (tmp_path / "box").symlink_to(paths.DATA)
    again = profile_run.profile(short(source="replay", device="auto"))
    assert again.rows.equals(runs[2].rows)
    assert again.run["run_id"] == runs[2].run["run_id"] and again.metrics == runs[2].metrics
    assert "REPLAY of run_W6" in again.note


def test_switches_and_what_others_did_meanwhile_are_kept(home, quiet, monkeypatch):
    monkeypatch.setattr(load, "own_cores", lambda: [0])
    monkeypatch.setattr(load.LoadWatch, "reading", lambda self: load.Load(1.0, 0.5, 0.25, 0.0, 3.0))
    switches = {"label": "mine", "precision": "bf16", "channels_last": True, "grad_accum_steps": 2, "augment": True,
                "threads": 1, "deterministic": True, "num_workers": 1, "prefetch_factor": 2, "optimizer": "sgd", "lr": 0.01,
                "momentum": 0.5, "weight_decay": 0.0}
    row = profile_run.measure(short(**switches)).run
    assert dict(row[list(switches)]) == switches
    assert not torch.are_deterministic_algorithms_enabled(), "what was set is put back"
    assert row["cpu_percent"] == 50 and row["other_cpu_cores"] == 0.25 and row["involuntary_switches_per_s"] == 3
    assert "others took 0.2 cores" in row["reason"]
    monkeypatch.setattr(machine, "instructions", lambda dtype: ())
    unprofiled = profile_run.measure(short(profile=False, precision="amp"))
    assert unprofiled.run["precision"] == "fp32" and unprofiled.note.endswith(" Precision amp is fp32 on cpu.")
    assert len(unprofiled.rows) == 0
    assert unprofiled.run["images_per_sec"] > 0


@pytest.mark.parametrize("switches, words", [
    ({"nvtx": True}, "nvtx ranges need a CUDA device"),
    ({"prefetch_factor": 2}, "prefetch_factor needs num_workers"),
    ({"deterministic": True, "cudnn_benchmark": True}, "exclude each other"),
    ({"batch_size": 500}, "too few for two full batches of 500"),
    ({"random_crop": True}, "random_crop is of pictures, and organmnist3d holds volumes"),
    ({"momentum": 0.5}, "momentum and weight_decay are of optimizer=sgd"),
])
def test_what_cannot_be_run_is_refused(home, quiet, switches, words):
    with refused(words):
        profile_run.measure(short(**switches))
    assert not list(paths.RUNS.glob("*.csv"))


def test_the_phases_of_a_step_are_nvtx_ranges_side_by_side(monkeypatch):
    ranges = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", ranges.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: ranges.append("end"))
    observer = profiler.BatchProfiler(None, {}, torch.device("cpu"), nvtx=True)
    for phases in (PHASES, PHASES[:3], ()):  # a training step, one of evaluation, and a loader that has no more
        observer.start()
        for phase in phases:
            observer.mark(phase)
        observer.close_range()  # as at the end of a step, or of the pass
    opened = (*PHASES, *PHASES[:4], PHASES[0])
    assert ranges == [word for phase in opened for word in (phase, "end")]


NO_WAY = "adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set 'torch.use"


def test_an_operator_without_a_deterministic_way_is_told_in_one_line():
    with refused("torch has no deterministic adaptive_avg_pool2d_backward_cuda on cpu: leave deterministic out"), \
            profile_run.settings(torch.device("cpu"), 0, False):
        raise RuntimeError(NO_WAY)


def test_a_model_a_folder_and_an_optimizer_of_the_users_own_are_parameters(home, quiet):
    folder = cut_training.pictures(home / "pets", {"train": 5, "val": 2})
    run = profile_run.measure(short("W1", data_source="auto", folder=str(folder), model="mobilenet_v2", batch_size=4,
                                    optimizer="sgd")).run
    assert run["workload_id"] == "imagefolder-28" and run["dataset"] == "imagefolder" and run["arch"] == "mobilenet_v2"
    assert run["optimizer"] == "sgd"


def test_a_killed_run_leaves_its_rows(home):
    program = """
from lib.measure import load
from lib.measure.training import profile_run
from tests.test_profiles import short
load.wait_for_quiet = lambda threads, **_: load.Load(1, 0, 0, 0, 0)
profile_run.measure(short(epochs=50))
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=paths.ROOT)
    file = paths.PROFILES / "run_W6_organmnist3d_cnn3d_cpu_train.csv"
    while process.poll() is None and not (file.is_file() and file.read_bytes().count(b"\n") > 20):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    rows = store.read(file, "profile")
    assert len(rows) >= 20
    assert rows["global_step"].tolist() == list(range(len(rows)))
    assert len(archive.runs("measure")) == 0, "a run that was cut short has rows, but no summary"


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_cuda_profiles_add_up(home, quiet, precision):
    run = profile_run.measure(short("W3", device="cuda:0", iters=20, precision=precision, pin_memory=True, nvtx=True))
    train = summary.steady(run.rows[run.rows["task_type"] == "train"])
    assert (train["sync"] == "event").all()
    assert summary.unaccounted(train) < 0.02
    assert (train["cuda_mem_alloc_mb"] > 1).all()


def test_steps_and_runs_have_the_energy_of_a_known_power(home, quiet, monkeypatch):
    """Here the power grows by 10 W each second from 30 W, and there is no counter."""
    begin, windows_s, pipelined = time.perf_counter(), [], passes._pipelined
    meter = meters.Meter("ramp", 0.0005, lambda at_s=None: 30 + 10 * ((at_s or time.perf_counter()) - begin))

    def watched(*arguments):
        result = pipelined(*arguments)
        windows_s.append(result.window_s)
        return result

    monkeypatch.setattr(profile_run, "open_meter", lambda device: meter)
    monkeypatch.setattr(passes, "_pipelined", watched)
    monkeypatch.setattr(passes, "LEAST_S", 0.6)
    warm_up = passes._warm_up
    monkeypatch.setattr(passes, "_warm_up", lambda *arguments: min(0.1, warm_up(*arguments)))  # of a slow machine, too
    result = profile_run.measure(short())
    run, rows = result.run, result.rows.dropna(subset="energy_j")
    ((start_s, end_s),) = windows_s
    assert run["power_w"] == pytest.approx(meter.power_w((start_s + end_s) / 2), rel=0.01)
    assert run["image_j"] * run["images_processed"] == pytest.approx(run["power_w"] * run["elapsed_sec"], rel=0.01)
    assert run["measured_iters"] > 3, "lengthened where there is a meter"
    assert 30 < run["idle_w"] < run["power_w"]
    assert run["energy_method"] == "ramp integration"
    assert len(rows) >= 3, "steps of ten samples and more have their own energy"
    train = rows[rows["task_type"] == "train"]
    middle_s = train["wall_time_s"] - train["step_time_ms"] / 2e3
    slope = np.polyfit(middle_s, train["energy_j"] / train["step_time_ms"] * 1e3, 1)[0]
    assert slope == pytest.approx(10, rel=0.1), "W a second: each step has the power of its own time"
    meter.period_s = 0.2
    monkeypatch.setattr(passes, "LEAST_S", 0.0)
    slow = profile_run.measure(short(iters=1))
    assert slow.rows["energy_j"].isna().all() and np.isnan(slow.run["image_j"])
    assert "10 are needed" in slow.run["energy_reason"]
