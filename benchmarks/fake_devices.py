"""Sweeps on several GPUs that are simulated: rows a second and unusable rows of k devices together, against one alone."""

import tempfile
import time
from pathlib import Path

import pandas as pd
import pytest

from lib import paths
from lib.config.notebooks import SweepParams
from lib.measure import machine
from lib.measure.gpus.card import driver
from lib.measure.operators import aggregate, sweep, visitor
from tests import fake_gpus

COUNT, REPEATS, SEVERAL = 40, 3, (1, 2, 4)
TOY = {"COUNT": 3, "REPEATS": 1, "SEVERAL": (1, 2)}


def _sweep(devices: int, name: str) -> dict[str, float]:
    """Sweep COUNT points a device; return rows a second, start-up left out, and the share of unusable rows."""
    names = ",".join(f"cuda:{number}" for number in range(devices))
    folder = sweep.measure_sweep(SweepParams(op="activation,linear", device=names, budget_s=0, count=COUNT * devices, rounds=3,
                                             visit_ms=8, patience_s=0, threads=1, name=name))
    found = aggregate.read(folder)
    took_s = (found.visits["at_s"] + found.visits["visit_s"]).max() - found.visits["at_s"].min()  # workers begin side by side
    assert found.table["config"].is_unique, "a point was measured by two devices"
    return {"rows": len(found.table), "rows_per_s": len(found.table) / took_s,
            "unusable": float((found.table["verdict"] == "unusable").mean())}


def main() -> None:
    """Print medians of interleaved repeats."""
    rows = []
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv(fake_gpus.FILE, str(fake_gpus.Box(home, max(SEVERAL)).path))
        patch.setattr(visitor, "visits", fake_gpus.visits)
        patch.setattr(paths, "SWEEPS", Path(home) / "sweeps")
        fake_gpus.put(patch)
        for repeat in range(REPEATS):
            for devices in SEVERAL:
                fake_gpus.Box(home, devices)  # workers wait until every card of the box has one
                machine.hardware.cache_clear(), driver.cache_clear()
                begin = time.monotonic()
                rows.append({"devices": devices, **_sweep(devices, f"{devices}-{repeat}"), "s": time.monotonic() - begin})
    machine.hardware.cache_clear(), driver.cache_clear()
    table = pd.DataFrame(rows).groupby("devices").median()
    table["of_single"] = table["rows_per_s"] / table.index / table.loc[1, "rows_per_s"]
    for devices, row in table.iterrows():
        print(f"   {devices} devices: {row.rows:.0f} rows, {row.rows_per_s:.1f} a second, {row.of_single:.2f} of {devices} "
              f"single runs, {row.unusable:.0%} unusable, {row.s:.0f} s with start-up")
