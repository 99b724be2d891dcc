"""One plot style, and how figures and tables are written and shown."""

import base64
import html
import os
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths

COLOURS = {"loader wait": "#7a7a7a", "copy to device": "#c9a227", "forward": "#2b6cb0", "backward": "#c05621",
           "optimizer": "#2f855a"}
WARM_UP = "#ece7da"
SERIES = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#d53f8c")


def use_style() -> None:
    """Set the one style of all figures; nothing is shown by itself."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    mpl.rcParams.update({
        "figure.figsize": (8, 3.6), "figure.dpi": 100, "savefig.bbox": "tight", "figure.constrained_layout.use": True,
        "font.size": 11, "axes.titlesize": 12, "axes.titlelocation": "left", "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.color": "#dddddd", "grid.linewidth": 0.6, "axes.axisbelow": True,
        "legend.frameon": False, "lines.linewidth": 1.6, "svg.fonttype": "path", "svg.hashsalt": "lib",
        "axes.prop_cycle": mpl.cycler(color=SERIES)})


def save(figure, notebook: str, name: str) -> Path:
    """Write ``figures/<notebook>/<name>.svg`` and ``.png``, close the figure, return the SVG's path."""
    target = paths.FIGURES / notebook / f"{name}.svg"
    write(figure, target.with_suffix(".png"), close=False)
    return write(figure, target)


def write(figure, path: Path, description: str = "", close: bool = True) -> Path:
    """Write a figure in one step as what the suffix says; an SVG carries ``description`` and no date."""
    import matplotlib.pyplot as plt

    options = {"metadata": {"Date": None, "Description": description}} if path.suffix == ".svg" else {"dpi": 200}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    figure.savefig(temporary, **options)
    temporary.replace(path)
    if close:
        plt.close(figure)
    return path


def as_html(path: Path, caption: str, description: str = "") -> str:
    """Return an SVG file as a self-contained HTML figure with its caption; ``description`` for those who do not see it."""
    data = base64.b64encode(path.read_bytes()).decode()
    return (f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{html.escape(description or caption)}" '
            f'style="max-width:100%"><figcaption>{html.escape(caption)}</figcaption></figure>')


def table_html(frame: pd.DataFrame, caption: str, digits: int = 2) -> str:
    """Return a DataFrame as an HTML table that scrolls on a narrow screen."""
    def number(value: float) -> str:
        return "–" if np.isnan(value) else f"{value:,.{digits}f}"

    body = frame.to_html(index=False, border=0, classes="table", float_format=number, na_rep="–", justify="left")
    return f'<div class="scroll">{body}</div><p class="caption">{html.escape(caption)}</p>'


def axes(columns: int = 1, width: float = 8, height: float = 3.6):
    """Return a figure of ``columns`` panels, width and height in inches, and its axes (1 x columns)."""
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(width, height), squeeze=False)
