"""The connected agents in the database and in the queue: their cards and loads, and slots that join and leave."""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import select

from lib.dashboard import database as db
from lib.dashboard.agents.messages import Load, Registration
from lib.dashboard.agents.workers import Agents, AgentSlot
from lib.dashboard.engine import Database
from lib.dashboard.run_records import RunRecords
from lib.errors import InputError, one_line
from lib.schedule.runtime.workers import Limits

_LOOK_S, _BEAT_S = 0.5, 2.0


class Fleet:
    """The dispatcher's view of agents; ``slots`` are those of the queue, by their names there."""

    def __init__(self, database: Database, limits: Limits, records: RunRecords, on_join: Callable[[AgentSlot], Any],
                 on_leave: Callable[[str], Any]):
        """``on_join`` and ``on_leave`` give slots to the queue, and take them from it by their names."""
        self._database, self._on_join, self._on_leave = database, on_join, on_leave
        self.agents = Agents(limits, records, self._joined, self.changed)
        self.slots: dict[str, AgentSlot] = {}
        self._reserved: set[tuple[str, int]] = set()
        self._expected: set[str] = set()  # agents that may still run what an earlier server sent them, until
        self._until_s = 0.0
        self._rung = threading.Event()

    def expect(self, names: Iterable[str], seconds: float) -> None:
        """Wait for agents of an earlier server before any slot joins the queue, at most so many seconds."""
        self._expected, self._until_s = set(names), time.monotonic() + seconds

    def _joined(self, agent: Registration) -> str:
        """Save an agent and its cards; return its id."""
        with self._database.writing() as session:
            row = session.scalar(select(db.Agent).where(db.Agent.name == agent.name)) or db.Agent(name=agent.name)
            session.add(row)
            row.host, row.labels, row.manual, row.connected = agent.host, dict(agent.labels), False, True
            row.api_version, row.runner_version, row.last_heartbeat_at = str(agent.api_version), agent.runner_version, db.now()
            row.slots = [device.model_dump(mode="json") for device in agent.devices]
            cards = {card.index: card for card in row.gpus}
            for gpu in (device.gpu for device in agent.devices if device.gpu):
                if gpu.index not in cards:
                    cards[gpu.index] = db.Gpu(index=gpu.index)
                    row.gpus.append(cards[gpu.index])
                card = cards[gpu.index]
                card.uuid, card.name, card.compute_capability = gpu.uuid, gpu.name, gpu.compute_capability
                card.total_mem_mb, card.last_seen_at = int(gpu.memory_mb), db.now()
            session.flush()
            return row.id

    def changed(self) -> None:
        """Check the agents soon: one has come or gone."""
        self._rung.set()

    def run(self, until: Callable[[], bool]) -> None:
        """Keep the queue's slots and the agents' rows up to date, until ``until`` holds."""
        beat_s, last = -math.inf, ""
        while not until():
            try:
                self.agents.expire()
                if time.monotonic() - beat_s > _BEAT_S or self._rung.is_set():
                    beat_s = time.monotonic()
                    with contextlib.suppress(*db.UNAVAILABLE):  # the next time is soon
                        self._write_loads()
                self._rung.clear()
                self._match_slots()
            except Exception as error:  # without this thread no agent would be noticed any more
                last = note("the agents are looked at again", error, last)
            self._rung.wait(_LOOK_S)

    def _match_slots(self) -> None:
        """Add and remove slots of the queue as agents come and go; add none while jobs of an earlier server may run."""
        connected = self.agents.slots()
        self._expected -= {slot.agent for slot in connected.values()}
        wanted = {name: slot for name, slot in connected.items()
                  if not (slot.device.gpu and (slot.agent_id, slot.device.gpu.index) in self._reserved)}
        if self._expected and time.monotonic() < self._until_s:
            wanted = {}
        for name, slot in list(self.slots.items()):
            if wanted.get(name) != slot:
                del self.slots[name]
                self._on_leave(name)
        for name, slot in wanted.items():
            if name not in self.slots:
                self.slots[name] = slot
                self._on_join(slot)

    def _write_loads(self) -> None:
        """Write the load of agents, and which have gone; read which cards are reserved."""
        loads = self.agents.loads()
        with self._database.writing() as session:
            for row in session.scalars(select(db.Agent).where(db.Agent.connected | db.Agent.id.in_(loads))):
                row.connected = row.id in loads or (row.name in self._expected and time.monotonic() < self._until_s)
                if row.id in loads:
                    row.last_heartbeat_at, row.load = db.now(), _flat(loads[row.id])
            cards = session.scalars(select(db.Gpu).where(db.Gpu.is_allocated))
            self._reserved = {(card.agent_id, card.index) for card in cards}


def note(event: str, error: Exception, last: str = "") -> str:
    """Print an error that does not stop the server, in one line, unless it repeats the ``last`` one; return the line."""
    line = f"{event}: {error if isinstance(error, InputError) else one_line(error)}"
    if line != last:
        print(line, file=sys.stderr, flush=True)
    return line


def _flat(load: Load | None) -> dict[str, float]:
    if load is None:
        return {}
    cards = {f"gpu_{number}_{name}": value for number, card in enumerate(load.gpus)
             for name, value in card.model_dump(exclude={"uuid"}).items()}
    return {**load.model_dump(exclude={"gpus"}), **cards}
