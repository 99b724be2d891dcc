"""Small facts of tensor shapes that operator families share: layouts, windows, broadcasts, reductions."""

from math import prod
from typing import Any, NamedTuple

from lib.work.graph.ops import Op, Shape, TensorSpec

AXES = ("depth", "height", "width")


def _contiguous(shape: Shape) -> Shape:
    return tuple(prod(shape[index + 1:]) for index in range(len(shape)))


def dense(shape: Shape, dtype: str, layout: str = "contiguous") -> TensorSpec:
    """Return a tensor without gaps, contiguous or channels_last."""
    if layout == "contiguous" or len(shape) < 4:
        return TensorSpec(tuple(shape), _contiguous(shape), dtype)
    moved = (shape[0], *shape[2:], shape[1])
    stride = _contiguous(moved)
    return TensorSpec(tuple(shape), (stride[0], stride[-1], *stride[1:-1]), dtype)


def matrix(shape: Shape, dtype: str, transposed: bool) -> TensorSpec:
    """Return a (batch of) matrix, stored by rows or, transposed, by columns."""
    if not transposed:
        return dense(shape, dtype)
    stride = _contiguous((*shape[:-2], shape[-1], shape[-2]))
    return TensorSpec(tuple(shape), (*stride[:-2], stride[-1], stride[-2]), dtype)


def order(spec: TensorSpec) -> str:
    """Return n for a matrix stored by rows, t for one stored by columns."""
    rows, columns = spec.shape[-2:]
    step_row, step_column = spec.stride[-2:]
    by_columns = step_row == 1 and step_column >= max(1, rows) and not (step_column == 1 and step_row >= columns)
    return "t" if by_columns and not (columns == 1 and rows > 1 and step_column == 1) else "n"


def is_dense(spec: TensorSpec) -> bool:
    """Return whether a tensor has no gaps, in whatever order of its dimensions."""
    steps = sorted((step, size) for step, size in zip(spec.stride, spec.shape, strict=True) if size > 1)
    expected = 1
    for step, size in steps:
        if step != expected:
            return False
        expected *= size
    return True


def same_order(source: TensorSpec, out: TensorSpec) -> bool:
    """Return whether two tensors lie in memory in the same order of their dimensions."""
    if source.shape == out.shape:
        return all(size == 1 or a == b for size, a, b in zip(source.shape, source.stride, out.stride, strict=True))
    return layout(source) == layout(out) or (is_dense(source) and is_dense(out))


def run(source: TensorSpec, out: TensorSpec) -> int:
    """Return how many elements lie side by side in both tensors; 1 for a transposition of the innermost dimension."""
    if source.shape != out.shape:
        return out.elements if same_order(source, out) else 1
    together = 1
    for size, a, b in zip(reversed(source.shape), reversed(source.stride), reversed(out.stride), strict=True):
        if size > 1 and not a == b == together:
            break
        together *= size
    return together


def layout(spec: TensorSpec) -> str:
    """Return contiguous, channels_last, or other; a tensor that is both counts as contiguous."""
    for name in ("contiguous", "channels_last"):
        want = dense(spec.shape, spec.dtype, name).stride
        if all(size == 1 or have == wanted for size, have, wanted in zip(spec.shape, spec.stride, want, strict=True)):
            return name
    return "other"


def wide(values: Shape, dims: int) -> Shape:
    """Return one value an axis, where torch may be given one for all."""
    return tuple(values) * dims if len(values) == 1 else tuple(values)


class Convolution(NamedTuple):
    """What a convolution or its backward is given: ``steps`` are stride, padding and dilation, a value an axis.

    ``wanted`` says of a backward pass which gradients are computed, and of a forward pass whether there is a bias: the last.
    """

    data: TensorSpec
    weight: TensorSpec
    output: TensorSpec
    steps: tuple[Shape, ...]
    transposed: bool
    groups: int
    wanted: tuple[bool, bool, bool]


def convolution(op: Op) -> Convolution:
    """Return what a captured convolution or its backward is given."""
    if op.short == "convolution_backward":
        output, data, weight, _, *steps, transposed, _, groups, wanted = op.args
    else:
        data, weight, bias, *steps, transposed, _, groups = op.args
        output, wanted = op.outputs[0], (True, True, bias is not None)
    dims = len(weight.shape) - 2
    return Convolution(data, weight, output, tuple(wide(step, dims) for step in steps), transposed, groups, wanted)


def window_problem(p: dict[str, Any], axes: tuple[str, ...]) -> str:
    """Return why a sliding window does not fit into its input, or nothing."""
    for axis in axes:
        reach = p[f"dilation_{axis[0]}"] * (p[f"kernel_{axis[0]}"] - 1) + 1
        room = p[axis] + 2 * p[f"padding_{axis[0]}"]
        if reach > room:
            return f"the kernel reaches over {reach} of {room} padded positions along {axis}"
    return ""


def broadcast(op: Op) -> tuple[int, int, str]:
    """Return how an element-wise operator's inputs meet: outer x inner elements, and which of them is repeated.

    none: all of one shape; scalar: a number; channel: one value for each outer index; row: one for each inner index.
    """
    out = op.outputs[0]
    small = [spec for spec in op.tensors if spec.bytes < out.elements * spec.itemsize]
    if not small:
        without_scalar = len(op.tensors) > 1 or not any(isinstance(value, int | float) for value in op.args)
        return 1, out.elements, "none" if without_scalar else "scalar"
    spec = min(small, key=lambda item: item.elements)
    missing = len(out.shape) - len(spec.shape)
    sides = zip(out.shape, (1,) * missing + spec.shape, (0,) * missing + spec.stride, strict=True)
    marks = "".join("" if size == 1 else "r" if have == 1 or step == 0 else "v" for size, have, step in sides)
    sizes = [size for size in out.shape if size > 1]
    if spec.elements <= 1 or "v" not in marks:
        return 1, out.elements, "scalar"
    if "r" not in marks[:marks.rindex("v")]:
        outer = prod(sizes[:marks.rindex("v") + 1])
        return outer, out.elements // outer, "channel"
    if "r" not in marks[marks.index("v"):]:
        inner = prod(sizes[marks.index("v"):])
        return out.elements // inner, inner, "row"
    return 1, out.elements, "other"


def reduction(op: Op) -> tuple[str, int, int, int]:
    """Return a reduction as its kind and outer x columns x inner, columns being what is reduced."""
    data = op.tensors[0]
    dims = op.args[2 if op.short == "linalg_vector_norm" else 1] if len(op.args) > 1 else None
    dims = (dims,) if isinstance(dims, int) else dims
    dims = [dim % len(data.shape) for dim in dims] if dims else range(len(data.shape))
    columns, outer = prod(data.shape[dim] for dim in dims), prod(data.shape[:min(dims, default=0)])
    return op.short, outer, columns, data.elements // max(1, outer * columns)
