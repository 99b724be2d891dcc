"""The queue: one row per job and one per attempt, in SQLite or PostgreSQL.

A change of a state is one conditional UPDATE, so each job ends once, whoever else changes its row.
Times are in seconds of the leader's clock. One process leads (``database.leadership``); others may
submit jobs, cancel them and change their ``priority`` at any time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from lib.schedule.run.database import Base, in_one_line

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
OPEN, ENDS = (QUEUED, RUNNING), (DONE, FAILED, CANCELLED)
TOGETHER = " + "  # between the devices of an attempt


class QueueJob(Base):
    """A job: the call that it is, where it may run, and what became of it."""

    __tablename__ = "queue_jobs"
    __table_args__ = {"sqlite_autoincrement": True}  # the number of a deleted job never comes again
    number: Mapped[int] = mapped_column(primary_key=True)  # in the order of submission
    job_id: Mapped[str] = mapped_column(unique=True)
    task: Mapped[str]  # package.module:function
    arguments: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    job_class: Mapped[str] = mapped_column(default="")  # jobs of one class are alike
    devices: Mapped[int] = mapped_column(default=1)  # of one type at once
    device_types: Mapped[list[str] | None] = mapped_column(sa.JSON)  # None: any type
    priority: Mapped[int] = mapped_column(default=0)  # the highest first
    memory_mb: Mapped[float] = mapped_column(default=0.0)
    cpu_cores: Mapped[float] = mapped_column(default=0.0)
    arrival_s: Mapped[float] = mapped_column(default=0.0)
    deadline_s: Mapped[float | None]
    status: Mapped[str] = mapped_column(default=QUEUED, index=True)
    cancel: Mapped[bool] = mapped_column(default=False)  # somebody wants it to stop
    attempt: Mapped[int] = mapped_column(default=0)  # the latest
    device: Mapped[str] = mapped_column(default="")
    start_s: Mapped[float | None]  # of the latest attempt
    end_s: Mapped[float | None]
    predicted_s: Mapped[float | None]
    placement: Mapped[str] = mapped_column(default="")  # why it runs there
    reason: Mapped[str] = mapped_column(default="")  # why it failed, or waits again
    result: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON)


class QueueAttempt(Base):
    """An attempt; its status is running, done, failed, cancelled, retried, moved or lost."""

    __tablename__ = "queue_attempts"
    number: Mapped[int] = mapped_column(sa.ForeignKey(QueueJob.number), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    device: Mapped[str]
    start_s: Mapped[float]
    end_s: Mapped[float | None]
    status: Mapped[str] = mapped_column(default=RUNNING)
    reason: Mapped[str] = mapped_column(default="")


class Queue:
    """The queue in a database; methods raise QueueAwayError, or InputError for a damaged file."""

    def __init__(self, engine: sa.Engine):
        self.engine = engine
        with in_one_line(engine):
            Base.metadata.create_all(engine, [QueueJob.__table__, QueueAttempt.__table__])

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a session that is committed at the end, or rolled back when the block raises."""
        engine = self.engine.execution_options(writes=True)
        with in_one_line(engine), Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session that only reads."""
        with in_one_line(self.engine), Session(self.engine, expire_on_commit=False) as session:
            yield session

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def submit(self, jobs: Sequence[QueueJob]) -> None:
        """Add jobs to the queue; all of them or none."""
        with self.writing() as session:
            session.add_all(jobs)

    def cancel(self, job_id: str) -> bool:
        """Cancel a waiting job, or ask for a running one to be stopped; False if it has ended."""
        job = update(QueueJob).where(QueueJob.job_id == job_id)
        with self.writing() as session:
            waits = job.where(QueueJob.status == QUEUED).values(status=CANCELLED, cancel=True)
            runs = job.where(QueueJob.status == RUNNING).values(cancel=True)
            return session.execute(waits).rowcount == 1 or session.execute(runs).rowcount == 1

    def recover(self, again: Callable[[str], bool] = lambda reason: False) -> None:
        """Queue again what a leader that is gone left running, and failures that may pass."""
        with self.writing() as session:
            lost = update(QueueAttempt).where(QueueAttempt.status == RUNNING)
            session.execute(lost.values(status="lost", end_s=QueueAttempt.start_s,
                                        reason="the run was killed"))
            rows = select(QueueJob).where(QueueJob.status.in_((RUNNING, FAILED)))
            for row in session.scalars(rows):
                if row.status == RUNNING:
                    row.reason = "the run was killed"
                elif not again(row.reason):
                    continue
                row.status, row.device, row.end_s = QUEUED, "", None

    def jobs(self, *conditions: Any) -> list[QueueJob]:
        """Return the jobs for which conditions hold, in the order of submission."""
        with self.reading() as session:
            rows = select(QueueJob).where(*conditions).order_by(QueueJob.number)
            return list(session.scalars(rows))

    def open_jobs(self) -> dict[int, tuple[bool, int]]:
        """Return of each job that has not ended whether it shall be cancelled, and its priority."""
        columns = select(QueueJob.number, QueueJob.cancel, QueueJob.priority)
        with self.reading() as session:
            rows = session.execute(columns.where(QueueJob.status.in_(OPEN)))
            return {number: (cancel, priority) for number, cancel, priority in rows}

    def start(self, number: int, device: str, at_s: float, predicted_s: float | None = None,
              placement: str = "") -> int:
        """Begin an attempt of a waiting job; return its number, 0 if the job no longer waits.

        The same call again returns the same number: its answer was lost with the connection.
        """
        job = QueueJob.number == number
        with self.writing() as session:
            begun = session.execute(update(QueueJob).where(job, QueueJob.status == QUEUED).values(
                status=RUNNING, attempt=QueueJob.attempt + 1, device=device, start_s=at_s,
                predicted_s=predicted_s, placement=placement))
            if not begun.rowcount:
                return session.scalar(select(QueueAttempt.attempt).where(
                    QueueAttempt.number == number, QueueAttempt.status == RUNNING,
                    QueueAttempt.start_s == at_s, QueueAttempt.device == device)) or 0
            attempt = session.scalar(select(QueueJob.attempt).where(job))
            session.add(QueueAttempt(number=number, attempt=attempt, device=device, start_s=at_s))
            return attempt

    def end(self, number: int, attempt: int, at_s: float, status: str, reason: str = "",
            result: dict[str, Any] | None = None) -> None:
        """End an attempt, and the job unless it waits again (status retried, moved or lost).

        Attempt 0 ends a waiting job. A job that was ended before stays as it is.
        """
        values = {"status": QUEUED, "reason": reason}
        if status in ENDS:
            values = {"status": status, "reason": reason, "end_s": at_s, "result": result}
        with self.writing() as session:
            session.execute(update(QueueAttempt).where(
                QueueAttempt.number == number, QueueAttempt.attempt == attempt,
            ).values(end_s=at_s, status=status, reason=reason))
            session.execute(update(QueueJob).where(
                QueueJob.number == number, QueueJob.status == (RUNNING if attempt else QUEUED),
            ).values(**values))

    def attempts(self) -> pd.DataFrame:
        """Return one row per attempt and device."""
        columns = (QueueJob.job_id, QueueAttempt.device, QueueAttempt.start_s, QueueAttempt.end_s,
                   QueueAttempt.attempt, QueueAttempt.status, QueueAttempt.reason)
        rows = select(*columns).join_from(QueueAttempt, QueueJob)
        with self.reading() as session:
            found = session.execute(rows.order_by(QueueAttempt.start_s, QueueAttempt.number)).all()
        table = pd.DataFrame(found, columns=[column.key for column in columns])
        devices = table["device"].str.split(TOGETHER, regex=False)
        return table.assign(device=devices).explode("device", ignore_index=True)

    def ends(self) -> pd.DataFrame:
        """Return one row per job that has ended: job_id, status, reason, result, attempt, end_s."""
        names = ["job_id", "status", "reason", "result", "attempt", "end_s"]
        jobs = sorted(self.jobs(QueueJob.status.in_(ENDS)), key=lambda job: job.end_s or 0.0)
        return pd.DataFrame([[getattr(job, name) for name in names] for job in jobs], columns=names)
