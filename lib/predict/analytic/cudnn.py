"""The ways in which cuDNN convolves in fp32, and how long each takes at a card's peaks.

An implicit GEMM; Winograd's algorithm in one kernel, on tiles of 2 x 2 outputs; and in four kernels, on tiles of 4 x 4: of the
input, of the filters, 36 GEMMs, and of the output (Lavin and Gray, CVPR 2016). Winograd's takes windows of 3 x 3 in steps of
one. Blocks are those that the published names and grids of the kernels show. A backward pass takes as many times longer as it
has FLOPs (``again``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

GEMM_TILES = ((32, 32), (32, 64), (64, 32), (32, 128), (128, 32), (64, 64), (64, 128), (128, 64), (128, 128))
FILTERS = (32, 64, 128)  # that a block of the implicit GEMM takes, with 128 outputs
FUSED = ((1, 4, 8), (2, 4, 4), (2, 2, 8), (4, 2, 4), (4, 4, 2), (4, 1, 8))  # samples, rows, columns of tiles of a block
_OUTPUTS = 128
_FUSED_FILTERS, _FUSED_TILES, _FUSED_PRODUCTS = 32, 32, 16  # a tile of 2 x 2 outputs takes 16 products a channel
_PRODUCTS, _SIDE = 36, 4  # one of 4 x 4 takes 36
_EDGE = 8  # a tile of m x n takes 1 + 8/m + 8/n times its multiply-adds: it reads m + n values for each m n of them


class Card(Protocol):
    """What is known of a card: rates in FLOP/ms and bytes/ms, multiprocessors, bytes of an element."""

    flops_per_ms: float
    bytes_per_ms: float
    multiprocessors: int
    item: int


@dataclass(frozen=True)
class Layer:
    """The sizes of convolutions, each a number or an array: samples, channels, filters, output, and the window as a GEMM's k.

    ``winograd`` is 1 where Winograd's algorithm can compute them; ``again`` the FLOPs over those of the forward pass.
    """

    batch: Any
    channels: Any
    filters: Any
    rows: Any
    columns: Any
    pixels: Any
    groups: Any
    k: Any
    inputs: Any
    winograd: Any
    again: Any


@dataclass(frozen=True)
class Ways:
    """Times in ms: of the implicit GEMM and the fused Winograd by block, of the other one's GEMMs by tile and what it moves."""

    implicit: Mapping[int, Any]
    fused: Mapping[tuple[int, int, int], Any]
    gemms: Mapping[tuple[int, int], Any]
    moved: Any
    blocks: Mapping[tuple[int, int, int], Any]  # of the fused way, a multiprocessor
    tiles: Any  # of 4 x 4 outputs

    @property
    def best(self) -> tuple[Any, Any, Any]:
        """Return the shortest of the implicit, the fused and the other way."""
        return tuple(np.minimum.reduce(list(one.values())) for one in (self.implicit, self.fused, self.gemms))


def ways(layer: Layer, card: Card) -> Ways:
    """Return how long each way takes; the implicit GEMM's time stands for Winograd's where that cannot compute it."""
    implicit = {filters: layer.again * _implicit_ms(layer, filters, card) for filters in FILTERS}
    least, can = np.minimum.reduce(list(implicit.values())), layer.winograd > 0
    blocks = {block: _fused_blocks(layer, block) / card.multiprocessors for block in FUSED}
    fused = {block: np.where(can, layer.again * _fused_ms(layer, count, card), least) for block, count in blocks.items()}
    tiles = layer.batch * np.ceil(layer.rows / _SIDE) * np.ceil(layer.columns / _SIDE)
    gemms = {tile: np.where(can, layer.again * _gemms_ms(layer, tiles, tile, card), least) for tile in GEMM_TILES}
    values = layer.inputs + layer.batch * layer.filters * layer.pixels + 9 * layer.filters * layer.channels + \
        2 * _PRODUCTS * (layer.channels * tiles + layer.filters * layer.channels + layer.filters * tiles)
    moved = np.where(can, layer.again * values * card.item / card.bytes_per_ms, 0.0)
    return Ways(implicit, fused, gemms, moved, blocks, tiles)


def _implicit_ms(layer: Layer, filters: int, card: Card) -> Any:
    blocks = layer.groups * np.ceil(layer.batch * layer.pixels / _OUTPUTS) * np.ceil(layer.filters / layer.groups / filters)
    return _in_waves(blocks / card.multiprocessors, _OUTPUTS * filters * 2 * layer.k, card)


def _fused_blocks(layer: Layer, block: tuple[int, int, int]) -> Any:
    samples, rows, columns = block
    return np.ceil(layer.filters / _FUSED_FILTERS) * np.ceil(layer.batch / samples) * np.ceil(np.ceil(layer.rows / 2) / rows) \
        * np.ceil(np.ceil(layer.columns / 2) / columns)


def _fused_ms(layer: Layer, blocks: Any, card: Card) -> Any:
    return _in_waves(blocks, _FUSED_FILTERS * _FUSED_TILES * _FUSED_PRODUCTS * 2 * layer.channels, card)


def _gemms_ms(layer: Layer, tiles: Any, tile: tuple[int, int], card: Card) -> Any:
    blocks = _PRODUCTS * np.ceil(layer.filters / tile[1]) * np.ceil(tiles / tile[0])
    each = tile[0] * tile[1] * 2 * layer.channels * (1 + _EDGE / tile[0] + _EDGE / tile[1])
    return _in_waves(blocks / card.multiprocessors, each, card)


def _in_waves(blocks: Any, flops: Any, card: Card) -> Any:
    """Return the ms of so many blocks a multiprocessor, of so many FLOPs each, in whole waves."""
    return np.ceil(blocks) * card.multiprocessors * flops / card.flops_per_ms
