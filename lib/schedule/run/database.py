"""Databases, SQLite or PostgreSQL: how they are opened, and the one process that leads a queue."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.orm import DeclarativeBase

from lib import files, locks
from lib.errors import InputError, one_line

AWAY = (exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError,
        exc.DisconnectionError)
_LEADER = 0x6461_7368  # the advisory lock of the leader in PostgreSQL


class Base(DeclarativeBase):
    """Base of the tables of a database."""


class QueueAwayError(InputError):
    """The database cannot be reached or written; that may pass, and no job is to blame."""


@contextmanager
def in_one_line(engine: sa.Engine) -> Iterator[None]:
    """Raise errors of a database as QueueAwayError, or InputError for a damaged file."""
    where = str(engine.url).removeprefix("sqlite:///")
    try:
        yield
    except AWAY as error:
        why = one_line(getattr(error, "orig", None) or error)
        raise QueueAwayError(f"{where} cannot be used ({why}); all that was written before is "
                             "kept: the same call again resumes") from None
    except exc.DatabaseError as error:
        raise InputError(f"{where} is no queue of jobs, or is damaged "
                         f"({one_line(error.orig)}); name another") from None


def open_engine(url: str | Path, wait_s: float = 5.0) -> sa.Engine:
    """Open a database of SQLite (a file, made if it is not there) or PostgreSQL.

    ``wait_s`` is the longest wait for a lock. Raises InputError for a URL of neither.
    """
    if isinstance(url, Path):
        return _open_sqlite(url, wait_s)
    try:
        parsed = sa.make_url(url)
    except exc.ArgumentError:
        raise InputError("this is no URL of a database, such as "
                         "postgresql+psycopg://user@host/name") from None
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        return _open_sqlite(Path(parsed.database or ""), wait_s)
    if kind != "postgresql":
        raise InputError(f"the URL of the database is of {kind}; it takes sqlite or postgresql")
    arguments = {"connect_timeout": max(2, int(wait_s)),
                 "options": f"-c lock_timeout={1000 * wait_s:.0f}"}
    return sa.create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True,
                            pool_size=10, pool_timeout=wait_s, connect_args=arguments)


def _open_sqlite(path: Path, wait_s: float) -> sa.Engine:
    """Open a file that only its owner can read; once removed it is not made again."""
    if path.name in ("", ":memory:"):
        raise InputError("SQLite takes a file, such as sqlite:////data/dashboard.db")
    path = path.absolute()
    files.folder(path.parent)
    with files.writing(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, files.PRIVATE))
        path.chmod(files.PRIVATE)

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", wait_s, uri=True,
                                     isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), creator=connect,
                              pool_size=10, pool_timeout=wait_s)

    @event.listens_for(engine, "connect")
    def _note_file(_connection, record):
        record.info["inode"] = path.stat().st_ino

    @event.listens_for(engine, "checkout")
    def _check_file(_connection, record, _proxy):
        if not path.exists() or path.stat().st_ino != record.info["inode"]:
            raise exc.DisconnectionError(f"{path} was removed or replaced")

    @event.listens_for(engine, "begin")
    def _begin(connection):
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def leadership(engine: sa.Engine) -> Iterator[Callable[[], None]]:
    """Be the only process that leads the queue of a database; InputError where another one does.

    Gives a function that makes sure of it: a PostgreSQL that was away has forgotten who leads.
    """
    if engine.dialect.name == "sqlite":
        with locks.writer(Path(engine.url.database)):
            yield lambda: None
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        def lead() -> None:
            with in_one_line(engine), connection.begin():  # on a new connection, if this one is lost
                if not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_LEADER))):
                    raise InputError(f"another process leads the queue of {engine.url}; end it, or "
                                     "name another database")

        try:
            lead()
            yield lead
        finally:
            connection.invalidate()  # its lock ends with it
