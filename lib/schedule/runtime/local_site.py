"""The slots of this machine, and slots as a fleet."""

import json

import numpy as np

from lib.errors import InputError
from lib.measure.worker import allowed_cores
from lib.schedule.problem import Fleet, Jobs
from lib.schedule.runtime.workers import WARM_UP, Capacity, ProcessWorker, Site, Slot, able, default_slots, device_type_of


def slots_here(count: int = 0) -> tuple[Slot, ...]:
    """Return ``count`` CPU slots of this machine (0: ``default_slots``), of equal size, and its GPUs.

    Workers have this process's ``hardware_id``, except on a card of another model than its ``cuda:0``. A slot of several cores
    has a thread for each core that is free now, because threads that wait for one another beside a busy neighbour are slower.
    Raises InputError for more slots than cores.
    """
    from lib.measure import load, machine

    cores = allowed_cores()
    count = count or default_slots(len(cores))
    if not 1 <= count <= len(cores):
        raise InputError(f"{count} slots on {len(cores)} cores: it must be 1 to {len(cores)}")
    width = len(cores) // count
    threads = min(width, max(1, load.free_cores() // count)) if width > 1 else 1
    parts = [tuple(cores[number * width:(number + 1) * width]) for number in range(count)]
    gpus = machine.hardware()["gpus"]
    listed = json.dumps(gpus)
    cpus = [Slot(f"cpu[{'-'.join(str(core) for core in dict.fromkeys((part[0], part[-1])))}]", part, threads, WARM_UP,
                 gpus=listed) for part in parts]
    cards = [name for name in machine.devices() if name.startswith("cuda")]
    return (*cpus, *(Slot(name, warm_up=WARM_UP, gpus=listed if gpus[number:number + 1] == gpus[:1] else "")
                     for number, name in enumerate(cards)))


def local_site(jobs: Jobs, count: int = 0) -> Site:
    """Return the slots of this machine and which jobs they can take; InputError for too many slots, or a job too large.

    CPU slots share the host's memory equally; a job on a GPU has the memory of the GPU.
    """
    from lib.measure import machine

    slots = slots_here(count)
    cpus = [slot for slot in slots if slot.cores]
    cpu = Capacity("cpu", len(cpus[0].cores), machine.memory_mb("cpu") / len(cpus))
    host_cores = sum(len(slot.cores) for slot in cpus)
    capacities = [cpu if name == "cpu" else Capacity(name, host_cores, machine.memory_mb(name))
                  for name in fleet_of(slots).types]
    return Site(slots, ProcessWorker, able(jobs, capacities, "this machine"))


def fleet_of(slots: tuple[Slot, ...]) -> Fleet:
    """Return slots as a fleet of types ``cpu``, ``cuda:0``, ``cuda:1`` ...

    A type has the least known memory of its slots. Beside GPUs, CPU slots with listed cores give the host's cores, which jobs
    on GPUs share.
    """
    names = [device_type_of(slot.name) for slot in slots]
    types = tuple(dict.fromkeys(names))
    unknown, cores = np.full(len(types), np.nan), [len(slot.cores) for slot in slots if slot.cores and len(types) > 1]
    memory_mb = [np.fmin.reduce([slot.memory_mb for slot, name in zip(slots, names, strict=True) if name == device_type])
                 for device_type in types]
    cpu_cores = np.where(np.array(types) == "cpu", cores[0], np.nan) if cores else unknown
    return Fleet(tuple(slot.name for slot in slots), np.array([types.index(name) for name in names], int), types,
                 np.array(memory_mb), cpu_cores, unknown, unknown, np.zeros(len(types)), unknown, float(sum(cores) or np.inf))
