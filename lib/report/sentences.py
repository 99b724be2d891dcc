"""Sentences of notebooks: templates into which numbers are put; a sentence whose numbers are missing is left out."""

import math
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import choices

Numbers = dict[str, Any]
KeyNumbers = dict[str, tuple]  # name -> value, unit, and relative tolerance where it is not the one that record is given
Sentence = str | Mapping[str, str]
_OTHERWISE = "else"


class _Template(Formatter):
    def get_field(self, field_name: str, _args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """Return the number of a name, and the name."""
        value = lookup(kwargs, field_name)
        return choices(value) if isinstance(value, tuple | list) else value, field_name


def write(sentences: Sentence | Sequence[Sentence], numbers: Numbers, **rows: Any) -> str:
    """Return the sentences, a line each, with ``numbers`` put into their templates (those of ``str.format``, see ``lookup``).

    A text is a sentence a line. A sentence is left out where a number in it is missing: None, not finite, or a table without
    rows. A dict of templates is a choice, of whole texts: the first whose key names a number that is true, else that of the
    key "else". ``rows`` gives the sentences of a
    row of a table among the numbers (a DataFrame, or dicts); its rows are joined by semicolons, or stand on lines of their own
    where they are bullets. Raises KeyError for a name that the numbers do not have.
    """
    for name, template in rows.items():
        if name in numbers:
            lines = list(filter(None, (write(template, row) for row in _records(numbers[name]))))
            numbers = numbers | {name: ("\n" if lines and lines[0].startswith("- ") else "; ").join(lines)}
    every = [sentences] if isinstance(sentences, str | Mapping) else sentences
    chosen = [text for part in every for text in ([_chosen(part, numbers)] if isinstance(part, Mapping) else part.split("\n"))]
    return "\n".join(_Template().vformat(text, (), numbers) for text in chosen if text and not _lacks(text, numbers))


def lookup(numbers: Mapping[str, Any], name: str) -> Any:
    """Return the number of a dotted name: of a table its size, a column's statistic, or a row's value; else item or attribute.

    ``runs.size``, ``runs.step_ms.median``, ``runs.first.arch``, ``runs.most_step_ms.arch`` (of the row with the most ms; also
    ``last`` and ``least_``). None where the table has no rows.
    """
    first, *rest = name.split(".")
    value = numbers[first]
    for part in rest:
        if value is None or isinstance(value, str):
            return value
        value = _row(value, part) if isinstance(value, pd.DataFrame) else _item(value, part)
    return value


def _row(table: pd.DataFrame, part: str) -> Any:
    extreme, _, column = part.partition("_")
    if part == "size":
        return len(table)
    if extreme in ("least", "most"):
        table = table[table[column].notna()].sort_values(column, kind="stable")
    elif part not in ("first", "last"):
        return table[part]
    return table.iloc[0 if extreme in ("first", "least") else -1] if len(table) else None


def _item(value: Any, part: str) -> Any:
    if isinstance(value, Mapping) or (isinstance(value, pd.Series) and part in value.index):
        return value[part]
    attribute = getattr(value, part)
    return attribute() if callable(attribute) else attribute


def _records(table: Any) -> list[Mapping[str, Any]]:
    return table.to_dict("records") if isinstance(table, pd.DataFrame) else list(table)


def _chosen(choice: Mapping[str, str], numbers: Mapping[str, Any]) -> str:
    return next((text for name, text in choice.items() if name == _OTHERWISE or lookup(numbers, name)), "")


def _lacks(text: str, numbers: Mapping[str, Any]) -> bool:
    values = [lookup(numbers, name) for _, name, _, _ in Formatter().parse(text) if name]
    return any(value is None or (isinstance(value, str | tuple | list) and not value)
               or (isinstance(value, float | np.floating) and not math.isfinite(value)) for value in values)
