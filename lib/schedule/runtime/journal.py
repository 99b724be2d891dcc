"""The journal of a run, in SQLite: written before and after each attempt, so that a killed run resumes where it was."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lib import files
from lib.errors import InputError, is_no_space

_VERSION = 1
_REFUSED = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM)  # by the system: the journal itself is sound
_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE jobs (job_id TEXT PRIMARY KEY, spec TEXT NOT NULL);
CREATE TABLE attempts (job_id TEXT NOT NULL REFERENCES jobs, attempt INTEGER NOT NULL, device TEXT NOT NULL,
                       start_s REAL NOT NULL, end_s REAL, status TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '',
                       PRIMARY KEY (job_id, attempt));
CREATE TABLE ends (job_id TEXT PRIMARY KEY REFERENCES jobs, status TEXT NOT NULL, reason TEXT NOT NULL, result TEXT NOT NULL,
                   attempt INTEGER NOT NULL, end_s REAL NOT NULL);
"""


@dataclass(frozen=True)
class Spec:
    """A job as it is run: ``call`` is ``module:function``, which gets the worker's job and ``arguments``."""

    job_id: str
    call: str
    arguments: dict[str, Any]

    def as_text(self) -> str:
        """Return it as JSON."""
        return json.dumps({"call": self.call, "arguments": self.arguments}, sort_keys=True)


class Journal:
    """The journal of one run; one process writes it. A job has at most one end, whatever happens.

    What the disk refuses raises InputError, and all that was noted before is kept. Only its owner can read it.
    """

    def __init__(self, path: Path, specs: Sequence[Spec], again: Callable[[str], bool] = is_no_space):
        """Open the journal at ``path``, or begin one of ``specs``; InputError where it is of other jobs, or damaged.

        A job that failed for a reason of which ``again`` holds is tried again, as if it had never been tried.
        """
        files.folder(path.parent)
        self.path = path
        with files.writing(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, files.PRIVATE))
            path.chmod(files.PRIVATE)  # that of an older one too; SQLite gives its other files the mode of this one
        with self._one_line(), ExitStack() as opened:
            self._base = opened.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            with self._transaction():
                if self._base.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                    self._create(specs)
                else:
                    self._resume(specs, again)
            opened.pop_all()
        self._inode = path.stat().st_ino

    def _create(self, specs: Sequence[Spec]) -> None:
        """Fill the journal, all in one transaction: a process killed at birth leaves an empty file, which is no journal yet."""
        for statement in _TABLES.split(";"):
            self._base.execute(statement)
        self._base.execute("INSERT INTO facts VALUES ('version', ?)", (str(_VERSION),))
        self._base.executemany("INSERT INTO jobs VALUES (?, ?)", [(spec.job_id, spec.as_text()) for spec in specs])

    def _resume(self, specs: Sequence[Spec], again: Callable[[str], bool]) -> None:
        version = self._base.execute("SELECT value FROM facts WHERE name = 'version'").fetchone()
        if version != (str(_VERSION),):
            raise InputError(f"{self.path} is a journal of version {version[0] if version else '?'}, this is version "
                             f"{_VERSION}; give another folder")
        recorded = dict(self._base.execute("SELECT job_id, spec FROM jobs"))
        if recorded != {spec.job_id: spec.as_text() for spec in specs}:
            raise InputError(f"{self.path} is the journal of other jobs; give another folder")
        self._base.execute("UPDATE attempts SET status = 'lost', reason = 'the run was killed', end_s = start_s "
                           "WHERE status = 'running'")
        failed = self._base.execute("SELECT job_id, reason FROM ends WHERE status = 'failed'").fetchall()
        for job_id in (job_id for job_id, reason in failed if again(reason)):
            self._base.execute("DELETE FROM ends WHERE job_id = ?", (job_id,))
            self._base.execute("UPDATE attempts SET status = 'lost' WHERE job_id = ? AND status IN ('retried', 'failed')",
                               (job_id,))

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        """Turn what SQLite refuses meanwhile into an InputError that says what to do about it."""
        try:
            yield
        except (sqlite3.DatabaseError, json.JSONDecodeError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _REFUSED:
                raise InputError(f"{self.path}: cannot be written ({error}); all that was noted before is kept: with space and "
                                 "permission to write, the same call again resumes") from None
            raise InputError(f"{self.path} is no journal of a run, or is damaged ({error}); give another folder") from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._one_line():
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:  # not after a full disk: then SQLite has rolled back by itself
                    self._base.execute("ROLLBACK")
                raise

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._one_line():
            return self._base.execute(query).fetchall()

    def check_there(self) -> None:
        """Raise InputError where the journal's file was removed or replaced: what is noted now would be lost with it."""
        if not self.path.exists() or self.path.stat().st_ino != self._inode:
            raise InputError(f"{self.path} was removed while the run went on, and with it what was noted; the same call again "
                             "begins anew")

    def start(self, job_id: str, device: str, at_s: float) -> int:
        """Note that an attempt begins; return its number."""
        self.check_there()
        with self._transaction():
            number = 1 + self._base.execute("SELECT count(*) FROM attempts WHERE job_id = ?", (job_id,)).fetchone()[0]
            self._base.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, NULL, 'running', '')", (job_id, number, device, at_s))
        return number

    def stop(self, job_id: str, attempt: int, at_s: float, status: str, reason: str = "") -> None:
        """Note how an attempt ended that is not the job's end (retried, moved, lost)."""
        with self._transaction():
            self._base.execute("UPDATE attempts SET end_s = ?, status = ?, reason = ? WHERE job_id = ? AND attempt = ?",
                               (at_s, status, reason, job_id, attempt))

    def end(self, job_id: str, attempt: int, at_s: float, status: str, reason: str = "", result: Any = None) -> bool:
        """Note the end of a job (done, failed, cancelled) with its result; False when it had ended before."""
        self.check_there()
        with self._transaction():
            new = self._base.execute("INSERT OR IGNORE INTO ends VALUES (?, ?, ?, ?, ?, ?)",
                                     (job_id, status, reason, json.dumps(result), attempt, at_s)).rowcount == 1
            self._base.execute("UPDATE attempts SET end_s = ?, status = ?, reason = ? WHERE job_id = ? AND attempt = ?",
                               (at_s, status if new else "lost", reason, job_id, attempt))
        return new

    def ended(self) -> dict[str, str]:
        """Return how each ended job ended."""
        return dict(self._rows("SELECT job_id, status FROM ends"))

    def tried(self) -> dict[str, int]:
        """Return how many attempts each job has had, those left out that were moved or lost with the run."""
        return dict(self._rows("SELECT job_id, count(*) FROM attempts WHERE status NOT IN ('moved', 'lost') GROUP BY job_id"))

    def last_s(self) -> float:
        """Return the time of the latest entry."""
        return float(self._rows("SELECT max(max(start_s), max(coalesce(end_s, 0))) FROM attempts")[0][0] or 0.0)

    def attempts(self) -> pd.DataFrame:
        """Return every attempt: ``job_id, device, start_s, end_s, attempt, status, reason``."""
        rows = self._rows("SELECT job_id, device, start_s, end_s, attempt, status, reason FROM attempts ORDER BY start_s")
        return pd.DataFrame(rows, columns=["job_id", "device", "start_s", "end_s", "attempt", "status", "reason"])

    def results(self) -> pd.DataFrame:
        """Return every end: ``job_id, status, reason, result, attempt, end_s``."""
        rows = self._rows("SELECT job_id, status, reason, result, attempt, end_s FROM ends ORDER BY end_s")
        table = pd.DataFrame(rows, columns=["job_id", "status", "reason", "result", "attempt", "end_s"])
        with self._one_line():
            return table.assign(result=[json.loads(text) for text in table["result"]])

    def close(self) -> None:
        """Close the journal."""
        self._base.close()
