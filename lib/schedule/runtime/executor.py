"""Runs a schedule for real: a worker a device or CPU slot, led by a policy, and a journal from which a killed run resumes."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import locks
from lib.errors import InputError, choices, is_no_space
from lib.progress import track
from lib.schedule.contention import Contention
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.runtime.journal import Journal, Spec
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, SlotLost, Spawn, Worker
from lib.schedule.state import Finished, Policy, Predict, Restart, State, Wait

JOURNAL = "run.sqlite"
_TICK_S = 0.2
_LEAST_S = 1e-3


@dataclass
class _SlotState:
    """One slot while the run goes on; one that is lost has no worker."""

    worker: Worker | None
    spawned_s: float
    seen_s: float
    ready: bool = False
    failed_starts: int = 0  # workers before this one that never became ready
    token: str = ""
    attempt: int = 0
    moving_to: int | None = None  # the device to start its job on, once it has stopped here
    stop_by_s: float = np.inf

    def clear(self) -> None:
        """Note that nothing runs here."""
        self.token, self.moving_to, self.stop_by_s = "", None, np.inf


class _Executor:
    """Leads the workers through the jobs, as a policy says."""

    def __init__(self, specs: Sequence[Spec], state: State, slots: Sequence[Slot], predict: Predict, policy: Policy,
                 journal: Journal, limits: Limits, spawn: Spawn):
        self.specs, self.state, self.slots, self.predict, self.policy = specs, state, list(slots), predict, policy
        self.journal, self.limits, self.spawn = journal, limits, spawn
        ended, self.attempts = journal.ended(), journal.tried()
        self.offset_s, self._began = journal.last_s(), time.monotonic()
        order = np.argsort(state.jobs.arrival_s, kind="stable").tolist()
        self.upcoming = [job for job in order if specs[job].job_id not in ended]
        self.left = len(self.upcoming)
        self.state.expected = self.left
        self.wake_s, self.notes = np.inf, []
        self.slot_states: list[_SlotState] = []
        self.stranded: list[int] = []  # jobs that no slot that is left can run

    def now(self) -> float:
        """Return the seconds since the run began, all its parts together."""
        return time.monotonic() - self._began + self.offset_s

    def run(self) -> None:
        """Run all jobs; return when each has ended."""
        self.state.now_s = self.now()
        progress = iter(track(range(self.left), "jobs"))
        try:
            for device, slot in enumerate(self.slots if self.left else ()):
                self.slot_states.append(self._spawned(slot))
                self.state.disable(device)
            self._drop_lost_slots()
            while self.left:
                if self.left == len(self.stranded):
                    names = choices(self.specs[job].job_id for job in self.stranded[:3])
                    raise InputError(f"no slot is left for {self.left} jobs, such as {names}; the same call again resumes "
                                     f"where this one ended ({'; '.join(self.notes[-3:])})")
                before = self.left
                if self._receive() and self.left:
                    self._decide()
                for _ in range(before - self.left):
                    next(progress)
        finally:
            for slot in self.slot_states:
                if slot.worker:
                    slot.worker.send("end")
                    slot.worker.shut_down()

    # ------------------------------------------------------------------------------------------ what happens

    def _receive(self) -> bool:
        """Wait a moment for messages, arrivals and timeouts and take them in; return whether there were any."""
        pipes = [slot.worker.pipe for slot in self.slot_states if isinstance(getattr(slot.worker, "pipe", None), Connection)]
        next_s = float(self.state.jobs.arrival_s[self.upcoming[0]]) if self.upcoming else np.inf
        pause = max(0.0, min(_TICK_S, next_s - self.now(), self.wake_s - self.now()))
        wait(pipes, pause) if pipes else time.sleep(min(pause, 0.05))
        now = self.state.now_s = self.now()
        news = now >= self.wake_s
        while self.upcoming and self.state.jobs.arrival_s[self.upcoming[0]] <= now:
            job = self.upcoming.pop(0)
            self.state.waiting[job] = None
            self.state.arrived.append(job)
            self.state.expected -= 1
            news = True
        for device, slot in enumerate(self.slot_states):
            for message in slot.worker.messages():
                news |= self._handle(device, slot, message)
            news |= bool(self.slot_states[device].worker) and self._watch(device, self.slot_states[device])
        return self._drop_lost_slots() or news

    def _handle(self, device: int, slot: _SlotState, message: tuple[Any, ...]) -> bool:
        """Take in a message; return whether it is news to the policy."""
        slot.seen_s, what = self.now(), message[0]
        if what == "ready":
            slot.ready = True
            self.state.enable(device)
            return True
        if what == "died":
            self._replace(device, message[1])
            return True
        if what == "heartbeat" or message[1] != slot.token:
            return False
        job = self.state.running[device].job
        if what == "done":
            self._finish(device, job, message[2])
        elif what == "stopped":
            self._moved(device, job)
        else:
            self._fail(device, job, message[2], final=what == "refused")
        return True

    def _watch(self, device: int, slot: _SlotState) -> bool:
        """Replace a worker that is silent, late, or did not stop; return whether it was."""
        now, limits = self.now(), self.limits
        ran = self.state.running.get(device)
        if not slot.ready:
            why = f"the worker did not start within {limits.ready_s:g} s" if now - slot.spawned_s > limits.ready_s else ""
        elif now - slot.seen_s > limits.silent_s:
            why = f"no sign of life for {limits.silent_s:g} s"
        elif now > slot.stop_by_s:
            why = f"it did not stop within {limits.grace_s:g} s"
        elif ran and now - ran.start_s > max(limits.least_s, limits.late * self._predicted_s(ran.job, device)):
            why = f"not done after {now - ran.start_s:,.0f} s, predicted were {self._predicted_s(ran.job, device):,.3g} s"
        else:
            why = ""
        if why:
            self._replace(device, why)
        return bool(why)

    def _predicted_s(self, job: int, device: int) -> float:
        return self.predict(job, self.state.type_of[device])

    def _finish(self, device: int, job: int, result: Any) -> None:
        ran = self.state.stop(device)
        slot = self.slot_states[device]
        seconds = max(_LEAST_S, self.state.now_s - ran.start_s)
        self.state.finished.append(Finished(job, self.state.type_of[device], seconds))
        self.state.done += 1
        self.left -= self.journal.end(self.specs[job].job_id, slot.attempt, self.state.now_s, "done", "", result)
        slot.clear()

    def _moved(self, device: int, job: int) -> None:
        """Start a job anew that stopped here so that it can run elsewhere."""
        slot = self.slot_states[device]
        self.state.stop(device)
        self.journal.stop(self.specs[job].job_id, slot.attempt, self.state.now_s, "moved")
        target = slot.moving_to
        slot.clear()
        self.state.waiting[job] = None
        if target is not None and self._can_start(job, target):
            self._start(job, target)
        else:
            self.state.arrived.append(job)

    def _fail(self, device: int, job: int, reason: str, final: bool = False) -> None:
        """End an attempt that went wrong, and the job with it when that is ``final`` or it was tried often enough."""
        slot, name = self.slot_states[device], self.specs[job].job_id
        self.state.stop(device)
        self.attempts[name] = self.attempts.get(name, 0) + 1
        if final or self.attempts[name] >= self.limits.attempts:
            times = "" if final else f" (attempt {self.attempts[name]} of {self.limits.attempts})"
            self.left -= self.journal.end(name, slot.attempt, self.state.now_s, "failed", f"{reason}{times}")
        else:
            self.journal.stop(name, slot.attempt, self.state.now_s, "retried", reason)
            self.state.waiting[job] = None
            self.state.arrived.append(job)
        slot.clear()

    # ------------------------------------------------------------------------------------------ workers

    def _spawned(self, slot: Slot, failed_starts: int = 0, last: str = "") -> _SlotState:
        """Spawn a worker for a slot; there is none where the slot is lost, or workers start in vain."""
        worker, why = None, f"{failed_starts} workers in a row could not start, the last: {last}"
        if failed_starts < self.limits.attempts:
            try:
                worker = self.spawn(slot, self.limits)
            except SlotLost as error:
                why = str(error)
        if worker is None:
            self.notes.append(f"{slot.name} is given up: {why}")
        return _SlotState(worker, self.now(), self.now(), failed_starts=failed_starts)

    def _replace(self, device: int, reason: str) -> None:
        """Replace a worker; what ran there failed, or is moved where it should be."""
        slot = self.slot_states[device]
        slot.worker.shut_down()
        if device in self.state.running:
            job = self.state.running[device].job
            if slot.moving_to is not None:
                self._moved(device, job)
            else:
                self._fail(device, job, reason)
        self.state.disable(device)
        self.notes.append(f"{self.slots[device].name}: {reason}")
        self.slot_states[device] = self._spawned(self.slots[device], 0 if slot.ready else slot.failed_starts + 1, reason)

    def _drop_lost_slots(self) -> bool:
        """Go on without the slots that are lost, and let the policy begin anew; return whether there were any."""
        kept = [device for device, slot in enumerate(self.slot_states) if slot.worker]
        if len(kept) == len(self.slot_states):
            return False
        number = {device: new for new, device in enumerate(kept)}
        self.slots, self.slot_states = [self.slots[device] for device in kept], [self.slot_states[device] for device in kept]
        for slot in self.slot_states:
            slot.moving_to = number.get(slot.moving_to)
        self.state, types = self.state.subset(kept)
        table = self.predict.table[:, types]
        nowhere = np.isinf(table).all(axis=1)
        self.stranded += [job for job in [*self.state.waiting, *self.upcoming] if nowhere[job]]
        self.predict = Predict(np.where(nowhere[:, None], 1.0, table), self.predict.sigma)  # no nan in a mean; they do not wait
        self.upcoming = [job for job in self.upcoming if job not in self.stranded]
        self.state.expected = len(self.upcoming)
        for job in self.stranded:
            self.state.waiting.pop(job, None)
        return True

    # ------------------------------------------------------------------------------------------ decisions

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
        idle = not self.state.running and not self.upcoming and self.wake_s == np.inf
        if idle and self.state.waiting and all(slot.ready for slot in self.slot_states):
            names = ", ".join(self.specs[job].job_id for job in list(self.state.waiting)[:3])
            raise InputError(f"the policy left {len(self.state.waiting)} jobs waiting for ever, such as {names}")

    def _can_start(self, job: int, device: int) -> bool:
        state, device_type = self.state, self.state.type_of[device]
        return job in state.waiting and device in state.free[device_type] and self.predict(job, device_type) < np.inf and \
            state.cores(job, device_type) <= state.free_cores + 1e-9

    def _start(self, job: int, device: int) -> None:
        slot, spec = self.slot_states[device], self.specs[job]
        if not self._can_start(job, device):
            raise InputError(f"the policy started {spec.job_id} on {self.slots[device].name}, where it cannot run now")
        slot.attempt = self.journal.start(spec.job_id, self.slots[device].name, self.state.now_s)
        slot.token = f"{spec.job_id}#{slot.attempt}"
        self.state.start(job, device, slot.attempt)
        slot.worker.send("run", slot.token, spec.call, spec.arguments)

    def _move(self, action: Restart) -> None:
        device = next(device for device, ran in self.state.running.items() if ran.job == action.job)
        slot = self.slot_states[device]
        if slot.moving_to is None:
            slot.moving_to, slot.stop_by_s = action.device, self.now() + self.limits.grace_s
            slot.worker.send("stop", slot.token)


def execute(specs: Sequence[Spec], jobs: Jobs, fleet: Fleet, slots: Sequence[Slot], predicted_s: np.ndarray, policy: Policy,
            folder: Path, limits: Limits | None = None, spawn: Spawn = ProcessWorker, contention: Contention | None = None,
            again: Callable[[str], bool] = is_no_space) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Run jobs on slots as a policy says; return the attempts, the ends with results, and notes of what went wrong.

    ``folder`` holds the journal; the same jobs again resume a run that was stopped or killed. Every job ends once in it: done,
    or failed with a reason, and is tried again when that is one for which ``again`` holds. What a job does besides happens at
    least once: one that is killed between its effect and its entry runs anew. The policy knows ``contention``. Raises
    InputError when another process is at it, the journal is of other jobs, a disk is full, or a job can run nowhere.
    """
    feasible_s = Problem(jobs, fleet, predicted_s, predicted_s).feasible_s
    path = folder / JOURNAL
    with locks.writer(path), closing(Journal(path, specs, again)) as journal:
        state = State.at_start(jobs, fleet)
        state.contention = contention
        executor = _Executor(specs, state, slots, Predict(feasible_s), policy, journal, limits or Limits(), spawn)
        executor.run()
        return journal.attempts(), journal.results(), executor.notes
