"""Features of an operator on a CPU: its sizes, what it computes and moves, and how it falls on the library's blocks.

Operators are columns (``Row``); each group of families has a table of terms, which cost time in proportion, and of features.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError, choices

LANES = 16  # fp32 values of the widest vector; libraries block channels by it
CONVOLUTIONS = ("conv2d", "conv3d")
GROUPS: dict[str, tuple[str, ...]] = {
    "convolution": CONVOLUTIONS, "gemm": ("linear", "matmul", "bmm"), "attention": ("attention",),
    "window": ("pool2d", "pool3d"), "memory": tuple("batch_norm layer_norm softmax activation elementwise reduction cat copy "
                                                    "fill random loss".split())}
GROUP_OF = {op: group for group, ops in GROUPS.items() for op in ops}
TEXTS = {column: {text: index for index, text in enumerate(texts)} for column, texts in {
    "op": GROUP_OF, "layout": "contiguous channels_last transposed nn nt tn tt".split(),
    "broadcast": "none scalar channel row mixed".split(),
    "kind": ("max avg adaptive_avg sdpa mha softmax log_softmax layer_norm relu gelu silu hardswish hardsigmoid hardtanh "
             "sigmoid tanh add mul sub div sqrt sum mean clone copy_ pow").split()}.items()}
AXES = ("depth", "height", "width")
SIZES = ("batch in_channels out_channels depth height width kernel_d kernel_h kernel_w stride_d stride_h stride_w dilation_d "
         "dilation_h dilation_w groups gemm_m gemm_k gemm_n heads q_len kv_len head_dim rows columns elements pieces outer "
         "inner").split()
UNASKED = "before"  # calls measured earlier in the same process, where these cost time: no question has any
_ABSENT = {**dict.fromkeys(SIZES, 1.0), **dict.fromkeys(
    "padding_d padding_h padding_w out_depth out_height out_width bias inplace training input_grad".split(), 0.0), UNASKED: 0.0,
    "flops": np.nan, "bytes": np.nan}


Columns = dict[str, Any]  # arrays, or numbers that hold for all operators, by name


class Row(dict):
    """Columns of operators by name, as entries and as attributes: arrays of numbers or texts."""

    __getattr__ = dict.__getitem__

    def at(self, places: np.ndarray) -> "Row":
        """Return the operators at some places, numbers or a mask."""
        return Row({name: values[places] for name, values in self.items()})


def columns(table: pd.DataFrame) -> Row:
    """Return the columns of a ``sweep`` table as what features are made of; InputError lists the families that have any."""
    if unknown := sorted(set(table["op"]) - set(GROUP_OF)):
        raise InputError(f"no features for {choices(unknown)}; there are: {choices(GROUP_OF)}")
    numbers = table.reindex(columns=list(_ABSENT)).to_numpy(float, na_value=np.nan)
    numbers = np.where(np.isnan(numbers), list(_ABSENT.values()), numbers)
    texts = {name: table[name].to_numpy(object) if name in table else np.full(len(table), "", object) for name in TEXTS}
    return Row(zip(_ABSENT, numbers.T, strict=True), **texts)


def example(op: str) -> Row:
    """Return some operator of a family as columns of length 1."""
    values = {**_ABSENT, **dict.fromkeys(TEXTS, ""), "op": op, "flops": 1.0, "bytes": 1.0}
    return Row({name: np.array([value], object if name in TEXTS else float) for name, value in values.items()})


def code(column: str, texts: Iterable[str]) -> np.ndarray:
    """Return the index of each text in TEXTS; -1 for one that is not there, or for none."""
    return np.array([TEXTS[column].get(text, -1) for text in texts], float)


def coded(values: Mapping[str, Any]) -> Columns:
    """Return features, those that are texts as their codes."""
    return {name: code(name, value) if name in TEXTS else value for name, value in values.items()}


def groups(row: Row) -> np.ndarray:
    """Return the group of each operator."""
    return np.array([GROUP_OF[op] for op in row.op])


def logs(**values: Any) -> Columns:
    """Return the logarithms of base 2 of values, by name."""
    return {name: np.log2(value) for name, value in values.items()}


def extents(row: Row) -> list[Any]:
    """Return depth, height and width of what a window that moves over an input gives."""
    return [(row[axis] + 2 * row[f"padding_{axis[0]}"] - row[f"dilation_{axis[0]}"] * (row[f"kernel_{axis[0]}"] - 1) - 1)
            // row[f"stride_{axis[0]}"] + 1 for axis in AXES]


def waste(value: Any, step: Any) -> Any:
    """Return by how much rounding up to a multiple of ``step`` enlarges: 1 for what fits."""
    return _up(value, step) / value


def _up(value, step):
    return -(-value // step) * step


def values(row: Row, group: str) -> tuple[Columns, Columns]:
    """Return terms and features of operators of one group.

    Terms cost time in proportion: multiply-adds, elements read and written, and the call itself.
    """
    row = _convolved(row) if group == "convolution" else row
    terms, features = _TABLES[group]
    flops, moved = row.flops + 1, row.bytes + 1
    return {**terms(row), "call": 1.0}, coded({**logs(log_flops=flops, log_bytes=moved, log_ai=flops / moved), **features(row)})


def _convolved(p: Row) -> Row:
    """Add to convolutions what their shapes mean: output, channels a group, and the ways that torch and oneDNN take.

    The ways, as oneDNN's verbose mode shows on an AVX-512 processor: torch's own loop for one small sample; im2col and a GEMM
    where channels a group do not divide by 4; depthwise; 1x1; the first layer, whose input stays as it is; blocked otherwise.
    Channels that do not fill blocks of 16 are rearranged by a slower loop. A block is 16 channels, or for groups the largest
    of 16, 8, 4 that divides them.
    """
    out, many = extents(p), p.groups > 1
    ins, outs, window = p.in_channels // p.groups, p.out_channels // p.groups, p.kernel_d * p.kernel_h * p.kernel_w
    size = p.in_channels * p.depth * p.height * p.width

    def divided(step: int) -> np.ndarray:
        return (ins % step == 0) & (outs % step == 0)

    native = (p.batch == 1) & ~many & (size <= 20480) & (p.kernel_h <= 3) & (p.op != "conv3d")
    depthwise = (ins == 1) & (outs == 1) & many
    uneven = many & ~depthwise & ~divided(4)
    point = (window == 1) & ~many & (out[1] * p.stride_h == p.height) & (out[1] > 5)
    first = (p.in_channels <= 3) & ~many & ~point
    packed = ~native & ~uneven
    full_in, full_out = p.in_channels % LANES == 0, p.out_channels % LANES == 0
    ways = {"native": native, "depthwise": depthwise & ~native, "im2col": uneven & ~native, "point": point & ~native,
            "first": first & ~native, "direct": packed & ~depthwise & ~point & ~first, "in_whole": packed & ~first & full_in,
            "in_ragged": packed & ~first & ~full_in, "out_whole": packed & full_out, "out_ragged": packed & ~full_out}
    return Row(p, ways=ways, out=out, ins=ins, outs=outs, window=window, size=size, pixels=out[0] * out[1] * out[2],
               block=np.select([~many, divided(16), divided(8)], [16, 16, 8], 4), **ways)


def _convolution_terms(p: Row) -> Columns:
    taps, ins, outs, block = p.groups * p.window, p.ins, p.outs, p.block
    pixels = p.batch * p.pixels
    plain, blocked = pixels * taps * ins * outs, pixels * taps * _up(ins, block) * _up(outs, block)
    narrow = block < LANES
    ragged_in = p.batch * _up(p.in_channels, LANES) * p.depth * p.height * p.width
    return {"direct_macs": p.direct * ~narrow * blocked, "narrow_macs": p.direct * narrow * blocked,
            "point_macs": p.point * blocked, "depthwise_macs": p.depthwise * plain,
            "first_macs": p.first * pixels * p.window * ins * _up(outs, LANES),
            "im2col_macs": p.im2col * plain, "native_macs": p.native * plain,
            "gathered": p.im2col * pixels * taps * ins, "groups": p.im2col * p.batch * p.groups,
            "rows": ~p.im2col * pixels / p.out[2] * p.groups * -(-outs // block) * -(-ins // block),
            "inputs": p.batch * p.size, "outputs": p.out_channels * pixels, "weights": p.out_channels * ins * p.window,
            "ragged_inputs": p.in_ragged * ragged_in, "ragged_outputs": p.out_ragged * pixels * _up(p.out_channels, LANES)}


def _convolution(p: Row) -> Columns:
    (depth, height, width), ins, outs, block, batch = p.out, p.ins, p.outs, p.block, p.batch
    outputs, reach = p.out_channels * p.pixels, ins * p.window
    channels = np.where(p.depthwise, p.groups, outs)
    blocks = batch * np.where(p.depthwise, 1, p.groups) * -(-channels // block)
    return {**p.ways, "three": p.op == "conv3d", **logs(batch=batch, ins=ins, outs=outs, groups=p.groups), "block": block,
            "kernel": p.kernel_h, "window": np.log2(p.window), "stride": p.stride_h, "dilation": p.dilation_h,
            "padded": p.padding_h, "bias": p.bias, "layout": p.layout, "pixels": np.log2(p.pixels), "width": width,
            "in_width": p.width, "input_grad": p.input_grad,
            **logs(inputs=batch * p.size, outputs=batch * outputs, weights=p.out_channels * reach,
                   gathered=batch * p.pixels * reach, reach=reach),
            "ins_rest": ins % LANES, "outs_rest": outs % LANES, "all_ins_rest": p.in_channels % LANES,
            "all_outs_rest": p.out_channels % LANES, "ins_waste": waste(ins, block), "outs_waste": waste(channels, block),
            "width_rest": width % LANES, "width_waste": waste(width, 6), "width_waste_14": waste(width, 14),
            "width_waste_28": waste(width, 28), "blocks": np.log2(blocks), "blocks_odd": blocks % 2,
            "rows_waste": waste(blocks * depth * height, 2),
            **logs(a_sample=outputs, reads_an_input=p.window * outs / (p.stride_d * p.stride_h * p.stride_w))}


def _gemm_terms(p: Row) -> Columns:
    batch, m, k, n = p.batch, p.gemm_m, p.gemm_k, p.gemm_n
    return {"macs": batch * m * k * n, "blocked_macs": batch * _up(m, 8) * k * _up(n, 3 * LANES), "left": batch * m * k,
            "right": batch * k * n, "outputs": batch * m * n, "matrices": batch}


def _gemm(p: Row) -> Columns:
    m, k, n = p.gemm_m, p.gemm_k, p.gemm_n
    return {"op": p.op, "layout": p.layout, **logs(batch=p.batch, m=m, k=k, n=n, mn=m * n, mk=m * k, kn=k * n, m_over_n=m / n),
            "m_is_one": m == 1, "n_rest": n % LANES, "m_rest": m % LANES, "k_rest": k % LANES, "n_waste": waste(n, 3 * LANES),
            "m_waste": waste(m, 8), "small": np.minimum.reduce([m, n, k])}


def _attention_terms(p: Row) -> Columns:
    heads, width, queries, keys = p.batch * p.heads, p.heads * p.head_dim, p.q_len, p.kv_len
    layer = p.kind == "mha"  # a whole layer, projections included
    return {"projections": layer * p.batch * (2 * queries + 2 * keys) * width * width, "weights": layer * 4 * width * width,
            "layer": layer, "macs": heads * queries * keys * p.head_dim, "scores": heads * queries * keys,
            "queries": heads * queries * p.head_dim, "keys": heads * keys * p.head_dim, "heads": heads}


def _attention(p: Row) -> Columns:
    heads, queries, keys = p.batch * p.heads, p.q_len, p.kv_len
    return {"kind": p.kind, "heads": np.log2(heads), "heads_odd": heads % 2, **logs(queries=queries, keys=keys),
            "head_dim": p.head_dim, **logs(model_width=p.heads * p.head_dim, rows=p.batch * queries,
                                           scores=heads * queries * keys), "queries_waste": waste(queries, 32)}


def _moved_terms(p: Row) -> Columns:
    return {"flops": p.flops, "bytes": p.bytes}


def _window(p: Row) -> Columns:
    planes, size = p.batch * p.in_channels, p.depth * p.height * p.width
    return {"op": p.op, "kind": p.kind, "layout": p.layout, **logs(planes=planes, size=size), "width": p.width,
            "kernel": p.kernel_h, "stride": p.stride_h, "padding": p.padding_h, "out": p.out_height,
            "inputs": np.log2(planes * size)}


def _memory(p: Row) -> Columns:
    rows = np.maximum.reduce([p.rows, p.outer, p.batch * p.in_channels])
    columns = np.maximum.reduce([p.columns, p.inner, p.elements])
    return {**{name: p[name] for name in ("op", "kind", "layout", "broadcast", "inplace", "training")},
            **logs(rows=rows, columns=columns, channels=p.in_channels, batch=p.batch, inner=p.inner), "pieces": p.pieces,
            "columns_rest": columns % LANES, "rows_odd": rows % 2}


_TABLES: dict[str, tuple[Callable[[Row], Columns], ...]] = {
    "convolution": (_convolution_terms, _convolution), "gemm": (_gemm_terms, _gemm),
    "attention": (_attention_terms, _attention), "window": (_moved_terms, _window), "memory": (_moved_terms, _memory)}
