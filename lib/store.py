"""Tables and JSON on disk: append-safe CSV, Parquet, and provenance (``.meta.json``)."""

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
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from lib import csv_files, files, locks, paths
from lib.errors import InputError, choices, refused
from lib.tables import SCHEMA_VERSION, TABLES, columns, validate, with_defaults
from lib.tables.check import check_names

Facts = dict[str, Any]  # a row of a table, or what its provenance says
_LINE_BREAKS = re.compile(r"\r\n|\r|\n")  # a line is a row, so that a torn one is recognised


class Lines:
    """A file that grows line by line and is readable at every moment.

    Each line is one unbuffered write, so a killed process leaves whole lines and at most one torn
    last line. One process writes at a time: another waits ``timeout_s``, then raises HeldError, an
    InputError. An existing file raises FileExistsError, unless ``resume`` says to continue after
    its last whole line, once ``check``, which may raise, has read it. A new file begins with
    ``first``.
    """

    def __init__(self, path: Path, first: bytes = b"", resume: bool = False,
                 timeout_s: float = 0.0, check: Callable[[], Any] = lambda: None):
        self.path = path
        with ExitStack() as held:
            held.enter_context(locks.writer(path, timeout_s))
            if path.exists() and not resume:
                raise FileExistsError(errno.EEXIST, "exists already and is not overwritten",
                                      str(path))
            with files.writing(path):
                self._file = held.enter_context(open(path, "ab", buffering=0))
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

    Resuming a file with other columns, such as one of an older version, raises InputError.
    """

    def __init__(self, path: Path, table: str, resume: bool = False, timeout_s: float = 0.0):
        self._table = table
        super().__init__(path, _csv_line(columns(table)), resume, timeout_s, self._check_columns)

    def _check_columns(self) -> None:
        frame = _csv(self.path, self._table)
        validate(frame, self._table, str(self.path))
        if list(frame) != columns(self._table):
            raise InputError(f"{self.path} has the columns of the {self._table} table in another "
                             f"order: {choices(frame)}")

    def append(self, values: Sequence[Any]) -> None:
        """Write one row; InputError on a full disk, ValueError on a row of the wrong width."""
        self.extend([values])

    def extend(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write several rows at once, as ``append`` does one."""
        width = len(TABLES[self._table])
        for values in rows:
            if len(values) != width:
                raise ValueError(f"{self.path}: {len(values)} values for {width} columns")
        self.write(b"".join(map(_csv_line, rows)))


def _csv_line(values: Sequence[Any]) -> bytes:
    """Return a row of a CSV; line breaks in a text become spaces, and NaN an empty field."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(map(_field, values))
    return text.getvalue().encode()


def _field(value: Any) -> Any:
    if isinstance(value, str):
        return _LINE_BREAKS.sub(" ", value)
    return "" if isinstance(value, float) and math.isnan(value) else value


def write(frame, path: Path, table: str, derived: bool = False) -> Path:
    """Validate ``frame`` and write it to ``path``, as CSV or, by its suffix, as Parquet.

    An existing file raises InputError, unless it is ``derived`` from raw files and so replaced.
    """
    content = encoded(validate(frame, table, str(path)), path.suffix)
    if derived:
        return files.replace(path, content)
    return files.create(files.folder(path.parent) / path.name, content)


def encoded(frame, suffix: str) -> bytes:
    """Return a table as the content of a CSV or, by its suffix, of a Parquet file."""
    if suffix == ".parquet":
        frame = frame.copy(deep=False)
        frame.attrs = {}  # pandas would write them too: notes of this run, with local paths
        return frame.to_parquet(index=False, compression="zstd")
    return frame.to_csv(index=False).encode()


def read(path: Path, table: str):
    """Read one file of ``table``, CSV or Parquet; a torn last line of a CSV is dropped.

    A file of an older version gets the columns that came since at their defaults. Raises InputError
    naming the file and what does not fit.
    """
    is_parquet = path.suffix == ".parquet"
    frame = read_own(path, table) if is_parquet else with_defaults(_csv(path, table), table)
    return validate(frame, table, str(path))


def _csv(path: Path, table: str):
    """Return a CSV of ``table``: texts stay texts, and "nan" is an empty float (older files)."""
    texts, empty = {}, {}
    for name, column in TABLES[table].items():
        if column.kind == "str":
            texts[name] = str
        empty[name] = ["", "nan"] if column.kind == "float64" and column.empty else [""]
    return csv_files.frame(path, torn=True, dtype=texts, keep_default_na=False, na_values=empty)


def read_own(path: Path, table: str):
    """Read a Parquet file of ``table`` without checking its cells, for committed files.

    Raises InputError for a file that has other columns.
    """
    later = [name for name, column in TABLES[table].items() if column.default is not None]
    return with_defaults(read_parquet(path, columns(table), optional=later), table)


def read_parquet(path: Path, names: Sequence[str], others: bool = False,
                 optional: Sequence[str] = ()):
    """Return the columns ``names`` of a Parquet file as a DataFrame.

    More columns are allowed, and left out, only with ``others``; those that are ``optional`` may be
    missing. Raises InputError for a file that is missing, damaged, or has other columns.
    """
    import pandas as pd

    there = _parquet_columns(path)
    found = [name for name in names if name in there]
    needed = [name for name in names if name not in optional]
    check_names(found if others else there, dict.fromkeys(names), str(path), needed)
    with refused(f"{path} is not readable Parquet: "):
        return pd.read_parquet(path, columns=found)


def _parquet_columns(path: Path) -> list[str]:
    """Return the column names of a Parquet file; InputError for one that is missing or damaged."""
    import pyarrow.parquet as pq

    if not path.exists():
        raise InputError(f"{path} is missing")
    with refused(f"{path} is not readable Parquet: "):
        return pq.read_schema(path).names


def read_all(files: Iterable[Path], table: str):
    """Read and join several files of one table; no file gives an empty table."""
    import pandas as pd

    frames = [frame for frame in (read(path, table) for path in files) if len(frame)]
    if not frames:
        return pd.DataFrame({name: pd.Series(dtype=column.dtype)
                             for name, column in TABLES[table].items()})
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
    """Write ``value`` as JSON in one step."""
    return files.replace(path, encoded_json(value))


def read_json(path: Path) -> Any:
    """Read one JSON file; InputError names it when it is missing or damaged."""
    with refused(f"{path} is not readable JSON: "):
        return json.loads(csv_files.bytes_of(path))


def digest(value: Any) -> str:
    """Return a short hash of a value that JSON can write; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


@cache
def git_state() -> Facts:
    """Return this checkout's commit and whether it has uncommitted changes; None if not known."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(*words: str) -> str | None:
    """Return what git says; None without git, and where it fails or takes over 10 s."""
    try:
        return subprocess.check_output(["git", *words], cwd=paths.ROOT, text=True, timeout=10,
                                       stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.SubprocessError):
        return None


def utc_now() -> str:
    """Return the time in UTC, ISO 8601, to the millisecond: two short runs may end within 1 s."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def write_meta(path: Path, table: str, **facts: Any) -> Path:
    """Write ``<name>.meta.json`` beside ``path``: schema version, time, git state and ``facts``."""
    meta = {"table": table, "schema_version": SCHEMA_VERSION, "written_utc": utc_now(),
            **git_state(), **facts}
    stem = path.name.removesuffix(".csv").removesuffix(".parquet")
    return write_json(meta, path.with_name(f"{stem}.meta.json"))
