"""What a policy sees (State, Predict) and what it answers (Start, Restart, Wait), in simulations and real runs alike.

A policy is a function ``policy(state, predict) -> list of Start | Restart | Wait``. It has no hidden state: what it
remembers between calls is an object in ``state.memory``, which is empty when a run resumes. ``predict`` is inf wherever a job
cannot run.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from lib.errors import InputError, choices
from lib.schedule.problem import Fleet, Jobs, cores_taken

Memory = TypeVar("Memory")
_SLACK = 1e-9  # cores: sums of fractions are rounded


class PolicyError(InputError):
    """A policy wants what cannot be done, or leaves jobs waiting for ever."""


class Start(NamedTuple):
    """Start a waiting job on a free device, a gang also on the ``others``, of the same type."""

    job: int
    device: int
    others: tuple[int, ...] = ()


class Restart(NamedTuple):
    """Stop a running job, which loses its work, and start it again on a free device."""

    job: int
    device: int


class Wait(NamedTuple):
    """Leave devices idle on purpose; decide again at ``until_s`` at the latest (inf: at the next event)."""

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
    """A job that ended well: its device type, and the seconds it took there."""

    job: int
    device_type: int
    seconds: float


class Predict:
    """Predicted seconds (jobs, types), inf where a job cannot run; ``sigma`` is their spread in log time."""

    def __init__(self, table: np.ndarray, sigma: float = 0.0):
        self.table, self.sigma = table, sigma
        self._rows = table.tolist()

    def __call__(self, job: int, device_type: int) -> float:
        """Return the seconds of one job on one device type; inf where it cannot run."""
        return self._rows[job][device_type]


class State:
    """The jobs and devices at one moment, at first before any job arrived. Policies only write to ``memory``.

    ``waiting`` has the jobs, ``free`` the free devices of each type, as keys in their order; ``running`` is by device.
    ``arrived``, ``started`` (devices), ``freed`` and ``finished`` list the changes since the last call; a failed job that may
    be tried again arrives again. ``expected`` jobs are still to arrive (0 if unknown). ``joules`` is the energy of each job on
    each type (jobs, types), NaN if unknown (None: use watts). ``memory`` has a policy's objects by their class. ``refined_s``
    is the time spent in ``refining`` since the engine last reset it.
    ``type_of`` (devices), ``setup_s`` and ``counts`` (types) are columns of the fleet as lists.
    """

    def __init__(self, jobs: Jobs, fleet: Fleet):
        self.jobs, self.fleet, self.now_s, self.expected, self.refined_s = jobs, fleet, 0.0, 0, 0.0
        self.type_of, self.setup_s, self.counts = fleet.type_of.tolist(), fleet.setup_s.tolist(), fleet.counts.tolist()
        self.waiting, self.running, self.free, self.memory = {}, {}, [{} for _ in fleet.types], {}
        for device, device_type in reversed(list(enumerate(self.type_of))):
            self.free[device_type][device] = None
        self.free_cores, self._cores = fleet.host_cores, cores_taken(jobs, fleet)
        self.arrived, self.started, self.freed, self.finished = [], [], [], []
        self.joules = None

    def recall(self, kind: type[Memory], create: Callable[[], Memory]) -> tuple[Memory, list[int]]:
        """Return the policy's object of a class, created at the first call, and the waiting jobs that it has not seen."""
        new = self.arrived if kind in self.memory else list(self.waiting)
        if kind not in self.memory:
            self.memory[kind] = create()
        return self.memory[kind], new

    def idle(self, device_type: int, most: float = np.inf) -> list[int]:
        """Return free devices of a type, ``most`` of them or all: in the fleet's order, the one freed last first."""
        free = self.free[device_type]
        return list(islice(reversed(free), min(most, len(free))))  # going on past the last would visit every removed key

    def cores(self, job: int, device_type: int) -> float:
        """Return the host cores that a job takes on a device type (``problem.cores_taken``)."""
        return self._cores.item(job, device_type)

    def worked_s(self, ran: Running) -> float:
        """Return for how long a running job has worked, without its set-up, during which this is negative."""
        return self.now_s - ran.start_s - self.setup_s[self.type_of[ran.device]]

    # ------------------------------------------------------------------------------------------ for engines

    def obstacle(self, job: int, devices: Sequence[int], predict: Predict) -> str:
        """Return why a job cannot start on devices now; empty if it can."""
        device_type = self.type_of[devices[0]]
        possible = {"it is not waiting": job in self.waiting,
                    "it needs another number of devices at once": len(set(devices)) == self.jobs.gang[job],
                    "not all are free, and of one type": self.free[device_type].keys() >= set(devices),
                    "it cannot run there": predict(job, device_type) < np.inf,
                    "too few cores of the host are free": CoreBudget(self).has(job, device_type)}
        return next((reason for reason, holds in possible.items() if not holds), "")

    def check_start(self, job: int, devices: Sequence[int], predict: Predict) -> None:
        """Raise PolicyError if a job cannot start on devices now."""
        if obstacle := self.obstacle(job, devices, predict):
            names = choices(self.fleet.names[device] for device in devices)
            raise PolicyError(f"the policy started job {self.jobs.ids[job]} on {names}: {obstacle}")

    def abandoned(self) -> PolicyError:
        """Return the error of a policy that leaves jobs waiting though nothing more will happen."""
        names = choices(self.jobs.ids[job] for job in list(self.waiting)[:3])
        return PolicyError(f"the policy left {len(self.waiting)} jobs waiting for ever, such as {names}")

    def start(self, job: int, devices: Sequence[int], attempt: int) -> None:
        """Move a job from waiting to running."""
        device_type = self.type_of[devices[0]]
        del self.waiting[job]
        for device in devices:
            del self.free[device_type][device]
            self.running[device] = Running(job, device, self.now_s, attempt)
            self.started.append(device)
            self.free_cores -= self.cores(job, device_type)

    def stop(self, device: int) -> Running:
        """Free a device; return what ran there."""
        ran, device_type = self.running.pop(device), self.type_of[device]
        self.enable(device)
        self.free_cores += self.cores(ran.job, device_type)
        return ran

    def arrive(self, job: int) -> None:
        """Let a job wait, as news to the policy."""
        self.waiting[job] = None
        self.arrived.append(job)

    def finish(self, ran: Running, seconds: float) -> None:
        """Note that a job, which has been stopped, ended well."""
        self.finished.append(Finished(ran.job, self.type_of[ran.device], seconds))

    def disable(self, device: int) -> None:
        """Take away a free device that cannot run anything for now."""
        self.free[self.type_of[device]].pop(device, None)
        if device in self.freed:
            self.freed.remove(device)

    def enable(self, device: int) -> None:
        """Add a device that can run something again."""
        self.free[self.type_of[device]][device] = None
        self.freed.append(device)

    def clear_news(self) -> None:
        """Empty the lists of changes, after the policy has seen them."""
        for news in (self.arrived, self.started, self.freed, self.finished):
            news.clear()


class CoreBudget:
    """The host cores that are left while a policy collects its ``actions``, and the jobs that ``started``."""

    def __init__(self, state: State):
        self._state, self.left, self.actions, self.started = state, state.free_cores, [], set()

    def fits(self, cores: float) -> bool:
        """Return whether so many cores are left."""
        return cores <= self.left + _SLACK

    def has(self, job: int, device_type: int) -> bool:
        """Return whether enough cores are left for a job on a device type."""
        return self.fits(self._state.cores(job, device_type))

    def take(self, job: int, device_type: int) -> bool:
        """Reserve the cores of a job on a device type; False if too few are left."""
        cores = self._state.cores(job, device_type)
        if enough := cores <= self.left + _SLACK:
            self.left -= cores
        return enough

    def start(self, job: int, device: int) -> bool:
        """Collect the start of a job on a device; False if too few cores are left."""
        if enough := self.take(job, self._state.type_of[device]):
            self.started.add(job)
            self.actions.append(Start(job, device))
        return enough

    def waits(self, entry: Sequence) -> bool:
        """Return whether the job of an entry, its last element, still waits."""
        return entry[-1] in self._state.waiting and entry[-1] not in self.started


@contextmanager
def refining(state: State) -> Iterator[None]:
    """Add the seconds within to ``state.refined_s``: engines report planning anew apart from plain decisions."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        state.refined_s += time.perf_counter() - begin


Policy = Callable[[State, Predict], list[Action]]
