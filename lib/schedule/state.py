"""What a policy sees and what it answers: the same for a simulation, a replay and a real run.

A policy is a function ``policy(state, predict) -> list of Start | Restart | Wait`` without hidden state: what it wants to
remember from call to call lies in ``state.memory``, which a resumed run starts without.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from lib.schedule.problem import Fleet, Jobs


class Start(NamedTuple):
    """Start a waiting job on a free device."""

    job: int
    device: int


class Restart(NamedTuple):
    """Stop a running job where it runs, its work there is lost, and start it anew on a free device."""

    job: int
    device: int


class Wait(NamedTuple):
    """Leave devices idle on purpose, and be asked again at ``until_s`` at the latest (inf: at the next event)."""

    reason: str
    until_s: float = np.inf


Action = Start | Restart | Wait


class Running(NamedTuple):
    """A job that runs."""

    job: int
    device: int
    start_s: float
    attempt: int


class Finished(NamedTuple):
    """A job that ended well: where, and how long it took there."""

    job: int
    type: int
    seconds: float


class Predict:
    """Predicted seconds of a job on a type of device; ``sigma`` is their spread in log time."""

    def __init__(self, table: np.ndarray, sigma: float = 0.0):
        self.table, self.sigma = table, sigma
        self._rows: list[list[float]] = table.tolist()

    def __call__(self, job: int, place: int) -> float:
        """Return the seconds of one job on one type of device; inf where it cannot run."""
        return self._rows[job][place]

    def row(self, job: int) -> list[float]:
        """Return the seconds of one job on every type."""
        return self._rows[job]


@dataclass
class State:
    """Where things stand. Policies read it; only ``memory`` is theirs to write.

    ``free`` holds the free devices of each type, ``arrived``, ``freed`` and ``finished`` what is new since the last call
    (a job that failed and may be tried again arrives again).
    """

    jobs: Jobs
    fleet: Fleet
    now_s: float = 0.0
    waiting: dict[int, None] = field(default_factory=dict)
    running: dict[int, Running] = field(default_factory=dict)  # by device
    free: list[dict[int, None]] = field(default_factory=list)
    free_cores: float = np.inf
    arrived: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    done: int = 0
    expected: int = 0  # jobs still to arrive, 0 where that is not known
    memory: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def at_start(cls, jobs: Jobs, fleet: Fleet) -> "State":
        """Return the state before anything arrived: every device is free."""
        free: list[dict[int, None]] = [{} for _ in fleet.types]
        for device in range(len(fleet) - 1, -1, -1):
            free[fleet.type_of[device]][device] = None
        return cls(jobs, fleet, free=free, free_cores=fleet.host_cores)

    def idle(self, place: int) -> Iterator[int]:
        """Yield the free devices of a type, the first of the fleet first, or the one freed last."""
        return reversed(self.free[place])

    def first_idle(self, place: int, count: int) -> list[int]:
        """Return up to ``count`` free devices of a type."""
        return list(islice(reversed(self.free[place]), count))

    def cores(self, job: int, place: int) -> float:
        """Return the host's cores that a job takes on a type of device; a CPU slot brings its own, unless others took them."""
        if self.fleet.is_cpu(place):
            own = self.fleet.cpu_cores[place]
            return 0.0 if np.isnan(own) else float(own)
        return float(self.jobs.cpu_cores[job])

    # ------------------------------------------------------------------------------------------ for engines

    def start(self, job: int, device: int, attempt: int) -> None:
        """Move a job from waiting to running."""
        place = int(self.fleet.type_of[device])
        del self.waiting[job]
        del self.free[place][device]
        self.running[device] = Running(job, device, self.now_s, attempt)
        if self.free_cores != np.inf:
            self.free_cores -= self.cores(job, place)

    def stop(self, device: int) -> Running:
        """Free a device; return what ran there."""
        ran, place = self.running.pop(device), int(self.fleet.type_of[device])
        self.free[place][device] = None
        self.freed.append(device)
        if self.free_cores != np.inf:
            self.free_cores += self.cores(ran.job, place)
        return ran

    def away(self, device: int) -> None:
        """Take a device out that cannot run anything for now."""
        self.free[int(self.fleet.type_of[device])].pop(device, None)
        if device in self.freed:
            self.freed.remove(device)

    def back(self, device: int) -> None:
        """Take a device in that can run again."""
        self.free[int(self.fleet.type_of[device])][device] = None
        self.freed.append(device)

    def among(self, devices: list[int]) -> tuple["State", np.ndarray]:
        """Return the state of a fleet of some of the devices, in which policies begin anew, and which types it has.

        Nothing runs on the others any more.
        """
        fleet, types = self.fleet.among(np.array(devices, int))
        number = {device: place for place, device in enumerate(devices)}
        free = [{number[device]: None for device in self.free[place] if device in number} for place in types]
        running = {number[device]: ran._replace(device=number[device]) for device, ran in self.running.items()}
        return State(self.jobs, fleet, self.now_s, self.waiting, running, free, self.free_cores, done=self.done,
                     expected=self.expected), types

    def forget_news(self) -> None:
        """Start a new list of news, after a policy has seen the old one."""
        self.arrived.clear()
        self.freed.clear()
        self.finished.clear()


Policy = Callable[[State, Predict], list[Action]]
