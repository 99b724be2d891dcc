"""The journal of a run, in SQLite: written before and after each attempt, so that a killed run can resume."""

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import files
from lib.errors import InputError, is_no_space

TOGETHER = " + "  # between the devices of a gang, in the order of its members
_VERSION = 2
_REFUSED = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM)  # refused by the system: the journal is sound
_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE jobs (job_id TEXT PRIMARY KEY, spec TEXT NOT NULL);
CREATE TABLE attempts (job_id TEXT NOT NULL REFERENCES jobs, attempt INTEGER NOT NULL, device TEXT NOT NULL,
                       start_s REAL NOT NULL, end_s REAL, status TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '',
                       PRIMARY KEY (job_id, attempt));
CREATE TABLE ends (job_id TEXT PRIMARY KEY REFERENCES jobs, status TEXT NOT NULL, reason TEXT NOT NULL, result TEXT NOT NULL,
                   attempt INTEGER NOT NULL, end_s REAL NOT NULL);
CREATE TABLE submits (number INTEGER PRIMARY KEY, job_id TEXT NOT NULL UNIQUE REFERENCES jobs, memory_mb REAL NOT NULL,
                      cpu_cores REAL NOT NULL, priority INTEGER NOT NULL, deadline_s REAL, at_s REAL NOT NULL);
CREATE TABLE cancels (job_id TEXT PRIMARY KEY REFERENCES jobs, at_s REAL NOT NULL);
"""
_END_ATTEMPT = "UPDATE attempts SET end_s = ?, status = ?, reason = ? WHERE job_id = ? AND attempt = ?"


class UnwritableError(InputError):
    """The system refuses to write the journal, or its file is gone. That may pass, and no job is to blame."""


@dataclass(frozen=True)
class Spec:
    """What a job runs: ``call`` is ``module:function``, which gets the worker's job and ``arguments``.

    A gang runs on several ``devices`` at once: each of their workers makes the call.
    """

    job_id: str
    call: str
    arguments: dict[str, Any]
    devices: int = 1

    def as_text(self) -> str:
        """Return all but the name as JSON."""
        gang = {"devices": self.devices} if self.devices > 1 else {}
        return json.dumps({"call": self.call, "arguments": self.arguments, **gang}, sort_keys=True)


ByDeviceType = Callable[[Spec, str], float]  # a figure of a job on a device type, such as its seconds


@dataclass(eq=False)
class Entry:
    """A job of the list that has not ended; ``seconds`` are its predicted times by device type, as far as they were needed.

    ``refusal`` is the reason why it cannot be predicted and will end.
    """

    spec: Spec
    arrival_s: float = 0.0
    deadline_s: float = np.inf
    memory_mb: float = 0.0
    cpu_cores: float = 0.0
    job_class: int = -1
    priority: int = 0
    attempt: int = 0  # the latest
    seconds: dict[str, float] = field(default_factory=dict)
    refusal: str = ""
    user: int = 0
    weight: float = 1.0  # of the user

    @property
    def job_id(self) -> str:
        """Return the job's name."""
        return self.spec.job_id


class Journal:
    """The journal of one run; one process writes it, from any of its threads. A job has at most one end, whatever happens.

    A full disk raises InputError, and earlier entries are kept. Only the owner can read the file.
    """

    def __init__(self, path: Path, specs: Sequence[Spec] | None = None, again: Callable[[str], bool] = is_no_space):
        """Open the journal at ``path``, or create one of ``specs``; InputError if it is of other jobs, or damaged.

        Without ``specs`` the list is open: it holds the submitted jobs. A job that failed for a reason for which ``again``
        holds is tried again, as if it had never been tried.
        """
        files.folder(path.parent)
        self.path, self._lock, self._inode = path, threading.RLock(), 0
        with files.writing(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, files.PRIVATE))
            path.chmod(files.PRIVATE)  # of an older file too; SQLite gives its other files the same mode
        with self._one_line(), ExitStack() as opened:
            self._base = opened.enter_context(closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)))
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            with self._transaction():
                if self._base.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                    self._create(specs)
                else:
                    self._resume(specs, again)
            opened.pop_all()
        self._inode = path.stat().st_ino

    def _create(self, specs: Sequence[Spec] | None) -> None:
        """Fill the journal in one transaction: if it is killed before the end, the file is empty, and no journal yet."""
        for statement in _TABLES.split(";"):
            self._base.execute(statement)
        self._base.execute("INSERT INTO facts VALUES ('version', ?)", (str(_VERSION),))
        self._base.executemany("INSERT INTO jobs VALUES (?, ?)", [(spec.job_id, spec.as_text()) for spec in specs or ()])
        self._base.execute("INSERT INTO facts VALUES ('list', ?)", ("open" if specs is None else "fixed",))

    def _resume(self, specs: Sequence[Spec] | None, again: Callable[[str], bool]) -> None:
        facts = dict(self._base.execute("SELECT name, value FROM facts"))
        if facts.get("version") != str(_VERSION):
            raise InputError(f"{self.path} is a journal of version {facts.get('version', '?')}, this is version "
                             f"{_VERSION}; give another folder")
        if (specs is None) != (facts.get("list") == "open"):
            raise InputError(f"{self.path} is the journal of {'a fixed' if specs is None else 'an open'} list of jobs; give "
                             "another folder")
        recorded = dict(self._base.execute("SELECT job_id, spec FROM jobs"))
        if specs is not None and recorded != {spec.job_id: spec.as_text() for spec in specs}:
            raise InputError(f"{self.path} is the journal of other jobs; give another folder")
        self._base.execute("UPDATE attempts SET status = 'lost', reason = 'the run was killed', end_s = start_s "
                           "WHERE status = 'running'")
        failed = self._base.execute("SELECT job_id, reason FROM ends WHERE status = 'failed'").fetchall()
        retried = [(job_id,) for job_id, reason in failed if again(reason)]
        self._base.executemany("DELETE FROM ends WHERE job_id = ?", retried)
        self._base.executemany("UPDATE attempts SET status = 'lost' WHERE job_id = ? AND status IN ('retried', 'failed')",
                               retried)

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        """Turn SQLite's errors into an InputError that says what to do."""
        try:
            yield
        except (sqlite3.DatabaseError, json.JSONDecodeError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _REFUSED:
                raise UnwritableError(f"{self.path}: cannot be written ({error}); all that was noted before is kept: with "
                                      "space and permission to write, the same call again resumes") from None
            raise InputError(f"{self.path} is no journal of a run, or is damaged ({error}); give another folder") from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Begin and commit; InputError if the journal's file was removed or replaced: new entries would be lost with it."""
        if self._inode and not (self.path.exists() and self.path.stat().st_ino == self._inode):
            raise UnwritableError(f"{self.path} was removed while the run went on, and with it what was noted; the same call "
                                  "again begins anew")
        with self._lock, self._one_line():
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:  # not after a full disk: then SQLite has rolled back by itself
                    self._base.execute("ROLLBACK")
                raise

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._lock, self._one_line():
            return self._base.execute(query).fetchall()

    def submit(self, entry: Entry) -> bool:
        """Note a new job of an open list; False if it is known already, InputError if that was another job."""
        job_id, text = entry.job_id, entry.spec.as_text()
        with self._transaction():
            recorded = self._base.execute("SELECT spec FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
            if recorded and recorded != (text,):
                raise InputError(f"the job {job_id!r} was submitted before, to do something else; give another name")
            if not recorded:
                self._base.execute("INSERT INTO jobs VALUES (?, ?)", (job_id, text))
                self._base.execute("INSERT INTO submits VALUES (NULL, ?, ?, ?, ?, ?, ?)", (
                    job_id, entry.memory_mb, entry.cpu_cores, entry.priority, entry.deadline_s, entry.arrival_s))
        return not recorded

    def cancel(self, job_id: str, at_s: float) -> bool:
        """Note that a job must not start again, and must stop if it runs; False if it has ended, or is unknown."""
        return self._change("INSERT OR IGNORE INTO cancels VALUES (:job_id, :value)", job_id, at_s)

    def reorder(self, job_id: str, priority: int) -> bool:
        """Note another priority of a job; False if it has ended, or is unknown."""
        return self._change("UPDATE submits SET priority = :value WHERE job_id = :job_id", job_id, priority)

    def _change(self, statement: str, job_id: str, value: float) -> bool:
        with self._transaction():
            opens = self._base.execute("SELECT 1 FROM jobs WHERE job_id = :job_id AND job_id NOT IN (SELECT job_id FROM ends)",
                                       {"job_id": job_id}).fetchone()
            if opens:
                self._base.execute(statement, {"job_id": job_id, "value": value})
        return bool(opens)

    def start(self, job_id: str, device: str, at_s: float) -> int:
        """Note that an attempt begins; return its number, 0 if it must not because the job is cancelled or has ended."""
        with self._transaction():
            if self._base.execute("SELECT job_id FROM cancels WHERE job_id = :job_id UNION "
                                  "SELECT job_id FROM ends WHERE job_id = :job_id", {"job_id": job_id}).fetchone():
                return 0
            self._base.execute("UPDATE attempts SET status = 'lost', reason = 'the run was ended', end_s = start_s "
                               "WHERE job_id = ? AND status = 'running'", (job_id,))  # whose end could not be written
            number = 1 + self._base.execute("SELECT count(*) FROM attempts WHERE job_id = ?", (job_id,)).fetchone()[0]
            self._base.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, NULL, 'running', '')", (job_id, number, device, at_s))
        return number

    def stop(self, job_id: str, attempt: int, at_s: float, status: str, reason: str = "") -> None:
        """Note the end of an attempt that is not the job's end (retried, moved, lost)."""
        with self._transaction():
            self._base.execute(_END_ATTEMPT, (at_s, status, reason, job_id, attempt))

    def end(self, job_id: str, attempt: int, at_s: float, status: str, reason: str = "", result: Any = None) -> bool:
        """Note the end of a job (done, failed, cancelled) with its result; False if it had ended before."""
        with self._transaction():
            new = self._base.execute("INSERT OR IGNORE INTO ends VALUES (?, ?, ?, ?, ?, ?)",
                                     (job_id, status, reason, json.dumps(result), attempt, at_s)).rowcount == 1
            self._base.execute(_END_ATTEMPT, (at_s, status if new else "lost", reason, job_id, attempt))
        return new

    def submitted(self) -> list[Entry]:
        """Return the jobs of an open list that have not ended, in the order in which they were submitted."""
        rows = self._rows("SELECT job_id, spec, at_s, deadline_s, memory_mb, cpu_cores, -1, priority, (SELECT count(*) FROM "
                          "attempts WHERE attempts.job_id = submits.job_id) FROM submits JOIN jobs USING (job_id) "
                          "WHERE job_id NOT IN (SELECT job_id FROM ends) ORDER BY number")
        with self._one_line():
            return [Entry(Spec(job_id, **json.loads(text)), *numbers) for job_id, text, *numbers in rows]

    def cancelled(self) -> set[str]:
        """Return the jobs that are cancelled and have not ended."""
        return {name for (name,) in self._rows("SELECT job_id FROM cancels WHERE job_id NOT IN (SELECT job_id FROM ends)")}

    def ended(self) -> dict[str, str]:
        """Return how each ended job ended."""
        return dict(self._rows("SELECT job_id, status FROM ends"))

    def tried(self) -> dict[str, int]:
        """Return how many attempts each job has had, without those that were moved or lost."""
        return dict(self._rows("SELECT job_id, count(*) FROM attempts WHERE status NOT IN ('moved', 'lost') GROUP BY job_id"))

    def last_s(self) -> float:
        """Return the time of the latest entry."""
        return self._rows("SELECT coalesce(max(s), 0.0) FROM (SELECT start_s AS s FROM attempts UNION ALL SELECT end_s FROM "
                          "attempts UNION ALL SELECT at_s FROM submits UNION ALL SELECT end_s FROM ends)")[0][0]

    def _table(self, name: str, order: str, *columns: str) -> pd.DataFrame:
        return pd.DataFrame(self._rows(f"SELECT {', '.join(columns)} FROM {name} ORDER BY {order}"), columns=columns)

    def attempts(self) -> pd.DataFrame:
        """Return every attempt, with one row per device: ``job_id, device, start_s, end_s, attempt, status, reason``."""
        table = self._table("attempts", "start_s", "job_id", "device", "start_s", "end_s", "attempt", "status", "reason")
        return table.assign(device=table["device"].str.split(TOGETHER, regex=False)).explode("device", ignore_index=True)

    def results(self) -> pd.DataFrame:
        """Return every end: ``job_id, status, reason, result, attempt, end_s``."""
        table = self._table("ends", "end_s", "job_id", "status", "reason", "result", "attempt", "end_s")
        with self._one_line():
            return table.assign(result=[json.loads(text) for text in table["result"]])

    def close(self) -> None:
        """Close the journal."""
        with self._lock:
            self._base.close()
