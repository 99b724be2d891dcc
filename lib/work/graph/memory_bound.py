"""The families that memory usually bounds: normalisation, softmax, activations, arithmetic, reductions and copies."""

from collections.abc import Callable, Iterable
from math import prod

import torch
from torch.nn import functional as F

from lib.work.graph import counts, shapes
from lib.work.graph.family import LAYOUTS, Family, Params
from lib.work.graph.ops import Op
from lib.work.graph.shapes import dense, matrix


def batch_norm() -> Family:
    """Return the family of batch normalisation."""
    def build(p: Params, dtype: str):
        data = dense((p["batch"], p["in_channels"], p["inner"], 1), dtype, p["layout"])
        channel = dense((p["in_channels"],), dtype)

        def call(x, w, b, mean, variance):
            return F.batch_norm(x, mean, variance, w, b, training=bool(p["training"]))
        return call, [(data, True), *[(channel, True)] * 2, *[(channel, False)] * 2]

    def read(op: Op) -> tuple:
        data = op.args[1 if op.short == "native_batch_norm_backward" else 0]
        training = op.short == "cudnn_batch_norm_backward" or op.args[7 if op.is_backward else 5]
        return *data.shape[:2], prod(data.shape[2:]), int(training), shapes.layout(data)

    covers = "native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward"
    return Family("batch_norm", "batch in_channels inner training layout".split(), covers.split(), read, build,
                  defaults={"training": 1, "layout": "contiguous"}, texts=LAYOUTS)


def by_rows(name: str, covers: str, kinds: dict[str, Callable]) -> Family:
    """Build a family that works along the last dimension of (rows, columns): layer norm, softmax."""
    normalises = name == "layer_norm"

    def build(p: Params, dtype: str):
        row = dense((p["columns"],), dtype)
        return kinds[p["kind"]], [(dense((p["rows"], p["columns"]), dtype), True), *[(row, True)] * 2 * normalises]

    def read(op: Op) -> tuple:
        backward = op.is_backward
        data = op.args[1 if normalises and backward else 0]
        columns = prod(op.args[2 if backward else 1]) if normalises else \
            data.shape[op.args[2 if op.short.endswith("data") else 1]]
        kind = max((kind for kind in kinds if kind in op.short), key=len)
        return kind, data.elements // columns, columns

    return Family(name, ("kind", "rows", "columns"), covers.split(), read, build, defaults={"kind": next(iter(kinds))},
                  texts={"kind": tuple(kinds)})


ACTIVATIONS = "relu gelu silu hardswish hardsigmoid hardtanh sigmoid tanh leaky_relu elu mish softplus".split()


def activation() -> Family:
    """Return the family of activation functions."""
    def build(p: Params, dtype: str):
        function = getattr(torch.ops.aten, f"{p['kind']}_") if p["inplace"] else getattr(F, p["kind"])
        return function, [(dense((p["elements"],), dtype), not p["inplace"])]

    def read(op: Op) -> tuple:
        kind = op.short.removesuffix("_backward").removesuffix("_")
        return "relu" if kind == "threshold" else kind, op.tensors[0].elements, int(op.short.endswith("_"))

    def check(p: Params) -> str:
        here = not p["inplace"] or hasattr(torch.ops.aten, f"{p['kind']}_")
        return "" if here else f"kind {p['kind']} has no form that writes over its input"

    covers = [f"{kind}{suffix}" for kind in (*ACTIVATIONS, "threshold") for suffix in ("", "_", "_backward")]
    return Family("activation", ("kind", "elements", "inplace"), covers, read, build, check, {"inplace": 0},
                  {"kind": tuple(ACTIVATIONS)})


ELEMENTWISE = """add mul div sub sqrt exp addcmul addcdiv lerp neg abs maximum minimum clamp clamp_min clamp_max eq ne gt lt ge
    le where masked_fill rsqrt pow log logical_not rsub reciprocal square erf bitwise_not sign sin cos tan log1p log2 log10
    expm1 exp2 floor ceil round trunc remainder fmod floor_divide logical_and logical_or logical_xor bitwise_and
    bitwise_or isnan isinf nan_to_num atan2 sinh cosh""".split()
_BINARY, _UNARY = ("add", "mul", "sub", "div"), ("sqrt", "exp", "neg")


def elementwise() -> Family:
    """Return the family of element-wise arithmetic, with broadcasting."""
    def build(p: Params, dtype: str):
        full, function = dense((p["outer"], p["inner"]), dtype), getattr(torch.Tensor, p["kind"] + "_" * p["inplace"])
        second = {"channel": dense((p["outer"], 1), dtype), "row": dense((1, p["inner"]), dtype), "none": full}
        given = [full] if p["kind"] in _UNARY or p["broadcast"] == "scalar" else [full, second[p["broadcast"]]]
        constant = (2.0,) if p["kind"] in _BINARY and p["broadcast"] == "scalar" else ()
        return lambda *tensors: function(*tensors, *constant), [(spec, not p["inplace"]) for spec in given]

    def read(op: Op) -> tuple:
        return op.short.rstrip("_"), *shapes.broadcast(op), int(op.short.endswith("_"))

    return Family("elementwise", "kind outer inner broadcast inplace".split(),
                  [f"{kind}{suffix}" for kind in ELEMENTWISE for suffix in ("", "_")], read, build,
                  defaults={"inplace": 0, "broadcast": "none", "outer": 1},
                  texts={"kind": (*_BINARY, *_UNARY), "broadcast": ("none", "scalar", "channel", "row")})


def reduction() -> Family:
    """Return the family of reductions along one dimension."""
    def build(p: Params, dtype: str):
        function = getattr(torch, p["kind"])
        return lambda x: function(x, 1), [(dense((p["outer"], p["columns"], p["inner"]), dtype), True)]

    return Family("reduction", "kind outer columns inner".split(),
                  "sum mean linalg_vector_norm amax amin max var std prod argmax any all cumsum".split(), shapes.reduction,
                  build, defaults={"inner": 1}, texts={"kind": ("sum", "mean")})


def cat() -> Family:
    """Return the family of concatenations."""
    def build(p: Params, dtype: str):
        part = dense((p["outer"], p["inner"] // p["pieces"]), dtype)
        return lambda *parts: torch.cat(parts, 1), [(part, True)] * p["pieces"]

    def read(op: Op) -> tuple:
        out = op.outputs[0]
        outer = prod(out.shape[:op.args[1] if len(op.args) > 1 else 0])
        return len(op.args[0]), outer, out.elements // max(1, outer)

    return Family("cat", ("pieces", "outer", "inner"), ("cat", "stack"), read, build,
                  lambda p: f"pieces {p['pieces']} do not divide inner {p['inner']}" if p["inner"] % p["pieces"] else "")


def copy() -> Family:
    """Return the family of copies that may change the layout."""
    def build(p: Params, dtype: str):
        spec = matrix((p["outer"], p["inner"]), dtype, p["layout"] == "transposed")
        return lambda x: x.clone(memory_format=torch.contiguous_format), [(spec, False)]

    def read(op: Op) -> tuple:
        out = op.outputs[0]
        source = op.tensors[1] if op.short == "copy_" and len(op.tensors) > 1 else op.tensors[0]
        run = shapes.run(source, out)
        inner = run if 1 < run < out.elements else out.shape[-1] if out.shape else 1
        return op.short, out.elements // max(1, inner), inner, "contiguous" if run > 1 or out.elements <= 1 else "transposed"

    return Family("copy", "kind outer inner layout".split(), counts.COPIES - {"cat", "stack"}, read, build,
                  defaults={"kind": "clone", "layout": "contiguous"},
                  texts={"kind": ("clone",), "layout": ("contiguous", "transposed")})


def elements_only(name: str, covers: Iterable[str]) -> Family:
    """Build a family that is covered by its number of elements alone."""
    return Family(name, ("kind", "elements"), covers,
                  lambda op: (op.short, max((spec.elements for spec in op.outputs or op.tensors), default=0)))
