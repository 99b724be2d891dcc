"""What decides how long a row of work takes on a GPU: its ideal times by the vendor's ceilings, and bounded, physical features.

Features are ratios (to tiles, multiprocessors, the last cache, the ridge point) within limits, so that what was learned on one
card and one size says something of others, and nothing without bounds. Times are in ms.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from lib.config.definitions import VendorDevice
from lib.predict.cards.operator_kinds import COMPUTING, KINDS
from lib.predict.cards.rows import BATCH
from lib.predict.operators.features_gpu import Chip

MOVING_FEATURES = ("one", "over_cache", "in_cache", "strided", "broadcast", "wide", "read_over_written", "odd_side", "side")
COMPUTING_FEATURES = ("one", "n", "n2", "k", "k2", "nk", "m", "waves", "n_padding", "k_padding", "m_padding", "odd_in",
                      "odd_out", "rest_in", "rest_out", "strides", "window_3", "window_5", "window_7", "groups", "group_wide",
                      "group_odd", "side", "over_ridge")
_LANE, _HALF, _TILE, _LARGE = 8, 32, 64, 128
_PURE = 2  # bytes an element where everything is in 16 bits
_PASSES = 3  # of training over a forward pass: gradients of inputs and of weights each take what it took
_CODES = {kind: code for code, kind in enumerate(KINDS)}
_BATCHED = ("bmm", "attention")  # the batch multiplies GEMMs; of others it lengthens them
_GROUP = 32  # channels of a group at most, a power of two, and cuDNN has kernels of its own for channels_last
_SERIAL_MS = 2.5e-4  # a read that the next one waits for: some 550 cycles to memory and back


_FULL_W = 3.5  # a multiprocessor at its highest clock: what the RTX 4090 may draw, which its limit hardly holds back


def sustained(vendor: VendorDevice) -> Chip:
    """Return what a card sustains in 16 bits: its vendor's rates, lower where its power limit lowers the clock.

    Power grows with the clock and the square of the voltage, and this with the clock: P ~ f^3 (Mudge, Computer 34(4), 2001).
    Work that moves memory slows down as well. InputError where the vendor states no rate in fp16.
    """
    chip = Chip.of(vendor, "fp16")
    share = min(1.0, vendor.power_w / vendor.multiprocessors / _FULL_W) ** (1 / 3) if vendor.power_w else 1.0
    return replace(chip, flops_per_ms=chip.flops_per_ms * share, vector_flops_per_ms=chip.vector_flops_per_ms * share,
                   bytes_per_ms=chip.bytes_per_ms * share)


def _log2(values: np.ndarray, least: float, most: float) -> np.ndarray:
    return np.clip(np.log2(np.maximum(values, 1e-30)), least, most)


def version(text: str) -> tuple[int, ...]:
    """Return a version of torch as numbers, by which versions are ordered."""
    return tuple(map(int, text.split(".")))


@dataclass(frozen=True, order=True)
class Condition:
    """How a network runs: mode (infer, train), precision (amp_fp16, amp_bf16, bf16), layout (nchw, nhwc), compiled, torch."""

    mode: Literal["infer", "train"]
    precision: Literal["amp_fp16", "amp_bf16", "bf16"]
    layout: Literal["nchw", "nhwc"]
    compiled: bool
    torch: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")]

    @classmethod
    def from_name(cls, name: str) -> "Condition":
        """Return the condition of a ``name``."""
        way, precision, layout, release = name.split("-")
        return cls("train" if way == "train" else "infer", precision, layout, way == "compiled", release)

    @property
    def way(self) -> str:
        """Return eager, compiled or train."""
        return "train" if self.mode == "train" else "compiled" if self.compiled else "eager"

    @property
    def how(self) -> str:
        """Return the condition in one word, whatever the torch."""
        return "-".join((self.way, self.precision, self.layout))

    @property
    def name(self) -> str:
        """Return the condition in one word."""
        return f"{self.how}-{self.torch}"

    @property
    def stages(self) -> tuple[str, ...]:
        """Return the stages of rows that run."""
        stages = {"eager": ("always", "eager"), "compiled": ("always", "compiled"), "train": ("always", "eager", "train")}
        return stages[self.way]


@dataclass(frozen=True)
class Terms:
    """Rows of several networks, sorted by kind: ``network`` of each, calls, ideal times in ms, and features.

    ``edges`` are where each kind of KINDS begins and the last ends; those that compute come first.
    """

    networks: int
    network: torch.Tensor
    calls: torch.Tensor
    compute_ms: torch.Tensor
    move_ms: torch.Tensor
    computing: torch.Tensor
    moving: torch.Tensor
    edges: tuple[int, ...]

    @cached_property
    def kernels(self) -> torch.Tensor:
        """Give how many kernels each network launches."""
        return torch.zeros(self.networks, dtype=torch.float64).index_add(0, self.network, self.calls)


def terms(table: pd.DataFrame, batch: np.ndarray | float, chip: Chip, condition: Condition, network: np.ndarray | None = None,
          networks: int = 1) -> Terms:
    """Return the terms of rows (``rows.COLUMNS``) at a batch size, one or one a row, under a condition.

    ``network`` numbers the network of each row, of ``networks``.
    """
    runs = table["stage"].isin(condition.stages).to_numpy()
    times = (np.broadcast_to(batch, len(table)) / BATCH)[runs]
    network = np.zeros(len(table), np.int64)[runs] if network is None else np.asarray(network)[runs]
    table = table[runs]
    codes = table["kind"].cat.codes.to_numpy()
    v = {name: table[name].to_numpy(float) for name in table if name not in ("kind", "stage")}
    if condition.mode == "train":
        v["calls"] = v["calls"] * np.where(codes == _CODES["update"], 1, _PASSES)
    read, written = _moved(v, times, condition)
    grown = np.where(v["scales"] > 0, times, 1.0)
    depthwise = codes == _CODES["conv_depthwise"]
    compute = v["flops"] * grown / np.where(depthwise, chip.vector_flops_per_ms, chip.flops_per_ms)
    move = (read + written) / chip.bytes_per_ms
    if not condition.compiled:
        move = np.maximum(move, _serial(v, grown, condition))
    order = np.argsort(codes, kind="stable")
    edges = tuple(int(edge) for edge in np.searchsorted(codes[order], np.arange(len(KINDS) + 1)))
    first = order[:edges[len(COMPUTING)]]
    moving, computing = _moving(v, codes, read, written, chip), _computing(v, codes, grown, compute, move, chip)

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float64)

    return Terms(networks, torch.as_tensor(network[order]), tensor(v["calls"][order]), tensor(compute[first]),
                 tensor(move[order]), tensor(computing[first]), tensor(moving[order]), edges)


def _serial(v: dict[str, np.ndarray], grown: np.ndarray, condition: Condition) -> np.ndarray:
    """Return the ms that rows take at least for reads that wait for one another (``kinds.serial``)."""
    return v["serial_nhwc" if condition.layout == "nhwc" else "serial"] * grown * _SERIAL_MS


def _moved(v: dict[str, np.ndarray], times: np.ndarray, condition: Condition) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes that are read and written."""
    if condition.precision.startswith("amp"):
        return v["read"] * times + v["read_once"], v["written"] * times + v["written_once"]
    return (_PURE * (v["read_elements"] * times + v["read_elements_once"]),
            _PURE * (v["written_elements"] * times + v["written_elements_once"]))


def _moving(v: dict[str, np.ndarray], codes: np.ndarray, read: np.ndarray, written: np.ndarray, chip: Chip) -> np.ndarray:
    """Return MOVING_FEATURES (n, f)."""
    over = (read + written) / chip.cache_bytes
    columns = [np.ones_like(over), _log2(over, -6, 6) / 3, _log2(over, -6, 0) / 3, v["strided"], v["broadcast"], v["wide"],
               _log2((read + 1) / (written + 1), -3, 3) / 2, v["side"] % _LANE > 0, _log2(v["side"], 0, 8) / 4]
    features = np.stack([np.asarray(column, float) for column in columns], 1)
    features[codes < len(COMPUTING), MOVING_FEATURES.index("strided"):] = 0.0  # of these the other features say it
    return features


def _computing(v: dict[str, np.ndarray], codes: np.ndarray, grown: np.ndarray, compute: np.ndarray, move: np.ndarray,
               chip: Chip) -> np.ndarray:
    """Return COMPUTING_FEATURES (n, f)."""
    batched = np.isin(codes, [_CODES[kind] for kind in _BATCHED])
    gemms = np.maximum(v["gemms"], 1) * np.where(batched, grown, 1.0)
    m, n, k = np.maximum(v["m"], 1) * np.where(batched, 1.0, grown), np.maximum(v["n"], 1), np.maximum(v["k"], 1)
    waves = gemms * np.ceil(m / _LARGE) * np.ceil(n / _LARGE) / chip.multiprocessors
    log_n, log_k = _log2(n / 64, -4, 5) / 2, _log2(k / 64, -4, 6) / 2
    rows, inputs, window = np.where(batched, m, _TILE), np.maximum(k / np.maximum(v["window"], 1), 1), v["window"]
    columns = [np.ones_like(m), log_n, log_n ** 2, log_k, log_k ** 2, log_n * log_k, _log2(m / 4096, -6, 8) / 4,
               _log2(np.ceil(waves) / np.maximum(waves, 1e-9), 0, 4), _padding(n, _TILE), _padding(inputs, _HALF),
               _padding(rows, _TILE), v["width_in"] % _LANE > 0, v["width_out"] % _LANE > 0, v["width_in"] % _TILE > 0,
               v["width_out"] % _TILE > 0, v["stride"] > 1, window == 3 * 3, window >= 5 * 5, window >= 7 * 7,
               _log2(v["groups"], 0, 6) / 3, *_groups(v, codes), _log2(v["side"] / 16, -4, 5) / 3,
               _log2(compute / np.maximum(move, 1e-12), -5, 5) / 4]
    return np.stack([np.asarray(column, float) for column in columns], 1)


def _padding(size: np.ndarray, tile: int) -> np.ndarray:
    """Return the binary log of how many times as long a size is in whole tiles."""
    return np.log2(np.ceil(size / tile) * tile / size)


def _groups(v: dict[str, np.ndarray], codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whether the groups of a convolution are wide, and whether their channels are no power of two."""
    grouped = codes == _CODES["conv_grouped"]
    channels = np.maximum(v["width_out"] / np.maximum(v["groups"], 1), 1)
    return grouped & (channels > _GROUP), grouped & (np.log2(channels) % 1 > 0)
