"""A profiled run as a notebook shows it, and those of a reference machine read back."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lib import store
from lib.errors import InputError, choices
from lib.measure import archive

PASSES = {"train": "train", "eval": "val", "test": "test"}  # the split that each pass reads


@dataclass(frozen=True)
class Profiled:
    """A run as a notebook shows it: its rows (``profile``), its summary (one row of ``runs``), files, metrics and a note."""

    rows: pd.DataFrame
    run: pd.Series
    note: str
    files: tuple[Path, ...]
    metrics: dict[str, dict[str, float]]


def replay(workload: str, device: str, reference: str = "", precision: str = "fp32", batch_size: int = 0) -> Profiled:
    """Read back the newest run of a workload from a reference machine; ``device`` auto takes the CPU's.

    ``batch_size`` 0 takes any. Raises InputError listing what the reference holds when it has no such run.
    """
    backend = "cpu" if device == "auto" else device.partition(":")[0]
    for folder in archive.folders("replay", reference):
        table = store.read_all(sorted((folder / "runs").glob("*.csv")), "runs")
        fits = table[(table["workload_id"] == workload) & (table["backend"] == backend) & (table["precision"] == precision)
                     & ((table["batch_size"] == batch_size) | (batch_size == 0))]
        if len(fits):
            run = fits.sort_values("timestamp", kind="stable").iloc[-1]
            files = tuple(path for kind in PASSES if (path := folder / "profiles" / f"{run['run_id']}_{kind}.csv").is_file())
            meta = store.read_json(folder / "profiles" / f"{run['run_id']}_train.meta.json")
            note = f"REPLAY of {run['run_id']}, measured {run['timestamp']} on {folder.name}. {meta['data_note']}"
            return Profiled(store.read_all(files, "profile"), run, note, files, meta.get("metrics", {}))
    measured = archive.runs("replay", reference)
    runs = sorted(set(measured["workload_id"] + " on " + measured["backend"] + ", batch size "
                      + measured["batch_size"].astype(str) + ", " + measured["precision"]))
    size = f", batch size {batch_size}" if batch_size else ""
    raise InputError(f"the reference has no run of {workload} on {backend}{size}, {precision}; it has: {choices(runs)}")
