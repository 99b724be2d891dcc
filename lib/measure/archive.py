"""What has been measured before: the tables of this machine, of imported ones, and of the reference."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices

PASSES = {"train": "train", "eval": "val", "test": "test"}
Progress = Callable[..., Iterable]


@dataclass(frozen=True)
class Profiled:
    """A run as a notebook shows it: its rows (``profile``), its summary (one row of ``runs``), files, metrics and a note."""

    rows: pd.DataFrame
    run: pd.Series
    note: str
    files: tuple[Path, ...] = ()
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)


def folders(source: str, reference: str = "") -> list[Path]:
    """Return the folders that hold measured tables: this machine's own and imported ones, or one reference machine's.

    Raises InputError listing the reference machines when there is none of that name.
    """
    if source == "measure":
        return [paths.DATA, *sorted(path for path in paths.IMPORTED.glob("*") if path.is_dir())]
    known = sorted(path.name for path in paths.REFERENCE.glob("*") if (path / "runs").is_dir())
    if not known or (reference and reference not in known):
        raise InputError(f"no reference machine {reference!r} in {paths.REFERENCE}; there are: {choices(known) or 'none'}")
    return [paths.REFERENCE / name for name in ([reference] if reference else known)]


def runs(source: str, reference: str = "") -> pd.DataFrame:
    """Return every run that was measured here and imported, or a reference machine's, oldest first."""
    files = [path for folder in folders(source, reference) for path in sorted((folder / "runs").glob("*.csv"))]
    return store.read_all(files, "runs").sort_values("timestamp", kind="stable", ignore_index=True)


def replay(workload: str, device: str, reference: str = "") -> Profiled:
    """Read back the newest run of a workload from a reference machine; ``device`` auto takes the CPU's.

    Raises InputError listing what the reference holds when it has no such run.
    """
    backend = "cpu" if device == "auto" else device.partition(":")[0]
    for folder in folders("replay", reference):
        table = store.read_all(sorted((folder / "runs").glob("*.csv")), "runs")
        fits = table[(table["workload_id"] == workload) & (table["backend"] == backend)]
        if len(fits):
            run = fits.sort_values("timestamp", kind="stable").iloc[-1]
            files = tuple(folder / "profiles" / f"{run['run_id']}_{kind}.csv" for kind in PASSES)
            meta = store.read_json(folder / "profiles" / f"{run['run_id']}_train.meta.json")
            note = f"REPLAY of {run['run_id']}, measured {run['timestamp']} on {folder.name}. {meta['data_note']}"
            return Profiled(store.read_all(files, "profile"), run, note, files, meta.get("metrics", {}))
    held = runs("replay", reference)
    pairs = sorted(set(held["workload_id"] + " on " + held["backend"]))
    raise InputError(f"the reference has no run of {workload} on {backend}; it has: {choices(pairs)}")


def rows(chosen: pd.DataFrame, source: str, reference: str = "") -> pd.DataFrame:
    """Return the profile rows of ``chosen`` runs (rows of ``runs``)."""
    found = [path for folder in folders(source, reference) for run_id in chosen["run_id"]
             for path in sorted((folder / "profiles").glob(f"{run_id}_*.csv"))]
    table = store.read_all(found, "profile")
    return table[table["hardware_id"].isin(chosen["hardware_id"])]


