"""What an operator family is: parameters, the operators that it covers, and how one of them is built, read and checked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lib.work.graph.ops import Op, TensorSpec

Params = dict[str, Any]
Inputs = list[tuple[TensorSpec, bool]]  # each with whether it wants a gradient
LAYOUTS = ("layout", ("contiguous", "channels_last"))


@dataclass(frozen=True)
class Family:
    """One family: the names of its parameters, the operators it covers by name, and the three functions.

    ``build`` gives the public function and its inputs for parameters and a dtype; ``read`` gives a covered operator's
    parameters; ``check`` the reason why parameters are invalid, or nothing. ``texts`` are the values of those that are texts,
    unless ``check`` knows them.
    """

    name: str
    parameters: tuple[str, ...]
    covers: frozenset[str]
    read: Callable[[Op], Params | None]
    build: Callable[[Params, str], tuple[Callable[..., torch.Tensor], Inputs]] | None = None
    check: Callable[[Params], str] = lambda params: ""
    defaults: tuple[tuple[str, Any], ...] = ()
    texts: tuple[tuple[str, tuple[str, ...]], ...] = ()


def names_in(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())
