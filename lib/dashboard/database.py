"""The database of the dashboard, SQLite or PostgreSQL: transactions, reading and adding rows."""

import os
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import sessionmaker

from lib import paths
from lib.dashboard import tables as db
from lib.errors import InputError, choices, one_line
from lib.schedule.run.database import open_engine
from lib.schedule.run.queue import Queue


class Database:
    """A database and the queue in it; threads share it. InputError for a URL that names none.

    ``reading()`` opens a session; what it has read can be used afterwards. ``writing()`` opens one
    that is committed at the end of its block, or undone where that raises; it holds SQLite's write
    lock from its begin on: never open a second one inside.
    """

    def __init__(self, url: str | None = None, wait_s: float = 5.0):
        """Open it and make missing tables; ``wait_s`` is the longest wait for a lock."""
        url = url or os.environ.get("DASHBOARD_DB_URL")
        self.engine = open_engine(url or paths.DATA / "dashboard/dashboard.db", wait_s)
        where = str(self.engine.url).removeprefix("sqlite:///")
        try:
            db.Base.metadata.create_all(self.engine)
            existing = sa.inspect(self.engine).get_multi_columns()
        except exc.DatabaseError as error:
            reason = one_line(error.orig)
            raise InputError(f"{where} cannot be used as a database: {reason}") from None
        tables = db.Base.metadata.tables
        wanted = {str(column) for table in tables.values() for column in table.columns}
        found = {f"{table}.{column['name']}" for (_, table), columns in existing.items()
                 if table in tables for column in columns}
        if wanted != found:
            raise InputError(f"{where} is of an older version, with other columns "
                             f"({choices(sorted(wanted ^ found))}); name a new database in "
                             "DASHBOARD_DB_URL, or move this one away")
        self.queue = Queue(self.engine)
        self.reading = sessionmaker(self.engine, expire_on_commit=False)
        self.writing = sessionmaker(self.engine.execution_options(writes=True),
                                    expire_on_commit=False).begin

    def rows(self, table: type[db.TableRow], *conditions: Any, limit: int = 500, offset: int = 0,
             **values: Any) -> list[Any]:
        """Return rows, the newest first; ``values`` are what columns must be, if not None."""
        wanted = {name: value for name, value in values.items() if value is not None}
        chosen = sa.select(table).where(*conditions).filter_by(**wanted)
        chosen = chosen.order_by(table.created_at.desc(), table.id).limit(limit).offset(offset)
        with self.reading() as session:
            return list(session.scalars(chosen))

    def get(self, table: type[db.TableRow], row_id: str) -> Any:
        """Return a row with its relations; NotFoundError."""
        with self.reading() as session:
            return db.get(session, table, row_id)

    def add(self, table: type[db.TableRow], values: dict[str, Any]) -> Any:
        """Add a row; NotFoundError for a missing parent, ConflictError where the name is taken."""
        parents = {"project_id": db.Project, "agent_id": db.Agent}
        try:
            with self.writing() as session:
                for name in parents.keys() & values:
                    db.get(session, parents[name], values[name])
                session.add(row := table(**values))
        except exc.IntegrityError:
            name = values.get("name") or values.get("label")
            raise db.ConflictError(f"there is a {table.__name__.lower()} {name!r} already; "
                                   "choose another") from None
        return self.get(table, row.id)
