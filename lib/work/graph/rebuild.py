"""Make a captured operator runnable again: tensors of its shapes, strides and dtypes, filled with harmless values."""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import torch

from lib.work.graph import recurrent
from lib.work.graph.ops import Op, TensorSpec

_POOL = 1 << 20
_NAMED = ("dtype", "layout", "memory_format")  # what a frozen argument may name of torch
# positive: what a square root or a division takes. The rest of the floats are normally distributed.
_POSITIVE = {"native_batch_norm": (4,), "native_batch_norm_backward": (4, 6), "cudnn_batch_norm": (4,),
             "cudnn_batch_norm_backward": (4, 6), "native_layer_norm_backward": (4,),
             "sqrt": (0,), "div": (1,), "log": (0,), "rsqrt": (0,), "reciprocal": (0,), "addcdiv_": (2,)}
# the mean and the inverse deviation that a forward pass keeps for its backward pass
_STATISTICS = {"native_batch_norm_backward": (5, 6), "native_layer_norm_backward": (3, 4)}


@cache
def _pool() -> torch.Tensor:
    """Return a million normally distributed numbers, from which every tensor is filled: far cheaper than drawing anew."""
    return torch.randn(_POOL, generator=torch.Generator().manual_seed(0))


def span(spec: TensorSpec) -> int:
    """Return the elements between the first and the last of a tensor, both included."""
    return 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True)) if spec.elements else 0


def make(spec: TensorSpec, device: torch.device, fill: str = "normal", high: int = 1) -> torch.Tensor:
    """Make one tensor of ``spec`` on ``device``.

    ``fill`` is normal, positive (1 plus a little), ones, zeros, or index (integers below ``high``).
    """
    dtype, length = getattr(torch, spec.dtype), span(spec)
    flat = torch.empty(length, dtype=dtype)
    if fill in ("zeros", "ones"):
        flat.fill_(float(fill == "ones"))
    else:
        values = _values(dtype, fill, high, min(length, _POOL))
        for piece in flat.split(_POOL):  # no memory beside: a ring is several times a large cache
            piece.copy_(values[:len(piece)])
    return flat.to(device).as_strided(spec.shape, spec.stride)


def _values(dtype: torch.dtype, fill: str, high: int, count: int) -> torch.Tensor:
    """Return the first ``count`` values that a tensor repeats."""
    pool = _pool()[:count]
    if dtype == torch.bool:
        return pool > 0
    if not dtype.is_floating_point and not dtype.is_complex:
        return (pool.abs() * 1e4).long() % max(1, high)
    return (pool.abs() + 1 if fill == "positive" else pool).to(dtype)


def _fills(op: Op) -> dict[int, str]:
    """Return how the positional arguments are to be filled so that a call can be repeated for ever.

    What an operator writes in place starts as zeros and its other inputs as ones: repeated products and sums of such
    numbers stay away from overflow and from denormals, which are a hundred times slower.
    """
    written = [number for number, argument in enumerate(op.overload._schema.arguments)
               if argument.alias_info is not None and argument.alias_info.is_write]
    if written and op.short not in ("relu_", "native_batch_norm"):
        return {number: "zeros" if number in written else "ones" for number in range(len(op.args))}
    return dict.fromkeys(_POSITIVE.get(op.short, ()), "positive")


def _high(op: Op) -> int:
    """Return the bound of the indices in an operator's integer tensors."""
    if op.short.startswith("nll_loss"):
        return op.args[0 if op.short == "nll_loss_forward" else 1].shape[-1]
    if "max_pool" in op.short and op.is_backward:
        return prod(op.args[1].shape[-2 if "2d" in op.short else -3:])
    return min(op.tensors[0].shape, default=1) if op.tensors else 1


def _from_forward(op: Op, made: list[Any]) -> None:
    """Give the backward what only its forward can make: indices of a max-pooling, what cuDNN keeps of a normalisation."""
    if op.short == "cudnn_batch_norm_backward":
        data, _, weight, mean, variance, _, _, eps = made[:8]
        made[8] = torch.ops.aten.cudnn_batch_norm(data, weight, torch.zeros_like(weight), mean, variance, True, 0.1, eps)[3]
        return
    made[7] = getattr(torch.ops.aten, op.short.removesuffix("_backward"))(made[1], *made[2:7])[1]


def statistics(values: torch.Tensor | None) -> torch.Tensor | None:
    """Return statistics of a normalisation as a GPU keeps them: those of 16 bits in fp32."""
    return values.float() if values is not None and values.dtype in (torch.bfloat16, torch.float16) else values


def arguments(op: Op, device: torch.device,
              maker: Callable[[TensorSpec, torch.device, str, int], torch.Tensor] = make) -> tuple[list[Any], dict[str, Any]]:
    """Make the arguments of ``op`` on ``device``, each tensor by ``maker``; the same tensor given twice is made once."""
    fills, high, made_tensors = _fills(op), _high(op), {}

    def argument(value: Any, fill: str) -> Any:
        if isinstance(value, TensorSpec):
            key = (value.storage, value.shape, value.stride) if value.storage >= 0 else object()
            if key not in made_tensors:
                made_tensors[key] = maker(value, device, fill, high)
            return made_tensors[key]
        if isinstance(value, tuple):
            return [argument(item, fill) for item in value]
        if isinstance(value, str) and ":" in value:  # a frozen argument becomes what torch takes again
            kind, _, name = value.partition(":")
            return device if kind == "device" else getattr(torch, name) if kind in _NAMED else value
        return value

    made = [argument(value, fills.get(number, "normal")) for number, value in enumerate(op.args)]
    if op.is_backward and ("max_pool" in op.short or op.short.startswith("cudnn_batch_norm")):
        _from_forward(op, made)
    if op.short in recurrent.CUDNN:
        recurrent.prepare(op, made)
    if device.type == "cuda":
        for number in _STATISTICS.get(op.short, ()):
            made[number] = statistics(made[number])
    return made, {name: argument(value, "normal") for name, value in op.kwargs}


def runnable(ops: Sequence[Op], device: torch.device) -> Callable[[], Any]:
    """Return a function without arguments that runs ``ops`` one after another on tensors made for them.

    Raises what torch raises for an operator that the device does not have; nothing is run here but what the inputs need.
    """
    if len(ops) == 1:
        function = ops[0].overload
        positional, named = arguments(ops[0], device)
        return lambda: function(*positional, **named)
    calls = [(op.overload, *arguments(op, device)) for op in ops]

    def call() -> None:
        for function, positional, named in calls:
            function(*positional, **named)
    return call
