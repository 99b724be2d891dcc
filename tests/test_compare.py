"""Comparing two measurements: what is wrong is refused or counted, and never called the same."""

import numpy as np
import pandas as pd
import pytest

from lib import paths, store
from lib.measure import compare
from tests import output_of, refusal, refused, row


@pytest.fixture
def sweeps(home):
    """Two sweeps of twelve configurations, ``b`` three times as slow, and a way to write ``b`` changed."""
    for name, factor in (("a", 1.0), ("b", 3.0)):
        rows = [row("sweep", config=f"{number:012d}", device="cpu", n=5, latency_ms=ms, latency_iqr_ms=0.01 * ms,
                    low_ms=0.99 * ms, high_ms=1.01 * ms) for number, ms in enumerate(factor * np.linspace(1, 2, 12))]
        store.write(pd.concat(rows, ignore_index=True), paths.SWEEPS / name / "sweep.parquet", "sweep")

    def changed(change):
        frame = change(store.read(paths.SWEEPS / "b/sweep.parquet", "sweep"))
        return str(store.write(frame, home / "changed.parquet", "sweep", derived=True))
    return changed


@pytest.mark.slow
def test_what_has_no_time_is_left_out_and_counted(sweeps):
    some = sweeps(lambda rows: rows.assign(low_ms=rows["low_ms"].where(rows.index >= 2, 0.0)))
    words = compare.words(compare.difference("a", some))
    assert "10 pairs: 0 faster, 0 same, 10 slower; 2 without a usable partner" in words
    few = sweeps(lambda rows: rows.assign(latency_ms=rows["latency_ms"].where(rows.index < 2)))
    with refused("are not comparable: 2 configurations are usable in both, 3 are needed .10 have"):
        compare.difference("a", few)


@pytest.mark.parametrize("ratio, low, high, word, line", [
    (1.0891, 0.9495, 1.1572, "same", "No difference is shown beyond 3 %: B's times differ from A's by +8.9 % (95 % interval "
                                     "-5.0 to +15.7 %)"),
    (1.001, 0.99, 1.02, "same", "B and A are the same within 3 %: B's times differ from A's by +0.1 % (95 % interval -1.0 to "
                                "+2.0 %)"),
    (1.2, 1.1, 1.3, "slower", "B is slower: B's times differ from A's by +20.0 % (95 % interval +10.0 to +30.0 %)"),
    (0.8, 0.7, 0.9, "faster", "B is faster: B's times differ from A's by -20.0 % (95 % interval -30.0 to -10.0 %)")])
def test_a_difference_is_told_in_words_that_do_not_contradict_its_interval(ratio, low, high, word, line):
    pairs = pd.DataFrame([["W1", 1.0, ratio, ratio, low, high, word]], columns=compare._PAIR)
    assert compare.words(compare.Difference(ratio, low, high, word, pairs, {}, 0)).splitlines()[0] == line


@pytest.mark.slow
def test_a_configuration_counts_once(sweeps):
    with refused("changed.parquet: 1 rows are there twice, the first of config 0{11}4 device cpu"):
        compare.difference("a", sweeps(lambda rows: pd.concat([rows, rows.iloc[4:5]])))
    two = sweeps(lambda rows: pd.concat([rows, rows.assign(device="cuda:0")]))
    assert len(compare.difference("a", two).pairs) == 12, "of two devices, each is compared with its like"


@pytest.fixture
def run():
    return next(paths.REFERENCE.glob("*/profiles/*W2*_train.csv"))


def steps_of(random, steps, spread, factor=1.0):
    """Return the steps of a run, each of which depends on the one before: AR(1), lag-1 autocorrelation 0.8."""
    values = [random.normal()]
    for shock in random.normal(0, 0.6, steps - 1):
        values.append(0.8 * values[-1] + shock)
    return pd.DataFrame({"step_time_ms": factor * 10 * np.exp(spread * np.array(values)), "task_type": "train",
                         "workload_id": "W1", "run_id": "r", "warmup": False, "batch_size": 4})


@pytest.mark.parametrize("steps, spread, factor, word", [
    (60, 0.1, 1.0, "same"), (300, 0.2, 1.0, "same"), (60, 0.03, 1.1, "slower"), (60, 0.03, 1 / 1.1, "faster")])
def test_steps_that_depend_on_the_one_before_are_not_taken_for_independent_ones(steps, spread, factor, word):
    words = [compare._runs(steps_of(random, steps, spread), steps_of(random, steps, spread, factor), 0.03)[0]["word"][0]
             for random in map(np.random.default_rng, range(30))]
    assert words.count(word) >= 27


def test_a_run_is_one_run_whose_steps_count_once_and_the_same_as_itself(home, run):
    result = compare.difference(str(run), str(run))
    assert result.word == "same" and result.ratio == 1.0 and set(result.pairs["what"]) == {"W2 train step"}
    rows = pd.read_csv(run)
    for frame, words in ((pd.concat([rows, rows]), f"{len(rows)} rows are there twice, the first of task_type train"),
                         (pd.concat([rows, rows.assign(run_id="other")]), "holds several runs"),
                         (rows.iloc[:3], "no pass has 3 steady steps in both"), (rows.iloc[:0], "has no whole row")):
        frame.to_csv(home / "run.csv", index=False)
        with refused(words):
            compare.difference(str(run), str(home / "run.csv"))


@pytest.mark.slow
def test_pairs_are_written_to_a_new_file_alone(sweeps, home):
    assert "is not overwritten" in refusal("compare", "a", "b", "--out", paths.SWEEPS / "a/sweep.parquet")
    assert "'nothing' is no measured sweep or run" in refusal("compare", "a", "nothing")
    output_of("compare", "a", "b", "--out", home / "pairs.csv", status=1)
    assert np.allclose(pd.read_csv(home / "pairs.csv")["ratio"], 3)
