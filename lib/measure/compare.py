"""Differences between two measured runs, sweeps or matrices, matched row by row."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.measure import statistics
from lib.measure.training import matrix_tables, summary

WORDS = ("faster", "same", "slower")
_LEAST_PAIRS = 3
_DRAWS = 2000
_IDS = ("hardware_id", "software_id", "threads")
_PAIR = ["what", "a_ms", "b_ms", "ratio", "low", "high", "word"]


@dataclass(frozen=True)
class Difference:
    """B against A: the ratio of times (above 1: B is slower) with a 95 % interval, the word for it, and every pair.

    ``word`` is faster or slower if the whole interval lies beyond ``threshold``, else same. ``pairs`` has ``what, a_ms, b_ms,
    ratio, low, high, word``; ``differs`` names what else differs between the two.
    """

    ratio: float
    low: float
    high: float
    word: str
    pairs: pd.DataFrame
    differs: dict[str, tuple[str, str]]
    left_out: int
    threshold: float = 0.03

    @property
    def verdict(self) -> str:
        """Return the word as a sentence: an interval that reaches beyond the threshold does not show that both are the same."""
        if self.word != "same":
            return f"B is {self.word}"
        within = 1 - self.threshold <= self.low and self.high <= 1 + self.threshold
        return ("B and A are the same within" if within else "No difference is shown beyond") + f" {100 * self.threshold:.3g} %"


def find(name: str) -> tuple[str, Path]:
    """Return the kind (sweep, matrix or run) and its file: a path, a sweep's folder, an environment, or a run id.

    Raises InputError saying where was looked.
    """
    path, profile, environment = Path(name), paths.PROFILES / f"{name}_train.csv", matrix_tables.path_of(name)
    for folder in (path, paths.SWEEPS / name):
        if (folder / "sweep.parquet").is_file():
            return "sweep", folder / "sweep.parquet"
    if path.is_file():
        return "sweep" if path.suffix == ".parquet" else "matrix" if matrix_tables.is_one(path) else "run", path
    for kind, stored in (("matrix", environment), ("run", profile)):
        if path.name == name and stored.is_file():
            return kind, stored
    raise InputError(f"{name!r} is no measured sweep or run: looked for the path, {paths.SWEEPS / name}/sweep.parquet, "
                     f"{profile} and {environment}")


def _word(low, high, threshold: float) -> np.ndarray:
    """Return slower or faster where the whole interval lies beyond the threshold's side of 1, else same."""
    return np.select([np.asarray(low) > 1 + threshold, np.asarray(high) < 1 - threshold], ["slower", "faster"], "same")


def _of_sweep(table: pd.DataFrame) -> pd.DataFrame:
    """Return the configurations of a sweep; without a time within the range of its rounds one has none."""
    timed = table["low_ms"].gt(0) & table["latency_ms"].between(table["low_ms"], table["high_ms"])
    what = table["op"] + " " + table["pass"] + " " + table["dtype"] + " " + table["config"]
    return table.assign(what=what)[timed & statistics.is_usable(table)]


def _of_matrix(table: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of an environment, in ms per image."""
    what = table["arch"] + " b" + table["batch_size"].astype(str) + " " + table["precision"] + " " + table["settings"]
    return table.assign(what=what, latency_ms=1e3 / table["median"], low_ms=1e3 / table["high"], high_ms=1e3 / table["low"])


def _ranges(a: pd.DataFrame, b: pd.DataFrame, kind: "_Kind", threshold: float) -> tuple[pd.DataFrame, int]:
    """Pair the rows of two sweeps or matrices: a pair differs when the ranges of its times do not touch."""
    keys = [name for name in kind.keys if name != "device" or max(a["device"].nunique(), b["device"].nunique()) > 1]
    pairs = kind.rows(a).merge(kind.rows(b), on=keys, suffixes=("", "_b"))
    frame = pd.DataFrame({"what": pairs["what"], "a_ms": pairs["latency_ms"], "b_ms": pairs["latency_ms_b"],
                          "ratio": pairs["latency_ms_b"] / pairs["latency_ms"], "low": pairs["low_ms_b"] / pairs["high_ms"],
                          "high": pairs["high_ms_b"] / pairs["low_ms"]})
    apart = (frame["ratio"] - 1).abs() > threshold
    word = np.where(apart, _word(frame["low"], frame["high"], 0.0), "same")
    return frame.assign(word=word), max(len(a), len(b)) - len(pairs)


def _runs(a: pd.DataFrame, b: pd.DataFrame, threshold: float) -> tuple[pd.DataFrame, int]:
    """Compare the steady steps of two profiled runs, pass by pass; intervals by block bootstrap of both medians.

    Few blocks say little of how they vary: the interval is as wide as Student's with a degree of freedom for each.
    """
    from scipy import stats

    rows, random = [], np.random.default_rng(0)
    kinds = sorted({*a["task_type"], *b["task_type"]})
    for kind in kinds:
        steps = [summary.steady(frame[frame["task_type"] == kind])["step_time_ms"].to_numpy() for frame in (a, b)]
        steps = [part[part > 0] for part in steps]
        if min(map(len, steps)) < _LEAST_PAIRS:
            continue
        blocks = [statistics.block_length(part) for part in steps]
        drawn = [statistics.resampled(part, np.median, _DRAWS, random, block)
                 for part, block in zip(steps, blocks, strict=True)]
        freedom = max(1.0, sum(len(part) / block for part, block in zip(steps, blocks, strict=True)) - 2)
        a_ms, b_ms = map(np.median, steps)
        ratio, wider = b_ms / a_ms, stats.t.ppf(0.975, freedom) / stats.norm.ppf(0.975)
        low, high = statistics.interval(ratio * (drawn[1] / drawn[0] / ratio) ** wider)
        rows.append([f"{a['workload_id'].iloc[0]} {kind} step", a_ms, b_ms, ratio, low, high, str(_word(low, high, threshold))])
    return pd.DataFrame(rows, columns=_PAIR), len(kinds) - len(rows)


@dataclass(frozen=True)
class _Kind:
    """What is compared: its table, what each row is of, what makes two of it comparable, and the rows that are paired."""

    table: str
    keys: list[str]
    remedy: str
    rows: Callable[[pd.DataFrame], pd.DataFrame] | None = None


_KINDS = {
    "sweep": _Kind("sweep", ["config", "device"],
                   "sweep both with the same op or grid, seed, dtype, cache and latency_type, and a larger budget_s",
                   _of_sweep),
    "run": _Kind("profile", ["task_type", "global_step"],
                 "profile the workload for longer: 02_profile with -p iters 60 -p budget_s 60"),
    "matrix": _Kind("matrix", ["workload_id", "arch", "backend", "batch_size", "precision", "settings"],
                    "run the same cells in both environments (python -m lib matrix)", _of_matrix)}


def _read(path: Path, kind: _Kind) -> pd.DataFrame:
    """Read one sweep or one run; InputError for a file without rows, of several runs, or with a row that is there twice."""
    frame = store.read(path, kind.table)
    if not len(frame):
        raise InputError(f"{path} has no whole row: nothing can be compared with it")
    if kind.table == "profile" and len(frame.drop_duplicates(["run_id", "workload_id"])) > 1:
        raise InputError(f"{path} holds several runs ({choices(sorted(set(frame['run_id']))[:3])}); compare one file a run")
    doubled = frame[frame.duplicated(kind.keys)]
    if len(doubled):
        what = " ".join(f"{name} {doubled[name].iloc[0]}" for name in kind.keys)
        raise InputError(f"{path}: {len(doubled)} rows are there twice, the first of {what}")
    return frame


def difference(a: str, b: str, threshold: float = 0.03) -> Difference:
    """Compare what was measured as ``b`` against ``a``; differences within ``threshold``, a share below 1, are the same.

    Sweeps are matched configuration by configuration, runs pass by pass; what has no time, or no partner, is left out and
    counted. Raises InputError when they are of different kinds or workloads, or have nothing in common.
    """
    (kind_a, path_a), (kind_b, path_b) = find(a), find(b)
    if kind_a != kind_b:
        raise InputError(f"{a} is a {kind_a} and {b} a {kind_b}: only like can be compared with like")
    kind, is_run = _KINDS[kind_a], kind_a == "run"
    left, right = _read(path_a, kind), _read(path_b, kind)
    if is_run and set(left["workload_id"]) != set(right["workload_id"]):
        raise InputError(f"{a} is {left['workload_id'].iloc[0]} and {b} {right['workload_id'].iloc[0]}: not the same work")
    pairs, left_out = _runs(left, right, threshold) if is_run else _ranges(left, right, kind, threshold)
    if len(pairs) < (1 if is_run else _LEAST_PAIRS):
        few = f"no pass has {_LEAST_PAIRS} steady steps in both" if is_run else (
            f"{len(pairs)} configurations are usable in both, {_LEAST_PAIRS} are needed ({left_out} have no time or no "
            "partner)")
        raise InputError(f"{a} and {b} are not comparable: {few}; {kind.remedy}")
    if is_run:
        ratio, low, high = pairs.loc[0, ["ratio", "low", "high"]].astype(float)
    else:
        logs = np.log(pairs["ratio"].to_numpy(float))
        ratio, low, high = np.exp([logs.mean(), *statistics.bootstrap(logs, np.mean, draws=_DRAWS)])
    ids = {name: tuple(", ".join(sorted(set(frame[name].astype(str)))) for frame in (left, right))
           for name in _IDS if name in left}
    return Difference(ratio, low, high, str(_word(low, high, threshold)), pairs,
                      {name: values for name, values in ids.items() if values[0] != values[1]}, left_out, threshold)


def words(result: Difference) -> str:
    """Return the difference as lines of text."""
    change, low, high = (f"{100 * (ratio - 1):+.1f}" for ratio in (result.ratio, result.low, result.high))
    counts = result.pairs["word"].value_counts()
    lines = [f"{result.verdict}: B's times differ from A's by {change} % (95 % interval {low} to {high} %)",
             f"{len(result.pairs)} pairs: " + ", ".join(f"{counts.get(word, 0)} {word}" for word in WORDS)
             + (f"; {result.left_out} without a usable partner" if result.left_out else "")]
    apart = result.pairs.assign(size=np.abs(np.log(result.pairs["ratio"]))).query("word != 'same'").nlargest(5, "size")
    lines += [f"  {row.what}: {row.a_ms:.4g} -> {row.b_ms:.4g} ms, x{row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}] {row.word}"
              for row in apart.itertuples()]
    lines += [f"{name} differs: {value_a} and {value_b}" for name, (value_a, value_b) in result.differs.items()]
    return "\n".join(lines)
