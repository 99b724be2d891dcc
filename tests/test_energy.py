"""Power and energy: known traces give known joules, too few samples give none, and every meter says why it is absent."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.errors import InputError
from lib.measure.energy import meters, windows


class Constant:
    """A meter of a constant power, whose counter runs with the clock."""

    name, period_s = "constant", 0.002

    def __init__(self, watts):
        self.watts = watts

    def power_w(self):
        return self.watts

    def counter_j(self):
        return self.watts * time.perf_counter()


@given(watts=st.lists(st.floats(0, 700), min_size=2, max_size=6), steps=st.integers(20, 200), start=st.floats(0.05, 0.4),
       length=st.floats(0.3, 0.55))
def test_a_known_trace_has_its_joules_by_both_ways(watts, steps, start, length):
    """The power is piecewise linear between the samples: trapezoids, ends interpolated, are exact for it."""
    at_s = np.linspace(0, 1, steps * (len(watts) - 1) + 1)
    power_w = np.interp(at_s, np.linspace(0, 1, len(watts)), watts)
    fine = np.linspace(start, start + length, 20001)
    expected = float(np.trapezoid(np.interp(fine, at_s, power_w), fine))
    trace = windows.Trace.of_power(at_s, power_w)
    result = windows.of_window(trace, start, start + length, idle_w=0.0)
    if result.samples < windows.LEAST_SAMPLES:
        assert math.isnan(result.energy_j)
        assert "samples within" in result.reason
    else:
        assert result.energy_j == pytest.approx(expected, rel=1e-3, abs=1e-6)
        assert result.method == "integration"
        assert result.above_idle_j == result.energy_j


@given(watts=st.floats(1, 700), start=st.floats(0.01, 0.5), length=st.floats(0.2, 0.45))
def test_counter_and_integral_agree_and_check_each_other(watts, start, length):
    at_s = np.linspace(0, 1, 101)
    trace = windows.Trace(at_s, np.full(101, watts * 1.1), watts * at_s)
    result = windows.of_window(trace, start, start + length, idle_w=watts / 2)
    assert result.method == "counter"
    assert result.energy_j == pytest.approx(watts * length)
    assert result.above_idle_j == pytest.approx(watts * length / 2)
    assert result.disagreement == pytest.approx(0.1)


@pytest.mark.parametrize(("window", "why"), [((0.5, 1.2), "not within the trace"), ((-1, 0.5), "not within the trace"),
                                             ((0.5, 0.52), "3 samples within 0.02 s; 10 are needed")])
def test_no_number_comes_from_too_few_samples_or_beyond_the_trace(window, why):
    result = windows.of_window(windows.Trace.of_power(np.linspace(0, 1, 101), np.ones(101)), *window)
    assert math.isnan(result.energy_j)
    assert math.isnan(result.power_w)
    assert why in result.reason


def test_windows_are_recorded_beside_the_work_and_idle_power_is_of_the_same_run():
    with windows.Recorder(Constant(50.0)) as recorder:
        recorder.rest(0.1)
        for _ in range(2):
            with recorder.window("work"):
                time.sleep(0.08)
    first, second = recorder.energies("work")
    assert recorder.idle_w == pytest.approx(50.0, rel=1e-3)
    for one in (first, second):
        assert one.energy_j == pytest.approx(50.0 * one.seconds, rel=1e-3)
        assert one.above_idle_j == pytest.approx(0.0, abs=0.05)
        assert abs(one.disagreement) < 1e-3


def test_without_a_meter_everything_is_not_measured_and_says_why():
    with windows.Recorder(meters.Absent("no sensor here")) as recorder:
        recorder.rest(10.0)
        with recorder.window("work"):
            pass
    (result,) = recorder.energies("work")
    assert (result.method, result.reason) == (meters.NOT_MEASURED, "no sensor here")
    assert math.isnan(result.energy_j)
    assert math.isnan(recorder.idle_w)


def test_a_rapl_counter_is_followed_when_it_begins_anew(tmp_path):
    for name, value in (("intel-rapl:0", 1000), ("intel-rapl:1", 5_000_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{value}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("6000000\n")
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of a package is not counted again
    meter = meters.Rapl(tmp_path)
    assert meter.counter_j() == 0.0
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("2001000")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("500000")
    assert meter.counter_j() == pytest.approx(2.0 + 1.5)
    with pytest.raises(InputError, match="no energy counters"):
        meters.Rapl(tmp_path / "nowhere")


def test_a_device_without_a_meter_says_why(monkeypatch):
    monkeypatch.delenv(meters.CHOICE)
    assert "no meter of mps" in meters.open_meter("mps").reason
