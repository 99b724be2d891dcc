"""What kind of work an operator is to a GPU, the GEMM that it amounts to, and what it does one by one."""

from collections.abc import Sequence
from math import prod

from lib.work.graph import counts, recurrent
from lib.work.graph.gemm import matrices
from lib.work.graph.ops import Op, TensorSpec

COMPUTING = ("conv_1x1", "conv", "conv_grouped", "conv_depthwise", "stem", "linear", "bmm",
             "attention", "recurrent")
MOVING = tuple("batch_norm layer_norm group_norm softmax relu activation elementwise copy index cat pool resample reduction "
               "cast other".split())
FUSED = ("fused_norm", "fused_reduction", "fused_index", "fused")
KERNEL_KINDS = (*COMPUTING, *MOVING, *FUSED, "update")
ALWAYS = (*COMPUTING, "pool", "resample", "other")  # kernels of their own, compiled or not
FUSING = frozenset(MOVING) - frozenset(ALWAYS)  # what a compiler makes one kernel of, neighbour by neighbour
GEMM = ("gemms", "m", "n", "k", "width_in", "width_out", "groups", "window", "stride", "side",
        "one_d", "three_d", "transposed", "dilated")
_GATES = {"lstm": 4, "gru": 3}
REDUCED = ("reductions", "reduced", "inner")  # independent reductions of a kernel, elements of each, over an inner dimension

_STEM = 4  # input channels at most
_NARROW = 2  # channels a group at most, and a convolution is depthwise
_PICTURE = 4  # dimensions: batch, channels, height, width
_LINE, _VOLUME = 3, 5  # without height; and with depth
_NAMES = {
    "linear": "mm addmm", "bmm": "bmm baddbmm", "relu": "relu hardtanh clamp clamp_min leaky_relu threshold",
    "activation": "gelu silu sigmoid hardswish hardsigmoid tanh elu mish softplus exp erf",
    "copy": "clone copy_ _to_copy contiguous", "cat": "cat stack",
    "index": "upsample_nearest1d upsample_nearest2d _upsample_nearest_exact2d roll constant_pad_nd index index_select gather "
             "index_put _index_put_impl flip repeat slice_scatter pixel_shuffle reflection_pad2d embedding "
             "im2col col2im slice_backward",
    "reduction": "mean sum amax amin max min var std var_mean linalg_vector_norm topk cumsum argmax sort"}
_KIND = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_PARTS = {"attention": "attention", "batch_norm": "batch_norm", "layer_norm": "layer_norm", "rms_norm": "layer_norm",
          "group_norm": "group_norm", "softmax": "softmax", "pool": "pool", "upsample": "resample", "grid_sampl": "resample"}
CONVOLVING = COMPUTING[:5]
# along one dimension, the first number among their arguments
_ALONG = frozenset(("cumsum", "_softmax", "_log_softmax", "logsumexp", "sort", "topk", "argmax"))
LAYOUT_KEPT = frozenset("batch_norm relu activation elementwise cat pool resample cast".split())  # of what they read first
# Kernels of resampling in which a thread a pixel goes through all images and channels: torch's ``*_out_frame`` of these
# (aten/src/ATen/native/cuda/UpSample*.cu). Of them only bilinear2d has another one, for what lies in channels_last.
_SERIAL = frozenset("upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa "
                    "_upsample_bicubic2d_aa".split())
_HAS_NHWC = "upsample_bilinear2d"


def kind_of(op: Op) -> str:
    """Return the kind (of KERNEL_KINDS) of a captured operator that is no view."""
    name = op.short
    if name == "convolution":
        data, weight, groups = op.args[0], op.args[1], op.args[8]
        if groups > 1:
            return "conv_depthwise" if groups == data.shape[1] and weight.shape[1] <= _NARROW else "conv_grouped"
        return "stem" if data.shape[1] <= _STEM else "conv_1x1" if prod(weight.shape[2:]) == 1 else "conv"
    if name in recurrent.CUDNN:
        return "recurrent"
    bare = name.rstrip("_")
    kind = _KIND.get(name) or _KIND.get(bare) or next((of_part for part, of_part in _PARTS.items() if part in name), "")
    return kind or ("elementwise" if bare in counts.PER_OUTPUT else "other")


def gemm(op: Op) -> dict[str, float]:
    """Return the GEMM that an operator computes, ``gemms`` of (m, k) by (k, n), and what decides on its kernel; or nothing."""
    name = op.short
    if name == "convolution":
        data, weight, out, groups = op.args[0], op.args[1], op.outputs[0], op.args[8]
        window, pixels = prod(weight.shape[2:]), prod(out.shape[2:])
        sizes = (groups, out.shape[0] * pixels, out.shape[1] / groups, data.shape[1] / groups * window, data.shape[1],
                 out.shape[1], groups, window, max(op.args[3]), pixels ** 0.5, len(out.shape) == _LINE,
                 len(out.shape) == _VOLUME, bool(op.args[6]), max(op.args[5]) > 1)
    elif name in ("mm", "addmm", "bmm", "baddbmm"):
        left, right = (spec.shape for spec in matrices(op))
        sizes = (prod(left[:-2]), left[-2], right[-1], left[-1], left[-1], right[-1])
    elif "attention" in name and name != "_native_multi_head_attention":
        query, key, value = (spec.shape for spec in op.args[:3])
        mask = isinstance(op.args[3], TensorSpec)  # takes another kernel, as a stride does
        sizes = (query[0] * query[1], query[2], key[2], query[3], query[3], value[3], query[1], 0, 1 + mask)
    elif name in recurrent.CUDNN:  # of one step
        layer = recurrent.sizes(op)
        gates = _GATES.get(layer.mode, 1) * layer.hidden_size
        sizes = (1, layer.batch, gates, layer.hidden_size, layer.input_size, layer.hidden_size)
    else:
        sizes = ()
    return dict(zip(GEMM, sizes, strict=False))


def reduction(op: Op) -> dict[str, float]:
    """Return how many independent reductions a kernel makes, and of how many elements each; empty for other kernels.

    One block of threads makes each of them, so that few reductions leave a GPU idle.
    """
    kind, data, inner = kind_of(op), op.tensors[0] if op.tensors else None, False
    if kind in ("layer_norm", "group_norm") and len(op.outputs) > 1:
        count = op.outputs[1].elements
    elif kind == "batch_norm" and len(op.args) > 5 and op.args[5] is True:  # by the statistics of the batch
        count = data.shape[1]
    elif op.short.removesuffix("_backward_data") in _ALONG:
        axis = next((arg for arg in op.args if type(arg) is int), -1)
        count = data.elements // max(1, data.shape[axis]) if data.shape else 1
        inner = bool(data.shape) and axis % len(data.shape) != len(data.shape) - 1
    elif kind == "reduction" and op.outputs:
        count, kept = op.outputs[0].elements, op.outputs[0].shape
        inner = count > 1 and bool(kept) and kept[-1] == data.shape[-1]
    else:
        return {}
    return dict(zip(REDUCED, (count, data.elements / max(1, count), inner), strict=True))


def serial(op: Op, follows: bool) -> dict[str, float]:
    """Return the number of dependent reads, for NCHW and for channels_last; empty if the operator has none.

    ``follows``: what it reads is in channels_last where the network is. Pictures may lie so whatever the network does, such as
    tokens that became pictures again.
    """
    if op.short not in _SERIAL:
        return {}
    planes, data, has_other = prod(op.outputs[0].shape[:2]), op.tensors[0], op.short == _HAS_NHWC
    last = has_other and len(data.shape) == _PICTURE and data.shape[1] != 1 and is_dense(data, (0, 2, 3, 1))
    return {"serial": 0 if last else planes, "serial_nhwc": 0 if last or (has_other and follows) else planes}


def is_dense(spec: TensorSpec, axes: Sequence[int] = ()) -> bool:
    """Return whether a tensor lies in memory as its ``axes`` (default: all, in order) are ordered, without gaps."""
    step = 1
    for axis in reversed(axes or range(len(spec.shape))):
        if spec.shape[axis] > 1 and spec.stride[axis] not in (0, step):
            return False
        step *= spec.shape[axis]
    return True
