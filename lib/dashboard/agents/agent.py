"""The agent: a process that joins a server with this machine's slots and runs tasks on them, one worker process per slot.

It has three rules. It runs only the tasks of an allow-list. When the server has not answered for half of ``silent_s``, or was
restarted, the agent ends its workers: their jobs are retried from their checkpoints, wherever the server then places them. And
when the agent ends, for whatever reason, its workers end with it.
"""

import contextlib
import math
import os
import platform
import queue
import random
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import lib
from lib import paths
from lib.dashboard.agents.client import Client, NoAnswerError, SessionOverError
from lib.dashboard.agents.devices import Meter
from lib.dashboard.agents.messages import (
    API_VERSION,
    Device,
    Exchange,
    Mailbox,
    Registered,
    Registration,
)
from lib.errors import InputError
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, logged

_LOOK_S, _LOAD_S = 0.2, 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_BATCH_S = 0.1  # reports wait so long for others; what ends or begins a job does not
_MOST_WAITING = 5_000  # messages; then workers that write more wait


def _check_inside(folder: Path, path: Any, name: str) -> None:
    if not (isinstance(path, str) and Path(path).is_absolute() and Path(path).resolve().is_relative_to(folder.resolve())):
        raise InputError(f"{name} {path!r} is no absolute path in {folder}, outside of which an agent runs nothing")


def _check_data(folder: str) -> None:
    """Refuse a server whose data folder has another path, since its runs would fail here; warn where it is not shared."""
    if Path(folder).resolve() != paths.DATA.resolve():
        raise InputError(f"the server's data folder {folder} is not {paths.DATA} of this machine: mount the server's folder "
                         f"under the same path, and start the agent with LIB_OUTPUT={Path(folder).parent}")
    if not (paths.DATA / "dashboard").is_dir():
        _print(f"{folder} here is not the server's: mount that one there, or files of runs stay on this machine")


def _check_finetune(arguments: Mapping[str, Any]) -> None:
    _check_inside(paths.DATA, arguments.get("folder"), "folder")


def _check_notebook(arguments: Mapping[str, Any]) -> None:
    _check_inside(paths.DATA, arguments.get("out"), "out")
    _check_inside(paths.NOTEBOOKS, str(paths.ROOT / str(arguments.get("path"))), "path")


ALLOWED: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "lib.finetune.task:finetune": _check_finetune, "lib.schedule.runtime.tasks:notebook": _check_notebook}


class Agent:
    """An agent with its slots, each with the device that the server is told of."""

    def __init__(self, client: Client, name: str, slots: Sequence[tuple[Slot, Device]],
                 allowed: Mapping[str, Callable[[Mapping[str, Any]], None]] = ALLOWED):
        self._client, self._slots, self._allowed = client, {device.name: slot for slot, device in slots}, allowed
        self._registration = Registration(
            name=name, host=platform.node()[:200], instance=secrets.token_hex(16), api_version=API_VERSION,
            runner_version=lib.__version__, labels={"python": platform.python_version(), "system": platform.system()},
            devices=tuple(device for _, device in slots))
        self._meter = Meter([device.gpu for _, device in slots if device.gpu])

    def run(self) -> None:
        """Join the server again and again, until interrupted. Raises InputError where trying again would not help."""
        pause_s, last, session = _FIRST_PAUSE_S, "", None
        while True:
            registered = None
            try:
                registered = self._client.register(self._registration)
                _check_data(registered.data)
                _print(f"{self._registration.name} joined {self._client.server} with {', '.join(self._slots)}")
                pause_s, last = _FIRST_PAUSE_S, ""
                session = _Session(self._client, registered, self._slots, self._allowed, self._meter,
                                   session.unwritten() if session else [])
                session.run()
            except (NoAnswerError, SessionOverError) as error:
                if str(error) != last:
                    _print(f"{self._client.server}: {error}; trying again")
                last = str(error)
                time.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            except (KeyboardInterrupt, InputError):
                if registered:
                    self._leave(registered)
                raise

    def _leave(self, registered: Registered) -> None:
        exchange = Exchange(session=registered.session, acknowledged=0, leaving=True)
        with contextlib.suppress(Exception):  # whatever keeps the server from hearing that, it will notice
            self._client.exchange(registered.agent_id, exchange, registered.silent_s / 4)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Session:
    """The agent from one registration to the next: its workers, and two threads that talk to the server.

    The main thread leads the workers and sends their messages. The other thread waits for the server's messages to them.
    """

    def __init__(self, client: Client, registered: Registered, slots: Mapping[str, Slot], allowed: Mapping[str, Callable],
                 meter: Meter, reports: Sequence[tuple[Any, ...]]):
        """Begin with the ``reports`` of earlier sessions that the server has not written down."""
        self._client, self._registered, self._slots, self._allowed, self._meter = client, registered, slots, allowed, meter
        self._limits = Limits(beat_s=registered.beat_s, silent_s=registered.silent_s)
        self._mailbox, self._unwritten = Mailbox(), deque()
        for report in reports:
            self._mailbox.post(0, *report)
        self._workers: dict[int, ProcessWorker] = {}
        self._dead: set[int] = set()
        self._commands: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._alive: set[int] = set()
        self._lock, self._bell, self._ring = threading.Lock(), *Pipe(duplex=False)
        self._answered_s, self._failure = time.monotonic(), None
        self._sent_s, self._load_s, self._urgent, self._pause_s = 0.0, 0.0, False, 0.0

    def run(self) -> None:
        """Serve until the session is over, and end the workers. Raises what ended it."""
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            while not self._failure:
                self._turn()
            raise self._failure
        finally:
            self._failure = self._failure or SessionOverError("ended")
            self._end_workers()

    def _end_workers(self) -> None:
        for worker in self._workers.values():
            worker.shut_down()
        self._workers.clear()

    # ------------------------------------------------------------------------------------------ with the server

    def _exchange(self, **content: Any) -> None:
        """Call the server once. Raises NoAnswerError, SessionOverError or InputError."""
        began_s = time.monotonic()
        alive, self._alive = tuple(self._alive), set()
        if began_s - self._load_s > _LOAD_S:
            self._load_s, content["load"] = began_s, self._meter.load()
        exchange = Exchange(session=self._registered.session, acknowledged=self._mailbox.received, alive=alive, **content)
        reply = self._client.exchange(self._registered.agent_id, exchange, self._registered.silent_s / 4)
        with self._lock:
            self._answered_s = max(self._answered_s, began_s)  # when it was sent: the server counts from later on
            self._unwritten.extend(self._mailbox.acknowledge(reply.acknowledged))
            while self._unwritten and self._unwritten[0][0] <= reply.written:
                self._unwritten.popleft()
            for message in self._mailbox.take(reply.messages):
                self._commands.put(message)
        if not self._commands.empty():
            self._ring.send_bytes(b".")

    def unwritten(self) -> list[tuple[Any, ...]]:
        """Return the reports that the server may not have written down, once the session is over."""
        with self._lock:
            self._unwritten.extend(self._mailbox.acknowledge(math.inf))
            return [report for _, (_, *report) in self._unwritten if report[0] == "report"]

    def _listen(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._failure:
            try:
                self._exchange(wait_s=min(1.0, self._registered.silent_s / 8))
                pause_s = _FIRST_PAUSE_S
            except NoAnswerError:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, self._registered.silent_s / 8)
            except Exception as error:  # the main thread raises it
                self._failure = self._failure or error
                self._ring.send_bytes(b".")

    def _deliver(self) -> None:
        """Send the workers' messages: urgent ones at once, reports in batches."""
        now = time.monotonic()
        if self._mailbox and now - self._sent_s > (self._pause_s or (0 if self._urgent else _BATCH_S)):
            self._sent_s, self._urgent = now, False
            try:
                self._exchange(messages=tuple(self._mailbox.outgoing()))
                self._pause_s, self._urgent = 0.0, bool(self._mailbox)
            except NoAnswerError:
                self._pause_s = min(2 * (self._pause_s or _FIRST_PAUSE_S), self._registered.silent_s / 8)
        silent_s = time.monotonic() - self._answered_s
        if silent_s > self._registered.silent_s / 2:
            self._failure = NoAnswerError(f"no answer for {silent_s:.0f} s: what ran here is ended")

    # ------------------------------------------------------------------------------------------ with the workers

    def _turn(self) -> None:
        """Handle new messages of the server and of the workers."""
        alive = {number: worker for number, worker in self._workers.items() if number not in self._dead}
        is_full = len(self._mailbox) > _MOST_WAITING
        wait([self._bell, *(end for worker in alive.values() for end in (worker.pipe, worker.log) if not is_full)],
             _BATCH_S if self._mailbox else _LOOK_S)
        while self._bell.poll():
            self._bell.recv_bytes()
        while not self._commands.empty():
            self._obey(*self._commands.get())
        if is_full:
            self._alive |= set(alive)  # they wait until they can be heard
        for number in [] if is_full else self._workers.keys() & alive:
            for message in self._workers[number].messages():
                self._post(number, message)
        self._deliver()

    def _post(self, number: int, message: tuple[Any, ...]) -> None:
        if message[0] == "heartbeat":
            self._alive.add(number)
            return
        if message[0] == "died":
            self._dead.add(number)
        self._urgent |= message[0] != "report"
        try:
            self._mailbox.post(number, *message)
        except ValueError as error:  # larger than a message may be
            if message[0] == "report":
                _print(f"{message[1]}: a report is left out: {error}")
            else:
                self._mailbox.post(number, "failed", message[1], f"what it returns cannot be sent: {error}")

    def _obey(self, number: int, command: str, *content: Any) -> None:
        if command == "spawn":
            self._workers[number] = logged(self._slots[content[0]], self._limits)
        elif number not in self._workers:
            return
        elif command == "shut_down":
            self._workers.pop(number).shut_down()
            self._post(number, ("ended",))
        elif content[0] == "run" and (refusal := self._refusal(*content[2:])):
            self._post(number, ("refused", content[1], refusal))
        else:
            self._workers[number].send(*content)

    def _refusal(self, call: str, arguments: Mapping[str, Any]) -> str:
        """Return why a task is not run here; empty if it is."""
        if call not in self._allowed:
            return f"agents run no task {call!r}; they run: {', '.join(self._allowed)}"
        try:
            self._allowed[call](arguments)
        except InputError as error:
            return str(error)
        return ""


def end_with_parent(parent: int) -> None:
    """Terminate this process as soon as its parent process has ended, also where that has happened already."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def default_name() -> str:
    """Return this host's name as an agent's."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in platform.node()).strip("._-") or "agent"
