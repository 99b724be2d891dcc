"""The loop of a real run: it assigns an open list of jobs to workers by a policy; the journal has each change first."""

import threading
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import files
from lib.errors import InputError
from lib.schedule.problem import Fleet
from lib.schedule.runtime.engine.plan import plan, with_priorities
from lib.schedule.runtime.engine.slots import Attempt, Slots, SlotState
from lib.schedule.runtime.engine.view import View, view_of
from lib.schedule.runtime.journal import ByDeviceType, Entry, Journal
from lib.schedule.runtime.local_site import fleet_of
from lib.schedule.runtime.workers import Limits, Slot, Spawn
from lib.schedule.state import Policy, Restart, Wait

TICK_S = 0.2
_WITHOUT_PIPE_S = 0.05  # how often workers without a pipe are visited
_LEAST_S = 1e-3
_GANGS = "gangs"  # in the journal's folder: files at which the members of a gang meet


class Observer:
    """Hears of the jobs of an engine, in its thread; an end is in the journal before. By default it does nothing."""

    def started(self, job_id: str, attempt: int, slot: str, at_s: float) -> None:
        """Hear that an attempt starts; ``slot`` names all slots of a gang, with TOGETHER between them."""

    def ended(self, job_id: str, attempt: int, status: str, reason: str, result: Any, at_s: float) -> None:
        """Hear of the end of a job: done, failed or cancelled; attempt 0 if it never started."""

    def stopped(self, job_id: str, attempt: int, status: str, reason: str, at_s: float) -> None:
        """Hear of the end of an attempt that is not the job's: retried, moved or lost."""

    def reported(self, job_id: str, attempt: int, content: dict[str, Any]) -> None:
        """Hear what a task reports while it runs."""


class Engine:
    """Leads workers through jobs as a policy says, in one thread; others ``post`` changes, or read holding ``lock``.

    ``gather_s``: how long the first decision waits for workers that are still starting, so that the policy sees the devices
    that its plan has.
    """

    def __init__(self, journal: Journal, policy: Policy, predicted_s: ByDeviceType, limits: Limits | None,
                 spawn: Spawn, observer: Observer | None = None, gather_s: float = 0.0):
        self.journal, self.limits, self.observer, self.tick_s = journal, limits or Limits(), observer or Observer(), TICK_S
        self.policy, self._predicted_s = policy, predicted_s
        self._prioritised_policy = with_priorities(policy, lambda job: self.view.entries[job].priority)
        self.lock, self._posted, (self._bell, self._ring) = threading.RLock(), deque(), Pipe(duplex=False)
        self._thread = None  # that runs
        self._tried, self._began, self._offset_s = Counter(journal.tried()), time.monotonic(), journal.last_s()
        self.waiting, self.upcoming = {}, []  # entries by name; those that arrive later, in order
        self.slots = Slots(self.limits, spawn, self.now)
        self.view: View | None = None  # None: made again before the next decision
        self.stranded = []  # jobs that no slot can run now
        self.wake_s, self._changed, self._gather_until_s = np.inf, False, self.now() + gather_s

    def now(self) -> float:
        """Return the seconds of the clock of plans, attempts and ends: since the run began, all its parts together."""
        return time.monotonic() - self._began + self._offset_s

    @property
    def left(self) -> int:
        """Return how many jobs have not ended."""
        self.settle()
        with self.lock:
            return len(self.waiting) + len(self.upcoming) + len(self._attempts)

    @property
    def _attempts(self) -> list[Attempt]:
        """Return what runs."""
        return list(dict.fromkeys(slot.attempt for slot in self.slots if slot.attempt))

    def post(self, change: Callable[[], None]) -> None:
        """Let the engine's thread make a change soon; call it from any thread."""
        self._posted.append(change)
        if not self._bell.poll():
            self._ring.send_bytes(b".")

    def add_slot(self, slot: Slot) -> None:
        """Add a slot, in the place of one of that name."""
        self.post(partial(self._join, slot))

    def remove_slot(self, name: str) -> None:
        """Remove a slot; what runs there is stopped, and tried again elsewhere."""
        self.post(partial(self._leave, name))

    def predict_anew(self) -> None:
        """Predict the times of the jobs that wait again, as when more is known of devices."""
        self.post(self._forget_times)

    def plan(self, spread: ByDeviceType = lambda spec, device_type: 0.0,
             left_s: Callable[[str], float] = lambda job_id: np.nan) -> pd.DataFrame:
        """Return what runs and what the policy plans for the rest, with reasons (``engine.plan.plan``).

        ``spread`` gives the standard deviation of the log time of a job on a device type (default: predictions are exact),
        ``left_s`` the seconds that a running job still takes (default: by its prediction).
        """
        self.settle()
        with self.lock:
            view = self.snapshot(planning=True)
        return plan(view, self.policy, spread, left_s)

    # ------------------------------------------------------------------------------------------ changes of the list

    def add(self, entry: Entry) -> None:
        """Add a job to the list."""
        if entry.arrival_s > self.now():
            insort(self.upcoming, entry, key=lambda job: job.arrival_s)
        else:
            self.waiting[entry.job_id] = entry
        self.view = None

    def _cancel(self, job_id: str) -> None:
        """End a job that waits; stop a job that runs, whose end comes when it has stopped."""
        if job_id in self.waiting:
            self.view = None
            self._end(self.waiting[job_id], "cancelled")
        for attempt in self._attempts:
            if attempt.entry.job_id == job_id and not attempt.cancelled:
                attempt.cancelled = True
                attempt.stop(self.now() + self.limits.grace_s)

    def _reorder(self, job_id: str, priority: int) -> None:
        for entry in (*self.waiting.values(), *(attempt.entry for attempt in self._attempts)):
            if entry.job_id == job_id:
                entry.priority = priority
        self.view = None

    def _join(self, slot: Slot) -> None:
        self._leave(slot.name)
        self.slots.by_name[slot.name] = SlotState(slot)

    def _leave(self, name: str) -> None:
        self.view, slot = None, self.slots.by_name.get(name)
        if slot:
            if slot.attempt:
                self._ended(slot, "lost", "its slot was removed")
            del self.slots.by_name[name]
            if slot.worker:
                slot.worker.shut_down()

    def _forget_times(self) -> None:
        for entry in (*self.waiting.values(), *self.upcoming):
            entry.seconds.clear()
            entry.refusal = ""
        self.view = None

    def settle(self) -> None:
        """Return when all changes that were posted before are made."""
        if self._thread in (None, threading.current_thread()):  # a change posted here would ring the loop's own bell
            with self.lock:
                self._make_changes()
            return
        made = threading.Event()
        self.post(made.set)
        while not made.is_set() and self._thread is not None:
            made.wait(self.tick_s)
        if not made.is_set():
            self.settle()

    def _make_changes(self) -> None:
        while self._posted:
            change = self._posted.popleft()
            try:
                change()
            except Exception:
                self._posted.appendleft(change)  # such as a full disk: the next run makes it
                raise
            self._changed = True

    # ------------------------------------------------------------------------------------------ the loop

    def run(self, until: Callable[[], bool]) -> None:
        """Run jobs until ``until`` holds; then workers end, and what they ran is tried again by the next run."""
        self._thread = threading.current_thread()
        try:
            while self._round(until):
                self._wait()
        finally:
            with self.lock:
                self._thread, self.view = None, None
                for attempt in self._attempts:
                    self._put_back(attempt)
                self.slots.shut_down()

    def _put_back(self, attempt: Attempt) -> None:
        """Let a job wait for the next run; what the journal refuses now it notes when the job starts again."""
        entry = attempt.entry
        with suppress(Exception):  # the error that ended the run is the one to raise
            self._stopped(attempt, "lost", "the run was ended")
        if attempt in self._attempts:
            self._release(attempt)
            self._arrive(entry)
            if attempt.cancelled:
                self.post(partial(self._cancel, entry.job_id))

    def _round(self, until: Callable[[], bool]) -> bool:
        """Take in what happened, and decide; return whether to go on."""
        with self.lock:
            self._make_changes()
            if not until():
                if self._listen() or self._changed:
                    self._changed = False
                    self._decide()
                return True
            for attempt in self._attempts:
                self._stopped(attempt, "lost", "the run was ended")
            return False

    def _wait(self) -> None:
        """Wait a moment for messages, changes, arrivals and timeouts."""
        pipes, next_s = self.slots.pipes(), self.upcoming[0].arrival_s if self.upcoming else np.inf
        tick_s = self.tick_s if pipes or not len(self.slots) else min(self.tick_s, _WITHOUT_PIPE_S)
        pause_s = min(tick_s, next_s - self.now(), self.wake_s - self.now())
        if self._bell in wait([*pipes, self._bell], max(0.0, pause_s)):
            self._bell.recv_bytes()

    def _listen(self) -> bool:
        """Take in messages, arrivals and timeouts; return whether any are news to the policy."""
        now = self.now()
        news = now >= self.wake_s
        while self.upcoming and self.upcoming[0].arrival_s <= now:
            if self._arrive(self.upcoming.pop(0)):
                self.view.state.expected -= 1
            news = True
        for event, slot, content in self.slots.events():
            if event == "report":
                if slot is slot.attempt.slots[0]:
                    self.observer.reported(slot.runs.job_id, slot.runs.attempt, content)
            else:
                self._handle(event, slot, content)
                news = True
        return news

    def _arrive(self, entry: Entry) -> bool:
        """Let a job wait, and the policy know; return whether the view has the job."""
        self.waiting[entry.job_id] = entry
        if shown := self.view is not None and entry.job_id in self.view.numbers:
            self.view.state.arrive(self.view.numbers[entry.job_id])
        return shown

    def _handle(self, event: str, slot: SlotState, content: Any) -> None:
        if event == "lost":
            self.view = None
        elif event == "ready":
            if self.view and not slot.attempt:
                self.view.state.enable(slot.device)
        elif event == "broken":
            if slot.attempt:
                self._ended(slot, "moved" if slot.attempt.moving_to else "retried", content)
            if self.view:
                self.view.state.disable(slot.device)
        elif event == "done":
            if slot is slot.attempt.slots[0]:
                slot.attempt.result = content
            self._ended(slot)
        else:
            self._ended(slot, "moved" if event == "stopped" else "retried", content or "", final=event == "refused")

    # ------------------------------------------------------------------------------------------ ends of attempts

    def _ended(self, slot: SlotState, status: str = "", reason: str = "", final: bool = False) -> None:
        """Note that a worker's part in an attempt has ended; a ``status`` says that it went wrong, and stops the other parts.

        With its last part the attempt ends.
        """
        attempt = slot.attempt
        attempt.busy.discard(slot)
        slot.stop_by_s = np.inf
        if status:
            first = not attempt.troubles
            attempt.troubles.append((status, f"{slot.name}: {reason}" if len(attempt.slots) > 1 else reason, final))
            if first:
                attempt.stop(self.now() + self.limits.grace_s)
        if not attempt.busy:
            self._conclude(attempt)

    def _conclude(self, attempt: Attempt) -> None:
        """End an attempt, and the job with it if it is done, failed for good, or was tried often enough."""
        entry, reason = attempt.entry, "; ".join(reason for status, reason, _ in attempt.troubles if status != "moved")
        status, *_ = attempt.troubles[0] if attempt.troubles else ["done"]
        final, tried = any(final for *_, final in attempt.troubles), self._tried[entry.job_id] + 1
        if status == "done":
            self._end(entry, "done", "", attempt)
        elif status != "retried" or attempt.cancelled or not (final or tried >= self.limits.attempts):
            self._stopped(attempt, status, reason)
        else:
            self._end(entry, "failed", reason if final else f"{reason} (attempt {tried} of {self.limits.attempts})", attempt)

    def _release(self, attempt: Attempt, seconds: float | None = None) -> None:
        """Free the slots of an attempt, once the journal knows; ``seconds`` are those of a job that ended well."""
        if self.view:
            state = self.view.state
            state.now_s = self.now()
            for slot in attempt.slots:
                if self.slots.by_name.get(slot.name) is not slot:
                    continue  # removed while other members were stopping: the view does not have it
                ran = state.stop(slot.device)
                if not slot.ready:
                    state.disable(slot.device)
            if seconds is not None:
                state.finish(ran, seconds)
        for slot in attempt.slots:
            slot.attempt, slot.stop_by_s = None, np.inf
        if len(attempt.slots) > 1:
            self._meeting(attempt).unlink(missing_ok=True)

    def _meeting(self, attempt: Attempt) -> Path:
        """Return the file at which the members of a gang meet: another one for each attempt."""
        name = f"{files.safe_name(attempt.entry.job_id)}-{attempt.entry.attempt}"
        return self.journal.path.parent.resolve() / _GANGS / name

    def _stopped(self, attempt: Attempt, status: str, reason: str = "") -> None:
        """End an attempt that is not the job's end, unless the job is cancelled; start it again on the slot it moves to."""
        entry, target, at_s = attempt.entry, attempt.moving_to, self.now()
        if attempt.cancelled:
            self._end(entry, "cancelled", reason, attempt)
            return
        self.journal.stop(entry.job_id, entry.attempt, at_s, status, reason)
        self._release(attempt)
        if status == "retried":
            self._tried[entry.job_id] += 1
        shown = self._arrive(entry)
        self.observer.stopped(entry.job_id, entry.attempt, status, reason, at_s)
        if shown and target and self.slots.by_name.get(target.name) is target:
            state, number = self.view.state, self.view.numbers[entry.job_id]
            if not state.obstacle(number, [target.device], self.view.predict):
                state.arrived.remove(number)  # no news to the policy, which moved it
                self._start(entry, target)

    def _end(self, entry: Entry, status: str, reason: str = "", attempt: Attempt | None = None) -> None:
        """End a job, and the attempt that runs: in the journal, which may refuse, then here; then the observer hears of it."""
        at_s, number, done = self.now(), entry.attempt if attempt else 0, status == "done"
        result = attempt.result if done else None
        new = self.journal.end(entry.job_id, number, at_s, status, reason, result)
        if attempt:
            self._release(attempt, max(_LEAST_S, at_s - attempt.start_s) if done else None)
        self.waiting.pop(entry.job_id, None)
        self._tried.pop(entry.job_id, None)
        if done:
            for other in self.waiting.values():
                if other.job_class == entry.job_class:
                    other.seconds.clear()  # better predictions may be known now
        if new:
            self.observer.ended(entry.job_id, number, status, reason, result, at_s)

    # ------------------------------------------------------------------------------------------ decisions

    def snapshot(self, planning: bool = False) -> View:
        """Return a view of the list and the slots; a job that waits and cannot be predicted ends.

        For ``planning`` slots whose worker is still starting count as idle, and no job ends.
        """
        slots = list(self.slots)
        fleet = fleet_of(tuple(slot.slot for slot in slots))
        for attempt in self._attempts:
            self._predict(attempt.entry, fleet)
        for entry in [*self.waiting.values(), *self.upcoming]:
            entry.refusal = self._predict(entry, fleet) or entry.refusal
            if entry.refusal:
                entry.seconds = dict.fromkeys(fleet.types, np.inf)
                if not planning:
                    self._end(entry, "failed", entry.refusal)
                    self.upcoming = [job for job in self.upcoming if job is not entry]
        idle = [slot for slot in slots if slot.idle or (planning and not slot.runs)]
        return view_of(self.waiting.values(), self.upcoming, slots, idle, fleet, self.now())

    def _predict(self, entry: Entry, fleet: Fleet) -> str:
        """Predict the times that an entry lacks; return why that failed, empty if it did not."""
        refusal = ""
        for device_type in set(fleet.types) - set(entry.seconds):
            try:
                seconds = float(self._predicted_s(entry.spec, device_type))
                if not seconds > 0:
                    raise InputError(f"the predicted time of {entry.job_id!r} on {device_type!r} is {seconds}: it is above 0")
            except InputError as error:
                seconds, refusal = np.inf, str(error)
            entry.seconds[device_type] = seconds
        return refusal

    def _decide(self) -> None:
        if self.now() < self._gather_until_s and any(not (slot.ready or slot.failed_starts) for slot in self.slots):
            self.wake_s = self._gather_until_s
            return
        self._gather_until_s = 0.0
        if self.view is None and any(slot.idle for slot in self.slots):
            self.view = self.snapshot()
            self.stranded = self.view.stranded
        if not (view := self.view):
            return  # nothing could start
        self.wake_s, state, slots = np.inf, view.state, {slot.device: slot for slot in self.slots}
        state.now_s = self.now()
        actions = self._prioritised_policy(state, view.predict)
        state.clear_news()
        for action in actions:
            if isinstance(action, Wait):
                self.wake_s = min(self.wake_s, action.until_s)
            elif isinstance(action, Restart):
                attempt = next(attempt for attempt in self._attempts if attempt.entry is view.entries[action.job])
                if not (attempt.moving_to or attempt.cancelled):
                    attempt.moving_to = slots[action.device]
                    attempt.stop(self.now() + self.limits.grace_s)
            else:
                self._start(view.entries[action.job], *(slots[device] for device in (action.device, *action.others)))
        idle = not state.running and not self.upcoming and self.wake_s == np.inf
        if self.view and idle and state.waiting and all(slot.ready for slot in self.slots):
            raise state.abandoned()

    def _start(self, entry: Entry, *slots: SlotState) -> None:
        """Start a job, unless it was cancelled a moment ago: that change is still to come."""
        view, at_s = self.view, self.now()
        if not view:
            return
        number, devices = view.numbers[entry.job_id], [slot.device for slot in slots]
        view.state.check_start(number, devices, view.predict)
        attempt = Attempt(entry, slots, at_s, view.predict(number, view.state.type_of[devices[0]]))
        begun = self.journal.start(entry.job_id, attempt.names, at_s)
        if not begun:
            self.view = None
            return
        entry.attempt = begun
        self.observer.started(entry.job_id, begun, attempt.names, at_s)
        if len(slots) > 1:
            files.folder(self._meeting(attempt).parent)
        attempt.start(str(self._meeting(attempt)))
        del self.waiting[entry.job_id]
        view.state.start(number, devices, begun)
