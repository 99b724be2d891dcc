"""Columns of tables: definition, validation of a table, and migration of files of older schema versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from lib.errors import InputError, choices

_TAKES = {"int": "a whole number", "count": "a whole number or nothing", "float": "a number", "single": "a number",
          "bool": "True or False"}
_TRUTHS = (True, False, "True", "False")
DTYPES = {"text": "str", "int": "int64", "count": "Int64", "float": "float64", "single": "float32", "bool": "bool"}


@dataclass(frozen=True)
class Column:
    """One column: its kind, what it means, and what values it may hold.

    Kinds: text, int, count (an int or empty), float, single (32 bits), bool.
    ``least`` is the smallest value allowed; ``of`` the only texts allowed; ``empty`` says that NaN means "not measured".
    ``default`` stands for empty cells, and for the column where it is left out, in tables that people write (``input_tables``).
    A column added later has ``since``, its schema version, and a ``default``, its value in files of older versions.
    Such files are not rewritten.
    """

    name: str
    kind: str
    meaning: str
    least: float | None = None
    of: tuple[str, ...] = ()
    empty: bool = False
    default: float | str | None = None
    since: int = 1


Columns = tuple[Column, ...]


@cache
def older_versions(columns: Columns) -> tuple[tuple[str, ...], ...]:
    """Return the column names of each older version of a table, the oldest first."""
    versions = sorted({column.since for column in columns})[:-1]
    return tuple(tuple(column.name for column in columns if column.since <= version) for version in versions)


def migrated(frame, columns: Columns):
    """Return a table of an older schema version with the later columns at their defaults; any other table unchanged."""
    if tuple(frame) not in older_versions(columns):
        return frame
    return frame.assign(**{column.name: column.default for column in columns if column.name not in frame})


@cache
def schema(columns: Columns, table: str):
    """Return the strict pandera schema of a table with these columns."""
    import pandera.pandas as pa

    def pandera_column(column: Column):
        checks = []
        if column.least is not None:
            checks.append(pa.Check.in_range(column.least, float("inf"), include_max=False))
        if column.of:
            checks.append(pa.Check.isin(column.of))
        elif column.kind == "text":  # a line of a CSV is a row: a line break within one is a quote that did not end
            checks.append(pa.Check(lambda texts: ~texts.str.contains(r"[\r\n]", na=False), name="one_line", error="one line"))
        return pa.Column(DTYPES[column.kind], checks, nullable=column.empty, description=column.meaning)

    return pa.DataFrameSchema({c.name: pandera_column(c) for c in columns}, strict=True, ordered=True, name=table)


def validated(frame, columns: Columns, table: str, where: str):
    """Return ``frame`` with the types of the columns.

    Raises InputError naming ``where``, the column and the first wrong values.
    """
    import pandera.errors

    names = [column.name for column in columns]
    missing = [name for name in names if name not in frame]
    extra = [name for name in frame if name not in names]
    if missing or extra:
        raise InputError(f"{where} is no {table} table: missing columns [{choices(missing)}], unknown [{choices(extra)}]")
    try:
        return schema(columns, table).validate(_typed(frame, columns), lazy=True)
    except pandera.errors.SchemaErrors as error:
        first = error.failure_cases.iloc[0]
        raise InputError(f"{where} does not fit the {table} table: column {first['column']!r}, "
                         f"value {first['failure_case']!r} fails {first['check']}") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{where} does not fit the {table} table: {error}") from None


def _typed(frame, columns: Sequence[Column]):
    """Return a table with the types of its columns; ValueError where that would change a value (1.5 to 1, text to true)."""
    for column in columns:
        values = frame[column.name]
        wrong = values[_of_another_type(values, column.kind)]
        if len(wrong):
            raise ValueError(f"column {column.name!r} holds {wrong.iloc[0]!r}, it takes {_TAKES[column.kind]} (at index "
                             f"{wrong.index[0]} of its rows)")
    return frame.astype({column.name: DTYPES[column.kind] for column in columns})


def _of_another_type(values, kind: str):
    """Return which values cannot be stored in a column of this kind without changing them."""
    import pandas as pd

    stored = values.dtype.kind
    if kind != "text" and stored not in "biuf":  # texts, because one cell is no number: that is the one to name
        texts = values.map(lambda value: isinstance(value, str | bytes | list | dict)).astype(bool)
        readable = values.isin(_TRUTHS) if kind == "bool" else pd.to_numeric(values, errors="coerce").notna()
        empty = values.isna() & (kind == "bool")
        return empty | (texts & ~readable if (texts & ~readable).any() or empty.any() else texts)
    if kind == "bool" or (kind != "text" and stored == "b"):
        return values.notna() & ((stored == "b") != (kind == "bool"))
    if kind in ("int", "count") and stored == "f":
        return values.notna() & (values % 1 != 0)
    return values.isna() & False

