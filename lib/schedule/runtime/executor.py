"""Runs a schedule for real: a worker process a device or CPU slot, and a record from which a killed run goes on."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout

from lib.errors import InputError, choices
from lib.schedule.contention import Contention
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.runtime.journal import Ledger, Spec
from lib.schedule.runtime.workers import Hand, Hire, Limits, Process, Slot, SlotLost
from lib.schedule.state import Finished, Policy, Predict, Restart, State, Wait

_TICK_S = 0.2
_LEAST_S = 1e-3


@dataclass
class _Place:
    """One slot while the run goes on; one that is lost has no hand."""

    hand: Hand | None
    hired_s: float
    seen_s: float
    ready: bool = False
    vain: int = 0  # workers before this one that never became ready
    token: str = ""
    attempt: int = 0
    moving: int | None = None  # the device to start its job on, once it has stopped here
    stop_by_s: float = np.inf


class _Leader:
    """Leads the workers through the jobs, as a policy says."""

    def __init__(self, specs: Sequence[Spec], jobs: Jobs, fleet: Fleet, slots: Sequence[Slot], predict: Predict, policy: Policy,
                 ledger: Ledger, limits: Limits, hire: Hire):
        self.specs, self.slots, self.policy, self.ledger, self.limits = specs, list(slots), policy, ledger, limits
        self.hire = hire
        self.state, self.predict = State.at_start(jobs, fleet), predict
        ended, self.tried = ledger.ended(), ledger.tried()
        self.offset_s, self._began = ledger.last_s(), time.monotonic()
        order = np.argsort(jobs.arrival_s, kind="stable").tolist()
        self.coming = [job for job in order if specs[job].job_id not in ended]
        self.left = len(self.coming)
        self.state.expected = self.left
        self.wake_s, self.notes = np.inf, []
        self.places: list[_Place] = []
        self.stranded: list[int] = []  # jobs that no slot that is left can run

    def now(self) -> float:
        """Return the seconds since the run began, all its parts together."""
        return time.monotonic() - self._began + self.offset_s

    def run(self, progress: Callable[[int], None]) -> None:
        """Carry out all jobs; return when each has ended."""
        self.state.now_s = self.now()
        try:
            for device, slot in enumerate(self.slots if self.left else ()):
                self.places.append(self._hired(slot))
                self.state.disable(device)
            self._give_up()
            while self.left:
                if self.left == len(self.stranded):
                    names = choices(self.specs[job].job_id for job in self.stranded[:3])
                    raise InputError(f"no slot is left for {self.left} jobs, such as {names}; the same call again goes on "
                                     f"where this one ended ({'; '.join(self.notes[-3:])})")
                before = self.left
                if self._look() and self.left:
                    self._decide()
                progress(before - self.left)
        finally:
            for place in self.places:
                if place.hand:
                    place.hand.send("end")
                    place.hand.kill()

    # ------------------------------------------------------------------------------------------ what happens

    def _look(self) -> bool:
        """Wait a moment for news and take them in; return whether there were any."""
        pipes = [place.hand.pipe for place in self.places if isinstance(getattr(place.hand, "pipe", None), Connection)]
        next_s = float(self.state.jobs.arrival_s[self.coming[0]]) if self.coming else np.inf
        pause = max(0.0, min(_TICK_S, next_s - self.now(), self.wake_s - self.now()))
        wait(pipes, pause) if pipes else time.sleep(min(pause, 0.05))
        now = self.state.now_s = self.now()
        news = now >= self.wake_s
        while self.coming and self.state.jobs.arrival_s[self.coming[0]] <= now:
            job = self.coming.pop(0)
            self.state.waiting[job] = None
            self.state.arrived.append(job)
            self.state.expected -= 1
            news = True
        for device, place in enumerate(self.places):
            for message in place.hand.messages():
                news |= self._hear(device, place, message)
            news |= bool(self.places[device].hand) and self._watch(device, self.places[device])
        return self._give_up() or news

    def _hear(self, device: int, place: _Place, message: tuple[Any, ...]) -> bool:
        place.seen_s, kind = self.now(), message[0]
        if kind == "ready":
            place.ready = True
            self.state.enable(device)
            return True
        if kind == "gone":
            self._lose(device, message[1])
            return True
        if kind == "beat" or message[1] != place.token:
            return False
        job = self.state.running[device].job
        if kind == "done":
            self._finish(device, job, message[2])
        elif kind == "stopped":
            self._stopped(device, job)
        else:
            self._fail(device, job, message[2])
        return True

    def _watch(self, device: int, place: _Place) -> bool:
        """Replace a worker that is silent, late, or did not stop; return whether it was."""
        now, limits = self.now(), self.limits
        ran = self.state.running.get(device)
        if not place.ready:
            why = f"the worker did not start within {limits.ready_s:g} s" if now - place.hired_s > limits.ready_s else ""
        elif now - place.seen_s > limits.silent_s:
            why = f"no sign of life for {limits.silent_s:g} s"
        elif now > place.stop_by_s:
            why = f"it did not stop within {limits.grace_s:g} s"
        elif ran and now - ran.start_s > self._patience(ran.job, device):
            why = f"not done after {now - ran.start_s:,.0f} s, predicted were {self._predicted(ran.job, device):,.3g} s"
        else:
            why = ""
        if why:
            self._lose(device, why)
        return bool(why)

    def _predicted(self, job: int, device: int) -> float:
        return self.predict(job, int(self.state.fleet.type_of[device]))

    def _patience(self, job: int, device: int) -> float:
        return max(self.limits.least_s, self.limits.late * self._predicted(job, device))

    def _finish(self, device: int, job: int, result: Any) -> None:
        ran = self.state.stop(device)
        place = self.places[device]
        self.state.finished.append(Finished(job, int(self.state.fleet.type_of[device]),
                                            max(_LEAST_S, self.state.now_s - ran.start_s)))
        self.state.done += 1
        self.left -= self.ledger.end(self.specs[job].job_id, place.attempt, self.state.now_s, "done", "", result)
        place.token, place.moving, place.stop_by_s = "", None, np.inf

    def _stopped(self, device: int, job: int) -> None:
        """Start a job anew that stopped here so that it can run elsewhere."""
        place = self.places[device]
        self.state.stop(device)
        self.ledger.stop(self.specs[job].job_id, place.attempt, self.state.now_s, "moved")
        target, place.moving, place.token, place.stop_by_s = place.moving, None, "", np.inf
        self.state.waiting[job] = None
        if target is not None and self._can(job, target):
            self._start(job, target)
        else:
            self.state.arrived.append(job)

    def _fail(self, device: int, job: int, reason: str) -> None:
        """End an attempt that went wrong, and the job with it when it was tried often enough."""
        place, name = self.places[device], self.specs[job].job_id
        self.state.stop(device)
        self.tried[name] = self.tried.get(name, 0) + 1
        if self.tried[name] >= self.limits.attempts:
            self.left -= self.ledger.end(name, place.attempt, self.state.now_s, "failed",
                                         f"{reason} (attempt {self.tried[name]} of {self.limits.attempts})")
        else:
            self.ledger.stop(name, place.attempt, self.state.now_s, "retried", reason)
            self.state.waiting[job] = None
            self.state.arrived.append(job)
        place.token, place.moving, place.stop_by_s = "", None, np.inf

    def _lose(self, device: int, reason: str) -> None:
        """Replace a worker; what ran there failed, or is moved where it should be."""
        place = self.places[device]
        place.hand.kill()
        if device in self.state.running:
            job = self.state.running[device].job
            if place.moving is not None:
                self._stopped(device, job)
            else:
                self._fail(device, job, reason)
        self.state.disable(device)
        self.notes.append(f"{self.slots[device].name}: {reason}")
        self.places[device] = self._hired(self.slots[device], 0 if place.ready else place.vain + 1, reason)

    def _hired(self, slot: Slot, vain: int = 0, last: str = "") -> _Place:
        """Hire a worker for a slot; the place has none where the slot is lost, or workers start in vain."""
        hand, lost = None, f"{vain} workers in a row could not start, the last: {last}"
        if vain < self.limits.attempts:
            try:
                hand = self.hire(slot, self.limits)
            except SlotLost as error:
                lost = str(error)
        if hand is None:
            self.notes.append(f"{slot.name} is given up: {lost}")
        return _Place(hand, self.now(), self.now(), vain=vain)

    def _give_up(self) -> bool:
        """Go on without the slots that are lost, and let the policy begin anew; return whether there were any."""
        kept = [device for device, place in enumerate(self.places) if place.hand]
        if len(kept) == len(self.places):
            return False
        number = {device: place for place, device in enumerate(kept)}
        self.slots, self.places = [self.slots[device] for device in kept], [self.places[device] for device in kept]
        for place in self.places:
            place.moving = number.get(place.moving)
        self.state, types = self.state.subset(kept)
        table = self.predict.table[:, types]
        for job in [*self.state.waiting, *self.coming]:
            if np.isinf(table[job]).all():
                self.stranded.append(job)
        nowhere = np.isinf(table).all(axis=1, keepdims=True)  # stranded or ended: asked for no more, and no nan in a mean
        self.predict = Predict(np.where(nowhere, 1.0, table), self.predict.sigma)
        self.coming = [job for job in self.coming if job not in self.stranded]
        self.state.expected = len(self.coming)
        for job in self.stranded:
            self.state.waiting.pop(job, None)
        return True

    # ------------------------------------------------------------------------------------------ what is done

    def _decide(self) -> None:
        self.wake_s = np.inf
        actions = self.policy(self.state, self.predict)
        self.state.clear_news()
        for action in actions:
            if isinstance(action, Wait):
                self.wake_s = min(self.wake_s, action.until_s)
            elif isinstance(action, Restart):
                self._move(action)
            else:
                self._start(*action)
        idle = not self.state.running and not self.coming and self.wake_s == np.inf
        if idle and self.state.waiting and all(place.ready for place in self.places):
            names = ", ".join(self.specs[job].job_id for job in list(self.state.waiting)[:3])
            raise InputError(f"the policy left {len(self.state.waiting)} jobs waiting for ever, such as {names}")

    def _can(self, job: int, device: int) -> bool:
        kind = int(self.state.fleet.type_of[device])
        return job in self.state.waiting and device in self.state.free[kind] and \
            self.predict(job, kind) < np.inf and \
            self.state.cores(job, kind) <= self.state.free_cores + 1e-9

    def _start(self, job: int, device: int) -> None:
        place, spec = self.places[device], self.specs[job]
        if not self._can(job, device):
            raise InputError(f"the policy started {spec.job_id} on {self.slots[device].name}, where it cannot run now")
        place.attempt = self.ledger.start(spec.job_id, self.slots[device].name, self.state.now_s)
        place.token = f"{spec.job_id}#{place.attempt}"
        self.state.start(job, device, place.attempt)
        place.hand.send("run", place.token, spec.call, spec.arguments)

    def _move(self, action: Restart) -> None:
        device = next(device for device, ran in self.state.running.items() if ran.job == action.job)
        place = self.places[device]
        if place.moving is None:
            place.moving, place.stop_by_s = action.device, self.now() + self.limits.grace_s
            place.hand.send("stop", place.token)


def execute(specs: Sequence[Spec], jobs: Jobs, fleet: Fleet, slots: Sequence[Slot], predicted_s: np.ndarray, policy: Policy,
            folder: Path, limits: Limits | None = None, hire: Hire = Process,
            progress: Callable[[int], None] = lambda ended: None,
            contention: Contention | None = None) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Carry out jobs on slots as a policy says; return the attempts, the ends with results, and notes of what went wrong.

    ``folder`` holds the record; the same jobs again go on with a run that was stopped or killed. Every job ends once: done,
    or failed with a reason. The policy is told of ``contention``. Raises InputError when another process is at it, the record
    is of other jobs, or a job can run nowhere.
    """
    feasible_s = Problem(jobs, fleet, predicted_s, predicted_s).feasible_s
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "run.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"another process is running the jobs of {folder}") from None
    try:
        ledger = Ledger(folder / "run.sqlite", specs)
        leader = _Leader(specs, jobs, fleet, slots, Predict(feasible_s), policy, ledger, limits or Limits(), hire)
        leader.state.contention = contention
        try:
            leader.run(progress)
        finally:
            attempts, ends = ledger.attempts(), ledger.results()
            ledger.close()
        return attempts, ends, leader.notes
    finally:
        lock.release()
