"""The families that memory usually bounds: normalisation, softmax, activations, arithmetic, reductions and copies."""

from collections.abc import Callable
from math import prod

import torch
from torch.nn import functional as F

from lib.errors import choices
from lib.work.graph import counts, shapes
from lib.work.graph.family import LAYOUTS, Family, Params, names_in
from lib.work.graph.ops import Op
from lib.work.graph.shapes import dense, matrix


def batch_norm() -> Family:
    """Return the family of batch normalisation."""
    def build(p: Params, dtype: str):
        data = dense((p["batch"], p["in_channels"], p["inner"], 1), dtype, p["layout"])
        channel = dense((p["in_channels"],), dtype)

        def call(x, w, b, mean, variance):
            return F.batch_norm(x, mean, variance, w, b, training=bool(p["training"]))
        return call, [(data, True), (channel, True), (channel, True), (channel, False), (channel, False)]

    def read(op: Op) -> Params | None:
        backward = op.short.endswith("backward")
        data = op.args[1 if op.short == "native_batch_norm_backward" else 0]
        return {"batch": data.shape[0], "in_channels": data.shape[1], "inner": prod(data.shape[2:]),
                "training": int(op.short == "cudnn_batch_norm_backward" or op.args[7 if backward else 5]),
                "layout": shapes.layout(data)}

    covers = names_in("native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward")
    return Family("batch_norm", ("batch", "in_channels", "inner", "training", "layout"), covers, read, build,
                  defaults=(("training", 1), ("layout", "contiguous")), texts=(LAYOUTS,))


def by_rows(name: str, covers: str, kinds: dict[str, Callable]) -> Family:
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

    return Family(name, ("kind", "rows", "columns"), names_in(covers), read, build, defaults=(("kind", next(iter(kinds))),),
                  texts=(("kind", tuple(kinds)),))


ACTIVATIONS: dict[str, Callable] = {
    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "mish": F.mish, "softplus": F.softplus}


def activation() -> Family:
    """Return the family of activation functions."""
    def build(p: Params, dtype: str):
        function = getattr(torch.ops.aten, f"{p['kind']}_") if p["inplace"] else ACTIVATIONS[p["kind"]]
        return function, [(dense((p["elements"],), dtype), not p["inplace"])]

    def read(op: Op) -> Params | None:
        kind = op.short.removesuffix("_backward").removesuffix("_")
        return {"kind": "relu" if kind == "threshold" else kind, "elements": op.tensors[0].elements,
                "inplace": int(op.short.endswith("_"))}

    def check(p: Params) -> str:
        here = not p["inplace"] or hasattr(torch.ops.aten, f"{p['kind']}_")
        return "" if here else f"kind {p['kind']} has no form that writes over its input"

    covers = " ".join(f"{kind} {kind}_ {kind}_backward" for kind in (*ACTIVATIONS, "threshold"))
    return Family("activation", ("kind", "elements", "inplace"), names_in(covers), read, build, check,
                  (("inplace", 0),), (("kind", tuple(ACTIVATIONS)),))


ELEMENTWISE = """add mul div sub sqrt exp addcmul addcdiv lerp neg abs maximum minimum clamp clamp_min clamp_max eq ne gt lt ge
    le where masked_fill rsqrt pow log logical_not rsub reciprocal square erf bitwise_not sign sin cos tan log1p log2 log10
    expm1 exp2 floor ceil round trunc remainder fmod floor_divide logical_and logical_or logical_xor bitwise_and
    bitwise_or isnan isinf nan_to_num atan2 sinh cosh""".split()
_BINARY = {"add": torch.add, "mul": torch.mul, "sub": torch.sub, "div": torch.div}
_UNARY = {"sqrt": torch.sqrt, "exp": torch.exp, "neg": torch.neg}


def elementwise() -> Family:
    """Return the family of element-wise arithmetic, with broadcasting."""
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
                  names_in(" ".join(f"{kind} {kind}_" for kind in ELEMENTWISE)), read, build, check,
                  (("inplace", 0), ("broadcast", "none"), ("outer", 1)))


def reduction() -> Family:
    """Return the family of reductions along one dimension."""
    def build(p: Params, dtype: str):
        function = {"sum": torch.sum, "mean": torch.mean}[p["kind"]]
        return lambda x: function(x, 1), [(dense((p["outer"], p["columns"], p["inner"]), dtype), True)]

    return Family("reduction", ("kind", "outer", "columns", "inner"),
                  names_in("sum mean linalg_vector_norm amax amin max var std prod argmax any all cumsum"), shapes.reduction,
                  build, lambda p: "" if p["kind"] in ("sum", "mean") else "kind must be sum or mean", (("inner", 1),))


def cat() -> Family:
    """Return the family of concatenations."""
    def build(p: Params, dtype: str):
        part = dense((p["outer"], p["inner"] // p["pieces"]), dtype)
        return lambda *parts: torch.cat(parts, 1), [(part, True)] * p["pieces"]

    def read(op: Op) -> Params | None:
        dim, out = (op.args[1] if len(op.args) > 1 else 0), op.outputs[0]
        outer = prod(out.shape[:dim])
        return {"pieces": len(op.args[0]), "outer": outer, "inner": out.elements // max(1, outer)}

    return Family("cat", ("pieces", "outer", "inner"), names_in("cat stack"), read, build,
                  lambda p: f"pieces {p['pieces']} do not divide inner {p['inner']}" if p["inner"] % p["pieces"] else "")


def copy() -> Family:
    """Return the family of copies that may change the layout."""
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
                  lambda p: "" if p["kind"] == "clone" else "kind must be clone", (("kind", "clone"), ("layout", "contiguous")),
                  (("layout", ("contiguous", "transposed")),))


def elements_only(name: str, covers: frozenset[str]) -> Family:
    """Build a family that is covered by its number of elements alone."""
    def read(op: Op) -> Params | None:
        specs = op.outputs or op.tensors
        return {"kind": op.short, "elements": max((spec.elements for spec in specs), default=0)}

    return Family(name, ("kind", "elements"), covers, read)
