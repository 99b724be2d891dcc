"""Features of an operator on a GPU: how it falls on tiles, and tiles on multiprocessors, in waves.

Everything is relative to what the vendor states of the device (peak rates, multiprocessors, last cache), so that what was
trained on one device holds for another. Ideal times are in ms. Tile and wave quantisation: Li et al., MICRO 2023; Lee et al.
(NeuSight), ASPLOS 2025.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.config.definitions import VendorDevice
from lib.errors import InputError, choices
from lib.predict.operators.features import Row, code
from lib.work import dtypes

TILES = ((32, 32), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128), (192, 128))
GROUPS = ("window", "gemm", "convolution", "memory")
_CONVOLUTIONS, _POOLS = ("conv2d", "conv3d"), ("pool2d", "pool3d")
_GEMMS = ("linear", "matmul", "bmm", "attention")
_NARROW = 16  # channels a group below which a grouped convolution fills no tile: no library computes it as a GEMM
_LOADS = 4  # multiply-adds (128 a clock) a multiprocessor does while it reads one value (32 a clock) from its first cache


def groups(row: Row) -> np.ndarray:
    """Return the group of one operator, or of each row.

    A convolution of 1x1 is a GEMM. A depthwise convolution, or one of narrow groups, and pooling slide a window over memory.
    """
    size = row["kernel_d"] * row["kernel_h"] * row["kernel_w"]
    channels = np.minimum(row["in_channels"], row["out_channels"]) / row["groups"]
    convolves = np.isin(row["op"], _CONVOLUTIONS)
    cases = [np.isin(row["op"], _POOLS) | (convolves & (row["groups"] > 1) & (channels < _NARROW)),
             np.isin(row["op"], _GEMMS) | (convolves & (size == 1)), convolves]
    return np.select(cases, GROUPS[:-1], GROUPS[-1])


@dataclass(frozen=True)
class Chip:
    """What the model needs to know of a device: rates in FLOP/ms and bytes/ms, multiprocessors, bytes of the last cache.

    ``vector_flops_per_ms`` is the rate of fp32 outside of tensor cores; ``item`` the bytes of an element.
    """

    flops_per_ms: float
    vector_flops_per_ms: float
    bytes_per_ms: float
    multiprocessors: int
    cache_bytes: float
    item: int

    @classmethod
    def of(cls, device: VendorDevice, dtype: str) -> "Chip":
        """Take a vendor's device; InputError where it states no rate for ``dtype``, or no multiprocessors."""
        if dtype not in device.peak_gflops or not device.multiprocessors:
            raise InputError(f"params/devices.yaml states no {dtype} rate or no multiprocessors of {device.id}; it states: "
                             f"{choices(device.peak_gflops)}")
        peak = device.peak_gflops[dtype]
        return cls(peak * 1e6, device.peak_gflops.get("fp32", peak) * 1e6, device.peak_gbps * 1e6, device.multiprocessors,
                   device.cache_mb * 1e6, dtypes.torch_dtype(dtype).itemsize)


def _gemm(row: Row) -> tuple[Any, ...]:
    """Return batch, m, n, k as a matrix product.

    A convolution is the product of its filters with every window of its input; attention that of queries, keys and values.
    """
    window, pixels = 1, row["batch"]
    for axis in ("depth", "height", "width"):
        kernel = row[f"kernel_{axis[0]}"]
        extent = row[axis] + 2 * row[f"padding_{axis[0]}"] - row[f"dilation_{axis[0]}"] * (kernel - 1) - 1
        pixels, window = pixels * (extent // row[f"stride_{axis[0]}"] + 1), window * kernel
    filters = (row["groups"], pixels, row["out_channels"] / row["groups"], row["in_channels"] / row["groups"] * window)
    heads = (row["batch"] * row["heads"], row["q_len"], row["kv_len"], 2 * row["head_dim"])
    plain = tuple(row[name] for name in ("batch", "gemm_m", "gemm_n", "gemm_k"))
    convolves, attends = np.isin(row["op"], _CONVOLUTIONS), np.asarray(row["op"]) == "attention"
    return tuple(np.where(convolves, c, np.where(attends, a, p)) for c, a, p in zip(filters, heads, plain, strict=True))


def _ideal(row: Row, chip: Chip) -> tuple[Any, Any]:
    return row["flops"] / chip.flops_per_ms, row["bytes"] / chip.bytes_per_ms


def _waves(batch: Any, m: Any, n: Any, tile: tuple[int, int], chip: Chip) -> Any:
    return batch * np.ceil(m / tile[0]) * np.ceil(n / tile[1]) / chip.multiprocessors


def _tiled(row: Row, gemm: tuple[Any, ...], tile: tuple[int, int], chip: Chip) -> Any:
    """Return the ms of computing in whole tiles and waves; a backward pass takes more by its FLOPs over those of the GEMM."""
    batch, m, n, _ = gemm
    whole = np.ceil(_waves(batch, m, n, tile, chip)) * chip.multiprocessors * tile[0] * tile[1]
    return whole / (batch * m * n) * row["flops"] / chip.flops_per_ms


def terms(row: Row, group: str, chip: Chip) -> Row:
    """Return ideal times in ms of operators that ``group`` answers for, and the call itself.

    Memory: computing, moving, and the longer of both. GEMMs and convolutions: also computing in whole tiles and waves.
    Windows: moving, and reading the values that a window covers again and again from the first cache.
    """
    compute, move = _ideal(row, chip)
    if group == "window":
        return {"move_ms": move, "read_ms": _LOADS * row["flops"] / chip.vector_flops_per_ms, "call": 1.0}
    times = {"compute_ms": compute, "move_ms": move, "longer_ms": np.maximum(compute, move)}
    if group != "memory":
        gemm = _gemm(row)
        times |= {f"waves_{tile[0]}_ms": _tiled(row, gemm, tile, chip) for tile in ((64, 64), (128, 128))}
        times["steps"] = gemm[3] / 1e4
    return {**times, "call": 1.0}


def features(row: Row, group: str, chip: Chip) -> Row:
    """Return the features of operators of one group: ideal times, intensity over the ridge point, tiles, waves, alignment."""
    if group == "window":
        return {}
    compute, move = _ideal(row, chip)
    values = {"log_compute": np.log2(compute * 1e3 + 1e-6), "log_move": np.log2(move * 1e3 + 1e-6),
              "over_ridge": np.log2((compute + 1e-9) / move), "cached": np.log2(row["bytes"] / chip.cache_bytes)}
    if group == "memory":
        return {**values, "op": code("op", row["op"]), "rows": np.log2(row["rows"]), "columns": np.log2(row["columns"]),
                "columns_rest": row["columns"] % 32, "row_waves": np.log2(row["rows"] / chip.multiprocessors)}
    return {**values, **_gemm_features(row, group, chip, np.maximum(compute, move))}


def _gemm_features(row: Row, group: str, chip: Chip, roof: Any) -> Row:
    gemm = batch, m, n, k = _gemm(row)
    values = {"m": np.log2(m), "n": np.log2(n), "k": np.log2(k), "mn": np.log2(m * n), "batch": np.log2(batch),
              "left": np.log2(batch * m * k * chip.item / chip.cache_bytes),
              "right": np.log2(batch * k * n * chip.item / chip.cache_bytes),
              "made": np.log2(batch * m * n * chip.item / chip.cache_bytes), "m_rest": m % 64, "n_rest": n % 256,
              "n_half": n % 128, "n_lane": n % 8, "k_rest": k % 128, "k_lane": k % 8}
    if group == "convolution":
        values |= {name: row[name] for name in ("kernel_h", "stride_h", "height", "in_channels", "out_channels")}
        inputs = row["batch"] * row["in_channels"] * row["height"] ** 2
        values |= {"positions": np.log2(m / row["batch"]), "reads": np.log2(inputs * chip.item / chip.cache_bytes)}
    for tile in TILES:
        name, waves = f"{tile[0]}x{tile[1]}", _waves(batch, m, n, tile, chip)
        values[f"waves_{name}"] = np.log2(waves)
        values[f"unfilled_{name}"] = np.ceil(waves) / waves
        values[f"padded_{name}"] = np.log2(waves * chip.multiprocessors * tile[0] * tile[1] / (batch * m * n))
        values[f"tail_{name}"] = np.log2(_tiled(row, gemm, tile, chip) / roof)
    return values
