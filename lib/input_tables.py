"""Tables that people write: with blanks around cells, defaults, and ids in the first column."""

from collections.abc import Mapping
from pathlib import Path

from lib import csv_files
from lib.errors import InputError
from lib.tables.check import check_names, checked
from lib.tables.column import Column

_NO_IDS = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan",
           "null", "NULL", "None")  # for an empty cell
_MOST = 1e12  # of any number: sums of larger times lose small ones


def read(path: Path, columns: Mapping[str, Column], others: bool = False):
    """Read a CSV with typed columns, the first of them its key; empty cells get defaults.

    More columns are allowed, and left out, only with ``others``. Raises InputError in one line: the
    file, the column, the row by its key, what is there, and what would be right.
    """
    import pandas as pd

    cells = csv_files.cells(path)
    names = list(cells.columns.intersection(list(columns)) if others else cells)
    needed = [name for name, column in columns.items() if column.default is None]
    check_names(names, columns, str(path), needed)
    if not len(cells):
        raise InputError(f"{path} has no row")
    cells = cells.reindex(columns=list(columns), fill_value="")
    cells = cells.apply(lambda texts: texts.str.strip().str.normalize("NFC"))
    key = cells.columns[0]
    found = [(key, cells[key].duplicated() & (cells[key] != ""), "is there twice"),
             (key, ~cells[key].map(str.isprintable).astype(bool),
              "holds characters that are not printed")]
    for name in (name for name in needed if columns[name].kind == "str"):
        found.append((name, cells[name].isin(_NO_IDS), "stands for an empty cell"))
    for name, wrong, words in found:
        if wrong.any():
            row = wrong.idxmax()
            raise InputError(f"{path}: {name} {cells[name][row]!r} in row {row + 1} {words}")
    defaults = pd.Series({name: column.default for name, column in columns.items()}, dtype=object)
    filled = cells.astype(object).where(cells != "", defaults.fillna(float("nan")), axis=1)
    return checked(filled, columns, str(path), key, _MOST)
