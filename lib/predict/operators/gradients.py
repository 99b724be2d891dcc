"""The gradients of a convolution as forward kernels of their own shapes, which answer where no backward kernel was measured.

The input's gradient is a convolution of the output's gradient with as many taps, channels exchanged; the weights' gradient is a
product that sums over all samples and pixels, or, of groups too narrow for a product, as much work as the convolution itself
(Chetlur et al., cuDNN: Efficient Primitives for Deep Learning, arXiv:1410.0759, section 3).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lib.predict.operators import features_gpu
from lib.predict.operators.chip import Chip, extents
from lib.predict.operators.features import Row

_AXES = ("depth", "height", "width")


def of(row: Row, chip: Chip) -> Iterator[tuple[np.ndarray, Row]]:
    """Yield places in columns ``row`` of backward convolutions and, for these, columns of a forward kernel each waits for.

    FLOPs are shared evenly between both gradients, bytes are those that each reads and writes.
    """
    with_input = np.flatnonzero(row["input_grad"] > 0)
    if len(with_input):
        yield with_input, _of_input(_at(row, with_input), chip)
    narrow = features_gpu.groups(row, chip) == "window"
    for places, weights in ((np.flatnonzero(narrow), _of_few_weights), (np.flatnonzero(~narrow), _of_weights)):
        if len(places):
            yield places, weights(_at(row, places), chip)


def _at(row: Row, places: np.ndarray) -> Row:
    return {name: values[places] for name, values in row.items()}


def _sizes(row: Row) -> tuple[Any, Any, Any, Any]:
    """Return the values of the input, of the output and of the weights, and the taps of a window."""
    pixels, outputs, taps = 1, 1, 1
    for axis, out in zip(_AXES, extents(row), strict=True):
        pixels, outputs, taps = pixels * row[axis], outputs * out, taps * row[f"kernel_{axis[0]}"]
    return (row["batch"] * row["in_channels"] * pixels, row["batch"] * row["out_channels"] * outputs,
            row["out_channels"] * row["in_channels"] / row["groups"] * taps, taps)


def _share(row: Row) -> Any:
    return row["flops"] / (1 + row["input_grad"])


def _of_input(row: Row, chip: Chip) -> Row:
    inputs, outputs, weights, _ = _sizes(row)
    axes = dict(zip(_AXES, extents(row), strict=True))
    steps = {f"stride_{axis[0]}": np.ones_like(row["batch"]) for axis in _AXES}
    same = {f"padding_{axis[0]}": row[f"dilation_{axis[0]}"] * (row[f"kernel_{axis[0]}"] - 1) / 2 for axis in _AXES}
    return {**row, **axes, **steps, **same, "in_channels": row["out_channels"], "out_channels": row["in_channels"],
            "flops": _share(row), "bytes": chip.item * (outputs + weights + inputs)}


def _of_few_weights(row: Row, chip: Chip) -> Row:
    inputs, outputs, weights, _ = _sizes(row)
    return {**row, "flops": _share(row), "bytes": chip.item * (outputs + inputs + weights)}


def _of_weights(row: Row, chip: Chip) -> Row:
    inputs, outputs, weights, taps = _sizes(row)
    many = row["groups"] > 1
    return {**row, "op": np.where(many, "bmm", "matmul").astype(object), "layout": np.full(len(many), "nt", object),
            "batch": row["groups"], "gemm_m": row["out_channels"] / row["groups"],
            "gemm_n": row["in_channels"] / row["groups"] * taps, "gemm_k": outputs / row["out_channels"],
            "flops": _share(row), "bytes": chip.item * (outputs + inputs + weights)}
