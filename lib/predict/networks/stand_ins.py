"""Operators that no family covers: as what the model predicts them, out of its training range."""

from typing import Any

from lib.work.graph import counts, recurrent, shapes
from lib.work.graph.ops import Op

StandIn = tuple[str, dict[str, Any]]  # family and parameters
_COPIED = 8  # bytes that a copy moves for one element
_DIMS = (1, 2, 3)  # of convolutions
_MODELLED = 2  # dimensions at least of those that are swept


def stand_in(op: Op) -> StandIn:
    """Return the family and the parameters as which an operator without a family is predicted.

    Convolutions of one dimension and transposed ones are convolutions, a recurrent layer is a GEMM per
    step. Any other operator takes the time of as many additions, or of a copy of as many bytes, and at
    least that of its FLOPs at the peak rate.
    """
    short = op.short.removesuffix("_backward")
    described = None
    if short == "convolution":
        described = _convolution(op)
    elif short in counts.RECURRENT:
        described = _recurrent(op)
    if described:
        return described
    if least_flops(op):
        return "elementwise", {"kind": "add", "outer": 1, "inner": max(1, _elements(op)),
                               "broadcast": "none", "inplace": 0}
    elements = max(1, counts.compulsory_bytes(op) // _COPIED)
    return "copy", {"kind": "clone", "outer": 1, "inner": elements, "layout": "contiguous"}


def least_flops(op: Op) -> float:
    """Return the FLOPs of an operator; if unknown, one for each element of its largest tensor."""
    return counts.flops(op) if counts.is_counted(op) else float(_elements(op))


def _elements(op: Op) -> int:
    return max((spec.elements for spec in (*op.tensors, *op.outputs)), default=0)


def _convolution(op: Op) -> StandIn | None:
    """Return a convolution of two or three dimensions; a transposed one leads from its output to its input."""
    given = shapes.convolution(op)
    dims = len(given.weight.shape) - 2
    if dims not in _DIMS:
        return None
    source, result = given.data, given.output
    if given.transposed:
        source, result = result, source
    added = max(0, _MODELLED - dims)
    axes = shapes.AXES[len(shapes.AXES) - dims - added:]
    sizes = dict(zip(axes, (*[1] * added, *source.shape[2:]), strict=True))
    window = zip(("kernel", "stride", "padding", "dilation"), (given.weight.shape[2:], *given.steps),
                 strict=True)
    for name, values in window:
        filled = (*[int(name != "padding")] * added, *values)
        sizes |= {f"{name}_{axis[0]}": value for axis, value in zip(axes, filled, strict=True)}
    return f"conv{dims + added}d", {
        "batch": source.shape[0], "in_channels": source.shape[1], "out_channels": result.shape[1],
        **sizes, "groups": given.groups, "bias": int(given.wanted[2]),
        "layout": shapes.layout(given.data), "input_grad": int(given.wanted[0])}


def _recurrent(op: Op) -> StandIn | None:
    """Return a recurrent layer as a product for each step: of inputs and state with all weights."""
    steps, samples = op.tensors[0].shape[:2]
    if op.short in recurrent.CUDNN:
        size = recurrent.sizes(op)
        steps, samples = size.steps, -(-size.tokens // size.steps)
    weights = counts.recurrent_weights(op)
    hidden = weights[0].shape[0] if weights else 0
    if not hidden:
        return None
    columns = sum(spec.elements for spec in weights) // hidden
    return "bmm", {"batch": max(1, steps), "gemm_m": max(1, samples), "gemm_k": columns,
                   "gemm_n": hidden, "layout": "nn"}


def words(op: Op) -> str:
    """Return an operator with the family as which it is predicted."""
    return f"{op.short} (as {stand_in(op)[0]})"
