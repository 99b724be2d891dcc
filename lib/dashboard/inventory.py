"""The inventory: the slots of this machine or of a Ray cluster, and the cards of this machine."""

import platform
from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from lib.dashboard import tables as db
from lib.errors import choices
from lib.schedule.run.slots import Slot

CARD = "cuda:"
HERE = platform.node()[:100] or "this machine"


def device_type(slot_name: str) -> str:
    """Return the device type in a slot's name: ``cpu`` of ``cpu[0-1]``."""
    return slot_name.partition("[")[0]


def processor(kind: str) -> tuple[str, str]:
    """Return ``cpu`` or ``cuda``, and the name of a device type's processor.

    CPUs of other nodes are taken to be like this one.
    """
    from lib.measure import machine

    name, on_node, _ = kind.partition("@")
    if not name.startswith("cuda"):
        return "cpu", machine.hardware()["cpu"]
    return "cuda", name.removeprefix(CARD) if on_node else machine.own_hardware(name)["name"]


def save(session: Session, slots: Sequence[Slot]) -> None:
    """Write the machines of slots, and the cards of this one; those that are gone lose slots."""
    from lib.measure import machine

    machines = {}
    for slot in slots:
        node = device_type(slot.name).partition("@")[2]
        machines.setdefault(node or HERE, []).append(slot.name)
    session.execute(update(db.Agent).where(db.Agent.name.not_in(machines)).values(slots=[]))
    for name, slot_names in machines.items():
        agent = session.scalar(select(db.Agent).filter_by(name=name)) or db.Agent(name=name, gpus=[])
        session.add(agent)
        agent.manual, agent.host, agent.last_heartbeat_at = False, name, db.now()
        agent.slots, cards = slot_names, {gpu.index: gpu for gpu in agent.gpus}
        for slot_name in slot_names:
            index = slot_name.removeprefix(CARD)
            if name == HERE and index.isdecimal():
                facts, card = machine.own_hardware(slot_name), cards.get(int(index))
                if card is None:
                    agent.gpus.append(card := db.Gpu(index=int(index)))
                card.name, card.compute_capability = facts["name"], facts["compute_capability"]
                card.total_mem_mb, card.last_seen_at = round(1024 * facts["memory_gib"]), db.now()


def reserved(session: Session) -> set[str]:
    """Return the names of the slots of this machine whose cards are reserved."""
    cards = select(db.Gpu).join(db.Agent).where(db.Gpu.is_allocated, db.Agent.name == HERE)
    return {f"{CARD}{gpu.index}" for gpu in session.scalars(cards)}


def allowed_types(session: Session, agent_id: str | None,
                  gpu_indices: Sequence[int]) -> list[str] | None:
    """Return the device types that a run may have (None: any); ConflictError if there are none."""
    if agent_id is None and not gpu_indices:
        return None
    agents = select(db.Agent).where(db.Agent.manual.is_(False))
    if agent_id is not None:
        db.get(session, db.Agent, agent_id)
        agents = agents.where(db.Agent.id == agent_id)
    slots = [name for agent in session.scalars(agents) for name in agent.slots]
    allowed = {device_type(name) for name in slots}
    if gpu_indices:
        allowed &= {f"{CARD}{index}" for index in gpu_indices}
    if not allowed:
        raise db.ConflictError("no run is placed there: the machine was entered by hand, or has no "
                               f"such GPU; slots there: {choices(slots) or 'none'}")
    return sorted(allowed)
