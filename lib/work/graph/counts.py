"""FLOPs and compulsory bytes of an ATen operator, from its shapes alone.

A multiply-add counts 2, every other arithmetic operation, comparison or transcendental function 1; a sort of n elements
has n log2 n comparisons. ``matrix_flops`` are those of convolutions, GEMMs and attention, which is what torch's
FlopCounterMode counts; a bias starts the accumulation and costs nothing. Compulsory bytes are what must move at least once:
each distinct element that is read, and each that is written.
"""

from collections.abc import Callable
from math import log2, prod

from lib.work.graph import shapes
from lib.work.graph.ops import Op, TensorSpec

VIEWS = frozenset("""view _unsafe_view t transpose permute expand slice select split split_with_sizes unsqueeze squeeze detach
    alias as_strided as_strided_ unbind unfold narrow diagonal chunk reshape _reshape_alias movedim unsafe_split view_as_real
    empty new_empty empty_like empty_strided new_empty_strided resize_ lift_fresh set_ swapaxes
    transpose_ t_ squeeze_ unsqueeze_ swapaxes_ detach_ view_as_complex real imag _neg_view _conj""".split())
FILLS = frozenset("fill_ zero_ zeros ones zeros_like ones_like new_zeros new_ones new_full full full_like scalar_tensor arange"
                  .split())
COPIES = frozenset("""clone copy_ _to_copy roll constant_pad_nd slice_backward select_backward repeat cat stack flip contiguous
    lift_fresh_copy slice_scatter index index_put index_put_ index_select embedding embedding_dense_backward gather
    _index_put_impl_ unfold_backward pixel_shuffle channel_shuffle""".split())
# copies beside those of the family: 0 FLOPs, other sizes in than out, or places by value
MOVES = frozenset("""upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d scatter scatter_ index_copy index_copy_ masked_scatter
    masked_scatter_ take tril tril_ triu triu_ index_fill index_fill_ masked_select diag_embed im2col reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d pixel_unshuffle
    select_scatter diagonal_scatter as_strided_scatter complex view_as_complex real imag _conj _conj_physical
    resolve_conj tril_indices triu_indices linspace eye diagonal_backward""".split())
RANDOM = frozenset("bernoulli_ bernoulli uniform_ normal_ rand randn rand_like randn_like native_dropout random_ exponential_"
                   .split())
_OVERWRITES = FILLS | RANDOM | {"copy_"}

# operations an output element
PER_OUTPUT = {
    "add": 1, "sub": 1, "rsub": 1, "mul": 1, "div": 1, "neg": 1, "abs": 1, "sqrt": 1, "rsqrt": 2, "exp": 1, "log": 1,
    "reciprocal": 1, "square": 1, "pow": 1, "maximum": 1, "minimum": 1, "clamp": 2, "clamp_min": 1, "clamp_max": 1, "eq": 1,
    "ne": 1, "gt": 1, "lt": 1, "ge": 1, "le": 1, "where": 1, "masked_fill": 1, "logical_not": 1, "logical_and": 1,
    "bitwise_not": 1, "sign": 1, "addcmul": 3, "addcdiv": 3, "lerp": 3, "relu": 1, "hardtanh": 2, "sigmoid": 3, "silu": 4,
    "hardsigmoid": 4, "hardswish": 5, "tanh": 1, "gelu": 5, "elu": 3, "leaky_relu": 2, "softplus": 3, "threshold": 1, "erf": 1,
    "threshold_backward": 1, "hardtanh_backward": 2, "sigmoid_backward": 3, "silu_backward": 8, "hardsigmoid_backward": 3,
    "hardswish_backward": 5, "tanh_backward": 3, "gelu_backward": 11, "elu_backward": 3, "leaky_relu_backward": 2,
    "native_dropout_backward": 2, "bernoulli": 1, "native_dropout": 3, "uniform": 1, "normal": 1, "exponential": 1,
    "rand": 1, "randn": 1, "rand_like": 1, "randn_like": 1, "random": 1, "binary_cross_entropy_with_logits": 6, "mse_loss": 3,
    **dict.fromkeys("""sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh log1p log2 log10 expm1 exp2 erfc
        erfinv floor ceil round trunc frac fmod remainder floor_divide logical_or logical_xor bitwise_and bitwise_or
        bitwise_xor bitwise_left_shift bitwise_right_shift isnan isinf isfinite isposinf isneginf hypot sgn copysign
        heaviside fmax fmin nextafter positive sinc digamma lgamma __and__ __or__ __xor__
        __lshift__ __rshift__ angle""".split(), 1),
    "nan_to_num": 3, "mish": 6, "mish_backward": 10, "softplus_backward": 4, "log_sigmoid_forward": 4,
    "log_sigmoid_backward": 4, "_prelu_kernel": 2, "_prelu_kernel_backward": 3, "celu": 3, "hardshrink": 1,
    "hardshrink_backward": 1, "softshrink": 2, "softshrink_backward": 1, "glu": 4, "glu_backward": 8, "logit": 4, "xlogy": 2,
    "smooth_l1_loss": 4, "huber_loss": 4,
    "upsample_linear1d": 4, "upsample_bilinear2d": 8, "_upsample_bilinear2d_aa": 8, "upsample_trilinear3d": 16,
    "upsample_bicubic2d": 32, "_upsample_bicubic2d_aa": 32, "grid_sampler_2d": 16, "grid_sampler_3d": 28, "col2im": 1,
    "polar": 2}
# operations an element of the first tensor: exp, subtraction of the maximum, sum, division ...
PER_INPUT = {
    "sum": 1, "mean": 1, "amax": 1, "amin": 1, "max": 1, "argmax": 1, "linalg_vector_norm": 2, "prod": 1, "cumsum": 1,
    "std": 4, "var": 4, "any": 1, "all": 1,
    "_softmax": 5, "_safe_softmax": 5, "_log_softmax": 5, "_softmax_backward_data": 4, "_log_softmax_backward_data": 4,
    "native_layer_norm": 7, "native_layer_norm_backward": 13, "native_group_norm": 7, "native_group_norm_backward": 13,
    "native_batch_norm_backward": 9, "cudnn_batch_norm_backward": 9, "nll_loss_forward": 0, "nll_loss_backward": 0,
    "argmin": 1, "min": 1, "var_mean": 4, "std_mean": 4, "cumprod": 1, "cummax": 1, "cummin": 1, "logcumsumexp": 3,
    "logsumexp": 3, "count_nonzero": 1, "scatter_add": 1, "scatter_reduce": 1, "index_add": 1, "index_reduce": 1, "bincount": 1,
    "histc": 1, "nonzero": 1, "_is_all_true": 1,
    "norm": 2, "_fused_rms_norm": 4, "_fused_rms_norm_backward": 10, "_weight_norm_interface": 3,
    "_weight_norm_interface_backward": 6,
    "upsample_linear1d_backward": 4, "upsample_bilinear2d_backward": 8, "_upsample_bilinear2d_aa_backward": 8,
    "upsample_trilinear3d_backward": 16, "upsample_bicubic2d_backward": 32, "_upsample_bicubic2d_aa_backward": 32,
    "grid_sampler_2d_backward": 32,
    **{f"{name}{dims}d_backward": 1 for dims in (1, 2, 3)
       for name in ("upsample_nearest", "_upsample_nearest_exact", "reflection_pad", "replication_pad")}}
ATTENTION = tuple(f"_scaled_dot_product_{kernel}{suffix}" for suffix in ("", "_backward") for kernel in (
    "flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"))
RECURRENT, GROUPED = ("mkldnn_rnn_layer", "_cudnn_rnn"), ("_grouped_mm", "_scaled_grouped_mm")
_CELL = 15  # operations of an LSTM's cell beside its products, an output: three gates, two tanh, a sum of products


def _axis_read(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Return how many of ``size`` positions along one axis a sliding window reads."""
    if stride <= dilation * (kernel - 1) + 1 and dilation == 1:
        return max(0, min(size, (out - 1) * stride + kernel - padding) - max(0, -padding))
    positions = {o * stride + k * dilation - padding for o in range(out) for k in range(kernel)}
    return sum(0 <= position < size for position in positions)


def _convolution(op: Op) -> tuple[TensorSpec, TensorSpec, TensorSpec, bool, int]:
    """Return input, weight, output side, whether it is transposed, and groups, of a convolution or its backward."""
    if op.short == "convolution_backward":
        gradient, data, weight = op.args[:3]
        return data, weight, gradient, op.args[7], op.args[9]
    data, weight = op.args[:2]
    return data, weight, op.outputs[0], op.args[6], op.args[8]


def _convolution_macs(op: Op) -> int:
    data, weight, output, transposed, _ = _convolution(op)
    return (data if transposed else output).elements * prod(weight.shape[1:])


def _convolution_read(op: Op) -> int:
    """Return the input elements that the windows of a convolution touch."""
    data, weight, output, transposed, _ = _convolution(op)
    if transposed:
        return data.elements
    stride, padding, dilation = op.args[3:6] if op.short == "convolution" else op.args[4:7]
    dims = len(weight.shape) - 2
    wide = [shapes.wide(value, dims) for value in (stride, padding, dilation)]
    read = [_axis_read(*axis) for axis in zip(data.shape[2:], output.shape[2:], weight.shape[2:], *wide, strict=True)]
    return prod(data.shape[:2]) * prod(read)


def _attention_macs(op: Op) -> int:
    """Return the multiply-adds of softmax(Q K') V; its backward computes the scores again and then four batched GEMMs."""
    first = 1 if op.short.endswith("backward") else 0
    query, key, value = op.args[first:first + 3]
    scores = prod(query.shape[:-1]) * key.shape[-2]
    forward = scores * (query.shape[-1] + value.shape[-1])
    return forward if not first else scores * (3 * query.shape[-1] + 2 * value.shape[-1])


def _multi_head_macs(op: Op) -> int:
    """Return the multiply-adds of an attention layer: three projections, attention, the output's projection."""
    query, key, width = op.args[0], op.args[1], op.args[3]
    batch, length = query.shape[:2]
    projections = (2 * length + 2 * key.shape[1]) * width * width
    return batch * (projections + 2 * length * key.shape[1] * width)


def recurrent_weights(op: Op) -> list[TensorSpec]:
    """Return the matrices of a recurrent layer, those of its inputs and of its state."""
    given = op.args[1] if isinstance(op.args[1], tuple) else op.args[1:5]
    return [spec for spec in given if isinstance(spec, TensorSpec) and len(spec.shape) == 2]  # noqa: PLR2004 - a matrix


def _recurrent_macs(op: Op) -> int:
    """Return the multiply-adds of all steps; the backward pass has those of inputs and state, and those of the weights."""
    passes = 2 if op.short.endswith("backward") else 1
    return passes * prod(op.args[0].shape[:2]) * sum(spec.elements for spec in recurrent_weights(op))


def _fourier(op: Op) -> int:
    """Return the FLOPs of a fast Fourier transform: 5 n log2 n of complex numbers, half of that of real ones (FFTW's count)."""
    data = op.args[0] if op.short != "_fft_c2r" else op.outputs[0]
    length = prod(data.shape[dim] for dim in op.args[1])
    return round((5 if op.short == "_fft_c2c" else 2.5) * data.elements * log2(max(2, length)))


def _ordering(op: Op) -> int:
    """Return the comparisons of a sort, or of a choice of the k largest: n log2 n for each row of n elements."""
    data, axis = op.args[0], 1 if op.short == "sort" else 2
    axis = op.args[axis] if axis < len(op.args) else dict(op.kwargs).get("dim", -1)
    return round(data.elements * log2(max(2, (data.shape or (1,))[axis])))


def _product(left: TensorSpec, right: TensorSpec) -> int:
    return left.elements * right.shape[-1]


_MACS: dict[str, Callable[[Op], int]] = {
    "convolution": _convolution_macs,
    "convolution_backward": lambda op: _convolution_macs(op) * (bool(op.args[10][0]) + bool(op.args[10][1])),
    **dict.fromkeys(("mm", "bmm", *GROUPED), lambda op: _product(*op.args[:2])),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm"), lambda op: _product(*op.args[1:3])),
    **dict.fromkeys(ATTENTION, _attention_macs),
    "_native_multi_head_attention": _multi_head_macs,
    **{f"{name}{suffix}": _recurrent_macs for name in RECURRENT for suffix in ("", "_backward")},
    **dict.fromkeys(("mv", "dot", "vdot"), lambda op: op.args[0].elements), "addmv": lambda op: op.args[1].elements}


def _window(op: Op) -> int:
    """Return the elements of a pooling window; an adaptive one's is the mean share of the input."""
    if "adaptive" in op.short:
        data, output = (op.args[1], op.args[0]) if op.short.endswith("backward") else (op.args[0], op.outputs[0])
        return max(1, data.elements // max(1, output.elements))
    size = op.args[2 if op.short.endswith("backward") else 1]
    dims = next((dims for dims in (1, 3) if f"{dims}d" in op.short), 2)
    return prod(size) if len(size) > 1 else size[0] ** dims


def _pooling(op: Op) -> int:
    """Return a comparison or addition for each element of each window; the backward of a maximum adds each gradient once."""
    backward = op.short.endswith("backward")
    outer = op.args[0].elements if backward else op.outputs[0].elements
    return outer * (1 if backward and "max" in op.short else _window(op))


def _batch_norm(op: Op) -> int:
    return op.args[0].elements * (6 if op.args[5] else 2)


def _other(op: Op) -> int | None:
    name = op.short
    if name in VIEWS or name in FILLS or name in COPIES or name in MOVES:
        return 0
    if name.removesuffix("_backward") in RECURRENT:
        return _CELL * op.outputs[0].elements
    if name.startswith("_fft_"):
        return _fourier(op)
    if name in ("sort", "topk", "kthvalue"):
        return _ordering(op)
    if name in ("_cdist_forward", "_euclidean_dist"):
        return 3 * op.outputs[0].elements * op.args[0].shape[-1]
    if "pool" in name:
        return _pooling(op)
    if name in ("native_batch_norm", "cudnn_batch_norm"):
        return _batch_norm(op)
    if name == "convolution_backward":
        return op.args[0].elements if op.args[10][2] else 0
    if name in _MACS:
        return 0
    bare = name.rstrip("_")
    if bare in PER_OUTPUT:
        return PER_OUTPUT[bare] * (op.outputs[0].elements if op.outputs else 0)
    return PER_INPUT[bare] * op.tensors[0].elements if bare in PER_INPUT and op.tensors else None


def is_work(op: Op) -> bool:
    """Return whether an operator makes anything: it is no view, and its outputs have elements."""
    return op.short not in VIEWS and (not op.outputs or any(spec.elements for spec in op.outputs))


def is_counted(op: Op) -> bool:
    """Return whether the FLOPs of ``op`` are known; those of an operator that is not are never taken for zero."""
    return _other(op) is not None


def is_complex(op: Op) -> bool:
    """Return whether ``op`` computes with complex numbers."""
    return any(spec.dtype.startswith("complex") for spec in op.tensors)


def matrix_flops(op: Op) -> int:
    """Return the FLOPs of the convolution, GEMM or attention in ``op``; a complex multiply-add is four real ones."""
    return (8 if is_complex(op) else 2) * _MACS[op.short](op) if op.short in _MACS else 0


def flops(op: Op) -> float:
    """Return all FLOPs of ``op``; NaN when it is not known."""
    other = _other(op)
    return float("nan") if other is None else float(matrix_flops(op) + other)


def _distinct(specs: tuple[TensorSpec, ...]) -> int:
    """Return the bytes of several tensors; the same tensor given twice counts once."""
    seen = {(spec.storage, spec.shape, spec.stride) if spec.storage >= 0 else number: spec.bytes
            for number, spec in enumerate(specs)}
    return sum(seen.values())


def bytes_read(op: Op) -> int:
    """Return the bytes that ``op`` must read at least."""
    name, tensors = op.short, op.tensors
    if name in VIEWS:
        return 0
    if name in _OVERWRITES:
        return _distinct(tensors[1:])
    if name in ("convolution", "convolution_backward"):
        data = op.args[0 if name == "convolution" else 1]
        others = _distinct(tensors) - data.bytes
        if name == "convolution_backward" and not op.args[10][1]:
            return others
        weight = 0 if name == "convolution" or op.args[10][0] else op.args[2].bytes
        return others - weight + min(data.bytes, _convolution_read(op) * data.itemsize)
    if name in ("index", "index_select", "embedding", "gather"):
        return _distinct(tensors[1:]) + min(tensors[0].bytes, op.outputs[0].elements * tensors[0].itemsize)
    return _distinct(tensors)


def bytes_written(op: Op) -> int:
    """Return the bytes that ``op`` must write at least."""
    return 0 if op.short in VIEWS else _distinct(op.outputs)


def compulsory_bytes(op: Op) -> int:
    """Return the bytes that ``op`` must move at least: what it reads, once, and what it writes, once."""
    return bytes_read(op) + bytes_written(op)
