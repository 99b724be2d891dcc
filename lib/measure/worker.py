"""A process of its own for work that may die, hang, or need an environment; and the cores of a run.

``Service`` answers requests one at a time, for sweeps and the scheduler's jobs; ``call`` runs one
function, for networks and the matrix. Imports nothing heavy, so that a worker is there soon.
"""

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from lib.errors import death
from lib.measure.cpu_quota import cpu_quota

_JOIN_S = 5.0
_environment = threading.Lock()
_CORES = "LIB_USABLE_CORES"  # those of the whole run, for a process that has a share of them
GPUS = "LIB_GPUS"  # those of the whole run as JSON, for a process that is shown one of them


def own_cores() -> list[int]:
    """Return the numbers of the cores that this process may run on, whatever its CPU quota."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def allowed_cores() -> list[int]:
    """Return the numbers of the cores that this process may keep busy: as many of its own as its CPU quota allows."""
    return own_cores()[:int(max(1.0, min(cpu_quota(), 1e6)))]


def usable_cores() -> int:
    """Return how many cores this run was started with, whatever share of them this worker has."""
    given = os.environ.get(_CORES, "")
    return int(given) if given.isdecimal() and int(given) else len(allowed_cores())


def pin(cores: tuple[int, ...]) -> None:
    """Keep this process, a worker, to its share of the run's cores; nothing where the system cannot."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.environ[_CORES] = str(usable_cores())
        os.sched_setaffinity(0, cores)


class WorkerLostError(RuntimeError):
    """A worker died, or did not answer in time; the message says which, and the worker is shut down."""


@contextmanager
def environ(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for what is called, and the processes that are started, meanwhile."""
    with _environment:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def environment() -> dict[str, str]:
    """Return this process's environment variables, never those of a process that another thread is starting."""
    with _environment:
        return dict(os.environ)


ServiceFactory = Callable[..., AbstractContextManager[tuple[Any, Callable[[Any], Any]]]]


def _serve(pipe: Connection, variables: Mapping[str, str] | None, service: ServiceFactory,
           arguments: tuple[Any, ...]) -> None:
    """Answer requests in a worker, which ends at once when the process that started it is gone.

    ``variables``: the environment of a fork, whose server has that of its own start.
    """
    if variables is not None:
        os.environ.clear()
        os.environ.update(variables)
    def end_with_leader() -> None:
        wait([multiprocessing.parent_process().sentinel])
        os._exit(1)

    threading.Thread(target=end_with_leader, daemon=True).start()
    multiprocessing.current_process()._config["daemon"] = False  # it may start data loaders
    try:
        with service(*arguments) as (ready, respond):
            pipe.send((ready, None))
            while True:
                pipe.send((respond(pipe.recv()), None))
    except (EOFError, BrokenPipeError, ConnectionError, KeyboardInterrupt):
        return
    except Exception as error:  # whatever it is, it is raised where the request was made
        pipe.send((None, error))


class Service:
    """A worker process that answers requests one at a time, and ends with this one, however it ends."""

    def __init__(self, service: ServiceFactory, *arguments: Any, name: str | None = None,
                 environment: Mapping[str, str] | None = None, imported: Sequence[str] = ()):
        """Start the process.

        Args:
            service: called in the process with ``arguments``, a context manager that gives what it
                is ready with, and the function that responds to a request
            arguments: those of ``service``
            name: of the process
            environment: variables that it is started with
            imported: modules; the process is then forked from a server that imported them once, with
                the variables of its own start, so that the second such process is there at once
        """
        tempfile.gettempdir()  # what a worker imports needs one, and would say so in a traceback
        context = multiprocessing.get_context("forkserver" if imported else "spawn")
        if imported:
            context.set_forkserver_preload(list(imported))
        self.pipe, theirs = context.Pipe()
        with environ(environment or {}):
            variables = dict(os.environ) if imported else None
            self._process = context.Process(target=_serve, name=name, daemon=True,
                                            args=(theirs, variables, service, arguments))
            self._process.start()
        theirs.close()

    def send(self, request: Any) -> None:
        """Send a request; a dead worker says so when it is next listened to."""
        with suppress(OSError, ValueError):
            self.pipe.send(request)

    def ready(self, timeout_s: float | None = None) -> Any:
        """Return what the worker is ready with, see ``receive``."""
        return self.receive(timeout_s)

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return what the worker sends next.

        Raises what stopped it, or WorkerLostError if it died or is silent for ``timeout_s``; then the
        worker is shut down.
        """
        try:
            if self.pipe.poll(timeout_s):
                result, error = self.pipe.recv()
            else:
                error = WorkerLostError(f"no answer within {timeout_s:g} s")
        except (EOFError, OSError):
            self._process.join(_JOIN_S)
            error = WorkerLostError(f"the worker {death(self._process.exitcode)}")
        if error is not None:
            self.shut_down()
            raise error
        return result

    def ask(self, request: Any, timeout_s: float | None = None) -> Any:
        """Return the response to a request, see ``receive``."""
        self.send(request)
        return self.receive(timeout_s)

    def terminate(self) -> None:
        """Send the process SIGTERM, which its service may handle; nothing if it has ended."""
        self._process.terminate()

    def shut_down(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _one_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> AbstractContextManager:
    return nullcontext((function(*arguments), None))


def call(function: Callable[..., Any], *arguments: Any, timeout_s: float | None = None, **start: Any) -> Any:
    """Return ``function(*arguments)``, run in a process of its own, within ``timeout_s`` (None: no limit).

    ``start``: how a ``Service`` starts. Raises what the function raised, or WorkerLostError.
    """
    service = Service(_one_call, function, arguments, **start)
    try:
        return service.receive(timeout_s)
    finally:
        service.shut_down()
