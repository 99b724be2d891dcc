"""One plot style, and how figures and tables are written and shown."""

import base64
import html
import io
import re
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from lib import files, paths

COLOURS = {"loader wait": "#7a7a7a", "copy to device": "#c9a227", "forward": "#2b6cb0", "backward": "#c05621",
           "optimizer": "#2f855a"}
WARM_UP = "#ece7da"
_LONGEST = 120  # characters of a name
_FEW_DECADES = 1.5
_NO_NAME, _DOLLAR = re.compile(r"[^A-Za-z0-9._-]+"), re.compile(r"(?<!\\)\$")
SERIES = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#d53f8c")


def use_style() -> None:
    """Set the one style of all figures. A notebook keeps its backend; outside of one, no window opens."""
    import matplotlib as mpl
    from IPython import get_ipython

    if get_ipython() is None:
        mpl.use("agg")
    mpl.rcParams.update({
        "figure.figsize": (8, 3.6), "figure.dpi": 100, "savefig.bbox": "tight", "figure.constrained_layout.use": True,
        "font.size": 11, "axes.titlesize": 12, "axes.titlelocation": "left", "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.color": "#dddddd", "grid.linewidth": 0.6, "axes.axisbelow": True,
        "legend.frameon": False, "lines.linewidth": 1.6, "svg.fonttype": "path", "svg.hashsalt": "lib",
        "axes.prop_cycle": mpl.cycler(color=SERIES)})


def save(figure, notebook: str, name: str) -> bytes:
    """Write ``figures/<notebook>/<name>.svg`` and ``.png``, close the figure, return the SVG; ``name`` may be any text."""
    folder, name = paths.FIGURES / notebook, _NO_NAME.sub("-", name)[:_LONGEST]
    files.replace(folder / f"{name}.png", png(figure))
    drawn = svg(figure)
    files.replace(folder / f"{name}.svg", drawn)
    return drawn


def png(figure) -> bytes:
    """Return a figure as PNG."""
    return _encoded(figure, "png", dpi=200)


def svg(figure, description: str = "") -> bytes:
    """Return a figure as SVG, which carries ``description`` and no date, and close it."""
    import matplotlib.pyplot as plt

    drawn = _encoded(figure, "svg", metadata={"Date": None, "Description": _printable(description)})
    plt.close(figure)
    return drawn


def _encoded(figure, kind: str, **options) -> bytes:
    """Return a figure as a file of this kind; names in it show as they are written, shortened where they are endless."""
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    sides = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    _label_short_log_axes(sides)
    for text in figure.findobj(Text):
        text.set_text(_shown(text.get_text()))
    for axis in sides:
        formatter = axis.get_major_formatter()
        if not isinstance(formatter, LogFormatter | ScalarFormatter):  # those write numbers, the logarithmic one as formulas
            axis.set_major_formatter(lambda value, place, label=formatter: _shown(label(value, place)))
    content = io.BytesIO()
    figure.savefig(content, format=kind, **options)
    return content.getvalue()


def _label_short_log_axes(sides: Iterable) -> None:
    """Label logarithmic axes of few decades at 1, 2 and 5 with plain numbers: matplotlib's formulas for each step overlap."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in sides:
        if axis.get_scale() != "log" or not isinstance(axis.get_major_locator(), LogLocator):  # a figure's own labels stay
            continue
        low, high = sorted(axis.get_view_interval())
        if 0 < low < high < low * 10 ** _FEW_DECADES:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(lambda value, _: f"{value:,g}")
            axis.set_minor_formatter(NullFormatter())


def _shown(text: str) -> str:
    """Return text for a figure, where matplotlib would read a formula between two dollars."""
    whole = _printable(text)
    return _DOLLAR.sub(r"\$", whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST - 1]}…")


def _printable(text: str) -> str:
    """Return text without what breaks an SVG: control characters, line breaks apart."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def as_html(svg: bytes, caption: str, description: str = "") -> str:
    """Return an SVG as a self-contained HTML figure with its caption; ``description`` for those who do not see it."""
    data = base64.b64encode(svg).decode()
    return (f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{html.escape(description or caption)}" '
            f'style="max-width:100%"><figcaption>{html.escape(caption)}</figcaption></figure>')


def renamed(frame: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return some columns of a table, in their order, under the names that people read."""
    return frame[list(names)].rename(columns=names)


def table_html(frame: pd.DataFrame, caption: str, digits: int = 2) -> str:
    """Return a DataFrame as an HTML table that scrolls on a narrow screen."""
    def number(value: float) -> str:
        return "–" if np.isnan(value) else f"{value:,.{digits}f}"

    body = frame.to_html(index=False, border=0, classes="table", float_format=number, na_rep="–", justify="left")
    return f'<div class="scroll">{body}</div><p class="caption">{html.escape(caption)}</p>'
