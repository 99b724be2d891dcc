"""The base of every notebook: checked parameters, one style, saved figures, and its key numbers.

A notebook calls ``nb = notebook.setup("02_profile", globals())``, reads ``nb.p.workload`` and other checked parameters,
draws with seaborn and keeps the figure with ``nb.save("steps")``, records ``nb.record("w1.cpu.step", 20.7, "ms")``, and
ends with ``nb.finish()``.
"""

import io
import math
import re
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from IPython import get_ipython
from IPython.display import display

from lib import files, paths
from lib.config import notebooks
from lib.config.notebooks import KEYS_MIME
from lib.errors import InputError

NOT_MEASURED = "not measured"
PALETTE = ["#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#d53f8c"]
PHASES = {"loader wait": "#7a7a7a", "copy to device": "#c9a227", "forward": "#2b6cb0",
          "backward": "#c05621", "optimizer": "#2f855a"}
VERDICTS = {"stable": "#2f855a", "noisy": "#b7791f", "unusable": "#c05621"}


class Notebook:
    """One running notebook: its name, its checked parameters ``p``, and the key numbers so far."""

    def __init__(self, name: str, p: Any):
        self.name, self.p = name, p
        self.numbers: dict[str, dict[str, Any]] = {}

    def save(self, name: str, folder: str | None = None) -> None:
        """Keep the current figure as ``figures/NOTEBOOK/NAME.svg`` and ``.png``; Jupyter shows it as usual.

        ``folder``: another folder below ``figures/``; empty for ``figures/`` itself.
        """
        figure = plt.gcf()
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:120]
        for suffix, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 150})):
            content = io.BytesIO()
            figure.savefig(content, format=suffix, **options)
            files.replace(paths.FIGURES / (self.name if folder is None else folder) / f"{stem}.{suffix}", content.getvalue())

    def record(self, key: str, value: float | str, unit: str = "", tolerance: float | None = 0.001) -> None:
        """Record a key number, which the report shows and ``run --check`` compares with the committed value.

        Args:
            key: dotted id of lower-case words, such as ``network.infer.b8.mape``.
            value: the number, or a word such as a verdict. NaN is recorded as "not measured".
            unit: its unit; empty for a ratio or a count.
            tolerance: relative difference at which a replay still reproduces the number. None: never compared.

        A number that is recorded again replaces the earlier one. Raises ValueError for a malformed id.
        """
        if not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", key):
            raise ValueError(f"{key!r} is no id: lower-case words with dots between them")
        if not isinstance(value, str):
            value = float(value) if math.isfinite(value) else NOT_MEASURED
        if self.p.source != "replay" or value == NOT_MEASURED:
            tolerance = None
        self.numbers[key] = {"value": value, "unit": unit, "tolerance": tolerance}

    def finish(self) -> None:
        """Show the key numbers as a table, and as data that ``lib.report`` reads."""
        rows = [{"key number": key, "value": _short(number["value"]), "unit": number["unit"]}
                for key, number in self.numbers.items()]
        table = pd.DataFrame(rows, columns=["key number", "value", "unit"]).set_index("key number")
        display({KEYS_MIME: self.numbers, "text/html": table.to_html(), "text/plain": table.to_string()}, raw=True)


def setup(name: str, namespace: Mapping[str, Any]) -> Notebook:
    """Check the parameters in ``namespace`` (the notebook's ``globals()``) and set the style of figures and tables.

    From here on an InputError shows as its one line. Raises InputError for a wrong or unknown parameter.
    """
    sns.set_theme(style="whitegrid", palette=PALETTE, rc={
        "figure.figsize": (8, 3.4), "axes.titlelocation": "left", "axes.spines.top": False,
        "axes.spines.right": False, "savefig.bbox": "tight", "svg.hashsalt": "lib"})
    pd.set_option("display.precision", 3, "display.max_columns", 40)
    shell = get_ipython()
    if shell is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg")
        shell.set_custom_exc((InputError,), _show_one_line)
    return Notebook(name, notebooks.check(name, namespace))


def _short(value: float | str) -> str:
    """Write whole numbers in full and others with four digits."""
    return value if isinstance(value, str) else f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def _show_one_line(shell: Any, kind: type, error: InputError, *_: Any, **__: Any) -> list[str]:
    """Show an error as one line without its traceback; the cell still fails."""
    lines = [f"{kind.__name__}: {error}"]
    shell._showtraceback(kind, error, lines)
    return lines
