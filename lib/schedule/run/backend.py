"""The backend of the event loop for real runs: jobs of a queue on workers, with each change in the queue."""

import heapq
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.schedule.loop import Arrived, Back, Cancelled, Ended, Event, Lost
from lib.schedule.problem import Jobs, Problem
from lib.schedule.run.processes import TaskEnd
from lib.schedule.run.queue import CANCELLED, OPEN, TOGETHER, Queue, QueueAwayError, QueueJob
from lib.schedule.run.slots import Slot, fits, fleet_of, needs

_POLL_S, _AGAIN_S = 0.5, 2.0  # between looks at an open queue, and at a database that is away
_TRIES = 3


class Workers(Protocol):
    """Run tasks on slots: processes of this machine, or actors of a cluster. ``slots`` may grow."""

    slots: Sequence[Slot]
    starting: Sequence[Any]  # what may come back by itself
    notes: list[str]

    def start(self, attempt: int, task: str, arguments: dict[str, Any],
              devices: tuple[int, ...]) -> None:
        """Run a task; its TaskEnd comes from ``poll``."""

    def stop(self, attempt: int) -> None:
        """Stop an attempt; return when it has ended."""

    def poll(self, timeout_s: float) -> Sequence[TaskEnd | Lost | Back]:
        """Wait until something happens, at most ``timeout_s``."""

    def close(self) -> None:
        """End all workers."""


@dataclass(frozen=True)
class TimeLimit:
    """A job may take ``factor`` times its predicted seconds, but at least ``least_s``."""

    factor: float = 20.0
    least_s: float = 300.0


class QueueClosedError(Exception):
    """Raised by ``events`` after ``close``: the loop ends, and running jobs are queued again later."""


@dataclass
class _Attempt:
    job: int
    number: int  # of the job's attempts, in the queue
    devices: tuple[int, ...]
    begin_s: float
    limit_s: float


class QueueBackend:
    """Backend of the loop: the open jobs of a queue, as they are now and, if ``live``, as they come.

    Args:
        queue: the queue, which this process leads.
        workers: where the tasks run.
        expected_s: seconds of a job on a device type, inf where it cannot run; its InputError fails
            the job.
        clock: the time in s, in which the queue counts.
        live: whether the queue is looked at again and again. Then a database that is away is waited
            for; else the run ends with an InputError in one line.
        time_limit: after which a job is stopped, and counts as failed.
        explain: why a job is placed on a device type, for people.
        reserved: names of slots on which nothing may start now.
        on_end: called with the job, device type, status, seconds and reason of each attempt that is over.
    """

    def __init__(self, queue: Queue, workers: Workers, expected_s: Callable[[QueueJob, str], float],
                 clock: Callable[[], float], live: bool = False, time_limit: TimeLimit = TimeLimit(),  # noqa: B008
                 explain: Callable[[QueueJob, str], str] = lambda job, device_type: "",
                 reserved: Callable[[], set[str]] = set,
                 on_end: Callable[[QueueJob, str, str, float, str], None] = lambda *end: None):
        self.queue, self.workers, self._expected_s, self._clock = queue, workers, expected_s, clock
        self._live, self._time_limit, self._explain = live, time_limit, explain
        self._reserved_names, self._on_end = reserved, on_end
        self.jobs: list[QueueJob] = []  # by their number in the problem
        self._seconds: list[list[float]] = []  # expected, by job and device type
        self._numbers: dict[int, int] = {}  # in the queue -> in the problem, of open jobs
        self._arrivals: list[tuple[float, int]] = []  # a heap
        self._running: dict[int, _Attempt] = {}
        self._failures: Counter[int] = Counter()
        self._events: list[Event] = []  # to be told at the next call
        self._reserved: set[int] = set()
        self._problem: Problem | None = None
        self._slot_count = len(workers.slots)
        self._next_look_s, self._closed = 0.0, False
        self._take(self._insist(queue.jobs, QueueJob.status.in_(OPEN)))

    # ------------------------------------------------------------------ what the loop calls

    @property
    def now_s(self) -> float:
        """Return the time in s."""
        return self._clock()

    @property
    def expected(self) -> int:
        """Return how many known jobs are still to arrive."""
        return len(self._arrivals)

    @property
    def problem(self) -> Problem:
        """Return all jobs so far and the slots as a problem; numbers never change."""
        if self._problem is None:
            seconds = np.array(self._seconds)
            self._problem = Problem(self._as_jobs(self.jobs), fleet_of(self.workers.slots), seconds,
                                    seconds)
        return self._problem

    def start(self, attempt: int, job: int, devices: tuple[int, ...]) -> None:
        """Start an attempt, unless the job was cancelled a moment ago: then an event says so."""
        row, names = self.jobs[job], [self.workers.slots[device].name for device in devices]
        device_type = self.workers.slots[devices[0]].device_type
        expected_s, now_s = self._seconds_of(job, device_type), self.now_s
        number = self._insist(self.queue.start, row.number, TOGETHER.join(names), now_s, expected_s,
                              self._explain(row, device_type))
        if not number:
            row.cancel = True
            self._numbers.pop(row.number, None)
            self._events.append(Cancelled(job))
            return
        limit_s = max(self._time_limit.least_s, self._time_limit.factor * expected_s)
        self._running[attempt] = _Attempt(job, number, devices, now_s, limit_s)
        self.workers.start(attempt, row.task, row.arguments, devices)

    def stop(self, attempt: int) -> None:
        """Stop an attempt that is moved or cancelled, and note that; no event of it follows."""
        if running := self._running.pop(attempt, None):
            self.workers.stop(attempt)
            row = self.jobs[running.job]
            self._note_end(running, CANCELLED if row.cancel else "moved")

    def events(self, until_s: float) -> list[Event] | None:
        """Wait until something happens, or until ``until_s``; None when all jobs have ended.

        Raises QueueClosedError, and InputError where no slot is left.
        """
        while True:
            events, self._events = self._events, []
            events += self._arrived()
            events += self._overdue()
            if self._live and self.now_s >= self._next_look_s:
                events += self._changes()
            if self._closed:
                raise QueueClosedError
            more = self._live or self._running or self._arrivals or self.workers.starting
            if not (events or more or until_s < np.inf):
                return None
            for event in self.workers.poll(0.0 if events else self._patience_s(until_s)):
                events += self._heard(event)
            events += self._reservations()
            if events or self.now_s >= until_s:
                return events

    # ------------------------------------------------------------------ what others call

    def close(self) -> None:
        """Let ``events`` raise QueueClosedError soon; callable from any thread."""
        self._closed = True

    def predict_anew(self) -> None:
        """Ask for the expected seconds of all open jobs again, before the next decision."""
        types = fleet_of(self.workers.slots).types
        for job in self._numbers.values():
            seconds = self._expected(self.jobs[job])
            if any(value < np.inf for value in seconds):
                self._seconds[job] = seconds
        for seconds in self._seconds:  # of jobs that ended before a node joined
            seconds.extend([np.inf] * (len(types) - len(seconds)))
        self._problem = None

    def priorities(self) -> np.ndarray:
        """Return the priority of each job of the problem."""
        return np.array([row.priority for row in self.jobs], float)

    # ------------------------------------------------------------------ what happens

    def _arrived(self) -> list[Event]:
        events = []
        while self._arrivals and self._arrivals[0][0] <= self.now_s:
            events.append(Arrived(heapq.heappop(self._arrivals)[1]))
        return events

    def _patience_s(self, until_s: float) -> float:
        """Return how long to wait for the workers."""
        limits = [attempt.begin_s + attempt.limit_s for attempt in self._running.values()]
        arrivals = [self._arrivals[0][0]] if self._arrivals else []
        next_s = min(until_s, *limits, *arrivals, self.now_s + (_POLL_S if self._live else 60.0))
        return max(0.0, next_s - self.now_s)

    def _heard(self, event: TaskEnd | Lost | Back) -> list[Event]:
        """Note what a worker says; return it as events of the loop."""
        if not isinstance(event, TaskEnd):
            if len(self.workers.slots) > self._slot_count:
                self._slot_count = len(self.workers.slots)
                self.predict_anew()
            return [event]
        attempt = self._running.pop(event.attempt, None)
        return [] if attempt is None else [Ended(event.attempt, self._end(attempt, event))]

    def _end(self, attempt: _Attempt, end: TaskEnd) -> str:
        """Note the end of an attempt in the queue; return its status: done, failed, retried, lost."""
        status, reason = end.status, end.reason
        if status == "failed":
            self._failures[attempt.job] += 1
            tries = self._failures[attempt.job]
            if end.again and tries < _TRIES:
                status = "retried"
            elif tries > 1:
                reason = f"{reason} (attempt {tries} of {_TRIES})"
        self._note_end(attempt, status, reason, end.result)
        return status

    def _note_end(self, attempt: _Attempt, status: str, reason: str = "",
                  result: dict[str, Any] | None = None) -> None:
        row, now_s = self.jobs[attempt.job], self.now_s
        self._insist(self.queue.end, row.number, attempt.number, now_s, status, reason, result)
        if status not in ("retried", "moved", "lost"):
            self._numbers.pop(row.number, None)
        device_type = self.workers.slots[attempt.devices[0]].device_type
        self._on_end(row, device_type, status, now_s - attempt.begin_s, reason)

    def _overdue(self) -> list[Event]:
        """Stop attempts that take too long, such as those of a frozen worker."""
        now_s, events = self.now_s, []
        for number, attempt in list(self._running.items()):
            if now_s - attempt.begin_s > attempt.limit_s:
                self._running.pop(number)
                self.workers.stop(number)
                reason = f"not done after its time limit of {attempt.limit_s:,.3g} s"
                events.append(Ended(number, self._end(attempt, TaskEnd(number, "failed",
                                                                       reason=reason))))
        return events

    def _changes(self) -> list[Event]:
        """Look at the queue: jobs that are new, cancelled, or of another priority."""
        self._next_look_s, events = self.now_s + _POLL_S, []
        now_open = self._insist(self.queue.open_jobs)
        if new := [number for number in now_open if number not in self._numbers]:
            self._take(self._insist(self.queue.jobs, QueueJob.number.in_(new), QueueJob.status.in_(OPEN)))
            events += self._arrived()
        for number, job in list(self._numbers.items()):
            row = self.jobs[job]
            cancel, row.priority = now_open.get(number, (True, row.priority))
            if cancel and not row.cancel:
                row.cancel = True
                del self._numbers[number]
                events.append(Cancelled(job))
        return events

    def _reservations(self) -> list[Event]:
        """Take idle slots away that are reserved, and give back those that no longer are."""
        names = self._reserved_names()
        busy = {device for attempt in self._running.values() for device in attempt.devices}
        wanted = {device for device, slot in enumerate(self.workers.slots) if slot.name in names}
        lost, back = wanted - self._reserved - busy, self._reserved - wanted
        self._reserved = (self._reserved | lost) - back
        return [*map(Lost, sorted(lost)), *map(Back, sorted(back))]

    # ------------------------------------------------------------------ jobs

    def _take(self, rows: Sequence[QueueJob]) -> None:
        """Take jobs of the queue; one that no slot can run, or that cannot be predicted, fails."""
        for row in rows:
            if row.cancel:  # while it ran under a leader that is gone
                self._insist(self.queue.end, row.number, 0, self.now_s, CANCELLED)
                continue
            try:
                seconds = self._expected(row)
                if all(value == np.inf for value in seconds):
                    jobs = self._as_jobs([row])
                    raise InputError(f"no slot can run it; it needs {needs(jobs, 0)}")
            except InputError as error:
                self._insist(self.queue.end, row.number, 0, self.now_s, "failed", str(error))
                continue
            self._numbers[row.number] = len(self.jobs)
            heapq.heappush(self._arrivals, (row.arrival_s, len(self.jobs)))
            self.jobs.append(row)
            self._seconds.append(seconds)
            self._problem = None

    def _expected(self, row: QueueJob) -> list[float]:
        """Return the expected seconds of a job on each device type, inf where it cannot run."""
        fleet = fleet_of(self.workers.slots)
        able = fits(self._as_jobs([row]), fleet)[0]
        allowed = row.device_types
        return [float(self._expected_s(row, name))
                if able[number] and (allowed is None or name in allowed) else np.inf
                for number, name in enumerate(fleet.types)]

    def _seconds_of(self, job: int, device_type: str) -> float:
        return self._seconds[job][self.problem.fleet.types.index(device_type)]

    @staticmethod
    def _as_jobs(rows: Sequence[QueueJob]) -> Jobs:
        def column(name: str) -> np.ndarray:
            return np.array([getattr(row, name) for row in rows], float)

        classes = pd.Series([row.job_class for row in rows], dtype=object)
        return Jobs(tuple(row.job_id for row in rows), column("arrival_s"),
                    np.nan_to_num(column("deadline_s"), nan=np.inf, posinf=np.inf),
                    column("memory_mb"), column("cpu_cores"),
                    pd.factorize(classes.where(classes != ""))[0], column("devices").astype(int))

    def _insist(self, change: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the queue; of a live one again and again, while its database is away."""
        said = False
        while True:
            try:
                return change(*arguments)
            except QueueAwayError as error:
                if not self._live or self._closed:
                    raise
                if not said:
                    print(f"the queue waits for its database: {error}", file=sys.stderr, flush=True)
                said = True
                time.sleep(_AGAIN_S)
