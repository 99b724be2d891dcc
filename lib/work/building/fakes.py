"""Fake tensors, shape, strides and dtype without storage (torch's FakeTensor), and networks that are built of them.

All are of one mode: a library keeps tensors from one call to the next (a table of positions, say), and those of another mode
would fail in a second capture. What a library keeps in a cache of functions is dropped, since a real run would find it there.
"""

import functools
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib.errors import causes
from lib.work import user_code
from lib.work.building import eager
from lib.work.building.fake_mode import CachingFakeMode

_SMALL = 4096  # elements of a tensor that is real while a network is built, and written: its values may be read
_FAKES_FAULTS = ("Fake", "DataDependent", "DynamicOutputShape", "tensor type", "data pointer", "numpy", "as a constant")
_mode = cache(CachingFakeMode)


@contextmanager
def active() -> Iterator[CachingFakeMode]:
    """Make every new tensor a fake one meanwhile, in one thread at a time; torch logs no traceback of what is raised anyway."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    with user_code.alone, _mode() as mode:
        before, log.disabled = log.disabled, True
        try:
            yield mode
        finally:
            log.disabled = before


def copying() -> FakeCopyMode:
    """Return the mode in which a deep copy of a network has fake tensors.

    The fake tensors of the network are shared with the copy.
    """
    return _Copying(_mode())


class _Copying(FakeCopyMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            return args[1].setdefault(id(args[0]), args[0])
        return super().__torch_function__(func, types, args, kwargs)


class _Large(TorchDispatchMode):
    """Makes large new tensors fake ones; small ones are real, so that code may read values of them while it builds."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            with active():
                return func(*args, **kwargs)
        if not tensors or func.__name__.startswith("new_"):
            with active():
                made = func(*args, **kwargs)
            if isinstance(made, FakeTensor) and made.numel() > _SMALL:
                return made
        return func(*args, **kwargs)


def unwritten(builder: Callable[[], nn.Module]) -> nn.Module:
    """Build a network whose large tensors are left unwritten (address space alone): never for running.

    Initialisers of ``torch.nn.init`` are skipped on large tensors; others run, and read whatever they read.
    """
    def skip(initialiser: Callable) -> Callable:
        return lambda tensor, *args, **kwargs: tensor if tensor.numel() > _SMALL else initialiser(tensor, *args, **kwargs)

    with ExitStack() as stack:
        for name, initialiser in vars(nn.init).items():
            if name.endswith("_") and not name.startswith("_"):
                stack.enter_context(patch.object(nn.init, name, skip(initialiser)))
        return builder()


def build(builder: Callable[[], nn.Module]) -> nn.Module:
    """Build a network whose large tensors are fake and take no memory, however many: for capture.

    A builder that fails on them, since it reads their values, say, builds real and unwritten ones.
    """
    try:
        with running(), _Large():
            return unwritten(builder)
    except Exception as error:
        reasons = [f"{type(cause).__name__} {cause}" for cause in causes(error)]
        if not any(words in reason for reason in reasons for words in _FAKES_FAULTS):
            raise
        return unwritten(builder)


@contextmanager
def running() -> Iterator[None]:
    """Let networks show their operators, and convert modules of fake tensors, to half precision say, while built or run."""
    with user_code.alone, eager.running(), patch.object(torch.utils, "swap_tensors", _swapped):
        yield


def _swapped(old: torch.Tensor, new: torch.Tensor, swap: Callable = torch.utils.swap_tensors) -> None:
    """Swap two tensors; a fake one takes the other's data, as real ones do: torch refuses it while anything refers to it."""
    if isinstance(old, FakeTensor) and isinstance(new, FakeTensor) and old.device == new.device:
        old.data = new
    else:
        swap(old, new)


def forget() -> None:
    """Clear every ``functools`` cache that holds fake tensors, in any library: a later real run would get them."""
    for function in [candidate for candidate in gc.get_objects() if type(candidate) is functools._lru_cache_wrapper]:
        cached = [list(value.values()) if type(value) is dict else value for value in gc.get_referents(function)]
        if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(cached)):
            function.cache_clear()
