"""The difference between two measured runs or sweeps: faster, slower or the same, by how much, matched one by one."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError
from lib.measure import statistics
from lib.measure.statistics import VERDICTS
from lib.measure.training import summary

WORDS = ("faster", "same", "slower")
_LEAST_PAIRS = 3
_DRAWS = 2000
_IDS = ("hardware_id", "software_id", "threads")


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
    """Return the geometric mean of ratios (n,) and its bootstrap interval over the pairs."""
    logs = np.log(ratios)
    low, high = statistics.bootstrap(logs, np.mean, draws=_DRAWS)
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def find(name: str) -> tuple[str, Path]:
    """Return the kind (sweep or run) and the file that ``name`` stands for: a path, a sweep's folder, or a run id.

    Raises InputError saying where was looked.
    """
    path = Path(name)
    for folder in (path, paths.SWEEPS / name):
        if (folder / "sweep.parquet").is_file():
            return "sweep", folder / "sweep.parquet"
    if path.is_file():
        return ("sweep", path) if path.suffix == ".parquet" else ("run", path)
    own = paths.PROFILES / f"{name}_train.csv"
    if own.is_file():
        return "run", own
    raise InputError(f"{name!r} is no measured sweep or run: looked for the path, {paths.SWEEPS / name}/sweep.parquet "
                     f"and {own}")


def _differs(a: pd.DataFrame, b: pd.DataFrame) -> dict[str, tuple[str, str]]:
    def values(frame: pd.DataFrame, name: str) -> str:
        return ", ".join(sorted({str(value) for value in frame[name]}))

    return {name: (values(a, name), values(b, name)) for name in _IDS if values(a, name) != values(b, name)}


def _sweeps(a: pd.DataFrame, b: pd.DataFrame, threshold: float) -> tuple[pd.DataFrame, int]:
    """Pair two sweeps by configuration; a pair differs when the ranges of its rounds do not touch."""
    columns = ["config", "op", "pass", "dtype", "device", "latency_ms", "low_ms", "high_ms"]
    good = [frame[(frame["status"] == "ok") & (frame["verdict"] != VERDICTS[2])][columns] for frame in (a, b)]
    several = [len(set(frame["device"])) > 1 for frame in good]
    pairs = good[0].merge(good[1], on=["config", "device"] if all(several) else ["config"], suffixes=("", "_b"))
    left_out = max(len(a), len(b)) - len(pairs)
    frame = pd.DataFrame({
        "what": pairs["op"] + " " + pairs["pass"] + " " + pairs["dtype"] + " " + pairs["config"],
        "a_ms": pairs["latency_ms"], "b_ms": pairs["latency_ms_b"], "ratio": pairs["latency_ms_b"] / pairs["latency_ms"],
        "low": pairs["low_ms_b"] / pairs["high_ms"], "high": pairs["high_ms_b"] / pairs["low_ms"]})
    frame["word"] = [_word(low, high, 0.0) if abs(ratio - 1) > threshold else "same"
                     for low, high, ratio in zip(frame["low"], frame["high"], frame["ratio"], strict=True)]
    return frame, left_out


def _runs(a: pd.DataFrame, b: pd.DataFrame, threshold: float) -> tuple[pd.DataFrame, int]:
    """Compare the steady steps of two profiled runs, pass by pass; intervals by bootstrap of both medians."""
    rows, random = [], np.random.default_rng(0)
    for kind in sorted(set(a["task_type"]) & set(b["task_type"])):
        one, two = (summary.steady(frame[frame["task_type"] == kind])["step_time_ms"].to_numpy() for frame in (a, b))
        if len(one) < _LEAST_PAIRS or len(two) < _LEAST_PAIRS:
            continue
        drawn = [statistics.resampled(part, np.median, _DRAWS, random) for part in (one, two)]
        low, high = statistics.interval(drawn[1] / drawn[0])
        rows.append({"what": f"{a['workload_id'].iloc[0]} {kind} step", "a_ms": np.median(one), "b_ms": np.median(two),
                     "ratio": np.median(two) / np.median(one), "low": low, "high": high, "word": _word(low, high, threshold)})
    return pd.DataFrame(rows, columns=["what", "a_ms", "b_ms", "ratio", "low", "high", "word"]), 0


def difference(a: str, b: str, threshold: float = 0.03) -> Difference:
    """Compare what was measured as ``b`` against ``a``; differences within ``threshold`` are the same.

    Sweeps are matched configuration by configuration (those that either lacks are left out and counted), runs pass by
    pass. Raises InputError when they are of different kinds or workloads, or have nothing in common.
    """
    (kind_a, path_a), (kind_b, path_b) = find(a), find(b)
    if kind_a != kind_b:
        raise InputError(f"{a} is a {kind_a} and {b} a {kind_b}: only like can be compared with like")
    table = "sweep" if kind_a == "sweep" else "profile"
    left, right = store.read(path_a, table), store.read(path_b, table)
    if table == "profile" and set(left["workload_id"]) != set(right["workload_id"]):
        raise InputError(f"{a} is {left['workload_id'].iloc[0]} and {b} {right['workload_id'].iloc[0]}: not the same work")
    pairs, left_out = (_sweeps if table == "sweep" else _runs)(left, right, threshold)
    if table == "sweep" and 0 < len(pairs) < _LEAST_PAIRS or pairs.empty:
        raise InputError(f"{a} and {b} have {len(pairs)} configurations that are usable in both ({left_out} are not, or lack a "
                         f"partner); {_LEAST_PAIRS} are needed")
    if table == "sweep":
        ratio, low, high = _overall(pairs["ratio"].to_numpy())
    else:
        ratio, low, high = pairs.loc[0, ["ratio", "low", "high"]].astype(float)
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
    return "\n".join(lines + [f"{name} differs: {one} and {two}" for name, (one, two) in result.differs.items()])
