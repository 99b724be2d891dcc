"""What has been measured before: the tables of this machine, of imported ones, and of the reference."""

from pathlib import Path

import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices


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


def rows(chosen: pd.DataFrame, source: str, reference: str = "") -> pd.DataFrame:
    """Return the profile rows of ``chosen`` runs (rows of ``runs``)."""
    files = [path for folder in folders(source, reference) for run_id in chosen["run_id"]
             for path in sorted((folder / "profiles").glob(f"{run_id}_*.csv"))]
    table = store.read_all(files, "profile")
    return table[table["hardware_id"].isin(chosen["hardware_id"])]
