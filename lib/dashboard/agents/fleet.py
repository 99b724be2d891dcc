"""The server's side of agents: sessions, workers on their slots, their rows in the database, and slots that join and leave.

An agent's workers belong to its session. A session ends when the agent leaves, registers again, or was silent for ``silent_s``;
an agent without an answer for half of that time ends its workers itself. So whatever happens to the network, a job is retried
only after its earlier attempt has ended.
"""

import asyncio
import contextlib
import itertools
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import Pipe
from typing import Any

from fastapi import APIRouter, Depends, HTTPException, Request
from sqlalchemy import select

from lib import paths
from lib.dashboard import database as db
from lib.dashboard.agents.messages import API_VERSION, Device, Exchange, Mailbox, Message, Registered, Registration, Reply
from lib.dashboard.database_engine import Database
from lib.dashboard.run_records import RunRecords, note
from lib.schedule.runtime.workers import Limits, Slot, SlotLost

_SHUT_DOWN_S, _LOOK_S, _BEAT_S = 0.05, 0.5, 2.0


@dataclass(frozen=True)
class AgentSlot:
    """A slot of an agent that is connected, in one session of it."""

    slot: Slot
    agent: str
    agent_id: str
    session: str
    device: Device


class _Session:
    """One agent from its registration on."""

    def __init__(self, registration: Registration, agent_id: str, silent_s: float):
        self.registration, self.agent_id, self.silent_s = registration, agent_id, silent_s
        self.key = secrets.token_hex(16)
        self.mailbox, self.workers, self.load = Mailbox(), {}, {}
        self.seen_s, self.over = time.monotonic(), ""
        self._waiting: set[Callable[[], None]] = set()
        self._written, self._unwritten = 0, deque()  # numbers of messages, and of their reports

    def post(self, *message: Any) -> None:
        """Send the agent a message; a call of it that waits for one is answered."""
        self.mailbox.post(*message)
        self.wake()

    def wake(self) -> None:
        """Answer the waiting calls."""
        for wake in tuple(self._waiting):
            with contextlib.suppress(RuntimeError):  # the loop that it waited in is closed
                wake()

    async def wait(self, seconds: float) -> None:
        """Wait until there is a message for the agent, or its session is over."""
        rung, loop = asyncio.Event(), asyncio.get_running_loop()
        self._waiting.add(wake := lambda: loop.call_soon_threadsafe(rung.set))
        with contextlib.suppress(TimeoutError):
            if not self.mailbox and not self.over:
                await asyncio.wait_for(rung.wait(), seconds)
        self._waiting.discard(wake)

    def is_silent(self) -> bool:
        """Return whether the agent was silent for so long that it has ended its workers."""
        return time.monotonic() - self.seen_s > self.silent_s

    def take(self, exchange: Exchange, records: RunRecords) -> None:
        """Hand on an agent's messages; while the records are full they stay with the agent."""
        self.seen_s, self.load = time.monotonic(), exchange.load or self.load
        self.mailbox.acknowledge(exchange.acknowledged, exchange.acknowledged)
        report = 0
        for number, name, *content in self.mailbox.take(() if records.is_full() else exchange.messages):
            if name == "report":
                report = records.reported(*content)
            elif worker := self.workers.get(number):
                worker.put((name, *content))
        if report:
            self._unwritten.append((self.mailbox.received, report))
        for number in exchange.alive:
            if worker := self.workers.get(number):
                worker.put(("heartbeat",))

    def written(self, reports: int) -> int:
        """Return the number of the last message whose report is among the first ``reports``, as are those before it."""
        while self._unwritten and self._unwritten[0][1] <= reports:
            self._written, _ = self._unwritten.popleft()
        return self._written

    def end(self, reason: str) -> None:
        """End it and all its workers: their slots leave the queue."""
        self.over = reason
        self.wake()

    def slots(self) -> list[AgentSlot]:
        """Return its slots under their names in the queue, such as ``agent/cpu[0-3]``."""
        name = self.registration.name
        return [AgentSlot(Slot(f"{name}/{device.name}", (), device.threads, memory_mb=device.memory_mb), name, self.agent_id,
                          self.key, device) for device in self.registration.devices]


class AgentWorker:
    """A worker process of an agent, reached by the mailbox of the session."""

    def __init__(self, session: _Session, number: int, device: str):
        self._session, self._number = session, number
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._ended = threading.Event()
        self.pipe, self._bell = Pipe(duplex=False)
        self._rung = threading.Event()
        session.workers[number] = self
        session.post(number, "spawn", device)

    def put(self, message: Message) -> None:
        """Take a message of the agent."""
        if message[0] == "ended":
            self._ended.set()
            return
        self._inbox.put(message)
        if message[0] != "heartbeat" and not self._rung.is_set():  # once: a full pipe would hold up the server
            self._rung.set()
            with contextlib.suppress(OSError):  # it was shut down meanwhile
                self._bell.send_bytes(b".")

    def messages(self) -> list[Message]:
        """Return the messages since the last call."""
        while self.pipe.poll():
            self.pipe.recv_bytes()
        self._rung.clear()
        return [self._inbox.get() for _ in range(self._inbox.qsize())]

    def send(self, *message: Any) -> None:
        """Send it a message; one that died is noticed by its messages."""
        try:
            self._session.post(self._number, "send", *message)
        except ValueError as error:  # larger than a message may be
            self.put(("refused", message[1], f"it cannot be sent to an agent: {error}"))

    def shut_down(self) -> None:
        """End it; return when the agent says that it has ended, or has been silent so long that it must have."""
        self._session.post(self._number, "shut_down")
        until = time.monotonic() + 2 * self._session.silent_s
        while not (self._ended.wait(_SHUT_DOWN_S) or self._session.is_silent() or self._session.over):
            if time.monotonic() > until:
                self._session.end("a worker there could not be ended")
        self._session.workers.pop(self._number, None)
        self.pipe.close()
        self._bell.close()


async def _same_version(request: Request) -> None:
    """Refuse an agent of another version before its message is read: its fields may differ."""
    with contextlib.suppress(ValueError, AttributeError):  # what is no object is refused by its schema
        stated = (await request.json()).get("api_version")
        if stated != API_VERSION:
            raise HTTPException(409, f"this agent speaks version {stated} of the agents' protocol, the server version "
                                f"{API_VERSION}: install the server's version of this project on its machine")


class Fleet:
    """The agents that are connected; ``slots`` are those of the queue, by their names there."""

    def __init__(self, database: Database, limits: Limits, records: RunRecords):
        self._database, self.limits, self._records = database, limits, records
        self._lock, self._numbers = threading.Lock(), itertools.count(1)
        self._sessions: dict[str, _Session] = {}  # by the agents' names
        self.slots: dict[str, AgentSlot] = {}
        self._reserved: set[tuple[str, int]] = set()
        self._expected: set[str] = set()  # agents that may still run what an earlier server sent them, until
        self._until_s = 0.0
        self._rung = threading.Event()

    # ------------------------------------------------------------------------------------------ calls of agents

    def router(self) -> APIRouter:
        """Return the endpoints of agents, to be mounted behind the check of tokens."""
        routes = APIRouter(tags=["agents"])
        routes.post("/agents/register", dependencies=[Depends(_same_version)])(self.register)
        routes.post("/agents/{agent_id}/exchange")(self.exchange)
        return routes

    def register(self, registration: Registration) -> Registered:
        """Begin a session. Raises HTTPException while another agent of that name may run something."""
        with self._lock:
            last = self._sessions.get(registration.name)
            if last and last.registration.instance != registration.instance and not (last.over or last.is_silent()):
                raise HTTPException(503, f"an agent named {registration.name} is connected from {last.registration.host}; "
                                    f"another one takes its place when that was silent for {self.limits.silent_s:g} s")
            self._end(last, "the agent began anew")
            session = _Session(registration, self._save(registration), self.limits.silent_s)
            self._sessions[registration.name] = session
        self.changed()
        return Registered(agent_id=session.agent_id, session=session.key, beat_s=self.limits.beat_s,
                          silent_s=self.limits.silent_s, data=str(paths.DATA))

    async def exchange(self, agent_id: str, exchange: Exchange) -> Reply:
        """Take an agent's messages, give it those for it. Raises HTTPException where its session is over."""
        session = next((session for session in list(self._sessions.values()) if session.agent_id == agent_id), None)
        if not session or session.over or not secrets.compare_digest(session.key.encode(), exchange.session.encode()):
            raise HTTPException(410, f"the agent's session is over ({session.over if session else 'the server began anew'}); "
                                "end what runs and register again")
        session.take(exchange, self._records)
        if exchange.leaving:
            self._end(session, "the agent left")
        elif exchange.wait_s:
            await session.wait(exchange.wait_s)
        return Reply(acknowledged=session.mailbox.received, written=session.written(self._records.written),
                     messages=tuple(session.mailbox.outgoing()))

    def _save(self, agent: Registration) -> str:
        """Save an agent and its cards; return its id."""
        with self._database.writing() as session:
            row = session.scalar(select(db.Agent).filter_by(name=agent.name)) or db.Agent(name=agent.name)
            session.add(row)
            row.host, row.labels, row.manual, row.connected = agent.host, dict(agent.labels), False, True
            row.api_version, row.runner_version, row.last_heartbeat_at = str(agent.api_version), agent.runner_version, db.now()
            row.slots = [device.model_dump(mode="json") for device in agent.devices]
            cards = {card.index: card for card in row.gpus}
            for gpu in (device.gpu for device in agent.devices if device.gpu):
                card = cards.setdefault(gpu.index, db.Gpu(index=gpu.index))
                card.uuid, card.name, card.compute_capability = gpu.uuid, gpu.name, gpu.compute_capability
                card.total_mem_mb, card.last_seen_at = int(gpu.memory_mb), db.now()
            row.gpus = list(cards.values())
            session.flush()
            return row.id

    # ------------------------------------------------------------------------------------------ sessions

    def _open(self) -> list[_Session]:
        return [session for session in list(self._sessions.values()) if not session.over]

    def _end(self, session: _Session | None, reason: str) -> None:
        if session and not session.over:
            session.end(reason)
            self.changed()

    def expire(self) -> None:
        """End the sessions of agents that are silent; call it now and then."""
        for session in self._open():
            if session.is_silent():
                self._end(session, f"no sign of life for {session.silent_s:g} s")

    def close(self) -> None:
        """End all sessions, without waiting for the agents to notice."""
        for session in self._open():
            self._end(session, "the server ends")

    def connected(self) -> dict[str, AgentSlot]:
        """Return the slots of the agents that are connected, by their names in the queue."""
        return {slot.slot.name: slot for session in self._open() for slot in session.slots()}

    def spawn(self, slot: Slot, _: Limits) -> AgentWorker:
        """Start a worker on a slot; SlotLost where its agent is not connected, or has it no more."""
        wanted = self.connected().get(slot.name)
        if not wanted:
            raise SlotLost("its agent is gone")
        return AgentWorker(self._sessions[wanted.agent], next(self._numbers), wanted.device.name)

    # ------------------------------------------------------------------------------------------ queue and database

    def expect(self, names: Iterable[str], seconds: float) -> None:
        """Wait for agents of an earlier server before any slot joins the queue, at most so many seconds."""
        self._expected, self._until_s = set(names), time.monotonic() + seconds

    def changed(self) -> None:
        """Check the agents soon: one has come or gone."""
        self._rung.set()

    def run(self, until: Callable[[], bool], join: Callable[[AgentSlot], Any], leave: Callable[[str], Any]) -> None:
        """Keep the agents' rows up to date, and the slots that ``join`` and ``leave`` the queue, until ``until`` holds."""
        beat_s, last = 0.0, ""
        while not until():
            try:
                self.expire()
                if time.monotonic() - beat_s > _BEAT_S or self._rung.is_set():
                    beat_s = time.monotonic()
                    with contextlib.suppress(*db.UNAVAILABLE):  # the next time is soon
                        self._write_loads()
                self._rung.clear()
                usable = self._usable()
                for name, slot in list(self.slots.items()):
                    if usable.get(name) != slot:
                        del self.slots[name]
                        leave(name)
                for name, slot in usable.items():
                    if name not in self.slots:
                        self.slots[name] = slot
                        join(slot)
            except Exception as error:  # without this thread no agent would be noticed any more
                last = note("the agents are looked at again", error, last)
            self._rung.wait(_LOOK_S)

    def _usable(self) -> dict[str, AgentSlot]:
        """Return the slots for the queue: none of a reserved card, and none at all while jobs of an earlier server may run."""
        connected = self.connected()
        self._expected -= {slot.agent for slot in connected.values()}
        if self._expected and time.monotonic() < self._until_s:
            return {}
        return {name: slot for name, slot in connected.items()
                if not (slot.device.gpu and (slot.agent_id, slot.device.gpu.index) in self._reserved)}

    def _write_loads(self) -> None:
        """Write the load of agents, and which have gone; read which cards are reserved."""
        loads = {session.agent_id: (session.seen_s, session.load) for session in self._open()}
        with self._database.writing() as session:
            for row in session.scalars(select(db.Agent).where(db.Agent.connected | db.Agent.id.in_(loads))):
                row.connected = row.id in loads or (row.name in self._expected and time.monotonic() < self._until_s)
                if row.id in loads:
                    seen_s, load = loads[row.id]
                    row.last_heartbeat_at, row.load = db.now() - timedelta(seconds=time.monotonic() - seen_s), load
            cards = session.scalars(select(db.Gpu).where(db.Gpu.is_allocated))
            self._reserved = {(card.agent_id, card.index) for card in cards}

