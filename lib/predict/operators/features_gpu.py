"""Features of an operator on a GPU: how it falls on tiles, and tiles on multiprocessors, in waves.

Everything is relative to what the vendor states of the device (peak rates, power, multiprocessors, last cache), so that what
was trained on one device holds for another. Ideal times are in ms. Tile and wave quantisation: Li et al., MICRO 2023; Lee et
al. (NeuSight), ASPLOS 2025.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from lib.predict.operators import cudnn
from lib.predict.operators.chip import Chip
from lib.predict.operators.cudnn import EDGE, VECTOR_TILES
from lib.predict.operators.features import CONVOLUTIONS, Columns, Row, coded, extents, logs, waste
from lib.predict.operators.features import GROUPS as CPU_GROUPS

TILES = ((32, 32), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128), (192, 128))
TENSOR_TILES = TILES[1:-1]
SERVED = ("working", "moved", "log_served", "over_served")  # what of a GEMM memory and the last cache serve: features
MOVING = ("move", "softmax", "norm")  # what memory-bound work moves as: terms of time begin so
_GEMMS = ("linear", "matmul", "bmm", "attention")
GROUPS: dict[str, tuple[str, ...]] = {"window": CPU_GROUPS["window"], "gemm": _GEMMS, "convolution": CONVOLUTIONS,
                                      "memory": CPU_GROUPS["memory"], "sgemm": _GEMMS}  # a 1x1 convolution is a GEMM
_NARROW = 16  # channels a group below which a grouped convolution fills no tile: no library computes it as a GEMM
_LOADS = 4  # multiply-adds (128 a clock) a multiprocessor does while it reads one value (32 a clock) from its first cache
_FP32 = 4  # bytes of the element type whose GEMMs run on vector units
_SPLITS, _TENSOR_SPLITS = (1, 4, 16), (1, 2, 4, 8, 16)  # parts into which a library cuts k where m and n make too few tiles
_COPIES = 5  # of its right matrix, at most, in turn: as a published kernel was measured, see ``served``
_THRASHED = 1.15  # of the last cache: a working set from which on nothing of it stays
_CACHE_BYTES_PER_MS = 2e7  # that one multiprocessor reads from the last cache
_MIB = 1.048576  # vendors' MB of a cache are 2**20 bytes
_HIDDEN_US = (4, 8, 12, 16, 24)  # of a kernel's time while the host still launches the next: steps of a soft maximum
_BATCHED, _BATCHED_TILES, _BATCHED_HIDDEN_US = ("bmm", "attention"), ((64, 64), (64, 128), (128, 128)), (8, 16)
_BLOCK = 1024  # columns that one block takes at once
_CALLS, _ROWS, _SM_BYTES_PER_MS, _STEPS = 1e3, 1e4, 1e7, 1e4  # units: earlier calls; a multiprocessor's rows, bytes; k


def groups(row: Row, chip: Chip) -> np.ndarray:
    """Return the group of each operator.

    A convolution of 1x1 is a GEMM. A depthwise convolution, or one of narrow groups, and pooling slide a window over memory.
    GEMMs in fp32 (sgemm) run on vector units, with tiles of their own.
    """
    window, channels = row.kernel_d * row.kernel_h * row.kernel_w, np.minimum(row.in_channels, row.out_channels) / row.groups
    convolves = np.isin(row.op, CONVOLUTIONS)
    cases = [np.isin(row.op, GROUPS["window"]) | (convolves & (row.groups > 1) & (channels < _NARROW)),
             np.isin(row.op, _GEMMS) | (convolves & (window == 1)), convolves]
    return np.select(cases, ["window", gemm_group(chip), "convolution"], "memory")


def gemm_group(chip: Chip) -> str:
    """Return the group that GEMMs of a chip's element type belong to."""
    return "sgemm" if chip.item == _FP32 else "gemm"


def gemm_of(row: Row) -> tuple[Any, ...]:
    """Return batch, m, n, k as a matrix product.

    A convolution is the product of its filters with every window of its input; attention that of queries, keys and values.
    A product over no terms (k of 0) is laid out as one over one.
    """
    depth, height, width = extents(row)
    ins, outs, window = row.in_channels / row.groups, row.out_channels / row.groups, row.kernel_d * row.kernel_h * row.kernel_w
    batch, m, n, k = np.select([np.isin(row.op, CONVOLUTIONS), row.op == "attention"],
                               [(row.groups, row.batch * depth * height * width, outs, ins * window),
                                (row.batch * row.heads, row.q_len, row.kv_len, 2 * row.head_dim)],
                               (row.batch, row.gemm_m, row.gemm_n, row.gemm_k))
    return batch, m, n, np.maximum(k, 1)


def tile_name(tile: tuple[int, ...]) -> str:
    """Return a tile's name in features, such as 64x128."""
    return "x".join(map(str, tile))


class Kernels:
    """Operators on a chip: their ideal times in ms (``compute``, ``move``), and them as GEMMs (batch, m, n, k).

    ``flops`` are one at least: a product over no terms has none.
    """

    def __init__(self, row: Row, chip: Chip):
        self.row, self.chip, self.gemm = row, chip, gemm_of(row)
        self.compute, self.move = row.flops / chip.flops_per_ms, row.bytes / chip.bytes_per_ms
        self.flops, self.roof = np.maximum(row.flops, 1.0), np.maximum(self.compute, self.move)

    @cached_property
    def cudnn(self) -> cudnn.Algorithms:
        """Give the times of a library's algorithms for convolutions in fp32."""
        return cudnn.Algorithms(self.row, self.gemm, self.chip)

    def is_op(self, *ops: str) -> np.ndarray:
        """Return 1.0 where the family is one of ``ops``, else 0.0."""
        return np.isin(self.row.op, ops) * 1.0

    def waves(self, tile: tuple[int, int], parts: int = 1) -> Any:
        """Return how many tiles a multiprocessor has, where k is cut into ``parts``."""
        batch, m, n, _ = self.gemm
        return batch * parts * np.ceil(m / tile[0]) * np.ceil(n / tile[1]) / self.chip.multiprocessors

    def tiled_ms(self, tile: tuple[int, int]) -> Any:
        """Return the ms of computing in whole tiles and waves; a backward pass takes more by its FLOPs over the GEMM's."""
        batch, m, n, _ = self.gemm
        whole = np.ceil(self.waves(tile)) * self.chip.multiprocessors * tile[0] * tile[1]
        return whole / (batch * m * n) * self.flops / self.chip.flops_per_ms

    def plan(self, tiles: tuple[tuple[int, int], ...], splits: tuple[int, ...]) -> tuple[Any, Any]:
        """Return the ms of the best tile and way to cut k, in whole waves, and how much of k a multiprocessor does in turn."""
        (batch, m, n, k), chip = self.gemm, self.chip
        best, steps = np.inf, 0.0
        for tile in tiles:
            edges = 1 + EDGE / tile[0] + EDGE / tile[1]
            for parts in splits:
                in_turn = np.ceil(self.waves(tile, parts)) * np.ceil(k / parts)
                compute = in_turn * chip.multiprocessors * tile[0] * tile[1] * 2 / chip.flops_per_ms * edges
                joined = (parts > 1) * 2 * parts * batch * m * n * chip.item / chip.bytes_per_ms
                steps = np.where(compute + joined < best, in_turn, steps)
                best = np.minimum(best, compute + joined)
        return best, steps

    @cached_property
    def planned_ms(self) -> Any:
        """Give the ms of computing on vector units with the best of a library's tiles and ways to cut k."""
        batch, m, n, k = self.gemm
        return self.plan(VECTOR_TILES, _SPLITS)[0] * self.flops / (2.0 * batch * m * n * k)

    @property
    def powered_ms(self) -> Any:
        """Return the ms of computing at the rate that the board's power feeds, or at the peak where that is less."""
        peak = self.chip.flops_per_ms
        return self.flops / min(peak, self.chip.powered_flops_per_ms or peak)

    @cached_property
    def served(self) -> tuple[Any, Any, Any]:
        """Give what a GEMM on tensor cores works on, over the last cache; the ms of moving from memory, and from that cache.

        Published kernels (aiconfigurator's collector/trtllm/collect_gemm.py) read as many copies of their right matrix in turn
        as fill the last cache, five at most; what all copies leave room for is read from the cache, at a rate of the
        multiprocessors. A layer of a network is answered as such a kernel, too, though its weights are read once a pass.
        """
        (batch, m, n, k), chip = self.gemm, self.chip
        cache, right = chip.cache_bytes * _MIB, batch * k * n * chip.item
        copies = np.clip(np.ceil(cache / right), 1, _COPIES)
        working = (copies * right + batch * m * (k + n) * chip.item) / cache
        resident = np.clip((_THRASHED - working) / (_THRASHED - 1), 0.0, 1.0)
        rate = max(chip.bytes_per_ms, chip.multiprocessors * _CACHE_BYTES_PER_MS)
        return working, (1.0 - resident) * self.move, resident * self.move * chip.bytes_per_ms / rate


def values(row: Row, group: str, chip: Chip) -> tuple[Columns, Columns]:
    """Return terms (ideal times in ms, and the call itself) and features of operators that ``group`` answers for."""
    terms, features = _TABLES["cudnn" if group == "convolution" and chip.item == _FP32 else group]
    kernels = Kernels(row, chip)
    return {**terms(kernels), "call": 1.0}, coded(features(kernels))


def _beyond(name: str, time_ms, steps_us: tuple[int, ...] = _HIDDEN_US) -> Columns:
    """Return by how much a time lies beyond each of what a launch hides, in ms: sums of them bend as a soft maximum does."""
    return {f"{name}_beyond_{us}us": np.maximum(0.0, time_ms - us / 1e3) for us in steps_us}


def _window_terms(kernels: Kernels) -> Columns:
    """Return the times of moving, and of reading the values that a window covers again and again from the first cache."""
    return {"move_ms": kernels.move, "read_ms": _LOADS * kernels.row.flops / kernels.chip.vector_flops_per_ms}


def _memory_terms(kernels: Kernels) -> Columns:
    """Return the ideal times of moving, of element-wise work (whose FLOPs cost nothing beside), of softmax and of layer norm.

    Each alone: they reach other shares of the bandwidth. Beside them what misses the last cache, and for softmax and layer norm
    what a multiprocessor moves, and its rows and blocks of columns: it waits between its passes over a row.
    """
    row, chip, move = kernels.row, kernels.chip, kernels.move
    missed = np.maximum(0.0, move - chip.cache_bytes / chip.bytes_per_ms)
    each, rows = row.bytes / chip.multiprocessors / _SM_BYTES_PER_MS, row.rows / chip.multiprocessors / _ROWS
    softmax, norm = kernels.is_op("softmax"), kernels.is_op("layer_norm")
    blocked = {"softmax": softmax * (row.columns > _BLOCK), "norm": norm}  # a warp takes a shorter row of softmax
    terms = {}
    for name, share in zip(MOVING, (1.0 - softmax - norm, softmax, norm), strict=True):
        terms |= {f"{name}_ms": share * move, **_beyond(name, share * move), f"{name}_missed_ms": share * missed}
        if name in blocked:
            terms |= {f"{name}_each": share * each, f"{name}_rows": blocked[name] * rows,
                      f"{name}_blocks": blocked[name] * rows * np.ceil(row.columns / _BLOCK), f"{name}_call": share}
    return terms


def _sgemm_terms(kernels: Kernels) -> Columns:
    """Return the ideal times of GEMMs on vector units: the longest of computing in tiles, of what power feeds, and of moving.

    For one GEMM a library picks a tile and cuts k by the shape; for a batch of them it keeps to one tile, each card its own.
    """
    least, batched = np.maximum(kernels.powered_ms, kernels.move), kernels.is_op(*_BATCHED)
    longest = (1.0 - batched) * np.maximum(kernels.planned_ms, least)
    terms = {"move_ms": kernels.move, "longest_ms": longest, **_beyond("longest", longest)}
    for tile in _BATCHED_TILES:
        name = f"batched_{tile_name(tile)}"
        time = batched * np.maximum(kernels.tiled_ms(tile) * (1 + EDGE / tile[0] + EDGE / tile[1]), least)
        terms |= {f"{name}_ms": time, **_beyond(name, time, _BATCHED_HIDDEN_US)}
    return {**terms, "steps": kernels.gemm[3] / _STEPS, "biased": kernels.is_op("linear")}


def _cudnn_terms(kernels: Kernels) -> Columns:
    """Return the times of moving, of a library's algorithms, the shortest of all, and what Winograd's moves beside."""
    (implicit, fused, gemms), moved = kernels.cudnn.best, kernels.cudnn.moved
    return {"move_ms": kernels.move, "planned_ms": np.minimum.reduce([implicit, fused, gemms + moved]),
            "winograd_gemms_ms": gemms, "winograd_moved_ms": moved, "winograd_fused_ms": fused, "implicit_ms": implicit,
            "call": 1.0, "before": kernels.row.before / _CALLS}


def _tensor_terms(kernels: Kernels, cached: Columns, moved, steps) -> Columns:
    """Return the times of computing, moving, the longer of both, computing in whole tiles and waves, and the length of k."""
    return {"compute_ms": kernels.compute, "move_ms": moved, **cached,
            "longer_ms": np.maximum(kernels.compute, moved + sum(cached.values())),
            **{f"waves_{tile[0]}_ms": kernels.tiled_ms(tile) for tile in ((64, 64), (128, 128))}, "steps": steps / _STEPS}


def _convolution_terms(kernels: Kernels) -> Columns:
    return _tensor_terms(kernels, {}, kernels.move, kernels.gemm[3])


def _gemm_terms(kernels: Kernels) -> Columns:
    """Return what ``_tensor_terms`` does; moving is from memory and from the last cache, and k what is done in turn."""
    _, moved, cached = kernels.served
    return _tensor_terms(kernels, {"cached_ms": cached}, moved, kernels.plan(TENSOR_TILES, _TENSOR_SPLITS)[1])


def _ideal(kernels: Kernels) -> Columns:
    """Return the ideal times, the intensity over the ridge point, and what is moved over the last cache."""
    return logs(log_compute=kernels.compute * 1e3 + 1e-6, log_move=kernels.move * 1e3 + 1e-6,
                over_ridge=(kernels.compute + 1e-9) / kernels.move, cached=kernels.row.bytes / kernels.chip.cache_bytes)


def _memory(kernels: Kernels) -> Columns:
    """Return family and kind; and of what works along rows how they fall on blocks, which element-wise work has none of."""
    row, ideal = kernels.row, _ideal(kernels)
    rows, columns = (np.where(kernels.is_op("softmax", "layer_norm"), sizes, 1) for sizes in (row.rows, row.columns))
    return {"log_move": ideal["log_move"], "cached": ideal["cached"], "op": row.op, "kind": row.kind,
            **logs(rows=rows, columns=columns), "columns_rest": columns % 32, "columns_waste": waste(columns, _BLOCK),
            "row_waves": np.log2(rows / kernels.chip.multiprocessors)}


def _sizes(kernels: Kernels) -> Columns:
    """Return the ideal times and the sizes of a GEMM, and its matrices relative to the last cache."""
    (batch, m, n, k), cache = kernels.gemm, kernels.chip.cache_bytes / kernels.chip.item
    return _ideal(kernels) | logs(m=m, n=n, k=k, mn=m * n, batch=batch, left=batch * m * k / cache, right=batch * k * n / cache,
                                  made=batch * m * n / cache)


def _tile_features(kernels: Kernels, tiles: tuple[tuple[int, int], ...], padded: bool = False) -> Columns:
    """Return how a GEMM falls on each tile: waves, how full the last one is, padding, and the time over the roof."""
    (batch, m, n, _), features = kernels.gemm, {}
    for tile in tiles:
        name, waves = tile_name(tile), kernels.waves(tile)
        features |= {f"waves_{name}": np.log2(waves), f"unfilled_{name}": np.ceil(waves) / waves}
        if padded:
            padding = waves * kernels.chip.multiprocessors * tile[0] * tile[1] / (batch * m * n)
            features[f"padded_{name}"] = np.log2(padding)
        features[f"tail_{name}"] = np.log2(kernels.tiled_ms(tile) / kernels.roof)
    return features


def _sgemm(kernels: Kernels) -> Columns:
    _, m, n, k = kernels.gemm
    return {**_sizes(kernels), "biased": kernels.is_op("linear"),
            **logs(planned=kernels.planned_ms / kernels.roof, powered=kernels.powered_ms / kernels.roof),
            "m_rest": m % 128, "n_rest": n % 128, "k_rest": k % 32, "k_lane": k % 4, "n_lane": n % 4,
            **_tile_features(kernels, VECTOR_TILES)}


def _cudnn(kernels: Kernels) -> Columns:
    """Return the sizes of a convolution in fp32, and each algorithm beside the shortest."""
    row, cache, algorithms, m = kernels.row, kernels.chip.cache_bytes, kernels.cudnn, kernels.gemm[1]
    _, planned, *times = _cudnn_terms(kernels).items()
    planned = np.maximum(planned[1], 1e-9)
    pixels, ins, outs, height = m / row.batch, row.in_channels, row.out_channels, row.height
    features = {
        **_sizes(kernels), "kernel_h": row.kernel_h, "stride_h": row.stride_h, "height": height,
        **logs(positions=pixels, ins=ins, outs=outs, outs_over_ins=outs / ins, inputs=ins * pixels, outputs=outs * pixels),
        "ins_rest": ins % 8, "ins_rest_32": ins % 32, "outs_rest": outs % 32, "outs_rest_64": outs % 64,
        "outs_rest_128": outs % 128, "m_rest": m % 128, "height_waste_4": waste(height, 4), "height_odd": height % 2,
        "height_waste_8": waste(height, 8), "height_waste_16": waste(height, 16),
        "tiles": np.log2(algorithms.tiles), "tiles_rest": algorithms.tiles % 128,
        **logs(planned=planned, kept_tiles=144 * ins * algorithms.tiles / cache, kept_filters=144 * ins * outs / cache),
        **{f"{name.removesuffix('_ms')}_over": np.log2(np.maximum(time, 1e-9) / planned) for name, time in times[:4]}}
    for block, count in algorithms.blocks.items():
        name = tile_name(block)
        features |= {f"blocks_{name}": np.log2(count), f"unfilled_{name}": np.ceil(count) / count,
                     f"fused_{name}": np.log2(algorithms.fused[block] / planned)}
    return features | {f"gemms_{tile_name(tile)}": np.log2(algorithms.gemms[tile] / planned) for tile in VECTOR_TILES[3:]} | {
        f"implicit_{filters}": np.log2(time / planned) for filters, time in algorithms.implicit.items()}


def _rests(kernels: Kernels) -> Columns:
    _, m, n, k = kernels.gemm
    return {**_sizes(kernels), "m_rest": m % 64, "n_rest": n % 256, "n_half": n % 128, "n_lane": n % 8, "k_rest": k % 128,
            "k_lane": k % 8}


def _gemm(kernels: Kernels) -> Columns:
    working, moved, cached = kernels.served
    served = (working, moved / kernels.move + 1e-3, (moved + cached) * 1e3, (kernels.compute + 1e-9) / (moved + cached))
    return _rests(kernels) | logs(**dict(zip(SERVED, served, strict=True))) | _tile_features(kernels, TILES, padded=True)


def _convolution(kernels: Kernels) -> Columns:
    row, chip = kernels.row, kernels.chip
    reads = row.batch * row.in_channels * row.height ** 2 * chip.item / chip.cache_bytes
    sizes = {name: row[name] for name in ("kernel_h", "stride_h", "height", "in_channels", "out_channels")}
    return {**_rests(kernels), **sizes, **logs(positions=kernels.gemm[1] / row.batch, reads=reads),
            **_tile_features(kernels, TILES, padded=True)}


_TABLES: dict[str, tuple[Callable[[Kernels], Columns], ...]] = {
    "window": (_window_terms, lambda kernels: {}), "memory": (_memory_terms, _memory), "sgemm": (_sgemm_terms, _sgemm),
    "gemm": (_gemm_terms, _gemm), "convolution": (_convolution_terms, _convolution), "cudnn": (_cudnn_terms, _cudnn)}
