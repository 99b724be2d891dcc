"""What decides how long a row of work takes on a GPU: its ideal times by the vendor's ceilings, and bounded, physical features.

Features are ratios (to tiles, multiprocessors, the last cache, the ridge point) within limits, so that what was learned on one
card and one size says something of others, and nothing without bounds. Times are in ms.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from lib.config.definitions import VendorDevice
from lib.predict.cards.operator_kinds import COMPUTING, KERNEL_KINDS
from lib.predict.cards.rows import BATCH
from lib.predict.operators.chip import Chip

MOVING_FEATURES = tuple("one over_cache in_cache strided broadcast wide read_over_written odd_side side".split())
COMPUTING_FEATURES = tuple("""one n n2 k k2 nk m waves n_padding k_padding m_padding odd_in odd_out rest_in rest_out strides
    window_3 window_5 window_7 groups group_wide group_odd side over_ridge""".split())
_LANE, _HALF, _TILE, _LARGE = 8, 32, 64, 128
_PURE = 2  # bytes an element where everything is in 16 bits
PASSES = 3  # of training over a forward pass: gradients of inputs and of weights each take what it took
_GROUP = 32  # channels of a group at most, a power of two, and cuDNN has kernels of its own for channels_last
_SERIAL_MS = 2.5e-4  # a read that the next one waits for: some 550 cycles to memory and back
_STAGES = {"eager": ("always", "eager"), "compiled": ("always", "compiled"), "train": ("always", "eager", "train")}
_FULL_W = 3.5  # a multiprocessor at its highest clock: what the RTX 4090 may draw, which its limit hardly holds back


def sustained(vendor: VendorDevice) -> Chip:
    """Return what a card sustains in 16 bits: its vendor's rates, lower where its power limit lowers the clock.

    Power grows with the clock and the square of the voltage, and this with the clock: P ~ f^3 (Mudge, Computer 34(4), 2001).
    Work that moves memory slows down as well. InputError where the vendor states no rate in fp16.
    """
    chip = Chip.of(vendor, "fp16")
    share = min(1.0, vendor.power_w / vendor.multiprocessors / _FULL_W) ** (1 / 3) if vendor.power_w else 1.0
    return replace(chip, **{name: getattr(chip, name) * share for name in ("flops_per_ms", "vector_flops_per_ms",
                                                                           "bytes_per_ms")})


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
    def execution(self) -> str:
        """Return eager, compiled or train."""
        return "train" if self.mode == "train" else "compiled" if self.compiled else "eager"

    @property
    def name_without_torch(self) -> str:
        """Return the condition in one word, whatever the torch."""
        return f"{self.execution}-{self.precision}-{self.layout}"

    @property
    def name(self) -> str:
        """Return the condition in one word."""
        return f"{self.name_without_torch}-{self.torch}"


@dataclass(frozen=True)
class Terms:
    """Rows of several networks, sorted by kind: ``network`` of each, calls, ideal times in ms, and features.

    ``edges`` are where each kind of KERNEL_KINDS begins and the last ends; those that compute come first.
    """

    networks: int
    network: torch.Tensor
    calls: torch.Tensor
    compute_ms: torch.Tensor
    move_ms: torch.Tensor
    computing: torch.Tensor
    moving: torch.Tensor
    edges: tuple[int, ...]

    def by_network(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of the values of rows over each network."""
        return torch.zeros(self.networks, dtype=torch.float64).index_add(0, self.network, values)


def terms(table: pd.DataFrame, batch: np.ndarray | float, chip: Chip, condition: Condition, network: np.ndarray | int = 0,
          networks: int = 1) -> Terms:
    """Return the terms of rows (``rows.COLUMNS``) at one batch size, or at one per row, under a condition.

    ``network`` numbers the network of each row, of ``networks``.
    """
    v = table.assign(times=batch / BATCH, network=network)
    v = v[v.stage.isin(_STAGES[condition.execution])].sort_values("kind", kind="stable", ignore_index=True)
    edges = tuple(map(int, np.searchsorted(v.kind.cat.codes, np.arange(len(KERNEL_KINDS) + 1))))
    first = edges[len(COMPUTING)]
    v.kind = v.kind.astype(str)
    grown = np.where(v.scales > 0, v.times, 1.0)
    read, written = (_moved(v, verb, condition) for verb in ("read", "written"))
    rate = np.where(v.kind == "conv_depthwise", chip.vector_flops_per_ms, chip.flops_per_ms)
    compute, move = v.flops * grown / rate, (read + written) / chip.bytes_per_ms
    if not condition.compiled:  # reads that wait for one another, see ``operator_kinds.serial``
        move = np.maximum(move, v["serial_nhwc" if condition.layout == "nhwc" else "serial"] * grown * _SERIAL_MS)
    passes = np.where(v.kind == "update", 1, PASSES) if condition.mode == "train" else 1
    moving = _moving(v, read, written, chip)
    moving[:first, MOVING_FEATURES.index("strided"):] = 0.0  # of those that compute the other features say it
    computing = _computing(v[:first], grown[:first], compute[:first], move[:first], chip)
    numbers = (v.calls * passes, compute[:first], move, computing, moving)
    return Terms(networks, torch.tensor(v.network.to_numpy()), *(torch.tensor(np.asarray(values, float)) for values in numbers),
                 edges)


def _moved(v: pd.DataFrame, verb: str, condition: Condition) -> pd.Series:
    """Return the bytes that are read or written."""
    if condition.precision.startswith("amp"):
        return v[verb] * v.times + v[f"{verb}_once"]
    return _PURE * (v[f"{verb}_elements"] * v.times + v[f"{verb}_elements_once"])


def _log2(values: np.ndarray, least: float, most: float) -> np.ndarray:
    return np.clip(np.log2(np.maximum(values, 1e-30)), least, most)


def _moving(v: pd.DataFrame, read: pd.Series, written: pd.Series, chip: Chip) -> np.ndarray:
    """Return MOVING_FEATURES (n, f)."""
    over = (read + written) / chip.cache_bytes
    return np.column_stack([np.ones(len(v)), _log2(over, -6, 6) / 3, _log2(over, -6, 0) / 3, v.strided, v.broadcast, v.wide,
                            _log2((read + 1) / (written + 1), -3, 3) / 2, v.side % _LANE > 0, _log2(v.side, 0, 8) / 4])


def _computing(v: pd.DataFrame, grown: np.ndarray, compute: pd.Series, move: pd.Series, chip: Chip) -> np.ndarray:
    """Return COMPUTING_FEATURES (n, f); the batch multiplies GEMMs of ``bmm`` and attention, and lengthens others."""
    batched, grouped = v.kind.isin(("bmm", "attention")), v.kind == "conv_grouped"
    gemms = np.maximum(v.gemms, 1) * np.where(batched, grown, 1.0)
    m, n, k = np.maximum(v.m, 1) * np.where(batched, 1.0, grown), np.maximum(v.n, 1), np.maximum(v.k, 1)
    waves = gemms * np.ceil(m / _LARGE) * np.ceil(n / _LARGE) / chip.multiprocessors
    log_n, log_k = _log2(n / 64, -4, 5) / 2, _log2(k / 64, -4, 6) / 2
    channels = np.maximum(v.width_out / np.maximum(v.groups, 1), 1)
    return np.column_stack([
        np.ones(len(v)), log_n, log_n ** 2, log_k, log_k ** 2, log_n * log_k, _log2(m / 4096, -6, 8) / 4,
        _log2(np.ceil(waves) / np.maximum(waves, 1e-9), 0, 4), _padding(n, _TILE),
        _padding(np.maximum(k / np.maximum(v.window, 1), 1), _HALF), _padding(np.where(batched, m, _TILE), _TILE),
        *(width % size > 0 for size in (_LANE, _TILE) for width in (v.width_in, v.width_out)), v.stride > 1,
        v.window == 3 * 3, v.window >= 5 * 5, v.window >= 7 * 7, _log2(v.groups, 0, 6) / 3, grouped & (channels > _GROUP),
        grouped & (np.log2(channels) % 1 > 0), _log2(v.side / 16, -4, 5) / 3,
        _log2(compute / np.maximum(move, 1e-12), -5, 5) / 4]).astype(float)


def _padding(size: np.ndarray, tile: int) -> np.ndarray:
    """Return the binary log of how many times as long a size is in whole tiles."""
    return np.log2(np.ceil(size / tile) * tile / size)
