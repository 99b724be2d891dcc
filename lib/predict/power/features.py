"""What the power of a GEMM kernel depends on: how busy it keeps tensor cores and memory, and its tiles."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.predict.operators import features, features_gpu
from lib.predict.operators.features import Row
from lib.predict.operators.features_gpu import Chip

OPS = ("linear", "matmul", "bmm")
GROUP = "gemm"


def frames(rows: pd.DataFrame, chip: Chip) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return terms (their rates are watts) and features of GEMMs: ``sweep`` columns, of them ``latency_ms``."""
    terms, x = _values({**features.columns(rows), "latency_ms": rows["latency_ms"].to_numpy(float)}, chip)
    return tuple(pd.DataFrame({name: np.broadcast_to(value, len(rows)) for name, value in values.items()}, index=rows.index,
                              dtype=float) for values in (terms, x))


def names(chip: Chip) -> tuple[list[str], list[str]]:
    """Return the names of the terms and of the features."""
    row = features.one(OPS[0], {}, 1.0, 1.0)
    return tuple(list(values) for values in _values({**row, "latency_ms": 1.0}, chip))


def utilisation(row: Mapping[str, Any], chip: Chip) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the terms of power and how much of its rates a kernel uses, from its FLOPs, bytes and time (``latency_ms``)."""
    compute = row["flops"] / chip.flops_per_ms / row["latency_ms"]
    moved = row["bytes"] / chip.bytes_per_ms / row["latency_ms"]
    terms = {"idle": 0 * compute + 1.0, "compute": np.minimum(compute, 1.0), "memory": np.minimum(moved, 1.0),
             "either": np.minimum(compute + moved, 1.0), "any": np.sqrt(np.minimum(compute + moved, 1.0))}
    return terms, {"compute_used": compute, "memory_used": moved}


def _values(row: Row, chip: Chip) -> tuple[dict[str, Any], dict[str, Any]]:
    terms, used = utilisation(row, chip)
    tiles = {name: value for name, value in features_gpu.features(row, GROUP, chip).items() if name not in features_gpu.SERVED}
    return terms, {**tiles, "latency": np.log2(row["latency_ms"]), **used}
