"""Files on disk: append-safe CSV, provenance beside every file, nothing ever overwritten."""

import csv
import hashlib
import io
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import InputError
from lib.tables import DTYPES, SCHEMA_VERSION, TABLES, columns, validate


class Appender:
    """A CSV that grows row by row and is readable at every moment.

    Each row is one unbuffered write, so a killed process leaves whole rows and at most one torn last line, which
    ``read`` drops. Opening an existing file raises FileExistsError, for nothing is overwritten, unless ``resume`` says
    to go on after its last whole row; a file that does not fit ``table`` then raises InputError.
    """

    def __init__(self, path: Path, table: str, resume: bool = False):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._width = path, len(columns(table))
        going_on = resume and path.exists() and path.stat().st_size > 0
        if going_on:
            read(path, table)
        self._file = open(path, "r+b" if going_on else "wb" if resume else "xb", buffering=0)  # noqa: SIM115 - closed by close()
        self._text = io.StringIO()
        self._csv = csv.writer(self._text, lineterminator="\n")
        if going_on:
            self._file.truncate(path.read_bytes().rfind(b"\n") + 1)
            self._file.seek(0, os.SEEK_END)
        else:
            self._write(columns(table))

    def _write(self, values: Sequence[Any]) -> None:
        self._text.seek(0)
        self._text.truncate()
        self._csv.writerow(values)
        line = self._text.getvalue().encode()
        try:
            if self._file.write(line) != len(line):
                raise OSError("short write")
        except OSError as error:
            raise InputError(f"{self.path}: cannot write the next row ({error.strerror or error}); "
                             "all rows before it are kept; free some space or set LIB_OUTPUT to another disk") from None

    def append(self, values: Sequence[Any]) -> None:
        """Write one row; InputError on a full disk, ValueError on a row of the wrong width."""
        if len(values) != self._width:
            raise ValueError(f"{self.path}: a row of {len(values)} values for {self._width} columns")
        self._write(values)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def write(frame, path: Path, table: str, derived: bool = False) -> Path:
    """Validate ``frame`` and write it once to ``path``, as CSV or, by its suffix, as Parquet.

    An existing file raises InputError, unless it is ``derived`` from raw files: then it is replaced in one step.
    """
    valid = validate(frame, table, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    if derived:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        _dump(valid, temporary, path.suffix)
        temporary.replace(path)
        return path
    if path.suffix == ".parquet":
        if path.exists():
            raise InputError(f"{path} exists already and is not overwritten")
        _dump(valid, path, path.suffix)
        return path
    try:
        valid.to_csv(path, index=False, mode="x")
    except FileExistsError:
        raise InputError(f"{path} exists already and is not overwritten") from None
    return path


def _dump(frame, path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        frame.to_parquet(path, index=False, compression="zstd")
    else:
        frame.to_csv(path, index=False)


def read(path: Path, table: str):
    """Read one file of ``table``, CSV or Parquet; a torn last line of a CSV (a killed writer) is dropped.

    Raises InputError naming the file and what does not fit.
    """
    import pandas as pd

    try:
        raw = path.read_bytes()
        if path.suffix == ".parquet":
            return validate(pd.read_parquet(io.BytesIO(raw)), table, str(path))
        whole = raw[: raw.rfind(b"\n") + 1]
        texts = {c.name: str for c in TABLES[table] if c.kind == "text"}
        frame = pd.read_csv(io.BytesIO(whole), dtype=texts, keep_default_na=False, na_values={
            c.name: [""] for c in TABLES[table]})
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} is not a readable table: {error}") from None
    return validate(frame, table, str(path))


def read_all(files: Iterable[Path], table: str):
    """Read and join several CSVs of one table; no file gives an empty table with the right columns."""
    import pandas as pd

    frames = [frame for frame in (read(path, table) for path in files) if len(frame)]
    if not frames:
        return pd.DataFrame({c.name: pd.Series(dtype=DTYPES[c.kind]) for c in TABLES[table]})
    return pd.concat(frames, ignore_index=True)


def fresh_name(stem: str, taken: Callable[[str], bool]) -> str:
    """Return ``stem``, or ``stem-v2``, ``stem-v3``, ...: the first that is not ``taken``."""
    names = itertools.chain([stem], (f"{stem}-v{version}" for version in itertools.count(2)))
    return next(name for name in names if not taken(name))


def write_json(value: Any, path: Path) -> Path:
    """Write ``value`` as JSON in one step: readers see the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, sort_keys=True)
            file.write("\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def read_json(path: Path) -> Any:
    """Read one JSON file; InputError names it when it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except ValueError as error:
        raise InputError(f"{path} is not readable JSON: {error}") from None


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
