"""What a policy sees of an open list of jobs and of the slots that are there: names become numbers, and back."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lib.schedule.contention import Contention
from lib.schedule.problem import PER_JOB, Fleet, Jobs, able
from lib.schedule.runtime.journal import Entry
from lib.schedule.state import CoreBudget, Predict, Running, State


class Occupant(NamedTuple):
    """An attempt that runs on a slot."""

    entry: Entry
    start_s: float
    attempt: int


def _jobs_of(entries: Sequence[Entry]) -> Jobs:
    columns = {name: np.array([getattr(entry, name) for entry in entries], float) for name in PER_JOB}
    return Jobs(tuple(entry.job_id for entry in entries), **columns,
                job_class=np.array([entry.job_class for entry in entries], int))


class View:
    """A state of jobs on slots, in which a policy starts without memory, and its predictions.

    ``stranded`` are entries that no slot can run now; the policy does not see them.
    """

    def __init__(self, waiting: Iterable[Entry], upcoming: Sequence[Entry], occupants: dict[str, Occupant], idle: Sequence[str],
                 fleet: Fleet, contention: Contention | None, now_s: float, done: int):
        entries = [*(occupant.entry for occupant in occupants.values()), *waiting, *upcoming]
        seconds = np.array([[entry.seconds[name] for name in fleet.types] for entry in entries])
        able_s = np.where(fits := able(_jobs_of(entries), fleet), seconds.reshape(fits.shape), np.inf)
        nowhere, runs = np.isinf(able_s).all(axis=1), np.arange(len(entries)) < len(occupants)
        shown = np.flatnonzero(runs | ~nowhere)
        self.stranded = [entries[number] for number in np.flatnonzero(nowhere & ~runs)]
        self.entries = [entries[number] for number in shown]
        self.number = {entry.job_id: number for number, entry in enumerate(self.entries)}
        self.device = {name: device for device, name in enumerate(fleet.names)}
        self.predict = Predict(np.where(nowhere[:, None], 1.0, able_s)[shown])  # a job may run where it could not start now
        waits = np.flatnonzero((shown >= len(occupants)) & (shown < len(entries) - len(upcoming))).tolist()
        state = self.state = State(_jobs_of(self.entries), fleet, now_s, dict.fromkeys(waits), free=[{} for _ in fleet.types],
                                   free_cores=fleet.host_cores, done=done, contention=contention,
                                   expected=len(shown) - len(waits) - len(occupants))
        for device in reversed([self.device[name] for name in idle]):
            state.free[state.type_of[device]][device] = None
        for number, (name, occupant) in enumerate(occupants.items()):
            device = self.device[name]
            state.running[device] = Running(number, device, occupant.start_s, occupant.attempt)
            state.free_cores -= state.cores(number, state.type_of[device])

    # ------------------------------------------------------------------------------------------ changes

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
            CoreBudget(state).has(job, device_type)

    def start(self, entry: Entry, slot: str, attempt: int) -> None:
        """Note that a job starts."""
        self.state.start(self.number[entry.job_id], self.device[slot], attempt)

    def stop(self, slot: str, now_s: float, seconds: float | None = None) -> None:
        """Note that a slot is free, and how long its job took if that ended well."""
        self.state.now_s = now_s
        ran = self.state.stop(self.device[slot])
        if seconds is not None:
            self.state.finish(ran, seconds)

    def wait(self, entry: Entry) -> None:
        """Note that a job waits, which is no news yet."""
        if entry.job_id in self.number:
            self.state.waiting[self.number[entry.job_id]] = None

    def arrive(self, entry: Entry, expected: bool = False) -> None:
        """Note that a job arrives: for the first time if ``expected``, else again."""
        if entry.job_id in self.number:
            self.state.arrive(self.number[entry.job_id])
            self.state.expected -= expected

    def enable(self, slot: str) -> None:
        """Note that a slot can run something."""
        self.state.enable(self.device[slot])

    def disable(self, slot: str) -> None:
        """Note that a slot cannot run anything for now."""
        self.state.disable(self.device[slot])
