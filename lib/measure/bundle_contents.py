"""What a bundle may hold: which files, by folder and name, what must be in each, and what of a machine's owner stays out."""

import csv
import io
import os
import re
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, JsonValue

from lib import csv_files, files, store
from lib.config.base import Strict, build, mapping
from lib.errors import InputError, choices

META = ".meta.json"
FOLDERS = ("profiles", "runs", "ceilings", "points")
_TABLES = (("profiles", r".+_(train|eval|test)", "profile"), ("runs", r".+", "runs"), ("ceilings", r"ceilings_.+", "ceilings"),
           ("ceilings", r"overheads_.+", "overheads"), ("points", r"points_.+", "points"))
_RUN_FACTS = ("run_id", "data_note", "started_utc", "hardware_id")
_FACTS = {"profile": _RUN_FACTS, "runs": _RUN_FACTS, "overheads": (), "points": ("started_utc", "hardware_id"),
          "ceilings": ("started_utc", "machine", "hardware", "software", "load_at_start", "load_at_end")}  # that replays read
_KEYS = {"profile": ["split", "epoch", "global_step"], "runs": ["run_id"]}  # what a row is of, once
_WITH_PATHS = ("data_note", "failed", "software")
_PATH = re.compile(r"(?<![\w./])/(?:[^\s/:]+/)+")  # the folders of an absolute path


class _Typed(Strict):
    """Base of what JSON holds: a text is no number, and a number no text."""

    model_config = ConfigDict(strict=True, allow_inf_nan=True)  # a metric may be unknown


class Index(_Typed):
    """``bundle.json``: the format, the machine's name, and the SHA-256 of every other file by its name."""

    format: int
    machine: str
    files: dict[str, str]


class Load(_Typed):
    """What else ran on the machine, see ``load.Load``."""

    seconds: float
    own_cores: float
    other_cores: float
    stolen_cores: float
    involuntary_per_s: float


class Provenance(_Typed):
    """The provenance beside a table, as ``store.write_meta`` writes it."""

    table: str
    schema_version: str
    written_utc: str
    commit: str | None
    dirty: bool | None
    started_utc: str = ""
    notebook: str = ""
    run_id: str = ""
    data_note: str = ""
    machine: str = ""
    hardware_id: str = ""
    software_id: str = ""
    hardware: dict[str, JsonValue] = {}
    software: dict[str, JsonValue] = {}
    parameters: dict[str, JsonValue] = {}
    load_at_start: Load | None = None
    load_at_end: Load | None = None
    metrics: dict[str, dict[str, float]] = {}
    failed: list[str] = []


def table_of(name: str) -> str:
    """Return the table that a file of a bundle holds, or has the provenance of; InputError for a name that none has."""
    folder, _, file = name.partition("/")
    stem = _stem(file)
    table = next((table for place, pattern, table in _TABLES if place == folder and re.fullmatch(pattern, stem)), "")
    if not table or not re.fullmatch(files.NAME, stem) or file not in (f"{stem}.csv", stem + META):
        raise InputError(f"{name!r} lies outside of what a bundle holds: tables as .csv, with {META}, of {choices(FOLDERS)}")
    return table


def meta_of(name: str) -> str:
    """Return the name of the provenance of a table's file."""
    return name.removesuffix(".csv") + META


def _stem(name: str) -> str:
    return name.removesuffix(META).removesuffix(".csv")


def check(path: Path, name: str) -> None:
    """Read one file as what its name in the bundle says that it is; InputError for anything else."""
    table, stem = table_of(name), _stem(name.partition("/")[2])
    run_id, _, kind = stem.rpartition("_") if table == "profile" else (stem, "", "")
    if name.endswith(META):
        meta = build(Provenance, mapping(store.read_json(path), path), str(path))
        lacking = [fact for fact in _FACTS[table] if not getattr(meta, fact)]
        if lacking or meta.table != table or (meta.run_id and meta.run_id != run_id):
            raise InputError(f"it is of table {meta.table!r}, run {meta.run_id!r}, and lacks [{choices(lacking)}]")
        return
    frame = store.read(path, table)
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            raise InputError("its last line is cut short")
    if table in ("profile", "runs") and not (frame["run_id"] == run_id).all():
        raise InputError(f"it holds rows of another run than {run_id!r}")
    if table == "profile" and not (frame["task_type"] == kind).all():
        raise InputError(f"it holds rows of another pass than {kind!r}")
    doubled = frame.duplicated(_KEYS.get(table, list(frame)))
    if doubled.any():
        raise InputError(f"row {int(doubled.idxmax()) + 1} is there twice")


def without_host(path: Path, name: str) -> bytes:
    """Return a file's content without what tells its owner: the host name (the hardware id instead), folders of paths."""
    if name.endswith(META):
        meta = store.read_json(path)
        neutral = {fact: _without_folders(value) if fact in _WITH_PATHS else value for fact, value in meta.items()}
        return path.read_bytes() if neutral == meta else store.encoded_json(neutral)
    if table_of(name) != "runs":
        return path.read_bytes()
    header, *rows = csv_files.rows(csv_files.text(path), path)
    at, hardware = header.index("hostname"), header.index("hardware_id")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *([*row[:at], row[hardware], *row[at + 1:]] for row in rows)])
    return text.getvalue().encode()


def _without_folders(value: Any) -> Any:
    """Return a JSON value whose texts name files without their folders."""
    if isinstance(value, str):
        return _PATH.sub("", value)
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    return {name: _without_folders(item) for name, item in value.items()} if isinstance(value, dict) else value
