"""Gantt charts of schedules, drawn with matplotlib."""

import re
from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

UNFINISHED = {"retried": "#b22222", "failed": "#b22222", "moved": "#c9a227", "lost": "#7a7a7a",
              "cancelled": "#7a7a7a"}
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#d53f8c",
           "#319795", "#744210", "#4a5568", "#97266d", "#276749", "#2c5282")
MAX_DEVICES = 24


def gantt(schedules: Mapping[str, pd.DataFrame], job_classes: Mapping[str, str] | None = None,
          bound_s: float | None = None, class_colours: Mapping[str, str] | None = None) -> Figure:
    """Draw one panel per schedule on a common time axis, with one row per device.

    Args:
        schedules: title to table ``schedule``. Attempts that did not end well are hatched.
        job_classes: job id to job class, which sets the colour.
        bound_s: lower bound of the makespan in s, drawn as a dashed line.
        class_colours: job class to colour. Classes without one are coloured in order of their first start.
    """
    rows = pd.concat(list(schedules.values()))
    every = sorted(set(rows["device"]), key=_natural)
    devices = every[:MAX_DEVICES]
    classes = rows["job_id"].map(job_classes or {})
    names = classes.dropna().unique().tolist()
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)} | dict(class_colours or {})
    row_height = min(0.3, 0.12 + 0.36 / max(1, len(devices)))
    size = (8.5, 0.9 + len(schedules) * (0.5 + row_height * max(1, len(devices))))
    figure, panels = plt.subplots(len(schedules), 1, figsize=size, sharex=True, squeeze=False,
                                  layout="constrained")
    for axis, (title, schedule) in zip(panels.flat, schedules.items(), strict=True):
        _draw(axis, schedule, devices, schedule["job_id"].map(job_classes or {}).map(colours))
        if bound_s is not None:
            axis.axvline(bound_s, color="#333333", linestyle="--", linewidth=1)
        shown = f" ({len(devices)} of {len(every)} devices)" if len(every) > len(devices) else ""
        axis.set_title(f"{title}{shown}", fontsize=10)
    axis.set_xlabel("time, s" if bound_s is None else "time, s (dashed line: lower bound)")
    marks = [Patch(color=colours[name], label=name.replace("$", r"\$")) for name in names[:12]]
    marks += [Patch(facecolor=UNFINISHED[status], hatch="////", edgecolor="white", label=status)
              for status in rows["status"].unique() if status in UNFINISHED]
    if marks:
        figure.legend(handles=marks, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    return figure


def _draw(axis: plt.Axes, schedule: pd.DataFrame, devices: list[str], colours: pd.Series) -> None:
    """Draw the attempts of one schedule: all finished ones as one group of bars, the others hatched."""
    colours = schedule["status"].map(UNFINISHED).fillna(colours).fillna(COLOURS[0])
    shown = schedule["device"].isin(devices)
    unfinished = schedule["status"].isin(list(UNFINISHED))
    for part, hatch in ((shown & ~unfinished, None), (shown & unfinished, "////")):
        rows = schedule[part]
        axis.barh(rows["device"].map(devices.index), rows["end_s"] - rows["start_s"], left=rows["start_s"],
                  color=colours[part].tolist(), height=0.8, linewidth=0.4, edgecolor="white", hatch=hatch)
    axis.set_yticks(range(len(devices)), [name.replace("$", r"\$") for name in devices],
                    fontsize=6.5 if len(devices) > 8 else 9)
    axis.set_ylim(len(devices) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts cpu[10] after cpu[9]."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
