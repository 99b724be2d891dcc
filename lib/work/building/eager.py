"""What of torch is replaced while a network is captured, so that each of its operators is seen.

Higher-order operators (torch.cond, while_loop, scan, map, flex_attention) call functions of the network. Each runs as its
eager definition, so autograd and the capture see the operators inside, and a value that decides is read like any other.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator

_DEFINED = frozenset(("while_loop", "map_impl", "associative_scan", "flex_attention", "hints_wrapper", "out_dtype",
                      "auto_functionalized", "auto_functionalized_v2"))  # torch's own definition runs under any mode
_usual = HigherOrderOperator.dispatch


def _scan(combine: Callable, init: Any, items: Any, additional: Any, **_: Any) -> Any:
    from torch._higher_order_ops.scan import generic_scan

    return generic_scan(combine, init, items, additional_inputs=additional)


_DEFINITIONS: dict[str, Callable] = {
    "cond": lambda value, first, second, operands: (first if value else second)(*operands),
    "switch": lambda index, branches, operands: branches[min(max(int(index), 0), len(branches) - 1)](*operands),
    "scan": _scan, "invoke_subgraph": lambda function, _, *operands: function(*operands),
    "strict_mode": lambda function, operands: function(*operands)}


def _dispatch(operator: HigherOrderOperator, /, key: DispatchKey, *args: Any, **kwargs: Any) -> Any:
    """Run a higher-order operator as its eager definition; transformations such as vmap see it first."""
    name = operator.name()
    if key == DispatchKey.FuncTorchDynamicLayerFrontMode:
        return _usual(operator, key, *args, **kwargs)
    if name in _DEFINED:
        return operator.py_kernels[DispatchKey.CompositeExplicitAutograd](*args, **kwargs)
    if name not in _DEFINITIONS:
        raise NotImplementedError(f"torch's higher-order operator {name} hides its operators; call the function that it is "
                                  "given directly")
    return _DEFINITIONS[name](*args, **kwargs)


@contextmanager
def running() -> Iterator[None]:
    """Replace meanwhile what hides operators: inference_mode becomes no_grad, and torch.compile calls what it is given.

    Under inference mode torch hands over composite operators (linear, conv2d) in place of their parts.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch._C, "_InferenceMode", lambda mode: torch.set_grad_enabled(not mode)))
        stack.enter_context(patch.object(HigherOrderOperator, "dispatch", _dispatch))
        if "torch._dynamo.eval_frame" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
