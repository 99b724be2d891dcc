"""Reading of CSV files and workbooks: what is damaged is refused in one line."""

import csv
import io
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from lib.errors import InputError, choices, one_line, refused

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def bytes_of(path: Path) -> bytes:
    """Return the content of a file or pipe; InputError for what is none or is missing, OSError."""
    if not (path.is_file() or path.is_fifo()):  # a device such as /dev/zero may have no end
        raise InputError(f"{path} is {'no file' if path.exists() else 'missing'}")
    return path.read_bytes()


def text(path: Path, torn: bool = False) -> str:
    """Return a file as text; InputError if it cannot be read or is no UTF-8.

    ``torn``: a last line without its end, which a killed writer leaves, is dropped.
    """
    try:
        raw = bytes_of(path)
        return (raw[: raw.rfind(b"\n") + 1] if torn else raw).decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} is not a readable CSV: {one_line(error)}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a readable CSV: byte {error.start} is no UTF-8") from None


def rows(content: str, path: Path, skipinitialspace: bool = False) -> Iterator[list[str]]:
    """Yield the rows of a CSV as texts, the header first, without blank lines.

    Raises InputError for a wrong header and for a row of another width.
    """
    lines = csv.reader(io.StringIO(content, newline=""), strict=True,
                       skipinitialspace=skipinitialspace)
    filled = filter(None, lines)
    try:
        header = [name.strip() for name in next(filled, [])]
        _check_header(header, path)
        yield header
        for row in filled:
            if len(row) != len(header):
                raise InputError(f"{path}: line {lines.line_num} has {len(row)} fields, the header "
                                 f"has {len(header)}")
            yield row
    except csv.Error as error:
        raise InputError(f"{path} is not a readable CSV: line {lines.line_num}: {error}") from None


def _check_header(header: list[str], path: Path) -> None:
    if not any(header):
        raise InputError(f"{path} is not a readable CSV: it has no header")
    separator = next((sign for sign in _SEPARATORS if sign in header[0]), "")
    if len(header) == 1 and separator:
        raise InputError(f"{path} is separated by {_SEPARATORS[separator]}: save it separated by "
                         "commas, with points in its numbers")
    if "" in header:
        raise InputError(f"{path}: column {header.index('') + 1} has no name")
    if doubled := sorted({name for name in header if header.count(name) > 1}):
        raise InputError(f"{path}: column {choices(doubled)} is there twice")


def cells(path: Path):
    """Return a CSV that people wrote as a DataFrame of texts; InputError as of ``rows``."""
    import pandas as pd

    header, *lines = rows(text(path), path, skipinitialspace=True)
    return pd.DataFrame(lines, columns=header, dtype=str)


def frame(path: Path, torn: bool = False, **options):
    """Return a CSV as a DataFrame; ``options`` go to ``pandas.read_csv``. Raises InputError."""
    import pandas as pd

    content = text(path, torn)
    for _ in rows(content, path):
        pass  # a row of another width is an error
    with refused(f"{path} is not a readable CSV: "):
        return pd.read_csv(io.StringIO(content), index_col=False, **options)


def workbook(path: Path):
    """Return the sheets of an .xlsx by name, as DataFrames without a header. Raises InputError."""
    import pandas as pd

    with refused(f"{path} is no readable workbook: "), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # extensions of Excel that hold no data
        return pd.read_excel(path, sheet_name=None, header=None)


def with_columns(path: Path, names: Iterable[str], advice: str, **options):
    """Return a CSV with at least the columns ``names``, or an empty table if there is no file.

    Raises InputError, which ends in ``advice``, if a column is missing.
    """
    import pandas as pd

    table = frame(path, **options) if path.is_file() else pd.DataFrame(columns=list(names))
    if missing := sorted({*names} - {*table}):
        raise InputError(f"{path} lacks the columns {choices(missing)}; {advice}")
    return table
