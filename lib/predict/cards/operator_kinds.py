"""What kind of work an operator is to a GPU, the GEMM that it amounts to, and what it does one by one."""

from collections.abc import Sequence
from math import prod

from lib.work.graph import counts
from lib.work.graph.gemm import matrices
from lib.work.graph.ops import Op, TensorSpec

COMPUTING = tuple("conv_1x1 conv conv_grouped conv_depthwise stem linear bmm attention".split())
MOVING = tuple("batch_norm layer_norm group_norm softmax relu activation elementwise copy index cat pool resample reduction "
               "cast other".split())
FUSED = ("fused_norm", "fused_reduction", "fused_index", "fused")
KERNEL_KINDS = (*COMPUTING, *MOVING, *FUSED, "update")
ALWAYS = (*COMPUTING, "pool", "resample", "other")  # kernels of their own, compiled or not
FUSING = frozenset(MOVING) - frozenset(ALWAYS)  # what a compiler makes one kernel of, neighbour by neighbour
GEMM = tuple("gemms m n k width_in width_out groups window stride side".split())

_STEM = 4  # input channels at most
_NARROW = 2  # channels a group at most, and a convolution is depthwise
_PICTURE = 4  # dimensions: batch, channels, height, width
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
                 out.shape[1], groups, window, max(op.args[3]), pixels ** 0.5)
    elif name in ("mm", "addmm", "bmm", "baddbmm"):
        left, right = (spec.shape for spec in matrices(op))
        sizes = (prod(left[:-2]), left[-2], right[-1], left[-1], left[-1], right[-1])
    elif "attention" in name and name != "_native_multi_head_attention":
        query, key, value = (spec.shape for spec in op.args[:3])
        mask = isinstance(op.args[3], TensorSpec)  # takes another kernel, as a stride does
        sizes = (query[0] * query[1], query[2], key[2], query[3], query[3], value[3], query[1], 0, 1 + mask)
    else:
        sizes = ()
    return dict(zip(GEMM, sizes, strict=False))


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
