"""Worker processes on this machine: one per slot, replaced when it dies, and all end with this process.

A task is a function, called in a worker as ``function(**arguments, devices=[...], threads=n)``; it
returns a small dictionary. SIGTERM raises StopRequest in it. Imports nothing heavy.
"""

import gc
import json
import os
import pkgutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from lib import locks
from lib.errors import InputError, choices, is_no_space, is_out_of_memory, one_line
from lib.measure import worker
from lib.schedule.loop import Back, Lost
from lib.schedule.run.slots import Slot

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
WARM_UP = "lib.schedule.runtime.tasks:warm_up"
READY_S, GRACE_S = 15.0, 5.0  # how long the first workers are waited for, and one that stops
_STARTS = 3  # workers in a row that may fail to start on a slot


class StopRequest(BaseException):
    """Raised in a task that must end now: its ``with`` and ``finally`` blocks still run."""


class TaskEnd(NamedTuple):
    """The end of an attempt: done, failed or lost (with its device), and whether to try again."""

    attempt: int
    status: str
    result: dict[str, Any] | None = None
    reason: str = ""
    again: bool = True


# ---------------------------------------------------------------------- in the worker


def task_function(text: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names; InputError says what is wrong with it."""
    try:
        if ":" not in text:
            raise ValueError("it has no colon")
        return pkgutil.resolve_name(text)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"no function {text!r} ({error}); a task is module:function") from None


_stop = {"allowed": False}  # whether a task runs that SIGTERM may interrupt


def _interrupt(*_: object) -> None:
    if _stop["allowed"]:
        _stop["allowed"] = False
        raise StopRequest


def call(task: str, arguments: dict[str, Any], devices: list[str], threads: int) -> TaskEnd:
    """Call a task in this process; return how it ended (as attempt 0), whatever it raises."""
    try:
        function = task_function(task)
        try:
            _stop["allowed"] = True
            result = function(**arguments, devices=devices, threads=threads)
        finally:
            _stop["allowed"] = False
        text = json.dumps(result)
        end = TaskEnd(0, "done", json.loads(text, parse_constant=lambda _: None))  # NaN is no JSON
    except StopRequest:
        end = TaskEnd(0, "failed", reason="it was stopped")
    except InputError as error:  # a subclass says that it may pass, such as a lock that is held
        again = type(error) is not InputError or is_no_space(str(error))
        end = TaskEnd(0, "failed", reason=str(error), again=again)
    except BaseException as error:  # an error of a task ends the task, not the worker
        reason = "out of memory" if is_out_of_memory(error) else one_line(error)
        end = TaskEnd(0, "failed", reason=reason)
    _free_memory()
    sys.stdout.flush()
    return end


def _free_memory() -> None:
    """Free the GPU memory of a task that ended or failed."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


@contextmanager
def _serve(devices: list[str], cores: tuple[int, ...], threads: int,
           warm_up: str) -> Iterator[tuple[int, Callable[[Any], TaskEnd]]]:
    """Serve calls in a worker process that is pinned to cores."""
    worker.pin(cores)
    signal.signal(signal.SIGTERM, _interrupt)
    if warm_up:
        task_function(warm_up)()
    yield os.getpid(), lambda request: call(*request, devices, threads)


# ---------------------------------------------------------------------- in this process


@dataclass(eq=False)
class _Process:
    """A worker process and what it does; ``pid`` is 0 until it is ready."""

    service: worker.Service
    pid: int = 0
    attempt: int = 0  # 0: none


class ProcessWorkers:
    """One worker process per slot; a job on several slots gets a process of its own for that time.

    ``notes`` say which workers died, and which slots were given up.
    """

    def __init__(self, slots: Sequence[Slot], warm_up: str = WARM_UP):
        """Start the workers, and wait until all are ready, but at most 15 s."""
        self.slots, self.notes, self._warm_up = tuple(slots), [], warm_up
        self._processes: dict[tuple[int, ...], _Process] = {}  # by the numbers of their slots
        self._events: list[TaskEnd | Lost | Back] = []  # not yet told
        self._failed_starts = dict.fromkeys(range(len(slots)), 0)
        self._lost: set[int] = set()
        for device in range(len(slots)):
            self._start_process((device,))
        until = time.monotonic() + READY_S
        while self.starting and time.monotonic() < until:
            self._listen(until - time.monotonic())
        for devices in self.starting:
            self._lose(devices)

    def _start_process(self, devices: tuple[int, ...]) -> _Process:
        slots = [self.slots[device] for device in devices]
        card = ",".join(slot.card for slot in slots if slot.card)
        names = [f"cuda:{number}" if card else "cpu" for number in range(len(slots))]
        cores, threads = sum((slot.cores for slot in slots), ()), slots[0].threads
        variables = {**dict.fromkeys(THREADS, str(threads)), locks.MASK: card,
                     worker.GPUS: slots[0].gpus}
        service = worker.Service(
            _serve, names, cores, threads, self._warm_up if len(slots) == 1 else "", name=f"slot {slots[0].name}",
            environment={name: value for name, value in variables.items() if value})
        self._processes[devices] = _Process(service)
        return self._processes[devices]

    def start(self, attempt: int, task: str, arguments: dict[str, Any],
              devices: tuple[int, ...]) -> None:
        """Run a task on slots; its TaskEnd comes from ``poll``."""
        process = self._processes.get(devices) or self._start_process(devices)
        process.attempt = attempt
        process.service.send((task, arguments))

    def stop(self, attempt: int) -> None:
        """Stop an attempt: by SIGTERM, and if it does not end within 5 s, by the end of its worker."""
        devices = next((key for key, process in self._processes.items()
                        if process.attempt == attempt), None)
        if devices is None:
            return
        process = self._processes[devices]
        process.attempt = 0
        if process.pid:
            os.kill(process.pid, signal.SIGTERM)  # not reaped before shut_down: the id is its own
            if process.service.pipe.poll(GRACE_S):
                self._hear(devices)
                return
        self._replace(devices, "")

    def poll(self, timeout_s: float) -> list[TaskEnd | Lost | Back]:
        """Wait until something happens, at most ``timeout_s``; return what happened.

        Raises InputError when no worker can be started on any slot.
        """
        if not self._events:
            self._listen(timeout_s)
        events, self._events = self._events, []
        if not self._processes:
            raise InputError(f"no slot is left ({choices(self.notes[-3:])}); the same call again "
                             "resumes")
        return events

    @property
    def starting(self) -> list[tuple[int, ...]]:
        """Slots whose worker is not ready yet."""
        return [devices for devices, process in self._processes.items() if not process.pid]

    def _listen(self, timeout_s: float) -> None:
        """Wait for the processes that are busy or starting, and hear what they say."""
        pipes = {process.service.pipe: devices for devices, process in self._processes.items()
                 if process.attempt or not process.pid}
        if not pipes:
            time.sleep(timeout_s)
        for pipe in wait(pipes, timeout_s):
            self._hear(pipes[pipe])

    def _hear(self, devices: tuple[int, ...]) -> None:
        process = self._processes[devices]
        try:
            message = process.service.ready()
        except Exception as error:  # it died, or its warm-up raised something
            self._replace(devices, str(error) or one_line(error))
            return
        if not process.pid:
            process.pid = message
            self._failed_starts.update(dict.fromkeys(devices, 0))
            if len(devices) == 1 and devices[0] in self._lost:
                self._lost.remove(devices[0])
                self._events.append(Back(devices[0]))
            return
        if process.attempt:
            self._events.append(message._replace(attempt=process.attempt))
        process.attempt = 0
        if len(devices) > 1:
            self._processes.pop(devices).service.shut_down()

    def _replace(self, devices: tuple[int, ...], reason: str) -> None:
        """End a worker process that died or did not stop, and start another one on its slot."""
        process = self._processes.pop(devices)
        process.service.shut_down()
        if process.attempt:
            self._events.append(TaskEnd(process.attempt, "failed", reason=reason))
        name = self.slots[devices[0]].name
        if reason:
            self.notes.append(f"{name}: {reason}")
        if len(devices) > 1:
            return
        self._lose(devices)
        self._failed_starts[devices[0]] += 0 if process.pid else 1
        if self._failed_starts[devices[0]] < _STARTS:
            self._start_process(devices)
        else:
            self.notes.append(f"{name} is given up: {_STARTS} workers in a row could not start")

    def _lose(self, devices: tuple[int, ...]) -> None:
        if devices[0] not in self._lost:
            self._lost.add(devices[0])
            self._events.append(Lost(devices[0]))

    def close(self) -> None:
        """End all workers at once."""
        for process in self._processes.values():
            process.service.shut_down()
        self._processes.clear()
