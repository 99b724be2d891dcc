"""GPUs that are not there: whose load it is, devices side by side, shards apart, and what may befall a card."""

import itertools
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from lib import __main__ as command
from lib import locks, paths, store
from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.measure import load, machine
from lib.measure.gpus.card import Card
from lib.measure.gpus.watch import GpuUse, GpuWatch
from lib.measure.operators import aggregate, device_sweep, points, shards, sweep, visitor
from lib.work.graph import spaces
from tests import fake_gpus

QUICK = {"op": "activation,linear", "budget_s": 0, "count": 6, "rounds": 3, "visit_ms": 8, "patience_s": 0, "threads": 1}
WORKER = visitor._visits  # what a worker serves, which a box sets aside
GRID = spaces.Grid(op="pool2d", axes={
    "kind": ["max"], "batch": [1], "in_channels": [2], "height": [8, 9, 10, 11, 12, 13], "width": "height", "kernel_h": [2],
    "kernel_w": [2], "stride_h": [2], "stride_w": [2], "padding_h": [0, 2], "padding_w": [0]})  # half of it is invalid
WALK = {"op": "pool2d", "grid": "pools", "count": 0, "budget_s": 0, "rounds": 3}


@pytest.fixture
def box(home, monkeypatch):
    """Return a maker of boxes with some cards, which this process and its workers see."""
    def make(count=2, **everywhere):
        made = fake_gpus.Box(home, count, **everywhere)
        monkeypatch.setenv(fake_gpus.FILE, str(made.path))
        monkeypatch.setattr(visitor, "_visits", fake_gpus.visits)
        monkeypatch.delenv(locks.MASK, raising=False)
        machine.hardware.cache_clear(), machine._driver.cache_clear()
        for patch in fake_gpus.patches():
            patch.start()
            started.append(patch)
        return made

    started, sweeps = [], spaces.load_sweeps()
    limited = sweeps.model_copy(update={"limits": spaces.Limits(most_flops=1e6, most_bytes=1e6), "grids": {"pools": GRID}})
    monkeypatch.setattr(spaces, "load_sweeps", lambda *_: limited)
    yield make
    for patch in reversed(started):
        patch.stop()
    machine.hardware.cache_clear(), machine._driver.cache_clear()


def swept(**more):
    folder = sweep.measure_sweep(SweepParams(**{**QUICK, "name": "mine", **more}))
    return folder, aggregate.read(folder).table


@pytest.mark.slow
def test_cards_alike_share_the_points_and_one_that_breaks_leaves_its_rest_to_the_other(box):
    cards_here = box(2)
    cards_here.change(0, waits_for=1)
    cards_here.change(1, breaks_after=12)
    folder, table = swept(device="cuda:0,cuda:1", count=10)
    (failure,) = store.read_json(folder / "sweep.meta.json")["failures"].values()
    assert "cuda:1 was lost after" in failure and "unspecified launch failure" in failure and "'cuda:1' is not here" in failure
    assert len(table) == 10 and table["config"].is_unique, "each point is measured once, those of the lost card too"
    kept = table[table["device"] == "cuda:1"]
    assert len(kept) and (kept["status"] == "ok").all() and kept["latency_ms"].notna().all(), "what it measured is kept"
    assert set(table.loc[table["device"] == "cuda:0", "verdict"]) == {"stable"}, table[["device", "reason"]].to_string()
    visits = store.read_all(sorted(folder.glob("*/repeats.csv")), "repeats")
    assert (visits["gpu_others"] == 0).all(), "the workers of a run are no strangers to each other"
    assert (visits["gpu_mhz"] == 1410).all()


SEEN = {"": ("stable", "others used 0% of the GPU"), "quiet stranger": ("stable", "others used 5% of the GPU"),
        "stranger": ("noisy", "others used 40% of the GPU"), "busy stranger": ("unusable", "others used 80% of the GPU"),
        "hot": ("noisy", "the GPU was throttled: too hot (driver)"), "absent": ("noisy", "nvidia-ml-py is not installed"),
        "another": ("noisy", "no NVML: NVMLError: Driver/library version mismatch"),
        "shy": ("noisy", "the driver does not tell who uses the GPU"), "old": ("noisy", "its share is not told")}


@pytest.mark.parametrize("case", SEEN)
def test_a_gpu_is_judged_by_its_own_users_and_clock(box, case):
    here = box(2)
    shares = {"quiet stranger": 0.05, "stranger": 0.4, "busy stranger": 0.8, "old": 0.4}
    here.change(0, stranger=1 if case in shares else None, share=shares.get(case, 0.0), reasons=0x24 if case == "hot" else 0)
    if case in ("absent", "another", "shy", "old"):
        here.nvml(case)
        for patch in (patches := fake_gpus.patches()[-1:]):
            patch.start()
    try:
        machine.use(machine.device("cuda:0"))
        with load.LoadWatch("cuda:0") as watch:
            seen = watch.reading()
    finally:
        if case in ("absent", "another", "shy", "old"):
            patches[0].stop()
    verdict, words = SEEN[case]
    assert seen.verdict(threads=1) == verdict and words in seen.words()
    assert case in ("absent", "another") or seen.gpu.clock_mhz == 1410
    busy = load.Load(1.0, 0.0, 64.0, 1.0, 0.0, seen.gpu)
    assert busy.verdict(threads=64) == verdict, "the load of the host says nothing of a GPU"


def test_in_a_container_the_processes_of_the_host_have_other_numbers(box):
    here = box(1)
    machine.use(machine.device("cuda:0"))
    here.nvml("container")
    own = load.OwnProcesses()
    assert GpuWatch(0, own.pids).reading().others == 0.0, "the only one there is this one"
    here.change(0, stranger=7, share=0.3)
    assert GpuWatch(0, own.pids).reading().others == pytest.approx(0.3), "the busiest of two is taken for this one"


@pytest.mark.parametrize(("mask", "in_use", "number", "uuid"), [
    (None, False, 1, "GPU-bb11"), (None, True, 1, "GPU-aa00"), ("1,0", False, 0, "GPU-bb11"),
    ("GPU-bb,GPU-aa", False, 0, "GPU-bb11")])
def test_a_card_is_the_one_that_cuda_calls_so(box, monkeypatch, mask, in_use, number, uuid):
    """Where CUDA is in use and counts cards by their speed, here in the reverse order, NVML is asked for its UUID."""
    here = box(2)
    here.change(0, uuid="GPU-aa00")
    here.change(1, uuid="GPU-bb11")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "get_device_properties",
                        lambda number: SimpleNamespace(uuid=fake_gpus.here()[1 - number]["uuid"].removeprefix("GPU-")))
    if mask:
        monkeypatch.setenv(locks.MASK, mask)
    assert Card(number).value("nvmlDeviceGetUUID") == uuid


def test_a_card_in_exclusive_mode_says_who_has_it(box):
    box(1, mode=3, stranger=4711)
    with pytest.raises(InputError, match=r"cuda:0 cannot be used: .*busy or unavailable \(it is in exclusive mode, and process "
                                         r"4711 has it\)"):
        machine.use(machine.device("cuda:0"))


def test_a_worker_that_comes_back_to_another_card_is_refused(box):
    here = box(2)
    with pytest.raises(InputError, match="cuda:1 is now GPU-0001 and was GPU-0007: a card is lost"), \
            WORKER("cuda:1", 1, 1.0, 0.0, "GPU-0007"):
        pass
    here.change(0, gone=True)  # the one behind it moves up
    with pytest.raises(InputError, match="cuda:0 is now GPU-0001 and was GPU-0000"), WORKER("cuda:0", 1, 1.0, 0.0, "GPU-0000"):
        pass


# ------------------------------------------------------------------------------------------------ what the table says

def visits(**gpu):
    columns = {**GpuUse(others=0.0, clock_mhz=1410.0).columns, **gpu}
    facts = {"n": 9, "calls": 1, "spread_ms": 0.0, "at_s": 0.0, "visit_s": 0.05, "other_cores": 12.0, "stolen_cores": 0.0,
             "yardstick_ms": float("nan"), "status": "ok", "reason": ""}
    return pd.DataFrame([{"config": key, "round": number, "latency_ms": 1.0 + 0.001 * number, **facts,
                          **{name: value[number] if isinstance(value, list) else value for name, value in columns.items()}}
                         for number in range(6) for key in "ab"])


@pytest.mark.parametrize(("gpu", "n", "verdict", "why"), [
    ({}, 6, "stable", ""),
    ({"gpu_throttled": ["power brake"] * 2 + [""] * 4}, 4, "stable", ""),
    ({"gpu_throttled": ["power brake"] * 4 + [""] * 2}, 6, "noisy", r"GPU was throttled in 4 of 6 rounds \(power brake\)"),
    ({"gpu_mhz": [900.0] * 3 + [1410.0] * 3}, 3, "stable", ""),
    ({"gpu_mhz": [900.0] * 4 + [1410.0] * 2}, 6, "noisy", "GPU was throttled in 4 of 6 rounds"),
    ({"gpu_others": 0.3}, 6, "noisy", "others used 30% of the GPU"), ({"gpu_others": 0.9}, 6, "unusable", "others used 90%"),
    ({"gpu_others": float("nan"), "gpu_unknown": "no NVML"}, 6, "noisy", "who else used the GPU is not known: no NVML")])
def test_the_rounds_of_a_gpu_are_judged_by_the_gpu(gpu, n, verdict, why):
    row = aggregate.summarise(visits(**gpu)).iloc[0]
    assert (row["n"], row["verdict"]) == (n, verdict)
    assert pd.Series([row["why"]]).str.contains(why).all() and bool(row["why"]) == (verdict != "stable")
    assert row["other_cores"] == 12.0, "what the host did is in the row, and does not count"


def test_strangers_on_cores_that_a_sweep_leaves_idle_do_not_count():
    quiet = visits(gpu_others=float("nan"), gpu_mhz=float("nan")).assign(yardstick_ms=1.0, other_cores=3.0)
    assert set(aggregate.summarise(quiet, spare_cores=8)["verdict"]) == {"stable"}
    assert set(aggregate.summarise(quiet, spare_cores=2)["verdict"]) == {"unusable"}


# ------------------------------------------------------------------------------------------------ points and shards

class Sure:
    """A worker in this process, whose times depend on the configuration alone; it notes which devices were at work."""

    devices = []

    def __init__(self, device, p):
        self.device = device

    def ready(self):
        cards_here = fake_gpus.here()
        free = cards_here[int(self.device[-1])]["free"] if self.device != "cpu" else 1e12
        return {**machine.identity(), "threads": 1, "free_bytes": free, "meter": "not measured"}

    def visit(self, config, ops):
        Sure.devices.append(self.device)
        number = len(Sure.devices)
        return {"latency_ms": 1 + int(config.key, 16) / 1e15 + number * 1e-9, "spread_ms": 0.0, "yardstick_ms": 1.0, "n": 5,
                "calls": 5, "at_s": 0.1 * number, "visit_s": 0.1, "other_cores": 0.0, "stolen_cores": 0.0, "status": "ok",
                "reason": "", **GpuUse(others=0.0, clock_mhz=1410.0).columns}

    def shut_down(self):
        pass


@pytest.fixture
def sure(box, monkeypatch):
    Sure.devices = []
    monkeypatch.setattr(device_sweep, "Visitor", Sure)
    return box


def test_all_measures_the_cpu_apart_and_cards_of_each_kind_share_the_grid(sure):
    sure(3).change(2, name="Fake B")
    machine.hardware.cache_clear()
    _, table = swept(**WALK, device="all")
    order = Sure.devices
    assert order[:18] == ["cpu"] * 18 and "cpu" not in order[18:], "the CPU first, alone"
    cpu, first, second, another = (set(table.loc[table["device"] == name, "config"])
                                   for name in ("cpu", "cuda:0", "cuda:1", "cuda:2"))
    assert cpu == another == first | second and len(cpu) == 6
    assert not first & second


def test_what_a_card_measured_that_is_gone_is_not_measured_again(sure):
    here = sure(2)
    _, before = swept(**WALK, device="cuda:1")
    visited = len(Sure.devices)
    here.change(1, gone=True)
    machine.hardware.cache_clear()
    _, after = swept(**WALK, device="cuda:0")
    assert len(Sure.devices) == visited
    pd.testing.assert_frame_equal(after, before)


def test_what_a_card_of_another_model_measured_does_not_count(sure):
    here = sure(2)
    here.change(1, name="Fake B")
    machine.hardware.cache_clear()
    _, before = swept(**WALK, device="cuda:1")
    here.change(1, gone=True)
    machine.hardware.cache_clear()
    _, after = swept(**WALK, device="cuda:0")
    assert set(after.loc[after["device"] == "cuda:0", "config"]) == set(before["config"])


def test_a_sweep_is_not_gone_on_with_on_another_card(sure):
    here = sure(2)
    here.change(1, name="Fake B")
    machine.hardware.cache_clear()
    folder, before = swept(**WALK, device="cuda:0")
    here.change(0, gone=True)  # the one behind it moves up
    machine.hardware.cache_clear()
    with pytest.raises(InputError, match="mine/cuda-0 cannot be gone on with, cuda:0 is another one now: name was 'Fake A' and "
                                         "is 'Fake B'; give this sweep another name"):
        swept(**WALK, device="cuda:0")
    pd.testing.assert_frame_equal(aggregate.read(folder).table, before)
    here.change(0, gone=False)
    machine.hardware.cache_clear()
    pd.testing.assert_frame_equal(swept(**WALK, device="cuda:0")[1], before)


def test_a_sweep_is_not_gone_on_with_by_other_software(sure, monkeypatch):
    sure(0)
    swept(**WALK, device="cpu")
    monkeypatch.setattr(machine, "software", lambda: {"torch": "another"})
    with pytest.raises(InputError, match=r"mine/cpu cannot be gone on with, .*: software_id was '\w+' and is '\w+'; give this"):
        swept(**WALK, device="cpu")


@pytest.mark.parametrize(("words", "raised"), [("CUDA error: unspecified launch failure\nmore", ()),
                                               ("no words for this", RuntimeError)])
def test_what_befalls_a_card_takes_no_table_from_the_other(sure, monkeypatch, words, raised):
    class Broken(Sure):
        def ready(self):
            if self.device == "cuda:1":
                raise RuntimeError(words)
            return super().ready()

    monkeypatch.setattr(device_sweep, "Visitor", Broken)
    sure(2)
    if raised:
        with pytest.raises(raised, match=words):
            swept(**WALK, device="cuda:0,cuda:1")
    else:
        swept(**WALK, device="cuda:0,cuda:1")
    folder = paths.SWEEPS / "mine"
    table = aggregate.read(folder).table
    assert len(table) == 6 and set(table["device"]) == {"cuda:0"}
    assert store.read_json(folder / "sweep.meta.json")["failures"] == {"cuda:1": f"RuntimeError: {words.splitlines()[0]}"}


def test_points_are_drawn_once_however_many_threads_take_them(box):
    several = points.Points(SweepParams(**{**QUICK, "count": 60}))
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: list(iter(lambda: several.take(1e12, (), lambda: False), None)), range(4)))
    keys = [config.key for part in parts for config, _ in part]
    assert len(keys) == len(set(keys)) == 60
    alone = points.Points(SweepParams(**{**QUICK, "count": 60}))
    assert set(keys) == {config.key for config, _ in iter(lambda: alone.take(1e12, (), lambda: False), None)}


def test_a_space_of_few_points_is_drawn_to_its_end_and_ends_no_sweep(box, monkeypatch):
    drawn = list(itertools.islice(spaces.several(["activation"], spaces.load_sweeps(), 0), 3))

    def few(*_):
        yield from drawn
        raise InputError("no new valid point")

    monkeypatch.setattr(points.spaces, "several", few)
    shared = points.Points(SweepParams(**{**QUICK, "op": "activation"}))
    taken = list(iter(lambda: shared.take(1e12, (), lambda: False), None))
    assert len(taken) == len(drawn) and shared.last_invalid == "no new valid point"
    drawn.clear()
    with pytest.raises(InputError, match="no new valid point"):
        points.Points(SweepParams(**{**QUICK, "op": "activation"})).take(1e12, (), lambda: False)


def test_a_point_too_large_for_one_card_is_left_to_one_with_room(box):
    shared = points.Points(SweepParams(**{**QUICK, "op": "activation"}))
    shared.join("cuda:0", 10.0)
    first = shared.take(10.0, (), lambda: False)
    assert shared.refuse(first), "it is too large for all that are there"
    shared.join("cuda:1", 1e12)
    assert shared.take(1e12, (), lambda: False) == first, "one that comes later has room"
    second = shared.take(10.0, (), lambda: False)
    assert not shared.refuse(second) and shared.left == 1
    assert shared.take(1e12, (), lambda: False) == second


def test_a_point_that_only_a_lost_card_had_room_for_is_refused_by_the_others(sure, monkeypatch):
    class Lost(Sure):
        def visit(self, config, ops):
            if self.device == "cuda:0":
                raise machine.DeviceLostError("gone")
            return super().visit(config, ops)

    monkeypatch.setattr(device_sweep, "Visitor", Lost)
    sure(2).change(1, free=6000)
    _, table = swept(**WALK, device="cuda:0,cuda:1")
    assert table["device"].tolist() == ["cuda:1"] * 6
    assert table["status"].value_counts().to_dict() == {"ok": 3, "skipped": 3}


def test_a_card_whose_memory_another_user_holds_loses_no_point(sure):
    sure(2).change(1, free=1000)
    _, table = swept(**WALK, device="cuda:0,cuda:1")
    good = table[table["status"] == "ok"]
    assert len(good) == 6 and set(good["device"]) == {"cuda:0"}
    assert table.loc[table["status"] != "ok", "reason"].str.contains("MB needed, 0.0005 MB allowed by memory_share").all()
    with pytest.raises(InputError, match=r"cuda:1: no valid point to measure \(6 invalid, 6 skipped\); the last: .* MB needed"):
        swept(**WALK, device="cuda:1", name="alone")


def test_a_gpu_that_breaks_ends_a_run_in_one_line():
    with pytest.raises(InputError, match="cuda:0 broke; what was measured until then is kept: RuntimeError: CUDA e"), \
            machine.working(torch.device("cuda:0")):
        raise RuntimeError("CUDA error: unspecified launch failure\nCompile with ...")
    with pytest.raises(InputError, match="^cuda:0 has too little memory left: OutOfMemoryError: CUDA out of memory. Tr"), \
            machine.working(torch.device("cuda:0")):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with pytest.raises(RuntimeError, match="shape"), machine.working(torch.device("cuda:0")):
        raise RuntimeError("shape")


def parted(of, **more):
    return [swept(**WALK, device="cpu", **{**more, "name": f"part-{number}", "shard": f"{number}/{of}"})[0]
            for number in range(of)]


def test_merged_shards_are_exactly_the_rows_of_the_shards(sure, capsys):
    sure(0)
    _, whole = swept(**WALK, device="cpu")
    parts = parted(3)
    assert command.main(["sweeps", "merge", *map(str, parts), "--name", "together"]) == 0
    merged = aggregate.read(paths.SWEEPS / "together")
    pd.testing.assert_frame_equal(merged.table, pd.concat([aggregate.read(part).table for part in parts], ignore_index=True))
    assert sorted(merged.table["config"]) == sorted(whole["config"])
    assert len(merged.visits) == sum(len(aggregate.read(part).visits) for part in parts)
    with pytest.raises(InputError, match="together exists already"):
        shards.merge(parts, "together")
    with pytest.raises(InputError, match="holds another sweep, with shard = 'all'"):
        swept(**WALK, device="cpu", name="together")


def test_shards_of_a_sampled_sweep_share_its_points(sure):
    sure(0)
    parts = [swept(device="cpu", name=f"part-{number}", shard=f"{number}/2", count=8)[1] for number in range(2)]
    assert not set(parts[0]["config"]) & set(parts[1]["config"])
    assert len(shards.merge([paths.SWEEPS / "part-0", paths.SWEEPS / "part-1"], "both")[0].name) == 4


def test_shards_that_do_not_make_one_sweep_are_refused_and_nothing_is_written(sure):
    sure(0)
    parts = parted(3)
    other = swept(**{**WALK, "rounds": 4}, device="cpu", name="other", shard="2/3")[0]
    half = swept(**WALK, device="cpu", name="half", shard="1/2")[0]
    torn = paths.SWEEPS / "torn"
    shutil.copytree(parts[0], torn)
    (torn / "sweep.parquet").unlink()
    for folders, words in (([*parts[:2]], "shards 2/3 are missing"), ([*parts, parts[0]], "are both 0/3"),
                           ([*parts[:2], other], "of different sweeps: they differ in rounds"),
                           ([*parts[:2], half], "shards overlap: .* is one of 3, .*half one of 2"),
                           ([*parts[1:], torn], "torn has no sweep.parquet"), ([paths.SWEEPS / "none"], "has no plan.json")):
        with pytest.raises(InputError, match=words):
            shards.merge(folders, "merged")
    moved = aggregate.read(parts[0]).table.assign(hardware_id="another")
    store.write(moved, parts[0] / "sweep.parquet", "sweep", derived=True)
    with pytest.raises(InputError, match="not merged, for their hardware_id differs: .* in .*part-1, another in .*part-0|"
                                         "not merged, for their hardware_id differs: another in .*part-0"):
        shards.merge(parts, "merged")
    assert not [path for path in paths.SWEEPS.iterdir() if "merg" in path.name and path.suffix != ".lock"]


def test_the_verb_measures_refuses_what_it_does_not_know_and_says_which_device_failed(sure, capsys):
    sure(1, free=1000)
    words = ["sweeps", "measure", *(word for pair in WALK.items() for word in ("-p", pair[0], str(pair[1])))]
    assert command.main([*words, "-p", "name", "verb", "-p", "threads", "1"]) == 1
    out = capsys.readouterr()
    assert "data/sweeps/verb: 6 points, 0 of them not measured; 6 stable" in out.out
    assert out.err.splitlines()[-1].startswith("failed: cuda:0: no valid point to measure (6 invalid, 6 skipped)")
    assert command.main([*words, "-p", "round", "3"]) == 2
    assert "round" in capsys.readouterr().err


def test_points_that_a_shard_misses_are_counted(sure, capsys):
    sure(0)
    parts = parted(2)
    table = aggregate.read(parts[1]).table
    store.write(table.iloc[1:], parts[1] / "sweep.parquet", "sweep", derived=True)
    assert command.main(["sweeps", "merge", *map(str, parts)]) == 1
    out = capsys.readouterr()
    assert "merged: 5 points of 2 shards" in out.out
    assert out.err == "shard 1/2 misses 1 points: the line that measured it goes on with it\n"
    assert "FAILED: shard 1/2 misses 1 points." in aggregate.read(paths.SWEEPS / "merged").note


def test_a_shard_beyond_the_limit_is_an_error(sure, monkeypatch):
    sure(0)
    monkeypatch.setattr(spaces, "_MOST_ORDERED", 4)
    with pytest.raises(InputError, match="grid pools: shard 0/2 has 6 points, of which 4 at most are walked; take one of 3 or"):
        swept(**WALK, device="cpu", shard="0/2")
    with pytest.raises(InputError, match="shard 0/2 has 6 points.*; what was measured is in .*mine"):
        swept(**{**WALK, "budget_s": 100}, device="cpu", shard="0/2")
    assert len(aggregate.read(paths.SWEEPS / "mine").table) > 0, "and it is kept"


# ------------------------------------------------------------------------------------------------ on a real card

ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
STRANGER = """
import sys, time, torch
left = torch.randn(4096, 4096, device="cuda:0")
print("ready", flush=True)
while True:
    torch.mm(left, left)
    torch.cuda.synchronize()
"""


@ON_CUDA
@pytest.mark.slow
def test_a_sweep_on_a_card_knows_itself_and_its_leader_is_not_on_it(home):
    folder = sweep.measure_sweep(SweepParams(**QUICK, device="cuda:0", name="real"))
    visits, table = store.read(folder / "cuda-0" / "repeats.csv", "repeats"), aggregate.read(folder).table
    assert (table["status"] == "ok").all()
    assert (visits["gpu_mhz"] > 0).all() and visits["gpu_unknown"].isna().all(), visits["gpu_unknown"].unique()
    assert visits["gpu_others"].median() < 0.1
    assert not torch.cuda.memory_reserved(0), "the leader has no memory there"


@ON_CUDA
@pytest.mark.slow
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
