"""The devices of an agent's machine: its slots, their descriptions for the server, and their load."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace

import psutil

from lib import locks
from lib.dashboard.agents.messages import Device, Gpu
from lib.errors import InputError, choices, refused
from lib.measure.gpus.card import management, number_of
from lib.schedule.runtime.local_site import slots_here
from lib.schedule.runtime.workers import Slot

_MB = 1e6


def gpu(number: int) -> Gpu | None:
    """Return the card ``cuda:<number>`` of this process; None where NVML does not list it: without NVML, or a part of a card.

    Raises InputError for a lost card.
    """
    name = locks.uuid(locks.card(number))
    try:
        nvml = management()
    except InputError:
        return None
    if not (name.isdecimal() or name.startswith("GPU-")):
        return None
    with refused(f"cuda:{number} is lost: "):
        handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return Gpu(index=nvml.nvmlDeviceGetIndex(handle), uuid=nvml.nvmlDeviceGetUUID(handle),
                   name=nvml.nvmlDeviceGetName(handle), memory_mb=nvml.nvmlDeviceGetMemoryInfo(handle).total / _MB,
                   compute_capability=f"{major}.{minor}")


def devices_here(count: int) -> list[tuple[Slot, Device]]:
    """Return this machine's slots (``local_site.slots_here``) with their descriptions for the server.

    CPU slots share the host's memory. A lost card has no slot. Raises InputError for more slots than cores.
    """
    from lib.measure import machine

    slots = slots_here(count)
    cpus = [slot for slot in slots if slot.cores]
    memory_mb = psutil.virtual_memory().total / _MB / len(cpus)
    model = " ".join(re.sub(r"\(.*?\)", "", machine.hardware()["cpu"]).split())[:200]
    pairs = [(slot, Device(name=slot.name, model=model, cores=len(slot.cores), threads=slot.threads, memory_mb=memory_mb))
             for slot in cpus]
    for slot in slots[len(cpus):]:
        with contextlib.suppress(InputError):  # a lost card has no slot
            number = number_of(slot.name)
            card = gpu(number)
            device = Device(name=slot.name, model=card.name if card else machine.hardware()["gpus"][number]["name"], cores=0,
                            threads=slot.threads, memory_mb=card.memory_mb if card else machine.memory_mb(slot.name), gpu=card)
            pairs.append((replace(slot, card=card.uuid if card else ""), device))
    return pairs


def narrowed(pairs: Sequence[tuple[Slot, Device]]) -> str:
    """Return a line that names CPU slots with fewer threads than cores, since other processes used some; empty without any."""
    fewer = [f"{slot.name} has {slot.threads} of {len(slot.cores)} threads" for slot, _ in pairs
             if slot.threads < len(slot.cores)]
    return f"{choices(fewer)}: others held the other cores; begin anew when they are free" if fewer else ""


def load(cards: Sequence[Gpu]) -> dict[str, float]:
    """Return the load of the host and its cards since the last call: percent and 10^6 bytes; of cards by their numbers here."""
    memory = psutil.virtual_memory()
    facts = {"cpu_percent": psutil.cpu_percent(), "memory_used_mb": (memory.total - memory.available) / _MB,
             "memory_mb": memory.total / _MB}
    for number, card in enumerate(cards):
        with contextlib.suppress(Exception):  # one that is lost, or does not say: the others are shown
            nvml = management()
            handle = nvml.nvmlDeviceGetHandleByUUID(card.uuid)
            facts |= {f"gpu_{number}_utilisation_percent": nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
                      f"gpu_{number}_memory_used_mb": nvml.nvmlDeviceGetMemoryInfo(handle).used / _MB}
    return facts
