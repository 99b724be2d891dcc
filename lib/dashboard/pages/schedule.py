"""The schedule: what has run, what runs and what is planned, as a table and as bars, one lane per device."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

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
        return {"chart": chart(planned, past, names, db.now()), "past": past, "planned": planned, "names": names,
                "waiting": count}

    add_page(pages, "/web/schedule", "schedule.html", facts)


class Bar(NamedTuple):
    """A run on its device; ``left`` and ``width`` in percent of the chart."""

    lane: int
    left: float
    width: float
    status: str
    run_id: str
    title: str


def chart(planned: Sequence[Mapping[str, Any]], past: Sequence[db.Run], names: Mapping[str, str], now: datetime
          ) -> dict[str, Any]:
    """Return the bars of the last hour, as measured, and of a plan in seconds from now, as predicted.

    Beside the ``bars`` are the names of the ``lanes``, where ``now`` is (percent), and ``ticks`` (percent, seconds from now).
    """
    spans = [(row["device"], row["start_s"], row["end_s"] if row["end_s"] is not None else max(row["start_s"], 0.0),
              row["status"], row["job_id"], row["reason"]) for row in planned if row["start_s"] is not None]
    for run in past:
        start, end = ((at - now).total_seconds() if at else 0.0 for at in (run.started_at, run.finished_at))
        if run.finished_at and end > -_PAST_S:
            device = f"{run.agent.name}/{run.device}" if run.agent else run.device
            spans.append((device, max(start, -_PAST_S), end, run.state, run.id, run.placement))
    lanes = sorted({span[0] for span in spans})
    first = min([span[1] for span in spans], default=0.0)
    first, last = min(first, 0.0), max([*(span[2] for span in spans), 0.0, first + 1.0])

    def percent(at: float) -> float:
        return round(100 * (at - first) / (last - first), 3)

    bars = [Bar(lanes.index(device), percent(start), max(0.3, percent(end) - percent(start)), status, run_id,
                f"{names.get(run_id, run_id)}: {status}, {end - start:.1f} s on {device}. {reason}")
            for device, start, end, status, run_id, reason in spans]
    ticks = [first + (last - first) * number / _TICKS for number in range(_TICKS + 1)]
    return {"bars": bars, "lanes": lanes, "now": percent(0.0), "ticks": [(percent(at), at) for at in ticks]}
