"""What torch.autocast casts on a device: on the CPU by torch itself, on CUDA by its lists for CUDA, with tensors on the CPU.

Captured tensors lie on the CPU, whose autocast casts by lists of its own. Kernels for CUDA's lists are given to the dispatcher
meanwhile, for the capturing thread; they cast as torch's do (ATen/autocast_mode.h and .cpp). Casts are copies like others.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.utils._pytree import tree_map

LOWER = frozenset("prelu addmv addr einsum mv linalg_vecdot chain_matmul linalg_multi_dot _cudnn_rnn "  # beside the CPU's
                  "_scaled_dot_product_flash_attention".split())
FP32 = frozenset("""acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm
    native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss
    nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist
    cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d
    upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa
    upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa norm""".split())
RESULT_IN_FP32 = frozenset("prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum".split())
_HALF = (torch.float16, torch.bfloat16)
_AUTOCAST = DispatchKeySet(DispatchKey.AutocastCPU)
_BELOW = torch._C._dispatch_keyset_full_after(DispatchKey.AutocastCPU)


@contextmanager
def region(dtype: str, device: str) -> Iterator[None]:
    """Compute meanwhile as torch.autocast in ``dtype`` (float16, bfloat16; empty: without it) does on ``device``."""
    if not dtype:
        yield
        return
    low = getattr(torch, dtype)
    with ExitStack() as stack:
        if device.startswith("cuda"):
            library = stack.enter_context(torch.library._scoped_library("aten", "IMPL"))
            for cast, names in ((_lowered, LOWER), (_widened, FP32), (_with_wide_result, RESULT_IN_FP32)):
                for op in overloads(names):
                    library.impl(op, _kernel(op, cast, threading.get_ident()), "AutocastCPU", with_keyset=True)
            stack.callback(torch.set_autocast_enabled, "cuda", torch.is_autocast_enabled("cuda"))
            torch.set_autocast_enabled("cuda", True)  # modules look before they take a path of their own
        stack.enter_context(torch.autocast("cpu", low))
        yield


def overloads(names: Iterable[str]) -> Iterator[Any]:
    """Yield the operators of these names that autocast changes on CUDA, and not on the CPU."""
    changed = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in sorted(names):
        packet = getattr(torch.ops.aten, name)
        for op in (getattr(packet, overload) for overload in packet.overloads()):
            registered = torch._C._dispatch_has_kernel(op.name())
            if registered and changed(op.name(), "AutocastCUDA") and not changed(op.name(), "AutocastCPU"):
                yield op


def _kernel(op: Any, cast: Callable, thread: int) -> Callable:
    """Return what runs an operator under autocast; in other threads it runs as it did."""
    def kernel(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return op.redispatch(keyset & _BELOW, *args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return cast(op, args, kwargs)
    return kernel


def _lowered(op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    return _widened(op, args, kwargs, torch.get_autocast_dtype("cpu"))


def _widened(op: Any, args: tuple, kwargs: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    def cast(value: Any) -> Any:
        floats = isinstance(value, torch.Tensor) and value.dtype in (*_HALF, torch.float32)
        return value.to(dtype) if floats and value.dtype != dtype else value

    args, kwargs = tree_map(cast, (args, kwargs))
    return op(*args, **kwargs)


def _with_wide_result(op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Ask for a result in fp32 where no other is asked for; softmax of fp16 is one kernel then, as on CUDA alone."""
    data, place = args[0], [argument.name for argument in op._schema.arguments].index("dtype")
    stated = kwargs.get("dtype") or (args[place] if len(args) > place else None)
    if stated is None and data.dtype in (*_HALF, torch.float32):
        if data.dtype == torch.float16 and "softmax" in op.name():
            return getattr(torch.ops.aten, f"_{op._schema.name.removeprefix('aten::')}")(data, args[1], True)
        args, kwargs = args[:place], {**kwargs, "dtype": torch.float32}
    return op(*args, **kwargs)
