"""Measured tables: of this machine, of imported machines, and of the reference."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from lib import paths, store
from lib.config.base import mapping
from lib.errors import InputError, choices, entry
from lib.work.runtimes import TORCH

NO_MACHINES = ("models",)  # other folders beside those of machines
RUNTIMES = "runtimes"  # the campaign of networks in several runtimes
TRAININGS = ("cpu", "gains", "profiles", "power", "neusight", "aiconfigurator", "timm")  # models --train


def machines(imported: bool = False) -> dict[str, Path]:
    """Return the folders of the reference machines by name: the committed ones, then those ``imported``.

    A replay that names no machine goes without these, so that it gives the same everywhere.
    """
    roots = (paths.REFERENCE, paths.IMPORTED) if imported else (paths.REFERENCE,)
    folders_by_name = {}
    for path in (path for root in roots for path in sorted(root.glob("[!.]*"))):
        if path.is_dir() and path.name not in NO_MACHINES:
            folders_by_name.setdefault(path.name, path)
    return folders_by_name


def machine_folder(reference: str) -> Path:
    """Return the folder of one reference machine, committed or imported; InputError lists the machines."""
    return entry(machines(imported=True), reference, "reference machine", f"in {paths.REFERENCE} or {paths.IMPORTED}")


def machines_with(pattern: str, imported: bool = False) -> dict[str, Path]:
    """Return the machines, see ``machines``, that have what fits ``pattern`` in their folder, each with the last such path."""
    last = {name: max(folder.glob(pattern), default=None) for name, folder in machines(imported).items()}
    return {name: path for name, path in last.items() if path}


def machine_with(pattern: str, what: str, reference: str = "", hint: str = "") -> tuple[str, Path]:
    """Return a reference machine (empty: the first) that has what fits ``pattern``, and its path, see ``machines_with``.

    Raises InputError, which lists the machines that have ``what``, and ends with ``hint``.
    """
    paths_by_name = machines_with(pattern, imported=bool(reference))
    if not paths_by_name or (reference and reference not in paths_by_name):
        which, where = (f" {reference!r}", f" or {paths.IMPORTED}") if reference else ("", "")
        raise InputError(f"no reference machine{which} with {what} in {paths.REFERENCE}{where}; there are: "
                         f"{choices(paths_by_name) or 'none'}{hint}")
    name = reference or next(iter(paths_by_name))
    return name, paths_by_name[name]


def stand_in(pattern: str, what: str, reference: str) -> tuple[str, str]:
    """Return the machine whose ``what`` is shown for a reference, and what a note says where that is another one.

    It is the reference itself where it has what fits ``pattern``, else (empty: always) the first committed one that has.
    """
    if not reference or next(machine_folder(reference).glob(pattern), None):
        return reference, ""
    name, _ = machine_with(pattern, what)
    return name, f"{reference} has no {what}: that of {name} stands in."


def identities(meta: Path) -> list[store.Facts]:
    """Return the facts of a provenance and, of that of a sweep, the identity of each device; InputError for what is neither."""
    facts = mapping(store.read_json(meta), meta)
    devices = facts.get("devices")
    return [facts, *(mapping(device, meta) for device in (devices.values() if isinstance(devices, dict) else ()))]


def hardware(folder: Path) -> store.Facts:
    """Return what a machine is made of, by the provenance of what was measured there; empty where none says so."""
    listed = (facts for path in sorted(folder.glob("**/*.meta.json")) for facts in identities(path))
    return next((facts["hardware"] for facts in listed if facts.get("hardware")), {})


def newest(folder: Path, stem: str, **wanted: str) -> tuple[store.Facts, Path] | None:
    """Return the CSV of the last measurement in ``folder`` that is named ``stem`` or ``stem-v2``, ..., after its provenance.

    Only those count whose provenance has the facts ``wanted``; None where there is none.
    """
    tables = [(store.read_json(meta), meta.with_name(meta.name.replace(".meta.json", ".csv")))
              for meta in [*folder.glob(f"{stem}.meta.json"), *folder.glob(f"{stem}-v*.meta.json")]]
    return max((table for table in tables if wanted.items() <= table[0].items()), key=lambda table: table[0]["started_utc"],
               default=None)


def replayed_device(wanted: str) -> str:
    """Return the id of a device of a reference machine: ``auto`` is the CPU, ``cuda`` the first GPU."""
    return {"auto": "cpu", "cuda": "cuda:0"}.get(wanted, wanted)


def of_device(table: pd.DataFrame, devices: Iterable[str], hardware_id: str = "", threads: int = 0) -> pd.DataFrame:
    """Return the rows of a table that are of like devices of this hardware (empty: any), on so many threads (0: any)."""
    same = table["device"].isin(devices)
    for name, wanted in (("hardware_id", hardware_id), ("threads", threads)):
        same &= table[name] == wanted if wanted else True
    return table[same]


def networks_files(folder: Path) -> list[Path]:
    """Return the tables ``networks`` of a machine, of each of its campaigns in torch alone.

    Those of a campaign RUNTIMES shared their processes with other runtimes: their memory and its faults are not torch's.
    """
    files = (*folder.glob("networks/*.parquet"), *folder.glob("networks/*/networks.parquet"))
    return sorted(path for path in files if path.parent.name != RUNTIMES)


def networks(folder: Path) -> pd.DataFrame:
    """Return the networks of all campaigns of a machine as torch runs them by default: contiguous, eager, on all threads."""
    rows = store.read_all(networks_files(folder), "networks")
    other = rows["channels_last"] | rows["compiled"] | (rows["runtime"] != TORCH) | (rows["instances"] > 1)
    return rows[~other.astype(bool) & (rows["threads"] == rows["threads"].max())].reset_index(drop=True)


def folders(source: str, reference: str = "") -> list[Path]:
    """Return the folders that hold measured tables: this machine's own and imported ones, or one reference machine's.

    Without ``reference`` a replay has those of all committed machines with runs. Raises InputError listing the machines where
    there is none, or none of that name.
    """
    if source == "measure":
        return [paths.DATA, *sorted(path for path in paths.IMPORTED.glob("[!.]*") if path.is_dir())]
    if reference:
        return [machine_folder(reference)]
    machine_with("runs", "runs")
    return [path.parent for path in machines_with("runs").values()]


def _runs(source: str, reference: str = "") -> pd.DataFrame:
    """Return ``runs`` with the ``folder`` of each run, and what it is called there (``plain_id``)."""
    return _read_runs(tuple((folder, path, path.stat().st_mtime_ns, path.stat().st_size)
                            for folder in folders(source, reference) for path in sorted((folder / "runs").glob("*.csv"))))


@lru_cache(maxsize=4)
def _read_runs(files: tuple[tuple[Path, Path, int, int], ...]) -> pd.DataFrame:
    """Return the runs of files, each given with its folder, time and size: they are read and checked once as they stand."""
    tables = [table.assign(folder=folder) for folder, path, *_ in files if len(table := store.read(path, "runs"))]
    table = pd.concat(tables, ignore_index=True) if tables else store.read_all([], "runs").assign(folder=None)
    table = table.drop_duplicates(["hardware_id", "run_id", "timestamp"], ignore_index=True)
    again = table.duplicated(["hardware_id", "run_id"])
    named = table["run_id"].mask(again, table["folder"].map(lambda folder: f"{folder.name}/") + table["run_id"])
    return table.assign(plain_id=table["run_id"], run_id=named).sort_values("timestamp", kind="stable", ignore_index=True)


def runs(source: str, reference: str = "") -> pd.DataFrame:
    """Return every run that was measured here and imported, or a reference machine's, oldest first.

    A run that several folders hold counts once. Machines of the same hardware may have runs of one id that began at different
    times: a later machine's is called MACHINE/RUN.
    """
    return _runs(source, reference).drop(columns=["folder", "plain_id"])


def rows(chosen: pd.DataFrame, source: str, reference: str = "") -> pd.DataFrame:
    """Return the profile rows of ``chosen`` runs (rows of ``runs``), by the ids that these have."""
    placed = chosen[["run_id", "hardware_id"]].drop_duplicates().merge(_runs(source, reference), on=["run_id", "hardware_id"])
    tables = []
    for run in placed.itertuples():
        table = store.read_all(sorted((run.folder / "profiles").glob(f"{run.plain_id}_*.csv")), "profile")
        tables.append(table[table["hardware_id"] == run.hardware_id].assign(run_id=run.run_id))
    tables = [table for table in tables if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else store.read_all([], "profile")


def folder_of(run: Mapping[str, Any], source: str) -> Path:
    """Return the folder that holds a run, a row of ``runs``; InputError where none does any more."""
    table = _runs(source)
    own = table[(table["run_id"] == run["run_id"]) & (table["hardware_id"] == run["hardware_id"])]
    if own.empty:
        raise InputError(f"no folder holds the run {run['run_id']} of {run['hardware_id']}")
    return own["folder"].iloc[0]
