"""Features of an operator on a CPU: its sizes, what it computes and moves, and how it falls on the library's blocks.

Operators are columns: arrays by name, an entry for each operator.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError, choices

LANES = 16  # fp32 values of the widest vector; libraries block channels by it
GROUPS: dict[str, tuple[str, ...]] = {
    "convolution": ("conv2d", "conv3d"),
    "gemm": ("linear", "matmul", "bmm"),
    "attention": ("attention",),
    "window": ("pool2d", "pool3d"),
    "memory": ("batch_norm", "layer_norm", "softmax", "activation", "elementwise", "reduction", "cat", "copy", "fill", "random",
               "loss")}
GROUP_OF = {op: group for group, ops in GROUPS.items() for op in ops}
TEXTS: dict[str, tuple[str, ...]] = {
    "op": tuple(GROUP_OF),
    "layout": ("contiguous", "channels_last", "transposed", "nn", "nt", "tn", "tt"),
    "broadcast": ("none", "scalar", "channel", "row", "mixed"),
    "kind": ("max", "avg", "adaptive_avg", "sdpa", "mha", "softmax", "log_softmax", "layer_norm", "relu", "gelu", "silu",
             "hardswish", "hardsigmoid", "hardtanh", "sigmoid", "tanh", "add", "mul", "sub", "div", "sqrt", "sum", "mean",
             "clone", "copy_", "pow")}
Row = Mapping[str, Any]  # columns of operators: arrays of numbers or texts


def _up(value, step):
    return -(-value // step) * step


def logs(**values: Any) -> dict[str, Any]:
    """Return the logarithms of base 2 of values, by name."""
    return {name: np.log2(value) for name, value in values.items()}


def _waste(value, step):
    """Return by how much rounding up to a multiple of ``step`` enlarges: 1 for what fits."""
    return _up(value, step) / value


def _extent(size, kernel, stride, padding, dilation):
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _sizes(p: Row) -> dict[str, Any]:
    """Return what every operator has: FLOPs, bytes, and FLOPs a byte."""
    return logs(log_flops=p["flops"] + 1, log_bytes=p["bytes"] + 1, log_ai=(p["flops"] + 1) / (p["bytes"] + 1))


def _convolved(p: Row) -> dict[str, Any]:
    """Return what the shapes of a convolution mean: its output, channels a group, and the way that torch and oneDNN take.

    The ways, as 1 or 0, as oneDNN's verbose mode shows on an AVX-512 processor: torch's own loop for one small sample; im2col
    and a GEMM where channels a group do not divide by 4; depthwise; 1x1; the first layer, whose input stays as it is;
    blocked otherwise. Channels that do not fill blocks of 16 are rearranged by a slower loop.
    """
    depth, height, width = (_extent(p[axis], p[f"kernel_{axis[0]}"], p[f"stride_{axis[0]}"], p[f"padding_{axis[0]}"],
                                    p[f"dilation_{axis[0]}"]) for axis in ("depth", "height", "width"))
    groups, all_ins, all_outs = p["groups"], p["in_channels"], p["out_channels"]
    ins, outs = all_ins // groups, all_outs // groups
    many = (groups > 1) * 1
    window = p["kernel_d"] * p["kernel_h"] * p["kernel_w"]
    size = all_ins * p["depth"] * p["height"] * p["width"]
    native = (p["batch"] == 1) * (1 - many) * (size <= 20480) * (p["kernel_h"] <= 3) * (p["op"] != "conv3d") * 1
    other = 1 - native
    depthwise = (ins == 1) * (outs == 1) * many
    uneven = many * (1 - depthwise) * (1 - (ins % 4 == 0) * (outs % 4 == 0))
    point = (window == 1) * (1 - many) * (height * p["stride_h"] == p["height"]) * (height > 5) * 1
    first = (all_ins <= 3) * (1 - many) * (1 - point) * 1
    packed = other * (1 - uneven)
    full_in, full_out = (all_ins % LANES == 0) * 1, (all_outs % LANES == 0) * 1
    way = {"native": native, "depthwise": depthwise * other, "im2col": uneven * other, "point": point * other,
           "first": first * other, "direct": packed * (1 - depthwise) * (1 - point) * (1 - first),
           "in_whole": packed * (1 - first) * full_in, "in_ragged": packed * (1 - first) * (1 - full_in),
           "out_whole": packed * full_out, "out_ragged": packed * (1 - full_out)}
    return {"way": way, "out": (depth, height, width), "ins": ins, "outs": outs, "many": many, "window": window, "size": size,
            "block": _block(ins, outs, many)}


def _block(ins, outs, many):
    """Return the channels that oneDNN takes together: 16, or for groups the largest of 16, 8, 4 that divides them."""
    both = (ins % 16 == 0) * (outs % 16 == 0) * 1
    eights = (ins % 8 == 0) * (outs % 8 == 0) * 1
    return 16 * (1 - many) + many * (both * 16 + (1 - both) * (eights * 8 + (1 - eights) * 4))


def _convolution(p: Row) -> dict[str, Any]:
    way, window, ins, outs, block = (p[name] for name in ("way", "window", "ins", "outs", "block"))
    depth, height, width = p["out"]
    pixels, three = depth * height * width, p["op"] == "conv3d"
    inputs, outputs = p["size"], p["out_channels"] * pixels
    channels = way["depthwise"] * p["groups"] + (1 - way["depthwise"]) * outs
    blocks = p["batch"] * (way["depthwise"] + (1 - way["depthwise"]) * p["groups"]) * -(-channels // block)
    return {**way, "three": three * 1, **logs(batch=p["batch"], ins=ins, outs=outs, groups=p["groups"]),
            "block": block, "kernel": p["kernel_h"], "window": np.log2(window),
            "stride": p["stride_h"], "dilation": p["dilation_h"], "padded": p["padding_h"], "bias": p["bias"],
            "layout": p["layout"], "pixels": np.log2(pixels), "width": width, "in_width": p["width"],
            "input_grad": p["input_grad"],
            **logs(inputs=p["batch"] * inputs, outputs=p["batch"] * outputs, weights=p["out_channels"] * ins * window,
                   gathered=p["batch"] * pixels * ins * window, reach=ins * window),
            "ins_rest": ins % LANES, "outs_rest": outs % LANES,
            "all_ins_rest": p["in_channels"] % LANES, "all_outs_rest": p["out_channels"] % LANES,
            "ins_waste": _waste(ins, block), "outs_waste": _waste(channels, block),
            "width_rest": width % LANES, "width_waste": _waste(width, 6), "width_waste_14": _waste(width, 14),
            "width_waste_28": _waste(width, 28), "blocks": np.log2(blocks), "blocks_odd": blocks % 2,
            "rows_waste": _waste(blocks * depth * height, 2),
            **logs(a_sample=outputs, reads_an_input=window * outs / (p["stride_d"] * p["stride_h"] * p["stride_w"]))}


def _gemm(p: Row) -> dict[str, Any]:
    m, k, n = p["gemm_m"], p["gemm_k"], p["gemm_n"]
    return {"op": p["op"], "layout": p["layout"],
            **logs(batch=p["batch"], m=m, k=k, n=n, mn=m * n, mk=m * k, kn=k * n, m_over_n=m / n), "m_is_one": (m == 1) * 1,
            "n_rest": n % LANES, "m_rest": m % LANES, "k_rest": k % LANES, "n_waste": _waste(n, 3 * LANES),
            "m_waste": _waste(m, 8), "small": np.minimum(np.minimum(m, n), k)}


def _attention(p: Row) -> dict[str, Any]:
    heads = p["batch"] * p["heads"]
    return {"kind": p["kind"], "heads": np.log2(heads), "heads_odd": heads % 2, **logs(queries=p["q_len"], keys=p["kv_len"]),
            "head_dim": p["head_dim"], **logs(model_width=p["heads"] * p["head_dim"], rows=p["batch"] * p["q_len"],
                                              scores=heads * p["q_len"] * p["kv_len"]),
            "queries_waste": _waste(p["q_len"], 32)}


def _window(p: Row) -> dict[str, Any]:
    planes = p["batch"] * p["in_channels"]
    size = p["depth"] * p["height"] * p["width"]
    return {"op": p["op"], "kind": p["kind"], "layout": p["layout"], **logs(planes=planes, size=size),
            "width": p["width"], "kernel": p["kernel_h"], "stride": p["stride_h"], "padding": p["padding_h"],
            "out": p["out_height"], "inputs": np.log2(planes * size)}


def _memory(p: Row) -> dict[str, Any]:
    rows = np.maximum(np.maximum(p["rows"], p["outer"]), p["batch"] * p["in_channels"])
    columns = np.maximum(np.maximum(p["columns"], p["inner"]), p["elements"])
    return {"op": p["op"], "kind": p["kind"], "layout": p["layout"], "broadcast": p["broadcast"], "inplace": p["inplace"],
            "training": p["training"],
            **logs(rows=rows, columns=columns, channels=p["in_channels"], batch=p["batch"], inner=p["inner"]),
            "pieces": p["pieces"],
            "columns_rest": columns % LANES, "rows_odd": rows % 2}


def _convolution_terms(p: Row) -> dict[str, Any]:
    way, window, ins, outs, block = (p[name] for name in ("way", "window", "ins", "outs", "block"))
    depth, height, width = p["out"]
    pixels = p["batch"] * depth * height * width
    inputs = p["batch"] * p["size"]
    outputs, plain = p["out_channels"] * pixels, pixels * p["groups"] * window * ins * outs
    blocked = pixels * p["groups"] * window * _up(ins, block) * _up(outs, block)
    narrow = (block < LANES) * 1
    ragged_in = p["batch"] * _up(p["in_channels"], LANES) * p["depth"] * p["height"] * p["width"]
    return {"direct_macs": way["direct"] * (1 - narrow) * blocked, "narrow_macs": way["direct"] * narrow * blocked,
            "point_macs": way["point"] * blocked, "depthwise_macs": way["depthwise"] * plain,
            "first_macs": way["first"] * pixels * window * ins * _up(outs, LANES),
            "im2col_macs": way["im2col"] * plain, "native_macs": way["native"] * plain,
            "gathered": way["im2col"] * pixels * p["groups"] * ins * window, "groups": way["im2col"] * p["batch"] * p["groups"],
            "rows": (1 - way["im2col"]) * pixels / width * p["groups"] * -(-outs // block) * -(-ins // block),
            "inputs": inputs, "outputs": outputs, "weights": p["out_channels"] * ins * window,
            "ragged_inputs": way["in_ragged"] * ragged_in,
            "ragged_outputs": way["out_ragged"] * pixels * _up(p["out_channels"], LANES)}


def _gemm_terms(p: Row) -> dict[str, Any]:
    m, k, n = p["gemm_m"], p["gemm_k"], p["gemm_n"]
    batch = p["batch"]
    return {"macs": batch * m * k * n, "blocked_macs": batch * _up(m, 8) * k * _up(n, 3 * LANES), "left": batch * m * k,
            "right": batch * k * n, "outputs": batch * m * n, "matrices": batch}


def _attention_terms(p: Row) -> dict[str, Any]:
    heads = p["batch"] * p["heads"]
    whole = (p["kind"] == "mha") * 1  # a whole layer, projections included
    width = p["heads"] * p["head_dim"]
    return {"projections": whole * p["batch"] * (2 * p["q_len"] + 2 * p["kv_len"]) * width * width,
            "weights": whole * 4 * width * width, "layer": whole,
            "macs": heads * p["q_len"] * p["kv_len"] * p["head_dim"], "scores": heads * p["q_len"] * p["kv_len"],
            "queries": heads * p["q_len"] * p["head_dim"], "keys": heads * p["kv_len"] * p["head_dim"], "heads": heads}


def _moved_terms(p: Row) -> dict[str, Any]:
    return {"flops": p["flops"], "bytes": p["bytes"]}


_TERMS: dict[str, Callable[[Row], dict[str, Any]]] = {
    "convolution": _convolution_terms, "gemm": _gemm_terms, "attention": _attention_terms, "window": _moved_terms,
    "memory": _moved_terms}
_BUILDERS: dict[str, Callable[[Row], dict[str, Any]]] = {
    "convolution": _convolution, "gemm": _gemm, "attention": _attention, "window": _window, "memory": _memory}
_INDEX = {column: {text: index for index, text in enumerate(texts)} for column, texts in TEXTS.items()}
NUMBERS = ("batch", "in_channels", "out_channels", "depth", "height", "width",
           *(f"{size}_{axis}" for size in ("kernel", "stride", "dilation") for axis in "dhw"), "groups", "gemm_m", "gemm_k",
           "gemm_n", "heads", "q_len", "kv_len", "head_dim", "rows", "columns", "elements", "pieces", "outer", "inner")
ZEROS = (*(f"padding_{axis}" for axis in "dhw"), *(f"out_{axis}" for axis in ("depth", "height", "width")), "bias", "inplace",
         "training", "input_grad", "before")  # before: calls measured earlier in the same process, where these cost time
_ABSENT: dict[str, Any] = {**dict.fromkeys(NUMBERS, 1), **dict.fromkeys(ZEROS, 0)}


def columns(table: pd.DataFrame) -> Row:
    """Return the columns of a ``sweep`` table as what features are made of; InputError lists the families that have any."""
    texts = {name: table[name].to_numpy(object) if name in table else np.full(len(table), "", object) for name in TEXTS}
    unknown = set(texts["op"]) - set(GROUP_OF)
    if unknown:
        raise InputError(f"no features for {choices(sorted(unknown))}; there are: {choices(GROUP_OF)}")
    numbers = table.reindex(columns=list(_ABSENT)).to_numpy(float, na_value=np.nan)
    numbers = np.where(np.isnan(numbers), np.array(list(_ABSENT.values()), float), numbers)
    return {**dict(zip(_ABSENT, numbers.T, strict=True)), **texts,
            **{name: table[name].to_numpy(float) for name in ("flops", "bytes")}}


def one(op: str, parameters: Mapping[str, Any], flops: float, moved: float) -> Row:
    """Return one operator as columns of length 1; ``parameters`` are those of its family, ``moved`` its compulsory bytes.

    Raises InputError for a family without features.
    """
    if op not in GROUP_OF:
        raise InputError(f"no features for {op}; there are: {choices(GROUP_OF)}")
    values = {**_ABSENT, **dict.fromkeys(TEXTS, ""), **parameters, "op": op, "flops": flops, "bytes": moved}
    return {name: np.array([values[name]], object if name in TEXTS else float) for name in (*_ABSENT, *TEXTS, "flops", "bytes")}


def code(column: str, texts: Iterable[str]) -> np.ndarray:
    """Return the index of each text in TEXTS; -1 for one that is not there, or for none."""
    return np.array([_INDEX[column].get(text, -1) for text in texts], float)


def groups(row: Row) -> np.ndarray:
    """Return the group of each operator."""
    return np.array([GROUP_OF[op] for op in row["op"]])


def terms(row: Row, group: str) -> Row:
    """Return what costs time in proportion: multiply-adds, elements read and written, and the call itself."""
    return {**_TERMS[group](_derived(row, group)), "call": 1.0}


def features(row: Row, group: str) -> Row:
    """Return the features of operators of one group."""
    row = _derived(row, group)
    values = {**_sizes(row), **_BUILDERS[group](row)}
    return {name: code(name, row.get(name, "")) if name in TEXTS else value for name, value in values.items()}


def _derived(row: Row, group: str) -> Row:
    """Add to a row what both its terms and its features are made of."""
    return {**row, **_convolved(row)} if group == "convolution" else row
