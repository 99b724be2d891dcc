"""Tables written by people: optional cells get defaults, everything else is checked, errors name the cell."""

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
    twice = cells.iloc[:, 0].duplicated()
    frame = pd.DataFrame({column.name: _parsed(cells, column, path, twice) for column in columns})
    defaults = {column.name: column.default for column in columns if column.kind != "text" and column.default is not None}
    return frame.fillna(defaults).astype({column.name: DTYPES[column.kind] for column in columns})


def _parsed(cells, column: Column, path: Path, twice):
    """Return a column's texts, or its numbers with NaN where a cell is empty; InputError for a cell that is neither."""
    import pandas as pd

    texts = cells[column.name]
    if column.kind == "text":
        return _checked(texts, column, (column.name == cells.columns[0]) & twice, path)
    numbers = pd.to_numeric(texts.where(texts != ""), errors="coerce").astype(float)
    wrong = numbers.isna() & ((texts != "") | (column.default is None and not column.empty)) | (numbers.abs() > _LARGEST)
    if column.kind != "float":
        wrong |= numbers.notna() & ((numbers % 1 != 0) | (numbers > _MOST))
    if column.least is not None:
        wrong |= numbers < column.least
    if wrong.any():
        raise _wrong(cells, column, wrong.idxmax(), path)
    return numbers


def _checked(texts, column: Column, twice, path: Path):
    """Refuse ids that are empty, stand for an empty cell or are there twice, and characters that nobody sees."""
    required = column.default is None
    for wrong, words in ((required & (texts == ""), f"has no {column.name}"),
                         (required & texts.isin(_NO_IDS), "stands for an empty cell; give it another name"),
                         (~texts.map(str.isprintable).astype(bool), "holds characters that are not printed"),
                         (twice, "is there twice")):
        if wrong.any():
            row, text = wrong.idxmax(), texts[wrong.idxmax()]
            cell = f" {words}" if not text else f": {column.name} {text!r} {words}"
            raise InputError(f"{path}: row {row + 1} below the header{cell}")
    return texts


def _wrong(cells, column: Column, row: int, path: Path) -> InputError:
    cell = cells.loc[row, column.name]
    kind = "finite number" if column.kind == "float" else f"whole number of at most {_MOST:,}"
    least = "" if column.least is None else f", {column.least:g} or more"
    most = f", at most {_LARGEST:g}" if column.kind == "float" else ""
    empty = ", or empty" if column.empty or column.default is not None else ""
    return InputError(f"{path}: {column.name} of {cells.iloc[:, 0][row]!r} is {cell!r}: it is a {kind}{least}{most}{empty}")
