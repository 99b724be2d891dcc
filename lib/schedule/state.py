"""What a policy sees (State, Predict) and what it answers (Start, Restart, Wait).

A policy is a function ``policy(state, predict) -> list of Start | Restart | Wait``. A State is made
anew for each decision. What a policy wants to remember it keeps in ``state.memory``, which is empty
when a run resumes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lib.errors import InputError
from lib.schedule.problem import Fleet, Jobs

SLACK = 1e-9  # cores: sums of fractions are rounded


class PolicyError(InputError):
    """A policy wants what cannot be done, or leaves jobs waiting for ever."""


class Start(NamedTuple):
    """Start a waiting job on an idle device; a gang also on ``others``, of the same type."""

    job: int
    device: int
    others: tuple[int, ...] = ()


class Restart(NamedTuple):
    """Stop a running job, which loses its work, and start it again on an idle device."""

    job: int
    device: int


class Wait(NamedTuple):
    """Leave devices idle on purpose; decide again at the next event, or earlier, at ``until_s``."""

    reason: str
    until_s: float = np.inf


Action = Start | Restart | Wait


class Running(NamedTuple):
    """A job on one of its devices; a gang has several of these."""

    job: int
    device: int
    start_s: float
    attempt: int


class Finished(NamedTuple):
    """All jobs that ended well so far, as aligned arrays; ``seconds`` on the device, set-up included."""

    job: np.ndarray
    device_type: np.ndarray
    seconds: np.ndarray


class Predict(NamedTuple):
    """Predicted seconds (jobs, types), inf where a job cannot run; ``sigma`` is in log time."""

    table: np.ndarray
    sigma: float = 0.0

    def __call__(self, job: int, device_type: int) -> float:
        """Return the seconds of one job on one device type; inf where it cannot run."""
        return float(self.table[job, device_type])


@dataclass
class State:
    """The jobs and devices at one moment; jobs, devices and types are numbers: rows of tables.

    ``waiting``: jobs in the order of arrival. ``free``: idle devices. ``cores``: host cores (jobs,
    types) that a job takes per device. ``expected``: jobs still to arrive, 0 if unknown.
    """

    jobs: Jobs
    fleet: Fleet
    waiting: np.ndarray
    free: np.ndarray
    cores: np.ndarray
    now_s: float = 0.0
    running: Sequence[Running] = ()
    finished: Finished = Finished(np.empty(0, int), np.empty(0, int), np.empty(0))
    free_cores: float = np.inf
    expected: int = 0
    joules: np.ndarray | None = None  # (jobs, types), where stated
    memory: dict = field(default_factory=dict)

    @property
    def type_of(self) -> np.ndarray:
        """Type of each device."""
        return self.fleet.type_of

    @property
    def counts(self) -> np.ndarray:
        """Number of devices of each type."""
        return self.fleet.counts

    @property
    def setup_s(self) -> np.ndarray:
        """Seconds of set-up on each type."""
        return self.fleet.setup_s

    def idle(self, device_type: int) -> np.ndarray:
        """Return the idle devices of a type."""
        return self.free[self.type_of[self.free] == device_type]

    def worked_s(self, ran: Running) -> float:
        """Return for how long a running job has worked; negative during its set-up."""
        return self.now_s - ran.start_s - self.setup_s[self.type_of[ran.device]]

    def ready_s(self, predict: Predict) -> np.ndarray:
        """Return in how many seconds each device is expected to be idle; 0 for overdue ones."""
        ready = np.zeros(len(self.fleet))
        for ran in self.running:
            left_s = predict(ran.job, self.type_of[ran.device]) - self.worked_s(ran)
            ready[ran.device] = max(0.0, left_s)
        return ready


class Starts(list):
    """The actions that a policy collects; it counts the host cores and the devices that are left."""

    def __init__(self, state: State):
        self._state, self.free_cores = state, state.free_cores
        self._idle = [state.idle(kind).tolist() for kind in range(len(state.counts))]

    def enough(self, cores: np.ndarray) -> np.ndarray:
        """Return where so many host cores are still free."""
        return cores <= self.free_cores + SLACK

    def fits(self, job: int, device_type: int) -> bool:
        """Return whether the host cores that a job takes on a type are still free."""
        return bool(self.enough(self._state.cores[job, device_type] * self._state.jobs.gang[job]))

    def idle(self, device_type: int) -> list[int]:
        """Return the devices of a type that are still idle."""
        return self._idle[device_type]

    def start(self, job: int, devices: Sequence[int]) -> None:
        """Start a job on idle devices of one type."""
        device, *others = (int(device) for device in devices)
        device_type = self._state.type_of[device]
        self.free_cores -= self._state.cores[job, device_type] * len(devices)
        for taken in (device, *others):
            self._idle[device_type].remove(taken)
        self.append(Start(int(job), device, tuple(others)))


Policy = Callable[[State, Predict], list[Action]]
