"""Values that a network's control flow reads, recorded in one real run with random inputs on the CPU.

Fake tensors have no values. Results that depend on values (a number that is read, the number of elements that a mask selects)
are recorded in the real run and replayed during capture, so the capture follows the same branches. Random numbers of Python
and NumPy are the same ones in both, and in every capture.
"""

import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lib import paths
from lib.errors import causes
from lib.work import user_code
from lib.work.building import fakes, inputs

MOST_BYTES = 1e9  # of the weights of a network that is run for its values
LONGEST_S = 20.0  # of such a run, in time of the processor that its operators are called on
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_MISSING = (DataDependentOutputException, DynamicOutputShapeException)
_LIBRARY, _TORCH = (f"{folder}/" for folder in (paths.ROOT / "lib", Path(torch.__file__).parent))
_TRACED = tuple(f"{_LIBRARY}work/{name}.py" for name in ("building/values", "building/eager", "graph/recorder"))
_PACKED = "_pack_padded_sequence"  # torch has no tag for it; its second result, steps of each length, is read as values


@dataclass(frozen=True)
class _Shape:
    """A tensor that a real operator gave."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    values: torch.Tensor | None = None  # of a tensor that torch's own code reads

    def like(self, arguments: Any) -> torch.Tensor:
        """Make such a tensor; floats are of the element type that the operator is given."""
        if self.values is not None:
            return self.values
        floats = [leaf.dtype for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
        dtype = floats[0] if floats and self.dtype.is_floating_point else self.dtype
        return torch.empty_strided(self.shape, self.stride, dtype=dtype)


Values = dict[tuple[str, str], list[Any]]  # what operators gave in turn, by operator and by the line of code that called it


def places(values: Values) -> tuple[str, ...]:
    """Return the lines of code that read values."""
    return tuple(dict.fromkeys(place for _, place in values))


def missing(error: BaseException | None) -> bool:
    """Return whether an error, or what it came of, is that fake tensors have no values."""
    return any(isinstance(cause, _MISSING) for cause in causes(error))


@cache
def _hangs_on_values(func: Any) -> bool:
    return func.__name__.startswith(_PACKED) or not _TAGS.isdisjoint(getattr(func, "tags", ()))


def _place() -> str:
    """Return the line of code, beyond torch, that calls the operator which is dispatched now."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_LIBRARY) and not name.startswith(_TRACED):
            break
        if not name.startswith(("<", _TORCH, _LIBRARY)):
            return f"{Path(name).name}, line {frame.f_lineno}"
        frame = frame.f_back
    return "torch"


class _Noting(TorchDispatchMode):
    """Notes what operators give that hangs on values, until time is up."""

    def __init__(self):
        super().__init__()
        self.values: Values = {}
        self._end = time.thread_time() + LONGEST_S

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if time.thread_time() > self._end:
            raise TimeoutError(f"its control flow depends on values, and a run for them takes more than {LONGEST_S:.0f} s")
        out = func(*args, **(kwargs or {}))
        if _hangs_on_values(func):
            is_packed = func.__name__.startswith(_PACKED)
            noted = tree_map(lambda item: _Shape(tuple(item.shape), item.stride(), item.dtype,
                                                 item if is_packed and item is out[1] else None)
                             if isinstance(item, torch.Tensor) else item, out)
            self.values.setdefault((str(func), _place()), []).append(noted)
        return out


class _Answering(TorchDispatchMode):
    """Gives what a real run gave where fake tensors have no answer; a run of the network that is repeated begins again."""

    def __init__(self, values: Values):
        super().__init__()
        self._values, self._turns = values, dict.fromkeys(values, 0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        answers = ()
        if _hangs_on_values(func) and (key := (str(func), _place())) in self._turns:
            answers, turn = self._values[key], self._turns[key]
            self._turns[key] = (turn + 1) % len(answers)
        try:
            return func(*args, **(kwargs or {}))
        except _MISSING:
            if not answers:
                raise
            return tree_map(lambda item: item.like(args) if isinstance(item, _Shape) else item, answers[turn])


@contextmanager
def answering(values: Values) -> Iterator[None]:
    """Let fake tensors have these values meanwhile, also where they are part of a text."""
    if not values:
        yield
        return
    with patch.object(FakeTensor, "__format__", _formatted), _Answering(values):
        yield


def _formatted(tensor: torch.Tensor, form: str) -> str:
    return format(tensor.item(), form) if tensor.dim() == 0 else format(repr(tensor), form)


@contextmanager
def seeded() -> Iterator[None]:
    """Seed Python's and NumPy's random numbers meanwhile, also those of new generators in this thread."""
    before, thread, usual = (random.getstate(), np.random.get_state()), threading.get_ident(), random._urandom  # noqa: NPY002

    def seed(count: int) -> bytes:
        return bytes(count) if threading.get_ident() == thread else usual(count)

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    try:
        with patch.object(random, "_urandom", seed):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


def of_a_run(build: user_code.Builder, batch: Sequence[inputs.Input], training: bool, name: str,
             grad: bool = False) -> Values:
    """Build a network, run a forward pass of random inputs, the same each time, and return what it read of values.

    ``grad``: whether torch records what gradients need. Raises InputError where it does not run within LONGEST_S and half of
    the memory that is free.
    """
    noting = _Noting()
    with user_code.running(f"{name} does not run on {inputs.described(batch)}"), _bounded(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with seeded():
            model = user_code.in_mode(build(), training)
        placed, named = inputs.arguments([item.made(torch.device("cpu")) for item in batch], batch)
        with torch.set_grad_enabled(grad), patch.object(torch.Tensor, "tolist", _one_by_one), \
                fakes.running(), seeded(), noting:
            model(*placed, **named)
    return noting.values


def _one_by_one(tensor: torch.Tensor) -> Any:
    """Read a tensor as fake ones are read, an element after the other."""
    return tensor.item() if tensor.dim() == 0 else [_one_by_one(item) for item in tensor]


@contextmanager
def _bounded() -> Iterator[None]:
    """Let this process take half of the memory that is free, and no more: what it asks for beyond that fails in a line."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    most = psutil.Process().memory_info().vms + psutil.virtual_memory().available // 2
    limits = [item for item in (most, *before) if item != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
