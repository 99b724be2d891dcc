"""Tables and JSON on disk: append-safe CSV, Parquet, and provenance (``.meta.json``) beside each file."""

import csv
import errno
import hashlib
import io
import itertools
import json
import math
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from lib import csv_files, files, locks, paths
from lib.errors import InputError, choices, refused
from lib.tables import SCHEMA_VERSION, TABLES, columns, validate, with_defaults

Facts = dict[str, Any]  # a row of a table, or what its provenance says
_NOTHING = {False: [""], True: ["", "nan"]}  # what stands for no value; ``nan`` where a number may be missing (older files)
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
_LINE_BREAKS = re.compile(r"\r\n|\r|\n")  # a line is a row: what a killed writer leaves is then told from what is whole


class Lines:
    """A file that grows line by line and is readable at every moment.

    Each line is one unbuffered write at the end of the file, so a killed process leaves whole lines and at most one torn last
    line. One process writes to a file at a time: another waits ``timeout_s``, then raises HeldError, an InputError. Opening an
    existing file raises FileExistsError, for nothing is overwritten, unless ``resume`` says to go on after its last whole line,
    once ``check``, which may raise, has read it. A new file begins with ``first``.
    """

    def __init__(self, path: Path, first: bytes = b"", resume: bool = False, timeout_s: float = 0.0,
                 check: Callable[[], Any] = lambda: None):
        self.path = path
        with ExitStack() as held:
            held.enter_context(locks.writer(path, timeout_s))
            if path.exists() and not resume:
                raise FileExistsError(errno.EEXIST, "exists already and is not overwritten", str(path))
            with files.writing(path):
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
                self._file = held.enter_context(open(os.open(path, flags, files.MODE), "ab", buffering=0))
                before = path.read_bytes()
            if first.startswith(before):  # empty, or its writer was killed at its first line
                self._file.truncate(0)
                if first:
                    self.write(first)
            else:
                check()
                self._file.truncate(before.rfind(b"\n") + 1)
            self._held = held.pop_all()

    def write(self, line: bytes) -> None:
        """Write one line with its end; InputError on a full disk, where nothing of it stays."""
        with files.writing(self.path):
            if (written := self._file.write(line)) != len(line):
                self._file.truncate(os.fstat(self._file.fileno()).st_size - written)
                raise OSError(errno.ENOSPC, "short write: the disk is full")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._held.close()


class Appender(Lines):
    """A CSV of ``table`` that grows row by row, see Lines; ``read`` drops a torn last row.

    Going on with a file that does not fit ``table``, also one of an older version, raises InputError.
    """

    def __init__(self, path: Path, table: str, resume: bool = False, timeout_s: float = 0.0):
        self._width = len(columns(table))
        super().__init__(path, _csv_line(columns(table)), resume, timeout_s,
                         lambda: self._check_columns(table))

    def _check_columns(self, table: str) -> None:
        frame = _csv(self.path, table)
        validate(frame, table, str(self.path))
        if list(frame) != columns(table):
            raise InputError(f"{self.path} has the columns of the {table} table in another order: {choices(frame)}")

    def append(self, values: Sequence[Any]) -> None:
        """Write one row; InputError on a full disk, ValueError on a row of the wrong width."""
        self.extend([values])

    def extend(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write several rows at once, as ``append`` does one."""
        for values in rows:
            if len(values) != self._width:
                raise ValueError(f"{self.path}: a row of {len(values)} values for {self._width} columns")
        self.write(b"".join(map(_csv_line, rows)))


def _csv_line(values: Sequence[Any]) -> bytes:
    """Return a row of a CSV; line breaks in a text become spaces, a number that is none (NaN) an empty field."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(
        [_LINE_BREAKS.sub(" ", value) if isinstance(value, str) else
         "" if isinstance(value, float) and math.isnan(value) else value for value in values])
    return text.getvalue().encode()


def write(frame, path: Path, table: str, derived: bool = False) -> Path:
    """Validate ``frame`` and write it once to ``path``, as CSV or, by its suffix, as Parquet.

    An existing file raises InputError, unless it is ``derived`` from raw files: then it is replaced in one step.
    """
    content = encoded(validate(frame, table, str(path)), path.suffix)
    return files.replace(path, content) if derived else files.create(files.folder(path.parent) / path.name, content)


def encoded(frame, suffix: str) -> bytes:
    """Return a table as the content of a CSV or, by its suffix, of a Parquet file: its rows, without ``attrs``."""
    if suffix == ".parquet":
        frame = frame.copy(deep=False)
        frame.attrs = {}  # pandas would write them into the file: notes of this run, with paths of this machine
        return frame.to_parquet(index=False, compression="zstd", write_page_checksum=True)
    return frame.to_csv(index=False).encode()


def read(path: Path, table: str):
    """Read one file of ``table``, CSV or Parquet; a torn last line of a CSV (a killed writer) is dropped.

    A file of an older version gets the columns that came since at their defaults. Raises InputError naming the file and what
    does not fit.
    """
    frame = read_own(path, table) if path.suffix == ".parquet" else with_defaults(_csv(path, table), table)
    return validate(frame, table, str(path))


def _csv(path: Path, table: str):
    texts = {name: str for name, column in TABLES[table].items() if column.kind == "str"}
    empty = {name: _NOTHING[column.kind == "float64" and column.empty] for name, column in TABLES[table].items()}
    return csv_files.frame(path, torn=True, dtype=texts, keep_default_na=False, na_values=empty)


def read_own(path: Path, table: str):
    """Read a Parquet file of ``table`` without looking at its cells, which is quick: for committed files, which tests check.

    Raises InputError for a file that has other columns.
    """
    later = [name for name, column in TABLES[table].items() if column.default is not None]
    return with_defaults(read_parquet(path, columns(table), optional=later), table)


def read_parquet(path: Path, names: Sequence[str], others: bool = False, optional: Sequence[str] = ()):
    """Return the columns ``names`` of a Parquet file as a DataFrame: the one door for this format.

    More columns are allowed, and left out, only with ``others``; those that are ``optional`` may be missing. Raises InputError
    for a file that is missing, damaged, too large, or has other columns.
    """
    with _parquet(path) as file:
        names = [name for name in names if name not in optional or name in file.schema_arrow.names]
        _check_parquet(file, path, names, others)
        return file.read(list(names)).to_pandas()


def parquet_columns(path: Path) -> list[str]:
    """Return the column names of a Parquet file; InputError for one that is missing or damaged."""
    with _parquet(path) as file:
        return file.schema_arrow.names


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file; InputError for what it, or what is read of it, is not."""
    import pyarrow.parquet as pq

    if not path.is_file():
        raise InputError(f"{path} is missing" if not path.exists() else f"{path} is no file")
    with refused(f"{path} is not readable Parquet: "), open(path, "rb") as source, \
            pq.ParquetFile(source, page_checksum_verification=True) as file:
        yield file


def _check_parquet(file, path: Path, names: Sequence[str], others: bool) -> None:
    """Refuse by its footer a file with other columns than ``names``, and one that does not fit into memory."""
    there, rows = file.schema_arrow.names, file.metadata.num_rows
    missing = [name for name in names if there.count(name) != 1]
    unknown = [name for name in there if name not in names and not others]
    if missing or unknown:
        raise InputError(f"{path}: missing (or doubled) columns [{choices(missing)}], unknown [{choices(unknown)}]")
    stored = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
    megabytes = max(stored, rows * len(names)) / 1e6  # a repeated value is stored once
    if megabytes > csv_files.LARGEST_MB:
        raise InputError(f"{path} holds {rows:,} rows, {megabytes:,.0f} MB or more; "
                         f"a table has at most {csv_files.LARGEST_MB:,.0f} MB")


def read_all(files: Iterable[Path], table: str):
    """Read and join several CSVs of one table; no file gives an empty table with the right columns."""
    import pandas as pd

    frames = [frame for frame in (read(path, table) for path in files) if len(frame)]
    if not frames:
        return pd.DataFrame({name: pd.Series(dtype=column.dtype) for name, column in TABLES[table].items()})
    return pd.concat(frames, ignore_index=True)


def fresh_name(stem: str, taken: Callable[[str], bool]) -> str:
    """Return ``stem``, or ``stem-v2``, ``stem-v3``, ...: the first that is not ``taken``."""
    names = itertools.chain([stem], (f"{stem}-v{version}" for version in itertools.count(2)))
    return next(name for name in names if not taken(name))


def fresh_file(folder: Path, stem: str) -> Path:
    """Return the path of a CSV that is not there yet: ``stem.csv``, ``stem-v2.csv``, ..."""
    name = fresh_name(stem, lambda candidate: (folder / f"{candidate}.csv").exists())
    return folder / f"{name}.csv"


def encoded_json(value: Any) -> bytes:
    """Return ``value`` as the content of a JSON file, the same for the same value."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def write_json(value: Any, path: Path) -> Path:
    """Write ``value`` as JSON in one step: readers see the old file or the new one, never half of it."""
    return files.replace(path, encoded_json(value))


def read_json(path: Path) -> Any:
    """Read one JSON file; InputError names it when it is missing or damaged, or names something twice."""
    with refused(f"{path} is not readable JSON: "):
        text = csv_files.bytes_of(path).decode()
        content = json.loads(text, object_pairs_hook=_named_once)
        if _HALF_CHARACTER.search(text):
            json.dumps(content, ensure_ascii=False).encode()  # raises where one half of a character stands alone
        return content


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return what a JSON object holds; ValueError for a name that is there twice, of which only the last would count."""
    content = dict(pairs)
    if len(content) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{name!r} is there twice")
    return content


def digest(value: Any) -> str:
    """Return a short hash of a value that JSON can write; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


@cache
def git_state() -> dict[str, Any]:
    """Return the commit of this checkout and whether it has uncommitted changes; None where there is no git."""
    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(paths.ROOT), *arguments], capture_output=True, text=True, timeout=10,
                                  check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    status = git("status", "--porcelain")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}


def utc_now() -> str:
    """Return the time in UTC, ISO 8601, to the millisecond: two short runs may end within one second."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def write_meta(path: Path, table: str, **facts: Any) -> Path:
    """Write ``<name>.meta.json`` beside ``path``: schema version, time, git state and the given facts."""
    meta = {"table": table, "schema_version": SCHEMA_VERSION, "written_utc": utc_now(), **git_state(), **facts}
    return write_json(meta, path.with_name(f"{path.name.removesuffix('.csv').removesuffix('.parquet')}.meta.json"))
