"""Advice on one screen: the fastest device, the best that can be trusted, this CPU, a table, and what to change."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from lib.errors import choices
from lib.predict.advice.advise import Advice
from lib.predict.advice.advise_text import heading
from lib.predict.advice.suggestions import Change

WIDTH = 100
GRADES = {"A": 1.25, "B": 1.5, "C": 2.5, "D": math.inf}  # how many times the prediction its 90 % interval reaches at most
_TRUSTED = ("A", "B")
_CHANGES = 3
_WORTH = 1.02  # a smaller gain is no reason to change anything
_EXPLAIN = ("Confidence: the 90 % interval reaches 1.25 (A), 1.5 (B), 2.5 (C) times the prediction or more (D); C at best for "
            "what was learned from other devices or lies out of the training range. --explain: where each number comes from.")
Row = Mapping[str, Any]


def grade(row: Row) -> str:
    """Return how far to trust a row of advice, A to D: by the reach of its 90 % interval, which comes from held-out errors.

    What was learned from other devices (zero-shot) or lies out of the training range is C at best.
    """
    reach = max(row["high_ms"] / row["predicted_ms"], row["predicted_ms"] / row["low_ms"])
    letter = next(letter for letter, most in GRADES.items() if reach <= most)
    return max(letter, "C") if row["out_of_range"] or row["source"].startswith("zero-shot") else letter


def text(advice: Advice, changes: Sequence[Change], note: str = "") -> str:
    """Return the answer for a terminal, at most WIDTH columns; ``note`` says what slows this CPU now (``neighbours``)."""
    rows = [{**row, "grade": grade(row)} for row in advice.table.to_dict("records")]
    lines = [heading(advice), *_verdicts(rows), *([note] if note else []), "", *_table(rows), ""]
    unknown = list(dict.fromkeys(row["not_modelled"] for row in rows if row["not_modelled"]))
    lines += [f"Not modelled, others answer for them: {choices(unknown)}"] if unknown else []
    lines += [*_suggestions(changes), _EXPLAIN]
    return "\n".join(line if line.startswith("  ") else textwrap.fill(line, WIDTH, break_on_hyphens=False) for line in lines)


def _verdicts(rows: Sequence[Row]) -> list[str]:
    """Return the fastest device that the network fits into, and the fastest that can be trusted where that is another."""
    fitting = [row for row in rows if row["fits"]]
    if not fitting:
        return [f"It fits into none of these devices: it needs {rows[0]['memory_mb']:,.0f} MB."]
    fastest, trusted = fitting[0], next((row for row in fitting if row["grade"] in _TRUSTED), None)
    doubts = {", a guess, as little like it was measured there": fastest["source"].startswith("zero-shot"),
              ", out of the range that its model was trained on": fastest["out_of_range"]}
    doubt = next((words for words, holds in doubts.items() if holds), "")
    lines = [f"Fastest: {_time(fastest)}{doubt}."]
    if len(fitting) > 1 and trusted is not fastest:
        lines.append(f"Best that can be trusted: {_time(trusted)}." if trusted else
                     "None of these predictions can be trusted (A or B): measure before you decide.")
    return lines


def _time(row: Row) -> str:
    return f"{row['device']}, {row['predicted_ms']:,.3g} ms ({_range(row)}, {row['grade']})"


def _range(row: Row) -> str:
    high = f"to {row['high_ms']:,.3g}" if math.isfinite(row["high_ms"]) else "or more"
    return f"{row['low_ms']:,.3g} {high}"


def _table(rows: Sequence[Row]) -> list[str]:
    header = ("device", "ms", "90 % range", "images/s", "memory MB", "limited by", "confidence", "measured ms")
    cells = [(row["device"], f"{row['predicted_ms']:,.3g}", _range(row), f"{row['images_per_sec']:,.4g}",
              f"{row['memory_mb']:,.0f}" + " (too much)" * (not row["fits"]), row["bound"], row["grade"],
              f"{row['measured_ms']:,.3g}" if row["measured_ms"] > 0 else "") for row in rows]
    if not any(line[-1] for line in cells):
        header, cells = header[:-1], [line[:-1] for line in cells]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in (header, *cells)]
    return [f"  {'  '.join(line)}".rstrip() for line in lines]


def _suggestions(changes: Sequence[Change]) -> list[str]:
    worth = [change for change in changes if change.predicted_gain >= _WORTH][:_CHANGES]
    if not worth:
        return ["No change is predicted to make it faster."]
    return ["What to change, and how many times as many images a second:",
            *(f"  {change.predicted_gain:.2f}  {change.what.partition(' (')[0]}" for change in worth)]
