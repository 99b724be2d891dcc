"""What of torch is replaced while a network is captured, so that each of its operators is seen.

Higher-order operators (torch.cond, while_loop, scan, map, flex_attention) call functions of the network. Each runs as its
eager definition, so autograd and the capture see the operators inside, and a value that decides is read like any other.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import Any
from unittest.mock import patch

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

_DEFINED = frozenset(("while_loop", "map_impl", "associative_scan", "flex_attention", "hints_wrapper", "out_dtype",
                      "auto_functionalized", "auto_functionalized_v2"))  # torch's own definition runs under any mode
_usual, _usual_padding = HigherOrderOperator.dispatch, torch._VF._pad_packed_sequence
_usual_inference = torch._C._InferenceMode


def _scan(combine: Callable, init: Any, items: Any, additional: Any, **_: Any) -> Any:
    from torch._higher_order_ops.scan import generic_scan

    return generic_scan(combine, init, items, additional_inputs=additional)


_DEFINITIONS: dict[str, Callable] = {
    "cond": lambda value, first, second, operands: (first if value else second)(*operands), "scan": _scan}


def _pad_packed(data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, padding: float, length: int) -> Any:
    """Pad a packed sequence as torch does, whose own code reads and writes memory; ``sizes``: of each step, with values."""
    if not isinstance(data, FakeTensor):
        return _usual_padding(data, sizes, batch_first, padding, length)
    with unset_fake_temporarily():
        steps = sizes.tolist()
    out = torch.full((max(length, len(steps)), steps[0], *data.shape[1:]), padding, dtype=data.dtype)
    step = first = 0
    for size, run in groupby(steps):
        count = len(list(run))
        piece = data[first:first + size * count].view(count, size, *data.shape[1:])
        out[step:step + count, :size] = piece
        step, first = step + count, first + size * count
    lengths = torch.tensor([sum(size > row for size in steps) for row in range(steps[0])])
    return out.transpose(0, 1) if batch_first else out, lengths


def _dispatch(operator: HigherOrderOperator, /, key: DispatchKey, *args: Any, **kwargs: Any) -> Any:
    """Run a higher-order operator as its eager definition; transformations such as vmap see it first."""
    name = operator.name()
    if key == DispatchKey.FuncTorchDynamicLayerFrontMode:
        return _usual(operator, key, *args, **kwargs)
    if name in _DEFINED:
        return operator.py_kernels[DispatchKey.CompositeExplicitAutograd](*args, **kwargs)
    if name not in _DEFINITIONS:
        raise RuntimeError(f"torch's higher-order operator {name} hides its operators; call the function that it is given "
                           "directly")
    return _DEFINITIONS[name](*args, **kwargs)


@contextmanager
def running() -> Iterator[None]:
    """Replace meanwhile what hides operators: inference_mode becomes no_grad, and torch.compile calls what it is given.

    Under inference mode torch hands over composite operators (linear, conv2d) in place of their parts.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch._C, "_InferenceMode", lambda mode: torch.set_grad_enabled(False) if mode else
                                         _usual_inference(False)))  # which fake tensors use themselves
        stack.enter_context(patch.object(HigherOrderOperator, "dispatch", _dispatch))
        stack.enter_context(patch.object(torch._VF, "_pad_packed_sequence", _pad_packed))
        if "torch._dynamo.eval_frame" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
