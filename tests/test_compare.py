"""Comparing two measurements: what cannot be compared is refused, and noise is not called a difference."""

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
    assert "'nothing' is no measured sweep, run or environment" in refusal("compare", "a", "nothing")
    with refused("changed.parquet holds two rows of the same op and pass and dtype and device and config"):
        compare.compare("a", sweeps(lambda rows: pd.concat([rows, rows.iloc[4:5]])))


def steps_of(random, steps, spread, factor=1.0):
    """Return the steps of a run, each of which depends on the one before: AR(1), lag-1 autocorrelation 0.8."""
    values = [random.normal()]
    for shock in random.normal(0, 0.6, steps - 1):
        values.append(0.8 * values[-1] + shock)
    return pd.DataFrame({"ms": factor * 10 * np.exp(spread * np.array(values)), "workload_id": "W1"})


@pytest.mark.parametrize("steps, spread, factor, word", [
    (60, 0.1, 1.0, "No difference is shown beyond 3 %"), (300, 0.2, 1.0, "No difference is shown beyond 3 %"),
    (60, 0.03, 1.1, "B is slower"), (60, 0.03, 1 / 1.1, "B is faster")])
def test_steps_that_depend_on_the_one_before_are_not_taken_for_independent_ones(monkeypatch, steps, spread, factor, word):
    found = []
    for random in map(np.random.default_rng, range(30)):
        runs = {"a": steps_of(random, steps, spread), "b": steps_of(random, steps, spread, factor)}
        monkeypatch.setattr(compare, "_read", lambda name, runs=runs: ("run", runs[name]))
        found.append(compare.compare("a", "b")[0].startswith(word))
    assert sum(found) >= 27


def test_a_run_is_the_same_as_itself_and_no_other_workload(home):
    run, other = (next(paths.REFERENCE.glob(f"*/profiles/*{name}*_train.csv")) for name in ("W2", "W1"))
    assert output_of("compare", run, run).startswith("No difference is shown beyond 3 %: B's times differ from A's by +0.0 %")
    assert "both need 8 steady training steps of one workload" in refusal("compare", run, other)
    pd.read_csv(run).iloc[:3].to_csv(home / "run.csv", index=False)
    with refused("both need 8 steady training steps"):
        compare.compare(str(run), str(home / "run.csv"))
