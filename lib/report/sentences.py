"""Sentences of notebooks: templates into which numbers are put; a sentence whose numbers are missing is left out."""

import math
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd

Numbers = dict[str, Any]
Sentence = str | Mapping[str, str]
_OTHERWISE = "else"


def write(sentences: Sentence | Sequence[Sentence], numbers: Numbers, **rows: Any) -> str:
    """Return the sentences, a line each, with ``numbers`` put into their templates (those of ``str.format``).

    A sentence is left out where a number in it is missing: None, not finite, or a table without rows. A dict of templates is a choice:
    the first whose key names a number that is true, else that of the key "else". ``rows`` gives the sentences of one row
    of a table among the numbers (a DataFrame, or dicts); its rows are joined by semicolons, or stand on lines of their own
    where they are bullets. Raises KeyError for a name that the numbers do not have.
    """
    for name, template in rows.items():
        if name in numbers:
            lines = list(filter(None, (write(template, row) for row in _records(numbers[name]))))
            numbers = numbers | {name: ("\n" if lines and lines[0].startswith("- ") else "; ").join(lines)}
    every = [sentences] if isinstance(sentences, str | Mapping) else sentences
    chosen = [_chosen(sentence, numbers) for sentence in every]
    return "\n".join(text.format_map(numbers) for text in chosen if text and not _lacks(text, numbers))


def _records(table: Any) -> list[Mapping[str, Any]]:
    return table.to_dict("records") if isinstance(table, pd.DataFrame) else list(table)


def _chosen(sentence: Sentence, numbers: Mapping[str, Any]) -> str:
    if isinstance(sentence, str):
        return sentence
    return next((text for name, text in sentence.items() if name == _OTHERWISE or numbers[name]), "")


def _lacks(text: str, numbers: Mapping[str, Any]) -> bool:
    values = [numbers[name] for _, name, _, _ in Formatter().parse(text) if name]
    return any(value is None or value == "" or (isinstance(value, float | np.floating) and not math.isfinite(value))
               for value in values)


def first(table: pd.DataFrame, prefix: str = "") -> Numbers:
    """Return the first row of a table as numbers, a name a column after ``prefix``; all are None where it has no rows."""
    values = table.iloc[0] if len(table) else dict.fromkeys(table)
    return {f"{prefix}{name}": values[name] for name in table}


def extremes(table: pd.DataFrame, column: str, least: str = "least_", most: str = "most_") -> Numbers:
    """Return the rows with the smallest and the largest value of a column as numbers, see ``first``."""
    table = table[table[column].notna()].sort_values(column, kind="stable")
    return first(table, least) | first(table.iloc[::-1], most)
