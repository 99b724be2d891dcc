"""The schedule as bars: what has run, what runs, and what the scheduler plans, a lane a device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_TICKS, _PAST_S = 4, 3600.0


@dataclass(frozen=True)
class Bar:
    """A run on its device; ``left`` and ``width`` in percent of the chart."""

    lane: int
    left: float
    width: float
    status: str
    run_id: str
    label: str
    title: str


@dataclass(frozen=True)
class Chart:
    """Bars, the names of the lanes, where now is (percent), and ticks (percent, seconds from now)."""

    bars: list[Bar]
    lanes: list[str]
    now: float
    ticks: list[tuple[float, float]]


def chart(planned: Sequence[Mapping[str, Any]], past: Sequence[Any], names: Mapping[str, str], now: datetime) -> Chart:
    """Return what has run in the last hour, as measured, and a plan in seconds from now, as predicted."""
    spans = [(row["device"], row["start_s"], row["end_s"] if row["end_s"] is not None else max(row["start_s"], 0.0),
              row["status"], row["job_id"], row["reason"]) for row in planned if row["start_s"] is not None]
    for run in past:
        start, end = ((at - now).total_seconds() if at else 0.0 for at in (run.started_at, run.finished_at))
        if run.finished_at and end > -_PAST_S:
            place = f"{run.agent.name}/{run.device}" if run.agent else run.device
            spans.append((place, max(start, -_PAST_S), end, run.state, run.id, run.placement))
    lanes = sorted({span[0] for span in spans})
    first, last = min([span[1] for span in spans], default=0.0), max([span[2] for span in spans], default=0.0)
    first, last = min(first, 0.0), max(last, 0.0, first + 1.0)

    def percent(at: float) -> float:
        return round(100 * (at - first) / (last - first), 3)

    bars = [Bar(lanes.index(place), percent(start), max(0.3, percent(end) - percent(start)), status, run_id,
                names.get(run_id, run_id), f"{names.get(run_id, run_id)}: {status}, {end - start:.1f} s on {place}. {reason}")
            for place, start, end, status, run_id, reason in spans]
    ticks = [first + (last - first) * number / _TICKS for number in range(_TICKS + 1)]
    return Chart(bars, lanes, percent(0.0), [(percent(at), at) for at in ticks])
