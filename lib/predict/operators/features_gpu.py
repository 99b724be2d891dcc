"""Features of an operator on a GPU: how it falls on tiles, and tiles on multiprocessors, in waves.

Everything is relative to what the vendor states of the device (peak rates, power, multiprocessors, last cache), so that what
was trained on one device holds for another. Ideal times are in ms. Tile and wave quantisation: Li et al., MICRO 2023; Lee et
al. (NeuSight), ASPLOS 2025.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.config.definitions import VendorDevice
from lib.errors import InputError, choices
from lib.predict.analytic import cudnn
from lib.predict.operators.features import GROUPS as CPU_GROUPS
from lib.predict.operators.features import Row, code
from lib.work import dtypes

TILES = ((32, 32), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128), (192, 128))
TENSOR_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128))
VECTOR_TILES = ((32, 32), (32, 64), (64, 32), (32, 128), (128, 32), (64, 64), (64, 128), (128, 64), (128, 128))
SERVED = ("working", "moved", "log_served", "over_served")  # what of a GEMM memory and the last cache serve: features
MOVING = ("move", "softmax", "norm")  # what memory-bound work moves as: terms of time begin so
CONVOLUTIONS, _POOLS = ("conv2d", "conv3d"), ("pool2d", "pool3d")
_GEMMS = ("linear", "matmul", "bmm", "attention")
GROUPS: dict[str, tuple[str, ...]] = {"window": _POOLS, "gemm": _GEMMS, "convolution": CONVOLUTIONS,
                                     "memory": CPU_GROUPS["memory"], "sgemm": _GEMMS}  # a 1x1 convolution is a GEMM, see groups
_NARROW = 16  # channels a group below which a grouped convolution fills no tile: no library computes it as a GEMM
_LOADS = 4  # multiply-adds (128 a clock) a multiprocessor does while it reads one value (32 a clock) from its first cache
_FP32 = 4  # bytes of the element type whose GEMMs run on vector units
_SPLITS = (1, 4, 16)  # into how many parts a library cuts k where m and n make too few tiles
_TENSOR_SPLITS = (1, 2, 4, 8, 16)  # the same on tensor cores
_COPIES = 5  # of its right matrix, at most, in turn: as a published kernel was measured, see ``_served``
_THRASHED = 1.15  # of the last cache: a working set from which on nothing of it stays
_CACHE_BYTES_PER_MS = 2e7  # that one multiprocessor reads from the last cache
_MIB = 1.048576  # vendors' MB of a cache are 2**20 bytes
_UNSTATED_CACHE_MB = 1.0  # of a device whose entry states none: little stays in it
_EDGE = 8  # a tile of m x n takes 1 + 8/m + 8/n times its multiply-adds: it reads m + n values for each m n of them
_HIDDEN_US = (4, 8, 12, 16, 24)  # of a kernel's time while the host still launches the next: steps of a soft maximum
_BATCHED, _BATCHED_TILES, _BATCHED_HIDDEN_US = ("bmm", "attention"), ((64, 64), (64, 128), (128, 128)), (8, 16)
_CALLS = 1e3  # the unit of calls that were measured before
_BLOCK = 1024  # columns that one block takes at once
_ROWS = 1e4  # the unit of rows a multiprocessor
_SM_BYTES_PER_MS = 1e7  # the unit of what one multiprocessor moves, as many do
_PJ_2016, _YEARLY = 24.5, 0.8  # energy of a FLOP in fp32; it halves in some three years (Sun et al., arXiv:1911.11313)
_STATIC_W = 20.0  # of a board, whatever it computes
_YEARS = {"pascal": 2016, "volta": 2017, "turing": 2018, "ampere": 2020, "cdna2": 2021, "ada": 2022, "hopper": 2022,
          "cdna3": 2023, "blackwell": 2024}


def groups(row: Row, chip: "Chip | None" = None) -> np.ndarray:
    """Return the group of one operator, or of each row.

    A convolution of 1x1 is a GEMM. A depthwise convolution, or one of narrow groups, and pooling slide a window over memory.
    GEMMs in fp32 (sgemm) run on vector units, with tiles of their own.
    """
    size = row["kernel_d"] * row["kernel_h"] * row["kernel_w"]
    channels = np.minimum(row["in_channels"], row["out_channels"]) / row["groups"]
    convolves = np.isin(row["op"], CONVOLUTIONS)
    cases = [np.isin(row["op"], _POOLS) | (convolves & (row["groups"] > 1) & (channels < _NARROW)),
             np.isin(row["op"], _GEMMS) | (convolves & (size == 1)), convolves]
    return np.select(cases, ["window", gemm_group(chip), "convolution"], "memory")


def gemm_group(chip: "Chip | None") -> str:
    """Return the group that GEMMs of a chip's element type belong to."""
    return "sgemm" if chip is not None and chip.item == _FP32 else "gemm"


@dataclass(frozen=True)
class Chip:
    """What the model needs to know of a device: rates in FLOP/ms and bytes/ms, multiprocessors, bytes of the last cache.

    ``vector_flops_per_ms`` is the rate of fp32 outside of tensor cores; ``item`` the bytes of an element;
    ``powered_flops_per_ms`` the rate of fp32 that the board's power feeds (0: not known).
    """

    flops_per_ms: float
    vector_flops_per_ms: float
    bytes_per_ms: float
    multiprocessors: int
    cache_bytes: float
    item: int
    powered_flops_per_ms: float = 0.0

    @classmethod
    def of(cls, device: VendorDevice, dtype: str) -> "Chip":
        """Take a vendor's device; InputError where it states no rate for ``dtype``, or no multiprocessors."""
        if dtype not in device.peak_gflops or not device.multiprocessors:
            raise InputError(f"params/devices.yaml states no {dtype} rate or no multiprocessors of {device.id}; it states: "
                             f"{choices(device.peak_gflops)}")
        peak = device.peak_gflops[dtype]
        return cls(peak * 1e6, device.peak_gflops.get("fp32", peak) * 1e6, device.peak_gbps * 1e6, device.multiprocessors,
                   (device.cache_mb or _UNSTATED_CACHE_MB) * 1e6, dtypes.torch_dtype(dtype).itemsize, _powered(device))


def _powered(device: VendorDevice) -> float:
    """Return the FLOP/ms of fp32 that a board's power feeds; 0 where its power or the year of its architecture is not known."""
    if not device.power_w or device.architecture not in _YEARS:
        return 0.0
    return (device.power_w - _STATIC_W) / (_PJ_2016 * 1e-12 * _YEARLY ** (_YEARS[device.architecture] - 2016)) / 1e3


def extents(row: Row) -> tuple[Any, Any, Any]:
    """Return depth, height and width of what a window that moves over an input gives."""
    def along(size: Any, axis: str) -> Any:
        reach = size + 2 * row[f"padding_{axis}"] - row[f"dilation_{axis}"] * (row[f"kernel_{axis}"] - 1) - 1
        return reach // row[f"stride_{axis}"] + 1

    return along(row["depth"], "d"), along(row["height"], "h"), along(row["width"], "w")


def _gemm(row: Row) -> tuple[Any, ...]:
    """Return batch, m, n, k as a matrix product.

    A convolution is the product of its filters with every window of its input; attention that of queries, keys and values.
    A product over no terms (k of 0) is laid out as one over one.
    """
    depth, height, width = extents(row)
    pixels, window = row["batch"] * depth * height * width, row["kernel_d"] * row["kernel_h"] * row["kernel_w"]
    filters = (row["groups"], pixels, row["out_channels"] / row["groups"], row["in_channels"] / row["groups"] * window)
    heads = (row["batch"] * row["heads"], row["q_len"], row["kv_len"], 2 * row["head_dim"])
    plain = tuple(row[name] for name in ("batch", "gemm_m", "gemm_n", "gemm_k"))
    convolves, attends = np.isin(row["op"], CONVOLUTIONS), np.asarray(row["op"]) == "attention"
    batch, m, n, k = (np.where(convolves, c, np.where(attends, a, p)) for c, a, p in zip(filters, heads, plain, strict=True))
    return batch, m, n, np.maximum(k, 1)


def _ideal(row: Row, chip: Chip) -> tuple[Any, Any]:
    return row["flops"] / chip.flops_per_ms, row["bytes"] / chip.bytes_per_ms


def _waves(batch: Any, m: Any, n: Any, tile: tuple[int, int], chip: Chip) -> Any:
    return batch * np.ceil(m / tile[0]) * np.ceil(n / tile[1]) / chip.multiprocessors


def _tiled(row: Row, gemm: tuple[Any, ...], tile: tuple[int, int], chip: Chip) -> Any:
    """Return the ms of computing in whole tiles and waves; a backward pass takes more by its FLOPs over those of the GEMM."""
    batch, m, n, _ = gemm
    whole = np.ceil(_waves(batch, m, n, tile, chip)) * chip.multiprocessors * tile[0] * tile[1]
    return whole / (batch * m * n) * _flops(row) / chip.flops_per_ms


def _planned(row: Row, gemm: tuple[Any, ...], chip: Chip) -> Any:
    """Return the ms of computing on vector units with the best of a library's tiles and ways to cut k, in whole waves."""
    batch, m, n, k = gemm
    return _plan(gemm, chip, VECTOR_TILES, _SPLITS)[0] * _flops(row) / (2.0 * batch * m * n * k)


def _plan(gemm: tuple[Any, ...], chip: Chip, tiles: tuple[tuple[int, int], ...], splits: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the ms of the best tile and way to cut k, in whole waves, and how much of k a multiprocessor does in turn."""
    batch, m, n, k = gemm
    best, steps = np.inf, 0.0
    for tile in tiles:
        edges = 1 + _EDGE / tile[0] + _EDGE / tile[1]
        for parts in splits:
            in_turn = np.ceil(_waves(batch * parts, m, n, tile, chip)) * np.ceil(k / parts)
            compute = in_turn * chip.multiprocessors * tile[0] * tile[1] * 2 / chip.flops_per_ms * edges
            joined = (parts > 1) * 2 * parts * batch * m * n * chip.item / chip.bytes_per_ms
            steps = np.where(compute + joined < best, in_turn, steps)
            best = np.minimum(best, compute + joined)
    return best, steps


def _served(gemm: tuple[Any, ...], move: Any, chip: Chip) -> tuple[Any, Any, Any]:
    """Return what a GEMM on tensor cores works on, over the last cache; the ms of moving from memory, and from that cache.

    Published kernels (aiconfigurator's collector/trtllm/collect_gemm.py) read as many copies of their right matrix in turn as
    fill the last cache, five at most; what all copies leave room for is read from the cache, at a rate of the multiprocessors.
    A layer of a network is answered as such a kernel, too, though its weights are read once a pass.
    """
    batch, m, n, k = gemm
    cache, right = chip.cache_bytes * _MIB, batch * k * n * chip.item
    copies = np.clip(np.ceil(cache / right), 1, _COPIES)
    working = (copies * right + batch * m * (k + n) * chip.item) / cache
    resident = np.clip((_THRASHED - working) / (_THRASHED - 1), 0.0, 1.0)
    rate = max(chip.bytes_per_ms, chip.multiprocessors * _CACHE_BYTES_PER_MS)
    return working, (1.0 - resident) * move, resident * move * chip.bytes_per_ms / rate


def _after(name: str, time_ms: Any, steps_us: tuple[int, ...] = _HIDDEN_US) -> dict[str, Any]:
    """Return by how much a time lies beyond each of what a launch hides, in ms: sums of them bend as a soft maximum does."""
    return {f"{name}_beyond_{us}us": np.maximum(0.0, time_ms - us / 1e3) for us in steps_us}


def terms(row: Row, group: str, chip: Chip) -> Row:
    """Return ideal times in ms of operators that ``group`` answers for, and the call itself.

    GEMMs and convolutions: computing, moving, the longer of both, computing in whole tiles and waves; GEMMs move from memory
    and from the last cache (``_served``), and take steps of k in turn. Windows: moving, and reading the values that a window
    covers again and again from the first cache. Memory: see ``_memory_terms``.
    """
    compute, move = _ideal(row, chip)
    if group == "window":
        return {"move_ms": move, "read_ms": _LOADS * row["flops"] / chip.vector_flops_per_ms, "call": 1.0}
    if group == "memory":
        return {**_memory_terms(row, move, chip), "call": 1.0}
    gemm = _gemm(row)
    if group == "sgemm":
        return {**_sgemm_terms(row, gemm, move, chip), "call": 1.0}
    if group == "convolution" and chip.item == _FP32:
        return {"move_ms": move, **_convolution_terms(_ways(row, gemm, chip)), "call": 1.0, "before": row["before"] / _CALLS}
    times = {f"waves_{tile[0]}_ms": _tiled(row, gemm, tile, chip) for tile in ((64, 64), (128, 128))}
    if group == "convolution":
        return {"compute_ms": compute, "move_ms": move, "longer_ms": np.maximum(compute, move), **times,
                "steps": gemm[3] / 1e4, "call": 1.0}
    _, moved, cached = _served(gemm, move, chip)
    steps = _plan(gemm, chip, TENSOR_TILES, _TENSOR_SPLITS)[1]
    return {"compute_ms": compute, "move_ms": moved, "cached_ms": cached, "longer_ms": np.maximum(compute, moved + cached),
            **times, "steps": steps / 1e4, "call": 1.0}


def _ways(row: Row, gemm: tuple[Any, ...], chip: Chip) -> cudnn.Ways:
    """Return the ways of a library to convolve in fp32, with their times."""
    rows, columns = (row[axis] + 2 * row[f"padding_{axis[0]}"] - row[f"dilation_{axis[0]}"] * (row[f"kernel_{axis[0]}"] - 1)
                     for axis in ("height", "width"))
    rows, columns = ((size - 1) // row[f"stride_{axis}"] + 1 for size, axis in zip((rows, columns), "hw", strict=True))
    groups, m, n, k = gemm
    winograd = (row["groups"] == 1) & (row["kernel_d"] == 1) & (row["depth"] == 1)
    for axis in "hw":
        winograd = winograd & (row[f"kernel_{axis}"] == 3) & (row[f"stride_{axis}"] == 1) & (row[f"dilation_{axis}"] == 1)
    inputs = row["batch"] * row["in_channels"] * row["depth"] * row["height"] * row["width"]
    again = _flops(row) / (2.0 * groups * m * n * k)
    return cudnn.ways(cudnn.Layer(row["batch"], row["in_channels"], row["out_channels"], rows, columns, m / row["batch"],
                                  groups, k, inputs, winograd, again), chip)


def _convolution_terms(ways: cudnn.Ways) -> dict[str, Any]:
    """Return the times of a library's ways to convolve in fp32, the shortest of all, and what Winograd's moves beside."""
    implicit, fused, gemms = ways.best
    planned = np.minimum(np.minimum(implicit, fused), gemms + ways.moved)
    return {"planned_ms": planned, "winograd_gemms_ms": gemms, "winograd_moved_ms": ways.moved, "winograd_fused_ms": fused,
            "implicit_ms": implicit}


def _memory_terms(row: Row, move: Any, chip: Chip) -> dict[str, Any]:
    """Return the ideal times of moving, of element-wise work (whose FLOPs cost nothing beside), of softmax and of layer norm.

    Each alone: they reach other shares of the bandwidth. Beside them what misses the last cache, and for softmax and layer norm
    what a multiprocessor moves, and its rows and blocks of columns: it waits between its passes over a row.
    """
    missed = np.maximum(0.0, move - chip.cache_bytes / chip.bytes_per_ms)
    each, rows = row["bytes"] / chip.multiprocessors / _SM_BYTES_PER_MS, row["rows"] / chip.multiprocessors / _ROWS
    blocks = rows * np.ceil(row["columns"] / _BLOCK)
    softmax, norm = ((np.asarray(row["op"]) == op) * 1.0 for op in ("softmax", "layer_norm"))
    blocked = {"softmax": softmax * (row["columns"] > _BLOCK), "norm": norm}  # a warp takes a shorter row of softmax
    values = {}
    for name, own in zip(MOVING, (1.0 - softmax - norm, softmax, norm), strict=True):
        values |= {f"{name}_ms": own * move, **_after(name, own * move), f"{name}_missed_ms": own * missed}
        if name != "move":
            values |= {f"{name}_each": own * each, f"{name}_rows": blocked[name] * rows,
                       f"{name}_blocks": blocked[name] * blocks, f"{name}_call": own}
    return values


def _sgemm_terms(row: Row, gemm: tuple[Any, ...], move: Any, chip: Chip) -> dict[str, Any]:
    """Return the ideal times of GEMMs on vector units: the longest of computing in tiles, of what power feeds, and of moving.

    For one GEMM a library picks a tile and cuts k by the shape; for a batch of them it keeps to one tile, each card its own.
    """
    least, operator = np.maximum(_powered_ms(row, chip), move), np.asarray(row["op"])
    batched = np.isin(operator, _BATCHED) * 1.0
    longest = (1.0 - batched) * np.maximum(_planned(row, gemm, chip), least)
    values = {"move_ms": move, "longest_ms": longest, **_after("longest", longest)}
    for tile in _BATCHED_TILES:
        name = f"batched_{tile[0]}x{tile[1]}"
        time = batched * np.maximum(_tiled(row, gemm, tile, chip) * (1 + _EDGE / tile[0] + _EDGE / tile[1]), least)
        values |= {f"{name}_ms": time, **_after(name, time, _BATCHED_HIDDEN_US)}
    return {**values, "steps": gemm[3] / 1e4, "biased": (operator == "linear") * 1.0}


def _powered_ms(row: Row, chip: Chip) -> Any:
    """Return the ms of computing at the rate that the board's power feeds, or at the peak where that is less."""
    rate = min(chip.flops_per_ms, chip.powered_flops_per_ms or chip.flops_per_ms)
    return _flops(row) / rate


def _flops(row: Row) -> Any:
    """Return the FLOPs of an operator, one at least: a product over no terms has none."""
    return np.maximum(row["flops"], 1.0)


def features(row: Row, group: str, chip: Chip) -> Row:
    """Return the features of operators of one group: ideal times, intensity over the ridge point, tiles, waves, alignment."""
    if group == "window":
        return {}
    compute, move = _ideal(row, chip)
    values = {"log_compute": np.log2(compute * 1e3 + 1e-6), "log_move": np.log2(move * 1e3 + 1e-6),
              "over_ridge": np.log2((compute + 1e-9) / move), "cached": np.log2(row["bytes"] / chip.cache_bytes)}
    if group == "memory":
        return {**{name: values[name] for name in ("log_move", "cached")}, **_memory_features(row, chip)}
    if group == "sgemm":
        return {**values, **_sgemm_features(row, chip, np.maximum(compute, move))}
    if group == "convolution" and chip.item == _FP32:
        return {**values, **_convolution_features(row, chip)}
    return {**values, **_gemm_features(row, group, chip, np.maximum(compute, move))}


def _convolution_features(row: Row, chip: Chip) -> dict[str, Any]:
    """Return the sizes of a convolution in fp32, and each way to compute it beside the shortest."""
    gemm = _, m, _, _ = _gemm(row)
    ways = _ways(row, gemm, chip)
    times = _convolution_terms(ways)
    planned = np.maximum(times.pop("planned_ms"), 1e-9)
    pixels, ins, outs, height = m / row["batch"], row["in_channels"], row["out_channels"], row["height"]
    values = {**_sizes(gemm, chip), **{name: row[name] for name in ("kernel_h", "stride_h", "height")},
              "positions": np.log2(pixels), "ins": np.log2(ins), "outs": np.log2(outs), "outs_over_ins": np.log2(outs / ins),
              "inputs": np.log2(ins * pixels), "outputs": np.log2(outs * pixels), "ins_rest": ins % 8, "ins_rest_32": ins % 32,
              "outs_rest": outs % 32, "outs_rest_64": outs % 64, "outs_rest_128": outs % 128, "m_rest": m % 128,
              "height_waste_4": np.ceil(height / 4) * 4 / height, "height_odd": height % 2,
              "height_waste_8": np.ceil(height / 8) * 8 / height, "height_waste_16": np.ceil(height / 16) * 16 / height,
              "tiles": np.log2(ways.tiles), "tiles_rest": ways.tiles % 128, "planned": np.log2(planned),
              "kept_tiles": np.log2(144 * ins * ways.tiles / chip.cache_bytes),
              "kept_filters": np.log2(144 * ins * outs / chip.cache_bytes)}
    values |= {f"{name.removesuffix('_ms')}_over": np.log2(np.maximum(time, 1e-9) / planned) for name, time in times.items()}
    for block, count in ways.blocks.items():
        name = "x".join(map(str, block))
        values |= {f"blocks_{name}": np.log2(count), f"unfilled_{name}": np.ceil(count) / count,
                   f"fused_{name}": np.log2(ways.fused[block] / planned)}
    values |= {f"gemms_{tile[0]}x{tile[1]}": np.log2(ways.gemms[tile] / planned) for tile in cudnn.GEMM_TILES[3:]}
    return values | {f"implicit_{filters}": np.log2(time / planned) for filters, time in ways.implicit.items()}


def _memory_features(row: Row, chip: Chip) -> dict[str, Any]:
    """Return family and kind; and of what works along rows how they fall on blocks, which element-wise work has none of."""
    by_rows = np.isin(row["op"], ("softmax", "layer_norm"))
    rows, columns = np.where(by_rows, row["rows"], 1), np.where(by_rows, row["columns"], 1)
    return {"op": code("op", row["op"]), "kind": code("kind", row["kind"]), "rows": np.log2(rows), "columns": np.log2(columns),
            "columns_rest": columns % 32, "columns_waste": np.ceil(columns / _BLOCK) * _BLOCK / columns,
            "row_waves": np.log2(rows / chip.multiprocessors)}


def _sizes(gemm: tuple[Any, ...], chip: Chip) -> dict[str, Any]:
    """Return the sizes of a GEMM, and its matrices relative to the last cache."""
    batch, m, n, k = gemm
    return {"m": np.log2(m), "n": np.log2(n), "k": np.log2(k), "mn": np.log2(m * n), "batch": np.log2(batch),
            "left": np.log2(batch * m * k * chip.item / chip.cache_bytes),
            "right": np.log2(batch * k * n * chip.item / chip.cache_bytes),
            "made": np.log2(batch * m * n * chip.item / chip.cache_bytes)}


def _sgemm_features(row: Row, chip: Chip, roof: Any) -> dict[str, Any]:
    gemm = batch, m, n, k = _gemm(row)
    values = {**_sizes(gemm, chip), "biased": (np.asarray(row["op"]) == "linear") * 1.0,
              "planned": np.log2(_planned(row, gemm, chip) / roof), "powered": np.log2(_powered_ms(row, chip) / roof),
              "m_rest": m % 128, "n_rest": n % 128, "k_rest": k % 32, "k_lane": k % 4, "n_lane": n % 4}
    for tile in VECTOR_TILES:
        name, waves = f"{tile[0]}x{tile[1]}", _waves(batch, m, n, tile, chip)
        values[f"waves_{name}"] = np.log2(waves)
        values[f"unfilled_{name}"] = np.ceil(waves) / waves
        values[f"tail_{name}"] = np.log2(_tiled(row, gemm, tile, chip) / roof)
    return values


def _gemm_features(row: Row, group: str, chip: Chip, roof: Any) -> dict[str, Any]:
    gemm = batch, m, n, k = _gemm(row)
    values = {**_sizes(gemm, chip), "m_rest": m % 64, "n_rest": n % 256, "n_half": n % 128, "n_lane": n % 8, "k_rest": k % 128,
              "k_lane": k % 8}
    if group == "gemm":
        compute, move = _ideal(row, chip)
        working, moved, cached = _served(gemm, move, chip)
        several = (working, moved / move + 1e-3, (moved + cached) * 1e3, (compute + 1e-9) / (moved + cached))
        values |= dict(zip(SERVED, map(np.log2, several), strict=True))
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
