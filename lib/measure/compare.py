"""Compare two measured runs, sweeps or matrix environments: how many times as long B takes as A."""

from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.measure.statistics import block_length, is_usable
from lib.measure.training import summary, throughput

_KEYS = {"sweep": ["device", "config"], "run": ["task_type", "global_step"],
         "matrix": ["workload_id", "arch", "backend", "batch_size", "precision", "settings"]}


def compare(a: str, b: str, threshold: float = 0.03) -> tuple[str, bool]:
    """Return lines on the ratio of B's times to A's with a 95 % interval, and whether B is slower.

    Args:
        a: a run id, a sweep, an environment of the matrix, or a file or folder of one.
        b: another of the same kind. Runs are compared by their training steps, others row by row.
        threshold: differences up to this share are the same.

    Raises InputError for different kinds or workloads, doubled rows, and too few steps or pairs.
    """
    from scipy.stats import bootstrap

    (kind, path_a), (other, path_b) = _find(a), _find(b)
    if kind != other:
        raise InputError(f"{a} is a {kind} and {b} a {other}: only like can be compared with like")
    left, right = _read(path_a, kind), _read(path_b, kind)
    samples, lines = _steps(left, right) if kind == "run" else _pairs(left, right, kind)
    interval = bootstrap(samples, _log_ratio, paired=kind != "run", method="percentile",
                         rng=np.random.default_rng(0)).confidence_interval
    ratio, low, high = np.exp([_log_ratio(*samples), *interval])
    verdict = f"No difference is shown beyond {100 * threshold:.3g} %"
    if low > 1 + threshold:
        verdict = "B is slower"
    elif high < 1 - threshold:
        verdict = "B is faster"
    lines = [f"{verdict}: B's times differ from A's by {100 * (ratio - 1):+.1f} % "
             f"(95 % interval {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %)", *lines]
    for name in ("hardware_id", "software_id", "threads"):
        if name in left and set(left[name]) != set(right[name]):
            ids_a, ids_b = (choices(table[name].unique()) for table in (left, right))
            lines.append(f"{name} differs: {ids_a} and {ids_b}")
    return "\n".join(lines), low > 1 + threshold


def _find(name: str) -> tuple[str, Path]:
    """Return the kind (sweep, run or matrix) and the file of a measurement."""
    path = Path(name)
    found = {path / "sweep.parquet": "sweep", paths.SWEEPS / name / "sweep.parquet": "sweep",
             path: "matrix" if path.name.startswith("throughput_") else "run",
             throughput.path_of(path.name): "matrix",
             paths.PROFILES / f"{path.name}_train.csv": "run"}
    for file, kind in found.items():
        if file.is_file():
            return "sweep" if file.suffix == ".parquet" else kind, file
    raise InputError(f"{name!r} is no measured sweep, run or environment: "
                     f"looked for {choices(found)}")


def _read(path: Path, kind: str) -> pd.DataFrame:
    """Return the usable rows of one measurement, with their time in ms in the column ``ms``."""
    table = store.read(path, "profile" if kind == "run" else kind)
    if table.empty or table.duplicated(_KEYS[kind]).any():
        keys = " and ".join(_KEYS[kind])
        fault = "has no whole row" if table.empty else f"holds two rows of the same {keys}"
        raise InputError(f"{path} {fault}: it cannot be compared")
    if kind == "run":
        table = summary.steady(table)
        return table.assign(ms=table["step_time_ms"])[table["task_type"] == "train"]
    if kind == "sweep":
        table = table[is_usable(table) & (table["latency_ms"] > 0)]
        what = table["op"] + " " + table["pass"] + " " + table["dtype"] + " " + table["config"]
        return table.assign(ms=table["latency_ms"], what=what)
    what = table["arch"] + " b" + table["batch_size"].astype(str) + " " + table["precision"]
    return table.assign(ms=1e3 / table["median"], what=what)


def _pairs(left: pd.DataFrame, right: pd.DataFrame,
           kind: str) -> tuple[list[np.ndarray], list[str]]:
    """Return the logarithms of the times of equal rows in both, and lines on the largest ratios."""
    one_device = kind == "sweep" and max(left["device"].nunique(), right["device"].nunique()) == 1
    pairs = left.merge(right, on=["config"] if one_device else _KEYS[kind], suffixes=("", "_b"))
    unpaired = max(len(left), len(right)) - len(pairs)
    if len(pairs) < 3:
        raise InputError(f"not comparable: {len(pairs)} rows are usable in both, 3 are needed "
                         f"({unpaired} have no usable partner); measure the same in both")
    logs = [np.log(pairs[name].to_numpy()) for name in ("ms", "ms_b")]
    lines = [f"{len(pairs)} pairs, {unpaired} rows without a usable partner; "
             "the largest differences:"]
    lines += [f"  {row.what}: {row.ms:.4g} -> {row.ms_b:.4g} ms, x{row.ms_b / row.ms:.3f}"
              for row in pairs.iloc[np.argsort(-np.abs(logs[1] - logs[0]))[:5]].itertuples()]
    return logs, lines


def _steps(left: pd.DataFrame, right: pd.DataFrame) -> tuple[list[np.ndarray], list[str]]:
    """Return the logarithms of the medians of blocks of steps, since neighbours are correlated."""
    if set(left["workload_id"]) != set(right["workload_id"]) or min(len(left), len(right)) < 3:
        raise InputError("not comparable: both need 3 steady training steps of the same workload")
    samples = []
    for steps_ms in (left["ms"].to_numpy(), right["ms"].to_numpy()):
        blocks = np.array_split(steps_ms, max(2, len(steps_ms) // block_length(steps_ms)))
        samples.append(np.log([np.median(block) for block in blocks]))
    return samples, []


def _log_ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the logarithm of the ratio of the geometric means of b and a."""
    return np.mean(b, axis=axis) - np.mean(a, axis=axis)
