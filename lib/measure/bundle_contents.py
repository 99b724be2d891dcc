"""What a bundle may hold: which files, by folder and name, what must be in each, and what of a machine's owner stays out."""

import filecmp
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, JsonValue

from lib import csv_files, files, store
from lib.config.base import Strict, build, mapping
from lib.errors import InputError, choices
from lib.tables import SCHEMA_VERSION

META = ".meta.json"
FOLDERS = ("profiles", "runs", "ceilings", "points", "sweeps", "networks", "models", "contention", "matrix", "schedule")
_KINDS = tuple((re.compile(pattern.replace("NAME", files.NAME)), kind) for pattern, kind in (
    (r"profiles/(NAME)_(train|eval|test)\.csv", "profile"), (r"runs/(NAME)\.csv", "runs"),
    (r"ceilings/ceilings_NAME\.csv", "ceilings"), (r"ceilings/overheads_NAME\.csv", "overheads"),
    (r"points/points_NAME\.csv", "points"), (r"sweeps/NAME/sweep\.parquet", "sweep"),
    (r"sweeps/(NAME)/NAME/configs\.csv", "configs"), (r"sweeps/(NAME)/NAME/repeats\.csv", "repeats"),
    (r"sweeps/(NAME)/NAME/energies\.csv", "energies"), (r"networks/(?:NAME/)?networks\.parquet", "networks"),
    (r"contention/NAME\.csv", "contention"), (r"matrix/cells\.csv", "cells"), (r"models/NAME\.json\.gz", "model"),
    (r"schedule/(?:(NAME)/)?(?:schedule|simulated)\.csv", "schedule"), (r"schedule/(?:NAME/)?ran\.json", "record")))
_NO_TABLES = ("model", "record")  # which readers of other rooms check
_ENTRANCES = ("runs", "sweep", "record")  # by which others read the rest: written last
_RUN_FACTS = ("run_id", "data_note", "started_utc", "hardware_id")
_FACTS = {"profile": _RUN_FACTS, "runs": _RUN_FACTS, "points": ("started_utc", "hardware_id"),
          "ceilings": ("started_utc", "machine", "hardware", "software", "load_at_start", "load_at_end"),  # that replays read
          "sweep": ("started_utc", "devices")}
_KEYS = {"profile": ["split", "epoch", "global_step"], "runs": ["run_id"], "repeats": ["config", "round"],  # what a row is of
         "sweep": ["config", "device"],
         "networks": ["network", "mode", "batch_size", "input_shape", "dtype", "channels_last", "device", "memory", "threads",
                      "compiled"]}
_NAMED = {"profile": (("run_id", "run"), ("task_type", "pass")), "runs": (("run_id", "run"),)}  # what a file's name says
_GROWING = ("configs", "repeats", "energies", "cells")  # append-only
_WRITTEN_ANEW = ("networks", "sweep", "model")  # as a whole each time
_MAY_REPEAT = ("configs", "energies", "cells", "networks")  # of which the last row of a case counts
_WITH_PATHS = ("data_note", "failed", "failures", "software", "devices")
_PATH = re.compile(r"(?<![\w./])/(?:[^\s/:]+/)+")  # the folders of an absolute path
_UUID = re.compile(r"(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
_OF_THE_OWNER = ("card", "pid")  # facts of a swept device: the UUID of the GPU, the worker's process
Readers = Mapping[str, Callable[[Path], Any]]


class _Typed(Strict):
    """Base of what JSON holds: a text is no number, and a number no text."""

    model_config = ConfigDict(strict=True, allow_inf_nan=True)  # a metric may be unknown


class Index(_Typed):
    """``bundle.json``: format, machine's name, SHA-256 of every other file by its name, and the schema of their tables."""

    format: int
    machine: str
    files: dict[str, str]
    schema_version: str = "1"


class GpuUse(_Typed):
    """What happened on a GPU meanwhile, see ``watch.GpuUse``."""

    others: float | None = None
    clock_mhz: float | None = None
    throttled: str = ""
    unknown: str = ""


class Load(_Typed):
    """What else ran on the machine, see ``load.Load``."""

    seconds: float
    own_cores: float
    other_cores: float
    stolen_cores: float
    involuntary_per_s: float
    gpu: GpuUse | None = None


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
    threads: int = 0
    tf32: bool = False
    note: str = ""
    devices: dict[str, dict[str, JsonValue]] = {}  # of a sweep: the identity of each
    failures: dict[str, str] = {}
    invalid: dict[str, int] = {}
    rounds: int = 0
    cases: int = 0
    bf16_instructions: list[str] = []


def table_of(name: str) -> str:
    """Return the table that a file of a bundle holds, or has the provenance of; InputError for a name that none has."""
    return _parts(name)[0]


def _parts(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the table of a file, and what its name says of it."""
    names = [name.removesuffix(META) + suffix for suffix in (".csv", ".parquet")] if name.endswith(META) else [name]
    for pattern, table in _KINDS:
        for match in filter(None, map(pattern.fullmatch, names)):
            return table, match.groups()
    raise InputError(f"{name!r} lies outside of what a bundle holds: tables and models, with {META}, of {choices(FOLDERS)}")


def meta_of(name: str) -> str:
    """Return the name of the provenance of a table's file."""
    return name.removesuffix(".csv").removesuffix(".parquet") + META


def is_read(name: str, readers: Readers) -> bool:
    """Return whether a file is a table, or of what ``readers`` read; InputError for a name that no bundle holds."""
    table = table_of(name)
    return table not in _NO_TABLES or table in readers


def lacking(name: str, names: Collection[str]) -> str:
    """Return why a file means nothing without others that are not among ``names``; empty where it has what it needs."""
    table, parts = _parts(name)
    if name.endswith(META):
        stem = name.removesuffix(META)
        return "" if {f"{stem}.csv", f"{stem}.parquet"} & set(names) else "comes without its table"
    folder = name.rpartition("/")[0]
    run = f"runs/{parts[0]}.csv" if table == "profile" else ""
    needs = {"profile": (run, "is of a run that was cut short: its line in runs/ is missing"),
             "sweep": (meta_of(name), "comes without its provenance"),
             "schedule": (f"{folder}/ran.json", "is of a run of jobs that was cut short: its ran.json is missing"),
             **dict.fromkeys(("configs", "repeats", "energies"), (
                 f"{folder.rpartition('/')[0]}/sweep.parquet",
                 "is of a sweep that was cut short: its sweep.parquet is missing"))}
    needed, why = needs.get(table, (name, ""))
    return why if needed not in names else ""


def written_order(names: Iterable[str]) -> list[str]:
    """Return files so that whoever reads meanwhile, or after a full disk, sees whole runs and sweeps: provenance first."""
    return sorted(names, key=lambda name: (table_of(name) in _ENTRANCES, not name.endswith(META), name))


def check(path: Path, name: str, readers: Readers) -> set[str]:
    """Read one file as what its name in the bundle says that it is; return the hardware ids in it.

    ``readers`` read, by kind, what is no table. Raises InputError for anything else.
    """
    table, parts = _parts(name)
    if name.endswith(META):
        return _check_meta(path, table, parts)
    if table in _NO_TABLES:
        if table not in readers:
            raise InputError(f"it is a {table}, which nobody here reads")
        readers[table](path)
        return set()
    frame = store.read(path, table)
    if path.suffix == ".csv" and not path.read_bytes().endswith(b"\n"):
        raise InputError("its last line is cut short")
    for (column, what), part in zip(_NAMED.get(table, ()), parts, strict=False):
        if not (frame[column] == part).all():
            raise InputError(f"it holds rows of another {what} than {part!r}")
    doubled = frame.duplicated(_KEYS.get(table, list(frame)))
    if doubled.any() and table not in _MAY_REPEAT:
        raise InputError(f"row {int(doubled.idxmax()) + 1} is there twice")
    return set(frame["hardware_id"]) if "hardware_id" in frame else set()


def _check_meta(path: Path, table: str, parts: tuple[str, ...]) -> set[str]:
    meta = build(Provenance, mapping(store.read_json(path), path), str(path))
    check_schema(meta.schema_version)
    missing = [fact for fact in _FACTS.get(table, ()) if not getattr(meta, fact)]
    run_id = parts[0] if table in ("profile", "runs") else ""
    if missing or meta.table != table or (meta.run_id and meta.run_id != run_id):
        raise InputError(f"it is of table {meta.table!r}, run {meta.run_id!r}, and lacks [{choices(missing)}]")
    return {meta.hardware_id} - {""}


def check_schema(version: str) -> None:
    """Raise InputError for tables of a schema that this program does not read."""
    if not re.fullmatch(r"[1-9]\d{0,5}", version) or int(version) > int(SCHEMA_VERSION):
        raise InputError(f"its tables have schema {version[:20]!r}; this version reads up to {SCHEMA_VERSION}: update the "
                         "program")


def succession(there: Path, new: Path, name: str, names: Collection[str], readers: Readers) -> str:
    """Return what a file is to the one of its name that is there: same, grown (it begins as that), older (the reverse), other.

    ``there`` and ``new`` are folders; what is derived of a sweep follows the sweep's raw files among ``names``. Of what is
    written as a whole each time (a model, networks, a sweep's table) the grown one is the later one, of the same machine, with
    all cases of the other.
    """
    if filecmp.cmp(there / name, new / name, shallow=False):
        return "same"
    table = table_of(name)
    if table in _GROWING:
        before, after = (there / name).read_bytes(), (new / name).read_bytes()
        return "grown" if after.startswith(before) else "older" if before.startswith(after) else "other"
    folder = name.rpartition("/")[0]
    raw = [raw_name for raw_name in names if table == "sweep" and raw_name.startswith(f"{folder}/")
           and table_of(raw_name) in _GROWING and (there / raw_name).is_file()]
    outcomes = {succession(there, new, raw_name, names, readers) for raw_name in raw} - {"same"}
    if outcomes:
        return outcomes.pop() if len(outcomes) == 1 else "other"
    return _later(there, new, name, readers) if table in _WRITTEN_ANEW else "other"


def _later(there: Path, new: Path, name: str, readers: Readers) -> str:
    """Compare a file that is rewritten each time with the existing one, by the times at which both were written."""
    (hardware, before_utc), (new_hardware, after_utc) = (_written(folder, name, readers) for folder in (there, new))
    before, after = (_cases(folder, name) for folder in (there, new))
    if not hardware & new_hardware or before_utc == after_utc:
        return "other"
    if before_utc < after_utc:
        return "grown" if before <= after else "other"
    return "older" if after <= before else "other"


def _cases(folder: Path, name: str) -> set[tuple[Any, ...]]:
    """Return the keys of a table's rows, by its name or that of its provenance; empty for other files."""
    table, path = table_of(name), folder / f"{name.removesuffix(META).removesuffix('.parquet')}.parquet"
    return set() if table in _NO_TABLES else set(store.read(path, table)[_KEYS[table]].itertuples(index=False, name=None))


def _written(folder: Path, name: str, readers: Readers) -> tuple[set[str], str]:
    """Return the hardware ids of a model or table and the UTC time at which it was written; empty where not recorded."""
    if table_of(name) == "model":
        facts = readers["model"](folder / name).facts
        return {facts.get("hardware_id", "")} - {""}, facts.get("calibrated_utc", "")
    path = folder / meta_of(name.removesuffix(META))
    facts = mapping(store.read_json(path), path) if path.is_file() else {}
    return _hardware_in(facts, path), str(facts.get("written_utc", ""))


def hardware_of(folder: Path) -> set[str]:
    """Return the hardware ids that a machine's folder says by its provenance; of a published device, its name."""
    return set().union(*(_hardware_in(mapping(store.read_json(path), path), path) for path in folder.glob("**/*" + META)))


def machines_in(meta: Path) -> set[str]:
    """Return the names of the machines that a provenance says."""
    facts = mapping(store.read_json(meta), meta)
    return {str(entry["machine"]) for entry in (facts, *_devices(facts, meta)) if entry.get("machine")}


def _devices(facts: Mapping[str, Any], path: Path) -> list[Mapping[str, Any]]:
    """Return the identities of a sweep's devices in the provenance that ``path`` holds; none in that of other tables."""
    devices = facts.get("devices")
    return [mapping(identity, path) for identity in devices.values()] if isinstance(devices, dict) else []


def _hardware_in(facts: Mapping[str, Any], path: Path) -> set[str]:
    ids = {facts.get("hardware_id", ""), f"published:{facts.get('device')}" if "source" in facts else "",
           *(identity.get("hardware_id", "") for identity in _devices(facts, path))}
    return ids - {""}


def without_host(path: Path, name: str) -> bytes:
    """Return a file's content without what tells its owner: the host name (the hardware id instead), folders, UUIDs of GPUs."""
    table = table_of(name)
    if name.endswith(META) or table == "record":
        meta = store.read_json(path)
        neutral = _neutral(meta) if table == "record" else {
            fact: _neutral(value) if fact in _WITH_PATHS else value for fact, value in meta.items()}
        if "devices" in neutral:
            neutral["devices"] = {device: {fact: value for fact, value in facts.items() if fact not in _OF_THE_OWNER}
                                  for device, facts in neutral["devices"].items()}
        return path.read_bytes() if neutral == meta else store.encoded_json(neutral)
    if path.suffix not in (".csv", ".parquet"):
        return path.read_bytes()
    frame = store.read(path, table) if path.suffix == ".parquet" else csv_files.frame(path, dtype=str, keep_default_na=False)
    neutral = frame.assign(**{column: frame[column].map(_neutral) for column in ("reason", "data_root") if column in frame},
                           **({"hostname": frame["hardware_id"]} if table == "runs" else {}))
    return path.read_bytes() if neutral.equals(frame) else store.encoded(neutral, path.suffix)


def _neutral(value: Any) -> Any:
    """Return a JSON value whose texts name files without their folders, and no GPU by its UUID."""
    if isinstance(value, str):
        return _UUID.sub("GPU", _PATH.sub("", value))
    if isinstance(value, list):
        return [_neutral(item) for item in value]
    return {name: _neutral(item) for name, item in value.items()} if isinstance(value, dict) else value
