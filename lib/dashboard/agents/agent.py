"""The agent: a process that joins a server with this machine's slots and runs tasks on them, one worker process per slot.

It has three rules. It runs only the tasks of an allow-list. When the server has not answered for half of ``silent_s``, or was
restarted, the agent ends its workers: their jobs are retried from their checkpoints, wherever the server then places them. And
when the agent ends, for whatever reason, its workers end with it.
"""

import contextlib
import os
import platform
import random
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from pydantic import HttpUrl, TypeAdapter, ValidationError

import lib
from lib import paths
from lib.config.base import parse
from lib.dashboard.agents import devices
from lib.dashboard.agents.messages import API_VERSION, Device, Exchange, Mailbox, Message, Registered, Registration, Reply
from lib.errors import InputError, one_line, refused
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, logged

_API = "/api/v1/agents"
_CONNECT_S, _LOAD_S, _PARENT_S = 5.0, 2.0, 0.2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_PACE_S = 0.05  # between two calls of the server
_LISTEN_S = 0.25  # a call waits so long for a message while workers run, whose own messages wait for it
_MOST_WAITING = 5_000  # messages; then workers that write more wait


class NoAnswerError(Exception):
    """The server did not answer; a later call may succeed."""


class SessionOverError(Exception):
    """The server no longer knows the session of this agent."""


class Client:
    """The two calls of the server."""

    def __init__(self, server: str, token: str):
        try:
            TypeAdapter(HttpUrl).validate_python(server)
        except ValidationError:
            raise InputError(f"--server {server!r} is no address; it is such as http://127.0.0.1:8000") from None
        self.server = server.rstrip("/")
        self._http = httpx.Client(headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                                  trust_env=False)  # the token goes to the server, to no proxy

    def register(self, registration: Registration) -> Registered:
        """Begin a session."""
        return self._post("/register", registration, Registered, _CONNECT_S)

    def exchange(self, agent_id: str, exchange: Exchange, patience_s: float) -> Reply:
        """Exchange messages."""
        return self._post(f"/{agent_id}/exchange", exchange, Reply, patience_s + exchange.wait_s)

    def _post(self, path: str, content: Any, answer: type, patience_s: float) -> Any:
        """Return the answer. Raises InputError where trying again would not help, else NoAnswerError or SessionOverError."""
        try:
            response = self._http.post(f"{self.server}{_API}{path}", content=content.model_dump_json(), timeout=patience_s)
        except httpx.HTTPError as error:
            raise NoAnswerError(one_line(error)) from None
        status, where = response.status_code, f"what answers at {self.server}"
        if status == 200:
            return parse(answer, response.content, where)
        reason = response.text[:300]
        if status == 410:
            raise SessionOverError(reason)
        if status in (401, 403):
            raise InputError(f"{self.server} refuses this agent's token: give the file that the dashboard names at its start "
                             "as --token-file")
        if status == 409:
            raise InputError(f"{self.server}: {reason}")
        if status >= 500 or status == 429:
            raise NoAnswerError(f"status {status}: {reason}")
        raise InputError(f"{where} is no dashboard, or one of another version: status {status}, {reason}")


def read_token(path: Path | None) -> str:
    """Return the token from a file, from DASHBOARD_TOKEN, or from the dashboard's file on this machine.

    The variable is removed from the environment, so that no job gets the token.
    """
    stated = os.environ.pop("DASHBOARD_TOKEN", "")
    if path is None and stated:
        return stated
    path = path or paths.DATA / "dashboard" / "token"
    with refused(f"no token for the server in {path} (",
                 "); --token-file names the file that the dashboard names at its start"):
        return path.read_text(encoding="utf-8").strip()


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


def _check_notebook(arguments: Mapping[str, Any]) -> None:
    _check_inside(paths.DATA, arguments.get("out"), "out")
    _check_inside(paths.NOTEBOOKS, str(paths.ROOT / str(arguments.get("path"))), "path")


Check = Callable[[Mapping[str, Any]], None]  # of the arguments of a task; raises InputError
ALLOWED: dict[str, Check] = {
    "lib.finetune.task:finetune": lambda arguments: _check_inside(paths.DATA, arguments.get("folder"), "folder"),
    "lib.schedule.runtime.tasks:notebook": _check_notebook}


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Agent:
    """An agent with its slots, each with the device that the server is told of; it does everything in one thread.

    Between one registration and the next it has a session: its workers, and their messages from and to the server.
    """

    def __init__(self, client: Client, name: str, slots: Sequence[tuple[Slot, Device]],
                 allowed: Mapping[str, Check] = ALLOWED):
        self._client, self._slots, self._allowed = client, {device.name: slot for slot, device in slots}, allowed
        self._registration = Registration(
            name=name, host=platform.node()[:200], instance=secrets.token_hex(16), api_version=API_VERSION,
            runner_version=lib.__version__, labels={"python": platform.python_version(), "system": platform.system()},
            devices=tuple(device for _, device in slots))
        self._cards = [device.gpu for _, device in slots if device.gpu]
        self._session: Registered | None = None
        self._mailbox = Mailbox()
        self._workers: dict[int, ProcessWorker] = {}

    def run(self) -> None:
        """Join the server again and again, until interrupted. Raises InputError where trying again would not help."""
        pause_s, last = _FIRST_PAUSE_S, ""
        while True:
            self._session = None
            try:
                self._session = self._client.register(self._registration)
                _check_data(self._session.data)
                _print(f"{self._registration.name} joined {self._client.server} with {', '.join(self._slots)}")
                pause_s, last = _FIRST_PAUSE_S, ""
                self._serve()
            except (NoAnswerError, SessionOverError) as error:
                if str(error) != last:
                    _print(f"{self._client.server}: {error}; trying again")
                last = str(error)
                time.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            except (KeyboardInterrupt, InputError):
                if self._session:
                    self._leave()
                raise

    def _leave(self) -> None:
        exchange = Exchange(session=self._session.session, acknowledged=0, leaving=True)
        with contextlib.suppress(Exception):  # whatever keeps the server from hearing that, it will notice
            self._client.exchange(self._session.agent_id, exchange, self._session.silent_s / 4)

    def _serve(self) -> None:
        """Serve until the session is over, and end the workers. Raises what ended it."""
        earlier, self._mailbox = self._mailbox, Mailbox()
        for _, name, *content in earlier.unfinished():
            if name == "report":
                self._mailbox.post(0, name, *content)
        self._dead, self._alive = set(), set()
        self._answered_s, self._load_s, self._pause_s = time.monotonic(), 0.0, _PACE_S
        try:
            while True:
                self._collect()
                self._exchange()
                time.sleep(self._pause_s)
        finally:
            while self._workers:
                self._workers.popitem()[1].shut_down()

    def _exchange(self) -> None:
        """Call the server once. Raises SessionOverError or InputError, and NoAnswerError after half of ``silent_s``."""
        began_s, silent_s, load = time.monotonic(), self._session.silent_s, {}
        if began_s - self._load_s > _LOAD_S:
            self._load_s, load = began_s, devices.load(self._cards)
        messages = tuple(self._mailbox.outgoing())
        wait_s = 0.0 if messages else min(_LISTEN_S if self._workers else 1.0, silent_s / 8)
        exchange = Exchange(session=self._session.session, acknowledged=self._mailbox.received, alive=tuple(self._alive),
                            load=load, messages=messages, wait_s=wait_s)
        left_s = self._answered_s + silent_s / 2 - began_s
        try:
            reply = self._client.exchange(self._session.agent_id, exchange, max(_PACE_S, min(silent_s / 4, left_s)))
        except NoAnswerError:
            unheard_s = time.monotonic() - self._answered_s
            if unheard_s > silent_s / 2:
                raise NoAnswerError(f"no answer for {unheard_s:.0f} s: what ran here is ended") from None
            self._pause_s = min(2 * self._pause_s, silent_s / 8)
            return
        self._alive.clear()
        self._answered_s, self._pause_s = began_s, _PACE_S  # when it was sent: the server counts from later on
        self._mailbox.acknowledge(reply.acknowledged, reply.written)
        for message in self._mailbox.take(reply.messages):
            self._obey(*message)

    def _collect(self) -> None:
        """Take the workers' messages; while too many wait for the server, the workers wait too."""
        living = self._workers.keys() - self._dead
        if len(self._mailbox) > _MOST_WAITING:
            self._alive |= living
            return
        for number in living:
            for message in self._workers[number].messages():
                self._post(number, message)

    def _post(self, number: int, message: Message) -> None:
        if message[0] == "heartbeat":
            self._alive.add(number)
            return
        if message[0] == "died":
            self._dead.add(number)
        try:
            self._mailbox.post(number, *message)
        except ValueError as error:  # larger than a message may be
            if message[0] == "report":
                _print(f"{message[1]}: a report is left out: {error}")
            else:
                self._mailbox.post(number, "failed", message[1], f"what it returns cannot be sent: {error}")

    def _obey(self, number: int, command: str, *content: Any) -> None:
        if command == "spawn":
            limits = Limits(beat_s=self._session.beat_s, silent_s=self._session.silent_s)
            self._workers[number] = logged(self._slots[content[0]], limits)
        elif number not in self._workers:
            return
        elif command == "shut_down":
            self._workers.pop(number).shut_down()
            self._post(number, ("ended",))
        elif content[0] == "run" and (refusal := self._refusal(*content[2:4], *content[6:])):
            self._post(number, ("refused", content[1], refusal))
        else:
            self._workers[number].send(*content)

    def _refusal(self, call: str, arguments: Mapping[str, Any], rendezvous: str = "") -> str:
        """Return why a task is not run here; empty if it is. A gang meets at the file ``rendezvous``."""
        if call not in self._allowed:
            return f"agents run no task {call!r}; they run: {', '.join(self._allowed)}"
        try:
            self._allowed[call](arguments)
            if rendezvous:
                _check_inside(paths.DATA, rendezvous, "rendezvous")
        except InputError as error:
            return str(error)
        return ""


def end_with_parent(parent: int) -> None:
    """Terminate this process as soon as its parent process has ended, also where that has happened already."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def default_name() -> str:
    """Return this host's name as an agent's."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", platform.node()).strip("._-") or "agent"
