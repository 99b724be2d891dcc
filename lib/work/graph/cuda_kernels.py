"""The kernels that torch calls on CUDA where it calls others on the CPU: attention, normalisation, dropout, recurrent layers.

Captured tensors are fake and lie on the CPU, so that no GPU is needed. Functions of torch that look at the device before they
choose a kernel are replaced meanwhile, in the capturing thread, by the choice that they make on CUDA.
"""

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch.nn import functional as F

from lib.work.graph import recurrent

_HALF = (torch.float16, torch.bfloat16)
_USUAL = (8, 0)  # the compute capability that counts where no GPU is here: kernels are those of Ampere and newer
_PREFER_CUDNN = (9, 10)  # where torch prefers cuDNN's attention: major compute capabilities
_CUDNN, _CUDNN_WIDE, _CUDNN_107 = 91500, 92200, 92500  # after which versions: at all, wide heads, wide heads on 10.7
_WIDEST, _WIDEST_CUDNN = 256, 128  # heads; of cuDNN where it takes no wide ones
_ALIGNED, _DROPOUTS = 8, 16  # elements of a head; cuDNN drops sixteenths
_NARROW_BACKWARD = ((8, 6), (8, 9)), ((12, 0), (12, 1))  # from, to: no flash gradients of heads of 193 to 224, nor of wider
_NARROW, _NARROW_WITHOUT_DROPOUT = 192, 224  # ones with dropout
_LARGEST_BATCH = {True: 880_801, False: 65_535}  # that cuDNN normalises, in training and in evaluation
_SPATIAL = 3  # dimensions of an input that cuDNN normalises, at least
_FLEX = "torch.nn.attention.flex_attention"  # refuses gradients of tensors on the CPU; imported where a network is captured
_usual_batch_norm, _usual_dropout = torch.batch_norm, torch.dropout


def capability(device: str) -> tuple[int, int]:
    """Return the compute capability of a CUDA device; where none is here, that of Ampere."""
    return torch.cuda.get_device_capability(device) if torch.cuda.is_available() else _USUAL


def attention_kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, masked: bool, causal: bool,
                     chip: tuple[int, int], dropout: float = 0.0, trains: bool = False) -> str:
    """Return which kernel torch takes for scaled dot products on a GPU of this capability: cudnn, flash, efficient, or math.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch.
    """
    enabled = torch.backends.cuda
    width, alike = query.shape[-1], query.dim() == 4 and query.shape[1] == key.shape[1]  # noqa: PLR2004 - batch, heads, ...
    square = width == value.shape[-1]
    if query.dtype in _HALF and query.dim() == 4 and square and width <= _WIDEST:  # noqa: PLR2004
        if alike and enabled.cudnn_sdp_enabled() and _cudnn_takes(query, key, chip, dropout, trains):
            return "cudnn"
        narrow = trains and any(first <= chip <= last for first, last in _NARROW_BACKWARD)
        fits = chip >= _USUAL and not (causal and query.shape[2] != key.shape[2]) and not (
            narrow and width > _NARROW and (dropout or width <= _NARROW_WITHOUT_DROPOUT))
        if fits and not masked and enabled.flash_sdp_enabled():
            return "flash"
    usable = query.dtype in (torch.float32, *_HALF) and alike and enabled.mem_efficient_sdp_enabled()
    return "efficient" if usable else "math"


def _cudnn_takes(query: torch.Tensor, key: torch.Tensor, chip: tuple[int, int], dropout: float, trains: bool) -> bool:
    """Return whether torch gives attention in 16 bits to cuDNN: by card, version, head, dropout, lengths."""
    version, width = torch.backends.cudnn.version() or 0, query.shape[-1]
    wide = version > (_CUDNN_107 if chip == (10, 7) else _CUDNN_WIDE)
    head = width % _ALIGNED == 0 and (width <= _WIDEST_CUDNN or (wide and (not trains or width == _WIDEST)))
    lengths = key.shape[2] != 1 and not (dropout and query.shape[2] == 1)
    settings = dropout * _DROPOUTS % 1 == 0 and torch.get_deterministic_debug_mode() < 2  # noqa: PLR2004 - 2 raises
    return chip[0] in _PREFER_CUDNN and version > _CUDNN and head and lengths and settings


def _attention(chip: tuple[int, int]) -> Callable[..., torch.Tensor]:
    """Return scaled dot products as torch carries them out on a GPU of this capability."""
    aten = torch.ops.aten

    def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        if torch.is_autocast_enabled("cpu"):
            low = torch.get_autocast_dtype("cpu")
            query, key, value, attn_mask = (tensor.to(low) if tensor is not None and tensor.is_floating_point() else tensor
                                            for tensor in (query, key, value, attn_mask))
            with torch.autocast("cpu", enabled=False):
                return attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
        kernel = attention_kernel(query, key, value, masked=attn_mask is not None, causal=is_causal, chip=chip,
                                  dropout=dropout_p, trains=trains)
        if kernel == "math":
            return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, None,
                                                           scale=scale, enable_gqa=enable_gqa)[0]
        if kernel == "flash":
            width, padding = query.shape[-1], -query.shape[-1] % _ALIGNED
            if padding:
                query, key, value = (F.pad(tensor, (0, padding)) for tensor in (query, key, value))
                scale = scale or 1 / math.sqrt(width)
            out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
            return out[..., :width] if padding else out
        if attn_mask is not None:
            attn_mask = _bias(attn_mask, query).expand(*query.shape[:-1], key.shape[-2])
        function = getattr(aten, f"_scaled_dot_product_{kernel}_attention")
        return function(query, key, value, attn_mask, trains, dropout_p, is_causal, scale=scale)[0]
    return attend


def _bias(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return a mask as what is added to the scores."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)


def _batch_norm(data, weight, bias, mean, variance, training, momentum, eps, cudnn_enabled):
    """Normalise as torch does on CUDA: by cuDNN where it takes the element types and the size."""
    states = (mean is None) == (variance is None) and (mean is not None or training)
    takes = weight is not None and bias is not None and weight.dtype == torch.float32 and data.dtype != torch.bfloat16
    fits = data.dim() >= _SPATIAL and len(data) <= _LARGEST_BATCH[bool(training)]
    if cudnn_enabled and torch.version.hip is None and takes and states and fits:
        return torch.ops.aten.cudnn_batch_norm(data, weight, bias, mean, variance, training, momentum, eps)[0]
    return _usual_batch_norm(data, weight, bias, mean, variance, training, momentum, eps, cudnn_enabled)


def _dropout(data, p, training):
    """Drop elements as torch does on CUDA: in one kernel."""
    fused = training and 0 < p < 1 and data.numel()
    return torch.native_dropout(data, p, True)[0] if fused else _usual_dropout(data, p, training)


@contextmanager
def chosen(device: str) -> Iterator[None]:
    """Let torch's functions, called by this thread, choose the kernels that they choose on ``device``, such as cuda:0."""
    if not device.startswith("cuda"):
        yield
        return
    thread, flex = threading.get_ident(), sys.modules.get(_FLEX)

    def here(choice: Callable, usual: Callable) -> Callable:
        def call(*args, **kwargs):
            return (choice if threading.get_ident() == thread else usual)(*args, **kwargs)
        return call

    replaced = ((F, "scaled_dot_product_attention", _attention(capability(device))), (torch, "batch_norm", _batch_norm),
               (torch._VF, "dropout", _dropout),
               *((torch._VF, mode, recurrent.cudnn_layers(mode)) for mode in recurrent.MODES),
               *([(flex, "_validate_device", lambda *_: None)] if flex else []))
    with ExitStack() as stack:
        for holder, name, choice in replaced:
            stack.enter_context(patch.object(holder, name, here(choice, getattr(holder, name))))
        yield
