"""Columns of published tables: which must be there, which count and which measure something."""

from collections.abc import Collection
from pathlib import Path

import pandas as pd

from lib import csv_files
from lib.errors import InputError, choices

_MOST = 2**31 - 1


def read_csv(path: Path, counted: Collection[str] = (), numbers: Collection[str] = (),
             texts: Collection[str] = ()) -> pd.DataFrame:
    """Read a CSV with these columns, see ``with_numbers``; InputError for one without rows."""
    table = csv_files.frame(path, dtype=dict.fromkeys(texts, str))
    if not len(table):
        raise InputError(f"{path} has no row")
    return with_numbers(table, path, counted, numbers, texts)


def with_numbers(table: pd.DataFrame, path: Path, counted: Collection[str],
                 numbers: Collection[str], texts: Collection[str] = ()) -> pd.DataFrame:
    """Return a table with ``counted`` as int64 and ``numbers``, which may be missing, as floats.

    Raises InputError naming missing columns, and the first cell that is no such number.
    """
    if missing := sorted({*texts, *counted, *numbers} - set(table)):
        raise InputError(f"{path} has no columns {choices(missing)}; it has: {choices(table)}")
    for name in (*counted, *numbers):
        values = pd.to_numeric(table[name], errors="coerce").astype(float)
        wrong, right = values.isna() & table[name].notna(), "a number"
        if name in counted:
            least = 0 if name == "Padding" else 1
            wrong = ~values.between(least, _MOST) | (values % 1 != 0)
            right = f"a whole number from {least} to {_MOST:,}"
        if wrong.any():
            value = table[name][wrong].iloc[0]
            raise InputError(f"{path}: {row_name(wrong.idxmax())} has {value!r} as {name}; it is "
                             f"{right}")
    return table.astype(dict.fromkeys(counted, "int64") | dict.fromkeys(numbers, "float64"))


def row_name(index: int) -> str:
    """Return how a message names a row."""
    return f"row {index + 1} below the header"
