"""Sweeps: what is measured, what is written, what survives; and what the table says of the visits."""

import dataclasses
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import psutil
import pytest

from lib import __main__, locks, paths, store, tables
from lib.config import notebooks
from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.measure import compare, importers, machine, statistics
from lib.measure.gpus.watch import GpuUse
from lib.measure.networks import allocator
from lib.measure.operators import aggregate, device_sweep, export, sweep, visit, visitor
from lib.studies.sweep import findings
from lib.work.graph import spaces
from tests.interrupted import cut_again_and_again

SMALL = {"op": "activation,linear", "device": "cpu", "budget_s": 0, "count": 6, "rounds": 3, "visit_ms": 2, "patience_s": 0,
         "threads": 1}


@pytest.fixture
def small_space(monkeypatch):
    """Draw small points alone: these tests look at what is written."""
    sweeps = spaces.load_sweeps()
    limited = sweeps.model_copy(update={"limits": spaces.Limits(most_flops=1e6, most_bytes=1e6)})
    monkeypatch.setattr(spaces, "load_sweeps", lambda *_: limited)
    return limited


@pytest.fixture
def grids(monkeypatch, small_space):
    def use(**named):
        monkeypatch.setattr(spaces, "load_sweeps", lambda *_: small_space.model_copy(update={
            "grids": {name: spaces.Grid(**grid) for name, grid in named.items()}}))
    return use


POOL = {"op": "pool2d", "axes": {"kind": ["max"], "batch": [1], "in_channels": [2], "height": [8, 9, 10, 11, 12, 13],
                                 "width": "height", "kernel_h": [2], "kernel_w": [2], "stride_h": [2], "stride_w": [2],
                                 "padding_h": [0], "padding_w": [0]}}


@pytest.mark.slow
def test_a_sweep_gives_a_valid_table_and_goes_on_or_starts_anew(home, small_space):
    folder = sweep.measure_sweep(SweepParams(**SMALL, latency_type="both", cache="both"))
    result = aggregate.read(folder)
    assert len(result.table) == 6
    assert (result.table["status"] == "ok").all()
    raw = store.read(folder / "cpu" / "repeats.csv", "repeats")
    for row in result.table.itertuples():
        latencies = raw.loc[raw["config"] == row.config, "latency_ms"]
        assert latencies.min() <= row.low_ms <= row.latency_ms <= row.high_ms <= latencies.max()
        spread = row.latency_iqr_ms / row.latency_ms
        least = "stable" if spread <= 0.10 and row.n >= 3 else "noisy" if spread <= 0.25 else "unusable"
        assert statistics.worst(row.verdict, least) == row.verdict, "never better than its rounds allow"
        assert bool(row.reason) == (row.verdict != "stable"), "and what is not stable says why"
    assert set(result.table["latency_type"]) == {"kernel", "end_to_end"}
    assert set(result.table["cache"]) == {"warm", "cold"}
    assert result.table["config"].is_unique
    assert result.table["energy_reason"].str.contains("energy_s is 0").all()
    worker = store.read_json(folder / "sweep.meta.json")["devices"]["cpu"]["software"]
    assert worker["environment"].items() >= allocator.RETAINED.items(), "the worker keeps what it frees, and says so"
    assert not os.environ.keys() & allocator.RETAINED.keys()
    for row in result.table.itertuples():
        config = spaces.config(row.op, {name: getattr(row, name) for name in spaces.families.family(row.op).parameters
                                        if not pd.isna(getattr(row, name))}, row.dtype, result.table.loc[row.Index, "pass"])
        assert spaces.work(config.ops()) == (row.flops, row.bytes)
        assert row.gflops == pytest.approx(row.flops / row.latency_ms / 1e6)
    again = sweep.measure_sweep(SweepParams(**SMALL, latency_type="both", cache="both"))
    assert again.name == f"{folder.name}-v2"
    named = SweepParams(**SMALL, name="mine")
    assert sweep.measure_sweep(named) == sweep.measure_sweep(named) == paths.SWEEPS / "mine"
    with pytest.raises(InputError, match="holds another sweep, with count = 6"):
        sweep.measure_sweep(SweepParams(**{**SMALL, "count": 7}, name="mine"))


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_every_row_once(tmp_path):
    result = cut_again_and_again(tmp_path, kills=2, count=24, seed=1)
    assert result["kills"] == 2
    assert result == {"kills": 2, "rows": result["rows"], "lost": 0, "torn": 0, "twice": 0, "configurations": 24, "repeated": 0,
                     "missing": 0}


@pytest.mark.slow
def test_of_two_at_once_whose_worker_is_killed_one_goes_on_and_the_other_finds_all_rows(home, small_space, monkeypatch):
    monkeypatch.setattr(visitor, "_DEATHS", 1)
    raw = paths.SWEEPS / "killed" / "cpu" / "repeats.csv"

    def workers():
        return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]

    def kill_once():
        end = time.monotonic() + 60
        while time.monotonic() < end and not (raw.is_file() and raw.read_text().count("\n") > 3):
            time.sleep(0.01)
        counted.append(len(workers()))
        for child in workers():
            os.kill(child.pid, signal.SIGKILL)

    counted, p = [], SweepParams(**{**SMALL, "visit_ms": 100}, name="killed")
    threading.Thread(target=kill_once, daemon=True).start()
    with ThreadPoolExecutor(2) as pool:
        folder, other = pool.map(sweep.measure_sweep, (p, p))
    assert counted == [1], "the other one takes no device before it has the files"
    assert folder == other
    table, visits = aggregate.read(folder).table, store.read(raw, "repeats")
    failed = table[table["status"] == "failed"]
    assert len(failed) == 1
    assert "the worker was killed (signal 9): out of memory?" in failed["reason"].iloc[0]
    assert (table["status"] == "ok").sum() == 5
    assert not visits.duplicated(["config", "round"]).any()
    assert (visits.loc[visits["config"].isin(table.loc[table["status"] == "ok", "config"]), "round"] < 3).sum() == 15


@pytest.mark.slow
def test_a_hung_visit_is_given_up_and_a_family_that_always_fails_stops(home, small_space, monkeypatch):
    monkeypatch.setattr(device_sweep, "SAME_FAILURES", 2)
    monkeypatch.setattr(visitor, "_DEATHS", 1)
    with pytest.raises(InputError, match="cpu: stopped after 2 identical failures; activation: no answer within 0.001 s"):
        sweep.measure_sweep(SweepParams(**{**SMALL, "op": "activation", "visit_ms": 100}, timeout_s=0.001))
    (raw,) = paths.SWEEPS.glob("*/cpu/repeats.csv")
    assert store.read(raw, "repeats")["status"].tolist() == ["failed", "failed"]


@pytest.mark.slow
def test_an_element_type_that_the_device_lacks_is_a_row_and_then_a_stop(home, grids):
    grids(pools={**POOL, "dtypes": ["complex64"]})
    with pytest.raises(InputError, match="5 identical failures; pool2d: .*not implemented for 'ComplexFloat'"):
        sweep.measure_sweep(SweepParams(**{**SMALL, "op": "pool2d", "count": 0}, grid="pools"))


@pytest.mark.slow
def test_points_beyond_memory_are_rows_with_the_reason(home, grids):
    grids(pools={**POOL, "axes": {**POOL["axes"], "height": [8, 4000, 8000]}})
    folder = sweep.measure_sweep(SweepParams(**{**SMALL, "op": "pool2d", "count": 0}, grid="pools",
                                             memory_share=60e6 / psutil.virtual_memory().available))
    table = aggregate.read(folder).table.sort_values("height")
    assert table["status"].tolist() == ["ok", "skipped", "skipped"]
    assert table["reason"].str.contains("MB needed").tolist() == [False, True, True]
    assert table["latency_ms"].isna().tolist() == [False, True, True]


@pytest.mark.slow
def test_a_grid_without_a_valid_point_says_why(home, grids):
    grids(pools={**POOL, "axes": {**POOL["axes"], "padding_h": [2]}})
    with pytest.raises(InputError, match="no valid point to measure .6 invalid, 0 skipped.; the last: .*more than half"):
        sweep.measure_sweep(SweepParams(**{**SMALL, "op": "pool2d", "count": 0}, grid="pools"))


@pytest.mark.slow
@pytest.mark.parametrize(("change", "told"), [
    ({"op": "conv9d"}, "no operator family 'conv9d'; there are: conv2d"), ({"grid": "none"}, "no grid 'none'; there are"),
    ({"dtype": "fp7"}, "no element type 'fp7'"), ({"device": "cuda:99"}, "device 'cuda:99' is not here"),
    ({"device": "cpu,cpu"}, "device = 'cpu,cpu' names a device twice"), ({"device": "cpu,"}, "device = 'cpu,'"),
    ({"device": "auto,cpu"}, "devices 'auto,cpu': cpu is there twice"),
    ({"count": 0}, "it would never end"), ({"op": "linear", "grid": "original_linear", "shard": "9/8"}, "i below n"),
])
def test_wrong_parameters_are_told_before_anything_is_measured(home, change, told):
    with pytest.raises(InputError, match=told):
        sweep.measure_sweep(notebooks.check("03_sweep", {**SMALL, **change}))


@pytest.mark.slow
@pytest.mark.parametrize(("file", "text", "told"), [
    ("plan.json", None, "has no plan.json"), ("cpu/repeats.csv", "a,b\n1,2\n", "is no repeats table"),
    ("cpu/configs.csv", "\x00\xff", "configs.csv")])
def test_foreign_and_corrupt_files_are_refused_and_kept(home, small_space, file, text, told):
    folder = sweep.measure_sweep(SweepParams(**SMALL, name="mine"))
    path = folder / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=told):
        sweep.measure_sweep(SweepParams(**SMALL, name="mine"))
    assert text is None or path.read_text() == text


class Failing:
    """A worker whose visits all fail, each with a reason of its own or the one before."""

    def __init__(self, device, p):
        self._number = 0

    def ready(self):
        return {**machine.identity(), "threads": 1, "free_bytes": 1e12}

    def visit(self, config, ops):
        self._number += 1
        nothing = dict.fromkeys(("latency_ms", "spread_ms", "yardstick_ms"), float("nan"))
        return {**nothing, "n": 0, "calls": 0, "at_s": 0.0, "visit_s": 0.1, "other_cores": 0.0, "stolen_cores": 0.0,
                "status": "failed", "reason": f"reason {self._number // 2}", **GpuUse().columns}

    def shut_down(self):
        pass


def test_a_sweep_without_one_good_visit_says_why_and_keeps_its_rows(home, small_space, monkeypatch):
    monkeypatch.setattr(device_sweep, "Visitor", Failing)
    with pytest.raises(InputError, match="cpu: each of 3 configurations failed, 2 of them with: reason 1$"):
        sweep.measure_sweep(SweepParams(**{**SMALL, "count": 3}, name="failing"))
    table = aggregate.read(paths.SWEEPS / "failing").table
    assert table["status"].tolist() == ["failed"] * 3
    assert sorted(table["reason"]) == ["reason 0", "reason 1", "reason 1"]


def test_the_table_holds_every_device_of_a_folder(home, small_space, monkeypatch):
    monkeypatch.setattr(device_sweep, "Visitor", Failing)
    monkeypatch.setattr(machine, "devices", lambda: ["cpu", "cuda:0"])
    for device in ("cpu", "cuda:0"):
        with pytest.raises(InputError, match=f"{device}: each of 3"):
            sweep.measure_sweep(SweepParams(**{**SMALL, "count": 3, "device": device}, name="both"))
    assert aggregate.read(paths.SWEEPS / "both").table["device"].value_counts().to_dict() == {"cpu": 3, "cuda:0": 3}


def test_what_stops_a_device_unexpectedly_is_raised(home, small_space, monkeypatch):
    monkeypatch.setattr(device_sweep.DeviceSweep, "run", lambda self: 1 / 0)
    monkeypatch.setattr(device_sweep, "Visitor", Failing)
    with pytest.raises(ZeroDivisionError):
        sweep.measure_sweep(SweepParams(**SMALL))


@pytest.mark.parametrize("more", [{"count": 3, "budget_s": 0}, {"budget_s": 1e5}])
def test_a_space_that_is_too_large_for_the_memory_comes_to_an_end(home, small_space, monkeypatch, more):
    monkeypatch.setattr(device_sweep, "Visitor", Failing)
    monkeypatch.setattr(device_sweep, "_MOST_SKIPPED", 20)
    with pytest.raises(InputError, match=r"no valid point to measure \(0 invalid, 20 skipped\); the last: .* MB needed"):
        sweep.measure_sweep(SweepParams(**{**SMALL, **more}, memory_share=1e-10, name="tiny"))
    with pytest.raises(InputError, match="20 skipped"):
        sweep.measure_sweep(SweepParams(**{**SMALL, **more}, memory_share=1e-10, name="tiny"))


def test_the_same_sweep_in_another_process_is_waited_for_and_its_device_is_not_taken(home, monkeypatch):
    monkeypatch.setattr(locks, "PATIENCE_S", 0.1)
    monkeypatch.setattr(sweep, "DeviceSweep", lambda *_: pytest.fail("no worker may start"))
    with locks.writer(sweep._folder(SweepParams(**SMALL, name="one")) / "cpu"), \
            pytest.raises(InputError, match="one/cpu is being written by another process"):
        sweep.measure_sweep(SweepParams(**SMALL, name="one"))


NO_GPU = GpuUse().columns


def visits(latencies, others=0.0, status="ok", gpu=NO_GPU):
    facts = {"n": 9, "calls": 1, "spread_ms": 0.0, "at_s": 0.0, "visit_s": 0.05, "other_cores": others, "stolen_cores": 0.0,
             "yardstick_ms": 1.0, "status": status, "reason": "", **gpu}
    return pd.DataFrame([{"config": key, "round": number, "latency_ms": values[number], **facts}
                         for number in range(5) for key, values in latencies.items()])


def test_the_verdict_is_that_of_the_rounds():
    seen = visits({"a": [1, 1.01, 1.02, 1, 1], "b": [1, 1.2, 1, 1.2, 1.1], "c": [1, 2, 3, 1, 2]})
    table = aggregate.summarise(seen).set_index("config")
    assert table["verdict"].to_dict() == {"a": "stable", "b": "noisy", "c": "unusable"}
    assert table.loc["a", ["latency_ms", "low_ms", "high_ms", "n"]].tolist() == [1, 1, 1.02, 5]


def test_a_busy_neighbour_is_marked_not_wrong():
    alone = visits({key: [1.0] * 5 for key in "abcdef"})
    busy = visits({key: [9.0] * 5 for key in "abcdef"}, others=1.0)
    assert set(aggregate.summarise(busy)["verdict"]) == {"unusable"}
    half = pd.concat([alone, busy.assign(round=busy["round"] + 5)], ignore_index=True)
    table = aggregate.summarise(half)
    assert set(table["verdict"]) == {"stable"}
    assert set(table["latency_ms"]) == {1.0}


def test_fewer_than_three_rounds_are_never_stable():
    few = visits({"a": [1.0] * 5}).query("round < 2")
    assert aggregate.summarise(few)["verdict"].tolist() == ["noisy"]


def test_rows_that_repeat_the_last_result_are_found():
    good = np.random.default_rng(0).uniform(0.01, 1, 64)
    latency = pd.Series([*good, *[0.012223999947309494] * 142])
    work = pd.Series([*range(64), *range(1000, 1142)])
    result = aggregate.stale(latency, work)
    assert not result[:64].any()
    assert result[65:].all()
    quantised = pd.Series([0.007168, 0.008192, 0.007168, 0.007168, 0.008192])  # a clock of 1.024 us
    assert not aggregate.stale(quantised, pd.Series(range(5))).any()


@pytest.mark.slow
def test_a_sweep_whose_worker_repeats_itself_has_failed_rows(home, small_space):
    folder = sweep.measure_sweep(SweepParams(**SMALL, name="stale"))
    raw = folder / "cpu" / "repeats.csv"
    visits = store.read(raw, "repeats").assign(latency_ms=0.012223999947309494)
    raw.unlink()
    store.write(visits, raw, "repeats")
    table = aggregate.derive(folder, {"devices": store.read_json(folder / "sweep.meta.json")["devices"]})
    assert set(table["status"]) == {"failed"}
    assert set(table["reason"]) == {"it repeats the result before it to the last digit"}


@pytest.mark.slow
def test_the_export_has_the_originals_columns(home, small_space):
    folder = sweep.measure_sweep(SweepParams(**{**SMALL, "op": "conv2d", "count": 8}, latency_type="both"))
    header, *lines = (folder / "results_convolution.csv").read_text().splitlines()
    assert header == ("Batch size,In Channels,Out Channels,Kernel Size,Stride,Width,Height,Flops,Latency,Latency Type")
    rows = aggregate.read(folder).table
    rows = rows[rows["status"] == "ok"]
    others = (folder / "results_convolution_others.csv").read_text().splitlines()[1:]
    assert len(lines) == export.representable(rows).sum()
    assert len(lines) + len(others) == len(rows)


def convolutions(**changed):
    """Return rows of ``sweep``: convolutions that the original's columns describe, but for what is ``changed``: lists."""
    count = len(next(iter(changed.values())))
    texts = {column.name: "" for column in store.TABLES["sweep"] if column.kind == "text"}
    plain = {"op": "conv2d", "dtype": "fp32", "pass": "forward", "device": "cpu", "latency_type": "kernel", "cache": "warm",
             "status": "ok", "verdict": "stable", "batch": 2, "in_channels": 3, "out_channels": 4, "height": 8, "width": 10,
             "kernel_h": 3, "kernel_w": 3, "stride_h": 1, "stride_w": 1, "padding_h": 1, "padding_w": 1, "dilation_h": 1,
             "dilation_w": 1, "groups": 1, "bias": 0, "layout": "contiguous", "input_grad": 1, "latency_ms": 0.5,
             "flops": 2.0 * 2 * 4 * 80 * 27, "bytes": 1e3}
    frame = pd.DataFrame([{**dict.fromkeys(tables.columns("sweep")), **texts, **plain}] * count)
    return frame.assign(**changed)


def test_the_export_holds_what_the_originals_columns_can_say_and_nothing_else(tmp_path):
    differing = {"verdict": "unusable", "groups": 3, "dilation_h": 2, "dilation_w": 2, "kernel_w": 5, "stride_w": 2,
                 "padding_h": 0, "padding_w": 2, "bias": 1, "pass": "backward", "cache": "cold", "layout": "channels_last"}
    table = pd.concat([convolutions(latency_ms=[0.25, 0.5]), *(convolutions(**{name: [value]}) for name, value in
                                                              differing.items()),
                       convolutions(status=["failed"]), convolutions(op=["linear"])], ignore_index=True)
    export.write(table, tmp_path)
    back = importers.pytorch_scheduler(tmp_path / "results_convolution.csv")["v100-pcie-32gb"]
    assert back["latency_ms"].tolist() == [0.25, 0.5], "FLOPs are those of the shapes, or the reader would refuse"
    others = pd.read_csv(tmp_path / "results_convolution_others.csv")
    assert len(others) == len(differing)
    assert others[list(export.BESIDES)].drop(columns="Input Gradient").nunique().min() == 2
    assert list(others)[:12] == ["Device", "Datatype", *export.ORIGINAL]


def test_devices_and_element_types_have_a_file_each_and_one_together(tmp_path):
    where = [("cuda:1", "bf16"), ("cuda:0", "fp32"), ("cuda:1", "fp32"), ("cuda:0", "fp32")]
    table = convolutions(device=[one for one, _ in where], dtype=[other for _, other in where],
                         latency_ms=[1.0, 2.0, 3.0, 4.0], latency_type=["kernel", "kernel", "kernel", "end_to_end"])
    names = {path.name: pd.read_csv(path) for path in export.write(table, tmp_path)}
    assert sorted(names) == sorted(f"results_convolution{end}.csv" for end in (
        "", "_merged", "_others", "_cuda-1_bf16", "_cuda-0_fp32", "_cuda-1_fp32"))
    assert names["results_convolution_cuda-0_fp32.csv"]["Latency Type"].tolist() == ["external", "internal"]
    assert names["results_convolution.csv"].equals(names["results_convolution_cuda-0_fp32.csv"]), "the first in fp32"
    merged = names["results_convolution_merged.csv"]
    assert merged[["Device", "Datatype", "Latency"]].to_numpy().tolist() == [
        ["cuda:1", "bfloat16", 1.0], ["cuda:0", "float32", 2.0], ["cuda:1", "float32", 3.0], ["cuda:0", "float32", 4.0]]
    parts = sum(len(names[name]) for name in names if name.endswith(("fp32.csv", "bf16.csv")))
    assert parts == len(merged) == 4
    assert export.write(table[table["op"] == "linear"], tmp_path) == []


def made(home, name, factor):
    """Write a sweep table of twelve configurations, ``factor`` times as slow."""
    frame = pd.DataFrame({column.name: [None] * 12 for column in store.TABLES["sweep"]})
    base = np.linspace(1, 2, 12) * factor
    facts = {"op": "linear", "dtype": "fp32", "pass": "forward", "device": "cpu", "n": 5, "latency_type": "kernel",
             "cache": "warm", "status": "ok", "verdict": "stable", "hardware_id": "h", "software_id": "s", "threads": 2}
    frame = frame.assign(**facts, latency_ms=base, latency_iqr_ms=base * 0.01, low_ms=base * 0.99, high_ms=base * 1.01,
                         flops=1e6, bytes=1e3, gflops=1.0, gbps=1.0, tf32=False,
                         config=[f"{number:012d}" for number in range(12)])
    store.write(frame, paths.SWEEPS / name / "sweep.parquet", "sweep")


@pytest.mark.parametrize(("factor", "word", "status"), [(1.2, "slower", 1), (1.005, "same", 0), (0.8, "faster", 0)])
def test_two_sweeps_are_compared_pair_by_pair(home, capsys, factor, word, status):
    made(home, "a", 1.0)
    made(home, "b", factor)
    assert __main__.main(["compare", "a", str(paths.SWEEPS / "b"), "--out", str(home / "pairs.csv")]) == status
    told = capsys.readouterr().out
    assert f"B is {word}: B / A = {factor:.4f}" in told
    assert f"12 {word}" in told
    assert len(pd.read_csv(home / "pairs.csv")) == 12


def test_what_cannot_be_compared_is_told(home, capsys):
    made(home, "a", 1.0)
    assert __main__.main(["compare", "a", "nothing"]) == 2
    assert "'nothing' is no measured sweep or run" in capsys.readouterr().err
    (home / "run.csv").write_text("x\n1\n")
    assert __main__.main(["compare", "a", str(home / "run.csv")]) == 2
    assert "only like can be compared with like" in capsys.readouterr().err


def test_two_runs_are_compared_with_an_interval():
    run = str(next((paths.REFERENCE).glob("*/profiles/*W2*_train.csv")))
    result = compare.difference(run, run)
    assert result.word == "same"
    assert result.ratio == 1.0
    assert result.low <= 1.0 <= result.high
    assert set(result.pairs["what"]) == {"W2 train step"}


def test_a_replay_is_of_the_element_type_that_was_asked_for():
    assert set(aggregate.replay(SweepParams(source="replay", op="conv2d")).table["dtype"]) == {"fp32"}
    with pytest.raises(InputError, match="no warm kernel sweep of conv2d in bf16 on auto; it has: .*conv2d fp32"):
        aggregate.replay(SweepParams(source="replay", op="conv2d", dtype="bf16"))


@pytest.mark.slow
def test_a_sweep_with_energies_has_joules_of_known_power(home, small_space, metered):
    p = SweepParams(**{**SMALL, "count": 3, "rounds": 1}, cache="both", energy_s=2.0, name="energy")
    folder = sweep.measure_sweep(p)
    table = aggregate.read(folder).table
    warm, cold = table[table["cache"] == "warm"], table[table["cache"] == "cold"]
    assert cold["energy_j"].isna().all()
    assert cold["energy_reason"].str.contains("cold call").all()
    assert len(warm)
    assert not set(warm["energy_reason"].dropna())
    np.testing.assert_allclose(warm[["power_w", "idle_w"]], metered, rtol=1e-6)
    assert (warm["energy_method"] == "replay of power_log.log integration").all()
    assert (warm["energy_n"] >= 10).all()
    loops = store.read(folder / "cpu" / "energies.csv", "energies").set_index("config").loc[warm["config"]]
    seconds = (loops["energy_j"] * loops["calls"] / metered).to_numpy()
    assert ((seconds >= 0.8) & (seconds <= loops["loop_s"])).all(), "joules = known watts x the time of the loop"
    assert (warm["energy_j"].to_numpy() == loops["energy_j"].to_numpy()).all()


@pytest.mark.parametrize(("point", "seconds", "meter", "why"), [
    ({}, 0.2, "log", "10 are needed"), ({}, 5.0, "none", "LIB_METER is none"), ({"cache": "cold"}, 5.0, "log", "cold call"),
    ({"dtype": "fp8"}, 5.0, "log", "fp8")])
def test_a_point_without_an_energy_says_why_at_once(metered, monkeypatch, point, seconds, meter, why):
    if meter == "none":
        monkeypatch.setenv("LIB_METER", "none")
    config, device = spaces.config("activation", {"kind": "relu", "elements": 1000}), machine.device("cpu")
    ops, begin = config.ops(), time.monotonic()
    changed = dataclasses.replace(config, **{"latency_type": "end_to_end", **point})
    tools = visit.Tools(device)
    tools.idle_w = 40.0
    result = visit.energy(changed, ops, device, seconds, tools)
    assert why in result["energy_reason"]
    assert np.isnan(result["energy_j"])
    assert time.monotonic() - begin < 2


def test_the_energy_of_operators_is_told_by_family_meter_and_idle():
    table = pd.DataFrame({"op": ["conv2d", "conv2d", "conv2d", "linear"], "pass": "forward",
                          "energy_j": [0.2, 0.4, np.nan, 0.1], "power_w": [20.0, 40.0, np.nan, 30.0],
                          "idle_w": [5.0, 5.0, np.nan, np.nan],
                          "energy_method": ["nvml:0 counter"] * 2 + ["not measured", "rapl counter"],
                          "energy_disagreement": [0.01, -0.03, np.nan, np.nan],
                          "energy_reason": ["", "", "9 samples within 1 s; 10 are needed", ""]})
    rows = findings.energy(table)
    assert rows[["op", "meter", "configurations"]].to_numpy().tolist() == [["conv2d", "nvml:0 counter", 2],
                                                                          ["linear", "rapl counter", 1]]
    np.testing.assert_allclose(rows.iloc[:, 4:], [[300, (150 + 350) / 2, 30, 5, 2], [100, np.nan, 30, np.nan, np.nan]])
    words = findings.energy_words(table)
    assert "The energy of 3 of 4 points was measured (nvml:0 counter, rapl counter): they draw 20.0 to 40.0 W" in words
    assert "15.0 to 35.0 W above idle; integrated power and the counter differ by 2.0 % at the median of 2." in words
    assert findings.energy_words(table[2:3]) == "Energy was not measured: 9 samples within 1 s; 10 are needed."
    assert findings.energy(table[2:3]).empty
