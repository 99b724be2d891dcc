"""The mode of fake tensors (shape, strides and dtype without storage), with a memory of what operators gave.

torch's FakeTensorMode derives the result of each call anew in Python. Here an operator that is given the same shapes, strides,
dtypes and numbers again gives the same kind of result, at a tenth of the time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

_CPU = torch.device("cpu")
_NOT_CACHED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
_VALUES = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True)
class _Result:
    """One result of an operator: an argument itself, a view of one, or else a new tensor (both numbers are -1)."""

    argument: int = -1
    view_of: int = -1
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype = torch.float32


class CachingFakeMode(FakeTensorMode):
    """The mode of every fake tensor here; a copy of a tensor is of the same mode, not of a copy of it."""

    def __init__(self):
        super().__init__(allow_non_fake_inputs=True)
        self.cache_enabled = False  # torch's own, which takes as long as most operators
        self._results: dict[tuple, tuple[type, list[_Result | None]]] = {}

    def __deepcopy__(self, _):
        return self

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        key = self._key(func, args, kwargs)
        if key is None or key not in self._results:
            out = super().__torch_dispatch__(func, types, args, kwargs)
            results = _results(out, args) if key is not None else None
            if results is None:
                return out
            self._results[key] = (type(out), results)
        kind, results = self._results[key]
        made = [self._made(result, args) for result in results]
        return made[0] if kind is FakeTensor else made if kind is list else tuple(made)

    def _key(self, func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> tuple | None:
        """Return what the result of a call follows from; None where that is more than shapes, dtypes and numbers."""
        parts: list[Any] = [func, torch.get_default_dtype(), *kwargs]
        takes_tensors = any(type(arg) is FakeTensor or isinstance(arg, list | tuple) for arg in args)
        if _is_known(func) and takes_tensors and self._add(parts, args) and self._add(parts, kwargs.values()):
            return tuple(parts)
        return None

    def _add(self, parts: list[Any], values: Iterable) -> bool:
        """Append what is known of arguments to ``parts``; return whether that is all there is to know."""
        for value in values:
            if type(value) is FakeTensor:
                if not (_is_plain(value) and value.fake_mode is self):
                    return False
                parts += (tuple(value.shape), value.stride(), value.storage_offset(), value.dtype)
            elif isinstance(value, list | tuple):
                parts.append(len(value))
                if not self._add(parts, value):
                    return False
            elif isinstance(value, _VALUES):
                parts += (type(value), value)
            else:
                return False
        return True

    def _made(self, result: _Result | None, args: tuple) -> FakeTensor | None:
        """Make one result from these arguments."""
        if result is None:
            return None
        if result.argument >= 0:
            return args[result.argument]
        storage = args[result.view_of].untyped_storage() if result.view_of >= 0 else None
        with in_kernel_invocation_manager(self):
            if storage is None:
                tensor = torch.empty_strided(result.shape, result.stride, dtype=result.dtype, device="meta")
            else:
                tensor = torch.empty((), dtype=result.dtype, device="meta")
                tensor.set_(storage, result.offset, result.shape, result.stride)
        return FakeTensor(self, tensor, _CPU)


@cache
def _is_known(func: Any) -> bool:
    """Return whether an operator is one of torch's own, and its results have shapes that follow from those it is given.

    One that resizes and writes into ``out=`` changes more than its result.
    """
    if not isinstance(func, OpOverload) or func.namespace not in ("aten", "prims"):
        return False
    writes_by_name = any(argument.kwarg_only and argument.is_write for argument in func._schema.arguments)
    return not writes_by_name and _NOT_CACHED.isdisjoint(func.tags)


def _is_plain(tensor: FakeTensor) -> bool:
    """Return whether shape, strides and dtype say all of a tensor: no known values, not sparse, complex or negated."""
    return (tensor.constant is None and tensor.layout is torch.strided and tensor.fake_device == _CPU
            and not tensor.dtype.is_complex and not tensor.is_neg() and not tensor._is_zerotensor())


def _results(out: Any, args: tuple) -> list[_Result | None] | None:
    """Return what an operator gave, without its tensors; None for what cannot be made again from that."""
    storages = {arg.untyped_storage()._cdata: number for number, arg in enumerate(args) if type(arg) is FakeTensor}
    results, fresh = [], set()
    if not isinstance(out, FakeTensor | list | tuple):
        return None
    for item in out if isinstance(out, list | tuple) else [out]:
        if item is None:  # a gradient that nobody wants
            results.append(None)
            continue
        argument = next((number for number, arg in enumerate(args) if arg is item), -1)
        if type(item) is not FakeTensor or not _is_plain(item) or (item.requires_grad and argument < 0):
            return None
        storage = item.untyped_storage()
        view_of = storages.get(storage._cdata, -1)
        results.append(_Result(argument, view_of, tuple(item.shape), item.stride(), item.storage_offset(), item.dtype))
        elements = 1 + sum((size - 1) * step for size, step in zip(item.shape, item.stride(), strict=True))
        is_whole = storage.nbytes() == item.itemsize * elements * (prod(item.shape) > 0) and not item.storage_offset()
        if argument < 0 and view_of < 0 and (storage._cdata in fresh or not is_whole):
            return None  # a piece of something larger
        fresh.add(storage._cdata)
    return results
