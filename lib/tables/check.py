"""The check of a table against its columns: names, types and values."""

from collections.abc import Mapping

from lib.errors import InputError, choices
from lib.names import did_you_mean
from lib.tables.column import Column

_LARGEST = 1e18  # of any number


def schema(columns: Mapping[str, Column]):
    """Return the pandera schema of a table with these columns, in this order."""
    import pandera.pandas as pa

    def checks(column: Column):
        if column.of:
            return pa.Check.isin(column.of)
        if column.kind == "str":  # a line is a row: what a killed writer leaves is then told from it
            return pa.Check(lambda texts: ~texts.str.contains(r"[\r\n]", na=False))
        return None if column.least is None else pa.Check.ge(column.least)

    return pa.DataFrameSchema({name: pa.Column(column.dtype, checks(column), nullable=column.empty,
                                               description=column.meaning)
                               for name, column in columns.items()}, strict=True, ordered=True)


def check_names(names, columns: Mapping[str, Column], where: str, needed=None) -> None:
    """Raise InputError, with the nearest name, for missing and unknown columns.

    ``needed``: those that must be there, if not all.
    """
    missing = [name for name in (columns if needed is None else needed) if name not in names]
    unknown = [name for name in names if name not in columns]
    if missing or unknown:
        near = did_you_mean(unknown[0], missing or columns) if unknown else ""
        raise InputError(f"{where}: missing columns [{choices(missing)}], unknown "
                         f"[{choices(unknown)}]; it takes: {choices(columns)}{near}")


def checked(frame, columns: Mapping[str, Column], where: str, key: str = "",
            most: float = _LARGEST):
    """Return a table with the order and types of its columns; no number is above ``most``.

    Raises InputError in one line: ``where``, the column, the row (by its column ``key``, or by its
    number), what is there, and what would be right.
    """
    import pandera.errors

    check_names(list(frame), columns, where)
    rows = frame[list(columns)].reset_index(drop=True)

    def refusal(name: str, row: int) -> InputError:
        cell = repr(rows[name][row]) if rows[name].notna()[row] else "empty"
        place = f"of {rows[key][row]!r}" if key and key != name else f"in row {row + 1}"
        takes = columns[name].takes(most)
        return InputError(f"{where}: {name} {place} is {cell}: it takes {takes}")

    typed = {name: _converted(rows[name], column.kind, most) for name, column in columns.items()}
    for name, values in typed.items():
        wrong = values.isna() & (rows[name].notna() | (not columns[name].empty))
        if wrong.any():
            raise refusal(name, wrong.idxmax())
    table = rows.assign(**typed).astype({name: column.dtype for name, column in columns.items()})
    try:
        return schema(columns).validate(table, lazy=True).set_axis(frame.index)
    except pandera.errors.SchemaErrors as error:
        first = error.failure_cases.iloc[0]
        raise refusal(first["column"], int(first["index"])) from None


def _converted(values, kind: str, most: float):
    """Return values as this type, NaN where that would change a value (1.5 to 1, 1 to True)."""
    import pandas as pd

    if kind == "str":
        return values.astype("str")
    if kind == "bool":
        return values.astype("str").map({"True": True, "False": False})
    if values.dtype == "bool":
        return values.astype("object").where(False)
    numbers = pd.to_numeric(values, errors="coerce")
    fits = numbers.abs() <= most
    return numbers.where(fits & (numbers % 1 == 0) if kind == "int64" else fits)
