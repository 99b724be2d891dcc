"""GPUs that are not there: whose load it is, devices side by side, shards apart, and what may befall a card."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from lib import locks, paths, store
from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.measure import disturbance, machine
from lib.measure.disturbance import GpuUse, GpuWatch
from lib.measure.gpus.card import Card
from lib.measure.operators import aggregate, device_sweep, sweep, visitor
from tests import fake_gpus, refused
from tests.visitors import InProcess, Visitor, draw_small, identified, visited

pytestmark = pytest.mark.slow

QUICK = {"op": "activation,linear", "budget_s": 0, "count": 6, "rounds": 3, "visit_ms": 8, "patience_s": 0, "threads": 1}
WALK = {"op": "pool2d", "grid": "pools", "count": 0, "rounds": 3}


def walked(device, **more):
    return swept(**{**WALK, **more}, device=device)


@pytest.fixture
def box(home, monkeypatch):
    """Return a maker of boxes with some cards, which this process sees."""
    def make(*what, **everywhere):
        made = fake_gpus.Box(home, *what, **everywhere)
        monkeypatch.setenv(fake_gpus.FILE, str(made.path))
        fake_gpus.put(monkeypatch)
        return made

    monkeypatch.delenv(locks.MASK, raising=False)
    draw_small(monkeypatch)
    yield make
    monkeypatch.undo()
    fake_gpus.forget()


def swept(**more):
    folder = sweep.measure_sweep(SweepParams(**{**QUICK, "name": "mine", **more}))
    return folder, aggregate.read(folder).table


def test_of_two_cards_alike_each_measures_a_share_and_what_a_lost_one_measured_is_kept(box, monkeypatch):
    monkeypatch.setattr(visitor, "Service", InProcess)
    box(2).change(1, breaks_after=12)
    folder, table = swept(device="cuda:0,cuda:1", count=10)
    (failure,) = store.read_json(folder / "sweep.meta.json")["failures"].values()
    assert "cuda:1 was lost after" in failure and "unspecified launch failure" in failure and "'cuda:1' is not here" in failure
    assert table["config"].is_unique, "no point is measured twice"
    kept = table[table["device"] == "cuda:1"]
    assert len(kept) and (kept["status"] == "ok").all() and kept["latency_ms"].notna().all(), "what it measured is kept"
    assert table.loc[table["device"] == "cuda:0", "verdict"].tolist() == ["stable"] * 5, table[["device", "reason"]].to_string()
    visits = store.read_all(sorted(folder.glob("*/repeats.csv")), "repeats")
    assert (visits["gpu_others"] == 0).all(), "the workers of a run are no strangers to each other"


@pytest.mark.parametrize("nvml, card, verdict, words", [
    ("as it is", {}, "stable", "others used 0% of the GPU"),
    ("as it is", {"stranger": 1, "share": 0.8}, "unusable", "others used 80% of the GPU"),
    ("as it is", {"reasons": 0x24}, "noisy", "the GPU was throttled: too hot (driver)"),
    ("another", {}, "noisy", "no NVML: NVMLError: Driver/library version mismatch"),
    ("shy", {}, "noisy", "the driver does not tell who uses the GPU"),
    ("not found", {"stranger": 1, "share": 0.4}, "stable", "others used 0% of the GPU"),
    ("old", {"stranger": 1, "share": 0.4}, "noisy", "the driver does not tell who uses")])
def test_a_gpu_is_judged_by_its_own_users_and_clock(box, nvml, card, verdict, words):
    box(2, nvml, **card)
    machine.use(machine.device("cuda:0"))
    seen = disturbance.LoadWatch("cuda:0").reading()
    assert seen.verdict(threads=1) == verdict and words in seen.words()
    assert nvml in ("absent", "another") or seen.gpu.clock_mhz == 1410
    busy = disturbance.Load(1.0, 0.0, 64.0, 1.0, 0.0, seen.gpu)
    assert busy.verdict(threads=64) == verdict, "the load of the host says nothing of a GPU"


@pytest.mark.parametrize("mask, in_use, number, uuid", [
    (None, False, 1, "GPU-1000"), (None, True, 1, "GPU-0000"),
    ("GPU-1,GPU-0", False, 0, "GPU-1000")])
def test_a_card_is_the_one_that_cuda_calls_so(box, monkeypatch, mask, in_use, number, uuid):
    """Where CUDA is in use and counts cards by their speed, here in the reverse order, NVML is asked for its UUID."""
    box(2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "get_device_properties",
                        lambda number: SimpleNamespace(uuid=fake_gpus.here()[1 - number]["uuid"].removeprefix("GPU-")))
    if mask:
        monkeypatch.setenv(locks.MASK, mask)
    assert Card(number).value("nvmlDeviceGetUUID") == uuid


# ------------------------------------------------------------------------------------------------ what the table says

def visits(**gpu):
    columns = {**GpuUse(others=0.0, clock_mhz=1410.0).columns, **gpu}
    return pd.DataFrame([
        {"config": key, "round": number, **visited(latency_ms=1.0 + 0.001 * number, other_cores=12.0, yardstick_ms=np.nan),
         **{name: value[number] if isinstance(value, list) else value for name, value in columns.items()}}
        for number in range(6) for key in "ab"])


@pytest.mark.parametrize("gpu, n, verdict, why", [
    ({"gpu_throttled": ["power brake"] * 2 + [""] * 4}, 4, "stable", ""),
    ({"gpu_throttled": ["power brake"] * 4 + [""] * 2}, 6, "noisy", "GPU was throttled in 4 of 6 rounds (power brake)"),
    ({"gpu_mhz": [900.0] * 3 + [1410.0] * 3}, 3, "stable", ""),
    ({"gpu_others": 0.9}, 6, "unusable", "others used 90%"),
    ({"gpu_others": float("nan"), "gpu_unknown": "no NVML"}, 6, "noisy", "who else used the GPU is not known: no NVML")])
def test_the_rounds_of_a_gpu_are_judged_by_the_gpu(gpu, n, verdict, why):
    row = aggregate.summarise(visits(**gpu)).iloc[0]
    assert row["n"] == n and row["verdict"] == verdict
    assert why in row["why"] and bool(row["why"]) == (verdict != "stable")
    assert row["other_cores"] == 12.0, "what the host did is in the row, and does not count"


# ------------------------------------------------------------------------------------------------ points and shards

class Sure(Visitor):
    """A worker in this process; ``at_work`` notes which devices were at work."""

    at_work = []

    def ready(self):
        free = {} if self.device == "cpu" else {"free_bytes": fake_gpus.here()[int(self.device[-1])]["free"]}
        return identified(**free)

    def visit(self, config, ops):
        Sure.at_work.append(self.device)
        return {**super().visit(config, ops), **GpuUse(others=0.0, clock_mhz=1410.0).columns}


@pytest.fixture
def sure(box, monkeypatch):
    monkeypatch.setattr(Sure, "at_work", [])
    monkeypatch.setattr(device_sweep, "Visitor", Sure)
    return box


def test_all_measures_the_cpu_apart_and_cards_of_each_kind_share_the_grid(sure):
    sure(3).change(2, name="Fake B")
    _, table = walked("all")
    assert Sure.at_work[:18] == ["cpu"] * 18 and "cpu" not in Sure.at_work[18:], "the CPU first, alone"
    cpu, first, second, another = (set(table.loc[table["device"] == name, "config"])
                                   for name in ("cpu", "cuda:0", "cuda:1", "cuda:2"))
    assert cpu == another == first | second and len(cpu) == 6
    assert not first & second


def test_a_sweep_is_not_gone_on_with_on_another_card_or_by_other_software(sure, monkeypatch):
    here = sure(2)
    here.change(1, name="Fake B")
    walked("cpu")
    folder, before = walked("cuda:0")
    here.change(0, gone=True)  # the one behind it moves up
    with refused("mine/cuda-0 cannot be gone on with, cuda:0 is another one now: name was 'Fake A' and is 'Fake B'; give this "
                 "sweep another name"):
        walked("cuda:0")
    monkeypatch.setattr(machine, "software", lambda: {"torch": "another"})
    with refused(r"mine/cpu cannot be gone on with, .*: software_id was '\w+' and is '\w+'; give this"):
        walked("cpu")
    pd.testing.assert_frame_equal(aggregate.read(folder).table, before)


def test_what_befalls_a_card_takes_no_table_from_the_other(sure, monkeypatch):
    class Broken(Sure):
        def ready(self):
            if self.device == "cuda:1":
                raise RuntimeError("no words for this")
            return super().ready()

    monkeypatch.setattr(device_sweep, "Visitor", Broken)
    sure(2)
    with pytest.raises(RuntimeError, match="no words for this"):
        walked("cuda:0,cuda:1")
    folder = paths.SWEEPS / "mine"
    table = aggregate.read(folder).table
    assert len(table) == 3 and set(table["device"]) == {"cuda:0"}, "its share"
    assert aggregate.read(folder).failures == {"cuda:1": "RuntimeError: no words for this"}


def test_the_same_call_again_measures_the_share_of_a_card_that_is_back(sure, monkeypatch):
    class Away(Sure):
        def ready(self):
            if self.device == "cuda:1":
                raise InputError("cuda:1 is held")
            return super().ready()

    sure(2)
    asked = SweepParams(**{**QUICK, **WALK, "device": "cuda:0,cuda:1"})
    with monkeypatch.context() as patch:
        patch.setattr(device_sweep, "Visitor", Away)
        folder = sweep.measure_sweep(asked)
    before = len(Sure.at_work)
    assert sweep.measure_sweep(asked) == folder and set(Sure.at_work[before:]) == {"cuda:1"}
    result = aggregate.read(folder)
    assert result.table["config"].nunique() == 6 and "FAILED" not in result.note
    assert sweep.measure_sweep(asked).name == f"{folder.name}-v2", "a finished one is left as it is"


@pytest.mark.parametrize("error, told", [
    (RuntimeError("CUDA error: unspecified launch failure\nCompile with ..."),
     "^cuda:0 broke; what was measured until then is kept: RuntimeError: CUDA e"),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
     "^cuda:0 has too little memory left: OutOfMemoryError: CUDA out of memory. Tr"),
    (RuntimeError("shape"), "^shape")])
def test_a_gpu_that_breaks_ends_a_run_in_one_line(error, told):
    with pytest.raises(RuntimeError if told == "^shape" else InputError, match=told), machine.working(torch.device("cuda:0")):
        raise error


def parted(of, **more):
    return [walked("cpu", name=f"part-{number}", shard=f"{number}/{of}", **more)[0] for number in range(of)]


def test_merged_shards_are_exactly_the_rows_of_the_shards(sure, monkeypatch):
    sure(0)
    _, whole = walked("cpu")
    parts = parted(3)
    merged = sweep.sweep(SweepParams(merge=f"{paths.SWEEPS}/part-*", name="together"))
    alone = [aggregate.read(part) for part in parts]
    pd.testing.assert_frame_equal(merged.table, pd.concat([part.table for part in alone], ignore_index=True))
    assert sorted(merged.table["config"]) == sorted(whole["config"])
    assert sweep.merge(parts, "together") == merged.folder, "the same cell again reads it"
    with refused("part-0 exists already; give another name .-p name"):
        sweep.merge(parts, "part-0")
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr(store, "write_json", Mock(side_effect=KeyboardInterrupt))
        sweep.merge(parts, "cut")
    assert not (paths.SWEEPS / "cut").exists(), "it is there as a whole or not at all"
    sweep.merge(parts, "cut")
    with refused("merge = 'none-\\*' is no folder of a shard, and no pattern"):
        sweep.sweep(SweepParams(merge="none-*"))


def test_shards_of_a_sampled_sweep_share_its_points(sure):
    sure(0)
    merged = aggregate.read(sweep.merge(parted(2, op="activation", grid="", count=8), "both"))
    assert merged.table["config"].nunique() == 16


def test_shards_that_do_not_make_one_sweep_are_refused_and_nothing_is_written(sure):
    sure(0)
    parts = parted(3)
    other = walked("cpu", rounds=4, name="other", shard="2/3")[0]
    half = walked("cpu", name="half", shard="1/2")[0]
    moved = Path(shutil.copytree(parts[0], paths.SWEEPS / "moved"))
    table = aggregate.read(moved).table.assign(hardware_id="another")
    store.write(table, moved / "sweep.parquet", "sweep", derived=True)
    for folders, words in ((parts[:2], "all shards .* are needed, each once; these are 0/3, 1/3"),
                           ([*parts, parts[0]], "these are 0/3, 0/3, 1/3, 2/3"),
                           ([*parts[:2], other], "of different sweeps: they differ in rounds"),
                           ([*parts[:2], half], "these are 0/3, 1/2, 1/3"),
                           ([paths.SWEEPS / "none"], "has no sweep.parquet"),
                           ([moved, *parts[1:]], "not merged, for their hardware_id differs: .*another")):
        with refused(words):
            sweep.merge(folders, "merged")
    assert not (paths.SWEEPS / "merged").exists()


# ------------------------------------------------------------------------------------------------ on a real card

STRANGER = """
import torch
left = torch.randn(4096, 4096, device="cuda:0")
print("ready", flush=True)
while True:
    torch.mm(left, left)
    torch.cuda.synchronize()
"""


@pytest.mark.cuda
def test_a_sweep_on_a_card_knows_itself_and_its_leader_is_not_on_it(home):
    folder, table = swept(device="cuda:0")
    visits = store.read(folder / "cuda-0/repeats.csv", "repeats")
    assert (table["status"] == "ok").all()
    assert (visits["gpu_mhz"] > 0).all() and visits["gpu_unknown"].isna().all(), visits["gpu_unknown"].unique()
    assert visits["gpu_others"].median() < 0.1
    assert not torch.cuda.memory_reserved(0), "the leader has no memory there"


@pytest.mark.cuda
def test_a_stranger_on_a_card_is_seen(home):
    machine.use(torch.device("cuda:0"))
    with subprocess.Popen(["setsid", sys.executable, "-c", STRANGER], stdout=subprocess.PIPE, text=True) as stranger:
        try:
            assert stranger.stdout.readline() == "ready\n"
            time.sleep(3)
            used = GpuWatch(0, {os.getpid()}).reading()
        finally:
            stranger.kill()
    assert used.verdict() != "stable", used
