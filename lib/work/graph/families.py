"""Operator families: their parameters, which captured operators they cover, what is valid, and how to build one.

A family turns parameters into the operators that torch runs for them (``make``) and a captured operator back into
parameters (``describe``). Those without a function to build cover what networks use beside the families worth sweeping.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch.nn import functional as F

from lib.errors import InputError, choices
from lib.work.graph import counts, shapes
from lib.work.graph.capture import Op, TensorSpec, capture_function
from lib.work.graph.shapes import AXES, dense, matrix

Params = dict[str, Any]
Inputs = list[tuple[TensorSpec, bool]]  # each with whether it wants a gradient
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Family:
    """One family: the names of its parameters, the operators it covers by name, and the three functions.

    ``build`` gives the public function and its inputs for parameters and a dtype; ``read`` gives a covered operator's
    parameters; ``check`` the reason why parameters are invalid, or nothing.
    """

    name: str
    parameters: tuple[str, ...]
    covers: frozenset[str]
    read: Callable[[Op], Params | None]
    build: Callable[[Params, str], tuple[Callable[..., torch.Tensor], Inputs]] | None = None
    check: Callable[[Params], str] = lambda params: ""
    defaults: tuple[tuple[str, Any], ...] = ()


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _convolution(dims: int) -> Family:
    axes = AXES[3 - dims:]
    windows = [f"{what}_{axis[0]}" for what in ("kernel", "stride", "padding", "dilation") for axis in axes]
    sizes = ("batch", "in_channels", "out_channels", *axes)

    def values(p: Params, what: str) -> list[int]:
        return [p[f"{what}_{axis[0]}"] for axis in axes]

    def build(p: Params, dtype: str):
        def call(x, w, b=None):
            function = F.conv2d if dims == 2 else F.conv3d
            return function(x, w, b, values(p, "stride"), values(p, "padding"), values(p, "dilation"), p["groups"])
        data = dense((p["batch"], p["in_channels"], *[p[axis] for axis in axes]), dtype, p["layout"])
        weight = dense((p["out_channels"], p["in_channels"] // p["groups"], *values(p, "kernel")), dtype, p["layout"])
        bias = [(dense((p["out_channels"],), dtype), True)] if p["bias"] else []
        return call, [(data, bool(p["input_grad"])), (weight, True), *bias]

    def read(op: Op) -> Params | None:
        backward = op.short == "convolution_backward"
        data, weight = (op.args[1], op.args[2]) if backward else op.args[:2]
        stride, padding, dilation, transposed, _, groups = op.args[4:10] if backward else op.args[3:9]
        if len(weight.shape) != dims + 2 or transposed:
            return None
        window = [weight.shape[2:], *(shapes.wide(v, dims) for v in (stride, padding, dilation))]
        mask = op.args[10] if backward else (True, True, op.args[2] is not None)
        return {"batch": data.shape[0], "in_channels": data.shape[1], "out_channels": weight.shape[0],
                **dict(zip(axes, data.shape[2:], strict=True)),
                **dict(zip(windows, [value for values in window for value in values], strict=True)), "groups": groups,
                "bias": int(mask[2]), "layout": shapes.layout(data), "input_grad": int(mask[0])}

    def check(p: Params) -> str:
        if p["in_channels"] % p["groups"] or p["out_channels"] % p["groups"]:
            return f"groups {p['groups']} do not divide the channels {p['in_channels']} and {p['out_channels']}"
        return shapes.window_problem(p, axes)

    return Family(f"conv{dims}d", (*sizes, *windows, "groups", "bias", "layout", "input_grad"),
                  _names("convolution convolution_backward"), read, build, check,
                  (("bias", 0), ("layout", "contiguous"), ("input_grad", 1), ("groups", 1),
                   *((f"dilation_{axis[0]}", 1) for axis in axes), *((f"padding_{axis[0]}", 0) for axis in axes)))


def _matmul(name: str, covers: str, names: Sequence[str], first: int) -> Family:
    """Build the family of a matrix product; ``first`` is the place of its left matrix (1 behind a bias)."""
    batched = "batch" in names

    def build(p: Params, dtype: str):
        lead = (p["batch"],) if batched else ()
        left = matrix((*lead, p["gemm_m"], p["gemm_k"]), dtype, p["layout"][0] == "t")
        right = matrix((*lead, p["gemm_k"], p["gemm_n"]), dtype, p["layout"][1] == "t")
        if first:
            return torch.addmm, [(dense((p["gemm_n"],), dtype), True), (left, True), (right, True)]
        return (torch.bmm if batched else torch.mm), [(left, True), (right, True)]

    def read(op: Op) -> Params | None:
        skip = 1 if op.short in ("addmm", "baddbmm") else 0
        left, right = op.args[skip:skip + 2]
        lead = {"batch": left.shape[0]} if batched else {}
        return {**lead, "gemm_m": left.shape[-2], "gemm_k": left.shape[-1], "gemm_n": right.shape[-1],
                "layout": shapes.order(left) + shapes.order(right)}

    return Family(name, (*names, "layout"), _names(covers), read, build, defaults=(("layout", "nt" if first else "nn"),))


def _attention() -> Family:
    names = ("kind", "batch", "heads", "q_len", "kv_len", "head_dim")

    def build(p: Params, dtype: str):
        width = p["heads"] * p["head_dim"]
        if p["kind"] == "mha":
            def call(x, w, b, out_w, out_b):
                return torch._native_multi_head_attention(x, x, x, width, p["heads"], w, b, out_w, out_b, None, False)
            given = ((p["batch"], p["q_len"], width), (3 * width, width), (3 * width,), (width, width), (width,))
            return call, [(dense(shape, dtype), False) for shape in given]
        query, key, value = ((p["batch"], p["heads"], p[length], p["head_dim"]) for length in ("q_len", "kv_len", "kv_len"))
        return F.scaled_dot_product_attention, [(dense(shape, dtype), True) for shape in (query, key, value)]

    def read(op: Op) -> Params | None:
        if op.short == "_native_multi_head_attention":
            query, key, width, heads = op.args[0], op.args[1], op.args[3], op.args[4]
            sizes = (query.shape[0], heads, query.shape[1], key.shape[1], width // heads)
            return dict(zip(names, ("mha", *sizes), strict=True))
        query, key = op.args[1:3] if op.short.endswith("backward") else op.args[:2]
        sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2], query.shape[3])
        return dict(zip(names, ("sdpa", *sizes), strict=True))

    def check(p: Params) -> str:
        return "kind mha is self-attention: q_len and kv_len must be equal" if p["kind"] == "mha" and \
            p["q_len"] != p["kv_len"] else ""

    kernels = "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention " \
              "_scaled_dot_product_efficient_attention"
    covers = " ".join(f"{name} {name}_backward" for name in kernels.split())
    return Family("attention", names, _names(f"_native_multi_head_attention {covers}"), read, build, check,
                  (("kind", "sdpa"),))


def _pool(dims: int) -> Family:
    axes = AXES[3 - dims:]
    windows = [f"{what}_{axis[0]}" for what in ("kernel", "stride", "padding") for axis in axes]
    outs = [f"out_{axis}" for axis in axes]
    max_name = f"max_pool{dims}d_with_indices"

    def build(p: Params, dtype: str):
        data = dense((p["batch"], p["in_channels"], *[p[axis] for axis in axes]), dtype, p["layout"])
        if p["kind"] == "adaptive_avg":
            function = F.adaptive_avg_pool2d if dims == 2 else F.adaptive_avg_pool3d
            return lambda x: function(x, [p[name] for name in outs]), [(data, True)]
        functions = {"max": (F.max_pool2d, F.max_pool3d), "avg": (F.avg_pool2d, F.avg_pool3d)}
        function, window = functions[p["kind"]][dims - 2], [p[name] for name in windows]
        return lambda x: function(x, window[:dims], window[dims:2 * dims], window[2 * dims:]), [(data, True)]

    def read(op: Op) -> Params | None:
        if f"{dims}d" not in op.short:
            return None
        backward = op.short.endswith("backward")
        data = op.args[1] if backward else op.args[0]
        facts = {"batch": data.shape[0], "in_channels": data.shape[1], **dict(zip(axes, data.shape[2:], strict=True)),
                 "layout": shapes.layout(data)}
        if "adaptive" in op.short:
            out = op.args[0].shape[2:] if backward else op.outputs[0].shape[2:]
            return {"kind": "adaptive_avg", **facts, **dict(zip(outs, out, strict=True))}
        kernel, stride, padding = (shapes.wide(value, dims) for value in op.args[2 if backward else 1:][:3])
        return {"kind": "max" if "max" in op.short else "avg", **facts,
                **dict(zip(windows, [*kernel, *(stride or kernel), *padding], strict=True))}

    def check(p: Params) -> str:
        if p["kind"] == "adaptive_avg":
            return "" if all(p.get(name) for name in outs) else f"kind adaptive_avg needs {choices(outs)}"
        missing = [name for name in windows if name not in p]
        if missing:
            return f"kind {p['kind']} needs {choices(missing)}"
        if any(2 * p[f"padding_{axis[0]}"] > p[f"kernel_{axis[0]}"] for axis in axes):
            return "padding is more than half of the kernel"
        return shapes.window_problem({**p, **{f"dilation_{axis[0]}": 1 for axis in axes}}, axes)

    covers = f"{max_name} {max_name}_backward avg_pool{dims}d avg_pool{dims}d_backward _adaptive_avg_pool{dims}d " \
             f"_adaptive_avg_pool{dims}d_backward"
    return Family(f"pool{dims}d", ("kind", "batch", "in_channels", *axes, *windows, *outs, "layout"), _names(covers), read,
                  build, check, (("layout", "contiguous"),))


def _batch_norm() -> Family:
    def build(p: Params, dtype: str):
        data = dense((p["batch"], p["in_channels"], p["inner"], 1), dtype, p["layout"])
        channel = dense((p["in_channels"],), dtype)

        def call(x, w, b, mean, variance):
            return F.batch_norm(x, mean, variance, w, b, training=bool(p["training"]))
        return call, [(data, True), (channel, True), (channel, True), (channel, False), (channel, False)]

    def read(op: Op) -> Params | None:
        backward = op.short.endswith("backward")
        data = op.args[1] if backward else op.args[0]
        return {"batch": data.shape[0], "in_channels": data.shape[1], "inner": prod(data.shape[2:]),
                "training": int(op.args[7] if backward else op.args[5]), "layout": shapes.layout(data)}

    return Family("batch_norm", ("batch", "in_channels", "inner", "training", "layout"),
                  _names("native_batch_norm native_batch_norm_backward"), read, build,
                  defaults=(("training", 1), ("layout", "contiguous")))


def _by_rows(name: str, covers: str, kinds: dict[str, Callable]) -> Family:
    """Build a family that works along the last dimension of (rows, columns): layer norm, softmax."""
    def build(p: Params, dtype: str):
        row = dense((p["columns"],), dtype)
        extra = [(row, True), (row, True)] if name == "layer_norm" else []
        return kinds[p["kind"]], [(dense((p["rows"], p["columns"]), dtype), True), *extra]

    def read(op: Op) -> Params | None:
        data = op.args[1] if name == "layer_norm" and op.short.endswith("backward") else op.args[0]
        columns = prod(op.args[2 if op.short.endswith("backward") else 1]) if name == "layer_norm" else \
            data.shape[op.args[2 if op.short.endswith("data") else 1]]
        kind = next(kind for kind in sorted(kinds, key=len, reverse=True) if kind in op.short)
        return {"kind": kind, "rows": data.elements // columns, "columns": columns}

    return Family(name, ("kind", "rows", "columns"), _names(covers), read, build, defaults=(("kind", next(iter(kinds))),))


ACTIVATIONS: dict[str, Callable] = {
    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh, "sigmoid": torch.sigmoid, "tanh": torch.tanh}


def _activation() -> Family:
    def build(p: Params, dtype: str):
        function = getattr(torch.ops.aten, f"{p['kind']}_") if p["inplace"] else ACTIVATIONS[p["kind"]]
        return function, [(dense((p["elements"],), dtype), not p["inplace"])]

    def read(op: Op) -> Params | None:
        kind = op.short.removesuffix("_backward").removesuffix("_")
        return {"kind": "relu" if kind == "threshold" else kind, "elements": op.tensors[0].elements,
                "inplace": int(op.short.endswith("_"))}

    covers = " ".join(f"{kind} {kind}_ {kind}_backward" for kind in (*ACTIVATIONS, "threshold"))
    return Family("activation", ("kind", "elements", "inplace"), _names(covers), read, build, defaults=(("inplace", 0),))


ELEMENTWISE = """add mul div sub sqrt exp addcmul addcdiv lerp neg abs maximum minimum clamp clamp_min clamp_max eq ne gt lt ge
    le where masked_fill rsqrt pow log logical_not rsub reciprocal square erf bitwise_not sign""".split()
_BINARY = {"add": torch.add, "mul": torch.mul, "sub": torch.sub, "div": torch.div}
_UNARY = {"sqrt": torch.sqrt, "exp": torch.exp, "neg": torch.neg}


def _elementwise() -> Family:
    def build(p: Params, dtype: str):
        full = dense((p["outer"], p["inner"]), dtype)
        kind = f"{p['kind']}_" if p["inplace"] else p["kind"]
        if p["kind"] in _UNARY:
            return getattr(torch.Tensor, kind), [(full, not p["inplace"])]
        function = getattr(torch.Tensor, kind)
        if p["broadcast"] == "scalar":
            return lambda x: function(x, 2.0), [(full, not p["inplace"])]
        other = {"none": full, "channel": dense((p["outer"], 1), dtype), "row": dense((1, p["inner"]), dtype)}[p["broadcast"]]
        return function, [(full, not p["inplace"]), (other, not p["inplace"])]

    def read(op: Op) -> Params | None:
        return {"kind": op.short.rstrip("_"), "inplace": int(op.short.endswith("_")), **shapes.broadcast(op)}

    def check(p: Params) -> str:
        if p["kind"] not in _BINARY and p["kind"] not in _UNARY:
            return f"kind {p['kind']} cannot be swept; there are: {choices([*_BINARY, *_UNARY])}"
        return "" if p["broadcast"] in ("none", "scalar", "channel", "row") else f"broadcast {p['broadcast']} cannot be built"

    return Family("elementwise", ("kind", "outer", "inner", "broadcast", "inplace"),
                  _names(" ".join(f"{kind} {kind}_" for kind in ELEMENTWISE)), read, build, check,
                  (("inplace", 0), ("broadcast", "none"), ("outer", 1)))


def _reduction() -> Family:
    def build(p: Params, dtype: str):
        function = {"sum": torch.sum, "mean": torch.mean}[p["kind"]]
        return lambda x: function(x, 1), [(dense((p["outer"], p["columns"], p["inner"]), dtype), True)]

    return Family("reduction", ("kind", "outer", "columns", "inner"),
                  _names("sum mean linalg_vector_norm amax amin max var std prod argmax any all cumsum"), shapes.reduction,
                  build, lambda p: "" if p["kind"] in ("sum", "mean") else "kind must be sum or mean", (("inner", 1),))


def _cat() -> Family:
    def build(p: Params, dtype: str):
        part = dense((p["outer"], p["inner"] // p["pieces"]), dtype)
        return lambda *parts: torch.cat(parts, 1), [(part, True)] * p["pieces"]

    def read(op: Op) -> Params | None:
        dim, out = (op.args[1] if len(op.args) > 1 else 0), op.outputs[0]
        outer = prod(out.shape[:dim])
        return {"pieces": len(op.args[0]), "outer": outer, "inner": out.elements // max(1, outer)}

    return Family("cat", ("pieces", "outer", "inner"), _names("cat stack"), read, build,
                  lambda p: f"pieces {p['pieces']} do not divide inner {p['inner']}" if p["inner"] % p["pieces"] else "")


def _copy() -> Family:
    def build(p: Params, dtype: str):
        plain = p["layout"] == "contiguous"
        spec = dense((p["outer"], p["inner"]), dtype) if plain else matrix((p["outer"], p["inner"]), dtype, True)
        return lambda x: x.clone(memory_format=torch.contiguous_format), [(spec, False)]

    def read(op: Op) -> Params | None:
        out = op.outputs[0]
        source = op.tensors[1] if op.short == "copy_" and len(op.tensors) > 1 else op.tensors[0]
        run = shapes.run(source, out)
        inner = run if 1 < run < out.elements else out.shape[-1] if out.shape else 1
        return {"kind": op.short, "outer": out.elements // max(1, inner), "inner": inner,
                "layout": "contiguous" if run > 1 or out.elements <= 1 else "transposed"}

    return Family("copy", ("kind", "outer", "inner", "layout"), counts.COPIES - {"cat", "stack"}, read, build,
                  lambda p: "" if p["kind"] == "clone" else "kind must be clone", (("kind", "clone"), ("layout", "contiguous")))


def _elements_only(name: str, covers: frozenset[str]) -> Family:
    """Build a family that is covered by its number of elements alone."""
    def read(op: Op) -> Params | None:
        specs = op.outputs or op.tensors
        return {"kind": op.short, "elements": max((spec.elements for spec in specs), default=0)}

    return Family(name, ("kind", "elements"), covers, read)


_LOSSES = "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward " \
          "binary_cross_entropy_with_logits"
_SOFTMAX = "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data"


@cache
def families() -> dict[str, Family]:
    """Return every family by name, those that can be swept first."""
    softmax = {"softmax": lambda x: F.softmax(x, 1), "log_softmax": lambda x: F.log_softmax(x, 1)}
    layer = {"layer_norm": lambda x, w, b: F.layer_norm(x, w.shape, w, b)}
    product = ("gemm_m", "gemm_k", "gemm_n")
    found = (_convolution(2), _convolution(3), _matmul("linear", "addmm", product, 1), _matmul("matmul", "mm", product, 0),
             _matmul("bmm", "bmm baddbmm", ("batch", *product), 0),
             _attention(), _pool(2), _pool(3), _batch_norm(),
             _by_rows("layer_norm", "native_layer_norm native_layer_norm_backward", layer),
             _by_rows("softmax", _SOFTMAX, softmax),
             _activation(), _elementwise(), _reduction(), _cat(), _copy(), _elements_only("fill", counts.FILLS),
             _elements_only("random", counts.RANDOM | {"native_dropout_backward"}), _elements_only("loss", _names(_LOSSES)),
             _elements_only("view", counts.VIEWS))
    return {family.name: family for family in found}


def family(name: str) -> Family:
    """Return one family that can be built; InputError lists them."""
    known = [item.name for item in families().values() if item.build]
    if name not in known:
        raise InputError(f"no operator family {name!r}; there are: {choices(known)}")
    return families()[name]


@cache
def _covering() -> dict[str, tuple[Family, ...]]:
    names = {name for item in families().values() for name in item.covers}
    return {name: tuple(item for item in families().values() if name in item.covers) for name in names}


def describe(op: Op) -> tuple[str, Params] | None:
    """Return the family and the parameters of a captured operator; None when no family covers it."""
    for item in _covering().get(op.short, ()):
        params = item.read(op)
        if params is not None:
            return item.name, params
    return None


def make(name: str, params: Params, dtype: str = "float32", passes: str = "forward") -> tuple[Op, ...]:
    """Return the operators that torch runs for one pass of family ``name``; those that only make views are left out.

    Raises InputError saying which parameter is missing, unknown or impossible.
    """
    item, full = family(name), settled(name, params)
    if passes not in PASSES:
        raise InputError(f"no pass {passes!r}; there are: {choices(PASSES)}")
    reason = item.check(full)
    if reason:
        raise InputError(f"{name}: {reason}")
    function, inputs = item.build(full, dtype)
    ops = tuple(op for op in capture_function(function, inputs, passes) if op.short not in counts.VIEWS)
    if not ops:
        raise InputError(f"{name}: its {passes} pass runs no operator")
    return ops


def settled(name: str, params: Params) -> Params:
    """Return ``params`` completed by the family's defaults; InputError names what is unknown or missing."""
    item = family(name)
    full = {**dict(item.defaults), **params}
    unknown = sorted(set(full) - set(item.parameters))
    optional = {p for p in item.parameters if p.startswith(("out_", "kernel_", "stride_", "padding_"))} \
        if name.startswith("pool") else set()
    missing = [p for p in item.parameters if p not in full and p not in optional]
    if unknown or missing:
        raise InputError(f"{name}: unknown parameters [{choices(unknown)}], missing [{choices(missing)}]; "
                         f"it takes: {choices(item.parameters)}")
    return {p: full[p] for p in item.parameters if p in full}
