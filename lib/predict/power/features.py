"""What the power of a GEMM kernel depends on: how busy it keeps tensor cores and memory, and its tiles."""

import numpy as np
import pandas as pd

from lib.predict.operators import features, features_gpu
from lib.predict.operators.chip import Chip

OPS = ("linear", "matmul", "bmm")


def frames(rows: pd.DataFrame, chip: Chip) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return terms (their rates are watts) and features of GEMMs: ``sweep`` columns, among them ``latency_ms``."""
    row = {**features.columns(rows), "latency_ms": rows["latency_ms"].to_numpy(float)}
    compute, memory = (row[work] / rate / row["latency_ms"] for work, rate in (("flops", chip.flops_per_ms),
                                                                               ("bytes", chip.bytes_per_ms)))
    either = np.minimum(compute + memory, 1.0)
    terms = {"idle": 1.0, "compute": np.minimum(compute, 1.0), "memory": np.minimum(memory, 1.0), "either": either,
             "any": np.sqrt(either)}
    tiles = {name: value for name, value in features_gpu.features(row, "gemm", chip).items() if name not in features_gpu.SERVED}
    x = {**tiles, "latency": np.log2(row["latency_ms"]), "compute_used": compute, "memory_used": memory}
    return tuple(pd.DataFrame(values, index=rows.index, dtype=float) for values in (terms, x))


def names(chip: Chip) -> tuple[list[str], list[str]]:
    """Return the names of the terms and of the features."""
    row = {"op": OPS[:1], "flops": 1.0, "bytes": 1.0, "latency_ms": 1.0}
    return tuple(list(table) for table in frames(pd.DataFrame(row), chip))
