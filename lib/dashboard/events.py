"""Live updates by server-sent events: a page that reconnects names the last id it saw, and gets everything after it."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, Query
from sqlalchemy import Row, func, select
from sse_starlette.sse import EventSourceResponse, ServerSentEvent

from lib.dashboard import database as db
from lib.dashboard.database_engine import Database
from lib.dashboard.fields import RowId

_MOST = 1000  # lines or values in one message
_PAUSE_S, _TOPIC_PAUSE_S, _RETRY_MS = 0.3, 1.0, 1000
_SHOWN = ("state", "reason", "placement", "attempt", "epoch", "epochs", "step", "best_value", "predicted_s")
TOPICS = {"runs": db.Run, "agents": db.Agent, "configs": db.TrainConfig, "projects": db.Project}


_CURSOR = {"pattern": r"^([0-9]{1,18}\.[0-9]{1,18})?$"}  # the ids of the page's last log line and last value


def read(database: Database, run_id: str, log: int, metric: int) -> tuple[dict[str, Any], list[list], list[list], int, int]:
    """Return a run's state, its lines and values after two ids, and the ids of the last of each; NotFoundError.

    A line is [attempt, n, line], a value [step, epoch, key, value, split]. The state is read first, so that the end of a run is
    never seen without its last lines.
    """
    with database.reading() as session:
        run = db.get(session, db.Run, run_id)
    place = f"{run.agent.name if run.agent else ''} {run.device}".strip()
    state = {name: getattr(run, name) for name in _SHOWN} | {
        "place": place, "started_at": run.started_at and run.started_at.timestamp(),
        "finished_at": run.finished_at and run.finished_at.timestamp()}
    lines = database.rows_after(db.RunLog, run_id, log, _MOST)
    values = database.rows_after(db.RunMetric, run_id, metric, _MOST)
    return (state, [[row.attempt, row.n, row.line] for row in lines],
            [[row.step, row.epoch, row.key, row.value, row.split] for row in values],
            lines[-1].id if lines else log, values[-1].id if values else metric)


async def _follow(database: Database, run_id: str, log: int, metric: int) -> AsyncIterator[ServerSentEvent]:
    """Yield a run's state, lines and values until it has ended and all are sent; then the event ``end``."""
    shown = None
    while True:
        try:
            state, lines, values, next_log, next_metric = await to_thread.run_sync(read, database, run_id, log, metric)
        except db.UNAVAILABLE:
            await asyncio.sleep(_TOPIC_PAUSE_S)  # it comes back; nothing is lost
            continue
        if lines:
            yield ServerSentEvent(json.dumps(lines), event="log", id=f"{next_log}.{metric}")  # the values are still to come
        if values:
            yield ServerSentEvent(json.dumps(values), event="metric", id=f"{next_log}.{next_metric}")
        log, metric = next_log, next_metric
        if state != shown:
            shown = state
            yield ServerSentEvent(json.dumps(state | {"now": time.time()}), event="state", retry=_RETRY_MS)
        if state["state"] in db.ENDS and not lines and not values:
            yield ServerSentEvent("{}", event="end")
            return
        if max(len(lines), len(values)) < _MOST:
            await asyncio.sleep(_PAUSE_S)


def add_stream(routes: APIRouter, path: str, database: Database) -> None:
    """Add the stream of a run, which goes on after the last id that the page saw; NotFoundError."""
    @routes.get(path, response_class=EventSourceResponse, tags=["runs"])
    def run_events(run_id: RowId, after: Annotated[str, Query(**_CURSOR)] = "0.0",
                   last_event_id: Annotated[str | None, Header(**_CURSOR)] = None):
        with database.reading() as session:
            db.get(session, db.Run, run_id)
        return EventSourceResponse(_follow(database, run_id, *map(int, (last_event_id or after or "0.0").split("."))))


def _mark(database: Database, topic: str) -> Row:
    """Return what changes with the table."""
    table = TOPICS[topic]
    with database.reading() as session:
        return session.execute(select(func.max(table.updated_at), func.count(table.id))).one()


async def changes(database: Database, topic: str) -> AsyncIterator[ServerSentEvent]:
    """Yield an event when a table has changed, at most once a second, and one at first: it may have changed before."""
    seen = None
    while True:
        with contextlib.suppress(*db.UNAVAILABLE):
            mark = await to_thread.run_sync(_mark, database, topic)
            if mark != seen:
                seen = mark
                yield ServerSentEvent(f"{time.time():.3f}", event="changed", retry=_RETRY_MS)
        await asyncio.sleep(_TOPIC_PAUSE_S)
