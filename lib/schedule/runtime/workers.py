"""Slots and the workers that run tasks on them: processes on this machine, or anything with the same interface."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from lib import locks
from lib.errors import InputError, choices
from lib.measure import worker
from lib.schedule.problem import Jobs
from lib.schedule.runtime import worker_process
from lib.schedule.runtime.output import Message, Output

_MOST_SLOTS = 16  # of a host's CPU by default: each is a process with torch, and jobs share memory and its bandwidth
WARM_UP = "lib.schedule.runtime.tasks:warm_up"


@dataclass(frozen=True)
class Slot:
    """A device, or some cores of the CPU, that runs one job at a time; a worker calls ``warm_up`` before its first job.

    ``memory_mb`` is NaN if unknown. ``card`` is the CUDA_VISIBLE_DEVICES of a GPU's worker, such as a UUID; if empty, it
    follows from the slot's name. ``gpus`` are those of the whole machine as JSON, for the ``hardware_id`` of the worker; if
    empty, the GPUs that the worker sees.
    """

    name: str
    cores: tuple[int, ...] = ()
    threads: int = 1
    warm_up: str = ""
    memory_mb: float = np.nan
    card: str = ""
    gpus: str = ""


def device_type_of(slot: str) -> str:
    """Return the device type in a slot's name: ``cpu`` of ``cpu[0-3]``; each GPU of a machine is a type."""
    return slot.partition("[")[0]


@dataclass(frozen=True)
class Limits:
    """Seconds after which something counts as failed, and how often a job is tried.

    These are: no heartbeat (``silent_s``), no start (``ready_s``), no stop (``grace_s``). A job may take ``overrun_factor``
    times its predicted time, but at least ``least_s``.
    """

    beat_s: float = 0.5
    silent_s: float = 20.0
    ready_s: float = 120.0
    grace_s: float = 5.0
    overrun_factor: float = 20.0
    least_s: float = 300.0
    attempts: int = 3


def default_slots(cores: int) -> int:
    """Return the default number of CPU slots of a host: one per core, but at most ``_MOST_SLOTS``, of equal size."""
    return cores // -(-cores // _MOST_SLOTS)


def card_of(slot: Slot, environment: Mapping[str, str]) -> str:
    """Return the card of a GPU's slot as CUDA_VISIBLE_DEVICES names it, empty for a slot that is no GPU.

    The slot ``cuda:N`` is the N-th card of the variable in this process, or number N if it is not set. Raises SlotLost if it
    lists fewer cards.
    """
    name, _, number = device_type_of(slot.name).partition(":")
    if slot.card or name != "cuda" or not number.isdecimal():
        return slot.card
    try:
        return locks.card(int(number), environment)
    except InputError as error:
        raise SlotLost(str(error)) from None


class SlotLost(Exception):  # noqa: N818 - the run goes on without the slot
    """Raised when a worker is needed for a slot that is gone for good."""


class Worker(Protocol):
    """Runs tasks on one slot; its messages are those of ``worker_process``.

    If it has a ``pipe``, a Connection, that becomes readable when there are messages.
    """

    def messages(self) -> list[Message]:
        """Return the messages since the last call; ``("died", reason)`` when it died."""

    def send(self, *message: Any) -> None:
        """Send a message; a dead worker is noticed by its messages."""

    def shut_down(self) -> None:
        """End the worker at once."""


class ProcessWorker:
    """A worker process on this machine (``lib.measure.worker``); the worker of a GPU sees only its card, as ``cuda:0``."""

    def __init__(self, slot: Slot, limits: Limits, output: Output | None = None):
        card = card_of(slot, worker.environment())
        variables = {**dict.fromkeys(worker_process.THREADS, str(slot.threads)), locks.MASK: card, worker.GPUS: slot.gpus}
        self.process = worker.Worker(
            worker_process.serve, "cuda:0" if card else slot.name, slot.cores, slot.threads, limits.beat_s, slot.warm_up,
            output and output.theirs, name=f"slot {slot.name}",
            environment={name: value for name, value in variables.items() if value})
        self.pipe, self._output = self.process.pipe, output
        self.log = output and output.started()

    def messages(self) -> list[Message]:
        """Return the messages since the last call; a closed pipe is its death."""
        received, death = self.process.messages()
        received += [("died", death)] if death else []
        return self._output.merged(received) if self._output else received

    def send(self, *message: Any) -> None:
        """Send a message; a dead worker is noticed by its messages."""
        if self._output and message[0] == "run" and not any(message[4:5]):  # of a gang, the lines of its leader
            self._output.begin(message[1])
        self.process.send(message)

    def shut_down(self) -> None:
        """End the worker at once."""
        self.process.shut_down()
        if self._output:
            self._output.pipe.close()


def logged(slot: Slot, limits: Limits) -> ProcessWorker:
    """Spawn a worker process whose printed lines come as reports of its attempts: ``{"log": [n, line]}``."""
    return ProcessWorker(slot, limits, Output())


class Capacity(NamedTuple):
    """What a slot offers to a job: its share of the host's cores and memory, in 10^6 bytes (inf: unknown)."""

    device_type: str
    cores: int
    memory_mb: float

    def __str__(self) -> str:
        memory = "memory that is not known" if np.isinf(self.memory_mb) else f"{self.memory_mb:,.0f} MB"
        return f"{self.device_type} with {memory} and {self.cores} cores"


def able(jobs: Jobs, capacities: Sequence[Capacity], where: str) -> np.ndarray:
    """Return (jobs, capacities): which job fits which slot; InputError, which names the place, for a job that fits none."""
    fits = np.column_stack([(jobs.memory_mb <= capacity.memory_mb) & (jobs.cpu_cores <= capacity.cores)
                            for capacity in capacities])
    for job in np.flatnonzero(~fits.any(axis=1)):
        raise InputError(f"no slot of {where} can run job {jobs.ids[job]!r}: it needs {jobs.memory_mb[job]:,.0f} MB and "
                         f"{jobs.cpu_cores[job]:g} cores; there are: {choices(dict.fromkeys(map(str, capacities)))} (slots "
                         "share their host's memory and cores: fewer --slots are larger)")
    return fits


Spawn = Callable[[Slot, Limits], Worker]  # raises SlotLost


@dataclass(frozen=True)
class Site:
    """Where jobs can run: slots, how their workers are spawned, and which jobs their types can take (jobs, types).

    ``probes`` is the prefix of the folders of probes.
    """

    slots: tuple[Slot, ...]
    spawn: Spawn
    able: np.ndarray
    probes: str = "probe"
