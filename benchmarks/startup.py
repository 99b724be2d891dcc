"""How long the tools take to start, and the notebooks and the page to build."""

import subprocess
import sys
import time

import numpy as np

from lib import paths
from lib.report import page, runner

COMMANDS = {"python -c 'import lib'": ["-c", "import lib"], "python -c pass (for comparison)": ["-c", "pass"],
            "python -m lib --help": ["-m", "lib", "--help"],
            "python -m lib run --dry-run": ["-m", "lib", "run", "--dry-run", "--devices", "cpu"]}
RUNS = 7
TOY = {"RUNS": 1}


def main() -> None:
    """Print medians of whole processes, and what the last runs of the notebooks took."""
    for name, words in COMMANDS.items():
        seconds = []
        for _ in range(RUNS):
            begin = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, capture_output=True, cwd=paths.ROOT)
            seconds.append(time.perf_counter() - begin)
        print(f"   {name}: {np.median(seconds):.3f} s (median of {RUNS})")
    outcomes = runner.manifest(paths.EXECUTED)
    if outcomes:
        begin = time.perf_counter()
        page.assemble(paths.EXECUTED)
        print(f"   building the page: {time.perf_counter() - begin:.1f} s")
        print("   notebooks, as last run: " + ", ".join(f"{outcome.stem} {outcome.seconds:.0f} s" for outcome in outcomes))
