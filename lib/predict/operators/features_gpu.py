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
from lib.predict.operators.features import GROUP_OF, TEXTS

TILES = ((32, 32), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128), (192, 128))
_GROUPS = {"convolution": ("conv2d", "conv3d"), "product": ("linear", "matmul", "bmm", "attention")}  # all others: memory
_GROUP_OF = {op: next((name for name, ops in _GROUPS.items() if op in ops), "memory") for op in GROUP_OF}


def group_of(op: str) -> str:
    """Return the group of a family on a GPU: what moves memory alone is one group; InputError lists the families."""
    if op not in _GROUP_OF:
        raise InputError(f"no features for the family {op!r}; there are: {choices(_GROUP_OF)}")
    return _GROUP_OF[op]


@dataclass(frozen=True)
class Chip:
    """What the model needs to know of a device: rates in FLOP/ms and bytes/ms, multiprocessors, bytes of the last cache."""

    flops_per_ms: float
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
        return cls(device.peak_gflops[dtype] * 1e6, device.peak_gbps * 1e6, device.multiprocessors, device.cache_mb * 1e6,
                   {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}[dtype])


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
    convolves, attends = np.isin(ops, _GROUPS["convolution"]), ops == "attention"
    return tuple(np.where(convolves, c, np.where(attends, a, p)) for c, a, p in zip(filters, heads, plain, strict=True))


def _ideal(table: pd.DataFrame, chip: Chip) -> tuple[np.ndarray, np.ndarray]:
    return table["flops"].to_numpy(float) / chip.flops_per_ms, table["bytes"].to_numpy(float) / chip.bytes_per_ms


def _waves(batch: np.ndarray, m: np.ndarray, n: np.ndarray, tile: tuple[int, int], chip: Chip) -> np.ndarray:
    return batch * np.ceil(m / tile[0]) * np.ceil(n / tile[1]) / chip.multiprocessors


def terms(table: pd.DataFrame, chip: Chip) -> pd.DataFrame:
    """Return ideal times in ms: computing, moving, and computing in whole tiles and waves; and the call itself."""
    compute, move = _ideal(table, chip)
    found = {"compute_ms": compute, "move_ms": move, "longer_ms": np.maximum(compute, move)}
    if group_of(table["op"].iloc[0]) in _GROUPS:
        batch, m, n, k = _gemm(table)
        for tile in ((64, 64), (128, 128)):
            whole = np.ceil(_waves(batch, m, n, tile, chip)) * chip.multiprocessors * tile[0] * tile[1] * k * 2
            found[f"waves_{tile[0]}_ms"] = whole / chip.flops_per_ms
        found["steps"] = k / 1e4
    return pd.DataFrame({**found, "call": 1.0}, index=table.index)


def matrix(table: pd.DataFrame, chip: Chip) -> pd.DataFrame:
    """Return the features of rows of one group: ideal times, intensity against the knee, tiles, waves, alignment."""
    compute, move = _ideal(table, chip)
    moved = table["bytes"].to_numpy(float)
    found = {"log_compute": np.log2(compute * 1e3 + 1e-6), "log_move": np.log2(move * 1e3 + 1e-6),
             "over_knee": np.log2((compute + 1e-9) / move), "cached": np.log2(moved / chip.cache_bytes)}
    if group_of(table["op"].iloc[0]) in _GROUPS:
        found |= _product(table, chip, np.maximum(compute, move))
    else:
        places = {text: place for place, text in enumerate(TEXTS["op"])}
        rows, width = _column(table, "rows"), _column(table, "columns")
        found |= {"op": table["op"].map(places).to_numpy(float), "rows": np.log2(rows), "columns": np.log2(width),
                  "columns_rest": width % 32, "row_waves": np.log2(rows / chip.multiprocessors)}
    return pd.DataFrame(found, index=table.index)


def _product(table: pd.DataFrame, chip: Chip, roof: np.ndarray) -> dict[str, np.ndarray]:
    batch, m, n, k = _gemm(table)
    found = {"m": np.log2(m), "n": np.log2(n), "k": np.log2(k), "mn": np.log2(m * n), "batch": np.log2(batch),
             "left": np.log2(batch * m * k * chip.item / chip.cache_bytes),
             "right": np.log2(batch * k * n * chip.item / chip.cache_bytes),
             "made": np.log2(batch * m * n * chip.item / chip.cache_bytes), "m_rest": m % 64, "n_rest": n % 256,
             "n_half": n % 128, "n_lane": n % 8, "k_rest": k % 128, "k_lane": k % 8}
    if group_of(table["op"].iloc[0]) == "convolution":
        found |= {name: _column(table, name) for name in ("kernel_h", "stride_h", "height", "in_channels", "out_channels")}
        images = _column(table, "batch")
        found |= {"positions": np.log2(m / images), "reads": np.log2(
            images * _column(table, "in_channels") * _column(table, "height") ** 2 * chip.item / chip.cache_bytes)}
    for tile in TILES:
        name, waves = f"{tile[0]}x{tile[1]}", _waves(batch, m, n, tile, chip)
        found[f"waves_{name}"] = np.log2(waves)
        found[f"unfilled_{name}"] = np.ceil(waves) / waves
        found[f"padded_{name}"] = np.log2(waves * chip.multiprocessors * tile[0] * tile[1] / (batch * m * n))
        whole = np.ceil(waves) * chip.multiprocessors * tile[0] * tile[1] * k * 2
        found[f"tail_{name}"] = np.log2(whole / chip.flops_per_ms / roof)
    return found
