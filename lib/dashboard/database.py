"""The database, SQLite or PostgreSQL: its transactions, and rows that are read and added."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from lib import files, locks, paths
from lib.dashboard.tables import Base, ConflictError, Table, get
from lib.errors import InputError, choices, one_line

# what a database that is locked, full or gone raises; it works again when it is back
UNAVAILABLE = (exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError,
               exc.DisconnectionError)
_SERVER_LOCK = 0x6461_7368  # the advisory lock of the one server


class Database:
    """The engine of a database; threads share it. InputError for a URL that names no database."""

    def __init__(self, url: str | None = None, wait_s: float = 5.0):
        """Open it and make missing tables; ``wait_s`` is the longest wait for a lock."""
        default = f"sqlite:///{paths.DATA / 'dashboard/dashboard.db'}"
        self.engine = _engine(url or os.environ.get("DASHBOARD_DB_URL") or default, wait_s)
        where = self.engine.url.render_as_string(hide_password=True)
        try:
            Base.metadata.create_all(self.engine)
            existing = sa.inspect(self.engine).get_multi_columns()
        except exc.DatabaseError as error:
            raise InputError(f"{where} cannot be used as a database: {one_line(error.orig)}") from None
        found = {(table, column["name"]) for (_, table), columns in existing.items() for column in columns}
        missing = [str(column) for table in Base.metadata.tables.values() for column in table.columns
                   if (table.name, column.name) not in found]
        if missing:
            raise InputError(f"{where} is of an older version, without {choices(missing)}; name a "
                             "new database in DASHBOARD_DB_URL, or move this one away")

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """Give a session that only reads; its rows can be used afterwards."""
        with Session(self.engine, expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """Give a session that is committed at the end, or undone when the block raises.

        It holds SQLite's write lock from its begin on: never open a second one inside.
        """
        engine = self.engine.execution_options(writes=True)
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

    def rows(self, table: Table, limit: int = 500, offset: int = 0, **values: Any) -> list[Any]:
        """Return a page of rows, the newest first; ``values`` are what columns must be, if not None."""
        wanted = {name: value for name, value in values.items() if value is not None}
        chosen = sa.select(table).filter_by(**wanted).order_by(table.created_at.desc(), table.id)
        with self.reading() as session:
            return list(session.scalars(chosen.limit(limit).offset(offset)))

    def get(self, table: Table, row_id: str) -> Any:
        """Return a row with its relations; NotFoundError."""
        with self.reading() as session:
            return get(session, table, row_id)

    def add(self, table: Table, values: dict[str, Any]) -> Any:
        """Add a row; NotFoundError for a missing parent, ConflictError where the name is taken."""
        try:
            with self.writing() as session:
                for key in table.__table__.foreign_keys:
                    if row_id := values.get(key.parent.name):
                        parents = [mapper.class_ for mapper in Base.registry.mappers
                                   if mapper.local_table is key.column.table]
                        get(session, parents[0], row_id)
                session.add(row := table(**values))
        except exc.IntegrityError:
            name = values.get("name") or values.get("label")
            raise ConflictError(f"there is a {table.__name__.lower()} {name!r} already; "
                                "choose another") from None
        return self.get(table, row.id)

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Be its only server, since two would run everything twice; InputError if there is another."""
        with contextlib.ExitStack() as lock:
            if self.engine.dialect.name == "sqlite":
                lock.enter_context(locks.writer(Path(self.engine.url.database)))
            else:
                engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
                connection = lock.enter_context(engine.connect())
                lock.callback(connection.invalidate)  # its lock ends with the connection
                if not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_SERVER_LOCK))):
                    where = engine.url.render_as_string(hide_password=True)
                    raise InputError(f"another dashboard serves {where}; end it, or name another "
                                     "database in DASHBOARD_DB_URL")
            yield


def _engine(url: str, wait_s: float) -> sa.Engine:
    try:
        parsed = make_url(url)
    except exc.ArgumentError:
        raise InputError("DASHBOARD_DB_URL is no URL of a database, such as "
                         "postgresql+psycopg://user@host/name") from None
    backend, pool = parsed.get_backend_name(), {"pool_size": 10, "pool_timeout": wait_s}
    if backend == "sqlite":
        return _sqlite(Path(parsed.database or ""), wait_s, pool)
    if backend != "postgresql":
        raise InputError(f"DASHBOARD_DB_URL is of {backend}; it takes sqlite or postgresql")
    options = {"connect_timeout": max(2, int(wait_s)), "options": f"-c lock_timeout={wait_s}s"}
    return sa.create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True,
                            connect_args=options, **pool)


def _sqlite(path: Path, wait_s: float, pool: dict[str, float]) -> sa.Engine:
    """Return the engine of a file that only its owner can read."""
    if path.name in ("", ":memory:"):
        raise InputError("DASHBOARD_DB_URL: SQLite takes a file, such as sqlite:////data/dashboard.db")
    files.folder(path.absolute().parent)
    with files.writing(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, files.PRIVATE))
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path.absolute())),
                              connect_args={"timeout": wait_s, "check_same_thread": False}, **pool)

    @event.listens_for(engine, "connect")
    def _prepare(connection, _record):
        connection.isolation_level = None  # transactions begin below
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection):
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine
