"""What figures have in common: panels, legends, labelled rows, groups of points, intervals, the line of equality."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib.report.style import SERIES

INK, PALE = "#444444", "#c9d7ea"
_MARKERS = "osD^vPX*<>"
_BAND = 0.10  # beside the line of equality


def axes(columns: int = 1, width: float = 8, height: float = 3.6, rows: int = 1, **options: Any):
    """Return a figure of ``rows`` times ``columns`` panels, width and height in inches, and the list of its axes."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, **options)
    return figure, list(panels.flat)


def panel(width: float = 8, height: float = 3.6):
    """Return a figure of one panel, width and height in inches, and its axis."""
    figure, (axis,) = axes(1, width, height)
    return figure, axis


def facets(table: pd.DataFrame, by: Any, width: float, height: float, columns: int = 0, **options: Any):
    """Return a figure with a panel for each group of a table, titled by it, and the panel, name and rows of each.

    ``width`` and ``height`` are a panel's, in inches.
    """
    parts = list(table.groupby(by, sort=False))
    columns = min(columns or len(parts), len(parts))
    rows = -(-len(parts) // columns)
    figure, panels = axes(columns, width * columns, height * rows, rows, **options)
    for axis in panels[len(parts):]:
        axis.set_visible(False)
    for axis, (name, _) in zip(panels, parts, strict=False):
        axis.set_title(name, fontsize=10)
    return figure, [(axis, name, part) for axis, (name, part) in zip(panels, parts, strict=False)]


def legend(figure, columns: int = 4, where: str = "lower", **options: Any) -> None:
    """Put one legend below (or above: ``upper``) all panels, an entry a label."""
    entries = {label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if entries:
        figure.legend(entries.values(), entries, loc=f"outside {where} center", ncols=columns, fontsize=9, **options)


def label_rows(axis, labels: Sequence[Any], size: float = 9) -> None:
    """Label rows 0, 1, ... of a panel, the first on top."""
    axis.set(yticks=range(len(labels)), ylim=(len(labels) - 0.4, -0.6))
    axis.set_yticklabels(labels, fontsize=size)
    axis.grid(axis="y", visible=False)


def groups(table: pd.DataFrame, by: Any, colours: Mapping[Any, str] | None = None):
    """Yield (name, rows, options of a plot: label, colour and marker) of each group of a table, in the table's order."""
    for number, (name, part) in enumerate(table.groupby(by, sort=False)):
        colour = colours[name] if colours else SERIES[number % len(SERIES)]
        yield name, part, {"label": name, "color": colour, "marker": _MARKERS[number % len(_MARKERS)]}


def points(axis, table: pd.DataFrame, x: str, y: str, by: Any, colours: Mapping[Any, str] | None = None,
           **options: Any) -> None:
    """Draw a point a row of a table, a colour and marker each group."""
    for _, part, style in groups(table, by, colours):
        axis.scatter(part[x], part[y], **(style | options))


def interval_rows(table: pd.DataFrame, label: str, xlabel: str, low: str = "low_ms", high: str = "high_ms",
                  span: str | None = None, **marks: Mapping[str, Any]):
    """Return a row each row of a table, logarithmic: a pale bar from low to high, named ``span``, and a mark a column."""
    figure, axis = panel(9, 1.3 + 0.34 * len(table))
    rows = range(len(table))
    axis.hlines(rows, table[low], table[high], color=PALE, linewidth=5, zorder=1, label=span)
    for column, options in marks.items():
        axis.scatter(table[column], rows, **({"zorder": 3} | options))
    axis.set(xscale="log", xlabel=xlabel)
    label_rows(axis, table[label], 11)
    legend(figure)
    return figure


def equality(axis, table: pd.DataFrame, measured: str, predicted: str, scale: str = "log") -> None:
    """Draw the line of equality over all values of two columns, and the band of 10 % around it."""
    values = table[[measured, predicted]].to_numpy(float)
    line = np.array([np.nanmin(values) * 0.9, np.nanmax(values) * 1.1])
    axis.plot(line, line, color="#555555", linewidth=1)
    axis.fill_between(line, line * (1 - _BAND), line * (1 + _BAND), color="#dddddd", alpha=0.6, linewidth=0)
    axis.set(xscale=scale, yscale=scale)
