"""Slots and the workers that run tasks on them: a process on this machine, or whatever else offers the same interface."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import psutil

from lib import locks
from lib.errors import InputError, choices
from lib.measure import worker
from lib.schedule.problem import Jobs
from lib.schedule.runtime import worker_process
from lib.schedule.runtime.output import Output

MOST_SLOTS = 16  # of a host's CPU by default: each is a process with torch, and jobs share memory and its bandwidth
WARM_UP = "lib.schedule.runtime.tasks:warm_up"


@dataclass(frozen=True)
class Slot:
    """A device, or some cores of the CPU, that runs one job at a time; ``warm_up`` is called by a worker before its first.

    ``memory_mb`` is NaN where it is not known. ``card`` is what CUDA_VISIBLE_DEVICES shall be for a GPU's worker, such as its
    UUID; where it is empty it follows from the slot's name. ``gpus`` are those of the whole machine as JSON, for the
    ``hardware_id`` of its worker; where it is empty, those that the worker sees count.
    """

    name: str
    cores: tuple[int, ...] = ()
    threads: int = 1
    warm_up: str = ""
    memory_mb: float = np.nan
    card: str = ""
    gpus: str = ""


def device_type_of(slot: str) -> str:
    """Return the device type of a slot by its name: ``cpu`` of ``cpu[0-3]``; a GPU is a type of its own."""
    return slot.partition("[")[0]


@dataclass(frozen=True)
class Limits:
    """When something counts as failed, in seconds: no heartbeat, no start, no end; and how often a job is tried.

    A job may take ``late`` times its predicted time, but at least ``least_s``.
    """

    beat_s: float = 0.5
    silent_s: float = 20.0
    ready_s: float = 120.0
    grace_s: float = 5.0
    late: float = 20.0
    least_s: float = 300.0
    attempts: int = 3


def cores_here() -> list[int]:
    """Return the cores of this machine that this process may use."""
    process = psutil.Process()
    return sorted(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else list(range(psutil.cpu_count() or 1))


def default_slots(cores: int) -> int:
    """Return into how many CPU slots of equal size a host is divided by default: one a core, but at most ``MOST_SLOTS``."""
    return cores // -(-cores // MOST_SLOTS)


def card_of(slot: Slot, environment: Mapping[str, str]) -> str:
    """Return the card of a GPU's slot as CUDA_VISIBLE_DEVICES names it, empty for a slot that is no GPU.

    The slot ``cuda:N`` is the N-th card that the variable leaves to this process, or number N where it is not set. Raises
    SlotLost where it leaves fewer.
    """
    name, _, number = device_type_of(slot.name).partition(":")
    if slot.card or name != "cuda" or not number.isdecimal():
        return slot.card
    try:
        return locks.card(int(number), environment)
    except InputError as error:
        raise SlotLost(str(error)) from None


class SlotLost(Exception):  # noqa: N818 - the run goes on without the slot
    """Raised where a worker is wanted for a slot that is gone for good."""


class Worker(Protocol):
    """The worker interface: what runs tasks on one slot, by the messages of ``worker_process``.

    A worker that has a ``pipe``, a Connection, makes it readable when there are messages.
    """

    def messages(self) -> list[tuple[Any, ...]]:
        """Return the messages since the last call; ``("died", reason)`` when it died."""

    def send(self, *message: Any) -> None:
        """Send it a message; one that died is noticed by its messages."""

    def shut_down(self) -> None:
        """End it at once."""


class ProcessWorker:
    """A worker process on this machine (``lib.measure.worker``); one of a GPU sees its card alone, as ``cuda:0``."""

    def __init__(self, slot: Slot, limits: Limits, output: Output | None = None):
        card = card_of(slot, worker.environment())
        environment = {**dict.fromkeys(worker_process.THREADS, str(slot.threads)), **({locks.MASK: card} if card else {}),
                       **({worker.GPUS: slot.gpus} if slot.gpus else {})}
        self.process = worker.Worker(
            worker_process.serve, "cuda:0" if card else slot.name, slot.cores, slot.threads, limits.beat_s, slot.warm_up,
            output and output.theirs, name=f"slot {slot.name}", environment=environment)
        self.pipe, self._output = self.process.pipe, output
        self.log = output and output.started()

    def messages(self) -> list[tuple[Any, ...]]:
        """Return the messages since the last call; a closed pipe is its death."""
        received, death = self.process.messages()
        received += [("died", death)] if death else []
        return self._output.merged(received) if self._output else received

    def send(self, *message: Any) -> None:
        """Send it a message; one that died is noticed by its messages."""
        self.process.send(message)

    def shut_down(self) -> None:
        """End it at once."""
        self.process.shut_down()
        if self._output:
            self._output.close()


def logged(slot: Slot, limits: Limits) -> ProcessWorker:
    """Spawn a worker process whose standard output and error come as reports of its attempts: ``{"log": [n, line]}``."""
    return ProcessWorker(slot, limits, Output())


@dataclass(frozen=True)
class Capacity:
    """What a slot offers to a job: cores, and memory in 10^6 bytes (inf: not known).

    Slots share the cores and the memory of their host, so that what runs on all of them at once fits it together.
    """

    device_type: str
    cores: int
    memory_mb: float

    def able(self, jobs: Jobs) -> np.ndarray:
        """Return whether each job has the memory and the cores that it asks for here."""
        return (jobs.memory_mb <= self.memory_mb) & (jobs.cpu_cores <= self.cores)

    def __str__(self) -> str:
        memory = "memory that is not known" if np.isinf(self.memory_mb) else f"{self.memory_mb:,.0f} MB"
        return f"{self.device_type} with {memory} and {self.cores} cores"


def able(jobs: Jobs, capacities: Sequence[Capacity], where: str) -> np.ndarray:
    """Return (jobs, capacities): what can run in which slot of a place; InputError for a job that can run in none of them."""
    fits = np.column_stack([capacity.able(jobs) for capacity in capacities])
    if not fits.any(axis=1).all():
        job = int(np.argmin(fits.any(axis=1)))
        raise InputError(f"no slot of {where} can run job {jobs.ids[job]!r}: it needs {jobs.memory_mb[job]:,.0f} MB and "
                         f"{jobs.cpu_cores[job]:g} cores; there are: {choices(dict.fromkeys(map(str, capacities)))} (slots "
                         "share their host's memory and cores: fewer --slots are larger)")
    return fits


Spawn = Callable[[Slot, Limits], Worker]  # raises SlotLost


@dataclass(frozen=True)
class Site:
    """Where jobs can run: slots, how their workers are spawned, which jobs their types can take (jobs, types).

    ``probes`` begins the name of the folder in which probes of workloads are kept.
    """

    slots: tuple[Slot, ...]
    spawn: Spawn
    able: np.ndarray
    probes: str = "probe"
