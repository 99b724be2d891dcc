"""Delays the import of torch's compiler, which takes a third of the time of an answer, in a process that compiles nothing.

torchvision imports ``is_compile_supported``; timm and torch's dispatch modes use ``disable``. Both functions are stubbed; using
any other attribute imports the real compiler.
"""

import importlib
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_PACKAGE = "torch._dynamo"
_SETTINGS = "torch._dynamo.config"  # torch reads it always, and it imports nothing of the compiler


def _disable(function: Callable | None = None, *_: Any, **__: Any) -> Any:
    """Return a function as it is: where nothing compiles, there is nothing to keep it from."""
    return function if function is not None else _disable


_STUBS = {_PACKAGE: {"disable": _disable}, "torch._dynamo.utils": {"is_compile_supported": lambda device_type: False}}


class _DeferredModule(ModuleType):
    """A module of stubs, which has the attributes of the real one as soon as they are asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


def _real(name: str) -> ModuleType:
    """Import the compiler in place of its stubs and return one of its modules."""
    for stub in _STUBS:
        if isinstance(sys.modules.get(stub), _DeferredModule):
            del sys.modules[stub]
    importlib.import_module(_PACKAGE)  # first: its modules import each other in the order that it asks for
    return importlib.import_module(name)


class _StubFinder(MetaPathFinder, Loader):
    """Gives the stubs; any other module of the package comes with the whole of it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_part = name.startswith(f"{_PACKAGE}.") and name != _SETTINGS
        if not is_part or not isinstance(sys.modules.get(_PACKAGE), _DeferredModule):
            return None
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the stubs of a module, or else the real one."""
        return _stub(spec.name, ()) if spec.name in _STUBS else _real(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave a module as it is, with its own specification."""
        module.__spec__ = PathFinder.find_spec(module.__name__, sys.modules[_PACKAGE].__path__)


def _stub(name: str, path: Any) -> ModuleType:
    module = _DeferredModule(name)
    vars(module).update(_STUBS[name], __path__=path)
    return module


def defer_compiler() -> None:
    """Defer loading torch's compiler in this process, unless it is loaded already."""
    if _PACKAGE not in sys.modules:
        path = PathFinder.find_spec(_PACKAGE, PathFinder.find_spec("torch").submodule_search_locations)
        sys.modules[_PACKAGE] = _stub(_PACKAGE, path.submodule_search_locations)
        sys.meta_path.insert(0, _StubFinder())
