"""Worker processes on this machine: one per slot, replaced when it dies; all end with this one.

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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from lib import locks
from lib.errors import InputError, is_no_space, is_out_of_memory, one_line
from lib.measure import worker
from lib.schedule.loop import Lost
from lib.schedule.run.slots import Slot

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
WARM_UP = "lib.schedule.run.tasks:warm_up"
READY_S, GRACE_S = 15.0, 5.0  # how long the first workers are waited for, and one that stops
_STARTS = 3  # of workers in a row that fail on a slot, which is then lost


class StopRequest(BaseException):
    """Raised in a task that must end now: its ``with`` and ``finally`` blocks still run."""


class TaskEnd(NamedTuple):
    """The end of an attempt: done, failed or lost (with its device), and whether to try again."""

    attempt: int
    status: str
    result: dict[str, Any] | None = None
    reason: str = ""
    again: bool = True


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
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
    sys.stdout.flush()
    return end


def call_on(slots: Sequence[Slot], task: str, arguments: dict[str, Any]) -> TaskEnd:
    """Call a task in this process, the worker of the first of some slots, on all of them."""
    cards = [slot.card for slot in slots if slot.card]
    if cards:
        os.environ[locks.MASK] = ",".join(cards)
    worker.pin(sum((slot.cores for slot in slots), ()))
    devices = [f"cuda:{number}" if slot.card else "cpu" for number, slot in enumerate(slots)]
    return call(task, arguments, devices, slots[0].threads)


@contextmanager
def _serve(cores: tuple[int, ...],
           warm_up: str) -> Iterator[tuple[None, Callable[[Any], TaskEnd]]]:
    worker.pin(cores)  # before libraries start threads
    signal.signal(signal.SIGTERM, _interrupt)
    if warm_up:
        task_function(warm_up)()
    yield None, lambda request: call_on(*request)


@dataclass(eq=False)
class _Process:
    """A worker process; ``attempt`` is 0 while it is idle."""

    service: worker.Service
    ready: bool = False
    attempt: int = 0


class ProcessWorkers:
    """One worker process per slot; a job on several slots runs in that of the first."""

    def __init__(self, slots: Sequence[Slot], warm_up: str = WARM_UP):
        """Start the workers, and wait until all are ready, but at most 15 s."""
        self.slots, self._warm_up = tuple(slots), warm_up
        self._events: list[TaskEnd | Lost] = []  # not yet told
        self._failed_starts: Counter[int] = Counter()  # in a row, by slot
        self._processes: list[_Process] = []
        until = time.monotonic() + READY_S
        try:
            for slot in slots:
                self._processes.append(self._process(slot))
            while (left_s := until - time.monotonic()) > 0 and not all(
                    process.ready or self._is_lost(number)
                    for number, process in enumerate(self._processes)):
                self._listen(left_s)
        except BaseException:
            self.close()
            raise

    def _process(self, slot: Slot) -> _Process:
        variables = {**dict.fromkeys(THREADS, str(slot.threads)), locks.MASK: slot.card,
                     worker.GPUS: slot.gpus}
        return _Process(worker.Service(
            _serve, slot.cores, self._warm_up, name=f"slot {slot.name}",
            environment={name: value for name, value in variables.items() if value}))

    def start(self, attempt: int, task: str, arguments: dict[str, Any],
              devices: tuple[int, ...]) -> None:
        """Run a task on slots; its TaskEnd comes from ``poll``: lost where no worker could start."""
        if self._is_lost(devices[0]):
            self._events += [TaskEnd(attempt, "lost", reason="its slot is lost"), Lost(devices[0])]
            return
        process = self._processes[devices[0]]
        process.attempt = attempt
        process.service.send(([self.slots[device] for device in devices], task, arguments))

    def stop(self, attempt: int) -> None:
        """Stop an attempt, and return when it has ended: by SIGTERM, or after 5 s with its worker."""
        for number, process in enumerate(self._processes):
            if process.attempt == attempt:
                process.attempt = 0
                if process.ready:
                    process.service.terminate()
                if process.ready and process.service.pipe.poll(GRACE_S):
                    self._hear(number)
                else:
                    self._replace(number)

    def poll(self, timeout_s: float) -> list[TaskEnd | Lost]:
        """Return what happened, after at most ``timeout_s``; InputError when no slot is left."""
        if not self._events:
            self._listen(timeout_s)
        events, self._events = self._events, []
        return events

    def _listen(self, timeout_s: float) -> None:
        """Wait for the processes, and hear what they say; of an idle one that is its death."""
        pipes = {process.service.pipe: number for number, process in enumerate(self._processes)
                 if not self._is_lost(number)}
        for pipe in wait(pipes, timeout_s):
            self._hear(pipes[pipe])

    def _hear(self, number: int) -> None:
        process = self._processes[number]
        try:
            message = process.service.receive()
        except Exception as error:  # it died, or its warm-up raised something
            if process.attempt:
                status, reason = "failed" if process.ready else "lost", str(error) or one_line(error)
                self._events.append(TaskEnd(process.attempt, status, reason=reason))
            self._failed_starts[number] = 0 if process.ready else self._failed_starts[number] + 1
            if self._is_lost(number):
                self._lose(number, one_line(error))
            else:
                self._replace(number)
            return
        if not process.ready:
            process.ready, self._failed_starts[number] = True, 0
            return
        if process.attempt:
            self._events.append(message._replace(attempt=process.attempt))
        process.attempt = 0

    def _is_lost(self, number: int) -> bool:
        return self._failed_starts[number] >= _STARTS

    def _lose(self, number: int, reason: str) -> None:
        """Lose a slot on which no worker can start; InputError if it was the last one."""
        self._processes[number].attempt = 0
        self._events.append(Lost(number))
        line = f"{_STARTS} workers in a row could not start on {self.slots[number].name}: {reason}"
        if all(map(self._is_lost, range(len(self.slots)))):
            raise InputError(f"no slot is left: {line}; the same call again resumes")
        print(f"a slot is lost: {line}", file=sys.stderr, flush=True)

    def _replace(self, number: int) -> None:
        """End a worker process that died or did not stop, and start another one on its slot."""
        self._processes[number].service.shut_down()
        self._processes[number] = self._process(self.slots[number])

    def close(self) -> None:
        """End all workers at once."""
        for process in self._processes:
            process.service.shut_down()
