"""The database of the dashboard, SQLite or PostgreSQL: transactions, reading and adding rows."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from lib import paths
from lib.dashboard import tables as db
from lib.errors import InputError, choices, one_line
from lib.schedule.run.database import open_engine
from lib.schedule.run.queue import Queue


class Database:
    """A database and the queue in it; threads share it. InputError for a URL that names none."""

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
        found = {(table, column["name"]) for (_, table), columns in existing.items()
                 for column in columns}
        missing = [str(column) for table in db.Base.metadata.sorted_tables
                   for column in table.columns if (table.name, column.name) not in found]
        if missing:
            raise InputError(f"{where} is of an older version, without {choices(missing)}; name a "
                             "new database in DASHBOARD_DB_URL, or move this one away")
        self.queue = Queue(self.engine)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Give a session that only reads; its rows can be used afterwards."""
        with Session(self.engine, expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Give a session that is committed at the end, or undone when the block raises.

        It holds SQLite's write lock from its begin on: never open a second one inside.
        """
        engine = self.engine.execution_options(writes=True)
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

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
                for name, parent in parents.items():
                    if row_id := values.get(name):
                        db.get(session, parent, row_id)
                session.add(row := table(**values))
        except exc.IntegrityError:
            name = values.get("name") or values.get("label")
            raise db.ConflictError(f"there is a {table.__name__.lower()} {name!r} already; "
                                   "choose another") from None
        return self.get(table, row.id)
