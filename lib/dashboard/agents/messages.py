"""The protocol of agents and server: registration, and an exchange of numbered messages both ways.

From the server: ``(worker, "spawn", device)``, ``(worker, "send", *message)``, ``(worker, "shut_down")``. From the agent:
``(worker, *message)`` with the messages of ``worker_process``, ``("died", reason)``, and ``("ended",)`` once a worker is shut
down. ``worker`` is a number that the server gives to each worker that it spawns. A killed server forgets reports that it has
not written down yet: the agent keeps them until then, and sends the rest again in its next session, as those of worker 0.
"""

import json
import threading
from collections import deque
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from lib.config.base import Count, PlainName, Positive, Strict, number, whole

API_VERSION = 4
MOST_BYTES = 200_000  # of the messages of one exchange, and of each of them
Text = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]
Message = tuple[Any, ...]
Megabytes = number(0, 1e12)
_SHAPES = {"ready": (int,), "done": (str, object), "failed": (str, str), "refused": (str, str), "stopped": (str,),
           "report": (str, dict), "died": (str,), "ended": ()}


def _well_formed(message: Message) -> Message:
    """Refuse a message that no worker sends, before other code relies on its shape."""
    match message:
        case int(), int(), str(name), *content if (
                name in _SHAPES and len(content) == len(_SHAPES[name]) and all(map(isinstance, content, _SHAPES[name]))):
            return message
    raise ValueError("is no message (number, worker, what, ...) of a worker")


class Gpu(Strict):
    """A GPU as its driver knows it; ``index`` is that of the driver, whatever CUDA_VISIBLE_DEVICES says."""

    uuid: Text
    name: Text
    index: whole(0, 1023)
    memory_mb: Megabytes
    compute_capability: Text


class Device(Strict):
    """A slot of an agent: some cores of its CPU, or a GPU. ``model`` is that of its processor: by it times are predicted."""

    name: Annotated[str, Field(max_length=200, pattern=r"^[^\s/]+$")]
    model: Text
    cores: Count
    threads: Positive
    memory_mb: Megabytes
    gpu: Gpu | None = None

    @property
    def processor(self) -> tuple[str, str]:
        """Return the kind of its processor, ``cpu`` or ``cuda``, and its name."""
        return ("cuda" if self.gpu else "cpu"), self.model


class Registration(Strict):
    """An agent that joins. ``instance`` tells its process from another of the same name."""

    name: PlainName
    host: Text
    instance: Text
    api_version: int
    runner_version: Text
    labels: dict[Text, Text] = {}
    devices: Annotated[tuple[Device, ...], Field(min_length=1, max_length=1024)]


class Registered(Strict):
    """The answer: who the agent is, the rhythm of signs of life, in seconds (``workers.Limits``), and the server's data/."""

    agent_id: str
    session: str
    beat_s: float
    silent_s: float
    data: str


class Exchange(Strict):
    """A sign of life with what is new: ``messages`` are ``(number, worker, *message)``, ``alive`` the workers that beat.

    ``load`` says how busy the host and its GPUs are. The answer waits up to ``wait_s`` for a message.
    """

    session: Text
    acknowledged: Count
    messages: tuple[Annotated[Message, AfterValidator(_well_formed)], ...] = ()
    alive: tuple[int, ...] = ()
    load: dict[Text, float] = {}
    wait_s: number(0, 1) = 0.0
    leaving: bool = False


class Reply(Strict):
    """The server's messages; the number of the agent's last one that it has, and of the last whose report is written down."""

    acknowledged: Count
    written: Count
    messages: tuple[Message, ...] = ()


class Mailbox:
    """The messages of one side: an outgoing message is kept until the other side has dealt with it, an incoming one taken once.

    So calls that fail or are repeated neither lose nor double a message. Its length is the number of messages that the other
    side does not have.
    """

    def __init__(self) -> None:
        self._lock, self._outgoing = threading.Lock(), deque()
        self._number = self._arrived = 0  # of the last message that was posted, and that the other side has
        self.received = 0

    def __len__(self) -> int:
        return self._number - self._arrived

    def post(self, *message: Any) -> None:
        """Add an outgoing message; ValueError for one of more than MOST_BYTES."""
        size = len(json.dumps(message, ensure_ascii=False).encode())  # as it is sent
        if size > MOST_BYTES:
            raise ValueError(f"{size:,} bytes are more than {MOST_BYTES:,}")
        with self._lock:
            self._number += 1
            self._outgoing.append((self._number, message, size))

    def outgoing(self) -> list[Message]:
        """Return the first of the messages that the other side does not have: one, or as many as MOST_BYTES hold."""
        batch, left = [], MOST_BYTES
        with self._lock:
            for number, message, size in self._outgoing:
                if number > self._arrived:
                    left -= size
                    if batch and left < 0:
                        break
                    batch.append((number, *message))
        return batch

    def acknowledge(self, arrived: int, done: int) -> None:
        """Note the last message that the other side has; forget those up to ``done``."""
        with self._lock:
            self._arrived = max(self._arrived, arrived)
            while self._outgoing and self._outgoing[0][0] <= done:
                self._outgoing.popleft()

    def unfinished(self) -> list[Message]:
        """Return the outgoing messages that the other side may not have dealt with."""
        return [message for _, message, _ in self._outgoing]

    def take(self, messages: tuple[Message, ...]) -> list[Message]:
        """Return those incoming messages that are new, in order and without their numbers."""
        new = []
        for sent, *message in messages:
            if sent == self.received + 1:
                self.received = sent
                new.append(tuple(message))
        return new
