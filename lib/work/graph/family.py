"""What an operator family is: parameters, the operators that it covers, and how one of them is built, read and checked."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from lib.work.graph.ops import Op, TensorSpec

Params = dict[str, Any]
Inputs = list[tuple[TensorSpec, bool]]  # each with whether it wants a gradient
LAYOUTS = {"layout": ("contiguous", "channels_last")}


@dataclass(frozen=True)
class Family:
    """One family: the names of its parameters, the operators it covers by name, and the three functions.

    ``read`` gives a covered operator's parameters in the order of ``parameters``, None for one that its kind does not have, or
    None for an operator of another family. ``build`` gives the public function and its inputs for parameters and a dtype;
    ``check`` the reason why parameters are invalid, or nothing. ``texts`` are the values of those that are texts, unless
    ``check`` knows them; it also says which of the ``optional`` ones are needed.
    """

    name: str
    parameters: Iterable[str]
    covers: Iterable[str]
    read: Callable[[Op], tuple | None]
    build: Callable[[Params, str], tuple[Callable[..., torch.Tensor], Inputs]] | None = None
    check: Callable[[Params], str] = lambda params: ""
    defaults: dict[str, Any] = field(default_factory=dict)
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optional: Iterable[str] = ()
