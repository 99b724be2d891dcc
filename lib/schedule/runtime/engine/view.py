"""What a policy is shown of an open list of jobs and of the slots that are there: names become numbers, and back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lib.schedule.contention import Contention
from lib.schedule.problem import Fleet, Jobs, able
from lib.schedule.runtime.journal import Spec
from lib.schedule.state import Finished, Predict, Running, State


@dataclass(eq=False)
class Entry:
    """A job of the list that has not ended; ``seconds`` are its predicted times by device type, as far as they were wanted.

    ``refusal`` says why it cannot be predicted, and shall end.
    """

    spec: Spec
    arrival_s: float = 0.0
    deadline_s: float = np.inf
    memory_mb: float = 0.0
    cpu_cores: float = 0.0
    job_class: int = -1
    priority: int = 0
    attempt: int = 0  # the latest
    seconds: dict[str, float] = field(default_factory=dict)
    refusal: str = ""

    @property
    def job_id(self) -> str:
        """Return its name."""
        return self.spec.job_id

    @classmethod
    def of(cls, spec: Spec, jobs: Jobs, job: int) -> "Entry":
        """Return one of ``jobs``, by its number."""
        return cls(spec, float(jobs.arrival_s[job]), float(jobs.deadline_s[job]), float(jobs.memory_mb[job]),
                   float(jobs.cpu_cores[job]), int(jobs.job_class[job]))


class Occupant(NamedTuple):
    """What runs on a slot."""

    entry: Entry
    start_s: float
    attempt: int


def jobs_of(entries: Sequence[Entry]) -> Jobs:
    """Return entries as aligned columns."""
    columns = {name: np.array([getattr(entry, name) for entry in entries], float)
               for name in ("arrival_s", "deadline_s", "memory_mb", "cpu_cores")}
    return Jobs(tuple(entry.job_id for entry in entries), **columns,
                job_class=np.array([entry.job_class for entry in entries], int))


class View:
    """A state of some jobs on some slots, in which a policy begins anew, and its predictions.

    ``stranded`` are entries that no slot which is there can run; the policy is not shown them.
    """

    def __init__(self, waiting: Iterable[Entry], upcoming: Sequence[Entry], occupants: dict[str, Occupant], idle: Sequence[str],
                 fleet: Fleet, contention: Contention | None, now_s: float, done: int):
        running = [one.entry for one in occupants.values()]
        listed = [*running, *waiting, *upcoming]
        seconds = np.array([[entry.seconds[name] for name in fleet.types] for entry in listed])
        fits, numbers = able(jobs_of(listed), fleet), np.arange(len(listed))
        able_s = np.where(fits, seconds.reshape(fits.shape), np.inf)
        nowhere, runs = ~np.isfinite(able_s).any(axis=1), numbers < len(running)
        self.stranded = [listed[number] for number in np.flatnonzero(nowhere & ~runs)]
        rows = np.flatnonzero(runs | ~nowhere)
        self.entries = [listed[number] for number in rows]
        self.number = {entry.job_id: number for number, entry in enumerate(self.entries)}
        self.device = {name: device for device, name in enumerate(fleet.names)}
        self.predict = Predict(np.where(nowhere[:, None], 1.0, able_s)[rows])  # a job may run where it could not start now
        waits = ~runs & (numbers < len(listed) - len(upcoming))
        self.state = self._state(fleet, waits[rows], occupants, idle, contention, now_s, done)
        self.state.expected = len(self.entries) - len(self.state.waiting) - len(running)

    def _state(self, fleet: Fleet, waits: np.ndarray, occupants: dict[str, Occupant], idle: Sequence[str],
               contention: Contention | None, now_s: float, done: int) -> State:
        running = {self.device[name]: Running(self.number[one.entry.job_id], self.device[name], one.start_s, one.attempt)
                   for name, one in occupants.items()}
        free: list[dict[int, None]] = [{} for _ in fleet.types]
        for device in reversed([self.device[name] for name in idle]):
            free[int(fleet.type_of[device])][device] = None
        state = State(jobs_of(self.entries), fleet, now_s, dict.fromkeys(np.flatnonzero(waits).tolist()), running, free,
                      fleet.host_cores, done=done, contention=contention)
        state.free_cores -= sum(state.cores(one.job, state.type_of[device]) for device, one in running.items())
        return state

    # ------------------------------------------------------------------------------------------ what happens meanwhile

    def seconds(self, entry: Entry, slot: str) -> float:
        """Return the predicted seconds of a job on a slot."""
        return self.predict(self.number[entry.job_id], self.state.type_of[self.device[slot]])

    def can_start(self, entry: Entry, slot: str) -> bool:
        """Return whether a job can start on a slot now."""
        job, device, state = self.number.get(entry.job_id), self.device.get(slot), self.state
        if job not in state.waiting or device is None:
            return False
        device_type = state.type_of[device]
        return device in state.free[device_type] and self.predict(job, device_type) < np.inf and \
            state.cores(job, device_type) <= state.free_cores + 1e-9

    def start(self, entry: Entry, slot: str, attempt: int) -> None:
        """Note that a job starts."""
        self.state.start(self.number[entry.job_id], self.device[slot], attempt)

    def stop(self, slot: str, now_s: float) -> None:
        """Note that a slot runs nothing any more."""
        self.state.now_s = now_s
        self.state.stop(self.device[slot])

    def finish(self, runs: Occupant, slot: str, seconds: float) -> None:
        """Note that a job ended well."""
        device_type = self.state.type_of[self.device[slot]]
        self.state.finished.append(Finished(self.number[runs.entry.job_id], device_type, seconds))
        self.state.done += 1

    def wait(self, entry: Entry) -> None:
        """Note that a job waits, which is no news yet."""
        if entry.job_id in self.number:
            self.state.waiting[self.number[entry.job_id]] = None

    def arrive(self, entry: Entry, expected: bool = False) -> None:
        """Note that a job arrives, ``expected`` for the first time, or else again."""
        self.wait(entry)
        if entry.job_id in self.number:
            self.state.arrived.append(self.number[entry.job_id])
            self.state.expected -= expected

    def enable(self, slot: str) -> None:
        """Note that a slot can run something."""
        self.state.enable(self.device[slot])

    def disable(self, slot: str) -> None:
        """Note that a slot cannot run anything for now."""
        self.state.disable(self.device[slot])
