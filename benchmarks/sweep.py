"""Sweeps: start-up, pace, and whether two sweeps of the same 300 configurations agree, alone and beside a neighbour."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.processes import busy_neighbour
from lib.measure.operators import aggregate

COUNT, CROWDED, PATIENCE_S = 300, 40, 10
TOY = {"COUNT": 6, "CROWDED": 2, "PATIENCE_S": 0}
PROGRAM = """
import sys
if __name__ == "__main__":
    from lib.measure.operators import sweep
    from lib.config.notebooks import SweepParams
    sweep.measure_sweep(SweepParams(op="all", device="cpu", budget_s=0, count=int(sys.argv[1]), name=sys.argv[2],
                                    patience_s=float(sys.argv[3])))
"""


def _begun(home: Path, count: int, name: str) -> subprocess.Popen:
    script = home / "sweep.py"
    script.write_text(PROGRAM)
    return subprocess.Popen([sys.executable, str(script), str(count), name, str(PATIENCE_S)],
                            env={**os.environ, "LIB_OUTPUT": str(home)})


def _sweep(home: Path, count: int, name: str) -> aggregate.Sweep:
    begin = time.time()
    assert _begun(home, count, name).wait() == 0, f"the sweep {name!r} failed"
    folder = home / "data" / "sweeps" / name
    found = aggregate.read(folder)
    spent = time.time() - begin
    visits = found.visits["visit_s"].sum()
    print(f"   {name}: {len(found.table)} configurations in {spent:.0f} s, {len(found.table) / spent:.2f} a second all told, "
          f"{found.visits['config'].nunique() / visits:.2f} while visiting; {spent - visits:.1f} s outside of visits; "
          f"verdicts {found.table['verdict'].value_counts().to_dict()}", flush=True)
    return found


def _first_row_s(home: Path) -> float:
    begin, process = time.time(), _begun(home, 2, "start")
    path = home / "data" / "sweeps" / "start" / "cpu" / "repeats.csv"
    while not (path.is_file() and path.read_text().count("\n") > 1):
        time.sleep(0.02)
    seconds = time.time() - begin
    process.wait()
    return seconds


def _apart(one: aggregate.Sweep, two: aggregate.Sweep, what: str) -> None:
    both = one.table.merge(two.table, on="config", suffixes=("", "_2"))
    apart = np.abs(both["latency_ms_2"] / both["latency_ms"] - 1) * 100
    stable = apart[(both["verdict"] == "stable") & (both["verdict_2"] == "stable")]
    for name, part in ((f"all {len(apart)}", apart), (f"stable in both, {len(stable)}", stable)):
        if len(part):
            print(f"   {what}, {name}: apart by {part.median():.1f} % at the median, {part.quantile(0.9):.1f} % at p90, "
                  f"{part.max():.0f} % at worst", flush=True)
    for op, part in apart.groupby(both["op"]):
        print(f"      {op:12} {len(part):3}  median {part.median():5.1f} %  p90 {part.quantile(0.9):5.1f} %")


def main() -> None:
    """Print start-up, pace, agreement of two sweeps, and the verdicts of a third beside a busy process."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        one, two = _sweep(home, COUNT, "one"), _sweep(home, COUNT, "two")
        _apart(one, two, "two sweeps")
        print(f"   from the start of Python to the first row on disk: {_first_row_s(home):.1f} s")
        with busy_neighbour():
            _sweep(home, CROWDED, "crowded")
