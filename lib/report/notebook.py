"""What every notebook stands on: checked parameters, banner, figures, tables, and the key numbers it records."""

import html
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lib.config import notebooks
from lib.errors import InputError, choices
from lib.missing import Missing
from lib.report import markup, style
from lib.report.sentences import KeyNumbers, Numbers, Sentence, write

UNKNOWN = "not measured"
BANNER = '<p class="banner '
KEY_NUMBERS = "Key numbers of this notebook"
KEYS_MIME = "application/vnd.lib.keys+json"


def setup(name: str, namespace: Mapping[str, Any]) -> "Notebook":
    """Check the parameters that the cell before left in ``namespace`` and return the notebook's helper.

    From here on a wrong input shows as one line. Raises InputError for a wrong parameter.
    """
    _one_line_errors()
    style.use_style()
    return Notebook(name, notebooks.check(name, namespace))


def _one_line_errors() -> None:
    """Make IPython show an InputError as its one line, without a traceback; the cell still fails."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return

    def show(self, kind, value, _trace, tb_offset=None):
        lines = [f"{kind.__name__}: {value}"]
        self._showtraceback(kind, value, lines)
        return lines

    shell.set_custom_exc((InputError,), show)


class _Said(str):
    """Sentences that were shown: as the last value of a cell they are not shown again."""

    __slots__ = ()

    def _ipython_display_(self) -> None:
        """Show nothing."""


def _show(text: str) -> None:
    """Show HTML."""
    from IPython.display import HTML, display

    display(HTML(text))


class Notebook:
    """The helper of one notebook: ``p`` are its checked parameters."""

    def __init__(self, name: str, p: Any):
        self.name, self.p = name, p
        self._keys: dict[str, dict[str, Any]] = {}

    def say(self, sentences: Sentence | Sequence[Sentence], *numbers: Numbers | Missing, **rows: Any) -> str:
        """Show sentences as Markdown and return them; HTML and links in them show as they are written.

        With ``numbers`` they are templates (see ``sentences.write``). Where no sentence has its numbers, one line says so.
        """
        from IPython.display import Markdown, display

        if numbers:
            missing = [given for given in numbers if isinstance(given, Missing)]
            given = {name: value for part in numbers if not isinstance(part, Missing) for name, value in part.items()}
            sentences = write(sentences, defaultdict(str, given) if missing else given, **rows) or next(
                iter(missing), "Nothing to show: nothing usable was measured.")
        display(Markdown(markup.words(sentences)))
        return _Said(sentences)

    def banner(self, note: str) -> None:
        """Show where the numbers below come from; a note of synthetic data or of a replay stands out."""
        kind = next((word for word in ("SYNTHETIC", "REPLAY") if word in note), "")
        _show(f'{BANNER}{kind.lower()}" style="border-left:4px solid #b7791f;padding:.4em .8em;'
              f'background:#fdf6e3;color:#333">{html.escape(note)}</p>')

    def figure(self, figure, name: str, caption: str, hint: str = "") -> None:
        """Save a figure as SVG and PNG under ``figures/<notebook>/`` and show it with its caption.

        Where its rows are missing (a Missing stands in its place), one line says so, and by ``hint`` what would fill it.
        """
        if isinstance(figure, Missing):
            self.say(f"*{caption}* {figure} {hint}")
        else:
            _show(style.as_html(style.save(figure, self.name, name), caption))

    def by_environment(self, draw: Callable, table, stem: str) -> None:
        """Save what ``draw`` makes of each environment's rows (column ``env``) as ``figures/<stem>_<env>.svg`` and ``.png``."""
        drawn = []
        for env, rows in table.groupby("env"):
            if not isinstance(figure := draw(rows), Missing):
                drawn.append(f"{stem}_{env}")
                style.save(figure, "", drawn[-1])
        self.say(f"One figure per environment in `figures/`: {choices(drawn) or 'none'}.")

    def table(self, frame, caption: str, digits: int = 2, hint: str = "") -> None:
        """Show a DataFrame with its caption; where it has no rows, one line says so, and by ``hint`` what would fill it."""
        if len(frame):
            _show(style.table_html(frame, caption, digits))
        else:
            self.say(f"*{caption}* Nothing to show: no rows. {hint}")

    def record(self, numbers: KeyNumbers, tolerance: float | None = None) -> None:
        """Record key numbers of this notebook: name to value, unit and, where it is not ``tolerance``, its own tolerance.

        A replay must find a number again within its relative tolerance; numbers without one, and all that were measured
        now, are reported and never compared. NaN could not be measured, and is recorded as such.
        """
        for name, number in numbers.items():
            is_missing = not isinstance(number[0], str) and math.isnan(number[0])
            value, unit, within = (UNKNOWN, "", None) if is_missing else (*number, tolerance)[:3]
            self._keys[name] = {"value": value if isinstance(value, str) else float(value), "unit": unit,
                                "tolerance": within if self.p.source == "replay" else None}

    def finish(self) -> None:
        """Show the key numbers, also as data that the report and the reproducibility check read."""
        import pandas as pd
        from IPython.display import display

        frame = pd.DataFrame([{"number": key, "value": short(item["value"]), "unit": item["unit"],
                               "must reproduce": "" if item["tolerance"] is None else
                               f"within {item['tolerance']:.1%}" if item["tolerance"] else "exactly"}
                              for key, item in self._keys.items()])
        display({KEYS_MIME: self._keys, "text/html": style.table_html(frame, KEY_NUMBERS),
                 "text/plain": frame.to_string(index=False)}, raw=True)



def short(value: float | str, digits: int = 4) -> str:
    """Return a key number as text: whole numbers in full, others with so many digits."""
    if isinstance(value, str) or not math.isfinite(value):
        return str(value)
    return f"{value:.{digits}g}" if value != int(value) else f"{int(value):,}"
