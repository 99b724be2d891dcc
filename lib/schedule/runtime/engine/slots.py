"""Slots with their workers: spawned, listened to, watched and replaced."""

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from lib.errors import InputError
from lib.schedule.runtime.journal import TOGETHER, Entry
from lib.schedule.runtime.worker_process import Member
from lib.schedule.runtime.workers import Limits, Slot, SlotLost, Spawn, Worker

_NOTES = 1000


@dataclass(eq=False)
class Attempt:
    """An attempt of a job on one slot, or on those of a gang, the first of which leads: its result counts.

    ``busy`` are the slots whose workers are still at it. ``troubles``: how the parts went wrong, the first of which stops the
    others: the status, the reason, and whether every attempt would go wrong like that.
    """

    entry: Entry
    slots: "tuple[SlotState, ...]"
    start_s: float
    expected_s: float
    busy: "set[SlotState]" = field(default_factory=set)
    result: Any = None
    troubles: list[tuple[str, str, bool]] = field(default_factory=list)
    cancelled: bool = False
    moving_to: "SlotState | None" = None  # where to start the job once it has stopped here

    @property
    def names(self) -> str:
        """Return the names of its slots."""
        return TOGETHER.join(slot.name for slot in self.slots)

    def start(self, rendezvous: str) -> None:
        """Let the workers run the job."""
        entry, self.busy = self.entry, set(self.slots)
        for rank, slot in enumerate(self.slots):
            slot.attempt = self
            member = Member(rank, len(self.slots), rendezvous) if len(self.slots) > 1 else ()
            slot.worker.send("run", slot.token, entry.spec.call, entry.spec.arguments, *member)

    def stop(self, by_s: float) -> None:
        """Tell the workers that are still at it to stop; one that has not stopped ``by_s`` is replaced."""
        for slot in self.busy:
            slot.stop_by_s = min(slot.stop_by_s, by_s)
            slot.worker.send("stop", slot.token)


@dataclass(eq=False)
class SlotState:
    """A slot, its worker (none before the first), and the attempt that runs on it."""

    slot: Slot
    worker: Worker | None = None
    device: int = -1  # its number in the view
    spawned_s: float = 0.0
    seen_s: float = 0.0
    ready: bool = False
    failed_starts: int = 0  # workers in a row that never became ready
    trouble: str = ""  # of the last worker
    attempt: Attempt | None = None
    stop_by_s: float = np.inf

    @property
    def name(self) -> str:
        """Return the slot's name."""
        return self.slot.name

    @property
    def runs(self) -> Entry | None:
        """Return the job that runs here."""
        return self.attempt.entry if self.attempt else None

    @property
    def idle(self) -> bool:
        """Return whether a job could start here."""
        return self.ready and self.attempt is None

    @property
    def token(self) -> str:
        """Return the name of the attempt that runs here."""
        return f"{self.runs.job_id}#{self.runs.attempt}" if self.runs else ""


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
        self.by_name = {}
        self.notes = deque(maxlen=_NOTES)

    def __iter__(self) -> Iterator[SlotState]:
        return iter(list(self.by_name.values()))

    def __len__(self) -> int:
        return len(self.by_name)

    def pipes(self) -> list[Any]:
        """Return what becomes readable when workers have something to say."""
        return [pipe for slot in self for name in ("pipe", "log")
                if isinstance(pipe := getattr(slot.worker, name, None), Connection)]

    def events(self) -> Iterator[Event]:
        """Yield what happened, and spawn missing workers: ``(event, slot, content)``.

        ``ready``; ``report`` (content), ``done`` (result), ``stopped``, ``failed`` (reason) and ``refused`` (reason) of the
        running job; ``broken`` (reason): the worker has ended, and is replaced afterwards; ``lost`` (reason): the slot is given
        up.
        """
        for slot in self:
            if slot.worker:
                yield from self._heard(slot)
        for slot in self:
            if slot.worker is None:
                yield from self._spawned(slot)

    def _heard(self, slot: SlotState) -> Iterator[Event]:
        trouble = ""
        for event, *content in slot.worker.messages():
            slot.seen_s = self._now()
            if event == "died":
                trouble = content[0]
            elif event == "ready":
                slot.ready = True
                yield event, slot, None
            elif event != "heartbeat" and content[0] == slot.token:
                yield event, slot, content[-1]
        if trouble := trouble or self._overdue(slot):
            slot.worker.shut_down()
            yield "broken", slot, trouble
            self.notes.append(f"{slot.name}: {trouble}")
            slot.failed_starts = 0 if slot.ready else slot.failed_starts + 1
            slot.worker, slot.ready, slot.trouble = None, False, trouble

    def _overdue(self, slot: SlotState) -> str:
        """Return why a worker must be replaced that is silent, late, or did not stop; empty if it need not."""
        now, limits, attempt = self._now(), self.limits, slot.attempt if slot.attempt and slot in slot.attempt.busy else None
        ran_s, expected_s = (now - attempt.start_s, attempt.expected_s) if attempt else (0.0, np.inf)
        troubles = {
            f"the worker did not start within {limits.ready_s:g} s": not slot.ready and now - slot.spawned_s > limits.ready_s,
            f"no sign of life for {limits.silent_s:g} s": slot.ready and now - slot.seen_s > limits.silent_s,
            f"it did not stop within {limits.grace_s:g} s": now > slot.stop_by_s,
            f"not done after {ran_s:,.0f} s, predicted were {expected_s:,.3g} s":
                ran_s > max(limits.least_s, limits.overrun_factor * expected_s)}
        return next((trouble for trouble, holds in troubles.items() if holds), "")

    def _spawned(self, slot: SlotState) -> Iterator[Event]:
        """Spawn a slot's worker; give up a slot that is gone, or whose workers never start."""
        slot.spawned_s = slot.seen_s = self._now()
        trouble = f"{slot.failed_starts} workers in a row could not start, the last: {slot.trouble}"
        if slot.failed_starts < self.limits.attempts:
            try:
                slot.worker = self._spawn(slot.slot, self.limits)
                return
            except SlotLost as error:
                trouble = str(error)
        del self.by_name[slot.name]
        self.notes.append(f"{slot.name} is given up: {trouble}")
        yield "lost", slot, trouble

    def shut_down(self) -> None:
        """End all workers."""
        for slot in self:
            if slot.worker:
                slot.worker.send("end")
                slot.worker.shut_down()
            slot.worker, slot.ready, slot.failed_starts = None, False, 0
