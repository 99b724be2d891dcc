"""The check of a table against its columns: names, types and values."""

from collections.abc import Mapping

from lib.errors import InputError, choices
from lib.names import did_you_mean
from lib.tables.column import Column

_LARGEST = 1e18  # of any number


def check_names(names, columns: Mapping[str, Column], where: str, needed=None) -> None:
    """Raise InputError, with the nearest name, for missing and unknown columns.

    ``needed``: those that must be there, if not all.
    """
    missing = [name for name in (columns if needed is None else needed) if name not in names]
    unknown = [name for name in names if name not in columns]
    if missing or unknown:
        near = did_you_mean(unknown[0], missing or columns) if unknown else ""
        wrong = [f"{what} [{choices(some)}]" for what, some in
                 (("missing columns", missing), ("unknown columns", unknown)) if some]
        raise InputError(f"{where}: {', '.join(wrong)}; it takes: {choices(columns)}{near}")


def checked(frame, columns: Mapping[str, Column], where: str, key: str = "",
            most: float = _LARGEST):
    """Return a table with the order and types of its columns; no number is above ``most``.

    Raises InputError in one line: ``where``, the column, the row (by its column ``key``, which
    tables of people have, or by its number), what is there, and what would be right.
    """
    import pandas as pd

    check_names(list(frame), columns, where)
    rows, typed = frame[list(columns)], {}
    for name, column in columns.items():
        cells, values = rows[name], _converted(rows[name], column.kind)
        wrong = ~_fitting(values, column, most)
        if column.empty:
            wrong &= cells.notna().to_numpy()
        if wrong.any():
            row = int(wrong.argmax())
            cell = repr(cells.iloc[row]) if cells.notna().iloc[row] else "empty"
            place = f"of {rows[key].iloc[row]!r}" if key and key != name else f"in row {row + 1}"
            takes = column.takes(most)
            if key and column.default is not None and not column.empty:
                takes += ", or nothing"
            raise InputError(f"{where}: {name} {place} is {cell}: it takes {takes}")
        typed[name] = values.astype(column.dtype)
    return pd.DataFrame(typed, index=frame.index)


def _converted(values, kind: str):
    """Return values as texts, numbers, or truths; NaN for those of another kind."""
    import pandas as pd

    if kind == "str":
        return values.astype("str")
    if kind == "bool":
        return values.astype("str").map({"True": True, "False": False})
    if values.dtype == "bool":
        return pd.Series(float("nan"), index=values.index)
    return pd.to_numeric(values, errors="coerce")


def _fitting(values, column: Column, most: float):
    """Return which values are there and allowed, as an array."""
    import numpy as np

    if column.of:
        return values.isin(column.of).to_numpy()
    if column.kind == "str":  # a line is a row: what a killed writer leaves is then told from it
        return (values.notna() & ~values.str.contains(r"[\r\n]", na=False)).to_numpy()
    if column.kind == "bool":
        return values.notna().to_numpy()
    numbers = values.to_numpy(dtype=float, na_value=np.nan)
    fits = np.abs(numbers) <= most
    if column.least is not None:
        fits &= numbers >= column.least
    return fits & (numbers % 1 == 0) if column.kind == "int64" else fits
