"""What a policy sees of an open list of jobs and of the slots that are there: jobs and slots get numbers."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from lib.schedule.problem import PER_JOB, Fleet, Jobs, able
from lib.schedule.runtime.engine.slots import SlotState
from lib.schedule.runtime.journal import Entry
from lib.schedule.state import Predict, Running, State


class View(NamedTuple):
    """A state in which a policy starts without memory, its predictions, and the entries by their numbers.

    ``numbers`` are by the names of jobs. ``stranded`` are entries that no slot can run now; the policy does not see them.
    """

    state: State
    predict: Predict
    entries: list[Entry]
    numbers: dict[str, int]
    stranded: list[Entry]


def _jobs_of(entries: Sequence[Entry]) -> Jobs:
    columns = {name: np.array([getattr(entry, name) for entry in entries], float) for name in PER_JOB}
    return Jobs(tuple(entry.job_id for entry in entries), **columns,
                job_class=np.array([entry.job_class for entry in entries], int),
                devices=np.array([entry.spec.devices for entry in entries], int),
                user=np.unique([entry.user for entry in entries], return_inverse=True)[1],
                weight=np.array([entry.weight for entry in entries], float))


def view_of(waiting: Collection[Entry], upcoming: Sequence[Entry], slots: Sequence[SlotState], idle: Sequence[SlotState],
            fleet: Fleet, now_s: float) -> View:
    """Return the view; ``slots`` are the devices of the fleet, of which ``idle`` can start a job."""
    runs = list(dict.fromkeys(slot.runs for slot in slots if slot.runs))
    entries = [*runs, *waiting, *upcoming]
    seconds = np.array([[entry.seconds[name] for name in fleet.types] for entry in entries])
    able_s = np.where(fits := able(_jobs_of(entries), fleet), seconds.reshape(fits.shape), np.inf)
    nowhere, running = np.isinf(able_s).all(axis=1), np.arange(len(entries)) < len(runs)
    shown = np.flatnonzero(running | ~nowhere)
    waits = np.flatnonzero((shown >= len(runs)) & (shown < len(entries) - len(upcoming))).tolist()
    seen = [entries[place] for place in shown]
    numbers, state = {entry.job_id: number for number, entry in enumerate(seen)}, State(_jobs_of(seen), fleet)
    state.now_s, state.waiting = now_s, dict.fromkeys(waits)
    state.expected = len(shown) - len(waits) - len(runs)
    for device, slot in enumerate(slots):
        slot.device = device
        if slot not in idle:
            state.disable(device)
        if slot.runs:
            number = numbers[slot.runs.job_id]
            state.running[device] = Running(number, device, slot.attempt.start_s, slot.runs.attempt)
            state.free_cores -= state.cores(number, state.type_of[device])
    predict = Predict(np.where(nowhere[:, None], 1.0, able_s)[shown])  # a job may run where it could not start now
    stranded = [entries[place] for place in np.flatnonzero(nowhere & ~running)]
    return View(state, predict, seen, numbers, stranded)
