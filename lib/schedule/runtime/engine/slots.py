"""Slots with their workers: spawned, listened to, watched and replaced."""

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from lib.errors import InputError
from lib.schedule.runtime.engine.view import Occupant
from lib.schedule.runtime.workers import Limits, Slot, SlotLost, Spawn, Worker

_NOTES = 1000


@dataclass
class SlotState:
    """A slot, its worker (none before the first), and what runs on it."""

    slot: Slot
    worker: Worker | None = None
    spawned_s: float = 0.0
    seen_s: float = 0.0
    ready: bool = False
    failed_starts: int = 0  # workers in a row that never became ready
    runs: Occupant | None = None
    token: str = ""
    expected_s: float = 0.0  # of the job that runs
    cancelled: bool = False
    moving_to: str = ""  # the slot to start the job on, once it has stopped here
    stop_by_s: float = np.inf

    @property
    def name(self) -> str:
        """Return the slot's name."""
        return self.slot.name

    @property
    def idle(self) -> bool:
        """Return whether a job could start here."""
        return self.ready and self.runs is None

    def start(self, occupant: Occupant, expected_s: float) -> None:
        """Let the worker run a job."""
        entry = occupant.entry
        self.runs, self.token, self.expected_s = occupant, f"{entry.job_id}#{occupant.attempt}", expected_s
        self.worker.send("run", self.token, entry.spec.call, entry.spec.arguments)

    def stop(self, by_s: float) -> None:
        """Tell the worker to stop its job; a worker that has not stopped ``by_s`` is replaced."""
        self.stop_by_s = min(self.stop_by_s, by_s)
        self.worker.send("stop", self.token)

    def clear(self) -> None:
        """Note that nothing runs here."""
        self.runs, self.token, self.cancelled, self.moving_to, self.stop_by_s = None, "", False, "", np.inf


def attempt_of(token: str) -> tuple[str, int]:
    """Return the job and the number of the attempt that a token names; InputError if it names none."""
    job_id, _, attempt = token.rpartition("#")
    if not re.fullmatch(r"[0-9]{1,9}", attempt):
        raise InputError(f"{token[:100]!r} is no attempt of a job")
    return job_id, int(attempt)


Event = tuple[str, SlotState, Any]


class Slots:
    """The slots that are there, ``by_name``. ``notes`` say which workers were replaced and which slots were given up."""

    def __init__(self, limits: Limits, spawn: Spawn, now: Callable[[], float]):
        self.limits, self._spawn, self._now = limits, spawn, now
        self.by_name: dict[str, SlotState] = {}
        self.notes: deque[str] = deque(maxlen=_NOTES)

    def __iter__(self) -> Iterator[SlotState]:
        return iter(list(self.by_name.values()))

    def __len__(self) -> int:
        return len(self.by_name)

    def remove(self, name: str) -> None:
        """Remove a slot, if it is there, and end its worker."""
        slot = self.by_name.pop(name, None)
        if slot and slot.worker:
            slot.worker.shut_down()

    def occupants(self) -> dict[str, Occupant]:
        """Return what runs, by slot."""
        return {slot.name: slot.runs for slot in self if slot.runs}

    def pipes(self) -> list[Any]:
        """Return what becomes readable when workers have something to say."""
        pipes = [getattr(slot.worker, name, None) for slot in self for name in ("pipe", "log")]
        return [pipe for pipe in pipes if isinstance(pipe, Connection)]

    def events(self) -> Iterator[Event]:
        """Spawn missing workers, and yield what happened: ``(event, slot, content)``.

        ``ready``; ``report`` (content), ``done`` (result), ``stopped``, ``failed`` (reason) and ``refused`` (reason) of the
        running job; ``broken`` (reason): the worker has ended, and is replaced afterwards; ``lost`` (reason): the slot is given
        up.
        """
        for slot in self:
            if slot.worker is None:
                yield from self._spawned(slot)
        for slot in self:
            why = ""
            for event, *content in slot.worker.messages():
                slot.seen_s = self._now()
                if event == "died":
                    why = content[0]
                    break
                if event == "ready":
                    slot.ready = True
                    yield event, slot, None
                elif event != "heartbeat" and content[0] == slot.token:
                    yield event, slot, content[1] if len(content) > 1 else None
            if why := why or self._overdue(slot):
                yield from self._replaced(slot, why)

    def _overdue(self, slot: SlotState) -> str:
        """Return why a worker must be replaced that is silent, late, or did not stop; empty if it need not."""
        now, limits, runs = self._now(), self.limits, slot.runs
        if not slot.ready:
            return f"the worker did not start within {limits.ready_s:g} s" if now - slot.spawned_s > limits.ready_s else ""
        if now - slot.seen_s > limits.silent_s:
            return f"no sign of life for {limits.silent_s:g} s"
        if now > slot.stop_by_s:
            return f"it did not stop within {limits.grace_s:g} s"
        if runs and now - runs.start_s > max(limits.least_s, limits.late * slot.expected_s):
            return f"not done after {now - runs.start_s:,.0f} s, predicted were {slot.expected_s:,.3g} s"
        return ""

    def _replaced(self, slot: SlotState, reason: str) -> Iterator[Event]:
        slot.worker.shut_down()
        yield "broken", slot, reason
        self.notes.append(f"{slot.name}: {reason}")
        slot.failed_starts = 0 if slot.ready else slot.failed_starts + 1
        yield from self._spawned(slot, reason)

    def _spawned(self, slot: SlotState, last: str = "") -> Iterator[Event]:
        """Spawn a slot's worker; give up a slot that is gone, or whose workers never start."""
        slot.ready, slot.spawned_s, slot.seen_s = False, self._now(), self._now()
        why = f"{slot.failed_starts} workers in a row could not start, the last: {last}"
        if slot.failed_starts < self.limits.attempts:
            try:
                slot.worker = self._spawn(slot.slot, self.limits)
                return
            except SlotLost as error:
                why = str(error)
        del self.by_name[slot.name]
        self.notes.append(f"{slot.name} is given up: {why}")
        yield "lost", slot, why

    def shut_down(self) -> None:
        """End all workers."""
        for slot in self:
            if slot.worker:
                slot.worker.send("end")
                slot.worker.shut_down()
            slot.worker, slot.ready, slot.failed_starts = None, False, 0
