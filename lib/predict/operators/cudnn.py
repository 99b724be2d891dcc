"""The algorithms by which cuDNN convolves in fp32, and how long each takes at a card's peaks.

An implicit GEMM; Winograd's algorithm in one kernel, on tiles of 2 x 2 outputs; and in four kernels, on tiles of 4 x 4: of the
input, of the filters, 36 GEMMs, and of the output (Lavin and Gray, CVPR 2016). Winograd's takes windows of 3 x 3 in steps of
one. Blocks are those that the published names and grids of the kernels show. A backward pass takes as many times longer as it
has FLOPs over those of the forward pass.
"""

from typing import Any

import numpy as np

from lib.predict.operators.chip import Chip
from lib.predict.operators.features import CONVOLUTIONS, Row, extents

VECTOR_TILES = ((32, 32), (32, 64), (64, 32), (32, 128), (128, 32), (64, 64), (64, 128), (128, 64), (128, 128))
EDGE = 8  # a tile of m x n takes 1 + 8/m + 8/n times its multiply-adds: it reads m + n values for each m n of them
FILTERS = (32, 64, 128)  # that a block of the implicit GEMM takes, with 128 outputs
FUSED = ((1, 4, 8), (2, 4, 4), (2, 2, 8), (4, 2, 4), (4, 4, 2), (4, 1, 8))  # samples, rows, columns of tiles of a block
_OUTPUTS = 128
_FUSED_FILTERS, _FUSED_TILES, _FUSED_PRODUCTS = 32, 32, 16  # a tile of 2 x 2 outputs takes 16 products a channel
_PRODUCTS, _SIDE = 36, 4  # one of 4 x 4 takes 36
_WINOGRAD = {"kernel_h": 3, "kernel_w": 3, "kernel_d": 1, "depth": 1, "groups": 1, "stride_h": 1, "stride_w": 1,
             "dilation_h": 1, "dilation_w": 1}  # the convolutions that it computes

_FEWEST_PRODUCTS = _PRODUCTS / (9 * _SIDE ** 2)  # share of the counted products that the Winograd of 4 x 4 tiles computes


def takes_winograd(row: Row) -> np.ndarray:
    """Return which convolutions Winograd's algorithm computes."""
    return np.isin(row.op, CONVOLUTIONS) & np.logical_and.reduce([row[name] == value for name, value in _WINOGRAD.items()])


def least_ms(row: Row, chip: Chip) -> np.ndarray:
    """Return the ms (n) that the FLOPs of operators take at the peak rate that the vendor states of a card.

    In fp32, a convolution that Winograd's algorithm computes takes a quarter of them (Lavin and Gray, CVPR 2016).
    """
    share = np.where(takes_winograd(row) & (chip.item == 4), _FEWEST_PRODUCTS, 1.0)
    return share * row.flops / chip.flops_per_ms


class Algorithms:
    """Times in ms, each over its blocks: of the implicit GEMM, of the fused Winograd, and of the GEMMs of the other Winograd.

    For convolutions that are ``gemm`` (batch, m, n, k). The implicit GEMM's time stands for Winograd's where that cannot
    compute them. ``moved`` is what the other Winograd moves, of ``tiles`` of 4 x 4 outputs; ``blocks`` those of the fused one a
    multiprocessor.
    """

    def __init__(self, row: Row, gemm: tuple[Any, ...], chip: Chip):
        (groups, m, n, k), batch, ins, outs = gemm, row.batch, row.in_channels, row.out_channels
        _, rows, columns = extents(row)
        again = np.maximum(row.flops, 1.0) / (2.0 * groups * m * n * k)
        can = takes_winograd(row)

        def in_waves(blocks, flops):
            """Return the ms of so many blocks a multiprocessor, of so many FLOPs each, in whole waves."""
            return again * (np.ceil(blocks) * chip.multiprocessors * flops / chip.flops_per_ms)

        self.implicit = {block: in_waves(groups * np.ceil(m / _OUTPUTS) * np.ceil(outs / groups / block) / chip.multiprocessors,
                                         _OUTPUTS * block * 2 * k) for block in FILTERS}
        least = np.minimum.reduce(list(self.implicit.values()))
        self.blocks = {(samples, high, wide): np.ceil(outs / _FUSED_FILTERS) * np.ceil(batch / samples) *
                       np.ceil(np.ceil(rows / 2) / high) * np.ceil(np.ceil(columns / 2) / wide) / chip.multiprocessors
                       for samples, high, wide in FUSED}
        products = _FUSED_FILTERS * _FUSED_TILES * _FUSED_PRODUCTS * 2 * ins
        self.fused = {block: np.where(can, in_waves(count, products), least) for block, count in self.blocks.items()}
        self.tiles = batch * np.ceil(rows / _SIDE) * np.ceil(columns / _SIDE)
        self.gemms = {(high, wide): np.where(can, in_waves(
            _PRODUCTS * np.ceil(outs / wide) * np.ceil(self.tiles / high) / chip.multiprocessors,
            high * wide * 2 * ins * (1 + EDGE / high + EDGE / wide)), least) for high, wide in VECTOR_TILES}
        values = batch * ins * row.depth * row.height * row.width + outs * m + 9 * outs * ins + \
            2 * _PRODUCTS * (ins * self.tiles + outs * ins + outs * self.tiles)
        self.moved = np.where(can, again * values * chip.item / chip.bytes_per_ms, 0.0)

    @property
    def best(self) -> list[Any]:
        """Return the shortest of the implicit, the fused and the other algorithm."""
        return [np.minimum.reduce(list(times.values())) for times in (self.implicit, self.fused, self.gemms)]
