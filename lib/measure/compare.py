"""Compare two measured runs, sweeps or matrix environments: how many times as long B takes as A."""

from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.measure.statistics import is_usable
from lib.measure.training import matrix_tables, summary

_KEYS = {"sweep": ["op", "pass", "dtype", "device", "config"], "run": ["task_type", "global_step"],
         "matrix": ["workload_id", "arch", "backend", "batch_size", "precision", "settings"]}
_BLOCKS = 8  # of a run's steps, each of which depends on the one before


def compare(a: str, b: str, threshold: float = 0.03) -> tuple[str, bool]:
    """Return lines on the ratio of B's times to A's with a 95 % interval, and whether B is slower.

    Args:
        a: a run id, a sweep, an environment of the matrix, or a file or folder of one
        b: another of the same kind; runs are compared by their training steps, others row by row
        threshold: differences up to this share are the same

    Raises InputError for different kinds or workloads, doubled rows, and too few steps or pairs.
    """
    from scipy.stats import bootstrap

    (kind, left), (other, right) = _read(a), _read(b)
    if kind != other:
        raise InputError(f"{a} is a {kind} and {b} a {other}: only like can be compared with like")
    lines = []
    if kind == "run":
        samples = _blocks(left), _blocks(right)
        alike = set(left["workload_id"]) == set(right["workload_id"])
        if not alike or min(len(left), len(right)) < _BLOCKS:
            raise InputError(f"not comparable: both need {_BLOCKS} steady training steps of one workload")
    else:
        keys = [key for key in _KEYS[kind]
                if key != "device" or max(left[key].nunique(), right[key].nunique()) > 1]
        both = left.merge(right, on=keys, suffixes=("", "_b"))
        unpaired = max(len(left), len(right)) - len(both)
        if len(both) < 3:
            raise InputError(f"not comparable: {len(both)} rows are usable in both, 3 are needed "
                             f"({unpaired} have no usable partner); measure the same in both")
        samples = np.log(both["ms"].to_numpy()), np.log(both["ms_b"].to_numpy())
        largest = np.argsort(-np.abs(samples[1] - samples[0]))[:5]
        lines = [f"{len(both)} pairs, {unpaired} rows without a usable partner; the largest differences:",
                 both[[*keys, "ms", "ms_b"]].iloc[largest].to_string(index=False)]
    found = bootstrap(samples, _log_ratio, paired=kind != "run", method="percentile",
                      rng=np.random.default_rng(0)).confidence_interval
    ratio, low, high = np.exp([_log_ratio(*samples), *found])
    verdict = f"No difference is shown beyond {100 * threshold:.3g} %"
    if low > 1 + threshold:
        verdict = "B is slower"
    elif high < 1 - threshold:
        verdict = "B is faster"
    for name in ("hardware_id", "software_id", "threads"):
        if name in left and set(left[name]) != set(right[name]):
            lines.append(f"{name} differs: {choices(set(left[name]))} and {choices(set(right[name]))}")
    first = (f"{verdict}: B's times differ from A's by {100 * (ratio - 1):+.1f} % "
             f"(95 % interval {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %)")
    return "\n".join([first, *lines]), low > 1 + threshold


def _read(name: str) -> tuple[str, pd.DataFrame]:
    """Return the kind of a measurement, and its usable rows with their time in ms in a column ``ms``."""
    path = Path(name)
    found = {path / "sweep.parquet": "sweep", paths.SWEEPS / name / "sweep.parquet": "sweep",
             path: "sweep" if path.suffix == ".parquet" else "matrix" if matrix_tables.is_one(path) else "run",
             matrix_tables.path_of(path.name): "matrix", paths.PROFILES / f"{path.name}_train.csv": "run"}
    file = next((file for file in found if file.is_file()), None)
    if file is None:
        raise InputError(f"{name!r} is no measured sweep, run or environment: looked for {choices(found)}")
    kind = found[file]
    table = store.read(file, "profile" if kind == "run" else kind)
    if table.empty or table.duplicated(_KEYS[kind]).any():
        keys = " and ".join(_KEYS[kind])
        fault = "has no whole row" if table.empty else f"holds two rows of the same {keys}"
        raise InputError(f"{file} {fault}: it cannot be compared")
    if kind == "run":
        steps = summary.steady(table)
        return kind, steps[steps["task_type"] == "train"].assign(ms=lambda rows: rows["step_time_ms"])
    if kind == "sweep":
        table = table[is_usable(table) & (table["latency_ms"] > 0)]
        return kind, table.assign(ms=table["latency_ms"])
    return kind, table.assign(ms=1e3 / table["median"])


def _blocks(steps: pd.DataFrame) -> np.ndarray:
    """Return the logarithms of the medians of blocks of steps."""
    return np.log([np.median(block) for block in np.array_split(steps["ms"], _BLOCKS) if len(block)])


def _log_ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the logarithm of the ratio of the geometric means of b and a."""
    return np.mean(b, axis=axis) - np.mean(a, axis=axis)
