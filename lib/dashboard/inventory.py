"""The devices of this machine: their slots, their processors, and their rows in the database."""

import platform
import re
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from lib.dashboard import tables as db
from lib.schedule.runtime.local_site import slots_here
from lib.schedule.runtime.workers import Slot, device_type_of


@dataclass(frozen=True)
class Device:
    """A slot for runs, and the name of its processor, by which times are predicted."""

    slot: Slot
    model: str
    gpu: int | None = None  # its number among the cards that this process sees

    @property
    def type(self) -> str:
        """Return its type: ``cpu``, ``cuda:0``."""
        return device_type_of(self.slot.name)

    @property
    def processor(self) -> tuple[str, str]:
        """Return the kind of its processor, ``cpu`` or ``cuda``, and its name."""
        return ("cpu" if self.gpu is None else "cuda"), self.model


def devices_here() -> list[Device]:
    """Return the CPU slots of this machine and its cards."""
    from lib.measure import machine

    hardware, devices = machine.hardware(), []
    cpu = " ".join(re.sub(r"\(.*?\)", "", hardware["cpu"]).split())[:200]
    for slot in slots_here():
        if slot.cores:
            devices.append(Device(slot, cpu))
        else:
            number = machine.number_of(slot.name)
            devices.append(Device(slot, hardware["gpus"][number]["name"], number))
    return devices


def save(session: Session, devices: list[Device]) -> db.Agent:
    """Write this machine and its cards into the inventory; return its row."""
    from lib.measure import machine

    name = platform.node()[:100] or "this machine"
    agent = session.scalar(select(db.Agent).filter_by(name=name)) or db.Agent(name=name, gpus=[])
    session.add(agent)
    agent.manual, agent.host, agent.last_heartbeat_at = False, name, db.now()
    agent.labels = {"python": platform.python_version(), "system": platform.system()}
    agent.slots = [device.slot.name for device in devices]
    rows = {row.index: row for row in agent.gpus}
    for device in devices:
        if device.gpu is None:
            continue
        if device.gpu not in rows:
            agent.gpus.append(db.Gpu(index=device.gpu))
        row = next(row for row in agent.gpus if row.index == device.gpu)
        facts = machine.own_hardware(device.slot.name)
        row.name, row.compute_capability = facts["name"], facts["compute_capability"]
        row.total_mem_mb, row.last_seen_at = round(1024 * facts["memory_gib"]), db.now()
    session.flush()
    return agent
