"""What a policy sees and what it answers: the same for a simulation, a replay and a real run.

A policy is a function ``policy(state, predict) -> list of Start | Restart | Wait`` without hidden state: what it wants to
remember from call to call lies in ``state.memory``, which a resumed run starts without. There it notes, too, the seconds
for which it planned anew (``refining``), so that an engine can tell them from those of plain decisions.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from lib.schedule.contention import Contention
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

    ``free`` holds the free devices of each type, ``arrived``, ``started`` (devices), ``freed`` and ``finished`` what is new
    since the last call (a job that failed and may be tried again arrives again). Columns of jobs and fleet that are asked
    for in every decision are here as lists: ``type_of`` (devices), ``need_mb`` (jobs), ``room_mb`` (types; inf: not known),
    ``setup_s`` and ``counts`` (types).
    """

    jobs: Jobs
    fleet: Fleet
    now_s: float = 0.0
    waiting: dict[int, None] = field(default_factory=dict)
    running: dict[int, Running] = field(default_factory=dict)  # by device
    free: list[dict[int, None]] = field(default_factory=list)
    free_cores: float = np.inf
    arrived: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    done: int = 0
    expected: int = 0  # jobs still to arrive, 0 where that is not known
    contention: Contention | None = None  # what is known of how jobs slow each other down
    memory: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        jobs, fleet = self.jobs, self.fleet
        self.type_of: list[int] = fleet.type_of.tolist()
        self.need_mb: list[float] = jobs.memory_mb.tolist()
        self.room_mb: list[float] = np.where(np.isnan(fleet.memory_mb), np.inf, fleet.memory_mb).tolist()
        self.setup_s: list[float] = fleet.setup_s.tolist()
        self.counts: list[int] = fleet.counts.tolist()
        self._need_cores: list[float] = jobs.cpu_cores.tolist()
        self._own_cores = [float(np.nan_to_num(fleet.cpu_cores[place])) if fleet.is_cpu(place) else None
                           for place in range(len(fleet.types))]

    @classmethod
    def at_start(cls, jobs: Jobs, fleet: Fleet) -> "State":
        """Return the state before anything arrived: every device is free."""
        free: list[dict[int, None]] = [{} for _ in fleet.types]
        for device, place in reversed(list(enumerate(fleet.type_of.tolist()))):
            free[place][device] = None
        return cls(jobs, fleet, free=free, free_cores=fleet.host_cores)

    def idle(self, place: int) -> Iterator[int]:
        """Yield the free devices of a type, the first of the fleet first, or the one freed last."""
        return reversed(self.free[place])

    def first_idle(self, place: int, count: int) -> list[int]:
        """Return up to ``count`` free devices of a type."""
        free = self.free[place]
        return list(islice(reversed(free), min(count, len(free))))  # never beyond the last: removed ones are skipped one by one

    def cores(self, job: int, place: int) -> float:
        """Return the host's cores that a job takes on a type of device; a CPU slot brings its own, unless others took them."""
        own = self._own_cores[place]
        return self._need_cores[job] if own is None else own

    # ------------------------------------------------------------------------------------------ for engines

    def start(self, job: int, device: int, attempt: int) -> None:
        """Move a job from waiting to running."""
        place = self.type_of[device]
        del self.waiting[job]
        del self.free[place][device]
        self.running[device] = Running(job, device, self.now_s, attempt)
        self.started.append(device)
        if self.free_cores != np.inf:
            self.free_cores -= self.cores(job, place)

    def stop(self, device: int) -> Running:
        """Free a device; return what ran there."""
        ran, place = self.running.pop(device), self.type_of[device]
        self.free[place][device] = None
        self.freed.append(device)
        if self.free_cores != np.inf:
            self.free_cores += self.cores(ran.job, place)
        return ran

    def away(self, device: int) -> None:
        """Take a device out that cannot run anything for now."""
        self.free[self.type_of[device]].pop(device, None)
        if device in self.freed:
            self.freed.remove(device)

    def back(self, device: int) -> None:
        """Take a device in that can run again."""
        self.free[self.type_of[device]][device] = None
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
                     expected=self.expected, contention=self.contention and self.contention.among(types)), types

    def forget_news(self) -> None:
        """Start a new list of news, after a policy has seen the old one."""
        self.arrived.clear()
        self.started.clear()
        self.freed.clear()
        self.finished.clear()


@contextmanager
def refining(state: State) -> Iterator[None]:
    """Note in ``memory["refined_s"]`` the seconds that pass within: a search, a linear programme, lists made anew.

    They add up until an engine takes them out.
    """
    begin = time.perf_counter()
    try:
        yield
    finally:
        state.memory["refined_s"] = state.memory.get("refined_s", 0.0) + time.perf_counter() - begin


Policy = Callable[[State, Predict], list[Action]]
