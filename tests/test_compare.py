"""Comparing two measurements, and what cannot be compared."""

import numpy as np
import pandas as pd
import pytest

from lib import paths, store
from lib.measure import compare
from tests import output_of, refusal, refused, row


@pytest.fixture
def sweeps(home):
    """Write two sweeps of twelve configurations, of which ``b`` is three times as slow; return how to write ``b`` changed."""
    for name, factor in (("a", 1.0), ("b", 3.0)):
        rows = [row("sweep", config=f"{number:012d}", device="cpu", latency_ms=ms)
                for number, ms in enumerate(factor * np.linspace(1, 2, 12))]
        store.write(pd.concat(rows, ignore_index=True), paths.SWEEPS / name / "sweep.parquet", "sweep")

    def changed(change):
        frame = change(store.read(paths.SWEEPS / "b/sweep.parquet", "sweep"))
        return str(store.write(frame, home / "changed.parquet", "sweep", derived=True))
    return changed


def test_sweeps_are_compared_configuration_by_configuration(sweeps):
    text = output_of("compare", "a", "b", status=1)
    assert text.startswith("B is slower: B's times differ from A's by +200.0 % (95 % interval +200.0 to +200.0 %)\n12 pairs")
    assert output_of("compare", "b", paths.SWEEPS / "a").startswith("B is faster")
    some = sweeps(lambda rows: rows.assign(latency_ms=rows["latency_ms"].where(rows.index >= 2)))
    assert "10 pairs, 2 rows without a usable partner" in output_of("compare", "a", some, status=1)


def test_what_cannot_be_compared_is_refused(sweeps, home):
    few = sweeps(lambda rows: rows.assign(latency_ms=rows["latency_ms"].where(rows.index < 2)))
    assert "2 rows are usable in both, 3 are needed (10 have no usable partner)" in refusal("compare", "a", few)
    assert "'nothing' is no measured sweep or environment" in refusal("compare", "a", "nothing")
    (paths.MATRIX).mkdir(parents=True)
    (paths.MATRIX / "throughput_lab.csv").write_text("")
    assert "'elsewhere/lab' is no measured sweep" in refusal("compare", "a", "elsewhere/lab")
    with refused("changed.parquet holds two rows of the same op and pass and dtype and device and config"):
        compare.compare("a", sweeps(lambda rows: pd.concat([rows, rows.iloc[4:5]])))
