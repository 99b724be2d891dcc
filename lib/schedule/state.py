"""What a policy sees and what it answers: the same for a simulation, a replay and a real run.

A policy is a function ``policy(state, predict) -> list of Start | Restart | Wait`` without hidden state: what it remembers from
call to call is an object in ``state.memory``, which a resumed run starts without. ``predict`` is masked: inf says that a job
cannot run on a device type (no time, too little memory or cores, no such device), and a policy checks nothing else. The
seconds of planning anew (``refining``) are added up in ``state.refined_s``: engines tell them from those of plain decisions.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lib.schedule.contention import Contention
from lib.schedule.problem import Fleet, Jobs

Memory = TypeVar("Memory")


class Start(NamedTuple):
    """Start a waiting job on a free device."""

    job: int
    device: int


class Restart(NamedTuple):
    """Stop a running job where it runs, its work there is lost, and start it anew on a free device."""

    job: int
    device: int


class Wait(NamedTuple):
    """Leave devices idle on purpose, and decide again at ``until_s`` at the latest (inf: at the next event)."""

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
    device_type: int
    seconds: float


class Predict:
    """Predicted seconds (jobs, types), inf where a job cannot run; ``sigma`` is their spread in log time."""

    def __init__(self, table: np.ndarray, sigma: float = 0.0):
        self.table, self.sigma = table, sigma
        self._rows: list[list[float]] = table.tolist()

    def __call__(self, job: int, device_type: int) -> float:
        """Return the seconds of one job on one device type; inf where it cannot run."""
        return self._rows[job][device_type]

    def row(self, job: int) -> list[float]:
        """Return the seconds of one job on every type."""
        return self._rows[job]


@dataclass
class State:
    """Where things stand. Policies read it; only ``memory`` is theirs to write.

    ``free`` holds the free devices of each type, ``arrived``, ``started`` (devices), ``freed`` and ``finished`` what is new
    since the last call (a job that failed and may be tried again arrives again). Columns of the fleet that every decision
    needs are here as lists: ``type_of`` (devices), ``setup_s`` and ``counts`` (types).
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
    joules: np.ndarray | None = None  # what jobs take on each type (jobs, types), NaN not known; None: their devices' watts
    memory: dict[type, Any] = field(default_factory=dict)  # a policy's objects, by their class
    refined_s: float = 0.0  # spent in ``refining`` since an engine last set it to 0

    def __post_init__(self):
        fleet = self.fleet
        self.type_of: list[int] = fleet.type_of.tolist()
        self.setup_s: list[float] = fleet.setup_s.tolist()
        self.counts: list[int] = fleet.counts.tolist()
        self._need_cores: list[float] = self.jobs.cpu_cores.tolist()
        self._own_cores = [float(np.nan_to_num(own)) if fleet.is_cpu(device_type) else None
                           for device_type, own in enumerate(fleet.cpu_cores)]

    @classmethod
    def at_start(cls, jobs: Jobs, fleet: Fleet) -> "State":
        """Return the state before anything arrived: every device is free."""
        free: list[dict[int, None]] = [{} for _ in fleet.types]
        for device, device_type in reversed(list(enumerate(fleet.type_of.tolist()))):
            free[device_type][device] = None
        return cls(jobs, fleet, free=free, free_cores=fleet.host_cores)

    def recall(self, kind: type[Memory], create: Callable[[], Memory]) -> Memory:
        """Return the policy's object of a class, created at the first call."""
        if kind not in self.memory:
            self.memory[kind] = create()
        return self.memory[kind]

    def idle(self, device_type: int) -> Iterator[int]:
        """Yield the free devices of a type, the first of the fleet first, or the one freed last."""
        return reversed(self.free[device_type])

    def first_idle(self, device_type: int, count: int) -> list[int]:
        """Return up to ``count`` free devices of a type."""
        free = self.free[device_type]
        return list(islice(reversed(free), min(count, len(free))))  # never beyond the last: removed ones are skipped one by one

    def cores(self, job: int, device_type: int) -> float:
        """Return the host's cores that a job takes on a device type; a CPU slot brings its own, unless others took them."""
        own = self._own_cores[device_type]
        return self._need_cores[job] if own is None else own

    # ------------------------------------------------------------------------------------------ for engines

    def start(self, job: int, device: int, attempt: int) -> None:
        """Move a job from waiting to running."""
        device_type = self.type_of[device]
        del self.waiting[job]
        del self.free[device_type][device]
        self.running[device] = Running(job, device, self.now_s, attempt)
        self.started.append(device)
        if self.free_cores != np.inf:
            self.free_cores -= self.cores(job, device_type)

    def stop(self, device: int) -> Running:
        """Free a device; return what ran there."""
        ran, device_type = self.running.pop(device), self.type_of[device]
        self.free[device_type][device] = None
        self.freed.append(device)
        if self.free_cores != np.inf:
            self.free_cores += self.cores(ran.job, device_type)
        return ran

    def disable(self, device: int) -> None:
        """Take a device out that cannot run anything for now."""
        self.free[self.type_of[device]].pop(device, None)
        if device in self.freed:
            self.freed.remove(device)

    def enable(self, device: int) -> None:
        """Take a device in that can run again."""
        self.free[self.type_of[device]][device] = None
        self.freed.append(device)

    def clear_news(self) -> None:
        """Start new lists of news, after a policy has seen the old ones."""
        self.arrived.clear()
        self.started.clear()
        self.freed.clear()
        self.finished.clear()


@contextmanager
def refining(state: State) -> Iterator[None]:
    """Add to ``state.refined_s`` the seconds that pass within: a search, a linear programme, lists made anew."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        state.refined_s += time.perf_counter() - begin


Policy = Callable[[State, Predict], list[Action]]
