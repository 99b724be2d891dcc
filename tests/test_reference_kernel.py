"""The reference kernel: how fast a processor was, and what latencies are on one as fast as usual."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.measure import disturbance
from lib.measure.reference_kernel import ProcessorSpeed, kernel_now


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


@pytest.mark.parametrize("cores, busy", [(0.0, ""), (8.0, "others took 8.0 cores and the host 0.0")])
def test_the_kernel_tells_its_time_now_and_what_held_the_cores(cores, busy, monkeypatch):
    monkeypatch.setattr(disturbance.LoadWatch, "reading", lambda _: disturbance.Load(1.0, 1.0, cores, 0.0, 0.0))
    now = kernel_now()
    assert 0.01 < now.ms < 100 and now.busy == busy
