"""Profiled runs: complete, intact after a kill, marked when something else ran."""

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
from lib.measure import archive, disturbance, machine
from lib.measure.budget import Budget
from lib.measure.energy import meters
from lib.measure.training import passes, profile_run, summary
from lib.work import synthetic
from tests import cut_training, refused, until
from tests.conftest import home_paths

pytestmark = pytest.mark.slow
RUN = "run_W6_organmnist3d_cnn3d_cpu"


def short(workload="W6", **more):
    return ProfileParams(workload=workload, **{
        "device": "cpu", "data_source": "synthetic", "iters": 3, "warmup_iters": 2, "warmup_s": 0,
        "budget_s": 0, **more})


def unexplained(rows):
    """Return the median share of a step outside its phases."""
    phases = rows[["loader_wait_ms", "h2d_ms", "forward_time_ms", "backward_time_ms",
                   "optimizer_ms"]].sum(axis=1)
    return ((rows["step_time_ms"] - phases).abs() / rows["step_time_ms"]).median()


@pytest.mark.parametrize("name", [f"W{n}" for n in range(1, 8)])
def test_every_workload_completes_all_passes(home, quiet, monkeypatch, name):
    monkeypatch.setattr(synthetic, "MOST_MB", 4)
    size = {"W3": 4, "W4": 2, "W5": 2}.get(name, 0)
    rows = profile_run.measure(short(name, iters=1, warmup_iters=1, batch_size=size)).rows
    workload = definitions.workload(name)
    train, evaluated = (rows[(rows["task_type"] == "train") == is_train]
                        for is_train in (True, False))
    assert set(rows["task_type"]) == {"train", "eval", "test"}
    assert rows["batch_size"].max() == size or workload.batch_size
    if name in ("W4", "W5", "W7"):  # of 22,433 images, or 971 volumes
        assert (train if name == "W7" else evaluated)["batch_size"].iloc[-1] == 1
    assert (evaluated[["backward_time_ms", "optimizer_ms"]] == 0).all(axis=None)
    assert (rows["dim3"] == (workload.size if "3d" in workload.dataset else 0)).all()
    assert unexplained(train) < 0.02
    assert np.isfinite(rows["loss"]).all()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two runs of one seed and one of another, of two epochs each, in their own home."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name, path in home_paths(home).items():
            patch.setattr(paths, name, path)
        patch.setenv("LIB_LOCKS", str(home))
        quiet = disturbance.Load(0.5, 0.0, 0.0, 0.0, 0.0)
        patch.setattr(disturbance, "wait_for_quiet", lambda threads, **_: quiet)
        yield [profile_run.measure(short(epochs=2, seed=seed)) for seed in (1, 1, 2)]


def test_the_rows_add_up(runs):
    rows = runs[0].rows
    train = rows[rows["task_type"] == "train"]
    assert train["global_step"].tolist() == list(range(len(train)))
    assert train["warmup"].tolist() == [True] * 2 + [False] * 8, "two epochs of 3 and the odd batch"
    assert train["epoch"].tolist() == [0] * 6 + [1] * 4
    data_ms = rows["loader_wait_ms"] + rows["h2d_ms"]
    np.testing.assert_allclose(rows["data_time_ms"], data_ms, atol=1e-4)
    rate = rows["batch_size"] / rows["step_time_ms"] * 1000
    np.testing.assert_allclose(rows["images_per_sec"], rate, rtol=1e-4)
    assert (train.groupby("warmup")["pipelined_ms"].count() == [8, 0]).all()


def test_each_run_has_its_own_name_and_its_seed_decides_the_losses(runs):
    assert [run.run["run_id"] for run in runs] == [RUN, f"{RUN}-v2", f"{RUN}-v3"]
    meta = store.read_json(paths.PROFILES / f"{RUN}_train.meta.json")
    assert meta["parameters"]["workload"] == "W6" and meta["run_id"] == RUN
    assert {"commit", "hardware", "software", "load_at_start", "load_at_end"} <= set(meta)
    assert archive.runs("measure")["run_id"].tolist()[-1] == f"{RUN}-v3"
    one, two, other = (run.rows["loss"].to_numpy() for run in runs)
    np.testing.assert_allclose(one, two, rtol=1e-4)
    assert not np.allclose(one, other, rtol=1e-3)


def test_replay_reads_what_was_measured(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE", tmp_path)
    (tmp_path / "box").symlink_to(paths.DATA)
    again = profile_run.profile(short(source="replay", device="auto"))
    assert again.rows.equals(runs[2].rows) and again.metrics == runs[2].metrics
    assert again.run["run_id"] == runs[2].run["run_id"] and "REPLAY of run_W6" in again.note


def test_switches_and_the_load_meanwhile_are_recorded(home, quiet, monkeypatch):
    monkeypatch.setattr(disturbance, "own_cores", lambda: [0])
    monkeypatch.setattr(disturbance.LoadWatch, "reading", lambda self: disturbance.Load(1.0, 0.5, 0.25, 0.0, 3.0))
    switches = {"label": "mine", "precision": "bf16", "channels_last": True, "grad_accum_steps": 2,
                "augment": True, "threads": 1, "deterministic": True, "num_workers": 1,
                "prefetch_factor": 2, "optimizer": "sgd", "lr": 0.01, "momentum": 0.5,
                "weight_decay": 0.0}
    row = profile_run.measure(short(**switches)).run
    assert dict(row[list(switches)]) == switches
    assert not torch.are_deterministic_algorithms_enabled(), "restored"
    assert row["cpu_percent"] == 50 and row["other_cpu_cores"] == 0.25
    assert row["involuntary_switches_per_s"] == 3 and "others took 0.2 cores" in row["reason"]
    monkeypatch.setattr(machine, "instructions", lambda dtype: ())
    folder = cut_training.pictures(home / "pets", {"train": 5, "val": 2})
    run = profile_run.measure(short("W1", profile=False, precision="amp", batch_size=4,
                                    model="mobilenet_v2", folder=str(folder), data_source="auto"))
    assert run.note.endswith(" Precision amp is fp32 on cpu.") and run.rows.empty
    assert run.run["images_per_sec"] > 0 and run.run["precision"] == "fp32"
    assert run.run["workload_id"] == "imagefolder-28" and run.run["arch"] == "mobilenet_v2"


@pytest.mark.parametrize("switches, words", [
    ({"nvtx": True}, "nvtx ranges need a CUDA device"),
    ({"prefetch_factor": 2}, "prefetch_factor needs num_workers"),
    ({"deterministic": True, "cudnn_benchmark": True}, "exclude each other"),
    ({"batch_size": 500}, "too few for two full batches of 500"),
    ({"random_crop": True}, "random_crop is of pictures, and organmnist3d holds volumes"),
    ({"momentum": 0.5}, "momentum and weight_decay are of optimizer=sgd"),
])
def test_wrong_switches_are_refused(home, quiet, switches, words):
    with refused(words):
        profile_run.measure(short(**switches))
    assert not list(paths.RUNS.glob("*.csv"))


def test_a_run_that_fails_leaves_no_provenance_without_its_table(home, quiet, monkeypatch):
    def fail(run):
        with run.profiler("train"):
            raise RuntimeError("no more memory")

    monkeypatch.setattr(profile_run, "measure_passes", fail)
    with pytest.raises(RuntimeError):
        profile_run.measure(short())
    assert sorted(path.name for path in home.rglob("run_*")) == [
        f"{RUN}_train.csv", f"{RUN}_train.meta.json"]


def test_an_operator_without_a_deterministic_form_is_refused_in_one_line():
    reason = "pool_cuda does not have a deterministic implementation, but you set 'torch.use"
    with refused("torch has no deterministic pool_cuda on cpu: leave deterministic out"), \
            profile_run.settings(torch.device("cpu"), 0, False):
        raise RuntimeError(reason)


def test_a_killed_run_leaves_its_rows(home):
    program = """
from lib.measure import disturbance
from lib.measure.training import profile_run
from tests.test_profiles import short
disturbance.wait_for_quiet = lambda threads, **_: disturbance.Load(1, 0, 0, 0, 0)
profile_run.measure(short(epochs=50))
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=paths.ROOT)
    file = paths.PROFILES / f"{RUN}_train.csv"
    until(lambda: process.poll() is not None
          or (file.is_file() and file.read_bytes().count(b"\n") > 20), within_s=300)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rows = store.read(file, "profile")
    assert rows["global_step"].tolist() == list(range(len(rows))) and len(rows) >= 20
    assert archive.runs("measure").empty, "a run that was cut short has no summary"


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_cuda_profiles_add_up(home, quiet, precision):
    run = profile_run.measure(short("W3", device="cuda:0", iters=20, precision=precision,
                                    pin_memory=True, nvtx=True))
    train = summary.steady(run.rows[run.rows["task_type"] == "train"])
    assert (train["sync"] == "event").all() and unexplained(train) < 0.02
    assert (train["cuda_mem_alloc_mb"] > 1).all()


@pytest.mark.parametrize("steps_s, passes_run", [
    ([4.0, 3.0, 2.0, 2.01, 1.0], 4), ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 5), ([1.0, 1.02, 1.0], 2)])
def test_warm_up_goes_on_until_it_is_steady_or_its_time_is_over(clock, monkeypatch, steps_s,
                                                                passes_run):
    left = iter(steps_s)

    def clocked(*_):
        step_s = next(left)
        clock.work(step_s)
        return SimpleNamespace(step_s=step_s)

    monkeypatch.setattr(passes, "_clocked", clocked)
    run = SimpleNamespace(p=short(warmup_s=11.0), budget=Budget(0))
    assert passes._warm_up(run) == steps_s[passes_run - 1]


def test_steps_and_runs_have_the_energy_of_a_known_power(home, quiet, monkeypatch):
    """Here the power grows by 10 W each second from 30 W, and there is no counter."""
    begin, windows_s, pipelined = time.perf_counter(), [], passes._pipelined
    meter = meters.Meter("ramp", 0.0005,
                         lambda at_s=None: 30 + 10 * ((at_s or time.perf_counter()) - begin))

    def watched(*arguments):
        result = pipelined(*arguments)
        windows_s.append(result.window)
        return result

    monkeypatch.setattr(profile_run, "open_meter", lambda device: meter)
    monkeypatch.setattr(passes, "_pipelined", watched)
    monkeypatch.setattr(passes, "LEAST_S", 0.6)
    warm_up = passes._warm_up
    monkeypatch.setattr(passes, "_warm_up", lambda *run: min(0.1, warm_up(*run)))  # if slow
    result = profile_run.measure(short())
    run, rows = result.run, result.rows.dropna(subset="energy_j")
    ((start_s, end_s),) = windows_s
    assert run["power_w"] == pytest.approx(meter.power_w((start_s + end_s) / 2), rel=0.01)
    energy_j = run["power_w"] * run["elapsed_sec"]
    assert run["image_j"] * run["images_processed"] == pytest.approx(energy_j, rel=0.01)
    assert run["measured_iters"] > 3, "lengthened where there is a meter"
    assert 30 < run["idle_w"] < run["power_w"] and run["energy_method"] == "ramp integration"
    train = rows[rows["task_type"] == "train"]
    middle_s = train["wall_time_s"] - train["step_time_ms"] / 2e3
    slope = np.polyfit(middle_s, train["energy_j"] / train["step_time_ms"] * 1e3, 1)[0]
    assert slope == pytest.approx(10, rel=0.1), "W/s: each step has the power of its own time"
    meter.period_s = 0.2
    monkeypatch.setattr(passes, "LEAST_S", 0.0)
    slow = profile_run.measure(short(iters=1))
    assert slow.rows["energy_j"].isna().all() and np.isnan(slow.run["image_j"])
    assert "10 are needed" in slow.run["energy_reason"]
