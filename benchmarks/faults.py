"""Sweeps and runs of jobs killed at random moments and as they start, several writers at once: what is lost or doubled."""

import tempfile
from pathlib import Path

from tests import killed, writers
from tests.interrupted import cut_again_and_again


def main() -> None:
    """Print what was left after 20 kills of a sweep, rounds of 2, 4 and 8 writers, and 1,000 early kills of each."""
    with tempfile.TemporaryDirectory() as home:
        print("   " + ", ".join(f"{name} {value}" for name, value in
                                cut_again_and_again(Path(home), kills=20, count=120, seed=0).items()))
    for scene, left in writers.run("sweep", "matrix", "networks", "--rounds", 300, "--kills", 334).items():
        print(f"   {scene}: " + ", ".join(f"{name} {value}" for name, value in left.items()))
    summary = killed.in_a_process("tests.killed", 1000)
    print("   runs of jobs: " + ", ".join(f"{name} {value}" for name, value in summary.items()))


if __name__ == "__main__":
    main()
