"""What has been measured before: the tables of this machine, of imported ones, and of the reference."""

from pathlib import Path

import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices


def machines_with(pattern: str) -> dict[str, Path]:
    """Return the reference machines that have what fits ``pattern`` below their folder, each with the last such path."""
    return {path.relative_to(paths.REFERENCE).parts[0]: path for path in sorted(paths.REFERENCE.glob(f"*/{pattern}"))}


def machine_with(pattern: str, what: str, reference: str = "", hint: str = "") -> tuple[str, Path]:
    """Return a reference machine (empty: the first) that has what fits ``pattern``, and its path, see ``machines_with``.

    Raises InputError, which lists the machines that have ``what``, and ends with ``hint``.
    """
    several = machines_with(pattern)
    if not several or (reference and reference not in several):
        which = f" {reference!r}" if reference else ""
        raise InputError(f"no reference machine{which} with {what} in {paths.REFERENCE}; there are: "
                         f"{choices(several) or 'none'}{hint}")
    name = reference or next(iter(several))
    return name, several[name]


def folders(source: str, reference: str = "") -> list[Path]:
    """Return the folders that hold measured tables: this machine's own and imported ones, or one reference machine's.

    Raises InputError listing the reference machines when there is none of that name.
    """
    if source == "measure":
        return [paths.DATA, *sorted(path for path in paths.IMPORTED.glob("*") if path.is_dir())]
    first, path = machine_with("runs", "runs", reference)
    return [path.parent for name, path in machines_with("runs").items() if name == first or not reference]


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
