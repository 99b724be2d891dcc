"""Operators that no family covers, each replaced by a similar operator whose model answers, out of its training range."""

from math import prod
from typing import Any

from lib.work.graph import counts, recurrent, shapes
from lib.work.graph.ops import Op

StandIn = tuple[str, dict[str, Any]]  # family and parameters
_COPIED = 8  # bytes that a copy moves for one element
_DIMS = (1, 2, 3)  # of convolutions
_MODELLED = 2  # dimensions at least of those that are swept


def stand_in(op: Op) -> StandIn:
    """Return the family and the parameters that stand in for an operator without a family.

    It takes a convolution of one dimension as one of a picture of one row, a transposed convolution as the one from its output
    to its input, group norm as layer norm of each group, a recurrent layer as one GEMM per step, grouped GEMMs as a batch. Any
    other operator counts as as many additions, or as a copy of as many bytes if it only moves memory.
    """
    read = _READERS.get(op.short.removesuffix("_backward"))
    if read and (described := read(op)):
        return described
    if least_flops(op):
        return "elementwise", {"kind": "add", "outer": 1, "inner": max(1, _elements(op)), "broadcast": "none", "inplace": 0}
    elements = max(1, counts.compulsory_bytes(op) // _COPIED)
    return "copy", {"kind": "clone", "outer": 1, "inner": elements, "layout": "contiguous"}


def least_flops(op: Op) -> float:
    """Return the FLOPs of an operator; where they are not known, one for each element of its largest tensor."""
    return counts.flops(op) if counts.is_counted(op) else float(_elements(op))


def _elements(op: Op) -> int:
    return max((spec.elements for spec in (*op.tensors, *op.outputs)), default=0)


def _convolution(op: Op) -> StandIn | None:
    """Return a convolution as one of two or three dimensions; a transposed one is that from its output to its input."""
    given = shapes.convolution(op)
    dims = len(given.weight.shape) - 2
    if dims not in _DIMS:
        return None
    source, result = (given.output, given.data) if given.transposed else (given.data, given.output)
    added = max(0, _MODELLED - dims)
    axes = shapes.AXES[len(shapes.AXES) - dims - added:]
    window = zip(("kernel", "stride", "padding", "dilation"), (given.weight.shape[2:], *given.steps), strict=True)
    sizes = {f"{name}_{axis[0]}": value for name, values in window
             for axis, value in zip(axes, (*[int(name != "padding")] * added, *values), strict=True)}
    return f"conv{dims + added}d", {
        "batch": source.shape[0], "in_channels": source.shape[1], "out_channels": result.shape[1],
        **dict(zip(axes, (*[1] * added, *source.shape[2:]), strict=True)), **sizes, "groups": given.groups,
        "bias": int(given.wanted[2]), "layout": shapes.layout(given.data), "input_grad": int(given.wanted[0])}


def _group_norm(op: Op) -> StandIn:
    first = 5 if op.short.endswith("backward") else 3  # where samples, channels, elements of a channel and groups begin
    samples, channels, inner, groups = op.args[first:first + 4]
    return "layer_norm", {"kind": "layer_norm", "rows": samples * groups, "columns": channels // groups * inner}


def _products(count: int, rows: int, columns: int, results: int) -> StandIn:
    return "bmm", {"batch": max(1, count), "gemm_m": max(1, rows), "gemm_k": columns, "gemm_n": results, "layout": "nn"}


def _recurrent(op: Op) -> StandIn | None:
    """Return a recurrent layer as a product for each step: of inputs and state with all weights."""
    steps, samples = op.tensors[0].shape[:2]
    if op.short in recurrent.CUDNN:
        size = recurrent.sizes(op)
        steps, samples = size.steps, -(-size.tokens // size.steps)
    weights = counts.recurrent_weights(op)
    hidden = weights[0].shape[0] if weights else 0
    return _products(steps, samples, sum(spec.elements for spec in weights) // hidden, hidden) if hidden else None


def _grouped(op: Op) -> StandIn:
    """Return products of groups that share a tensor as a batch of equal ones."""
    left, right = op.args[:2]
    groups = next((spec.shape[0] for spec in (right, left, *op.outputs) if len(spec.shape) > _MODELLED), 1)
    rows, columns = left.shape[-2], left.shape[-1]
    shared = len(left.shape) <= _MODELLED < len(right.shape)  # rows are of one group or another
    return _products(groups, rows // groups if shared else rows, columns, right.shape[-1])


def _vector(op: Op) -> StandIn:
    matrix = max(op.tensors, key=lambda spec: (len(spec.shape), spec.elements))
    rows, columns = (1, *matrix.shape)[-2:]
    return "matmul", {"gemm_m": max(1, rows), "gemm_k": max(1, columns), "gemm_n": 1, "layout": "nn"}


def _gathered(op: Op) -> StandIn | None:
    """Return a sum of rows that are read by index as as many additions."""
    if op.is_backward:
        return None
    additions = int(counts.matrix_flops(op) / 2 or counts.flops(op))
    return "elementwise", {"kind": "add", "outer": 1, "inner": max(1, additions), "broadcast": "none", "inplace": 0}


def _weighted(op: Op) -> StandIn:
    """Return a bilinear layer or a deformable convolution as the product of its largest tensor, or weight, with all rows."""
    weight = max(op.tensors, key=lambda spec: spec.elements) if op.short == "_trilinear" else op.args[1 + op.is_backward]
    columns = prod(weight.shape[1:])
    return _products(1, counts.matrix_flops(op) // (2 * max(1, weight.elements)), columns, weight.shape[0])


def _joined(op: Op) -> StandIn:
    """Return a sum of a batch of products."""
    left, right = op.args[1:3]
    return _products(prod(left.shape[:-2]), left.shape[-2], left.shape[-1], right.shape[-1])


_READERS = {
    "convolution": _convolution, "native_group_norm": _group_norm,
    **dict.fromkeys(counts.RECURRENT, _recurrent), **dict.fromkeys(counts.GROUPED, _grouped),
    **dict.fromkeys(counts.BAGS, _gathered),
    **dict.fromkeys(("_trilinear", "deform_conv2d", "_deform_conv2d"), _weighted),
    **dict.fromkeys(("mv", "addmv", "dot", "vdot"), _vector), "addbmm": _joined}


def words(op: Op) -> str:
    """Return an operator with what stands in for it."""
    return f"{op.short} (as {stand_in(op)[0]})"
