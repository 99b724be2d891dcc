"""What a bundle may hold: which files, by folder and name, what must be in each, and what of a machine's owner stays out."""

import filecmp
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AllowInfNan, ConfigDict, JsonValue

from lib import csv_files, store
from lib.config.base import Strict, mapping, parse
from lib.errors import InputError, choices
from lib.files import NAME
from lib.measure.archive import identities
from lib.measure.load import Load
from lib.tables import SCHEMA_VERSION

META = ".meta.json"
FOLDERS = ("profiles", "runs", "ceilings", "points", "sweeps", "networks", "models", "matrix", "schedule",
           "training")
_WITH_PATHS = ("data_note", "failed", "failures", "software", "devices")
_PATH = re.compile(r"(?<![\w./])/(?:[^\s/:]+/)+")  # the folders of an absolute path
_UUID = re.compile(r"(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
_OF_THE_OWNER = ("card", "pid")  # facts of a swept device: the UUID of the GPU, the worker's process
Readers = Mapping[str, Callable[[Path], Any]]


class _Typed(Strict):
    """Base of what JSON holds: a text is no number, and a number no text."""

    model_config = ConfigDict(strict=True)


class Index(_Typed):
    """``bundle.json``: format, machine's name, SHA-256 of every other file by its name, and the schema of their tables."""

    format: int
    machine: str
    files: dict[str, str]
    schema_version: str = "1"


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
    metrics: dict[str, dict[str, Annotated[float, AllowInfNan()]]] = {}  # one may be unknown
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
    int8_instructions: list[str] = []
    openvino: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of files in a bundle: ``pattern`` is that of their names, ``table`` what they hold.

    ``facts`` must be in the provenance. ``keys`` are the columns that tell rows apart (empty: all), unless a row may
    ``repeat``: then the last one counts. ``named`` are columns, with words for them, whose value the file's name says. A file
    means nothing without the file that it ``needs``, named by the groups of the pattern, for a reason. It ``grows`` by rows, is
    written ``anew`` as a whole, or neither. Other files are read by way of an ``entrance``, which is written last. What is
    ``foreign`` is no table: readers of other rooms check it.
    """

    table: str
    pattern: str
    facts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    named: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, str] = ("", "")
    repeat: bool = False
    grows: bool = False
    anew: bool = False
    entrance: bool = False
    foreign: bool = False


_RUN = ("run_id", "data_note", "started_utc", "hardware_id")
_CEILINGS = ("started_utc", "machine", "hardware", "software", "load_at_start", "load_at_end")  # that replays read
_NETWORK = ("network", "mode", "batch_size", "input_shape", "dtype", "channels_last", "device", "memory", "threads", "compiled",
            "runtime", "instances")
_OF_RUN = ("runs/{0}.csv", "is of a run that was cut short: its line in runs/ is missing")
_OF_SWEEP = ("sweeps/{0}/sweep.parquet", "is of a sweep that was cut short: its sweep.parquet is missing")
_OF_TRAINING = ("training/{0}/{1}/summary.json", "is of a fine-tune that was cut short: its summary.json is missing")
_OF_JOBS = ("{0}ran.json", "is of a run of jobs that was cut short: its ran.json is missing")
_KINDS = (
    Kind("profile", rf"profiles/({NAME})_(train|eval|test)\.csv", _RUN, ("split", "epoch", "global_step"),
         (("run_id", "run"), ("task_type", "pass")), _OF_RUN),
    Kind("profile", rf"training/({NAME})/({NAME})/profile\.csv", ("run_id", "started_utc"), needs=_OF_TRAINING, repeat=True),
    Kind("history", rf"training/({NAME})/({NAME})/history\.csv", needs=_OF_TRAINING, repeat=True),
    Kind("summary", rf"training/({NAME})/({NAME})/summary\.json", entrance=True, foreign=True),
    Kind("runs", rf"runs/({NAME})\.csv", _RUN, ("run_id",), (("run_id", "run"),), entrance=True),
    Kind("ceilings", rf"ceilings/ceilings_{NAME}\.csv", _CEILINGS),
    Kind("overheads", rf"ceilings/overheads_{NAME}\.csv"),
    Kind("points", rf"points/points_{NAME}\.csv", ("started_utc", "hardware_id")),
    Kind("sweep", rf"sweeps/({NAME})/sweep\.parquet", ("started_utc", "devices"), ("config", "device"),
         needs=("sweeps/{0}/sweep.meta.json", "comes without its provenance"), anew=True, entrance=True),
    Kind("configs", rf"sweeps/({NAME})/{NAME}/configs\.csv", needs=_OF_SWEEP, repeat=True, grows=True),
    Kind("repeats", rf"sweeps/({NAME})/{NAME}/repeats\.csv", keys=("config", "round"), needs=_OF_SWEEP, grows=True),
    Kind("energies", rf"sweeps/({NAME})/{NAME}/energies\.csv", needs=_OF_SWEEP, repeat=True, grows=True),
    Kind("networks", rf"networks/(?:{NAME}/)?networks\.parquet", keys=_NETWORK, repeat=True, anew=True),
    Kind("cells", r"matrix/cells\.csv", repeat=True, grows=True),
    Kind("model", rf"models/{NAME}\.json\.gz", anew=True, foreign=True),
    Kind("schedule", rf"(schedule/(?:{NAME}/)?)(?:schedule|simulated)\.csv", needs=_OF_JOBS),
    Kind("record", rf"schedule/(?:{NAME}/)?ran\.json", entrance=True, foreign=True))


def table_of(name: str) -> str:
    """Return the table that a file of a bundle holds, or has the provenance of; InputError for a name that none has."""
    return _kind(name)[0].table


def _kind(name: str) -> tuple[Kind, tuple[str, ...]]:
    """Return the kind of a file, and what its name says of it."""
    names = [name.removesuffix(META) + suffix for suffix in (".csv", ".parquet")] if name.endswith(META) else [name]
    for kind in _KINDS:
        for match in (re.fullmatch(kind.pattern, candidate) for candidate in names):
            if match:
                return kind, match.groups()
    raise InputError(f"{name!r} lies outside of what a bundle holds: tables and models, with {META}, of {choices(FOLDERS)}")


def is_read(name: str, readers: Readers) -> bool:
    """Return whether a file is a table, or of what ``readers`` read; InputError for a name that no bundle holds."""
    kind, _ = _kind(name)
    return not kind.foreign or kind.table in readers


def lacking(name: str, names: Collection[str]) -> str:
    """Return why a file means nothing without others that are not among ``names``; empty where it has what it needs."""
    kind, parts = _kind(name)
    if name.endswith(META):
        stem = name.removesuffix(META)
        return "" if {f"{stem}.csv", f"{stem}.parquet"} & set(names) else "comes without its table"
    needed, why = kind.needs
    return why if needed and needed.format(*parts) not in names else ""


def written_order(names: Iterable[str]) -> list[str]:
    """Return files so that whoever reads meanwhile, or after a full disk, sees whole runs and sweeps: provenance first."""
    return sorted(names, key=lambda name: (_kind(name)[0].entrance, not name.endswith(META), name))


def check(path: Path, name: str, readers: Readers) -> set[str]:
    """Read one file as what its name in the bundle says that it is; return the hardware ids in it.

    ``readers`` read, by kind, what is no table. Raises InputError for anything else.
    """
    kind, parts = _kind(name)
    if name.endswith(META):
        return _check_meta(path, kind, parts)
    if kind.foreign:
        if kind.table not in readers:
            raise InputError(f"it is a {kind.table}, which nobody here reads")
        readers[kind.table](path)
        return set()
    frame = store.read(path, kind.table)
    if path.suffix == ".csv" and not path.read_bytes().endswith(b"\n"):
        raise InputError("its last line is cut short")
    for (column, what), part in zip(kind.named, parts, strict=False):
        if not (frame[column] == part).all():
            raise InputError(f"it holds rows of another {what} than {part!r}")
    doubled = frame.duplicated(list(kind.keys) or None)
    if doubled.any() and not kind.repeat:
        raise InputError(f"row {int(doubled.idxmax()) + 1} is there twice")
    return set(frame["hardware_id"]) if "hardware_id" in frame else set()


def _check_meta(path: Path, kind: Kind, parts: tuple[str, ...]) -> set[str]:
    meta = parse(Provenance, store.encoded_json(mapping(store.read_json(path), path)), str(path))
    check_schema(meta.schema_version)
    missing = [fact for fact in kind.facts if not getattr(meta, fact)]
    if missing or meta.table != kind.table or (meta.run_id and meta.run_id not in parts):
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
    kind, _ = _kind(name)
    if kind.grows:
        before, after = (there / name).read_bytes(), (new / name).read_bytes()
        return "grown" if after.startswith(before) else "older" if before.startswith(after) else "other"
    folder = name.rpartition("/")[0]
    raw = [raw_name for raw_name in names if kind.table == "sweep" and raw_name.startswith(f"{folder}/")
           and _kind(raw_name)[0].grows and (there / raw_name).is_file()]
    outcomes = {succession(there, new, raw_name, names, readers) for raw_name in raw} - {"same"}
    if outcomes:
        return outcomes.pop() if len(outcomes) == 1 else "other"
    return _later(there, new, name, readers) if kind.anew else "other"


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
    (kind, _), path = _kind(name), folder / f"{name.removesuffix(META).removesuffix('.parquet')}.parquet"
    return set() if kind.foreign else set(store.read(path, kind.table)[list(kind.keys)].itertuples(index=False, name=None))


def _written(folder: Path, name: str, readers: Readers) -> tuple[set[str], str]:
    """Return the hardware ids of a model or table and the UTC time at which it was written; empty where not recorded."""
    if table_of(name) == "model":
        facts = readers["model"](folder / name).facts
        return {facts.get("hardware_id", "")} - {""}, facts.get("calibrated_utc", "")
    path = folder / (name.removesuffix(META).removesuffix(".parquet") + META)
    if not path.is_file():
        return set(), ""
    return _hardware_in(path), str(identities(path)[0].get("written_utc", ""))


def hardware_of(folder: Path) -> set[str]:
    """Return the hardware ids that a machine's folder says by its provenance; of a published device, its name."""
    return set().union(*map(_hardware_in, folder.glob("**/*" + META)))


def machines_in(meta: Path) -> set[str]:
    """Return the names of the machines that a provenance says."""
    return {str(entry["machine"]) for entry in identities(meta) if entry.get("machine")}


def _hardware_in(meta: Path) -> set[str]:
    facts, *devices = identities(meta)
    published = f"published:{facts.get('device')}" if "source" in facts else ""
    return {published, *(entry.get("hardware_id", "") for entry in (facts, *devices))} - {""}


def without_host(path: Path, name: str) -> bytes:
    """Return a file's content without what tells its owner: the host name (the hardware id instead), folders, UUIDs of GPUs."""
    table = table_of(name)
    if name.endswith(META) or table in ("record", "summary"):
        meta = store.read_json(path)
        neutral = _neutral(meta) if not name.endswith(META) else {
            fact: _neutral(value) if fact in _WITH_PATHS or name.startswith("training/") else value
            for fact, value in meta.items()}
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
