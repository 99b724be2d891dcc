"""Profiled runs: complete, honest, intact after a kill, marked when something else ran."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack

import numpy as np
import pandas as pd
import pytest
import torch

from lib import paths, store
from lib.config import definitions
from lib.config.notebooks import ProfileParams
from lib.errors import InputError
from lib.measure import archive, budget, machine
from lib.measure.training import limits, passes, profile_run, summary
from lib.studies.profile import findings, tables
from tests.conftest import busy_neighbours


def short(workload="W6", **more):
    values = {"device": "cpu", "data_source": "synthetic", "iters": 6, "warmup_iters": 2, "warmup_s": 0, "budget_s": 0, **more}
    return ProfileParams(workload=workload, **values)


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"W{n}" for n in range(1, 8)])
def test_every_workload_completes_all_passes(home, quiet, name):
    run = profile_run.measure(short(name, iters=2, batch_size=16 if name == "W5" else 0))
    rows = run.rows
    workload = definitions.workload(name)
    assert set(rows["task_type"]) == {"train", "eval", "test"}
    full, odd = workload.batch_size, {"W4": 22433 % 32, "W5": 22433 % 16, "W7": 971 % 2}.get(name)
    last = rows.groupby("task_type").tail(1).set_index("task_type")["batch_size"]
    if odd:
        assert last["train" if name == "W7" else "test"] == odd == 1
    assert rows["batch_size"].max() == full
    assert (rows.loc[rows["task_type"] != "train", ["epoch"]] == -1).all(axis=None)
    assert rows.loc[rows["task_type"] != "train", "lr"].isna().all()
    assert (rows.loc[rows["task_type"] != "train", ["backward_time_ms", "optimizer_ms"]] == 0).all(axis=None)
    assert (rows["device_index"] == -1).all()
    assert (rows["dim3"] == (0 if workload.size and "3d" not in workload.dataset else workload.size)).all()
    assert summary.unaccounted(rows[rows["task_type"] == "train"]) < 0.02
    assert summary.unaccounted(rows[rows["task_type"] == "eval"]) < 0.02
    assert np.isfinite(rows["loss"]).all()
    assert run.run["data_source"] == "synthetic" == rows["data_source"].unique()[0]


@pytest.mark.slow
def test_the_rows_add_up(home, quiet):
    rows = profile_run.measure(short(epochs=2)).rows
    train = rows[rows["task_type"] == "train"]
    assert train["global_step"].tolist() == list(range(len(train)))
    assert train["warmup"].tolist() == [True] * 2 + [False] * 14, "two warm-up batches, then two epochs of 6 and the odd one"
    assert train["epoch"].tolist() == [0] * 9 + [1] * 7
    np.testing.assert_allclose(rows["data_time_ms"], rows["loader_wait_ms"] + rows["h2d_ms"], atol=1e-4)
    np.testing.assert_allclose(rows["images_per_sec"], rows["batch_size"] / rows["step_time_ms"] * 1000, rtol=1e-4)
    np.testing.assert_allclose(rows["forward_time_pct"], rows["forward_time_ms"] / rows["step_time_ms"] * 100, rtol=1e-3)
    assert (train.groupby("warmup")["pipelined_ms"].count() == [14, 0]).all(), "measured before the profiled epochs"
    assert rows["energy_j"].isna().all()


def test_warm_up_goes_on_until_steady_and_no_longer(home, quiet, monkeypatch):
    looks = iter([1.0, 2.0, 2.5, 2.51, 9.9, 8.0])
    monkeypatch.setattr(passes, "_warm_pass", lambda run, observer, most_s: next(looks))

    class Run:
        p = short(warmup_s=60)

    assert passes._warm_up(Run, None, budget.Budget(0)) == 2.51
    Run.p = short(warmup_s=0)
    assert passes._warm_up(Run, None, budget.Budget(0)) == 9.9, "no more than the first look"
    Run.p = short(warmup_s=60)
    assert passes._warm_up(Run, None, Left(24, 0)) == 8.0, "no more than the budget allows"


@pytest.mark.slow
def test_a_second_run_gets_its_own_name(home, quiet):
    first, second = profile_run.measure(short()), profile_run.measure(short())
    assert [first.run["run_id"], second.run["run_id"]] == ["run_W6_organmnist3d_cnn3d_cpu", "run_W6_organmnist3d_cnn3d_cpu-v2"]
    assert sorted(path.name for path in paths.PROFILES.glob("*v2*.csv")) == [
        f"run_W6_organmnist3d_cnn3d_cpu-v2_{kind}.csv" for kind in ("eval", "test", "train")]
    table = archive.runs("measure")
    assert len(table) == 2
    meta = store.read_json(paths.PROFILES / f"{first.run['run_id']}_train.meta.json")
    assert meta["parameters"]["workload"] == "W6"
    assert {"commit", "dirty", "hardware", "software", "load_at_start", "load_at_end", "started_utc"} <= set(meta)
    newest = tables.latest(table.assign(verdict="stable"), machine.ids()["hardware_id"])
    assert newest["run_id"].tolist() == [second.run["run_id"]]
    assert len(tables.latest(table.assign(verdict="unusable"), machine.ids()["hardware_id"])) == 0


def test_runs_that_start_at_once_on_two_devices_get_names_of_their_own(home):
    with ExitStack() as one, ExitStack() as other:
        assert profile_run._free_name("run_x_cuda", one) == "run_x_cuda"
        assert profile_run._free_name("run_x_cuda", other) == "run_x_cuda-v2"
        paths.RUNS.mkdir(parents=True)
        (paths.RUNS / "run_x_cuda.csv").touch()
    with ExitStack() as third:
        assert profile_run._free_name("run_x_cuda", third) == "run_x_cuda-v2", "nothing was written under that name"


@pytest.mark.slow
def test_the_seed_decides_the_losses(home, quiet):
    one, two, other = (profile_run.measure(short(seed=seed)).rows["loss"].to_numpy() for seed in (1, 1, 2))
    np.testing.assert_allclose(one, two, rtol=1e-4)
    assert not np.allclose(one, other, rtol=1e-3)


@pytest.mark.slow
def test_switches(home, quiet):
    run = profile_run.measure(short(precision="bf16", channels_last=True, grad_accum_steps=2, augment=True, deterministic=True,
                                 num_workers=1, prefetch_factor=2, threads=1, label="mine", epochs=1))
    row = run.run
    assert (row["label"], row["precision"], row["threads"], row["num_workers"]) == ("mine", "bf16", 1, 1)
    assert row["channels_last"]
    assert row["deterministic"]
    assert not torch.are_deterministic_algorithms_enabled(), "what was set is put back"
    unprofiled = profile_run.measure(short(profile=False))
    assert len(unprofiled.rows) == 0
    assert unprofiled.run["images_per_sec"] > 0
    assert np.isnan(unprofiled.run["step_median_ms"])


@pytest.mark.parametrize(("switches", "words"), [
    ({"nvtx": True}, "nvtx ranges need a CUDA device"),
    ({"prefetch_factor": 2}, "prefetch_factor needs num_workers"),
    ({"pin_memory": True}, "pin_memory"),
    ({"deterministic": True, "cudnn_benchmark": True}, "exclude each other"),
    ({"batch_size": 500}, "too few for two full batches of 500"),
    ({"device": "cuda:9"}, "device 'cuda:9' is not here"),
])
def test_what_cannot_be_run_is_refused(home, quiet, switches, words):
    with pytest.raises(InputError, match=words):
        profile_run.measure(short(**switches))
    assert not list(paths.RUNS.glob("*.csv"))


class Left(budget.Budget):
    """A budget of which so much is left, always."""

    def __init__(self, seconds, left_s):
        super().__init__(seconds)
        self._left_s = left_s

    left_s = property(lambda self: self._left_s)


def test_what_is_left_of_the_budget_bounds_the_next_pass():
    p = short(iters=1000, budget_s=6.0)
    iters, most_s = limits.PassLimits(p, Left(6, 6), 0.1).next()
    assert iters == int(6 / 0.1 / 2.8) - 1
    assert 6 / 2.8 < most_s < 1.5 * 6 / 2.8
    several = limits.PassLimits(p, Left(6, 2), 0.1)
    assert [several.next()[0], several.next()[0], several.next(0.4)[0], several.next(0.4)[0]] == [
        int(2 / 0.1 / 2.8) - 1, int(2 / 0.1 / 1.8) - 1, int(2 / 0.1 / 0.8) - 1, int(2 / 0.1 / 0.4) - 1]
    assert limits.PassLimits(p, Left(6, 0), 1.0).next() == (1, 0)
    assert limits.PassLimits(short(iters=0), Left(0, math.inf), 1.0).next() == (0, math.inf)
    assert limits.PassLimits(short(iters=7, budget_s=24), Left(24, 24), 1e-6).next()[0] == 7


@pytest.mark.slow
def test_a_full_split_is_run_when_asked(home, quiet):
    run = profile_run.measure(short(iters=0, warmup_iters=1))
    splits = {"train": 971, "eval": 161, "test": 610}
    for kind, size in splits.items():
        measured = run.rows[(run.rows["task_type"] == kind) & ~run.rows["warmup"]]
        assert measured["batch_size"].sum() == size


@pytest.mark.slow
def test_a_killed_run_leaves_its_rows(home):
    program = textwrap.dedent("""
        from lib.measure import load
        from lib.measure.training import profile_run
        from lib.config.notebooks import ProfileParams
        load.wait_for_quiet = lambda threads, **_: load.Load(1, 0, 0, 0, 0)
        profile_run.measure(ProfileParams(workload="W6", device="cpu", data_source="synthetic", iters=0, budget_s=0, epochs=50))
    """)
    process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "LIB_OUTPUT": str(home)})
    file = paths.PROFILES / "run_W6_organmnist3d_cnn3d_cpu_train.csv"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not (file.is_file() and file.read_bytes().count(b"\n") > 20):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    rows = store.read(file, "profile")
    assert len(rows) >= 20
    assert rows["global_step"].tolist() == list(range(len(rows)))
    assert store.read_json(paths.PROFILES / "run_W6_organmnist3d_cnn3d_cpu_train.meta.json")["parameters"]["epochs"] == 50
    assert len(archive.runs("measure")) == 0, "a run that was cut short has rows, but no summary"


@pytest.mark.slow
def test_beside_a_busy_process_a_run_does_not_pass_as_good(home, quiet):
    with busy_neighbours(2):
        run = profile_run.measure(short(iters=20))
    assert run.run["verdict"] in ("noisy", "unusable")
    assert run.run["other_cpu_cores"] > 0.1
    assert "others took" in run.run["reason"]


def test_replay_reads_what_was_measured(home, quiet, monkeypatch):
    measured = profile_run.measure(short())
    monkeypatch.setattr(paths, "REFERENCE", home / "reference")
    (home / "reference").mkdir()
    paths.DATA.rename(home / "reference" / "box")
    again = profile_run.profile(short(source="replay", device="auto"))
    assert again.rows.equals(measured.rows)
    assert again.run["run_id"] == measured.run["run_id"]
    assert again.metrics == measured.metrics
    assert "REPLAY of run_W6" in again.note
    with pytest.raises(InputError, match="no run of W1 on cpu, fp32; it has: W6 on cpu, batch size 4, fp32"):
        profile_run.profile(short("W1", source="replay"))


def test_tables_and_words_of_a_run(home, quiet):
    run = profile_run.measure(short())
    table = tables.phase_table(run.rows)
    assert table["task_type"].tolist() == ["train", "eval", "test"]
    assert (table["n"] == 6).all()
    side = tables.side_by_side(archive.runs("measure"), run.rows)
    ratio = tables.across(side, run.rows)
    assert ratio["backward over forward"] == pytest.approx(table["backward"][0] / table["forward"][0])
    text = " ".join([findings.phase_words(table), findings.warm_up_words(run.rows), findings.comparison_words(side),
                     findings.profiled_words(run.run, 10.0)])
    assert f"{table['step_ms'][0]:.1f} ms" in text
    assert "nan" not in text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_cuda_profiles_add_up(home, quiet, precision):
    run = profile_run.measure(short("W3", device="cuda:0", iters=20, precision=precision, pin_memory=True, nvtx=True))
    train = summary.steady(run.rows[run.rows["task_type"] == "train"])
    assert (train["sync"] == "event").all()
    assert summary.unaccounted(train) < 0.02
    assert (train["cuda_mem_alloc_mb"] > 1).all()


class Ramp:
    """A meter whose power grows by 10 W each second from 30 W when it is opened; its counter is the integral."""

    name, period_s = "ramp", 0.0005

    def __init__(self):
        self.begin = time.perf_counter()

    def power_w(self):
        return 30 + 10 * (time.perf_counter() - self.begin)

    def counter_j(self):
        return math.nan

    def energy_j(self, start_s, end_s):
        at, to = start_s - self.begin, end_s - self.begin
        return 30 * (to - at) + 5 * (to**2 - at**2)


@pytest.mark.slow
def test_steps_and_runs_have_the_energy_of_a_known_power(home, quiet, monkeypatch):
    meter, windows_s = Ramp(), []
    pipelined = passes._pipelined

    def watched(*arguments):
        result = pipelined(*arguments)
        windows_s.append(result.window_s)
        return result

    monkeypatch.setattr(profile_run, "open_meter", lambda device: meter)
    monkeypatch.setattr(passes, "_pipelined", watched)
    monkeypatch.setattr(passes, "LEAST_S", 0.6)
    monkeypatch.setattr(profile_run, "IDLE_S", 0.1)
    result = profile_run.measure(short("W6", iters=3))
    run, rows = result.run, result.rows.dropna(subset="energy_j")
    ((start_s, end_s),) = windows_s
    assert run["image_j"] * run["images_processed"] == pytest.approx(meter.energy_j(start_s, end_s), rel=0.01)
    assert run["power_w"] == pytest.approx(meter.energy_j(start_s, end_s) / (end_s - start_s), rel=0.01)
    assert run["elapsed_sec"] == pytest.approx(end_s - start_s)
    assert run["measured_iters"] > 3, "lengthened where there is a meter"
    assert 30 < run["idle_w"] < run["power_w"]
    assert run["energy_method"] == "ramp integration"
    assert pd.isna(run["energy_reason"])
    assert len(rows) >= 3, "steps of ten samples and more have their own energy"
    power = rows["energy_j"] / rows["step_time_ms"] * 1e3
    train = rows["task_type"] == "train"
    middle_s = rows["wall_time_s"] - rows["step_time_ms"] / 2e3
    slopes = np.polyfit(middle_s[train], power[train], 1)
    assert slopes[0] == pytest.approx(10, rel=0.1), "W a second: each step has the power of its own time"


@pytest.mark.slow
def test_a_meter_that_is_too_slow_for_steps_leaves_them_empty_and_the_run_says_why(home, quiet, monkeypatch):
    meter = Ramp()
    meter.period_s = 30.0
    monkeypatch.setattr(profile_run, "open_meter", lambda device: meter)
    monkeypatch.setattr(passes, "LEAST_S", 0.0)
    monkeypatch.setattr(profile_run, "IDLE_S", 0.0)
    result = profile_run.measure(short("W6", iters=2))
    assert result.rows["energy_j"].isna().all()
    assert np.isnan(result.run["image_j"])
    assert "10 are needed" in result.run["energy_reason"]
    assert result.run["energy_method"] == "not measured"


def test_the_energy_of_a_run_is_told_by_pass_image_and_idle():
    run = archive.runs("replay").iloc[0].copy()
    run.update({"image_j": 2.0, "batch_size": 8, "measured_iters": 5, "power_w": 20.0, "idle_w": 5.0, "energy_n": 40,
                "energy_method": "nvml:0 counter", "energy_disagreement": -0.013, "energy_reason": ""})
    steps = pd.DataFrame({"run_id": "r", "task_type": ["train"] * 4 + ["eval"], "batch_size": [8, 8, 8, 3, 8], "warmup": False,
                          "step_time_ms": [500.0, 500.0, 10.0, 500.0, 10.0], "energy_j": [10.0, 10.0, np.nan, 99.0, np.nan]})
    table = tables.energy(run, steps)
    assert table["pass"].tolist() == ["train, pipelined", "train, profiled"], "no step of the evaluation is long enough"
    assert table["of"].tolist() == ["all 5 batches", "2 of 3 batches"], "odd batches are no statistic"
    np.testing.assert_allclose(table.drop(columns=["pass", "of"]), [[16, 2, 1.5, 20, 5], [10, 1.25, (10 - 2.5) / 8, 20, 5]])
    words = findings.energy_words(run)
    assert "**2 J** (nvml:0 counter, 40 samples; integrated power and the counter differ by -1.3%)" in words
    assert "20.0 W on average, 1.5 J of it above idle (5.0 W in the same session)" in words
    assert words in findings.learned_words(run, tables.phase_table(steps.assign(**dict.fromkeys(summary.PHASES_MS, 1.0))))
    run = pd.Series({**run, "image_j": np.nan, "energy_reason": "no sensor here"})
    assert findings.energy_words(run) == "Energy was not measured: no sensor here."
    assert tables.energy(run, steps.assign(energy_j=np.nan)).empty
