"""The inventory: the slots of this machine, or of the nodes of a cluster, and their cards."""

import platform
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from lib.dashboard import tables as db
from lib.schedule.run.slots import Slot

CARD = "cuda:"


def processor(slot: Slot) -> tuple[str, str]:
    """Return the kind of a slot's processor, ``cpu`` or ``cuda``, and its name."""
    from lib.measure import machine

    facts = machine.own_hardware(slot.name if slot.name.startswith(CARD) else "cpu")
    return ("cuda", facts["name"]) if slot.name.startswith(CARD) else ("cpu", facts["cpu"])


def save(session: Session, slots: Sequence[Slot]) -> None:
    """Write the machines of slots and the cards of this machine into the inventory."""
    here = platform.node()[:100] or "this machine"
    names = {slot.node or here for slot in slots}
    for name in names:
        agent = session.scalar(select(db.Agent).filter_by(name=name)) or db.Agent(name=name, gpus=[])
        session.add(agent)
        agent.manual, agent.host, agent.last_heartbeat_at = False, name, db.now()
        own = [slot for slot in slots if (slot.node or here) == name]
        agent.slots = [slot.name for slot in own]
        if name == here:
            _save_cards(agent, own)


def _save_cards(agent: db.Agent, slots: Sequence[Slot]) -> None:
    from lib.measure import machine

    cards = {gpu.index: gpu for gpu in agent.gpus}
    for slot in slots:
        if not slot.name.startswith(CARD):
            continue
        index, facts = int(slot.name.removeprefix(CARD)), machine.own_hardware(slot.name)
        if index not in cards:
            cards[index] = db.Gpu(index=index)
            agent.gpus.append(cards[index])
        card = cards[index]
        card.name, card.compute_capability = facts["name"], facts["compute_capability"]
        card.total_mem_mb, card.last_seen_at = round(1024 * facts["memory_gib"]), db.now()


def reserved(session: Session) -> set[str]:
    """Return the names of the slots of this machine whose cards are reserved."""
    cards = select(db.Gpu).join(db.Agent).where(db.Gpu.is_allocated, db.Agent.manual.is_(False))
    return {f"{CARD}{gpu.index}" for gpu in session.scalars(cards)}


def device_types(session: Session, agent_id: str | None, gpu_indices: Sequence[int]) -> list[str] | None:
    """Return the device types that a run may have, None for any; ConflictError where there are none."""
    agents = select(db.Agent).where(db.Agent.manual.is_(False))
    if agent_id is not None:
        db.get(session, db.Agent, agent_id)
        agents = agents.where(db.Agent.id == agent_id)
    elif not gpu_indices:
        return None
    slots = [name for agent in session.scalars(agents) for name in agent.slots]
    allowed = {name.partition("[")[0] for name in slots}
    if gpu_indices:
        allowed &= {f"{CARD}{index}" for index in gpu_indices}
    if not allowed:
        raise db.ConflictError("no run is placed there: the machine was entered by hand, or it has no such "
                               f"GPU; slots: {', '.join(slots) or 'none'}")
    return sorted(allowed)
