"""What a captured graph is made of: tensors as shape and strides, operators as one call each, and the graph."""

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

MODES = ("infer", "train")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorSpec:
    """What an operator is given or gives: shape, strides, dtype; and, not compared, which storage and of what kind.

    ``storage`` numbers the storages of a graph, so that two uses of one tensor are known as such; -1 is unknown.
    """

    shape: Shape
    stride: Shape
    dtype: str = "float32"
    storage: int = field(default=-1, compare=False)
    kind: str = field(default="activation", compare=False)

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        return getattr(torch, self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """Return the bytes of the distinct elements: a dimension of stride 0 (an expanded one) counts once."""
        return prod(size for size, step in zip(self.shape, self.stride, strict=True) if step) * self.itemsize


@dataclass(frozen=True)
class Op:
    """One call of an ATen operator; equal ops are the same work (module, phase and storages are not compared)."""

    name: str
    args: tuple
    kwargs: tuple[tuple[str, Any], ...] = ()
    outputs: tuple[TensorSpec, ...] = field(default=(), compare=False)
    module: str = field(default="", compare=False)
    phase: str = field(default="forward", compare=False)

    @cached_property
    def short(self) -> str:
        """Return the operator's name without namespace and overload: ``convolution``."""
        return self.name.split(".")[1]

    @property
    def is_backward(self) -> bool:
        """Return whether it computes gradients, by its name."""
        return self.short.endswith("backward")

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return every tensor argument, also those inside of lists."""
        return tuple(leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, TensorSpec))

    @property
    def dtype(self) -> str:
        """Return torch's name of the element type that it runs in: of the first floats that it is given, or gives."""
        specs = (*self.tensors, *self.outputs)
        return next((spec.dtype for spec in specs if getattr(torch, spec.dtype).is_floating_point), "")

    @property
    def overload(self):
        """Return torch's operator."""
        namespace, name, overload = self.name.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)


Ops = tuple[Op, ...]


@dataclass(frozen=True)
class Graph:
    """The operators of one pass or step in order, and what the network holds; ``trained`` are its parameters' elements.

    ``branches`` are the lines of code that read values, where it went the way of random inputs; ``computes_in`` is the element
    type of its products, its own or that of autocast.
    """

    ops: Ops
    parameters: int
    parameter_bytes: int
    buffer_bytes: int
    output: Shape
    made: tuple[dict[int, int], ...] = ()  # by each operator: storages that are new, with their bytes
    freed: tuple[Shape, ...] = ()  # after each operator: storages that nothing refers to any more
    trained: Shape = ()  # elements of each parameter that wants a gradient
    branches: tuple[str, ...] = ()
    computes_in: str = "float32"
