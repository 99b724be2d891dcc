"""The loop of a real run: workers are led through an open list of jobs as a policy says, and the journal knows of it first."""

import threading
import time
from bisect import insort
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from lib.errors import InputError
from lib.schedule.contention import Contention
from lib.schedule.problem import Fleet
from lib.schedule.runtime.engine.changes import Changes
from lib.schedule.runtime.engine.observer import Observer, Unobserved
from lib.schedule.runtime.engine.priorities import ranked
from lib.schedule.runtime.engine.slots import Slots, SlotState
from lib.schedule.runtime.engine.view import Entry, Occupant, View
from lib.schedule.runtime.journal import Journal, Spec
from lib.schedule.runtime.workers import Limits, Slot, Spawn
from lib.schedule.state import Policy, Restart, Wait

TICK_S = 0.2
_WITHOUT_PIPE_S = 0.05  # between looks at workers that wake nobody
_LEAST_S = 1e-3


class Engine:
    """Leads workers through jobs as a policy says. One thread runs it; others ``post`` changes, or read holding ``lock``."""

    def __init__(self, journal: Journal, policy: Policy, predicted_s: Callable[[Spec, str], float],
                 fleet_of: Callable[[tuple[Slot, ...]], Fleet], limits: Limits, spawn: Spawn, observer: Observer | None = None,
                 contention_of: Callable[[Fleet], Contention | None] = lambda fleet: None, tick_s: float = TICK_S):
        self.journal, self.limits, self.observer, self._tick_s = journal, limits, observer or Unobserved(), tick_s
        self._predicted_s, self._fleet_of, self._contention_of = predicted_s, fleet_of, contention_of
        self.policy = ranked(policy, lambda job: self.view.entries[job].priority)
        self.lock, self._changes = threading.RLock(), Changes()
        self._thread: threading.Thread | None = None
        self.attempts, self._began, self._offset_s = journal.tried(), time.monotonic(), journal.last_s()
        self.waiting: dict[str, Entry] = {}
        self.upcoming: list[Entry] = []
        self.slots = Slots(limits, spawn, self.now)
        self.view: View | None = None  # none: to be made anew before the next decision
        self.stranded: list[Entry] = []  # jobs that no slot that is there can run
        self.wake_s, self.done, self._changed = np.inf, 0, False

    def now(self) -> float:
        """Return the seconds since the run began, all its parts together."""
        return time.monotonic() - self._began + self._offset_s

    @property
    def left(self) -> int:
        """Return how many jobs have not ended."""
        return len(self.waiting) + len(self.upcoming) + len(self.slots.occupants())

    # ------------------------------------------------------------------------------------------ changes of the list

    def add(self, entry: Entry) -> None:
        """Add a job to the list."""
        if entry.arrival_s > self.now():
            insort(self.upcoming, entry, key=lambda one: one.arrival_s)
        else:
            self.waiting[entry.job_id] = entry
        self.view = None

    def cancel(self, job_id: str) -> None:
        """End a job that waits; stop one that runs, its end comes when it has stopped."""
        if job_id in self.waiting:
            self.view = None
            self._end(self.waiting[job_id], 0, "cancelled")
        for slot in self.slots:
            if slot.runs and slot.runs.entry.job_id == job_id and not slot.cancelled:
                slot.cancelled = True
                slot.stop(self.now() + self.limits.grace_s)

    def reorder(self, job_id: str, priority: int) -> None:
        """Give a job another priority."""
        for entry in (*self.waiting.values(), *(runs.entry for runs in self.slots.occupants().values())):
            if entry.job_id == job_id:
                entry.priority = priority
        self.view = None

    def join(self, slot: Slot) -> None:
        """Add a slot, in the place of one of that name."""
        self.leave(slot.name)
        self.slots.add(slot)

    def leave(self, name: str) -> None:
        """Remove a slot; what runs there is tried again elsewhere."""
        self.view, slot = None, self.slots.of.get(name)
        if slot and slot.runs:
            self._stopped(slot, "lost", "its slot was removed")
        self.slots.remove(name)

    def predict_anew(self) -> None:
        """Ask again how long the jobs that wait will take, before the next decision."""
        for entry in (*self.waiting.values(), *self.upcoming):
            entry.seconds.clear()
            entry.refusal = ""
        self.view = None

    def post(self, change: Callable[[], None]) -> None:
        """Let the engine's thread make a change soon, from any thread."""
        self._changes.post(change)

    def settle(self) -> None:
        """Return when all changes that were posted before are made."""
        made = threading.Event()
        self.post(made.set)
        while not made.is_set():
            if self._thread in (None, threading.current_thread()):
                with self.lock:
                    self._take()
            made.wait(self._tick_s)

    def _take(self) -> None:
        self._changed = self._changes.make() or self._changed

    # ------------------------------------------------------------------------------------------ the loop

    def run(self, until: Callable[[], bool]) -> None:
        """Run jobs until ``until`` holds; workers live as long, and what they run then is tried again by the next run."""
        self._thread = threading.current_thread()
        try:
            while self._round(until):
                self._wait()
        finally:
            with self.lock:
                self._thread, self.view = None, None
                for slot in self.slots:
                    if slot.runs:
                        self._put_back(slot)
                self.slots.shut_down()

    def _put_back(self, slot: SlotState) -> None:
        """Let a job wait for the next run after an error; what the journal refuses now it notes when the job starts again."""
        entry, cancelled = slot.runs.entry, slot.cancelled
        with suppress(Exception):  # the error that ended the run is the one to raise
            self._stopped(slot, "lost", "the run was ended")
        if slot.runs:
            slot.clear()
            self.waiting[entry.job_id] = entry
            if cancelled:
                self.post(partial(self.cancel, entry.job_id))

    def _round(self, until: Callable[[], bool]) -> bool:
        """Take in what happened, and decide; return whether to go on."""
        with self.lock:
            self._take()
            if not until():
                if self._look() or self._changed:
                    self._changed = False
                    self._decide()
                return True
            for slot in self.slots:
                if slot.runs:
                    self._stopped(slot, "lost", "the run was ended")
            return False

    def _wait(self) -> None:
        """Wait a moment for messages, changes, arrivals and timeouts."""
        pipes, next_s = self.slots.pipes(), self.upcoming[0].arrival_s if self.upcoming else np.inf
        tick_s = self._tick_s if pipes or not len(self.slots) else min(self._tick_s, _WITHOUT_PIPE_S)
        bell, pause_s = self._changes.bell, min(tick_s, next_s - self.now(), self.wake_s - self.now())
        if bell in wait([*pipes, bell], max(0.0, pause_s)):
            self._changes.heard()

    def _look(self) -> bool:
        """Take in messages, arrivals and timeouts; return whether there were any that are news to the policy."""
        now = self.now()
        news = now >= self.wake_s
        while self.upcoming and self.upcoming[0].arrival_s <= now:
            entry = self.upcoming.pop(0)
            self.waiting[entry.job_id] = entry
            if self.view:
                self.view.arrive(entry, expected=True)
            news = True
        for event, slot, what in self.slots.events():
            if event == "report":
                self.observer.reported(slot.runs.entry.job_id, slot.runs.attempt, what)
            else:
                self._handle(event, slot, what)
                news = True
        return news

    def _handle(self, event: str, slot: SlotState, what: Any) -> None:
        if event == "lost":
            self.view = None
        elif event == "ready":
            if self.view:
                self.view.enable(slot.name)
        elif event == "broken":
            if slot.runs:
                self._stopped(slot, "moved") if slot.moving_to else self._fail(slot, what)
            if self.view:
                self.view.disable(slot.name)
        elif event == "done":
            self._finish(slot, what)
        elif event == "stopped":
            self._stopped(slot, "moved")
        else:
            self._fail(slot, what, final=event == "refused")

    # ------------------------------------------------------------------------------------------ ends of attempts

    def _release(self, slot: SlotState) -> None:
        """Free a slot, once the journal knows."""
        if self.view:
            self.view.stop(slot.name, self.now())
        slot.clear()

    def _finish(self, slot: SlotState, result: Any) -> None:
        runs = slot.runs

        def free() -> None:
            view = self.view
            self._release(slot)
            if view:
                view.finish(runs, slot.name, max(_LEAST_S, self.now() - runs.start_s))
            self.done += 1
            for entry in self.waiting.values():
                if entry.job_class == runs.entry.job_class:
                    entry.seconds.clear()  # more may be known of them now

        self._end(runs.entry, runs.attempt, "done", "", result, free)

    def _stopped(self, slot: SlotState, status: str, reason: str = "") -> None:
        """End an attempt that is not the job's end, unless it is cancelled; start it anew where it shall be moved."""
        (entry, _, attempt), target, at_s = slot.runs, slot.moving_to, self.now()
        if slot.cancelled:
            self._end(entry, attempt, "cancelled", reason, free=partial(self._release, slot))
            return
        self.journal.stop(entry.job_id, attempt, at_s, status, reason)
        self._release(slot)
        if status == "retried":
            self.attempts[entry.job_id] = self.attempts.get(entry.job_id, 0) + 1
        if self.view:
            self.view.wait(entry)
        self.waiting[entry.job_id] = entry
        self.observer.stopped(entry.job_id, attempt, status, reason, at_s)
        if target and self.view and self.view.can_start(entry, target):
            self._start(entry, target)
        elif self.view:
            self.view.arrive(entry)

    def _fail(self, slot: SlotState, reason: str, final: bool = False) -> None:
        """End an attempt that went wrong, and the job with it when that is ``final`` or it was tried often enough."""
        runs = slot.runs
        tried = self.attempts.get(runs.entry.job_id, 0) + 1
        if slot.cancelled or not (final or tried >= self.limits.attempts):
            self._stopped(slot, "retried", reason)
            return
        times = "" if final else f" (attempt {tried} of {self.limits.attempts})"
        self._end(runs.entry, runs.attempt, "failed", f"{reason}{times}", free=partial(self._release, slot))

    def _end(self, entry: Entry, attempt: int, status: str, reason: str = "", result: Any = None,
             free: Callable[[], Any] = lambda: None) -> None:
        """End a job: in the journal, which may refuse, then in the list and by ``free``; then who watches may know."""
        at_s = self.now()
        new = self.journal.end(entry.job_id, attempt, at_s, status, reason, result)
        free()
        self.waiting.pop(entry.job_id, None)
        self.attempts.pop(entry.job_id, None)
        if new:
            self.observer.ended(entry.job_id, attempt, status, reason, result, at_s)

    # ------------------------------------------------------------------------------------------ decisions

    def snapshot(self, planning: bool = False) -> View:
        """Return a view of what there is now; a job that waits and cannot be predicted ends.

        For ``planning`` slots whose worker is still starting count as idle, and no job ends: that is for the next decision.
        """
        occupants = self.slots.occupants()
        fleet, running = self._fleet_of(tuple(slot.slot for slot in self.slots)), [one.entry for one in occupants.values()]
        for entry in [*running, *self.waiting.values(), *self.upcoming]:
            for device_type in set(fleet.types) - set(entry.seconds):
                try:
                    entry.seconds[device_type] = self._seconds(entry, device_type)
                except InputError as error:
                    entry.seconds[device_type] = np.inf
                    if entry not in running:
                        entry.refusal = str(error)
            if entry.refusal and entry not in running:
                entry.seconds = dict.fromkeys(fleet.types, np.inf)
                if not planning:
                    self._refuse(entry)
        idle = [slot.name for slot in self.slots if slot.idle or (planning and not slot.runs)]
        return View(self.waiting.values(), self.upcoming, occupants, idle, fleet, self._contention_of(fleet), self.now(),
                    self.done)

    def _seconds(self, entry: Entry, device_type: str) -> float:
        seconds = float(self._predicted_s(entry.spec, device_type))
        if not seconds > 0:
            raise InputError(f"the predicted time of {entry.job_id!r} on {device_type!r} is {seconds}: it is above 0")
        return seconds

    def _refuse(self, entry: Entry) -> None:
        """End a job that waits and cannot be predicted."""
        self._end(entry, 0, "failed", entry.refusal)
        self.upcoming = [one for one in self.upcoming if one is not entry]

    def _decide(self) -> None:
        if self.view is None and any(slot.idle for slot in self.slots):
            self.view = self.snapshot()
            self.stranded = self.view.stranded
        if not (view := self.view):
            return  # nothing could start
        self.wake_s, state, names = np.inf, view.state, view.state.fleet.names
        state.now_s = self.now()
        actions = self.policy(state, view.predict)
        state.clear_news()
        for action in actions:
            if isinstance(action, Wait):
                self.wake_s = min(self.wake_s, action.until_s)
            elif isinstance(action, Restart):
                self._move(view.entries[action.job], names[action.device])
            else:
                self._start(view.entries[action.job], names[action.device])
        idle = not state.running and not self.upcoming and self.wake_s == np.inf
        if self.view and idle and state.waiting and all(slot.ready for slot in self.slots):
            waiting = ", ".join(view.entries[job].job_id for job in list(state.waiting)[:3])
            raise InputError(f"the policy left {len(state.waiting)} jobs waiting for ever, such as {waiting}")

    def _start(self, entry: Entry, name: str) -> None:
        """Start a job, unless it was cancelled a moment ago: that change is still to come."""
        view, at_s = self.view, self.now()
        if not view:
            return
        if not view.can_start(entry, name):
            raise InputError(f"the policy started {entry.job_id} on {name}, where it cannot run now")
        attempt = self.journal.start(entry.job_id, name, at_s)
        if not attempt:
            self.view = None
            return
        entry.attempt = attempt
        self.observer.started(entry.job_id, attempt, name, at_s)
        self.slots.of[name].start(Occupant(entry, at_s, attempt), view.seconds(entry, name))
        del self.waiting[entry.job_id]
        view.start(entry, name, attempt)

    def _move(self, entry: Entry, target: str) -> None:
        slot = next(slot for slot in self.slots if slot.runs and slot.runs.entry is entry)
        if not (slot.moving_to or slot.cancelled):
            slot.moving_to = target
            slot.stop(self.now() + self.limits.grace_s)
