"""Gantt charts: what ran where and when."""

import re
from collections.abc import Mapping

import pandas as pd

from lib.missing import MissingError, needs
from lib.report.plots import axes, label_rows
from lib.report.style import SERIES

_WRONG = {"retried": "#b22222", "failed": "#b22222", "moved": "#c9a227", "lost": "#7a7a7a"}
_MOST_DEVICES, _MOST_CLASSES = 24, 12
COLOURS = (*SERIES, "#319795", "#744210", "#4a5568", "#97266d", "#276749", "#2c5282")


@needs("attempts")
def gantt(schedules: Mapping[str, pd.DataFrame], job_classes: Mapping[str, str] | None = None, bound_s: float | None = None):
    """Return what ran where and when, a panel a named schedule on one time axis.

    ``schedules`` are tables ``schedule``; ``job_classes`` gives each job a name to colour by; ``bound_s`` is drawn as a line.
    Attempts that did not end well are hatched.
    """
    from matplotlib.patches import Patch

    every = pd.concat(list(schedules.values()))
    if every.empty:
        raise MissingError("attempts")
    devices = sorted(set(every["device"]), key=_natural)[:_MOST_DEVICES]
    job_classes = job_classes or {}
    names = every["job_id"].map(job_classes).dropna().unique().tolist()
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    height = min(0.3, 0.16 + 0.3 / len(devices))  # many devices: thinner bars
    figure, panels = axes(1, 8.5, 0.7 + len(schedules) * (0.5 + height * len(devices)), len(schedules), sharex=True)
    for axis, (title, schedule) in zip(panels, schedules.items(), strict=True):
        for row in schedule.query("device in @devices").itertuples():
            colour = _WRONG.get(row.status) or colours.get(job_classes.get(row.job_id), COLOURS[0])
            axis.barh(devices.index(row.device), row.end_s - row.start_s, left=row.start_s, height=0.8, linewidth=0.4,
                      edgecolor="white", color=colour, hatch="////" if row.status in _WRONG else None)
        if bound_s is not None:
            axis.axvline(bound_s, color="#333333", linestyle="--", linewidth=1)
        label_rows(axis, devices, 7 if len(devices) > 8 else 9)
        axis.set_title(title, fontsize=10)
    panels[-1].set_xlabel("seconds" + ("" if bound_s is None else " (dashed: lower bound)"))
    marks = [Patch(color=colours[name], label=name) for name in names[:_MOST_CLASSES]]
    marks += [Patch(facecolor=_WRONG[status], hatch="////", edgecolor="white", label=status)
              for status in dict.fromkeys(every["status"]) if status in _WRONG]
    if marks:
        figure.legend(handles=marks, loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts cpu[10] after cpu[9]."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
