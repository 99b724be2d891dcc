"""The engine of real runs: a worker a device or CPU slot, led through an open list of jobs by a policy and a journal.

``execute`` runs a fixed list until it is empty; ``service`` keeps the list open.
"""

import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
import pandas as pd

from lib import locks
from lib.errors import InputError, choices, is_no_space
from lib.progress import track
from lib.schedule.contention import Contention
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.runtime.journal import Journal, Spec
from lib.schedule.runtime.view import Entry, Occupant, View
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, SlotLost, Spawn, Worker
from lib.schedule.state import Finished, Policy, Restart, Wait

JOURNAL = "run.sqlite"
_TICK_S = 0.2
_LEAST_S = 1e-3
_NOTES = 1000


class Observer(Protocol):
    """What may watch the jobs of an engine, in its thread; an end is in the journal before it is seen here."""

    def started(self, job_id: str, attempt: int, slot: str, at_s: float) -> None:
        """Notice that an attempt starts."""

    def ended(self, job_id: str, attempt: int, status: str, reason: str, result: Any, at_s: float) -> None:
        """Notice the end of a job: done, failed or cancelled; attempt 0 where it never started."""

    def stopped(self, job_id: str, attempt: int, status: str, reason: str, at_s: float) -> None:
        """Notice the end of an attempt that is not the job's: retried, moved or lost."""

    def reported(self, job_id: str, attempt: int, content: dict[str, Any]) -> None:
        """Notice what a task reports while it runs."""


class Unobserved:
    """The observer that does nothing."""

    def started(self, job_id: str, attempt: int, slot: str, at_s: float) -> None:
        """Do nothing."""

    def ended(self, job_id: str, attempt: int, status: str, reason: str, result: Any, at_s: float) -> None:
        """Do nothing."""

    def stopped(self, job_id: str, attempt: int, status: str, reason: str, at_s: float) -> None:
        """Do nothing."""

    def reported(self, job_id: str, attempt: int, content: dict[str, Any]) -> None:
        """Do nothing."""


@dataclass
class _SlotState:
    """One slot while it is there, its worker (none before the first), and what runs on it."""

    slot: Slot
    worker: Worker | None = None
    spawned_s: float = 0.0
    seen_s: float = 0.0
    ready: bool = False
    failed_starts: int = 0  # workers before this one that never became ready
    runs: Occupant | None = None
    token: str = ""
    cancelled: bool = False
    moving_to: str = ""  # the slot to start its job on, once it has stopped here
    stop_by_s: float = np.inf
    expected_s: float = 0.0  # that its job takes

    def clear(self) -> None:
        """Note that nothing runs here."""
        self.runs, self.token, self.cancelled, self.moving_to, self.stop_by_s = None, "", False, "", np.inf

    def stop(self, by_s: float) -> None:
        """Tell the worker to stop its job; it is replaced where it has not by then."""
        self.stop_by_s = min(self.stop_by_s, by_s)
        self.worker.send("stop", self.token)


class Engine:
    """Leads workers through jobs as a policy says. One thread runs it; others ``post`` changes, and read it holding ``lock``."""

    def __init__(self, journal: Journal, policy: Policy, predicted_s: Callable[[Spec, str], float],
                 fleet_of: Callable[[tuple[Slot, ...]], Fleet], limits: Limits, spawn: Spawn, observer: Observer,
                 contention_of: Callable[[Fleet], Contention | None] = lambda fleet: None):
        self.journal, self.policy, self.limits, self.spawn, self.observer = journal, policy, limits, spawn, observer
        self._predicted_s, self._fleet_of, self._contention_of = predicted_s, fleet_of, contention_of
        self.lock, self._changes, self._rung = threading.RLock(), SimpleQueue(), threading.Event()
        self._bell, self._ring = Pipe(duplex=False)
        self._thread: threading.Thread | None = None
        self.attempts, self._began, self._offset_s = journal.tried(), time.monotonic(), journal.last_s()
        self.waiting: dict[str, Entry] = {}
        self.upcoming: list[Entry] = []
        self.slots: dict[str, _SlotState] = {}
        self.view: View | None = None  # none: to be made anew before the next decision
        self.stranded: list[Entry] = []  # jobs that no slot that is there can run
        self.notes: deque[str] = deque(maxlen=_NOTES)
        self.wake_s, self.done = np.inf, 0

    def now(self) -> float:
        """Return the seconds since the run began, all its parts together."""
        return time.monotonic() - self._began + self._offset_s

    @property
    def left(self) -> int:
        """Return how many jobs have not ended."""
        return len(self.waiting) + len(self.upcoming) + len(self.occupants())

    def occupants(self) -> dict[str, Occupant]:
        """Return what runs, by slot."""
        return {name: slot.runs for name, slot in self.slots.items() if slot.runs}

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
            self._end(self.waiting.pop(job_id), 0, "cancelled")
            self.view = None
        for slot in self.slots.values():
            if slot.runs and slot.runs.entry.job_id == job_id and not slot.cancelled:
                slot.cancelled = True
                slot.stop(self.now() + self.limits.grace_s)

    def reorder(self, job_id: str, priority: int) -> None:
        """Give a job another priority."""
        for entry in (*self.waiting.values(), *(one.entry for one in self.occupants().values())):
            if entry.job_id == job_id:
                entry.priority = priority
        self.view = None

    def join(self, slot: Slot) -> None:
        """Add a slot, in the place of one of that name."""
        self.leave(slot.name)
        self.slots[slot.name] = _SlotState(slot)
        self.view = None

    def leave(self, name: str) -> None:
        """Remove a slot; what runs there is tried again elsewhere."""
        slot = self.slots.pop(name, None)
        if slot and slot.worker:
            slot.worker.shut_down()
        if slot and slot.runs:
            self._stopped(slot, "lost", "its slot was removed")
        self.view = None

    def post(self, change: Callable[[], None]) -> None:
        """Let the engine's thread make a change soon, from any thread."""
        self._changes.put(change)
        if not self._rung.is_set():
            self._rung.set()
            self._ring.send_bytes(b".")

    def settle(self) -> None:
        """Return when all changes that were posted before are made."""
        made = threading.Event()
        self.post(made.set)
        while not made.is_set():
            if self._thread in (None, threading.current_thread()):
                with self.lock:
                    self._take()
            made.wait(_TICK_S)

    def _take(self) -> bool:
        news = not self._changes.empty()
        while not self._changes.empty():
            self._changes.get()()
        return news

    # ------------------------------------------------------------------------------------------ the loop

    def run(self, until: Callable[[], bool]) -> None:
        """Run jobs until ``until`` holds; workers live as long, and what they run then is tried again by the next run."""
        self._thread = threading.current_thread()
        try:
            while True:
                with self.lock:
                    news = self._take()
                    if until():
                        break
                    if self._look() or news:
                        self._decide()
                self._wait()
            for slot in self.slots.values():
                if slot.runs:
                    self._stopped(slot, "lost", "the run was ended")
        finally:
            with self.lock:
                self._thread, self.view = None, None
                for slot in self.slots.values():
                    if slot.worker:
                        slot.worker.send("end")
                        slot.worker.shut_down()
                    slot.worker, slot.ready, slot.failed_starts = None, False, 0

    def _wait(self) -> None:
        """Wait a moment for messages, changes, arrivals and timeouts."""
        pipes = [slot.worker.pipe for slot in self.slots.values() if isinstance(getattr(slot.worker, "pipe", None), Connection)]
        next_s = self.upcoming[0].arrival_s if self.upcoming else np.inf
        pause = max(0.0, min(_TICK_S if pipes or not self.slots else 0.05, next_s - self.now(), self.wake_s - self.now()))
        if self._bell in wait([*pipes, self._bell], pause):
            self._rung.clear()
            self._bell.recv_bytes()

    def _look(self) -> bool:
        """Take in messages, arrivals and timeouts; return whether there were any."""
        now = self.now()
        news = now >= self.wake_s
        while self.upcoming and self.upcoming[0].arrival_s <= now:
            self._arrive(self.upcoming.pop(0))
            news = True
        for name in list(self.slots):
            if self.slots[name].worker is None:
                self._spawn(self.slots[name])
        for name in list(self.slots):
            for message in self.slots[name].worker.messages():
                news |= self._handle(self.slots[name], message)
            news |= name in self.slots and self._watch(self.slots[name])
        return news

    def _handle(self, slot: _SlotState, message: tuple[Any, ...]) -> bool:
        """Take in a message; return whether it is news to the policy."""
        slot.seen_s, what = self.now(), message[0]
        if what == "ready":
            slot.ready = True
            if self.view:
                self.view.enable(slot.slot.name)
            return True
        if what == "died":
            self._replace(slot, message[1])
            return True
        if what == "heartbeat" or message[1] != slot.token:
            return False
        if what == "report":
            self.observer.reported(slot.runs.entry.job_id, slot.runs.attempt, message[2])
            return False
        if what == "done":
            self._finish(slot, message[2])
        elif what == "stopped":
            self._stopped(slot, "moved")
        else:
            self._fail(slot, message[2], final=what == "refused")
        return True

    def _watch(self, slot: _SlotState) -> bool:
        """Replace a worker that is silent, late, or did not stop; return whether it was."""
        now, limits, runs = self.now(), self.limits, slot.runs
        if not slot.ready:
            why = f"the worker did not start within {limits.ready_s:g} s" if now - slot.spawned_s > limits.ready_s else ""
        elif now - slot.seen_s > limits.silent_s:
            why = f"no sign of life for {limits.silent_s:g} s"
        elif now > slot.stop_by_s:
            why = f"it did not stop within {limits.grace_s:g} s"
        elif runs and now - runs.start_s > max(limits.least_s, limits.late * slot.expected_s):
            why = f"not done after {now - runs.start_s:,.0f} s, predicted were {slot.expected_s:,.3g} s"
        else:
            why = ""
        if why:
            self._replace(slot, why)
        return bool(why)

    # ------------------------------------------------------------------------------------------ ends of attempts

    def _arrive(self, entry: Entry, again: bool = False) -> None:
        """Let a job wait, for the first time or again."""
        self.waiting[entry.job_id] = entry
        if self.view and not self.view.arrive(entry, again):
            self.view = None

    def _release(self, slot: _SlotState) -> Occupant:
        """Free a slot; return what ran there."""
        runs = slot.runs
        if self.view:
            self.view.stop(slot.slot.name, self.now())
        slot.clear()
        return runs

    def _finish(self, slot: _SlotState, result: Any) -> None:
        view, runs = self.view, self._release(slot)
        if view:
            view.finish(runs, slot.slot.name, max(_LEAST_S, self.now() - runs.start_s))
        self.done += 1
        for entry in self.waiting.values():
            if entry.job_class == runs.entry.job_class:
                entry.seconds.clear()  # more may be known of them now
        self._end(runs.entry, runs.attempt, "done", "", result)

    def _stopped(self, slot: _SlotState, status: str, reason: str = "") -> None:
        """End an attempt that is not the job's end, unless it is cancelled; start it anew where it shall be moved."""
        cancelled, target, runs = slot.cancelled, self.slots.get(slot.moving_to), self._release(slot)
        entry, at_s = runs.entry, self.now()
        if cancelled:
            self._end(entry, runs.attempt, "cancelled", reason)
            return
        self.journal.stop(entry.job_id, runs.attempt, at_s, status, reason)
        self.observer.stopped(entry.job_id, runs.attempt, status, reason, at_s)
        self._arrive(entry, again=True)
        if target and self._can_start(entry, target):
            self._start(entry, target)

    def _fail(self, slot: _SlotState, reason: str, final: bool = False) -> None:
        """End an attempt that went wrong, and the job with it when that is ``final`` or it was tried often enough."""
        name = slot.runs.entry.job_id
        self.attempts[name] = self.attempts.get(name, 0) + 1
        if slot.cancelled or not (final or self.attempts[name] >= self.limits.attempts):
            self._stopped(slot, "retried", reason)
            return
        times = "" if final else f" (attempt {self.attempts[name]} of {self.limits.attempts})"
        runs = self._release(slot)
        self._end(runs.entry, runs.attempt, "failed", f"{reason}{times}")

    def _end(self, entry: Entry, attempt: int, status: str, reason: str = "", result: Any = None) -> None:
        at_s = self.now()
        if self.journal.end(entry.job_id, attempt, at_s, status, reason, result):
            self.observer.ended(entry.job_id, attempt, status, reason, result, at_s)
        self.attempts.pop(entry.job_id, None)

    # ------------------------------------------------------------------------------------------ workers

    def _spawn(self, slot: _SlotState, last: str = "") -> None:
        """Spawn a slot's worker; give the slot up where it is lost, or workers start in vain."""
        why = f"{slot.failed_starts} workers in a row could not start, the last: {last}"
        if slot.failed_starts < self.limits.attempts:
            try:
                slot.worker, slot.ready, slot.spawned_s, slot.seen_s = self.spawn(slot.slot, self.limits), False, *[self.now()] * 2
                return
            except SlotLost as error:
                why = str(error)
        self.notes.append(f"{slot.slot.name} is given up: {why}")
        del self.slots[slot.slot.name]
        self.view = None

    def _replace(self, slot: _SlotState, reason: str) -> None:
        """Replace a worker; what ran there failed, or is moved where it should be."""
        slot.worker.shut_down()
        if slot.runs:
            self._fail(slot, reason) if not slot.moving_to else self._stopped(slot, "moved")
        if self.view:
            self.view.disable(slot.slot.name)
        self.notes.append(f"{slot.slot.name}: {reason}")
        slot.failed_starts = 0 if slot.ready else slot.failed_starts + 1
        self._spawn(slot, reason)

    # ------------------------------------------------------------------------------------------ decisions

    def seconds(self, entry: Entry, device_type: str) -> float:
        """Return the predicted seconds of a job on a device type, inf where it cannot run; InputError where they are none."""
        if device_type not in entry.seconds:
            entry.seconds[device_type] = seconds = float(self._predicted_s(entry.spec, device_type))
            if not seconds > 0:
                raise InputError(f"the predicted time of {entry.job_id!r} on {device_type!r} is {seconds}: it is above 0")
        return entry.seconds[device_type]

    def _renew(self) -> View | None:
        """Return what the policy is shown, made anew where the list or the slots have changed; None where nothing could start."""
        if self.view is None and any(slot.ready and not slot.runs for slot in self.slots.values()):
            self.view = self.snapshot()
            self.stranded = self.view.stranded
        return self.view

    def snapshot(self) -> View:
        """Return a view of what there is now; jobs that cannot be predicted end."""
        fleet = self._fleet_of(tuple(slot.slot for slot in self.slots.values()))
        for entry in [*self.waiting.values(), *self.upcoming]:
            try:
                for device_type in fleet.types:
                    self.seconds(entry, device_type)
            except InputError as error:
                self.waiting.pop(entry.job_id, None)
                self.upcoming = [one for one in self.upcoming if one is not entry]
                self._end(entry, 0, "failed", str(error))
        for one in self.occupants().values():
            for device_type in fleet.types:
                self.seconds(one.entry, device_type)
        idle = [name for name, slot in self.slots.items() if slot.ready and not slot.runs]
        return View(self.waiting.values(), self.upcoming, self.occupants(), idle, fleet, self._contention_of(fleet), self.now(),
                    self.done)

    def _decide(self) -> None:
        if not (view := self._renew()):
            return
        self.wake_s, state = np.inf, view.state
        state.now_s = self.now()
        actions = self.policy(state, view.predict)
        state.clear_news()
        for action in actions:
            if isinstance(action, Wait):
                self.wake_s = min(self.wake_s, action.until_s)
                continue
            entry, slot = view.entries[action.job], self.slots[view.slots[action.device]]
            if isinstance(action, Restart):
                self._move(entry, slot)
            elif not self._can_start(entry, slot):
                raise InputError(f"the policy started {entry.job_id} on {slot.slot.name}, where it cannot run now")
            else:
                self._start(entry, slot)
        idle = not state.running and not self.upcoming and self.wake_s == np.inf
        if idle and state.waiting and all(slot.ready for slot in self.slots.values()):
            names = ", ".join(view.entries[job].job_id for job in list(state.waiting)[:3])
            raise InputError(f"the policy left {len(state.waiting)} jobs waiting for ever, such as {names}")

    def _can_start(self, entry: Entry, slot: _SlotState) -> bool:
        return bool(self.view) and entry.job_id in self.waiting and self.view.can_start(entry, slot.slot.name)

    def _start(self, entry: Entry, slot: _SlotState) -> None:
        name, at_s = slot.slot.name, self.now()
        attempt = self.journal.start(entry.job_id, name, at_s)
        del self.waiting[entry.job_id]
        if not attempt:  # cancelled a moment ago: that change is still to come
            self.waiting[entry.job_id] = entry
            self.view = None
            return
        slot.runs, slot.token = Occupant(entry, at_s, attempt), f"{entry.job_id}#{attempt}"
        slot.expected_s = self.seconds(entry, self.view.type_of(name))
        self.view.start(entry, name, attempt)
        slot.worker.send("run", slot.token, entry.spec.call, entry.spec.arguments)
        self.observer.started(entry.job_id, attempt, name, at_s)

    def _move(self, entry: Entry, target: _SlotState) -> None:
        slot = next(slot for slot in self.slots.values() if slot.runs and slot.runs.entry is entry)
        if not (slot.moving_to or slot.cancelled):
            slot.moving_to = target.slot.name
            slot.stop(self.now() + self.limits.grace_s)


def execute(specs: Sequence[Spec], jobs: Jobs, fleet: Fleet, slots: Sequence[Slot], predicted_s: np.ndarray, policy: Policy,
            folder: Path, limits: Limits | None = None, spawn: Spawn = ProcessWorker, contention: Contention | None = None,
            again: Callable[[str], bool] = is_no_space) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Run jobs on slots as a policy says; return the attempts, the ends with results, and notes of what went wrong.

    ``folder`` holds the journal; the same jobs again resume a run that was stopped or killed. Every job ends once in it: done,
    or failed with a reason, and is tried again when that is one for which ``again`` holds. What a job does besides happens at
    least once: one that is killed between its effect and its entry runs anew. The policy knows ``contention``. Raises
    InputError when another process is at it, the journal is of other jobs, a disk is full, or a job can run nowhere.
    """
    problem, path = Problem(jobs, fleet, predicted_s, predicted_s), folder / JOURNAL
    rows, columns = dict(zip((spec.job_id for spec in specs), problem.feasible_s.tolist(), strict=True)), fleet.types.index
    device = {slot.name: number for number, slot in enumerate(slots)}

    def fleet_of(there: tuple[Slot, ...]) -> Fleet:
        return fleet.subset([device[slot.name] for slot in there])[0]

    def contention_of(there: Fleet) -> Contention | None:
        return contention and contention.subset(np.array([columns(name) for name in there.types]))

    with locks.writer(path), closing(Journal(path, specs, again)) as journal:
        engine = Engine(journal, policy, lambda spec, name: rows[spec.job_id][columns(name)], fleet_of, limits or Limits(), spawn,
                        Unobserved(), contention_of)
        ended = journal.ended()
        for job in np.argsort(jobs.arrival_s, kind="stable").tolist():
            if specs[job].job_id not in ended:
                engine.add(Entry.of(specs[job], jobs, job))
        for slot in slots:
            engine.join(slot)
        _run_until_empty(engine)
        return journal.attempts(), journal.results(), list(engine.notes)


def _run_until_empty(engine: Engine) -> None:
    """Run until every job has ended; InputError where no slot is left for some."""
    total = engine.left
    progress, seen = iter(track(range(total), "jobs")), 0

    def empty() -> bool:
        nonlocal seen
        for _ in range(total - engine.left - seen):
            next(progress)
        seen, left = total - engine.left, engine.left
        stranded = [*engine.waiting.values(), *engine.upcoming] if not engine.slots else engine.stranded
        if left and left == len(stranded):
            names = choices(entry.job_id for entry in stranded[:3])
            raise InputError(f"no slot is left for {left} jobs, such as {names}; the same call again resumes where this one "
                             f"ended ({'; '.join(list(engine.notes)[-3:])})")
        return not left

    engine.run(empty)
