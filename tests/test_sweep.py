"""Sweeps: what is measured, what is written, what survives; and what the table says of the visits."""

import itertools

import numpy as np
import pandas as pd
import pytest

from lib import paths, store
from lib.config.notebooks import SweepParams
from lib.measure.energy import meters
from lib.measure.networks import allocator
from lib.measure.operators import aggregate, device_sweep, export, sweep, visitor
from lib.measure.worker import WorkerLostError
from lib.predict.published import kernels
from lib.work.graph import spaces
from tests import refused, row
from tests.visitors import InProcess, Visitor, draw_small, identified, visited

pytestmark = pytest.mark.slow

SMALL = {"op": "activation,linear", "device": "cpu", "budget_s": 0, "count": 6, "rounds": 3, "visit_ms": 2, "patience_s": 0,
         "threads": 1}
POOLS = {"op": "pool2d", "grid": "pools", "count": 0}


def measure(**changed):
    return sweep.measure_sweep(SweepParams(**{**SMALL, **changed}))


@pytest.fixture
def small(home, monkeypatch):
    draw_small(monkeypatch)


@pytest.fixture
def pretended(small, monkeypatch):
    """Put a worker in the place of the process that visits."""
    monkeypatch.setattr(device_sweep, "Visitor", Visitor)


@pytest.fixture
def here(small, monkeypatch):
    """Visit in this process."""
    monkeypatch.setattr(visitor, "Service", InProcess)


def test_a_sweep_by_a_worker_process_gives_a_valid_table(small):
    folder = measure(op="conv2d,linear", seed=1, count=8, latency_type="both", cache="both")
    table, raw = aggregate.read(folder).table, store.read(folder / "cpu/repeats.csv", "repeats")
    assert len(table) == 8 and set(table["status"]) == {"ok"} and table["config"].is_unique
    for _, point in table.iterrows():
        latencies = raw.loc[raw["config"] == point["config"], "latency_ms"]
        assert latencies.min() <= point["low_ms"] <= point["latency_ms"] <= point["high_ms"] <= latencies.max()
        assert bool(point["reason"]) == (point["verdict"] != "stable"), "and what is not stable says why"
        values = point[list(spaces.families.family(point["op"]).parameters)].dropna().to_dict()
        config = spaces.config(point["op"], values, point["dtype"], point["pass"])
        assert spaces.work(config.ops()) == (point["flops"], point["bytes"])
        assert point["gflops"] == pytest.approx(point["flops"] / point["latency_ms"] / 1e6)
    assert {*zip(table["latency_type"], table["cache"], strict=True)} == {
        *itertools.product(("kernel", "end_to_end"), ("warm", "cold"))}
    assert table["energy_reason"].str.contains("energy_s is 0").all()
    software = store.read_json(folder / "sweep.meta.json")["devices"]["cpu"]["software"]
    assert software["environment"].items() >= allocator.RETAINED.items(), "the worker keeps what it frees, and says so"
    header, *lines = (folder / "results_convolution.csv").read_text().splitlines()
    assert header == "Batch size,In Channels,Out Channels,Kernel Size,Stride,Width,Height,Flops,Latency,Latency Type"
    assert len(lines) == export.representable(table[table["op"] == "conv2d"]).sum()


def test_a_sweep_of_a_name_goes_on_and_one_without_starts_anew(pretended):
    assert measure(name="mine") == measure(name="mine") == paths.SWEEPS / "mine"
    with refused("holds another sweep, with count = 6"):
        measure(name="mine", count=7)
    assert measure().name + "-v2" == measure().name


def test_cut_short_in_a_line_it_ends_with_every_row_once(pretended):
    folder = measure(name="cut")
    raw = folder / "cpu/repeats.csv"
    kept = raw.read_bytes()[:int(0.3 * raw.stat().st_size)]
    raw.write_bytes(kept)
    (folder / "sweep.parquet").unlink()
    measure(name="cut")
    lines, torn = kept.rsplit(b"\n", 1)
    assert torn and raw.read_bytes().startswith(lines)
    configs, visits = aggregate.read(folder).table["config"], store.read(raw, "repeats")
    assert len(set(configs)) == 6
    assert sorted(zip(visits["config"], visits["round"], strict=True)) == sorted(itertools.product(configs, range(3)))


def test_a_killed_worker_is_a_row_with_its_reason_and_the_sweep_goes_on(small, monkeypatch):
    class Mortal(visitor.Service):
        """A worker process that is killed at its fifth request; those after it visit here."""

        def ask(self, request, timeout_s):
            if raw.read_text().count("\n") == 5:
                monkeypatch.setattr(visitor, "Service", InProcess)
                self._process.kill()
            return super().ask(request, timeout_s)

    raw = paths.SWEEPS / "killed/cpu/repeats.csv"
    monkeypatch.setattr(visitor, "Service", Mortal)
    table, visits = aggregate.read(measure(name="killed")).table, store.read(raw, "repeats")
    (failed,), measured = (table.loc[table["status"] == status, "config"] for status in ("failed", "ok"))
    assert "the worker was killed (signal 9): out of memory?" in table.set_index("config")["reason"][failed]
    assert len(measured) == 5 and not visits.duplicated(["config", "round"]).any()
    assert (visits.loc[visits["config"].isin(measured), "round"] < 3).sum() == 15


def test_a_hung_visit_is_given_up_and_a_family_that_always_fails_stops(small, monkeypatch):
    class Hung(InProcess):
        def ready(self):
            return identified()

        def ask(self, request, timeout_s):
            asked.append(request)
            raise WorkerLostError(f"no answer within {timeout_s:g} s")

    asked = []
    monkeypatch.setattr(visitor, "Service", Hung)
    monkeypatch.setattr(device_sweep, "MOST_FAILURES", 2)
    with refused("cpu: each of 2 configurations failed, 2 of them with: no answer within 0.001 s"):
        measure(op="activation", timeout_s=0.001, name="hung")
    assert store.read(paths.SWEEPS / "hung/cpu/repeats.csv", "repeats")["status"].tolist() == ["failed"] * len(asked)
    assert len(asked) == 2


def test_an_element_type_that_the_device_lacks_is_a_row(here, monkeypatch):
    draw_small(monkeypatch, dtypes=["complex64"])
    with refused("each of 6 configurations failed, 6 of them with: .*not implemented for 'ComplexFloat'"):
        measure(**POOLS)


def test_a_grid_without_a_valid_point_says_why(pretended, monkeypatch):
    draw_small(monkeypatch, padding=[2])
    with refused("no valid point to measure .6 invalid, 0 skipped.; the last: .*more than half"):
        measure(**POOLS)


@pytest.mark.parametrize("change, told", [
    ({"op": "conv9d"}, "no operator family 'conv9d'; there are: conv2d"), ({"grid": "none"}, "no grid 'none'; there are"),
    ({"device": "auto,cpu"}, "devices 'auto,cpu': cpu is there twice"), ({"count": 0}, "it would never end")])
def test_wrong_parameters_are_told_before_anything_is_measured(home, change, told):
    with refused(told):
        measure(**change)


def test_a_corrupt_file_is_refused_and_kept(pretended):
    path = measure(name="mine") / "cpu/configs.csv"
    path.write_text("\x00\xff")
    with refused("configs.csv"):
        measure(name="mine")
    assert path.read_text() == "\x00\xff"


def test_a_space_that_is_too_large_for_the_memory_comes_to_an_end(pretended, monkeypatch):
    monkeypatch.setattr(device_sweep, "_MOST_TOO_LARGE", 20)
    with refused(r"no valid point to measure \(0 invalid, 20 skipped\); the last: .* MB needed"):
        measure(memory_share=1e-10)


def visits(latencies, **changed):
    return pd.DataFrame([{"config": key, "round": number, **visited(latency_ms=values[number], **changed)}
                         for number in range(5) for key, values in latencies.items()])


def test_the_verdict_is_that_of_the_rounds():
    seen = visits({"a": [1, 1.01, 1.02, 1, 1], "b": [1, 1.2, 1, 1.2, 1.1], "c": [1, 2, 3, 1, 2]})
    table = aggregate.summarise(seen).set_index("config")
    assert table["verdict"].to_dict() == {"a": "stable", "b": "noisy", "c": "unusable"}
    assert table.loc["a", ["latency_ms", "low_ms", "high_ms", "n"]].tolist() == [1, 1, 1.02, 5]
    assert aggregate.summarise(seen[seen["round"] < 2])["verdict"][0] == "noisy", "fewer than three rounds are never stable"


def test_a_busy_neighbour_is_marked_not_wrong():
    alone, busy = (visits(dict.fromkeys("abcdef", [latency_ms] * 5), other_cores=cores)
                   for latency_ms, cores in ((1.0, 0.0), (9.0, 1.0)))
    assert set(aggregate.summarise(busy)["verdict"]) == {"unusable"}
    table = aggregate.summarise(pd.concat([alone, busy.assign(round=busy["round"] + 5)], ignore_index=True))
    assert set(zip(table["verdict"], table["latency_ms"], strict=True)) == {("stable", 1.0)}


def test_rows_that_repeat_the_last_result_are_found():
    good = np.random.default_rng(0).uniform(0.01, 1, 64)
    result = aggregate.stale(pd.Series([*good, *[0.012223999947309494] * 142]), pd.Series(range(206)))
    assert not result[:64].any() and result[65:].all()
    ticks = np.random.default_rng(0).integers(3, 7, 300) * 1.024e-3  # a clock of 1.024 us, which gives equal times all over
    assert not aggregate.stale(pd.Series(ticks), pd.Series(range(300))).any()


def test_a_sweep_whose_worker_repeats_itself_has_failed_rows(pretended, monkeypatch):
    monkeypatch.setattr(Visitor, "visit", lambda *_: visited(latency_ms=0.012223999947309494))
    table = aggregate.read(measure()).table
    assert set(table["status"]) == {"failed"}
    assert set(table["reason"]) == {"it repeats the result before it to the last digit"}


def convolutions(**changed):
    """Return rows of ``sweep``: convolutions that the original's columns describe, but for what is ``changed``: lists."""
    ones = {f"{name}_{side}": 1 for name in ("stride", "padding", "dilation") for side in "hw"}
    plain = {"op": "conv2d", "dtype": "fp32", "pass": "forward", "device": "cpu", "latency_type": "kernel", "cache": "warm",
             "status": "ok", "verdict": "stable", "batch": 2, "in_channels": 3, "out_channels": 4, "height": 8, "width": 10,
             "kernel_h": 3, "kernel_w": 3, "groups": 1, "bias": 0, "layout": "contiguous", "input_grad": 1, "latency_ms": 0.5,
             "bytes": 1e3, "flops": 2.0 * 2 * 4 * 80 * 27}
    return pd.DataFrame({**row("sweep", **ones, **plain).iloc[0], **changed})


def exported(rows, folder):
    return {path.stem.removeprefix("results_convolution"): pd.read_csv(path) for path in export.write(rows, folder)}


def test_the_export_holds_what_the_originals_columns_can_say_and_nothing_else(tmp_path):
    differing = {"verdict": "unusable", "groups": 3, "kernel_w": 5, "padding_h": 0, "bias": 1, "pass": "backward",
                 "cache": "cold", "layout": "channels_last"}
    parts = [{"latency_ms": [0.25, 0.5]}, {"status": ["failed"]}, {"op": ["linear"]},
             *({name: [value]} for name, value in differing.items())]
    others = exported(pd.concat([convolutions(**part) for part in parts], ignore_index=True), tmp_path)["_others"]
    back = kernels.pytorch_scheduler(tmp_path / "results_convolution.csv")["v100-pcie-32gb"]
    assert back["latency_ms"].tolist() == [0.25, 0.5], "FLOPs are those of the shapes, or the reader would refuse"
    assert len(others) == len(differing)


def test_devices_and_element_types_have_a_file_each_and_one_together(tmp_path):
    rows = convolutions(device=["cuda:1", "cuda:0", "cuda:1"], dtype=["bf16", "fp32", "fp32"], latency_ms=[1.0, 2.0, 3.0])
    assert {name: frame["Latency"].tolist() for name, frame in exported(rows, tmp_path).items()} == {
        "": [2.0, 3.0], "_merged": [1.0, 2.0, 3.0], "_others": [], "_cuda-1_bf16": [1.0], "_cuda-0_fp32": [2.0],
        "_cuda-1_fp32": [3.0]}, "the first is the merge of all devices in fp32"


def test_a_replay_is_of_the_element_type_that_was_asked_for():
    assert set(aggregate.replay(SweepParams(source="replay", op="conv2d")).table["dtype"]) == {"fp32"}
    with refused("no warm kernel sweep of conv2d in bf16 on auto; it has: .*conv2d fp32"):
        aggregate.replay(SweepParams(source="replay", op="conv2d", dtype="bf16"))


def test_a_sweep_with_energies_has_joules_of_known_power(here, metered, monkeypatch):
    monkeypatch.setattr(meters, "PERIOD_S", 0.01)
    folder = measure(count=3, rounds=1, cache="both", energy_s=0.5, name="energy")
    table = aggregate.read(folder).table.set_index("config")
    warm, cold = (table[table["cache"] == cache] for cache in ("warm", "cold"))
    assert cold["energy_j"].isna().all() and cold["energy_reason"].str.contains("cold call").all()
    assert len(warm) and not set(warm["energy_reason"].dropna())
    np.testing.assert_allclose(warm[["power_w", "idle_w"]], metered, rtol=1e-6)
    assert set(warm["energy_method"]) == {"replay of power_log.log integration"}
    loops = store.read(folder / "cpu/energies.csv", "energies").set_index("config").loc[warm.index]
    seconds = loops["energy_j"] * loops["calls"] / metered
    assert ((seconds >= 0.5) & (seconds <= loops["loop_s"])).all(), "joules = known watts x the time of the loop"
