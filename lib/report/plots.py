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


def intervals(axis, low: pd.Series, high: pd.Series, label: str | None = None) -> None:
    """Draw a pale bar from low to high in each row of a panel."""
    axis.hlines(range(len(low)), low, high, color=PALE, linewidth=5, zorder=1, label=label)


def equality(axis, values: np.ndarray, scale: str = "log") -> None:
    """Draw the line of equality over all ``values``, and the band of 10 % around it."""
    line = np.array([np.nanmin(values) * 0.9, np.nanmax(values) * 1.1])
    axis.plot(line, line, color="#555555", linewidth=1)
    axis.fill_between(line, line * (1 - _BAND), line * (1 + _BAND), color="#dddddd", alpha=0.6, linewidth=0)
    axis.set(xscale=scale, yscale=scale)
