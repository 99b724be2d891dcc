"""The reference kernel: how fast a processor was, and what latencies are on one as fast as usual."""

import os

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.measure import load, speed_history
from lib.measure.reference_kernel import ProcessorSpeed, _Reversal
from lib.measure.speed_history import Speed
from tests import refused


def _visits(elasticity, slow):
    """Return visits of configurations, half of them while the kernel took ``slow`` times as long."""
    rows = [{"config": f"c{number}", "latency_ms": 0.1 * (number + 1) * slowed**elasticity, "yardstick_ms": 0.3 * slowed}
            for number in range(40) for slowed in (1.0, 1.0, slow, slow)]
    return pd.DataFrame(rows)


@given(st.floats(0.1, 0.9), st.floats(1.5, 4.0))
def test_how_latencies_follow_the_kernel_is_learned_from_repeats(elasticity, slow):
    speed = ProcessorSpeed.from_visits(_visits(elasticity, slow))
    assert speed.usual_ms == pytest.approx(0.3)
    assert abs(speed.elasticity - elasticity) <= 0.45 * abs(elasticity - 0.45) + 1e-9  # between what was seen and expected
    disturbed = pd.Series([10.0 * slow**speed.elasticity, 10.0])
    assert speed.at_usual_ms(disturbed, pd.Series([0.3 * slow, 0.3])).tolist() == pytest.approx([10.0, 10.0])


def test_a_quiet_processor_teaches_nothing_and_changes_nothing():
    speed = ProcessorSpeed.from_visits(_visits(0.9, 1.0))
    assert speed.elasticity == pytest.approx(0.45)
    assert speed.at_usual_ms(pd.Series([7.0]), pd.Series([0.3])).tolist() == pytest.approx([7.0])


def test_latencies_without_the_kernels_time_stay():
    speed = ProcessorSpeed.from_visits(_visits(0.5, 2.0))
    assert speed.at_usual_ms(pd.Series([7.0, 8.0]), pd.Series([np.nan, np.nan])).tolist() == [7.0, 8.0]
    unknown = ProcessorSpeed.from_visits(_visits(0.5, 2.0).assign(yardstick_ms=np.nan))  # of a GPU
    assert unknown.at_usual_ms(pd.Series([7.0]), pd.Series([0.3])).tolist() == [7.0]


def test_an_elasticity_is_a_share():
    assert [ProcessorSpeed.from_visits(_visits(elasticity, 3.0)).elasticity for elasticity in (-1.0, 3.0)] == [0.0, 1.0]


# ------------------------------------------------------------------------------------------------- what to expect now

kernel_ms = st.lists(st.floats(0.1, 0.4), min_size=1, max_size=60)


@given(kernel_ms, st.floats(0.0, 1.0), st.floats(1.0, 3.0), st.floats(1.0, 3.0))
def test_what_will_happen_is_told_around_the_usual_time(history, elasticity, below, above):
    speed = Speed.from_history(np.array(history))
    times = speed.expected(42.0, 42.0 / below, 42.0 * above, elasticity)
    assert times["here_low_ms"] <= 42.0 / below * (1 + 1e-9) and times["here_high_ms"] >= 42.0 * above * (1 - 1e-9)
    assert (times["now_ms"] > 42.0) == (speed.share < 1 and elasticity > 0 and times["now_ms"] != 42.0)
    assert times["now_ms"] == pytest.approx(42.0 * (history[-1] / speed.usual_ms) ** elasticity)


def test_a_history_tells_the_range_and_few_looks_leave_it_wide():
    steady, shared = np.full(100, 0.3), np.tile([0.3, 0.6], 50)
    narrow, wide, few = (Speed.from_history(history).expected(42.0, 40.0, 44.0, 1.0)
                         for history in (steady, shared, steady[:3]))
    assert narrow["here_high_ms"] == pytest.approx(44.0) and narrow["now_ms"] == 42.0
    assert wide["here_high_ms"] > 84.0 and wide["now_ms"] == pytest.approx(84.0)
    assert few["here_high_ms"] > 1.8 * 42.0, "a processor that was looked at three times may be on a shared host"


def test_the_time_of_the_kernel_beside_other_processes_is_no_speed():
    history = [0.3] * 30 + [30.0] * 5
    slow = Speed.from_history(np.array(history))
    told = Speed.from_history(np.array([0.3] * 30 + [0.5]), busy="others took 1.4 cores and the host 0.0")
    assert slow.busy == "the reference kernel takes 100 times its usual time" and told.busy.startswith("others took 1.4")
    for speed in (slow, told):
        times = speed.expected(97.0, 90.0, 110.0)
        assert speed.looks == 30 and speed.usual_ms == 0.3 and np.isnan([speed.share, times["now_ms"]]).all()
        assert times["here_low_ms"] == pytest.approx(90.0) and times["here_high_ms"] == pytest.approx(110.0)
    assert Speed.from_history(np.array(history + [0.33])).share == pytest.approx(0.3 / 0.33), "the next look counts again"
    first = Speed.from_history(np.array([30.0]), busy="others took 1.4 cores and the host 0.0").expected(97.0, 90.0, 110.0)
    assert np.isnan(first["now_ms"]) and 85 < first["here_low_ms"] <= 90 and 130 < first["here_high_ms"] < 150


class Crowd:
    """A watch that has seen other processes take so many cores."""

    def __init__(self, cores=0.0):
        self.cores = cores

    def reading(self):
        return load.Load(1.0, 1.0, self.cores, 0.0, 0.0)


def test_each_look_is_kept_and_a_full_disk_keeps_no_answer_back(home, monkeypatch):
    monkeypatch.setattr(load, "LoadWatch", lambda: Crowd(8.0))
    assert [speed_history.look().looks for _ in range(2)] == [0, 0], "what a busy machine gives is not kept"
    monkeypatch.setattr(load, "LoadWatch", Crowd)
    monkeypatch.setattr(speed_history, "_BUSY", 1e9)
    assert [speed_history.look().looks for _ in range(3)] == [1, 2, 3]
    (file,) = home.rglob("*.csv")
    assert len(file.read_text().splitlines()) == 4
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        last = speed_history.look()
    assert last.looks == 4 and len(file.read_text().splitlines()) == 4
    assert "No space left on device" in last.not_kept and str(file) in last.not_kept
    file.write_text("a,b\n1,2\n")
    with refused("lacks the columns.*delete it"):
        speed_history.look()


def full(*_):
    raise OSError(28, "No space left on device")


def test_gemms_of_the_kernel_pass_their_results_on():
    """Where the host moved two cores apart, only what they pass to each other becomes slower."""
    part = _Reversal(96)
    first = part._matrix.clone()
    part.run(3)
    assert torch.equal(part._matrix, first.flip(0, 1))  # exactly: values never grow, however often it runs
