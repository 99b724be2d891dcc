"""Tables written by people: optional cells get defaults, everything else is checked, errors name the cell."""

from functools import cache
from pathlib import Path

from lib import csv_files
from lib.columns import DTYPES, Column
from lib.errors import InputError, choices

_NO_IDS = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None")  # how programs write an empty cell
_MOST = 1_000_000_000  # of a whole number
_LARGEST = 1e12  # of any number: beyond it sums of times lose what is small, and say so to nobody


def read(path: Path, columns: tuple[Column, ...], others: bool = False):
    """Read a CSV with typed columns, the first of them its key; what is empty gets its default.

    More columns are allowed, and left out, only with ``others``. Raises InputError in one line: the file, the column, the row
    by its key, what is there, and what would be right.
    """
    import pandas as pd

    header, *rows = csv_files.rows(csv_files.text(path), path, skipinitialspace=True)
    cells = pd.DataFrame(rows, columns=header, dtype=str)
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise InputError(f"{path}: {columns[0].name!r} is the column of ids; nothing else can have that name")
    missing = [column.name for column in columns if column.name not in cells and column.default is None]
    unknown = [name for name in cells if name not in names and not others]
    if missing or unknown:
        raise InputError(f"{path}: missing columns [{choices(missing)}], unknown [{choices(unknown)}]; "
                         f"it takes: {choices(names)}")
    if not len(cells):
        raise InputError(f"{path} has no row")
    cells = cells.reindex(columns=names, fill_value="").apply(lambda texts: texts.str.strip().str.normalize("NFC"))
    _check_texts(cells, columns, path)
    frame = pd.DataFrame({column.name: _parsed(cells, column, path) for column in columns})
    frame = _checked(frame, cells, columns, path)
    defaults = {column.name: column.default for column in columns if column.kind != "text" and column.default is not None}
    return frame.fillna(defaults).astype({column.name: DTYPES[column.kind] for column in columns})


def _check_texts(cells, columns: tuple[Column, ...], path: Path) -> None:
    """Refuse ids that are empty, stand for an empty cell or are there twice, and characters that nobody sees."""
    for column in columns:
        texts = cells[column.name] if column.kind == "text" else cells[column.name].iloc[:0]
        required, key = column.default is None, column is columns[0]
        for row, (text, doubled) in enumerate(zip(texts, texts.duplicated(), strict=True), start=1):
            where = f"{path}: row {row} below the header"
            if required and not text:
                raise InputError(f"{where} has no {column.name}")
            if required and text in _NO_IDS:
                raise InputError(f"{where}: {column.name} {text!r} stands for an empty cell; give it another name")
            if not text.isprintable():
                raise InputError(f"{where}: {column.name} {text!r} holds characters that are not printed")
            if key and doubled:
                raise InputError(f"{where}: {column.name} {text!r} is there twice")


def _parsed(cells, column: Column, path: Path):
    """Return a column's texts, or its numbers with NaN where a cell is empty; InputError for what is no such number."""
    import pandas as pd

    texts = cells[column.name]
    if column.kind == "text":
        return texts
    numbers = pd.to_numeric(texts.where(texts != ""), errors="coerce").astype(float)
    unreadable = numbers.isna() & (texts != "")
    if column.kind != "float":
        unreadable |= numbers.notna() & ((numbers % 1 != 0) | (numbers > _MOST))
    unreadable |= numbers.abs() > _LARGEST
    if unreadable.any():
        raise _wrong(cells, column, unreadable.idxmax(), path)
    return numbers


def _checked(frame, cells, columns: tuple[Column, ...], path: Path):
    import pandera.errors

    try:
        return _schema(columns).validate(frame, lazy=True)
    except pandera.errors.SchemaErrors as error:
        first = error.failure_cases.iloc[0]
        column = next(column for column in columns if column.name == first["column"])
        raise _wrong(cells, column, first["index"], path) from None


@cache
def _schema(columns: tuple[Column, ...]):
    """Return the pandera schema of a table before its defaults are filled in."""
    import pandera.pandas as pa

    def one(column: Column):
        if column.kind == "text":
            return pa.Column("str")
        least = -float("inf") if column.least is None else column.least
        return pa.Column("float64", pa.Check.in_range(least, float("inf"), include_max=False),
                         nullable=column.empty or column.default is not None)

    return pa.DataFrameSchema({column.name: one(column) for column in columns}, strict=True)


def _wrong(cells, column: Column, row: int, path: Path) -> InputError:
    cell = cells.loc[row, column.name]
    kind = "finite number" if column.kind == "float" else f"whole number of at most {_MOST:,}"
    least = "" if column.least is None else f", {column.least:g} or more"
    most = f", at most {_LARGEST:g}" if column.kind == "float" else ""
    empty = ", or empty" if column.empty or column.default is not None else ""
    return InputError(f"{path}: {column.name} of {cells.iloc[:, 0][row]!r} is {cell!r}: it is a {kind}{least}{most}{empty}")
