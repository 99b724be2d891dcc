"""A process of its own for work that may die, hang, or need an environment: how it is started, asked, watched and shut down.

``Worker`` is the process and a pipe to it, for any protocol. ``Service`` adds requests that are answered one at a time, for
sweeps and the scheduler's jobs; ``call`` runs one function in a process that ends with it, for networks
and the matrix. Imports nothing heavy, so that a worker is there soon.
"""

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
    """Return how many cores this run may use: those that it was started with, whatever share of them this worker has."""
    given = os.environ.get(_CORES, "")
    return int(given) if given.isdecimal() and int(given) else len(allowed_cores())


def pin(cores: tuple[int, ...]) -> None:
    """Keep this process, a worker, to its share of the run's cores; nothing where the system cannot."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.environ[_CORES] = str(usable_cores())
        os.sched_setaffinity(0, cores)


class WorkerLostError(RuntimeError):
    """A worker died, or did not answer in time (``hung``); the message says which, and the worker is shut down."""

    def __init__(self, reason: str, hung: bool = False):
        super().__init__(reason)
        self.hung = hung


@contextmanager
def environ(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for what is called, and the processes that are started, meanwhile; put back what was there."""
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


def _led(target: Callable[..., None], pipe: Connection, variables: Mapping[str, str] | None, *arguments: Any) -> None:
    """Run ``target`` in a worker, which ends at once when the process that started it is gone, whatever it is doing.

    ``variables`` are the environment of one that was forked from a server, which has that of its own start.
    """
    if variables is not None:
        os.environ.clear()
        os.environ.update(variables)
    end = os._exit  # as it is now: while a network of a user runs, it is another one

    def end_with_leader() -> None:
        wait([multiprocessing.parent_process().sentinel])
        end(1)

    threading.Thread(target=end_with_leader, daemon=True).start()
    multiprocessing.current_process()._config["daemon"] = False  # it may start processes itself, such as those of a data loader
    target(pipe, *arguments)


class Worker:
    """A spawned process that runs ``target(pipe, *arguments)``, its end of ``pipe``, and the reason of its death.

    ``environment`` are variables that it is started with. With ``imported`` modules it is forked from a server that imported
    these once and did nothing else, so that the second such process is there at once; libraries that read a variable when they
    are loaded have read the server's. The process ends with this one, however this one ends.
    """

    def __init__(self, target: Callable[..., None], *arguments: Any, environment: Mapping[str, str] | None = None,
                 name: str | None = None, imported: Sequence[str] = ()):
        tempfile.gettempdir()  # what a worker imports needs one, and would say so in a traceback
        context = multiprocessing.get_context("forkserver" if imported else "spawn")
        if imported:
            context.set_forkserver_preload(list(imported))
        self.pipe, theirs = context.Pipe()
        with environ(environment or {}):
            variables = dict(os.environ) if imported else None
            self._process = context.Process(target=_led, args=(target, theirs, variables, *arguments), name=name, daemon=True)
            self._process.start()
        theirs.close()

    def send(self, message: Any) -> None:
        """Send a message; one that is dead says so when it is next listened to."""
        try:
            self.pipe.send(message)
        except (OSError, ValueError):
            return

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for the next message; WorkerLostError when it died, or is silent for ``timeout_s`` (None: no limit)."""
        try:
            if self.pipe.poll(timeout_s):
                return self.pipe.recv()
        except (EOFError, OSError):
            reason, hung = self.death(), False
        else:
            reason, hung = f"no answer within {timeout_s:g} s", True
        self.shut_down()
        raise WorkerLostError(reason, hung)

    def death(self) -> str:
        """Return how the process ended."""
        self._process.join(_JOIN_S)
        return f"the worker {death(self._process.exitcode)}"

    def terminate(self) -> None:
        """Send the process SIGTERM, which its target may handle; nothing if it has ended."""
        self._process.terminate()

    def shut_down(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


ServiceFactory = Callable[..., AbstractContextManager[tuple[Any, Callable[[Any], Any]]]]


def _serve(pipe: Connection, service: ServiceFactory, arguments: tuple[Any, ...]) -> None:
    """Send what ``service`` is ready with, then answer requests until whoever asks is gone; an error that it raises is sent."""
    try:
        with service(*arguments) as (ready, respond):
            pipe.send((ready, None))
            while True:
                pipe.send((respond(pipe.recv()), None))
    except (EOFError, BrokenPipeError, ConnectionError, KeyboardInterrupt):
        return
    except Exception as error:  # whatever it is, it is raised where the request was made
        pipe.send((None, error))


class Service(Worker):
    """A worker that answers requests one at a time.

    ``service(*arguments)``, called in the process, is a context manager; it gives what it is ``ready`` with, and the function
    that responds to a request. An error that it raises ends it, and is raised here. ``start``: how a ``Worker`` starts.
    """

    def __init__(self, service: ServiceFactory, *arguments: Any, **start: Any):
        super().__init__(_serve, service, arguments, **start)

    def ready(self, timeout_s: float | None = None) -> Any:
        """Wait until it is set up; return what it is ready with. Raises what stopped it, or WorkerLostError."""
        result, error = self.receive(timeout_s)
        if error is not None:
            self.shut_down()
            raise error
        return result

    def ask(self, request: Any, timeout_s: float | None = None) -> Any:
        """Return the response to ``request``. Raises what the service raised, or WorkerLostError."""
        self.send(request)
        return self.ready(timeout_s)


def _one_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> AbstractContextManager[tuple[Any, None]]:
    return nullcontext((function(*arguments), None))


def call(function: Callable[..., Any], *arguments: Any, timeout_s: float | None = None, **start: Any) -> Any:
    """Return ``function(*arguments)``, run in a process of its own, within ``timeout_s`` (None: no limit).

    ``start``: how a ``Worker`` starts. Raises what the function raised, or WorkerLostError.
    """
    service = Service(_one_call, function, arguments, **start)
    try:
        return service.ready(timeout_s)
    finally:
        service.shut_down()
