"""Compare two measured sweeps or matrix environments: how many times as long B takes as A."""

from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.measure.statistics import bootstrap, is_usable
from lib.measure.training import throughput

_KEYS = {"sweep": ["op", "pass", "dtype", "device", "config"],
         "matrix": ["workload_id", "arch", "backend", "batch_size", "precision", "settings"]}


def compare(a: str, b: str, threshold: float = 0.03) -> tuple[str, bool]:
    """Return lines on the ratio of B's times to A's with a 95 % interval, and whether B is slower.

    Args:
        a: a sweep, an environment of the matrix, or a file or folder of one
        b: another of the same kind, compared row by row
        threshold: differences up to this share are the same

    Raises InputError for different kinds, doubled rows, and too few pairs.
    """
    (kind, left), (other, right) = _read(a), _read(b)
    if kind != other:
        raise InputError(f"{a} is a {kind} and {b} a {other}: only like can be compared with like")
    keys = [key for key in _KEYS[kind]
            if key != "device" or max(left[key].nunique(), right[key].nunique()) > 1]
    both = left.merge(right, on=keys, suffixes=("", "_b"))
    unpaired = max(len(left), len(right)) - len(both)
    if len(both) < 3:
        raise InputError(f"not comparable: {len(both)} rows are usable in both, 3 are needed "
                         f"({unpaired} have no usable partner); measure the same in both")
    logs = np.log(both["ms_b"].to_numpy() / both["ms"].to_numpy())
    ratio, low, high = np.exp([logs.mean(), *bootstrap(logs, np.mean)])
    verdict = f"No difference is shown beyond {100 * threshold:.3g} %"
    if low > 1 + threshold:
        verdict = "B is slower"
    elif high < 1 - threshold:
        verdict = "B is faster"
    largest = both[[*keys, "ms", "ms_b"]].iloc[np.argsort(-np.abs(logs))[:5]]
    lines = [f"{verdict}: B's times differ from A's by {100 * (ratio - 1):+.1f} % "
             f"(95 % interval {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %)",
             f"{len(both)} pairs, {unpaired} rows without a usable partner; the largest differences:",
             largest.to_string(index=False)]
    for name in ("hardware_id", "software_id", "threads"):
        if name in left and set(left[name]) != set(right[name]):
            ours, theirs = (choices(sorted(set(table[name]))) for table in (left, right))
            lines.append(f"{name} differs: {ours} and {theirs}")
    return "\n".join(lines), low > 1 + threshold


def _read(name: str) -> tuple[str, pd.DataFrame]:
    """Return the kind of a measurement, and its usable rows with their time in ms in a column ``ms``."""
    path = Path(name)
    files = [path, path / "sweep.parquet", paths.SWEEPS / name / "sweep.parquet"]
    if path.name == name:
        files.append(throughput.path_of(name))
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise InputError(f"{name!r} is no measured sweep or environment: looked for {choices(files)}")
    kind = "sweep" if file.suffix == ".parquet" else "matrix"
    table = store.read(file, kind)
    if table.empty or table.duplicated(_KEYS[kind]).any():
        fault = "has no whole row" if table.empty else f"holds two rows of the same {' and '.join(_KEYS[kind])}"
        raise InputError(f"{file} {fault}: it cannot be compared")
    if kind == "matrix":
        return kind, table.assign(ms=1e3 / table["median"])
    table = table[is_usable(table) & (table["latency_ms"] > 0)]
    return kind, table.assign(ms=table["latency_ms"])
