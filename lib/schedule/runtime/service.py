"""The queue as a service: jobs are submitted, cancelled and reordered, and slots join and leave, while it runs."""

import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path

from lib import locks
from lib.errors import InputError
from lib.schedule.runtime.engine.engine import Engine, Observer
from lib.schedule.runtime.executor import JOURNAL
from lib.schedule.runtime.journal import ByDeviceType, Entry, Journal, Spec
from lib.schedule.runtime.workers import Limits, ProcessWorker, Spawn
from lib.schedule.state import Policy

_MOST_PRIORITY = 10**6


class Service(Engine, AbstractContextManager):
    """A queue of jobs, led by a policy, with its journal in a folder. Methods are thread-safe; ``run`` is for one thread.

    A call that submits, cancels or reorders is in the journal when it returns: a service that is killed and opened on the same
    folder again ends no job twice and loses none. The journal does not hold slots; add them after opening. No job starts on a
    device type while a job of higher priority waits that can run there. After an error, such as a full disk, ``run`` may be
    called again: jobs that had not ended are tried again.
    """

    def __init__(self, folder: Path, policy: Policy, predicted_s: ByDeviceType, limits: Limits | None = None,
                 spawn: Spawn = ProcessWorker, observer: Observer | None = None):
        """Open the queue. ``predicted_s`` gives the seconds of a job on a device type, inf where it cannot run, quickly.

        A job whose prediction raises InputError fails with that reason. Raises InputError when another process has the queue
        open, or the folder holds another journal.
        """
        with ExitStack() as opened:
            opened.enter_context(locks.writer(folder / JOURNAL))
            journal = opened.enter_context(closing(Journal(folder / JOURNAL, again=lambda reason: False)))  # ends are known
            super().__init__(journal, policy, predicted_s, limits, spawn, observer)
            self._classes = {}  # of jobs: the number of each workload, notebook or call
            self._note_lock = threading.Lock()  # the journal and the engine get calls in the same order
            for entry in journal.submitted():
                self._take(entry)
            for job_id in journal.cancelled():
                self.post(partial(self._cancel, job_id))
            self._opened = opened.pop_all()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the journal, once ``run`` has returned."""
        self._opened.close()

    def submit(self, spec: Spec, memory_mb: float = 0.0, cpu_cores: float = 0.0, priority: int = 0,
               deadline_s: float = math.nan) -> bool:
        """Add a job, which should end within ``deadline_s`` seconds (NaN: any time); False if it is known already.

        Raises InputError for a job that cannot be written as JSON, and for a name of another job.
        """
        _check(spec, memory_mb, cpu_cores, priority, deadline_s)
        at_s = self.now()
        entry = Entry(spec, at_s, math.inf if math.isnan(deadline_s) else at_s + deadline_s, float(memory_mb), float(cpu_cores),
                      priority=priority)
        return self._note(self.journal.submit, entry, change=partial(self._take, entry))

    def cancel(self, job_id: str) -> bool:
        """Cancel a job: it never starts again; if it runs it is told to stop, and killed after ``limits.grace_s``.

        Returns False if it has ended, or is unknown. A job that ends before it hears of this keeps its end.
        """
        return self._note(self.journal.cancel, job_id, self.now(), change=partial(self._cancel, job_id))

    def reorder(self, job_id: str, priority: int) -> bool:
        """Give a job another priority, the highest goes first; False if it has ended, or is unknown."""
        _check_priority(job_id, priority)
        return self._note(self.journal.reorder, job_id, priority, change=partial(self._reorder, job_id, priority))

    def _note(self, write: Callable[..., bool], *words: object, change: Callable[[], None]) -> bool:
        """Note a change in the journal, which may refuse it; then let the engine make it."""
        with self._note_lock:
            if is_new := write(*words):
                self.post(change)
        return is_new

    def _take(self, entry: Entry) -> None:
        arguments = entry.spec.arguments
        name = str(arguments.get("workload_id") or arguments.get("path") or entry.spec.call)
        entry.job_class = self._classes.setdefault(name, len(self._classes))
        self.add(entry)


def _check(spec: Spec, memory_mb: float, cpu_cores: float, priority: int, deadline_s: float) -> None:
    if not (isinstance(spec.job_id, str) and spec.job_id):
        raise InputError(f"the name of a job is {spec.job_id!r}: it is a text of a character or more")
    try:
        f"{spec.job_id}{spec.as_text()}".encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"the job {spec.job_id!r} cannot be written as JSON: {error}") from None
    for name, value in (("memory_mb", memory_mb), ("cpu_cores", cpu_cores)):
        if not 0 <= value < math.inf:
            raise InputError(f"{name} of job {spec.job_id!r} is {value}: it is a number, 0 or more")
    if deadline_s <= 0:
        raise InputError(f"deadline_s of job {spec.job_id!r} is {deadline_s}: it is a number of seconds above 0, or NaN")
    _check_priority(spec.job_id, priority)


def _check_priority(job_id: str, priority: int) -> None:
    if type(priority) is not int or abs(priority) > _MOST_PRIORITY:
        raise InputError(f"the priority of job {job_id!r} is {priority!r}: it is a whole number from {-_MOST_PRIORITY:,} to "
                         f"{_MOST_PRIORITY:,}")
