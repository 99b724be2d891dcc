"""The schedule: what has run, what runs and what is planned, as a table and as bars, one lane per device."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from sqlalchemy import func, select

from lib.dashboard import database as db
from lib.dashboard.operations import Operations
from lib.dashboard.pages.rendering import add_page

_TICKS, _PAST_S = 4, 3600.0


def add_schedule(pages: APIRouter, operations: Operations) -> None:
    """Add the page of the schedule."""
    def facts() -> dict[str, Any]:
        planned = operations.schedule()
        past = operations.page(db.Run, 100, 0, db.Run.started_at.is_not(None))
        waiting = operations.page(db.Run, 500, state=db.QUEUED)
        with operations.database.reading() as session:
            count = session.scalar(select(func.count()).select_from(db.Run).where(db.Run.state == db.QUEUED))
        names = {run.id: run.name for run in (*past, *waiting)}
        return {"chart": chart(planned, past, db.now()), "past": past, "planned": planned, "names": names,
                "waiting": count}

    add_page(pages, "/web/schedule", "schedule.html", facts)


def chart(planned: Sequence[Mapping[str, Any]], past: Sequence[db.Run], now: datetime) -> dict[str, Any]:
    """Return the bars of the last hour, as measured, and of a plan in seconds from now, as predicted.

    A bar is a row of a plan with its number of a lane, its ``left`` end and its ``width``, in percent of the chart. Beside the
    ``bars`` are the names of the ``lanes``, where ``now`` is (percent), and ``ticks`` (percent, seconds from now).
    """
    def since(at: datetime) -> float:
        return (at - now).total_seconds()

    bars = [row | {"end_s": max(row["start_s"], 0.0) if row["end_s"] is None else row["end_s"]}
            for row in planned if row["start_s"] is not None]
    bars += [{"job_id": run.id, "device": f"{run.agent.name}/{run.device}" if run.agent else run.device, "status": run.state,
              "start_s": max(since(run.started_at), -_PAST_S), "end_s": since(run.finished_at), "reason": run.placement}
             for run in past if run.finished_at and since(run.finished_at) > -_PAST_S]
    lanes = sorted({bar["device"] for bar in bars})
    first = min([0.0, *(bar["start_s"] for bar in bars)])
    last = max([0.0, first + 1.0, *(bar["end_s"] for bar in bars)])

    def percent(at_s: float) -> float:
        return round(100 * (at_s - first) / (last - first), 3)

    for bar in bars:
        left = percent(bar["start_s"])
        bar.update(lane=lanes.index(bar["device"]), left=left, width=max(0.3, percent(bar["end_s"]) - left))
    ticks = [first + (last - first) * number / _TICKS for number in range(_TICKS + 1)]
    return {"bars": bars, "lanes": lanes, "now": percent(0.0), "ticks": [(percent(at_s), at_s) for at_s in ticks]}
