"""The events of runs, written into the database: in order, in batches, and again until it has them."""

import math
import sys
import threading
import time
from collections.abc import Callable
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from sqlalchemy import update
from sqlalchemy.orm import Session

from lib.dashboard import database as db
from lib.dashboard.database_engine import Database
from lib.errors import InputError, one_line
from lib.schedule.runtime.engine.slots import attempt_of

_BATCH, _MOST = 1000, 20_000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _GATHER_S = 0.1, 5.0, 0.05
_POSITION = ("step", "epoch", "epochs")
_NO_VALUES = (*_POSITION, "progress")


def note(event: str, error: Exception, last: str = "") -> str:
    """Print an error that does not stop the server, in one line, unless it repeats the ``last`` one; return the line."""
    line = f"{event}: {error if isinstance(error, InputError) else one_line(error)}"
    if line != last:
        print(line, file=sys.stderr, flush=True)
    return line


class _Event(NamedTuple):
    run_id: str
    attempt: int
    kind: str  # state | log | metrics
    content: Any


class RunRecords:
    """Events of runs on their way into the database. Those that it does not take now are tried again, in the same order."""

    def __init__(self, database: Database, unwanted: Callable[[str], Any]):
        """``unwanted`` takes runs that have ended in the database, or are not in it."""
        self._database, self._unwanted = database, unwanted
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._noted, self._lock = 0, threading.Lock()
        self.written = 0  # events, of those that were noted
        self._progress: dict[str, list[tuple[float, float]]] = {}  # of attempts that run: first and last second and share
        self._over, self._thread = threading.Event(), threading.Thread(target=self._write_all, daemon=True)

    def state(self, run_id: str, state: str, reason: str = "", **facts: Any) -> None:
        """Note a new state of a run, and columns of it."""
        self._progress.pop(run_id, None)  # of an earlier attempt
        self._note(_Event(run_id, 0, "state", (state, reason, facts)))

    def reported(self, token: str, content: dict[str, Any]) -> int:
        """Note a log line or the progress of an attempt; return how many events are to be ``written`` until that is."""
        run_id, attempt = attempt_of(token)
        for kind in content.keys() & {"log", "metrics"}:
            self._note(_Event(run_id, attempt, kind, content[kind]))
            if isinstance(content[kind], dict) and type(share := content[kind].get("progress")) in (int, float):
                self._progress[run_id] = [*self._progress.get(run_id, [])[:1], (time.monotonic(), share)]
        return self._noted

    def remaining_s(self, run_id: str) -> float:
        """Return the seconds that a run still takes at the rate of this attempt; NaN before it has a rate."""
        reports = self._progress.get(run_id, ())
        (first_s, first), (last_s, share) = reports if len(reports) == 2 else [(0.0, 0.0)] * 2
        if share <= first:
            return math.nan
        return max(0.0, (1 - share) * (last_s - first_s) / (share - first) - (time.monotonic() - last_s))

    def _note(self, event: _Event) -> None:
        with self._lock:
            self._noted += 1
            self._events.put(event)

    def is_full(self) -> bool:
        """Return whether so many events wait for the database that agents should wait too."""
        return self._events.qsize() > _MOST

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """Write the waiting events, if the database takes them."""
        self._over.set()
        self._thread.join()

    def _write_all(self) -> None:
        while batch := self._next_batch():
            pause_s = _FIRST_PAUSE_S
            while not self._written(batch):
                if self._over.is_set():
                    return  # the journal has the states; they are written at the next start
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self.written += len(batch)

    def _next_batch(self) -> list[_Event]:
        """Wait for events; return those of a moment, none at the end."""
        batch: list[_Event] = []
        while not batch and not (self._over.is_set() and self._events.empty()):
            try:
                batch.append(self._events.get(timeout=0.2))
                self._over.wait(_GATHER_S)
                while len(batch) < _BATCH:
                    batch.append(self._events.get_nowait())
            except Empty:
                continue
        return batch

    def _written(self, batch: list[_Event]) -> bool:
        """Write events in one transaction; return False where the database is away."""
        unwanted: set[str] = set()
        try:
            with self._database.writing() as session:
                for (run_id, attempt, kind), events in groupby(batch, key=lambda event: event[:3]):
                    try:
                        _WRITERS[kind](session, run_id, attempt, [event.content for event in events])
                    except (db.ConflictError, db.NotFoundError):
                        unwanted.add(run_id)
        except db.UNAVAILABLE:
            return False
        except Exception as error:  # one event that no database takes shall not keep the others out
            if len(batch) > 1:
                return all(self._written([event]) for event in batch)
            note(f"run {batch[0].run_id}: {batch[0].kind} is not kept", error)
        for run_id in unwanted:
            try:
                self._unwanted(run_id)
            except Exception as error:  # a journal that takes nothing now; the run's end comes here again
                note(f"run {run_id} cannot be cancelled", error)
        return True


def _write_states(session: Session, run_id: str, _: int, states: list[tuple[str, str, dict[str, Any]]]) -> None:
    for state, reason, facts in states:
        db.transition(session, run_id, state, reason, **facts)


def _write_metrics(session: Session, run_id: str, attempt: int, reports: list[dict[str, Any]]) -> None:
    for report in reports:
        values = {name: value for name, value in report.items()  # None is NaN, which JSON has not
                  if name not in _NO_VALUES and type(value) in (int, float, type(None))}
        step = int(report.get("step") or 0)
        db.add_metrics(session, run_id, step, values, report.get("epoch"), str(report.get("split", "train")))
    position = {name: report[name] for report in reports for name in _POSITION if type(report.get(name)) is int}
    if position:
        best = _best(session.get(db.Run, run_id), reports)
        session.execute(update(db.Run).where(db.Run.id == run_id, db.Run.attempt == attempt)
                        .values(**position, **best, updated_at=db.now()))


def _best(run: db.Run | None, reports: list[dict[str, Any]]) -> dict[str, float]:
    """Return the best value of a run's monitored metric so far, as a column; nothing where none was reported."""
    values = [value for report in reports if run and type(value := report.get(run.monitor_metric)) in (int, float)]
    if not values:
        return {}
    earlier = [] if run.best_value is None else [run.best_value]
    return {"best_value": (max if run.monitor_mode == "max" else min)([*values, *earlier])}


_WRITERS = {"state": _write_states, "log": db.add_logs, "metrics": _write_metrics}
