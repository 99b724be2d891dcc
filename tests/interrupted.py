"""Kill a sweep at random moments and go on with it: what the test and the benchmark of interruptions share."""

import os
import random
import signal
import subprocess
import sys
import time

import pandas as pd

from lib.paths import ROOT

SWEEP = ("sweeps measure -p op activation,linear -p device cpu -p budget_s 0 -p rounds 3 -p visit_ms 3 -p patience_s 0 "
         "-p name cut -p threads 1 -p count").split()


def start(home, count):
    """Start the sweep in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "lib", *SWEEP, str(count)], cwd=ROOT, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, env={**os.environ, "LIB_OUTPUT": str(home), "TMPDIR": str(home)})


def rows(home):
    """Return the lines of the visits so far; the last may be cut short."""
    path = home / "data/sweeps/cut/cpu/repeats.csv"
    return path.read_text().splitlines(keepends=True)[1:] if path.is_file() else []


def cut_again_and_again(home, kills, count, seed):
    """Kill the sweep ``kills`` times at random moments while it measures, then let it end; return what was found.

    ``lost``: whole rows that were there at a kill and are not at the end; ``torn``: lines cut in two that stayed;
    ``twice``: (configuration, round) pairs measured twice; ``rows``, ``configurations`` and ``missing`` of the final table.
    """
    moments, seen, done = random.Random(seed), set(), 0
    while done < kills:
        before, process = len(rows(home)), start(home, count)
        while process.poll() is None and len(rows(home)) <= before:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.25))
        process.kill()
        if process.wait() != -signal.SIGKILL:
            break
        done += 1
        seen.update(line for line in rows(home) if line.endswith("\n"))
    assert start(home, count).wait(timeout=300) == 0
    final, table = rows(home), pd.read_parquet(home / "data/sweeps/cut/sweep.parquet")
    fields = [line.split(",") for line in final]
    pairs = [(key, number) for key, number, *_ in fields]
    return {"kills": done, "rows": len(final), "lost": len(seen.difference(final)),
            "torn": sum(len(parts) != len(fields[0]) for parts in fields), "twice": len(pairs) - len(set(pairs)),
            "configurations": len(table), "repeated": int(table["config"].duplicated().sum()),
            "missing": len({(key, number) for key in table["config"] for number in "012"}.difference(pairs))}
