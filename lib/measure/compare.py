"""Differences between two measured runs, sweeps or matrices, matched row by row."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.measure import statistics
from lib.measure.statistics import VERDICTS
from lib.measure.training import matrix_tables, summary

WORDS = ("faster", "same", "slower")
_LEAST_PAIRS = 3
_DRAWS = 2000
_IDS = ("hardware_id", "software_id", "threads")
_TABLES = {"sweep": "sweep", "run": "profile", "matrix": "matrix"}
_PAIRED = {"sweep": _LEAST_PAIRS, "profile": 1, "matrix": _LEAST_PAIRS}  # pairs, at least
_REMEDY = {  # what makes two of a kind comparable
    "sweep": "sweep both with the same op or grid, seed, dtype, cache and latency_type, and a larger budget_s",
    "profile": "profile the workload for longer: 02_profile with -p iters 60 -p budget_s 60",
    "matrix": "run the same cells in both environments (python -m lib matrix)"}


@dataclass(frozen=True)
class Difference:
    """B against A: the ratio of times (above 1: B is slower) with a 95 % interval, the word for it, and every pair.

    ``pairs`` has ``what, a_ms, b_ms, ratio, low, high, word``; ``differs`` names what else differs between the two.
    """

    ratio: float
    low: float
    high: float
    word: str
    pairs: pd.DataFrame
    differs: dict[str, tuple[str, str]]
    left_out: int


def _word(low: float, high: float, threshold: float) -> str:
    """Return faster or slower when the whole interval lies beyond the threshold's side of 1, else same."""
    if low > 1 + threshold:
        return "slower"
    return "faster" if high < 1 - threshold else "same"


def _overall(ratios: np.ndarray) -> tuple[float, float, float]:
    logs = np.log(ratios)
    low, high = statistics.bootstrap(logs, np.mean, draws=_DRAWS)
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def find(name: str) -> tuple[str, Path]:
    """Return the kind (sweep, matrix or run) and its file: a path, a sweep's folder, an environment, or a run id.

    Raises InputError saying where was looked.
    """
    path = Path(name)
    for folder in (path, paths.SWEEPS / name):
        if (folder / "sweep.parquet").is_file():
            return "sweep", folder / "sweep.parquet"
    if path.is_file():
        kind = "sweep" if path.suffix == ".parquet" else "matrix" if matrix_tables.is_one(path) else "run"
        return kind, path
    if matrix_tables.path_of(path.name).is_file() and path.name == name:
        return "matrix", matrix_tables.path_of(name)
    profile = paths.PROFILES / f"{name}_train.csv"
    if profile.is_file():
        return "run", profile
    raise InputError(f"{name!r} is no measured sweep or run: looked for the path, {paths.SWEEPS / name}/sweep.parquet, "
                     f"{profile} and {matrix_tables.path_of(name)}")


def _differs(a: pd.DataFrame, b: pd.DataFrame) -> dict[str, tuple[str, str]]:
    def values(frame: pd.DataFrame, name: str) -> str:
        return ", ".join(sorted({str(value) for value in frame[name]}))

    return {name: (values(a, name), values(b, name)) for name in _IDS
            if name in a and values(a, name) != values(b, name)}


def _sweeps(a: pd.DataFrame, b: pd.DataFrame, threshold: float) -> tuple[pd.DataFrame, int]:
    """Pair two sweeps by configuration; a pair differs when the ranges of its rounds do not touch."""
    many_devices = any(len(set(frame["device"])) > 1 for frame in (a, b))
    pairs = _usable(a).merge(_usable(b), on=["config", "device"] if many_devices else ["config"], suffixes=("", "_b"))
    left_out = max(len(a), len(b)) - len(pairs)
    frame = pd.DataFrame({
        "what": pairs["op"] + " " + pairs["pass"] + " " + pairs["dtype"] + " " + pairs["config"],
        "a_ms": pairs["latency_ms"], "b_ms": pairs["latency_ms_b"], "ratio": pairs["latency_ms_b"] / pairs["latency_ms"],
        "low": pairs["low_ms_b"] / pairs["high_ms"], "high": pairs["high_ms_b"] / pairs["low_ms"]})
    return _judged(frame, threshold), left_out


def _usable(sweep: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a sweep that have a time within the range of its rounds."""
    timed = sweep["low_ms"].gt(0) & sweep["latency_ms"].between(sweep["low_ms"], sweep["high_ms"])
    good = timed & (sweep["status"] == "ok") & (sweep["verdict"] != VERDICTS[2])
    return sweep.loc[good, ["config", "op", "pass", "dtype", "device", "latency_ms", "low_ms", "high_ms"]]


def _runs(a: pd.DataFrame, b: pd.DataFrame, threshold: float) -> tuple[pd.DataFrame, int]:
    """Compare the steady steps of two profiled runs, pass by pass; intervals by block bootstrap of both medians.

    Few blocks say little of how they vary: the interval is as wide as Student's with a degree of freedom for each.
    """
    from scipy import stats

    rows, random = [], np.random.default_rng(0)
    kinds = {*a["task_type"], *b["task_type"]}
    for kind in sorted(kinds):
        steps = [_steps_ms(frame[frame["task_type"] == kind]) for frame in (a, b)]
        if min(map(len, steps)) < _LEAST_PAIRS:
            continue
        blocks = [statistics.block_length(part) for part in steps]
        drawn = [statistics.resampled(part, np.median, _DRAWS, random, block)
                 for part, block in zip(steps, blocks, strict=True)]
        freedom = max(1.0, sum(len(part) / block for part, block in zip(steps, blocks, strict=True)) - 2)
        a_ms, b_ms = map(np.median, steps)
        ratio, wider = b_ms / a_ms, stats.t.ppf(0.975, freedom) / stats.norm.ppf(0.975)
        low, high = statistics.interval(ratio * (drawn[1] / drawn[0] / ratio) ** wider)
        rows.append({"what": f"{a['workload_id'].iloc[0]} {kind} step", "a_ms": a_ms, "b_ms": b_ms,
                     "ratio": ratio, "low": low, "high": high, "word": _word(low, high, threshold)})
    return pd.DataFrame(rows, columns=["what", "a_ms", "b_ms", "ratio", "low", "high", "word"]), len(kinds) - len(rows)


def _steps_ms(rows: pd.DataFrame) -> np.ndarray:
    """Return the times of the steady steps of a pass (n,), without those of 0 ms."""
    steps_ms = summary.steady(rows)["step_time_ms"].to_numpy()
    return steps_ms[steps_ms > 0]


_CELL = ["workload_id", "arch", "backend", "batch_size", "precision", "settings"]


def _cells(a: pd.DataFrame, b: pd.DataFrame, threshold: float) -> tuple[pd.DataFrame, int]:
    """Pair the cells of two environments, in ms per image; a pair differs when the ranges of its runs do not touch."""
    pairs = a.merge(b, on=_CELL, suffixes=("", "_b"))
    of_a, of_b = (1e3 / pairs[[f"{name}{end}" for name in ("median", "high", "low")]].to_numpy(float).T for end in ("", "_b"))
    words = pairs["arch"] + " b" + pairs["batch_size"].astype(str) + " " + pairs["precision"] + " " + pairs["settings"]
    frame = pd.DataFrame({"what": words, "a_ms": of_a[0], "b_ms": of_b[0], "ratio": of_b[0] / of_a[0],
                          "low": of_b[1] / of_a[2], "high": of_b[2] / of_a[1]})
    return _judged(frame, threshold), max(len(a), len(b)) - len(pairs)


def _judged(pairs: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """Return pairs with their words: the same within the threshold, or where the ranges touch."""
    words = [_word(low, high, 0.0) if abs(ratio - 1) > threshold else "same"
             for low, high, ratio in zip(pairs["low"], pairs["high"], pairs["ratio"], strict=True)]
    return pairs.assign(word=words)


_ROW_KEYS = {"sweep": ["config", "device"], "profile": ["task_type", "global_step"],
             "matrix": _CELL}


def _read(path: Path, table: str) -> pd.DataFrame:
    """Read one sweep or one run; InputError for a file without rows, of several runs, or with a row that is there twice."""
    frame = store.read(path, table)
    if not len(frame):
        raise InputError(f"{path} has no whole row: nothing can be compared with it")
    if table == "profile" and len(frame.drop_duplicates(["run_id", "workload_id"])) > 1:
        raise InputError(f"{path} holds several runs ({choices(sorted(set(frame['run_id']))[:3])}); compare one file a run")
    doubled = frame[frame.duplicated(_ROW_KEYS[table])]
    if len(doubled):
        what = " ".join(f"{name} {doubled[name].iloc[0]}" for name in _ROW_KEYS[table])
        raise InputError(f"{path}: {len(doubled)} rows are there twice, the first of {what}")
    return frame


def difference(a: str, b: str, threshold: float = 0.03) -> Difference:
    """Compare what was measured as ``b`` against ``a``; differences within ``threshold`` are the same.

    Sweeps are matched configuration by configuration, runs pass by pass; what has no time, or no partner, is left out and
    counted. Raises InputError when they are of different kinds or workloads, or have nothing in common.
    """
    if not 0 <= threshold < 1:
        raise InputError(f"threshold = {threshold}: it is a share, from 0 to less than 1, such as 0.03 for 3 %")
    (kind_a, path_a), (kind_b, path_b) = find(a), find(b)
    if kind_a != kind_b:
        raise InputError(f"{a} is a {kind_a} and {b} a {kind_b}: only like can be compared with like")
    table = _TABLES[kind_a]
    left, right = _read(path_a, table), _read(path_b, table)
    if table == "profile" and set(left["workload_id"]) != set(right["workload_id"]):
        raise InputError(f"{a} is {left['workload_id'].iloc[0]} and {b} {right['workload_id'].iloc[0]}: not the same work")
    pairs, left_out = {"sweep": _sweeps, "profile": _runs, "matrix": _cells}[table](left, right, threshold)
    if len(pairs) < _PAIRED[table]:
        raise InputError(f"{a} and {b} are not comparable: {len(pairs)} configurations are usable in both, {_PAIRED[table]} "
                         f"are needed ({left_out} have no time or no partner); {_REMEDY[table]}" if table != "profile" else
                         f"{a} and {b} are not comparable: no pass has {_LEAST_PAIRS} steady steps in both; {_REMEDY[table]}")
    ratio, low, high = (pairs.loc[0, ["ratio", "low", "high"]].astype(float) if table == "profile" else
                        _overall(pairs["ratio"].to_numpy(float)))
    return Difference(ratio, low, high, _word(low, high, threshold), pairs, _differs(left, right), left_out)


def words(result: Difference) -> str:
    """Return the difference as lines of text."""
    change = f"{abs(result.ratio - 1):.1%} {'slower' if result.ratio > 1 else 'faster'}"
    counts = result.pairs["word"].value_counts()
    lines = [f"B is {result.word}: B / A = {result.ratio:.4f} [{result.low:.4f}, {result.high:.4f}], {change}",
             f"{len(result.pairs)} pairs: " + ", ".join(f"{counts.get(word, 0)} {word}" for word in WORDS)
             + (f"; {result.left_out} without a usable partner" if result.left_out else "")]
    apart = result.pairs.assign(size=np.abs(np.log(result.pairs["ratio"]))).query("word != 'same'").nlargest(5, "size")
    lines += [f"  {row.what}: {row.a_ms:.4g} -> {row.b_ms:.4g} ms, x{row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}] {row.word}"
              for row in apart.itertuples()]
    lines += [f"{name} differs: {value_a} and {value_b}" for name, (value_a, value_b) in result.differs.items()]
    return "\n".join(lines)
