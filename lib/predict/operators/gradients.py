"""The gradients of a convolution as forward kernels of their own shapes, which answer where no backward kernel was measured.

The input's gradient is a convolution of the output's gradient with as many taps, channels exchanged; the weights' gradient is a
product that sums over all samples and pixels, or, of groups too narrow for a product, as much work as the convolution itself
(Chetlur et al., cuDNN: Efficient Primitives for Deep Learning, arXiv:1410.0759, section 3).
"""

from collections.abc import Iterator

import numpy as np

from lib.predict.operators import features_gpu
from lib.predict.operators.chip import Chip
from lib.predict.operators.features import AXES, Columns, Row, extents


def as_forward_kernels(row: Row, chip: Chip) -> Iterator[tuple[str, np.ndarray, Row]]:
    """For each gradient, yield its name, the indices of the convolutions that need it and the forward kernels in its place.

    FLOPs are shared evenly between both gradients, bytes are those that each reads and writes.
    """
    narrow = features_gpu.groups(row, chip) == "window"
    for name, chosen, kernel in (("narrow input", narrow & (row.input_grad > 0), _of_input),
                                 ("input", ~narrow & (row.input_grad > 0), _of_input),
                                 ("narrow weights", narrow, lambda *_: {}), ("weights", ~narrow, _of_weights)):
        if chosen.any():
            part = row.at(chosen)
            out, taps = extents(part), part.kernel_d * part.kernel_h * part.kernel_w
            pixels = out[0] * out[1] * out[2]
            inputs = part.batch * part.in_channels * part.depth * part.height * part.width
            weights = part.out_channels * part.in_channels / part.groups * taps
            moved = inputs + part.batch * part.out_channels * pixels + weights
            yield name, np.flatnonzero(chosen), Row({
                **part, **kernel(part, out, taps), "flops": part.flops / (1 + part.input_grad), "bytes": chip.item * moved})


def features(row: Row, log_forward: np.ndarray) -> np.ndarray:
    """Return what the time of a gradient over that of its kernel depends on (n, 3): see ``boards.Boards``.

    ``log_forward``: the log of the time of the convolution itself over that of the kernel.
    """
    return np.column_stack([np.ones(len(log_forward)), log_forward, row.stride_h > 1])


def _of_input(row: Row, out: list, taps) -> Columns:
    steps = {f"stride_{axis[0]}": np.ones_like(row.batch) for axis in AXES}
    same = {f"padding_{axis[0]}": row[f"dilation_{axis[0]}"] * (row[f"kernel_{axis[0]}"] - 1) / 2 for axis in AXES}
    return dict(zip(AXES, out, strict=True), in_channels=row.out_channels, out_channels=row.in_channels, **steps, **same)


def _of_weights(row: Row, out: list, taps) -> Columns:
    op = np.where(row.groups > 1, "bmm", "matmul").astype(object)
    return {"op": op, "layout": np.full(len(op), "nt", object), "batch": row.groups, "gemm_m": row.out_channels / row.groups,
            "gemm_n": row.in_channels / row.groups * taps, "gemm_k": row.batch * out[0] * out[1] * out[2]}
