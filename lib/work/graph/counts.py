"""FLOPs and compulsory bytes of an ATen operator, from its shapes alone.

A multiply-add counts 2, every other arithmetic operation, comparison or transcendental function 1; a sort of n elements
has n log2 n comparisons. ``matrix_flops`` are those of convolutions, GEMMs and attention, which is what torch's
FlopCounterMode counts; a bias starts the accumulation and costs nothing. Compulsory bytes are what must move at least once:
each distinct element that is read, and each that is written.
"""

from collections.abc import Callable
from math import log2, prod

from lib.work.graph import recurrent, shapes
from lib.work.graph.ops import Op, TensorSpec

VIEWS = frozenset("""view _unsafe_view t transpose permute expand slice select split split_with_sizes unsqueeze squeeze detach
    alias as_strided as_strided_ unbind unfold narrow diagonal chunk reshape _reshape_alias movedim unsafe_split view_as_real
    empty new_empty empty_like empty_strided new_empty_strided resize_ lift_fresh set_ swapaxes
    transpose_ t_ squeeze_ unsqueeze_ swapaxes_ detach_ view_as_complex real imag _neg_view _conj
    _efficientzerotensor is_same_size _has_same_storage_numel""".split())
FILLS = frozenset("fill_ zero_ zeros ones zeros_like ones_like new_zeros new_ones new_full full full_like scalar_tensor "
                  "arange _new_zeros_with_same_feature_meta".split())
COPIES = frozenset("""clone copy_ _to_copy roll constant_pad_nd slice_backward select_backward repeat cat stack flip contiguous
    lift_fresh_copy slice_scatter index index_put index_put_ index_select embedding embedding_dense_backward gather
    _index_put_impl_ unfold_backward pixel_shuffle channel_shuffle""".split())
# copies beside those of the family: 0 FLOPs, other sizes in than out, or places by value
MOVES = frozenset("""upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d scatter scatter_ index_copy index_copy_ masked_scatter
    masked_scatter_ take tril tril_ triu triu_ index_fill index_fill_ masked_select diag_embed im2col reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d pixel_unshuffle
    select_scatter diagonal_scatter as_strided_scatter complex view_as_complex real imag _conj _conj_physical
    resolve_conj tril_indices triu_indices linspace eye diagonal_backward select_copy
    _pack_padded_sequence""".split())
RANDOM = frozenset("bernoulli_ bernoulli uniform_ normal_ rand randn rand_like randn_like native_dropout random_ exponential_ "
                   "randint randint_like randperm".split())
_OVERWRITES = (FILLS | RANDOM | {"copy_"}) - {"native_dropout"}


def _costs(names: dict[int, str]) -> dict[str, int]:
    return {name: cost for cost, listed in names.items() for name in listed.split()}


# operations an output element
PER_OUTPUT = _costs({
    1: """add sub rsub mul div neg abs sqrt exp log reciprocal square pow maximum minimum clamp_min clamp_max eq ne gt lt
        ge le where masked_fill logical_not logical_and bitwise_not sign relu tanh threshold erf threshold_backward
        bernoulli uniform normal exponential rand randn rand_like randn_like random randint randint_like randperm
        sin cos tan asin acos atan atan2
        sinh cosh asinh acosh atanh log1p log2 log10 expm1 exp2 erfc erfinv floor ceil round trunc frac fmod remainder
        floor_divide logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift
        isnan isinf isfinite isposinf isneginf hypot sgn copysign heaviside fmax fmin nextafter positive sinc digamma
        lgamma __and__ __or__ __xor__ __lshift__ __rshift__ angle hardshrink hardshrink_backward softshrink_backward
        col2im""",
    2: """rsqrt clamp hardtanh leaky_relu hardtanh_backward leaky_relu_backward native_dropout_backward _prelu_kernel
        softshrink xlogy polar""",
    3: """addcmul addcdiv lerp sigmoid elu softplus sigmoid_backward hardsigmoid_backward tanh_backward elu_backward
        native_dropout mse_loss nan_to_num _prelu_kernel_backward celu""",
    4: """silu hardsigmoid softplus_backward log_sigmoid_forward log_sigmoid_backward glu logit smooth_l1_loss huber_loss
        upsample_linear1d""",
    5: "hardswish gelu hardswish_backward", 6: "binary_cross_entropy_with_logits mish",
    8: "silu_backward glu_backward upsample_bilinear2d _upsample_bilinear2d_aa", 10: "mish_backward", 11: "gelu_backward",
    16: "upsample_trilinear3d grid_sampler_2d", 28: "grid_sampler_3d", 32: "upsample_bicubic2d _upsample_bicubic2d_aa"})
# operations an element of the first tensor: exp, subtraction of the maximum, sum, division ...
PER_INPUT = _costs({
    0: "nll_loss_forward nll_loss_backward",
    1: """sum mean amax amin max argmax prod cumsum any all argmin min cumprod cummax cummin count_nonzero scatter_add
        scatter_reduce index_add index_reduce bincount histc nonzero _is_all_true upsample_nearest1d_backward
        _upsample_nearest_exact1d_backward reflection_pad1d_backward replication_pad1d_backward
        upsample_nearest2d_backward _upsample_nearest_exact2d_backward reflection_pad2d_backward
        replication_pad2d_backward upsample_nearest3d_backward _upsample_nearest_exact3d_backward
        reflection_pad3d_backward replication_pad3d_backward""",
    2: "linalg_vector_norm norm", 3: "logcumsumexp logsumexp _weight_norm_interface",
    4: """std var _softmax_backward_data _log_softmax_backward_data var_mean std_mean _fused_rms_norm
        upsample_linear1d_backward""",
    5: "_softmax _safe_softmax _log_softmax", 6: "_weight_norm_interface_backward", 7: "native_layer_norm native_group_norm",
    8: "upsample_bilinear2d_backward _upsample_bilinear2d_aa_backward",
    9: "native_batch_norm_backward cudnn_batch_norm_backward", 10: "_fused_rms_norm_backward",
    13: "native_layer_norm_backward native_group_norm_backward", 16: "upsample_trilinear3d_backward",
    32: "upsample_bicubic2d_backward _upsample_bicubic2d_aa_backward grid_sampler_2d_backward"})
ATTENTION = tuple(f"_scaled_dot_product_{kernel}{suffix}" for suffix in ("", "_backward") for kernel in (
    "flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"))
BAGS = ("_embedding_bag", "_embedding_bag_forward_only")
RECURRENT = ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", *recurrent.CUDNN)
GROUPED = ("_grouped_mm", "_scaled_grouped_mm")
# operations of a cell beside its products, per hidden element and step: gates, tanh, sums of products
_CELL = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 15, "gru": 12}


def _axis_read(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Return how many of ``size`` positions along one axis a sliding window reads."""
    if stride <= dilation * (kernel - 1) + 1 and dilation == 1:
        return max(0, min(size, (out - 1) * stride + kernel - padding) - max(0, -padding))
    positions = {o * stride + k * dilation - padding for o in range(out) for k in range(kernel)}
    return sum(0 <= position < size for position in positions)


def _convolution_macs(op: Op) -> int:
    call = shapes.convolution(op)
    passes = bool(call.wanted[0]) + bool(call.wanted[1]) if op.short == "convolution_backward" else 1
    return passes * (call.data if call.transposed else call.output).elements * prod(call.weight.shape[1:])


def _convolution_read(op: Op) -> int:
    """Return the input elements that the windows of a convolution touch."""
    call = shapes.convolution(op)
    if call.transposed:
        return call.data.elements
    axes = zip(call.data.shape[2:], call.output.shape[2:], call.weight.shape[2:], *call.steps, strict=True)
    return prod(call.data.shape[:2]) * prod(_axis_read(*axis) for axis in axes)


def _attention_macs(op: Op) -> int:
    """Return the multiply-adds of softmax(Q K') V; its backward computes the scores again and then four batched GEMMs."""
    first = int(op.is_backward)
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


def _bilinear_macs(op: Op) -> int:
    """Return the multiply-adds of x W y: the sum over x first, then the one over y."""
    sizes = [iter(spec.shape) for spec in op.args[:3]]
    full = [max(1 if place in missing else next(size) for size, missing in zip(sizes, op.args[3:6], strict=True))
            for place in range(len(op.args[0].shape) + len(op.args[3]))]
    return prod(full) + prod(size for place, size in enumerate(full) if place not in op.args[6] or place not in op.args[5])


def _bag(op: Op) -> int:
    """Return the additions of a sum of rows of a table, one row for each index."""
    return op.args[1].elements * op.args[0].shape[-1]


def recurrent_weights(op: Op) -> list[TensorSpec]:
    """Return the matrices of a recurrent layer, those of its inputs and of its state."""
    given = op.args[1] if isinstance(op.args[1], tuple) else op.args[1:5]
    return [spec for spec in given if isinstance(spec, TensorSpec) and len(spec.shape) == 2]  # noqa: PLR2004 - a matrix


def _recurrent_macs(op: Op) -> int:
    """Return the multiply-adds of all steps; the backward pass has those of inputs and state, and those of the weights."""
    passes = 1 + (recurrent.computes_weight_gradients(op) if op.short in recurrent.CUDNN else op.is_backward)
    return passes * prod(op.args[0].shape[:-1]) * sum(spec.elements for spec in recurrent_weights(op))


def _cells(op: Op) -> int:
    """Return the operations of all cells of a recurrent layer beside its products; the CPU's layers are LSTMs."""
    if op.short not in recurrent.CUDNN:
        return _CELL["lstm"] * op.outputs[0].elements
    size = recurrent.sizes(op)
    return _CELL[size.mode] * size.tokens * size.layers * size.directions * size.hidden_size


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


def _pooling(op: Op) -> int:
    """Return a comparison or addition for each element of each window; the backward of a maximum adds each gradient once.

    An adaptive window has the mean share of the input.
    """
    backward = op.is_backward
    data, output = (op.args[1], op.args[0]) if backward else (op.args[0], op.outputs[0])
    if backward and "max" in op.short:
        return output.elements
    if "adaptive" in op.short:
        return output.elements * max(1, data.elements // max(1, output.elements))
    dims = next((dims for dims in (1, 3) if f"{dims}d" in op.short), 2)
    return output.elements * prod(shapes.wide(op.args[2 if backward else 1], dims))


_MACS: dict[str, Callable[[Op], int]] = {
    **dict.fromkeys(("convolution", "convolution_backward"), _convolution_macs),
    **dict.fromkeys(("mm", "bmm", *GROUPED), lambda op: op.args[0].elements * op.args[1].shape[-1]),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm"), lambda op: op.args[1].elements * op.args[2].shape[-1]),
    **dict.fromkeys(ATTENTION, _attention_macs),
    "_native_multi_head_attention": _multi_head_macs,
    "_trilinear": _bilinear_macs, "deform_conv2d": lambda op: op.outputs[0].elements * prod(op.args[1].shape[1:]),
    "_deform_conv2d_backward": lambda op: 2 * op.args[0].elements * prod(op.args[2].shape[1:]),
    **dict.fromkeys(RECURRENT, _recurrent_macs),
    **dict.fromkeys(("mv", "dot", "vdot"), lambda op: op.args[0].elements), "addmv": lambda op: op.args[1].elements}


def _each(costs: dict[str, int], specs: Callable[[Op], tuple[TensorSpec, ...]]) -> dict[str, Callable[[Op], int]]:
    """Return formulas by operator: a cost for each element of its first output, or of its first tensor."""
    return {name: lambda op, cost=cost: cost * sum(spec.elements for spec in specs(op)[:1]) for name, cost in costs.items()}


# what an operator computes beside its multiply-adds
_OTHER: dict[str, Callable[[Op], int]] = {
    **_each(PER_OUTPUT | dict.fromkeys(_MACS, 0), lambda op: op.outputs), **dict.fromkeys(RECURRENT, _cells),
    **_each(PER_INPUT | dict.fromkeys(VIEWS | FILLS | COPIES | MOVES, 0), lambda op: op.tensors),
    "convolution_backward": lambda op: op.args[0].elements if op.args[10][2] else 0,
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm"), lambda op: op.args[0].elements * (6 if op.args[5] else 2)),
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), _fourier), **dict.fromkeys(("sort", "topk", "kthvalue"), _ordering),
    **dict.fromkeys((*BAGS, "_embedding_bag_backward"), _bag),
    **dict.fromkeys(("_cdist_forward", "_euclidean_dist"), lambda op: 3 * op.outputs[0].elements * op.args[0].shape[-1])}


def formula(short: str) -> Callable[[Op], int] | None:
    """Return the formula of what an operator of this name computes beside its multiply-adds; None where that is not known."""
    return _OTHER.get(short) or _OTHER.get(short.rstrip("_")) or (_pooling if "pool" in short else None)


def is_work(op: Op) -> bool:
    """Return whether an operator makes anything: it is no view, and its outputs have elements."""
    return op.short not in VIEWS and (not op.outputs or any(spec.elements for spec in op.outputs))


def is_counted(op: Op) -> bool:
    """Return whether the FLOPs of ``op`` are known; those of an operator that is not are never taken for zero."""
    return formula(op.short) is not None


def is_complex(op: Op) -> bool:
    """Return whether ``op`` computes with complex numbers."""
    return any(spec.dtype.startswith("complex") for spec in op.tensors)


def matrix_flops(op: Op) -> int:
    """Return the FLOPs of the convolution, GEMM or attention in ``op``; a complex multiply-add is four real ones."""
    return (8 if is_complex(op) else 2) * _MACS[op.short](op) if op.short in _MACS else 0


def flops(op: Op) -> float:
    """Return all FLOPs of ``op``; NaN when it is not known."""
    other = formula(op.short)
    return float(matrix_flops(op) + other(op)) if other else float("nan")


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
        call, backward = shapes.convolution(op), name == "convolution_backward"
        weight = call.weight.bytes if backward and call.wanted[1] and not call.wanted[0] else 0
        read = min(call.data.bytes, _convolution_read(op) * call.data.itemsize) if call.wanted[1] or not backward else 0
        return _distinct(tensors) - call.data.bytes - weight + read
    if name in ("index", "index_select", "embedding", "gather"):
        return _distinct(tensors[1:]) + min(tensors[0].bytes, op.outputs[0].elements * tensors[0].itemsize)
    if name in BAGS:
        return _distinct(tensors[1:]) + min(tensors[0].bytes, _bag(op) * tensors[0].itemsize)
    return _distinct(tensors)


def compulsory_bytes(op: Op) -> int:
    """Return the bytes that ``op`` must move at least: what it reads, once, and what it writes, once."""
    return bytes_read(op) + (0 if op.short in VIEWS else _distinct(op.outputs))
