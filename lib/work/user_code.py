"""The only place that imports and runs users' code, which may fail, print, or change settings of the whole process."""

import contextlib
import ctypes
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
from unittest import mock

import torch
from torch import nn

from lib import paths
from lib.errors import InputError, is_out_of_memory, one_line

Builder = Callable[[], nn.Module]
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_NOT_USERS = tuple(f"{Path(folder)}{os.sep}" for folder in (paths.ROOT / "lib", Path(torch.__file__).parent))
_STANDARD, _INSTALLED = f"{sysconfig.get_path('stdlib')}{os.sep}", f"{os.sep}site-packages{os.sep}"
_HINTS = {"nested tensors are not captured: pad the sequences": ("nested_tensor", "NestedTensor", "self.shape_env must not be"),
          "give the class that was exported": ("Calling train() is not supported", "Calling eval() is not supported"),
          "a dictionary as input is a YAML file that maps an argument to its entries": ("invalid data type 'str'",)}
alone = threading.RLock()  # one thread at a time: stdout, os.fork, _STATE and what capture replaces are of the whole process
_STATE: tuple[tuple[Callable, Callable], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype), (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads), (torch.get_default_device, lambda _: torch.set_default_device(None)))


@contextlib.contextmanager
def running(what: str) -> Iterator[None]:
    """Run users' code meanwhile: what it prints goes to stderr, and what it sets for the whole process is put back.

    What it raises, also to end the program, becomes an InputError: ``what`` failed, why, and at which of its lines. Ctrl-C ends
    it, for it may run for ever. Other threads wait for their turn.
    """
    with alone:
        before = [read() for read, _ in _STATE]
        try:
            with warnings.catch_warnings(), _stdout_is_stderr(), _one_process():
                yield
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise InputError(f"{what}: {_reason(error)}") from error
        finally:
            for value, (read, put) in zip(before, _STATE, strict=True):
                if read() != value:
                    put(value)


def in_mode(model: nn.Module, training: bool) -> nn.Module:
    """Put a network into training or evaluation mode and return it: a ``train`` of the network's may return nothing."""
    model.train(training)
    return model


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """Keep users' code from ending this process behind Python's back, and from going on in two of them: each is an error."""
    def refused(name: str) -> Callable:
        def refuse(*_):
            raise RuntimeError(f"it calls os.{name}, which a network cannot")
        return refuse

    with mock.patch.multiple(os, create=True, _exit=refused("_exit"), fork=refused("fork")):
        yield


@contextlib.contextmanager
def _stdout_is_stderr() -> Iterator[None]:
    """Send what is printed meanwhile to stderr: by Python, and by C and child processes, which know the descriptor alone."""
    stdout, real_stdout = sys.stdout, None
    with contextlib.redirect_stdout(sys.stderr), contextlib.redirect_stderr(sys.stderr):
        try:
            _flush(stdout)
            with contextlib.suppress(OSError):  # there may be no such streams
                real_stdout = os.dup(1)
                os.dup2(2, 1)
            yield
        finally:
            _flush(stdout)
            if real_stdout is not None:
                os.dup2(real_stdout, 1)
                os.close(real_stdout)


def _flush(stdout) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        stdout.flush()
        ctypes.CDLL(None).fflush(None)


def _reason(error: BaseException) -> str:
    """Return why users' code failed, with the last of its own lines that ran."""
    if isinstance(error, SystemExit):
        return f"it ends the program, by sys.exit({error.code!r}){_place(error)}"
    if reason := _of_values(error):
        return f"{reason}{_place(error) or ' in torch'}, which are not there before it runs"
    text = one_line(error)
    hint = next((f"; {words}" for words, signs in _HINTS.items() if any(sign in text for sign in signs)), "")
    if is_out_of_memory(error):
        hint = "; it takes more memory than this machine has"
    elif isinstance(error, ModuleNotFoundError):
        hint = "; modules are looked for in this folder and among the installed ones"
    return f"{text.removeprefix('RuntimeError: ')}{_place(error)}{hint}"


def _of_values(error: BaseException) -> str:
    """Say what of a network hangs on values of tensors, where torch's fake tensors, which have none, end it; else nothing."""
    kind, operator = type(error).__name__, getattr(getattr(error, "func", None), "__name__", "an operator").partition(".")[0]
    if kind == "DataDependentOutputException":
        return "its control flow depends on values"
    return f"the shape of what {operator} gives depends on values" if kind == "DynamicOutputShapeException" else ""


def _place(error: BaseException) -> str:
    """Return file and line of users' code, else of a library's, where an error arose; empty where the error itself says it."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    libraries = [(name, line) for name, line in frames if _INSTALLED in name and not name.startswith(_NOT_USERS)]
    own = [(name, line) for name, line in frames
           if _INSTALLED not in name and not name.startswith(("<", _STANDARD, *_NOT_USERS))] or libraries
    return f" ({Path(own[-1][0]).name}, line {own[-1][1]})" if own and not isinstance(error, SyntaxError) else ""


def builder(name: str) -> Builder:
    """Import ``module:Class`` (or a function that returns a network), also from the working directory; return what builds it.

    Raises InputError, as the builder does: for a name of another form, for what cannot be imported, is no such class or
    function, needs arguments, fails, or gives something else.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"model {name!r} names no class of yours; the form is module:Class, such as mynet:Net for the class "
                         "Net in mynet.py in this folder")
    module_name, _, attribute = name.partition(":")
    with running(f"model {name!r}: cannot import {module_name!r}"):
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        module = importlib.import_module(module_name)
        value = getattr(module, attribute, None)
        _check(name, value, f"{module_name} ({getattr(module, '__file__', None) or 'a module of Python'})")

    def build() -> nn.Module:
        with running(f"model {name!r} cannot be built"):
            model = value()
        if not isinstance(model, nn.Module):
            raise InputError(f"model {name!r} gives a {type(model).__name__}, not a torch.nn.Module")
        return model
    return build


def _check(name: str, value: object, where: str) -> None:
    """Refuse what cannot be called without arguments to make a network, before anything of it runs."""
    if isinstance(value, nn.Module):
        raise InputError(f"model {name!r} is a network that is built already; name its class, or a function that builds it")
    if not callable(value):
        raise InputError(f"model {name!r}: {where} has no class or function {name.partition(':')[2]!r}")
    if inspect.isbuiltin(value) or (inspect.isclass(value) and not issubclass(value, nn.Module)):
        raise InputError(f"model {name!r} is a {'class' if inspect.isclass(value) else 'built-in function'}, but not a "
                         "torch.nn.Module, nor a function of yours that builds one")
    try:
        inspect.signature(value).bind()
    except TypeError as error:
        raise InputError(f"model {name!r} must be buildable without arguments: {error}") from None
