"""One plot style, how figures and tables are saved and shown, and the figures of the notebooks."""

import base64
import html
import os
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths
from lib.missing import needs

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
    """Write ``figures/<notebook>/<name>.svg`` and ``.png`` in one step each, close the figure, return the SVG's path."""
    import matplotlib.pyplot as plt

    folder = paths.FIGURES / notebook
    folder.mkdir(parents=True, exist_ok=True)
    for kind, options in (("png", {"dpi": 200}), ("svg", {"metadata": {"Date": None}})):
        temporary = folder / f".{name}.{os.getpid()}.{kind}"
        figure.savefig(temporary, format=kind, **options)
        temporary.replace(folder / f"{name}.{kind}")
    plt.close(figure)
    return folder / f"{name}.svg"


def as_html(path: Path, caption: str) -> str:
    """Return an SVG file as a self-contained HTML figure with its caption."""
    data = base64.b64encode(path.read_bytes()).decode()
    text = html.escape(caption)
    return (f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{text}" style="max-width:100%">'
            f"<figcaption>{text}</figcaption></figure>")


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
