"""How long the tools take to start, and the notebooks and the page to build."""

import time

from benchmarks.processes import python_s
from lib import paths, report

COMMANDS = {"python -c 'import lib'": ["-c", "import lib"], "python -c pass (for comparison)": ["-c", "pass"],
            "python -m lib --help": ["-m", "lib", "--help"],
            "python -m lib run --dry-run": ["-m", "lib", "run", "--dry-run", "--devices", "cpu"]}
RUNS = 7
TOY = {"RUNS": 1}


def main() -> None:
    """Print medians of whole processes, and what the last runs of the notebooks took."""
    for name, words in COMMANDS.items():
        print(f"   {name}: {python_s(words, RUNS)[0]:.3f} s (median of {RUNS})")
    outcomes = report.manifest(paths.EXECUTED)
    if outcomes:
        begin = time.perf_counter()
        report.page(paths.EXECUTED)
        print(f"   building the page: {time.perf_counter() - begin:.1f} s")
        print("   notebooks, as last run: " + ", ".join(f"{outcome.stem} {outcome.seconds:.0f} s" for outcome in outcomes))
