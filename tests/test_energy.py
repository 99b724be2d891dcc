"""Power and energy: known traces give known joules, too few samples give none, and every meter says why it is absent."""

import ast
import math
import runpy
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib import paths
from lib.measure.energy import meters, power_log, trace, windows
from tests import python, refused, write_power_log, written


def samples(at_s, power_w, counter_j=np.nan):
    return np.column_stack([at_s, power_w, np.broadcast_to(counter_j, len(at_s))])


@given(watts=st.lists(st.floats(0, 700), min_size=2, max_size=6), steps=st.integers(20, 200), start=st.floats(0.05, 0.4),
       length=st.floats(0.3, 0.55))
def test_a_known_trace_has_its_joules_by_both_ways(watts, steps, start, length):
    """The power is piecewise linear between the samples: trapezoids, ends interpolated, are exact for it."""
    at_s = np.linspace(0, 1, steps * (len(watts) - 1) + 1)
    power_w = np.interp(at_s, np.linspace(0, 1, len(watts)), watts)
    fine = np.linspace(start, start + length, 20001)
    expected = float(np.trapezoid(np.interp(fine, at_s, power_w), fine))
    result = trace.of_window(samples(at_s, power_w), start, start + length, idle_w=0.0)
    if result.samples < trace.LEAST_SAMPLES:
        assert math.isnan(result.energy_j) and "samples within" in result.reason
    else:
        assert result.energy_j == pytest.approx(expected, rel=1e-3, abs=1e-6)
        assert result.method == "integration"


@given(watts=st.floats(1, 700), start=st.floats(0.01, 0.5), length=st.floats(0.2, 0.45))
def test_counter_and_integral_agree_and_check_each_other(watts, start, length):
    at_s = np.linspace(0, 1, 101)
    given = samples(at_s, np.full(101, watts * 1.1), watts * at_s)
    result = trace.of_window(given, start, start + length, idle_w=watts / 2)
    assert result.method == "counter"
    assert result.energy_j == pytest.approx(watts * length)
    assert result.columns["idle_w"] == watts / 2
    assert result.disagreement == pytest.approx(0.1)


@pytest.mark.parametrize("window, why", [((0.5, 1.2), "not within the trace"),
                                             ((0.5, 0.52), "3 samples within 0.02 s; 10 are needed")])
def test_no_number_comes_from_too_few_samples_or_beyond_the_trace(window, why):
    result = trace.of_window(samples(np.linspace(0, 1, 101), np.ones(101)), *window)
    assert math.isnan(result.energy_j) and math.isnan(result.power_w) and why in result.reason


@pytest.mark.cuda
def test_the_counter_of_this_card_agrees_with_its_sampled_power():
    meter, left = meters.open_meter("cuda:0"), torch.randn(4096, 4096, device="cuda:0")

    def work():
        for _ in range(10):
            torch.mm(left, left)
        torch.cuda.synchronize()

    assert meter.name == "nvml:0"
    idle_w = windows.idle_w(meter)
    assert math.isfinite(idle_w) and idle_w > 0
    windows.of_calls(work, 10, 2.0, meter, idle_w)  # where the power is a mean of the last second, it is that of the work then
    energy, calls = windows.of_calls(work, 10, 3.0, meter, idle_w)
    assert energy.method == "nvml:0 counter" and energy.power_w > idle_w and calls > 0
    assert abs(energy.disagreement) < 0.25


def test_without_a_meter_everything_is_not_measured_and_says_why():
    with windows.Recorder(meters.absent("no sensor here")) as recorder:
        recorder.rest(10.0)
    result = recorder.energy(0.0, 1.0)
    assert result.method == meters.NOT_MEASURED and result.reason == "no sensor here"
    assert math.isnan(result.energy_j) and math.isnan(recorder.idle_w)


def test_rapl_counts_packages_alone_and_follows_a_counter_that_begins_anew(tmp_path):
    zones = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1-die-0", "intel-rapl:2": "psys", "intel-rapl:0:0": "core"}
    shows(tmp_path, {"intel-rapl:0/energy_uj": 1000, "intel-rapl:1/energy_uj": 5_000_000,
                     **{f"{zone}/energy_uj": 0 for zone in ("intel-rapl:2", "intel-rapl:0:0")},
                     **{f"{zone}/name": name for zone, name in zones.items()},
                     **{f"{zone}/max_energy_range_uj": 6_000_000 for zone in zones}})
    meter = meters.rapl(tmp_path)
    assert meter.counter_j() == 0.0
    shows(tmp_path, {"intel-rapl:0/energy_uj": 2_001_000, "intel-rapl:1/energy_uj": 500_000,
                     "intel-rapl:2/energy_uj": 5_000_000, "intel-rapl:0:0/energy_uj": 1_000_000})
    assert meter.counter_j() == pytest.approx(2.0 + 1.5)
    with refused("no energy counters"):
        meters.rapl(tmp_path / "nowhere")
    (tmp_path / "intel-rapl:1/name").write_bytes(b"\xff")
    with refused("the energy counters of the processor cannot be read: "):
        meters.rapl(tmp_path)


# ------------------------------------------------------------------------------------------------ boards and recorded logs

# What the kernel shows of some boards: (chip, label, mV, mA) of each rail, and the watts of the module or the whole board.
RAILS = {
    "Nano": (6.0, ("ina3221", "POM_5V_IN", 5000, 1200), ("ina3221", "POM_5V_GPU", 5000, 300)),
    "AGX Thor": (60.0, ("ina3221", "VDD_GPU", 20000, 1000), ("ina3221", "VDD_CPU_SOC_MSS", 20000, 800),
                 ("ina238", "", 20000, 3000)),
    "AGX Orin": (14.0, ("ina3221", "VDD_GPU_SOC", 20000, 400), ("ina3221", "VDD_CPU_CV", 20000, 100),
                 ("ina3221", "VIN_SYS_5V0", 5000, 800), ("ina3221", "VDDQ_VDD2_1V8AO", 5000, 200)),
    "another board with VDD_IN": (19.0, ("ina3221", "VDD_CPU", 5000, 300), ("ina3221", "VDD_IN", 19000, 1000))}


def a_board(folder, *rails):
    """Make a folder as the kernel shows it: an unrelated sensor, and a chip for each rail."""
    shown = {"hwmon0/name": "nvme"}
    for number, (chip, label, millivolts, milliamperes) in enumerate(rails, start=1):
        names = ("name", "in1_label", "in1_input", "curr1_input")
        values = (chip, label, millivolts, milliamperes)
        shown |= {f"hwmon{number}/{name}": value for name, value in zip(names, values, strict=True) if value != ""}
    return shows(folder, shown)


def shows(folder, numbers):
    return written(folder, {name: f"{number}\n" for name, number in numbers.items()})


@pytest.mark.parametrize("name", RAILS)
def test_a_board_has_the_power_of_its_module_or_its_input_and_none_of_it_twice(tmp_path, name):
    watts, *rails = RAILS[name]
    a_board(tmp_path, *rails)
    sensor = runpy.run_path(str(paths.PARAMS / "collect_power.py"))["Sensor"]([tmp_path])
    assert math.prod(sensor.read()) / 1e6 == watts and sensor.board.name == name


def test_a_processor_without_counters_has_no_joules_and_the_reason(tmp_path, monkeypatch):
    monkeypatch.delenv(meters.CHOICE)
    monkeypatch.setattr(meters, "_POWERCAP", tmp_path)
    assert meters.open_meter("cpu").reason == f"no energy counters of the processor in {tmp_path}"
    assert "no meter of mps" in meters.open_meter("mps").reason


def test_a_recorded_log_is_a_trace_and_is_played_again(tmp_path, monkeypatch):
    at_s = 1e9 + np.arange(0, 10, 0.05)
    path = write_power_log(power_log.PowerLog(at_s, 5 + at_s - 1e9), tmp_path / "power_log.log")
    log = power_log.read(path)
    result = trace.of_window(samples(log.at_s, log.power_w), 1e9 + 2, 1e9 + 4)
    assert result.energy_j == pytest.approx(2 * 8, rel=1e-4), "5 W and 1 W more each second, from second 2 to 4"
    now = [100.0]
    meter = meters.replay(log, "x", clock=lambda: now[0])
    assert meter.period_s == pytest.approx(0.05)
    now[0] = 103.01
    assert meter.power_w() == pytest.approx(8.01, abs=1e-3)
    now[0] = 111.0
    assert math.isnan(meter.power_w()), "beyond its end a log says nothing"
    monkeypatch.setenv(meters.CHOICE, str(path))
    assert meters.open_meter("cuda:3").name == "replay of power_log.log"
    monkeypatch.setenv(meters.CHOICE, str(tmp_path / "no.log"))
    with refused(r"no\.log is missing"):
        meters.open_meter("cpu")


def test_what_a_sensor_did_not_say_is_not_made_up():
    at_s = np.linspace(0, 10, 201)
    power_w = np.where((at_s > 3) & (at_s < 9), np.nan, 4.0)
    silent = samples(at_s, power_w)
    assert trace.of_window(silent, 0.5, 2.5).energy_j == pytest.approx(8.0)
    assert "0 samples within 4 s" in trace.of_window(silent, 4, 8).reason
    assert "no power for 6" in trace.of_window(silent, 0.5, 9.5).reason, "a gap of half the window is not bridged"
    counted = samples(at_s, power_w, 2.0 * at_s)
    assert trace.of_window(counted, 4, 8).energy_j == pytest.approx(8.0), "the counter went on"


def collected(folder, status, *options, program="import time; time.sleep(0.3); raise SystemExit(3)"):
    """Return what the collector says, which ends with this status: the command's own, or 2."""
    words = paths.PARAMS / "collect_power.py", folder / "raw", "--idle-s", "0.1", "--hwmon", folder / "hwmon", *options
    return python(*words, "--", sys.executable, "-c", program, status=status).stderr


@pytest.mark.slow
def test_the_collector_writes_what_the_readers_read(tmp_path):
    a_board(tmp_path / "hwmon", ("ina3221", "VDD_CPU", 5000, 300), ("ina3221", "VDD_IN", 5000, 1200))
    collected(tmp_path, 3)
    log = power_log.read(tmp_path / "raw/power_log.log")
    assert len(log.power_w) > 20
    assert set(log.power_w) == {6.0}
    assert power_log.read_idle_w(tmp_path / "raw/idling_power.json") == pytest.approx(6.0)
    (again,) = collected(tmp_path, 2).splitlines()
    assert "exists already and is not overwritten" in again


@pytest.mark.parametrize("name, version, more, told", [
    ("collect_power.py", (3, 6), set(), "not tested on a board"),
    ("profile_layers.py", (3, 8), {"tensorrt", "numpy"}, "never run on a board")])
def test_the_collector_runs_where_boards_are(name, version, more, told):
    """JetPack 4 comes with Python 3.6, JetPack 5 with 3.8: no newer syntax, nothing but the standard library and TensorRT."""
    text = (paths.PARAMS / name).read_text()
    tree = ast.parse(text, feature_version=version)
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names} | {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names) | more
    assert told in text
