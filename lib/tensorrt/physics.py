"""Runtime and energy of layers as sums of their counted work, each at a non-negative rate.

Runtime (ms) has a launch, FLOPs by unit, reads of pooling windows, bytes, and the length of the
reduction. Energy (mJ above idle) has the same terms and the runtime, at a static power.
"""

from collections.abc import Collection

import numpy as np
import pandas as pd

TERMS = ("launch", "half_gemm_gflop", "float_gemm_gflop", "grouped_gflop", "pooling_gread",
         "activation_mb", "weight_mb", "half_reduction", "float_reduction", "runtime_ms")


def work_terms(table: pd.DataFrame) -> np.ndarray:
    """Return the terms of layers (n, TERMS); the last is the runtime, NaN where it is unknown."""
    is_half, is_pooling = table["dtype"] != "FP32", table["kind"] == "pooling"
    is_grouped = table["groups"] > 1
    is_gemm = ~is_pooling & ~is_grouped
    gflop, weight_mb = table["flops"] / 1e9, table["weight_bytes"] / 1e6
    reduction = is_gemm * table["flops"] / (2 * table["output_size"]) / 1e3
    runtime = table.get("runtime", np.full(len(table), np.nan))
    return np.column_stack([
        np.ones(len(table)), gflop * (is_half & is_gemm), gflop * (~is_half & is_gemm),
        gflop * is_grouped, gflop * is_pooling, table["bytes"] / 1e6 - weight_mb, weight_mb,
        reduction * is_half, reduction * ~is_half, runtime])


def fit_physics(table: pd.DataFrame, target: str, relative: float,
                without: Collection[str]) -> dict[str, float]:
    """Return the rates of TERMS with the least sum of squares of (error / value ** relative)."""
    from scipy.optimize import nnls

    terms, value = work_terms(table), table[target].to_numpy(float)
    if target == "power":
        value = value * terms[:, -1]
    else:
        terms[:, -1] = 0.0
    used = np.array([name not in without for name in TERMS], float)
    weight = value**-relative
    rates, _ = nnls(terms * used * weight[:, None], value * weight)
    return dict(zip(TERMS, rates.tolist(), strict=True))


def predict_physics(table: pd.DataFrame, rates: dict[str, float], target: str) -> np.ndarray:
    """Return the runtime (ms) or power (W above idle) of each row (n,)."""
    terms, values = work_terms(table), np.array([rates[name] for name in TERMS])
    if target == "runtime":
        return terms[:, :-1] @ values[:-1]
    return terms @ values / terms[:, -1]
