"""What a model is told of an operator on a GPU: how it falls on tiles, and tiles on multiprocessors, in waves.

Everything is relative to what the vendor states of the device (peak rates, multiprocessors, last cache), so that what one
device taught holds for another. Ideal times are in ms. Tile and wave quantisation: Li et al., MICRO 2023; Lee et al.
(NeuSight), ASPLOS 2025.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.config.definitions import VendorDevice
from lib.errors import InputError, choices
from lib.predict.operators import features
from lib.predict.operators.features import TEXTS

TILES = ((32, 32), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128), (192, 128))
GROUPS = ("convolution", "product", "window", "memory")
_CONVOLUTIONS, _POOLS = ("conv2d", "conv3d"), ("pool2d", "pool3d")
_PRODUCTS = ("linear", "matmul", "bmm", "attention")
_NARROW = 16  # channels a group below which a grouped convolution fills no tile: no library computes it as a GEMM
_LOADS = 4  # multiply-adds (128 a clock) a multiprocessor does while it reads one value (32 a clock) from its first cache


def groups_of(table: pd.DataFrame) -> pd.Series:
    """Return the group that answers for each row on a GPU; InputError lists the families.

    A convolution of 1x1 is a GEMM. A depthwise convolution, or one of narrow groups, and pooling slide a window over memory.
    """
    features.groups_of(table)  # refuses families without features
    ops, groups = table["op"].to_numpy(), _column(table, "groups")
    size = np.prod([_column(table, f"kernel_{axis}") for axis in "dhw"], axis=0)
    channels = np.minimum(_column(table, "in_channels"), _column(table, "out_channels")) / groups
    convolves = np.isin(ops, _CONVOLUTIONS)
    cases = [np.isin(ops, _POOLS) | (convolves & (groups > 1) & (channels < _NARROW)),
             np.isin(ops, _PRODUCTS) | (convolves & (size == 1)), convolves]
    return pd.Series(np.select(cases, ["window", "product", "convolution"], "memory"), index=table.index)


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
                   device.cache_mb * 1e6, {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}[dtype])


def _column(table: pd.DataFrame, name: str, absent: float = 1.0) -> np.ndarray:
    if name not in table:
        return np.full(len(table), absent)
    values = table[name].to_numpy(float, na_value=np.nan)
    return np.where(np.isnan(values), absent, values)


def _gemm(table: pd.DataFrame) -> tuple[np.ndarray, ...]:
    """Return batch, m, n, k of every row as a matrix product.

    A convolution is the product of its filters with every window of its input; attention that of queries, keys and values.
    """
    ops = table["op"].to_numpy()
    plain = tuple(_column(table, name) for name in ("batch", "gemm_m", "gemm_n", "gemm_k"))
    groups, window, pixels = _column(table, "groups"), np.ones(len(table)), _column(table, "batch")
    for axis in ("depth", "height", "width"):
        kernel = _column(table, f"kernel_{axis[0]}")
        reach = _column(table, f"dilation_{axis[0]}") * (kernel - 1)
        pixels = pixels * ((_column(table, axis) + 2 * _column(table, f"padding_{axis[0]}", 0) - reach - 1)
                           // _column(table, f"stride_{axis[0]}") + 1)
        window = window * kernel
    filters = (groups, pixels, _column(table, "out_channels") / groups, _column(table, "in_channels") / groups * window)
    heads = (_column(table, "batch") * _column(table, "heads"), _column(table, "q_len"), _column(table, "kv_len"),
             2 * _column(table, "head_dim"))
    convolves, attends = np.isin(ops, _CONVOLUTIONS), ops == "attention"
    return tuple(np.where(convolves, c, np.where(attends, a, p)) for c, a, p in zip(filters, heads, plain, strict=True))


def _ideal(table: pd.DataFrame, chip: Chip) -> tuple[np.ndarray, np.ndarray]:
    return table["flops"].to_numpy(float) / chip.flops_per_ms, table["bytes"].to_numpy(float) / chip.bytes_per_ms


def _waves(batch: np.ndarray, m: np.ndarray, n: np.ndarray, tile: tuple[int, int], chip: Chip) -> np.ndarray:
    return batch * np.ceil(m / tile[0]) * np.ceil(n / tile[1]) / chip.multiprocessors


def _tiled(table: pd.DataFrame, gemm: tuple[np.ndarray, ...], tile: tuple[int, int], chip: Chip) -> np.ndarray:
    """Return the ms of computing in whole tiles and waves; a backward pass takes more by its FLOPs over those of the GEMM."""
    batch, m, n, k = gemm
    whole = np.ceil(_waves(batch, m, n, tile, chip)) * chip.multiprocessors * tile[0] * tile[1]
    return whole / (batch * m * n) * table["flops"].to_numpy(float) / chip.flops_per_ms


def terms(table: pd.DataFrame, chip: Chip, group: str) -> pd.DataFrame:
    """Return ideal times in ms of rows that ``group`` answers for, and the call itself.

    Memory: computing, moving, and the longer of both. Products and convolutions: also computing in whole tiles and waves.
    Windows: moving, and reading the values that a window covers again and again from the first cache.
    """
    compute, move = _ideal(table, chip)
    if group == "window":
        columns = {"move_ms": move, "read_ms": _LOADS * table["flops"].to_numpy(float) / chip.vector_flops_per_ms}
        return pd.DataFrame({**columns, "call": 1.0}, index=table.index)
    columns = {"compute_ms": compute, "move_ms": move, "longer_ms": np.maximum(compute, move)}
    if group != "memory":
        gemm = _gemm(table)
        columns |= {f"waves_{tile[0]}_ms": _tiled(table, gemm, tile, chip) for tile in ((64, 64), (128, 128))}
        columns["steps"] = gemm[3] / 1e4
    return pd.DataFrame({**columns, "call": 1.0}, index=table.index)


def matrix(table: pd.DataFrame, chip: Chip, group: str) -> pd.DataFrame:
    """Return the features of rows of one group: ideal times, intensity against the ridge point, tiles, waves, alignment."""
    if group == "window":
        return pd.DataFrame(index=table.index)
    compute, move = _ideal(table, chip)
    moved = table["bytes"].to_numpy(float)
    columns = {"log_compute": np.log2(compute * 1e3 + 1e-6), "log_move": np.log2(move * 1e3 + 1e-6),
               "over_ridge": np.log2((compute + 1e-9) / move), "cached": np.log2(moved / chip.cache_bytes)}
    if group == "memory":
        places = {text: place for place, text in enumerate(TEXTS["op"])}
        rows, width = _column(table, "rows"), _column(table, "columns")
        columns |= {"op": table["op"].map(places).to_numpy(float), "rows": np.log2(rows), "columns": np.log2(width),
                    "columns_rest": width % 32, "row_waves": np.log2(rows / chip.multiprocessors)}
    else:
        columns |= _product(table, chip, np.maximum(compute, move), group)
    return pd.DataFrame(columns, index=table.index)


def _product(table: pd.DataFrame, chip: Chip, roof: np.ndarray, group: str) -> dict[str, np.ndarray]:
    gemm = batch, m, n, k = _gemm(table)
    columns = {"m": np.log2(m), "n": np.log2(n), "k": np.log2(k), "mn": np.log2(m * n), "batch": np.log2(batch),
               "left": np.log2(batch * m * k * chip.item / chip.cache_bytes),
               "right": np.log2(batch * k * n * chip.item / chip.cache_bytes),
               "made": np.log2(batch * m * n * chip.item / chip.cache_bytes), "m_rest": m % 64, "n_rest": n % 256,
               "n_half": n % 128, "n_lane": n % 8, "k_rest": k % 128, "k_lane": k % 8}
    if group == "convolution":
        columns |= {name: _column(table, name) for name in ("kernel_h", "stride_h", "height", "in_channels", "out_channels")}
        images = _column(table, "batch")
        columns |= {"positions": np.log2(m / images), "reads": np.log2(
            images * _column(table, "in_channels") * _column(table, "height") ** 2 * chip.item / chip.cache_bytes)}
    for tile in TILES:
        name, waves = f"{tile[0]}x{tile[1]}", _waves(batch, m, n, tile, chip)
        columns[f"waves_{name}"] = np.log2(waves)
        columns[f"unfilled_{name}"] = np.ceil(waves) / waves
        columns[f"padded_{name}"] = np.log2(waves * chip.multiprocessors * tile[0] * tile[1] / (batch * m * n))
        columns[f"tail_{name}"] = np.log2(_tiled(table, gemm, tile, chip) / roof)
    return columns
