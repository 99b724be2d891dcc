"""The algorithms by which cuDNN convolves in fp32, and how long each takes at a card's peaks.

An implicit GEMM; Winograd's algorithm in one kernel, on tiles of 2 x 2 outputs; and in four kernels, on tiles of 4 x 4: of the
input, of the filters, 36 GEMMs, and of the output (Lavin and Gray, CVPR 2016). Winograd's takes windows of 3 x 3 in steps of
one. Blocks are those that the published names and grids of the kernels show. A backward pass takes as many times longer as it
has FLOPs over those of the forward pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.predict.operators.chip import EDGE, VECTOR_TILES, Chip, extents
from lib.predict.operators.features import Row

FILTERS = (32, 64, 128)  # that a block of the implicit GEMM takes, with 128 outputs
FUSED = ((1, 4, 8), (2, 4, 4), (2, 2, 8), (4, 2, 4), (4, 4, 2), (4, 1, 8))  # samples, rows, columns of tiles of a block
_OUTPUTS = 128
_FUSED_FILTERS, _FUSED_TILES, _FUSED_PRODUCTS = 32, 32, 16  # a tile of 2 x 2 outputs takes 16 products a channel
_PRODUCTS, _SIDE = 36, 4  # one of 4 x 4 takes 36
_WINOGRAD = {"kernel": 3, "stride": 1, "dilation": 1}


@dataclass(frozen=True)
class Times:
    """Times in ms: of the implicit GEMM and the fused Winograd by block, of the other one's GEMMs by tile and what it moves."""

    implicit: Mapping[int, Any]
    fused: Mapping[tuple[int, int, int], Any]
    gemms: Mapping[tuple[int, int], Any]
    moved: Any
    blocks: Mapping[tuple[int, int, int], Any]  # of the fused algorithm, a multiprocessor
    tiles: Any  # of 4 x 4 outputs

    @property
    def best(self) -> tuple[Any, Any, Any]:
        """Return the shortest of the implicit, the fused and the other algorithm."""
        return tuple(np.minimum.reduce(list(times.values())) for times in (self.implicit, self.fused, self.gemms))


def times(row: Row, gemm: tuple[Any, ...], chip: Chip) -> Times:
    """Return how long each algorithm takes for convolutions that are ``gemm`` (batch, m, n, k).

    The implicit GEMM's time stands for Winograd's where that cannot compute them.
    """
    groups, m, n, k = gemm
    batch, channels, filters = row["batch"], row["in_channels"], row["out_channels"]
    _, rows, columns = extents(row)
    pixels, again = m / batch, np.maximum(row["flops"], 1.0) / (2.0 * groups * m * n * k)
    can = (row["groups"] == 1) & (row["kernel_d"] == 1) & (row["depth"] == 1)
    for name, value in _WINOGRAD.items():
        can = can & (row[f"{name}_h"] == value) & (row[f"{name}_w"] == value)

    def in_waves(blocks: Any, flops: Any) -> Any:
        """Return the ms of so many blocks a multiprocessor, of so many FLOPs each, in whole waves."""
        return again * (np.ceil(blocks) * chip.multiprocessors * flops / chip.flops_per_ms)

    implicit = {block: in_waves(groups * np.ceil(m / _OUTPUTS) * np.ceil(filters / groups / block) / chip.multiprocessors,
                                _OUTPUTS * block * 2 * k) for block in FILTERS}
    least = np.minimum.reduce(list(implicit.values()))
    blocks = {(samples, high, wide): np.ceil(filters / _FUSED_FILTERS) * np.ceil(batch / samples) *
              np.ceil(np.ceil(rows / 2) / high) * np.ceil(np.ceil(columns / 2) / wide) / chip.multiprocessors
              for samples, high, wide in FUSED}
    products = _FUSED_FILTERS * _FUSED_TILES * _FUSED_PRODUCTS * 2 * channels
    fused = {block: np.where(can, in_waves(count, products), least) for block, count in blocks.items()}
    tiles = batch * np.ceil(rows / _SIDE) * np.ceil(columns / _SIDE)
    gemms = {(high, wide): np.where(can, in_waves(
        _PRODUCTS * np.ceil(filters / wide) * np.ceil(tiles / high) / chip.multiprocessors,
        high * wide * 2 * channels * (1 + EDGE / high + EDGE / wide)), least) for high, wide in VECTOR_TILES}
    inputs = batch * channels * row["depth"] * row["height"] * row["width"]
    values = inputs + batch * filters * pixels + 9 * filters * channels + \
        2 * _PRODUCTS * (channels * tiles + filters * channels + filters * tiles)
    moved = np.where(can, again * values * chip.item / chip.bytes_per_ms, 0.0)
    return Times(implicit, fused, gemms, moved, blocks, tiles)
