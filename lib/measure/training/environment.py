"""The record of an environment of the matrix: machine, software, clocks of its GPUs, and notes."""

import shutil
import subprocess
from pathlib import Path

from lib import locks, paths, store
from lib.errors import InputError
from lib.measure import machine


def path_of(environment: str) -> Path:
    """Return the path of the records of an environment, one per call of the matrix."""
    return paths.MATRIX / f"environment_{environment}.json"


def clocks() -> str:
    """Return clocks and power limits of the GPUs as nvidia-smi prints them; empty without it."""
    if not shutil.which("nvidia-smi"):
        return ""
    return subprocess.run(["nvidia-smi", "-q", "-d", "CLOCK,POWER"], capture_output=True,
                          text=True, check=False).stdout


def add(environment: str, device: str, started_utc: str, before: str, notes: str) -> Path:
    """Add a record of what was measured on a device; ``before`` are the clocks at the start.

    Raises InputError where the file holds no records.
    """
    path = path_of(environment)
    record = {"started_utc": started_utc, "ended_utc": store.utc_now(), "device": device,
              "notes": notes, "clocks_at_start": before, "clocks_at_end": clocks(),
              **machine.identity(), **store.git_state()}
    with locks.writer(path, locks.PATIENCE_S):
        records = store.read_json(path) if path.exists() else []
        if not isinstance(records, list):
            raise InputError(f"{path} holds no records of an environment; move it away")
        return store.write_json([*records, record], path)
