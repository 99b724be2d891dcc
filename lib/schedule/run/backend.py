"""The event loop's backend for real runs: jobs of a queue on workers, each change in the queue."""

import heapq
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.schedule.loop import Arrived, Back, Cancelled, Ended, Event, Lost
from lib.schedule.problem import Jobs, Problem
from lib.schedule.run.database import QueueAwayError
from lib.schedule.run.processes import ProcessWorkers, TaskEnd
from lib.schedule.run.queue import CANCELLED, OPEN, TOGETHER, Queue, QueueJob
from lib.schedule.run.ray import RayWorkers
from lib.schedule.run.slots import fits, fleet_of, needs

TRIES = 3
_POLL_S, _AGAIN_S = 0.5, 2.0  # between looks at a live queue, and at a database that is away
Workers = ProcessWorkers | RayWorkers


class TimeLimit(NamedTuple):
    """A job may take ``factor`` times its expected seconds, but at least ``least_s``."""

    factor: float = 20.0
    least_s: float = 300.0


USUAL_LIMIT = TimeLimit()


class QueueClosedError(Exception):
    """Raised by ``events`` after ``close``."""


class _Attempt(NamedTuple):
    job: int
    number: int  # of the job's attempts, in the queue
    devices: tuple[int, ...]
    begin_s: float
    limit_s: float


def _nothing(*_: Any) -> str:
    return ""


@dataclass
class QueueBackend:
    """The open jobs of a queue, as they are now and, if ``live``, as they come and change.

    ``expected_s`` gives the seconds of a job on a device type, inf where it cannot run; its
    InputError fails the job. ``clock``: the time in s, in which the queue counts. A live queue
    whose database is away is waited for; for another one that is an InputError. ``explain`` says
    why a job runs on a type, ``reserved`` names slots on which nothing may start now; ``on_end``
    is called with job, device type, status, seconds and reason of each attempt that is over.
    ``lead``, of ``database.leadership``, is called before the queue is changed or read.
    """

    queue: Queue
    workers: Workers
    expected_s: Callable[[QueueJob, str], float]
    clock: Callable[[], float]
    live: bool = False
    time_limit: TimeLimit = USUAL_LIMIT
    explain: Callable[[QueueJob, str], str] = _nothing
    reserved: Callable[[], set[str]] = set
    on_end: Callable[[QueueJob, str, str, float, str], Any] = _nothing
    lead: Callable[[], Any] = _nothing

    def __post_init__(self):
        self._jobs: list[QueueJob] = []  # by their number in the problem
        self._seconds: list[list[float]] = []  # expected, by job and device type
        self._open: dict[int, int] = {}  # number in the queue -> in the problem
        self._arrivals: list[tuple[float, int]] = []  # a heap
        self._running: dict[int, _Attempt] = {}
        self._taken: set[int] = set()  # devices that are reserved
        self._problem: Problem | None = None
        self._closed, self._slot_count = False, len(self.workers.slots)
        attempts = self._insist(self.queue.attempts).drop_duplicates(["job_id", "attempt"])
        self._failures = Counter(attempts.loc[attempts["status"] == "retried", "job_id"])
        self._changes()

    @property
    def now_s(self) -> float:
        """The time in s."""
        return self.clock()

    @property
    def expected(self) -> int:
        """How many known jobs are still to arrive."""
        return len(self._arrivals)

    @property
    def problem(self) -> Problem:
        """All jobs so far and the slots as a problem; numbers never change."""
        if self._problem is None:
            seconds = np.array(self._seconds)
            fleet = fleet_of(self.workers.slots)
            self._problem = Problem(_as_jobs(self._jobs), fleet, seconds, seconds)
        return self._problem

    def priorities(self) -> np.ndarray:
        """Return the priority of each job of the problem."""
        return np.array([row.priority for row in self._jobs], float)

    def close(self) -> None:
        """Let ``events`` raise QueueClosedError soon; callable from any thread."""
        self._closed = True

    def start(self, attempt: int, job: int, devices: tuple[int, ...]) -> None:
        """Start an attempt, unless the job was cancelled a moment ago, as the next look will see."""
        row, slots = self._jobs[job], [self.workers.slots[device] for device in devices]
        device_type, now_s = slots[0].device_type, self.now_s
        expected_s = self._seconds[job][self.problem.fleet.types.index(device_type)]
        number = self._insist(
            self.queue.start, row.number, TOGETHER.join(slot.name for slot in slots), now_s,
            expected_s, self.explain(row, device_type))
        if number:
            limit_s = max(self.time_limit.least_s, self.time_limit.factor * expected_s)
            self._running[attempt] = _Attempt(job, number, devices, now_s, limit_s)
            self.workers.start(attempt, row.task, row.arguments, devices)

    def stop(self, attempt: int) -> None:
        """Stop an attempt that is moved or cancelled, and note that."""
        if running := self._running.pop(attempt, None):
            self.workers.stop(attempt)
            self._note_end(running, CANCELLED if self._jobs[running.job].cancel else "moved")

    def events(self, until_s: float) -> list[Event] | None:
        """Wait until something happens, or until ``until_s``; None when all jobs have ended."""
        while not self._closed:
            events = self._overdue()
            while self._arrivals and self._arrivals[0][0] <= self.now_s:
                events.append(Arrived(heapq.heappop(self._arrivals)[1]))
            if not (events or self.live or self._running or self._arrivals or until_s < np.inf):
                return None
            for event in self.workers.poll(0.0 if events else self._patience_s(until_s)):
                events += self._heard(event)
            if self.live and self.now_s >= self._next_look_s:  # a job that has ended is no longer
                events += self._changes()                      # cancelled, one that waits again is
            events += self._reservations()
            if events or self.now_s >= until_s:
                return events
        raise QueueClosedError

    def _patience_s(self, until_s: float) -> float:
        limits = [attempt.begin_s + attempt.limit_s for attempt in self._running.values()]
        arrivals = [self._arrivals[0][0]] if self._arrivals else []
        next_s = min(until_s, *limits, *arrivals, self.now_s + (_POLL_S if self.live else 60.0))
        return max(0.0, next_s - self.now_s)

    def _heard(self, event: TaskEnd | Lost | Back) -> list[Event]:
        if isinstance(event, TaskEnd):
            attempt = self._running.pop(event.attempt, None)
            return [Ended(event.attempt, self._end(attempt, event))] if attempt else []
        if len(self.workers.slots) > self._slot_count:  # a node has joined
            self._slot_count, self._problem = len(self.workers.slots), None
            self._seconds = [self._expect(row) for row in self._jobs]
        return [event]

    def _end(self, attempt: _Attempt, end: TaskEnd) -> str:
        """Note the end of an attempt; return its status: done, failed, retried or lost."""
        status, reason = end.status, end.reason
        if status == "failed":
            self._failures[self._jobs[attempt.job].job_id] += 1
            tries = self._failures[self._jobs[attempt.job].job_id]
            if end.again and tries < TRIES:
                status = "retried"
            elif tries > 1:
                reason = f"{reason} (attempt {tries} of {TRIES})"
        self._note_end(attempt, status, reason, end.result)
        return status

    def _note_end(self, attempt: _Attempt, status: str, reason: str = "",
                  result: dict[str, Any] | None = None) -> None:
        row, now_s = self._jobs[attempt.job], self.now_s
        self._insist(self.queue.end, row.number, attempt.number, now_s, status, reason, result)
        if status not in ("retried", "moved", "lost"):
            self._open.pop(row.number, None)
        device_type = self.workers.slots[attempt.devices[0]].device_type
        self.on_end(row, device_type, status, now_s - attempt.begin_s, reason)

    def _overdue(self) -> list[Event]:
        """Stop attempts that take too long, such as those of a frozen worker."""
        events = []
        for number, attempt in list(self._running.items()):
            if self.now_s - attempt.begin_s > attempt.limit_s:
                del self._running[number]
                self.workers.stop(number)
                reason = f"not done after its time limit of {attempt.limit_s:,.3g} s"
                end = TaskEnd(number, "failed", reason=reason)
                events.append(Ended(number, self._end(attempt, end)))
        return events

    def _changes(self) -> list[Event]:
        """Look at the queue: jobs that are new, cancelled, or of another priority."""
        self._next_look_s, events = self.now_s + _POLL_S, []
        seen = self._insist(self.queue.open_jobs)
        if new := seen.keys() - self._open:
            conditions = QueueJob.number.in_(new), QueueJob.status.in_(OPEN)
            for row in self._insist(self.queue.jobs, *conditions):
                self._add(row)
        for number, job in list(self._open.items()):
            row = self._jobs[job]
            row.cancel, row.priority = seen.get(number, (True, row.priority))
            if row.cancel:
                del self._open[number]
                self._arrivals = [arrival for arrival in self._arrivals if arrival[1] != job]
                heapq.heapify(self._arrivals)
                events.append(Cancelled(job))
        return events

    def _add(self, row: QueueJob) -> None:
        """Take a job of the queue; one that no slot can run, or that cannot be expected, fails."""
        status, reason, seconds = CANCELLED if row.cancel else "", "", []
        try:
            seconds = self._expect(row)
            if not np.isfinite(seconds).any():
                raise InputError(f"no slot can run it; it needs {needs(_as_jobs([row]), 0)}")
        except InputError as error:
            status, reason = "failed", str(error)
        if status:
            self._insist(self.queue.end, row.number, 0, self.now_s, status, reason)
            return
        self._open[row.number] = len(self._jobs)
        heapq.heappush(self._arrivals, (row.arrival_s, len(self._jobs)))
        self._jobs.append(row)
        self._seconds.append(seconds)
        self._problem = None

    def _expect(self, row: QueueJob) -> list[float]:
        fleet = fleet_of(self.workers.slots)
        seconds = []
        for name, able in zip(fleet.types, fits(_as_jobs([row]), fleet)[0], strict=True):
            allowed = row.device_types is None or name in row.device_types
            seconds.append(float(self.expected_s(row, name)) if able and allowed else np.inf)
        return seconds

    def _reservations(self) -> list[Event]:
        """Take idle slots away that are reserved, and give back those that no longer are."""
        names = self.reserved()
        busy = {device for attempt in self._running.values() for device in attempt.devices}
        wanted = {device for device, slot in enumerate(self.workers.slots) if slot.name in names}
        lost, back = wanted - self._taken - busy, self._taken - wanted
        self._taken = (self._taken | lost) - back
        return [*map(Lost, sorted(lost)), *map(Back, sorted(back))]

    def _insist(self, change: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the queue; of a live one again and again, while its database is away."""
        said = False
        while True:
            try:
                self.lead()
                return change(*arguments)
            except QueueAwayError as error:
                if not self.live or self._closed:
                    raise
                if not said:
                    print(f"the queue waits for its database: {error}", file=sys.stderr, flush=True)
                said = True
                time.sleep(_AGAIN_S)


def _as_jobs(rows: Sequence[QueueJob]) -> Jobs:
    def column(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], float)

    classes = pd.Series([row.job_class or None for row in rows], dtype=object)
    return Jobs(tuple(row.job_id for row in rows), column("arrival_s"),
                np.nan_to_num(column("deadline_s"), nan=np.inf, posinf=np.inf), column("memory_mb"),
                column("cpu_cores"), pd.factorize(classes)[0], column("devices").astype(int))
