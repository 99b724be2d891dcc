"""The connection to the database, SQLite or PostgreSQL: its transactions, and the lock of its only server.

SQLite gets WAL, a busy timeout and foreign keys; missing tables are made, and missing columns that may be empty are added.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from lib import files, locks, paths
from lib.dashboard.database import Base, Output
from lib.errors import InputError, choices, one_line

_SERVER = 0x6461_7368  # the advisory lock of the one server


class Database:
    """The engine of a database; threads share it. InputError for a URL that names no database."""

    def __init__(self, url: str | None = None, wait_s: float = 5.0):
        """Open it; ``wait_s`` is the longest wait for a lock."""
        url = url or os.environ.get("DASHBOARD_DB_URL") or f"sqlite:///{paths.DATA / 'dashboard/dashboard.db'}"
        self.engine = _engine(url, wait_s)
        try:
            Base.metadata.create_all(self.engine)
            missing = self._missing()
            with self.engine.begin() as connection:
                for column in missing:
                    if column.nullable:
                        definition = sa.schema.CreateColumn(column).compile(connection)
                        connection.execute(sa.DDL(f"ALTER TABLE {column.table.name} ADD COLUMN {definition}"))
        except exc.DatabaseError as error:
            where = self.engine.url.render_as_string(hide_password=True)
            raise InputError(f"{where} cannot be used as a database: {one_line(error.orig)}") from None
        if old := [str(column) for column in missing if not column.nullable]:
            raise InputError(f"the dashboard's database is of an older version, without {choices(old)}; name a new one in "
                             "DASHBOARD_DB_URL, or move it away")

    def _missing(self) -> list[sa.Column]:
        """Return the columns that tables of an older version lack."""
        existing = sa.inspect(self.engine).get_multi_columns()
        names = {table: {column["name"] for column in columns} for (_, table), columns in existing.items()}
        return [column for table in Base.metadata.tables.values() for column in table.columns
                if column.name not in names[table.name]]

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """Give a session that only reads; its rows can be used afterwards."""
        with Session(self.engine, expire_on_commit=False, autoflush=False) as session:
            yield session

    def rows_after(self, table: type[Output], run_id: str, after: int, limit: int) -> list[sa.Row]:
        """Return the columns of a run's lines or values that follow the one of id ``after``, in their order."""
        rows = sa.select(*table.__table__.c).where(table.run_id == run_id, table.id > after).order_by(table.id).limit(limit)
        with self.reading() as session:
            return list(session.execute(rows))

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """Give a session that is committed at the end, or undone when the block raises.

        It holds SQLite's write lock from its begin on: never open a second one inside.
        """
        with Session(self.engine.execution_options(writes=True), expire_on_commit=False) as session, session.begin():
            yield session


def _engine(url: str, wait_s: float) -> sa.Engine:
    try:
        parsed = make_url(url)
    except exc.ArgumentError:
        raise InputError("DASHBOARD_DB_URL is no URL of a database, such as postgresql+psycopg://user@host/name") from None
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(Path(parsed.database or ""), wait_s)
    if parsed.get_backend_name() != "postgresql":
        raise InputError(f"DASHBOARD_DB_URL is of {parsed.get_backend_name()}; it takes sqlite or postgresql")
    return sa.create_engine(parsed.set(drivername="postgresql+psycopg"), pool_size=10, max_overflow=10, pool_timeout=wait_s,
                         pool_pre_ping=True, connect_args={"connect_timeout": max(2, int(wait_s)),
                                                           "options": f"-c lock_timeout={1000 * wait_s:.0f}"})


def _sqlite(path: Path, wait_s: float) -> sa.Engine:
    """Return the engine of a file that only its owner can read; it is made here, but never again once removed."""
    if path.name in ("", ":memory:"):
        raise InputError("DASHBOARD_DB_URL: SQLite takes a file, such as sqlite:////data/dashboard.db")
    path = path.absolute()
    files.folder(path.parent)
    with files.writing(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, files.PRIVATE))
    url = sa.URL.create("sqlite", database=f"file:{quote(str(path))}", query={"mode": "rw", "uri": "true"})
    engine = sa.create_engine(url, pool_size=10, max_overflow=10, pool_timeout=wait_s,
                              connect_args={"timeout": wait_s, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _prepare(connection, record):
        connection.isolation_level = None  # transactions begin below
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")
        record.info["inode"] = path.stat().st_ino

    @event.listens_for(engine, "checkout")
    def _same_file(_connection, record, _proxy):
        if not path.exists() or record.info["inode"] != path.stat().st_ino:
            raise exc.DisconnectionError(f"{path} is gone or another file")

    @event.listens_for(engine, "begin")
    def _begin(connection):
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextlib.contextmanager
def served(database: Database) -> Iterator[None]:
    """Be the only server of a database, since two would run everything twice; InputError where another one serves it."""
    engine = database.engine
    with contextlib.ExitStack() as lock:
        if engine.dialect.name == "postgresql":
            connection = lock.enter_context(engine.connect().execution_options(isolation_level="AUTOCOMMIT"))
            if not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_SERVER))):
                where = engine.url.render_as_string(hide_password=True)
                raise InputError(f"another dashboard serves {where}; end it, or name another database in DASHBOARD_DB_URL")
            lock.callback(connection.invalidate)  # its lock ends with it, also where the server is gone
        else:
            lock.enter_context(locks.writer(Path(unquote(engine.url.database.removeprefix("file:")))))
        yield
