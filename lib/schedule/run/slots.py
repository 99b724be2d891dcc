"""Slots: the GPUs of a machine and shares of its CPU, each of which runs one job at a time."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lib import locks
from lib.errors import InputError, choices
from lib.measure.worker import allowed_cores
from lib.schedule.problem import Fleet, Jobs, able

_MOST_SLOTS = 16  # of a host's CPU by default: jobs share its memory and bandwidth


@dataclass(frozen=True)
class Slot:
    """A GPU, or some cores of the CPU, that runs one job at a time.

    ``memory_mb`` is NaN if unknown. ``card`` is the CUDA_VISIBLE_DEVICES of a GPU's worker.
    ``gpus`` are those of the whole machine as JSON, for the hardware id of a worker that sees one.
    """

    name: str
    device_type: str = "cpu"
    cores: tuple[int, ...] = ()  # to which the worker is pinned
    core_count: float = np.nan  # of a CPU slot
    threads: int = 1
    memory_mb: float = np.nan
    card: str = ""
    gpus: str = ""
    node: str = ""  # of a cluster


def default_slots(cores: int) -> int:
    """Return the default number of CPU slots: one per core, but at most 16, of equal size."""
    return cores // -(-cores // _MOST_SLOTS)


def slots_here(count: int = 0, by_model: bool = True) -> tuple[Slot, ...]:
    """Return ``count`` CPU slots of this machine (0: ``default_slots``) and its GPUs.

    CPU slots share the host's cores and memory equally. GPUs of one model are of one type, or with
    ``by_model=False`` each is a type of its own. A slot of several cores has one thread for each
    core that is free now. Raises InputError for more slots than cores.
    """
    from lib.measure import disturbance, machine

    cores = allowed_cores()
    count = count or default_slots(len(cores))
    if not 1 <= count <= len(cores):
        raise InputError(f"{count} slots on {len(cores)} cores: it must be 1 to {len(cores)}")
    width = len(cores) // count
    threads = max(1, min(width, disturbance.free_cores() // count)) if width > 1 else 1
    gpus = machine.hardware()["gpus"]
    listed, slots = json.dumps(gpus), []
    for first in range(0, count * width, width):
        part = tuple(cores[first:first + width])
        label = f"{part[0]}-{part[-1]}" if width > 1 else str(part[0])
        slots.append(Slot(f"cpu[{label}]", "cpu", part, width, threads,
                          machine.memory_mb("cpu") / count, gpus=listed))
    for number, name in enumerate(name for name in machine.devices() if name.startswith("cuda")):
        model = gpus[number]["name"] if number < len(gpus) else ""
        alike = gpus[number:number + 1] == gpus[:1]  # others would need another hardware id
        slots.append(Slot(name, f"cuda:{model}" if by_model and model else name,
                          memory_mb=machine.memory_mb(name), card=locks.card(number),
                          gpus=listed if alike else ""))
    return tuple(slots)


def fleet_of(slots: Sequence[Slot]) -> Fleet:
    """Return slots as a fleet; a type has the least known memory of its slots.

    The cores of CPU slots are the host's, which jobs on GPUs share; a cluster's are not counted.
    """
    types = tuple(dict.fromkeys(slot.device_type for slot in slots))
    memory_mb, cpu_cores = np.full(len(types), np.nan), np.full(len(types), np.nan)
    for slot in slots:
        number = types.index(slot.device_type)
        memory_mb[number] = np.fmin(memory_mb[number], slot.memory_mb)
        cpu_cores[number] = slot.core_count
    host_cores = sum(slot.core_count for slot in slots if slot.cores)
    unknown = np.full(len(types), np.nan)
    return Fleet(tuple(slot.name for slot in slots),
                 np.array([types.index(slot.device_type) for slot in slots], int), types, memory_mb,
                 cpu_cores, unknown, unknown, np.zeros(len(types)), unknown, host_cores or np.inf)


def fits(jobs: Jobs, fleet: Fleet) -> np.ndarray:
    """Return (jobs, types): whether a job fits the memory and cores of a type, and their number."""
    slot_cores = np.where(fleet.cpu & np.isfinite(fleet.cpu_cores), fleet.cpu_cores, np.inf)
    return able(jobs, fleet) & (jobs.cpu_cores[:, None] <= slot_cores)


def check_fits(jobs: Jobs, fleet: Fleet) -> np.ndarray:
    """Return ``fits``; InputError names the first job that fits nowhere, and what there is."""
    table = fits(jobs, fleet)
    for job in np.flatnonzero(~table.any(axis=1)):
        offers = [f"{count} {name} with {memory_mb:,.0f} MB and {cores:g} cores"
                  for name, count, memory_mb, cores in zip(
                      fleet.types, fleet.counts, fleet.memory_mb, fleet.cpu_cores, strict=True)]
        offers = [offer.replace(" and nan cores", "") for offer in offers]
        raise InputError(f"no slot can run job {jobs.ids[job]!r}: it needs {needs(jobs, job)}; "
                         f"there are: {choices(offers)} (slots share their host's memory and "
                         "cores: fewer --slots are larger)")
    return table


def needs(jobs: Jobs, job: int) -> str:
    """Return in words what a job needs on its devices."""
    text = f"{jobs.memory_mb[job]:,.0f} MB and {jobs.cpu_cores[job]:g} cores"
    return f"{text} on each of {jobs.gang[job]} devices of one type" if jobs.gang[job] > 1 else text
