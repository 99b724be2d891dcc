"""A worker: one long-lived process per device or CPU slot, which runs one task after another. Imports nothing heavy.

Messages are tuples. To the worker: ``("run", token, call, arguments, *member)``, with the fields of a Member where a gang
runs the task; ``("stop", token)``, ``("end",)``. From it:
``("ready", pid)``, ``("heartbeat",)``, ``("done", token, result)``, ``("failed", token, reason)``, ``("stopped", token)``,
``("refused", token, reason)``: wrong input, as it would be at every attempt; ``("report", token, content)`` meanwhile.
"""

import gc
import json
import os
import pkgutil
import queue
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from lib.errors import InputError, is_no_space, is_out_of_memory, one_line
from lib.measure.worker import pin
from lib.schedule.runtime.output import Message, redirect

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def function(text: str) -> Callable[..., Any]:
    """Return the function that ``module:name`` names; InputError says what is wrong with the text."""
    try:
        if ":" not in text:
            raise ValueError("it has no colon")
        return pkgutil.resolve_name(text)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"no function {text!r} ({error}); a task calls module:function") from None


class Stopped(Exception):  # noqa: N818 - no error
    """Raised in a task by ``Job.check`` when it must stop."""


class Member(NamedTuple):
    """A worker's place in a gang of ``count``, the first of which leads; they meet at the file ``rendezvous``."""

    rank: int = 0
    count: int = 1
    rendezvous: str = ""


ALONE = Member()


class Job:
    """The first argument of a task: its device and threads, its place in a gang, a request to stop, and a way to report."""

    def __init__(self, device: str, threads: int, send: Callable[[dict[str, Any]], None] = len, member: Member = ALONE):
        self.device, self.threads, self._send, self.member = device, threads, send, member
        self._stop = threading.Event()

    def report(self, content: dict[str, Any]) -> None:
        """Report progress, such as ``{"metrics": {...}}``, to the leading process; TypeError for what JSON cannot hold."""
        self._send(json.loads(json.dumps(content)))

    def check(self) -> None:
        """Raise Stopped if the job must stop; call it between steps."""
        if self._stop.is_set():
            raise Stopped

    def stop(self) -> None:
        """Ask the job to stop at its next check."""
        self._stop.set()


class _Leader:
    """The leading process as the worker sees it: ``requests`` wait for their turn, a stop reaches its job at once.

    When the leading process is gone, this one ends.
    """

    def __init__(self, pipe: Any):
        self._pipe, self._lock, self.requests = pipe, threading.Lock(), queue.Queue()
        self._current = "", None  # token and job
        self._stops = set()  # tokens

    def send(self, *message: Any) -> None:
        """Send one message, from any thread."""
        with self._lock:
            try:
                self._pipe.send(message)
            except (OSError, ValueError):
                os._exit(0)

    def listen(self) -> None:
        """Take messages for ever."""
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                os._exit(0)
            if message[0] == "stop":
                self._stops.add(message[1])  # first: its job may be about to begin
                token, job = self._current
                if token == message[1]:
                    job.stop()
            else:
                self.requests.put(message)

    def begin(self, token: str, job: Job) -> None:
        """Let stops of a job reach it, also one that came before it began."""
        self._current = token, job
        if token in self._stops:
            job.stop()
        self._stops.clear()  # of jobs that have ended


def serve(pipe: Any, device: str, cores: tuple[int, ...], threads: int, beat_s: float, warm_up: str = "",
          output: Connection | None = None) -> None:
    """Run tasks until an ``end`` message, or until the leading process is gone; ``warm_up`` is called first.

    ``pipe`` exchanges messages with that process by ``recv`` and ``send``, as a Connection does: EOFError or OSError when it is
    gone. Printed text goes to ``output``, if there is one.
    """
    if output:
        redirect(output)
    pin(cores)
    leader, over = _Leader(pipe), threading.Event()

    def beat() -> None:
        while not over.wait(beat_s):
            leader.send("heartbeat")

    threading.Thread(target=leader.listen, daemon=True).start()
    threading.Thread(target=beat, daemon=True).start()
    if warm_up:
        function(warm_up)()
    leader.send("ready", os.getpid())
    while (message := leader.requests.get())[0] != "end":
        _, token, call, arguments, *member = message
        job = Job(device, threads, partial(leader.send, "report", token), Member(*member))
        leader.begin(token, job)
        outcome = _outcome(token, call, arguments, job)
        _free()
        sys.stdout.flush()
        sys.stderr.flush()
        leader.send(*outcome)
    over.set()


def _outcome(token: str, call: str, arguments: dict[str, Any], job: Job) -> Message:
    try:
        result = function(call)(job, **arguments)
        try:
            return "done", token, json.loads(json.dumps(result))  # as the journal will hold it
        except (TypeError, ValueError) as error:
            return "failed", token, f"its result cannot be written as JSON: {error}"
    except Stopped:
        return "stopped", token
    except InputError as error:
        passing = type(error) is not InputError or is_no_space(str(error))  # such as a lock that another process holds
        return "failed" if passing else "refused", token, str(error)
    except Exception as error:  # an error of a job ends the job, not the worker
        return "failed", token, "out of memory" if is_out_of_memory(error) else one_line(error)


def _free() -> None:
    """Free the GPU memory of a task that ended or failed, except what it caches on purpose."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


class ActorWorker:
    """A worker that is called as an actor: its pipe is two queues, and each method runs in its own thread."""

    def __init__(self):
        self._received, self._sent = queue.SimpleQueue(), queue.SimpleQueue()
        self.recv, self.send = self._received.get, self._sent.put

    def run(self, *arguments: Any) -> None:
        """Run tasks as ``serve`` does with these arguments."""
        try:
            serve(self, *arguments)
        except Exception as error:  # a process would end; an actor must report it
            self.send(("died", f"the worker ended: {one_line(error)}"))

    def put(self, message: Message) -> None:
        """Take a message."""
        self._received.put(message)

    def take(self) -> list[Message]:
        """Wait for a message; return all that there are."""
        messages = [self._sent.get()]
        while not self._sent.empty():
            messages.append(self._sent.get())
        return messages
