"""Leaves torch's compiler aside until something compiles: loading it takes a third of the time that a question takes.

torchvision takes one function of it as it is imported, and torch's modes of dispatch one as they are first used, so that a
compiler leaves them alone, which does not run. Both are stood in for; whatever else is asked of the two modules loads them.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_PACKAGE, _UTILITIES = "torch._dynamo", "torch._dynamo.utils"
_MARK = "__dynamo_disable"  # what torch caches of ``disable`` beside a function
_left_alone: list[Callable] = []


def _disable(function: Callable | None = None, recursive: bool = True, **options: Any) -> Callable:
    """Stand in for torch's own use of it as an operator is first called; a decorator of others needs the compiler itself."""
    if function is not None and options.get("wrapping") is False:
        _left_alone.append(function)
        return function
    import torch._dynamo

    _load(torch._dynamo)
    return torch._dynamo.disable(function, recursive, **options)


def _is_compile_supported(device_type: str) -> Any:
    from torch._dynamo import utils

    _load(utils)
    return utils.is_compile_supported(device_type)


_STAND_INS = {_PACKAGE: {"disable": _disable}, _UTILITIES: {"is_compile_supported": _is_compile_supported}}


class _Deferred(ModuleType):
    """A module that is loaded as soon as it is asked for what no stand-in gives."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _load(self)
        return getattr(self, name)


def _load(module: ModuleType) -> None:
    """Load a deferred module; what was left alone by a stand-in is told to the compiler when it is called next."""
    if not isinstance(module, _Deferred):
        return
    module.__class__ = ModuleType
    for name in _STAND_INS[module.__name__]:
        delattr(module, name)
    for function in _left_alone:
        vars(function).pop(_MARK, None)
    _left_alone.clear()
    module.__spec__.loader.loader.exec_module(module)


class _Loader(Loader):
    def __init__(self, loader: Loader):
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the module without running it."""
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Give it the stand-ins."""
        vars(module).update(_STAND_INS[module.__name__])


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Say how the deferred modules are loaded; nothing of others."""
        spec = PathFinder.find_spec(name, path) if name in _STAND_INS else None
        if spec:
            spec.loader = _Loader(spec.loader)
        return spec


def defer_compiler() -> None:
    """Defer loading torch's compiler in this process, unless it is loaded already."""
    if _PACKAGE not in sys.modules and not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
