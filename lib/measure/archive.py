"""Measured tables of this machine, of imported ones, and of the committed reference machines."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lib import files, paths, store
from lib.config.base import mapping
from lib.errors import InputError, choices, entry
from lib.work.runtimes import TORCH

NO_MACHINES = ("models",)  # folders of the reference that hold no machine
RUNTIMES = "runtimes"  # the campaign of networks in several runtimes
_read = files.until_changed(store.read)
TRAININGS = ("cpu", "gains", "profiles", "neusight", "aiconfigurator", "timm")  # --train


def machines(imported: bool = False) -> dict[str, Path]:
    """Return the folders of the reference machines by name: the committed ones, then ``imported``.

    A replay that names no machine uses the committed ones alone, so that it is the same everywhere.
    """
    folders_by_name = {}
    for root in (paths.REFERENCE, paths.IMPORTED) if imported else (paths.REFERENCE,):
        for path in sorted(root.glob("[!.]*")):
            if path.is_dir() and path.name not in NO_MACHINES:
                folders_by_name.setdefault(path.name, path)
    return folders_by_name


def machine_folder(reference: str) -> Path:
    """Return the folder of one reference machine; InputError lists the machines."""
    return entry(machines(imported=True), reference, "reference machine",
                 f"in {paths.REFERENCE} or {paths.IMPORTED}")


def machines_with(pattern: str, imported: bool = False) -> dict[str, Path]:
    """Return the last path that fits ``pattern`` in each of the ``machines`` that have one."""
    last = {name: max(folder.glob(pattern), default=None)
            for name, folder in machines(imported).items()}
    return {name: path for name, path in last.items() if path}


def machine_with(pattern: str, what: str, reference: str = "", hint: str = "") -> tuple[str, Path]:
    """Return a reference machine (empty: the first) that has ``pattern``, and the path.

    Raises InputError, which lists the machines that have ``what``, and ends with ``hint``.
    """
    found = machines_with(pattern, imported=bool(reference))
    name = reference or next(iter(found), "")
    if name not in found:
        named = f" {reference!r}" if reference else ""
        where = f"{paths.REFERENCE} or {paths.IMPORTED}" if reference else paths.REFERENCE
        raise InputError(f"no reference machine{named} with {what} in {where}; "
                         f"there are: {choices(found) or 'none'}{hint}")
    return name, found[name]


def stand_in(pattern: str, what: str, reference: str) -> tuple[str, str]:
    """Return the reference machine, or the first that has ``pattern`` in its place, and a note."""
    if not reference or next(machine_folder(reference).glob(pattern), None):
        return reference, ""
    name, _ = machine_with(pattern, what)
    return name, f"{reference} has no {what}: that of {name} stands in."


def identities(meta: Path) -> list[store.Facts]:
    """Return the facts of a provenance, and those of each device of a sweep. InputError."""
    facts = mapping(store.read_json(meta), meta)
    devices = facts.get("devices")
    devices = devices.values() if isinstance(devices, dict) else ()
    return [facts, *(mapping(device, meta) for device in devices)]


def hardware(folder: Path) -> store.Facts:
    """Return the hardware of a machine by the provenance of its tables; empty if none has it."""
    for path in sorted(folder.glob("**/*.meta.json")):
        for facts in identities(path):
            if facts.get("hardware"):
                return facts["hardware"]
    return {}


def newest(folder: Path, stem: str, **wanted: str) -> tuple[store.Facts, Path] | None:
    """Return the newest CSV named ``stem`` or ``stem-v2``, ..., after its provenance, or None.

    Only provenances with the facts ``wanted`` count.
    """
    tables = []
    for meta in (*folder.glob(f"{stem}.meta.json"), *folder.glob(f"{stem}-v*.meta.json")):
        facts = store.read_json(meta)
        if wanted.items() <= facts.items():
            tables.append((facts, meta.with_name(meta.name.replace(".meta.json", ".csv"))))
    return max(tables, key=lambda table: table[0]["started_utc"], default=None)


def replayed_device(wanted: str) -> str:
    """Return the device id of a replay: ``auto`` is the CPU, ``cuda`` the first GPU."""
    return {"auto": "cpu", "cuda": "cuda:0"}.get(wanted, wanted)


def of_device(table: pd.DataFrame, devices: Iterable[str], hardware_id: str = "",
              threads: int = 0) -> pd.DataFrame:
    """Return the rows of some devices, of this hardware (empty: any) and thread count (0: any)."""
    table = table[table["device"].isin(devices)]
    if hardware_id:
        table = table[table["hardware_id"] == hardware_id]
    return table[table["threads"] == threads] if threads else table


def networks_files(folder: Path) -> list[Path]:
    """Return the tables ``networks`` of a machine, without that of other runtimes' processes."""
    tables = (*folder.glob("networks/*.parquet"), *folder.glob("networks/*/networks.parquet"))
    return sorted(path for path in tables if path.parent.name != RUNTIMES)


def networks(folder: Path) -> pd.DataFrame:
    """Return the networks of a machine as torch runs them by default, on all threads."""
    rows = store.read_all(networks_files(folder), "networks")
    changed = rows["channels_last"] | rows["compiled"]
    changed |= (rows["runtime"] != TORCH) | (rows["instances"] > 1)
    whole = rows["threads"] == rows["threads"].max()
    return rows[~changed.astype(bool) & whole].reset_index(drop=True)


def folders(source: str, reference: str = "") -> list[Path]:
    """Return the folders of measured tables: this machine's and imported ones, or of a reference.

    A replay without ``reference`` has all committed machines with runs. Raises InputError if there
    is none, or none of that name.
    """
    if source == "measure":
        imported = sorted(path for path in paths.IMPORTED.glob("[!.]*") if path.is_dir())
        return [paths.DATA, *imported]
    if reference:
        return [machine_folder(reference)]
    machine_with("runs", "runs")
    return [path.parent for path in machines_with("runs").values()]


def _runs(source: str, reference: str = "") -> pd.DataFrame:
    """Return ``runs`` with the ``folder`` of each run, and its id there (``plain_id``)."""
    tables = [store.read_all([], "runs").assign(folder=None)]
    for folder in folders(source, reference):
        for path in sorted((folder / "runs").glob("*.csv")):
            if len(table := _read(path, "runs")):
                tables.append(table.assign(folder=folder))
    table = pd.concat(tables[1:] or tables, ignore_index=True)
    table = table.drop_duplicates(["hardware_id", "run_id", "timestamp"], ignore_index=True)
    again = table.duplicated(["hardware_id", "run_id"])
    names = table["folder"].map(lambda folder: folder.name) + "/" + table["run_id"]
    table = table.assign(plain_id=table["run_id"], run_id=table["run_id"].mask(again, names))
    return table.sort_values("timestamp", kind="stable", ignore_index=True)


def runs(source: str, reference: str = "") -> pd.DataFrame:
    """Return every run measured here or imported, or those of a reference machine, oldest first.

    A run that several folders hold counts once. If two machines of one hardware have different
    runs of one id, the later machine's is called MACHINE/RUN.
    """
    return _runs(source, reference).drop(columns=["folder", "plain_id"])


def rows(chosen: pd.DataFrame, source: str, reference: str = "") -> pd.DataFrame:
    """Return the profile rows of ``chosen`` rows of ``runs``, with their run ids."""
    keys = ["run_id", "hardware_id"]
    placed = chosen[keys].drop_duplicates().merge(_runs(source, reference), on=keys)
    tables = [store.read_all([], "profile")]
    for run in placed.itertuples():
        profiles = sorted((run.folder / "profiles").glob(f"{run.plain_id}_*.csv"))
        table = store.read_all(profiles, "profile")
        table = table[table["hardware_id"] == run.hardware_id]
        if len(table):
            tables.append(table.assign(run_id=run.run_id))
    return pd.concat(tables[1:] or tables, ignore_index=True)


def folder_of(run: Mapping[str, Any], source: str) -> Path:
    """Return the folder that holds a row of ``runs``; InputError if none does any more."""
    table = _runs(source)
    same = (table["run_id"] == run["run_id"]) & (table["hardware_id"] == run["hardware_id"])
    if not same.any():
        raise InputError(f"no folder holds the run {run['run_id']} of {run['hardware_id']}")
    return table.loc[same, "folder"].iloc[0]
