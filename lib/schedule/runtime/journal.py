"""The journal of a run, in SQLite: written before and after each attempt, so that a killed run resumes where it was."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lib.errors import InputError

_VERSION = 1
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
    """The journal of one run; one process writes it. A job has at most one end, whatever happens."""

    def __init__(self, path: Path, specs: Sequence[Spec]):
        """Open the journal at ``path``, or begin one of ``specs``; InputError where it is of other jobs, or damaged."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        try:
            self._base = sqlite3.connect(path, isolation_level=None)
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            known = self._base.execute("SELECT name FROM sqlite_master WHERE name = 'facts'").fetchone()
            if known is None:
                self._create(specs)
            else:
                self._resume(specs)
        except sqlite3.DatabaseError as error:
            raise InputError(f"{path} is no journal of a run, or is damaged ({error}); give another folder") from None

    def _create(self, specs: Sequence[Spec]) -> None:
        self._base.executescript(_TABLES)
        with self._transaction():
            self._base.execute("INSERT INTO facts VALUES ('version', ?)", (str(_VERSION),))
            self._base.executemany("INSERT INTO jobs VALUES (?, ?)", [(spec.job_id, spec.as_text()) for spec in specs])

    def _resume(self, specs: Sequence[Spec]) -> None:
        recorded = dict(self._base.execute("SELECT job_id, spec FROM jobs"))
        if recorded != {spec.job_id: spec.as_text() for spec in specs}:
            raise InputError(f"{self.path} is the journal of other jobs; give another folder")
        with self._transaction():
            self._base.execute("UPDATE attempts SET status = 'lost', reason = 'the run was killed', end_s = start_s "
                               "WHERE status = 'running'")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    def start(self, job_id: str, device: str, at_s: float) -> int:
        """Note that an attempt begins; return its number."""
        with self._transaction():
            number = 1 + self._base.execute("SELECT count(*) FROM attempts WHERE job_id = ?", (job_id,)).fetchone()[0]
            self._base.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, NULL, 'running', '')", (job_id, number, device, at_s))
        return number

    def stop(self, job_id: str, attempt: int, at_s: float, status: str, reason: str = "") -> None:
        """Note how an attempt ended that is not the job's end (retried, moved, lost)."""
        self._base.execute("UPDATE attempts SET end_s = ?, status = ?, reason = ? WHERE job_id = ? AND attempt = ?",
                           (at_s, status, reason, job_id, attempt))

    def end(self, job_id: str, attempt: int, at_s: float, status: str, reason: str = "", result: Any = None) -> bool:
        """Note the end of a job (done, failed, cancelled) with its result; False when it had ended before."""
        with self._transaction():
            new = self._base.execute("INSERT OR IGNORE INTO ends VALUES (?, ?, ?, ?, ?, ?)",
                                     (job_id, status, reason, json.dumps(result), attempt, at_s)).rowcount == 1
            self._base.execute("UPDATE attempts SET end_s = ?, status = ?, reason = ? WHERE job_id = ? AND attempt = ?",
                               (at_s, status if new else "lost", reason, job_id, attempt))
        return new

    def ended(self) -> dict[str, str]:
        """Return how each ended job ended."""
        return dict(self._base.execute("SELECT job_id, status FROM ends"))

    def tried(self) -> dict[str, int]:
        """Return how many attempts each job has had, those left out that were moved or lost with the run."""
        return dict(self._base.execute("SELECT job_id, count(*) FROM attempts WHERE status NOT IN ('moved', 'lost') "
                                       "GROUP BY job_id"))

    def last_s(self) -> float:
        """Return the time of the latest entry."""
        last = self._base.execute("SELECT max(max(start_s), max(coalesce(end_s, 0))) FROM attempts").fetchone()[0]
        return float(last or 0.0)

    def attempts(self) -> pd.DataFrame:
        """Return every attempt: ``job_id, device, start_s, end_s, attempt, status, reason``."""
        rows = self._base.execute("SELECT job_id, device, start_s, end_s, attempt, status, reason FROM attempts "
                                  "ORDER BY start_s").fetchall()
        return pd.DataFrame(rows, columns=["job_id", "device", "start_s", "end_s", "attempt", "status", "reason"])

    def results(self) -> pd.DataFrame:
        """Return every end: ``job_id, status, reason, result, attempt, end_s``."""
        rows = self._base.execute("SELECT job_id, status, reason, result, attempt, end_s FROM ends ORDER BY end_s").fetchall()
        table = pd.DataFrame(rows, columns=["job_id", "status", "reason", "result", "attempt", "end_s"])
        return table.assign(result=[json.loads(text) for text in table["result"]])

    def close(self) -> None:
        """Close the journal."""
        self._base.close()
