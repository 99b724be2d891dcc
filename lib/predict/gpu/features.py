"""What decides how long a row of work takes on a GPU: its ideal times by the vendor's ceilings, and bounded, physical features.

Features are ratios (to tiles, multiprocessors, the last cache, the ridge point) within limits, so that what was learned on one
card and one size says something of others, and nothing without bounds. Times are in ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from lib.predict.gpu.kinds import COMPUTING, KERNEL_KINDS
from lib.predict.gpu.levels import Condition
from lib.predict.operators.chip import Chip

CLASSES = ("one_d", "three_d", "transposed", "dilated", "few_in", "few_out")  # of convolutions that are rare
MOVING_FEATURES = ("one", "over_cache", "in_cache", "strided", "broadcast", "wide", "read_over_written", "odd_side", "side",
                   "few_reductions", "reduced", "inner")
COMPUTING_FEATURES = ("one", "n", "n2", "k", "k2", "nk", "m", "waves", "n_padding", "k_padding", "m_padding", "odd_in",
                      "odd_out", "rest_in", "rest_out", "strides", "window_3", "window_5", "window_7", "groups", "group_wide",
                      "group_odd", "side", "over_ridge", "powered", "matrix_units", *CLASSES)
FEW = 16  # channels, below which convolutions do not fill a tile of a GPU's matrix unit
_LANE, _HALF, _TILE, _LARGE = 8, 32, 64, 128
PASSES = 3  # of training over a forward pass: gradients of inputs and of weights each take what it took
_GROUP = 32  # channels of a group at most, a power of two, and cuDNN has kernels of its own for channels_last
_SERIAL_MS = 2.5e-4  # a read that the next one waits for: some 550 cycles to memory and back
_BLOCK_BYTES_PER_MS = 5e6  # that one block of threads reads and writes: it waits for memory, whatever the card
_BY_BLOCK = ("layer_norm", "group_norm", "batch_norm", "softmax")  # one block a reduction
_STEP_MS = 0.006  # of a recurrent layer: the kernels of a step wait for those of the step before
_TF32_CONVOLUTIONS = ("conv", "conv_1x1", "conv_grouped", "stem")  # what cuDNN computes in TF32 by torch's default


@dataclass(frozen=True)
class Terms:
    """Rows of several networks: calls, launches, ideal times in ms and features of each, and which network and case it is of.

    ``computes`` are the places of the rows that compute, of which ``compute_ms`` and ``computing`` (n, f) are; ``move_ms`` and
    ``moving`` (n, f) are of all rows. ``case_of_network``: of each network, when several cases are ``joined``.
    """

    network: torch.Tensor
    case: torch.Tensor
    case_of_network: torch.Tensor
    kind: torch.Tensor
    calls: torch.Tensor
    launches: torch.Tensor
    computes: torch.Tensor
    compute_ms: torch.Tensor
    computing: torch.Tensor
    move_ms: torch.Tensor
    moving: torch.Tensor

    def by_network(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of the values of rows over each network."""
        return torch.zeros(len(self.case_of_network), dtype=torch.float64).index_add(0, self.network, values)


def joined(terms: Sequence[Terms]) -> Terms:
    """Return the terms of several cases as one, whose ``case`` is the place of each."""
    first_network = np.cumsum([0, *(len(one.case_of_network) for one in terms)])
    first_row = np.cumsum([0, *(len(one.calls) for one in terms)])

    def together(name, offsets=None):
        values = [getattr(one, name) for one in terms]
        return torch.cat(values if offsets is None else
                         [value + int(offset) for value, offset in zip(values, offsets, strict=False)])

    numbers = range(len(terms))
    return Terms(together("network", first_network), together("case", numbers), together("case_of_network", numbers),
                 together("kind"), together("calls"), together("launches"), together("computes", first_row),
                 *(together(name) for name in ("compute_ms", "computing", "move_ms", "moving")))


def terms(table: pd.DataFrame, times: np.ndarray | float, chip: Chip, condition: Condition, network: np.ndarray | int = 0,
          networks: int = 1) -> Terms:
    """Return the terms of rows (``rows.COLUMNS``) at ``times`` the captured batch, one number or one per row.

    ``network`` numbers the network of each row, of ``networks``.
    """
    v = table.assign(times=times, network=network)
    v = v[v.stage.isin(condition.stages)].reset_index(drop=True)
    kinds = v.kind.cat.set_categories(KERNEL_KINDS).cat.codes.to_numpy(np.int64)
    v.kind = v.kind.astype(str)
    grown = np.where(v.scales > 0, v.times, 1.0)
    read, written = (_moved(v, verb, condition) for verb in ("read", "written"))
    move = _move_ms(v, grown, read + written, chip, condition)
    rate = np.where(v.kind == "conv_depthwise", chip.vector_flops_per_ms, np.where(
        v.kind.isin(_TF32_CONVOLUTIONS), chip.convolution_flops_per_ms or chip.flops_per_ms, chip.flops_per_ms))
    compute = v.flops * grown / rate
    passes = np.where(v.kind == "update", 1, PASSES) if condition.mode == "train" else 1
    calls, does = v.calls * passes, np.flatnonzero(kinds < len(COMPUTING))
    moving = _moving(v, grown, read, written, chip)
    moving[does, MOVING_FEATURES.index("strided"):] = 0.0  # of those that compute the other features say it
    by_matrix_units = rate[does] > chip.vector_flops_per_ms
    computing = _computing(v.iloc[does], grown[does], compute.iloc[does], move[does], by_matrix_units, chip)
    whole = (torch.tensor(v.network.to_numpy(np.int64)), torch.zeros(len(v), dtype=torch.int64),
             torch.zeros(networks, dtype=torch.int64), torch.as_tensor(kinds))
    numbers = calls, calls * v.launches, compute.iloc[does], computing, move, moving
    calls, launches, compute, computing, move, moving = (torch.tensor(np.asarray(values, float)) for values in numbers)
    return Terms(*whole, calls, launches, torch.as_tensor(does), compute, computing, move, moving)


def _move_ms(v: pd.DataFrame, grown: np.ndarray, moved: pd.Series, chip: Chip, condition: Condition) -> np.ndarray:
    """Return the ideal ms of memory traffic: by the bandwidth, and by what waits for it."""
    move = moved / chip.bytes_per_ms
    if not condition.compiled:  # reads that wait for one another, see ``kinds.serial``
        move = np.maximum(move, v["serial_nhwc" if condition.layout == "nhwc" else "serial"] * grown * _SERIAL_MS)
    blocks = np.where(v.kind.isin(_BY_BLOCK) & (v.reductions > 0), v.reductions * grown, np.inf)
    move = np.maximum(move, moved / blocks / _BLOCK_BYTES_PER_MS)
    return np.where(v.kind == "recurrent", np.maximum(move, _STEP_MS), move)


def _moved(v: pd.DataFrame, verb: str, condition: Condition) -> pd.Series:
    """Return the bytes that are read or written."""
    if condition.is_amp:
        return v[verb] * v.times + v[f"{verb}_once"]
    return condition.bits / 8 * (v[f"{verb}_elements"] * v.times + v[f"{verb}_elements_once"])


def _log2(values: np.ndarray, least: float, most: float) -> np.ndarray:
    return np.clip(np.log2(np.maximum(values, 1e-30)), least, most)


def _moving(v: pd.DataFrame, grown: np.ndarray, read: pd.Series, written: pd.Series, chip: Chip) -> np.ndarray:
    """Return MOVING_FEATURES (n, f)."""
    over = (read + written) / chip.cache_bytes
    blocks = np.where(v.reductions > 0, v.reductions * grown, np.inf) / chip.multiprocessors
    return np.column_stack([np.ones(len(v)), _log2(over, -6, 6) / 3, _log2(over, -6, 0) / 3, v.strided, v.broadcast, v.wide,
                            _log2((read + 1) / (written + 1), -3, 3) / 2, v.side % _LANE > 0, _log2(v.side, 0, 8) / 4,
                            -_log2(blocks / 2, -8, 0) / 3,
                            np.where(v.reduced > 0, _log2(v.reduced / 1024, -5, 12) / 4, 0), v.inner])


def _computing(v: pd.DataFrame, grown: np.ndarray, compute: pd.Series, move: np.ndarray, by_matrix_units: np.ndarray,
               chip: Chip) -> np.ndarray:
    """Return COMPUTING_FEATURES (n, f); the batch multiplies GEMMs of ``bmm`` and attention, and lengthens others."""
    convolves = v.window > 0
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
        _log2(compute / np.maximum(move, 1e-12), -5, 5) / 4, np.full(len(v), _powered(chip)),
        by_matrix_units, v.one_d, v.three_d, v.transposed, v.dilated, convolves & (v.width_in < FEW),
        convolves & (v.width_out < FEW)]).astype(float)


def _powered(chip: Chip) -> float:
    """Return the log of the rate in fp32 that the board's power feeds over the stated one: clocks are above or below it."""
    share = chip.powered_flops_per_ms / chip.vector_flops_per_ms
    return float(np.clip(np.log2(share), -2, 1)) if share else 0.0


def _padding(size: np.ndarray, tile: int) -> np.ndarray:
    """Return the binary log of how many times as long a size is in whole tiles."""
    return np.log2(np.ceil(size / tile) * tile / size)
