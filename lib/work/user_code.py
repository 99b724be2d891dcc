"""Users' code: import a network from ``module:Class`` and run it; what it raises is one line."""

import contextlib
import importlib
import inspect
import os
import re
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from lib import paths
from lib.errors import InputError, is_out_of_memory, one_line

Builder = Callable[[], nn.Module]
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_NOT_USERS = (f"{paths.ROOT / 'lib'}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}")
_NESTED = ("nested_tensor", "NestedTensor", "self.shape_env must not be")
alone = threading.RLock()  # one thread at a time: stdout and what capture replaces are shared
_SETTINGS: tuple[tuple[Callable, Callable], ...] = (  # of the process: how to read and to set each
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_device, lambda _: torch.set_default_device(None)))


@contextlib.contextmanager
def running(what: str) -> Iterator[None]:
    """Run users' code meanwhile, in one thread at a time; what it prints goes to stderr.

    The process's default dtype and device, threads and recording of gradients are put back.
    What it raises, also to end the program, becomes an InputError: ``what`` failed, why, and at
    which of its lines. Ctrl-C ends it.
    """
    with alone, warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        before = [read() for read, _ in _SETTINGS]
        try:
            yield
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise InputError(f"{what}: {_reason(error)}") from error
        finally:
            for value, (read, put) in zip(before, _SETTINGS, strict=True):
                if read() != value:
                    put(value)


def in_mode(model: nn.Module, training: bool) -> nn.Module:
    """Put a network into training or evaluation mode and return it, as its ``train`` may not."""
    model.train(training)
    return model


def _reason(error: BaseException) -> str:
    """Return why users' code failed, with the last of its own lines that ran."""
    kind, place = type(error).__name__, _place(error)
    if isinstance(error, SystemExit):
        return f"it ends the program, by sys.exit({error.code!r}){place}"
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException"):  # fake tensors' own
        what = "its control flow depends on values"
        if kind == "DynamicOutputShapeException":
            name = getattr(error.func, "__name__", "an operator").partition(".")[0]
            what = f"the shape of what {name} gives depends on values"
        return f"{what}{place or ' in torch'}, which are not there before it runs"
    text, hint = one_line(error), ""
    if is_out_of_memory(error):
        hint = "; it takes more memory than this machine has"
    elif isinstance(error, ModuleNotFoundError):
        hint = "; modules are looked for in this folder and among the installed ones"
    elif any(sign in text for sign in _NESTED):
        hint = "; nested tensors are not captured: pad the sequences"
    return f"{text.removeprefix('RuntimeError: ')}{place}{hint}"


def _place(error: BaseException) -> str:
    """Return file and line of users' code, else of a library's, where an error arose."""
    if isinstance(error, SyntaxError):  # its message has the line
        return ""
    frames = [(frame.f_code.co_filename, line)
              for frame, line in traceback.walk_tb(error.__traceback__)]
    frames = [frame for frame in frames if not frame[0].startswith(_NOT_USERS)]
    installed = [frame for frame in frames if "site-packages" in frame[0]]
    own = [frame for frame in frames if frame not in installed
           and not frame[0].startswith(("<", sysconfig.get_path("stdlib")))]
    if not own and not installed:
        return ""
    name, line = (own or installed)[-1]
    return f" ({Path(name).name}, line {line})"


def builder(name: str) -> Builder:
    """Import ``module:Class``, or a function that returns a network; return what builds it.

    Modules of the working directory are found too. Raises InputError, as the builder does: for a
    name of another form, and for what cannot be imported, called without arguments, or is no
    network.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"model {name!r} names no class of yours; the form is module:Class, such "
                         "as mynet:Net for the class Net in mynet.py in this folder")
    module_name, _, attribute = name.partition(":")
    with running(f"model {name!r}: cannot import {module_name!r}"):
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        module = importlib.import_module(module_name)
        make = getattr(module, attribute, None)
    where = f"{module_name} ({getattr(module, '__file__', None) or 'built into Python'})"
    if isinstance(make, nn.Module):
        raise InputError(f"model {name!r}: {attribute!r} of {where} is a network that is built "
                         f"already; name its class, {type(make).__name__}, or a function that "
                         "builds it")
    if not callable(make) or inspect.isbuiltin(make) or (
            inspect.isclass(make) and not issubclass(make, nn.Module)):
        raise InputError(f"model {name!r}: {where} has no class {attribute!r} of torch.nn.Module, "
                         "nor a function of that name that builds one")
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise InputError(f"model {name!r} must be buildable without arguments: {error}") from None

    def build() -> nn.Module:
        with running(f"model {name!r} cannot be built"):
            model = make()
        if not isinstance(model, nn.Module):
            raise InputError(f"model {name!r} gives a {type(model).__name__}, not a "
                             "torch.nn.Module")
        return model
    return build
