"""Who carries out jobs on a slot: a process on this machine, or whatever else speaks as a worker does."""

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import psutil

from lib.schedule.runtime import worker_process

WARM = "lib.schedule.runtime.tasks:load"


@dataclass(frozen=True)
class Slot:
    """A device, or some cores of the CPU, that runs one job at a time; ``warm`` is what a worker calls before its first job."""

    name: str
    cores: tuple[int, ...] = ()
    threads: int = 1
    warm: str = ""


def kind_of(slot: str) -> str:
    """Return the type of a slot by its name: ``cpu`` of ``cpu[0-3]``; a GPU is a type of its own."""
    return slot.partition("[")[0]


@dataclass(frozen=True)
class Limits:
    """When something counts as failed, in seconds: no sign of life, no start, no end; and how often a job is tried.

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


class SlotLost(Exception):  # noqa: N818 - told by who hires, and no end of a run
    """Raised where a worker is wanted for a slot that is gone for good."""


class Hand(Protocol):
    """What carries out jobs on one slot: a process of ours, or an actor elsewhere.

    One that has a ``pipe``, a Connection, makes it readable when it has something to say.
    """

    def messages(self) -> list[tuple[Any, ...]]:
        """Return what it said since the last time; ``("gone", reason)`` when it died."""

    def send(self, *message: Any) -> None:
        """Tell it something."""

    def kill(self) -> None:
        """End it at once."""


class Process:
    """A worker process on this machine."""

    def __init__(self, slot: Slot, limits: Limits):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=worker_process.serve, daemon=True, name=f"slot {slot.name}",
                                        args=(other, slot.name, slot.cores, slot.threads, limits.beat_s, slot.warm))
        self._process.start()
        other.close()

    def messages(self) -> list[tuple[Any, ...]]:
        """Return what it said; a closed pipe is its death."""
        found = []
        try:
            while self.pipe.poll():
                found.append(self.pipe.recv())
        except (EOFError, OSError):
            self._process.join(2)
            code = self._process.exitcode
            found.append(("gone", f"the worker was killed (signal {-code}): out of memory?" if code and code < 0
                          else f"the worker ended with status {code}"))
        return found

    def send(self, *message: Any) -> None:
        """Tell it something; one that is gone says so by itself."""
        try:
            self.pipe.send(message)
        except (OSError, ValueError):
            return

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


Hire = Callable[[Slot, Limits], Hand]  # raises SlotLost


@dataclass(frozen=True)
class Site:
    """Where jobs can run: slots, who is hired for them, which jobs their types can take (jobs, types), its samples' folder."""

    slots: tuple[Slot, ...]
    hire: Hire
    able: np.ndarray
    samples: str = "samples"
