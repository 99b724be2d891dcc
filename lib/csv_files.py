"""The only reader of CSV files and workbooks. It refuses a row whose number of fields differs from the header's."""

import csv
import io
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from lib.errors import InputError, choices, one_line, refused

LARGEST_MB = 2000.0  # of a table, in a file or in memory; more than any that this project writes
_LARGEST_PIPE_MB = 100.0  # of what has no size before it is read
_MOST_COLUMNS = 10_000
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def text(path: Path, torn: bool = False) -> str:
    """Return a file as text; InputError if it is missing or no UTF-8.

    ``torn``: a last line without its end, which a killed writer leaves, is dropped.
    """
    try:
        raw = bytes_of(path)
        return (raw[: raw.rfind(b"\n") + 1] if torn else raw).decode("utf-8-sig")
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a readable CSV: byte {error.start} is no UTF-8") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a readable CSV: {getattr(error, 'strerror', None) or error}") from None


def bytes_of(path: Path) -> bytes:
    """Return a file's content; InputError where it is missing or above LARGEST_MB, as is a pipe without end. Raises OSError."""
    if not path.exists():
        raise InputError(f"{path} is missing")
    most_mb = LARGEST_MB if path.is_file() else _LARGEST_PIPE_MB
    if path.stat().st_size > most_mb * 1e6:
        raise InputError(f"{path} is {path.stat().st_size / 1e6:,.0f} MB large; at most {most_mb:,.0f} are read")
    with open(path, "rb") as file:
        raw = file.read(-1 if path.is_file() else int(most_mb * 1e6) + 1)
    if len(raw) > most_mb * 1e6:
        raise InputError(f"{path} gives more than {most_mb:,.0f} MB; of what is no plain file at most that is read")
    return raw


def rows(content: str, path: Path, skipinitialspace: bool = False) -> Iterator[list[str]]:
    """Give the rows of a CSV as texts, the header first, blank lines left out.

    Raises InputError for a header that is missing, empty in places or doubled, and for a row of another width.
    """
    if "\0" in content:
        raise InputError(f"{path} is not a readable CSV: it holds zero bytes")
    lines = csv.reader(io.StringIO(content, newline=""), strict=True, skipinitialspace=skipinitialspace)
    try:
        header = [name.strip() for name in next((row for row in lines if row), [])]
        _check_header(header, path)
        yield header
        for row in lines:
            if row and len(row) != len(header):
                raise InputError(f"{path}: line {lines.line_num} has {len(row)} fields, the header has {len(header)}")
            if row:
                yield row
    except csv.Error as error:
        raise InputError(f"{path} is not a readable CSV: line {lines.line_num}: {error}") from None


def _check_header(header: list[str], path: Path) -> None:
    if not any(header):
        raise InputError(f"{path} is not a readable CSV: it has no header")
    if len(header) > _MOST_COLUMNS:
        raise InputError(f"{path} has {len(header):,} columns; a table has at most {_MOST_COLUMNS:,}")
    if len(header) == 1:
        other = next((name for sign, name in _SEPARATORS.items() if sign in header[0]), "")
        if other:
            raise InputError(f"{path} is separated by {other}: save it separated by commas, with points in its numbers")
    if "" in header:
        raise InputError(f"{path}: column {header.index('') + 1} has no name; the header is: {choices(header)}")
    doubled = sorted(name for name, times in Counter(header).items() if times > 1)
    if doubled:
        raise InputError(f"{path}: column {choices(doubled)} is there twice")


def frame(path: Path, torn: bool = False, **options):
    """Return a CSV as a DataFrame; ``options`` go to ``pandas.read_csv``. Raises the errors of ``text`` and ``rows``."""
    import pandas as pd

    content = text(path, torn)
    for _ in rows(content, path):
        pass  # a row of another width is an error
    try:
        return pd.read_csv(io.StringIO(content), index_col=False, **options)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ArithmeticError) as error:
        raise InputError(f"{path} is not a readable CSV: {one_line(error)}") from None


def workbook(path: Path):
    """Return the sheets of an .xlsx by name, as DataFrames without a header; InputError for what is no workbook."""
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
