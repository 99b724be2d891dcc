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
    """Rows (``profile``), summary (one row of ``runs``), note, files and metrics of a run."""

    rows: pd.DataFrame
    run: pd.Series
    note: str
    files: tuple[Path, ...]
    metrics: dict[str, dict[str, float]]


def replay(workload: str, device: str, reference: str = "", precision: str = "fp32",
           batch_size: int = 0) -> Profiled:
    """Read the newest run of a workload from a reference machine.

    Device ``auto`` takes the CPU's, ``batch_size`` 0 any. Raises InputError listing what the
    reference holds when it has no such run.
    """
    backend = "cpu" if device == "auto" else device.partition(":")[0]
    for folder in archive.folders("replay", reference):
        runs = store.read_all(sorted((folder / "runs").glob("*.csv")), "runs")
        fits = runs[(runs["workload_id"] == workload) & (runs["backend"] == backend)
                    & (runs["precision"] == precision)
                    & ((runs["batch_size"] == batch_size) | (batch_size == 0))]
        if len(fits):
            run = fits.sort_values("timestamp", kind="stable").iloc[-1]
            stem = folder / "profiles" / run["run_id"]
            files = [stem.with_name(f"{stem.name}_{kind}.csv") for kind in PASSES]
            files = tuple(path for path in files if path.is_file())
            meta = store.read_json(stem.with_name(f"{stem.name}_train.meta.json"))
            note = (f"REPLAY of {run['run_id']}, measured {run['timestamp']} on {folder.name}. "
                    f"{meta['data_note']}")
            rows = store.read_all(files, "profile")
            return Profiled(rows, run, note, files, meta.get("metrics", {}))
    runs = archive.runs("replay", reference)
    there = sorted(set(runs["workload_id"] + " on " + runs["backend"] + ", batch size "
                       + runs["batch_size"].astype(str) + ", " + runs["precision"]))
    size = f", batch size {batch_size}" if batch_size else ""
    raise InputError(f"the reference has no run of {workload} on {backend}{size}, {precision}; "
                     f"it has: {choices(there)}")
