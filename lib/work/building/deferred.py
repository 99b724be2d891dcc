"""Delays the import of torch's compiler until something compiles: the import takes a third of the time of an answer.

torchvision imports ``is_compile_supported``; timm and torch's dispatch modes use ``disable``. Both functions are stubbed; using
any other attribute imports the real compiler.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any

_PACKAGE, _UTILITIES = "torch._dynamo", "torch._dynamo.utils"
_SETTINGS = "torch._dynamo.config"  # torch reads it also where nothing compiles, and it imports nothing of the compiler
_MARK = "__dynamo_disable"  # what torch caches of ``disable`` beside a function
_left_alone: list[Callable] = []


def _disable(function: Any = None, recursive: bool = True, **options: Any) -> Any:
    """Stand in for what keeps a function from the compiler; a decorated one asks for it whenever it is called."""
    if function is None:
        return partial(_disable, recursive=recursive, **options)
    if not isinstance(function, FunctionType):
        import torch._dynamo

        _load(torch._dynamo)
        return torch._dynamo.disable(function, recursive, **options)
    if options.get("wrapping") is False:  # torch's own use, as such a function is called
        _left_alone.append(function)
        return function
    import torch._compile

    decorated = torch._compile._disable_dynamo(function, recursive)
    decorated._torchdynamo_disable, decorated._torchdynamo_disable_msg = True, options.get("reason")
    decorated._torchdynamo_orig_callable = function
    return decorated


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
    """Load a deferred module; what was left alone by a stand-in is told to the compiler when it is called next.

    The package comes first: its modules import each other in the order that it asks for.
    """
    if module.__name__ != _PACKAGE:
        _load(sys.modules[_PACKAGE])
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


class _Present(Loader):
    """Gives a module that is there already, as loading the package before it brought it."""

    def __init__(self, spec: ModuleSpec):
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it is."""
        module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Say how the deferred modules are loaded; nothing of others, before which the package is loaded that they are of."""
        if name in _STAND_INS:
            spec = PathFinder.find_spec(name, path)
            spec.loader = _Loader(spec.loader)
            return spec
        package = sys.modules.get(_PACKAGE)
        if not name.startswith(f"{_PACKAGE}.") or name == _SETTINGS or not isinstance(package, _Deferred):
            return None
        _load(package)
        return ModuleSpec(name, _Present(sys.modules[name].__spec__)) if name in sys.modules else None


def defer_compiler() -> None:
    """Defer loading torch's compiler in this process, unless it is loaded already."""
    if _PACKAGE not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
