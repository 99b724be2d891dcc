"""What of torch is replaced during a capture, so that each operator is seen.

Higher-order operators (torch.cond, while_loop, scan, map, flex_attention) call functions of the
network. Each runs as its eager definition, so the capture sees the operators inside.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import Any
from unittest.mock import patch

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

_DEFINED = ("while_loop", "map_impl", "associative_scan", "flex_attention", "hints_wrapper",
            "out_dtype", "auto_functionalized", "auto_functionalized_v2")  # by torch, eagerly
_usual_dispatch, _usual_padding = HigherOrderOperator.dispatch, torch._VF._pad_packed_sequence
_usual_inference = torch._C._InferenceMode


def _pad_packed(data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, padding: float,
                length: int) -> Any:
    """Pad a packed sequence by operators; torch's own code reads and writes memory."""
    if not isinstance(data, FakeTensor):
        return _usual_padding(data, sizes, batch_first, padding, length)
    with unset_fake_temporarily():
        steps = sizes.tolist()
    shape = (max(length, len(steps)), steps[0], *data.shape[1:])
    out = torch.full(shape, padding, dtype=data.dtype)
    step = first = 0
    for size, run in groupby(steps):
        count = len(list(run))
        piece = data[first:first + size * count].view(count, size, *data.shape[1:])
        out[step:step + count, :size] = piece
        step, first = step + count, first + size * count
    lengths = torch.tensor([sum(size > row for size in steps) for row in range(steps[0])])
    return out.transpose(0, 1) if batch_first else out, lengths


def _dispatch(operator: HigherOrderOperator, /, key: DispatchKey, *args: Any, **kwargs: Any) -> Any:
    """Run a higher-order operator as its eager definition."""
    name = operator.name()
    if key == DispatchKey.FuncTorchDynamicLayerFrontMode:  # of vmap, which sees it first
        return _usual_dispatch(operator, key, *args, **kwargs)
    if name in _DEFINED:
        return operator.py_kernels[DispatchKey.CompositeExplicitAutograd](*args, **kwargs)
    if name == "cond":
        value, first, second, operands = args
        return (first if value else second)(*operands)
    if name == "scan":
        from torch._higher_order_ops.scan import generic_scan

        combine, init, items, additional = args
        return generic_scan(combine, init, items, additional_inputs=additional)
    raise RuntimeError(f"torch's higher-order operator {name} hides its operators; call the "
                       "function that it is given directly")


def _inference_mode(mode: bool) -> Any:
    """Return no_grad: under inference mode torch hands over conv2d and linear, not their parts."""
    return torch.set_grad_enabled(False) if mode else _usual_inference(False)


@contextmanager
def running() -> Iterator[None]:
    """Replace meanwhile what hides operators; torch.compile calls what it is given."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch._C, "_InferenceMode", _inference_mode))
        stack.enter_context(patch.object(HigherOrderOperator, "dispatch", _dispatch))
        stack.enter_context(patch.object(torch._VF, "_pad_packed_sequence", _pad_packed))
        if "torch._dynamo.eval_frame" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
