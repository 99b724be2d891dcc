"""The queue as a service: jobs are submitted, cancelled and reordered, and slots join and leave, while it runs."""

import math
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pandas as pd

from lib import locks
from lib.errors import InputError
from lib.schedule.runtime.engine.engine import Engine
from lib.schedule.runtime.engine.observer import Observer
from lib.schedule.runtime.engine.plan import plan
from lib.schedule.runtime.engine.view import Entry
from lib.schedule.runtime.executor import JOURNAL
from lib.schedule.runtime.journal import Journal, Spec, Submit
from lib.schedule.runtime.local_site import fleet_of
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, Spawn
from lib.schedule.state import Policy

_MOST_PRIORITY = 10**6


class Service:
    """A queue over the journal in a folder, led by a policy; every method is thread-safe, ``run`` is for one thread.

    What is submitted, cancelled or reordered is in the journal when the call returns: a service that is killed and opened on
    the same folder again has it all, ends no job twice and loses none. Slots are not in it; who opens the service adds them.
    Jobs of higher priority go first: no job starts on a device type while one of higher priority waits that can run there.
    """

    def __init__(self, folder: Path, policy: Policy, predicted_s: Callable[[Spec, str], float], limits: Limits | None = None,
                 spawn: Spawn = ProcessWorker, observer: Observer | None = None):
        """Open it. ``predicted_s`` gives the seconds of a job on a device type, inf where it cannot run, and must be quick.

        Raises InputError when another process has it open, or the folder holds another journal. A job whose prediction raises
        InputError fails with that reason.
        """
        with ExitStack() as opened:
            opened.enter_context(locks.writer(folder / JOURNAL))
            self._journal = opened.enter_context(closing(Journal(folder / JOURNAL, again=_never)))
            self._engine = Engine(self._journal, policy, predicted_s, fleet_of, limits or Limits(), spawn, observer)
            self._policy, self._classes = policy, {}
            self._order = threading.Lock()  # what the journal notes and what the engine hears come in one order
            tried = Counter(self._journal.attempts()["job_id"])
            for submit in self._journal.submitted():
                self._engine.add(self._entry(submit, tried[submit.spec.job_id]))
            for job_id in self._journal.cancelled():
                self._engine.post(partial(self._engine.cancel, job_id))
            self._opened = opened.pop_all()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the journal, once ``run`` has returned."""
        self._opened.close()

    def submit(self, spec: Spec, memory_mb: float = 0.0, cpu_cores: float = 0.0, priority: int = 0,
               deadline_s: float = math.nan) -> bool:
        """Add a job, which should end within ``deadline_s`` seconds from now (NaN: no matter); False where it is known already.

        Raises InputError for a job that cannot be written down, or is known as another one.
        """
        _check(spec, memory_mb, cpu_cores, priority, deadline_s)
        at_s = self._engine.now()
        ends_s = math.inf if math.isnan(deadline_s) else at_s + deadline_s
        submit = Submit(spec, float(memory_mb), float(cpu_cores), priority, ends_s, at_s)
        with self._order:
            new = self._journal.submit(submit)
            if new:
                self._engine.post(lambda: self._engine.add(self._entry(submit)))
        return new

    def cancel(self, job_id: str) -> bool:
        """Cancel a job: it never starts again; where it runs it is told to stop, and killed after ``limits.grace_s``.

        Returns False where it has ended, or is unknown. One that ends before it hears of this has ended as it did.
        """
        with self._order:
            is_open = self._journal.cancel(job_id, self._engine.now())
            if is_open:
                self._engine.post(partial(self._engine.cancel, job_id))
        return is_open

    def reorder(self, job_id: str, priority: int) -> bool:
        """Give a job another priority, the highest goes first; False where it has ended, or is unknown."""
        _check_priority(job_id, priority)
        with self._order:
            is_open = self._journal.reorder(job_id, priority)
            if is_open:
                self._engine.post(partial(self._engine.reorder, job_id, priority))
        return is_open

    def add_slot(self, slot: Slot) -> None:
        """Let a device join, in the place of one of that name."""
        self._engine.post(partial(self._engine.join, slot))

    def remove_slot(self, name: str) -> None:
        """Let a device leave; what runs there is ended, and tried again elsewhere."""
        self._engine.post(partial(self._engine.leave, name))

    def predict_anew(self) -> None:
        """Let the predicted seconds of the jobs that wait be computed anew, as when more is known of devices."""
        self._engine.post(self._engine.predict_anew)

    def now(self) -> float:
        """Return the seconds of the journal's clock, which is that of plans, attempts and ends."""
        return self._engine.now()

    def run(self, until: Callable[[], bool]) -> None:
        """Run jobs until ``until()`` holds, which is called several times a second; workers are shut down then.

        After an error, such as a full disk, it may be called again: what had not ended is tried again.
        """
        self._engine.run(until)

    def plan(self) -> pd.DataFrame:
        """Return what runs, and what the policy plans for the rest from now on, with the reasons (``engine.plan.plan``)."""
        self._engine.settle()
        with self._engine.lock:
            view = self._engine.snapshot(planning=True)
        return plan(view, self._policy)

    @property
    def left(self) -> int:
        """Return how many jobs have not ended."""
        self._engine.settle()
        with self._engine.lock:
            return self._engine.left

    def attempts(self) -> pd.DataFrame:
        """Return every attempt: ``job_id, device, start_s, end_s, attempt, status, reason``."""
        return self._journal.attempts()

    def ends(self) -> pd.DataFrame:
        """Return every end: ``job_id, status, reason, result, attempt, end_s``."""
        return self._journal.results()

    def notes(self) -> list[str]:
        """Return the latest notes of workers that were replaced and slots that were given up."""
        with self._engine.lock:
            return list(self._engine.slots.notes)

    def _entry(self, submit: Submit, attempt: int = 0) -> Entry:
        arguments = submit.spec.arguments
        alike = str(arguments.get("workload_id") or arguments.get("path") or submit.spec.call)
        return Entry(submit.spec, submit.at_s, submit.deadline_s, submit.memory_mb, submit.cpu_cores,
                     self._classes.setdefault(alike, len(self._classes)), submit.priority, attempt)


def _never(reason: str) -> bool:
    """Try no job again that failed before a restart: observers know of its end."""
    return False


def _check(spec: Spec, memory_mb: float, cpu_cores: float, priority: int, deadline_s: float) -> None:
    """Refuse a job that is none; InputError names what is wrong."""
    if not (isinstance(spec.job_id, str) and spec.job_id):
        raise InputError(f"the name of a job is {spec.job_id!r}: it is a text of a character or more")
    try:
        f"{spec.job_id}{spec.as_text()}".encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"the job {spec.job_id!r} cannot be written as JSON: {error}") from None
    for what, value in (("memory_mb", memory_mb), ("cpu_cores", cpu_cores)):
        if not 0 <= value < math.inf:
            raise InputError(f"{what} of job {spec.job_id!r} is {value}: it is a number, 0 or more")
    if not (math.isnan(deadline_s) or deadline_s > 0):
        raise InputError(f"deadline_s of job {spec.job_id!r} is {deadline_s}: it is a number of seconds above 0, or NaN")
    _check_priority(spec.job_id, priority)


def _check_priority(job_id: str, priority: int) -> None:
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > _MOST_PRIORITY:
        raise InputError(f"the priority of job {job_id!r} is {priority!r}: it is a whole number from {-_MOST_PRIORITY:,} to "
                         f"{_MOST_PRIORITY:,}")
