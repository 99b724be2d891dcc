"""Sweeps and runs of jobs killed at random moments and as they start, several writers at once: what is lost or doubled."""

import tempfile
from pathlib import Path

from tests import killed
from tests.interrupted import cut_again_and_again

SWEEP_KILLS, CONFIGURATIONS, ROUNDS, WRITER_KILLS, JOB_KILLS = 20, 120, 300, 334, 1000
TOY = {"SWEEP_KILLS": 1, "CONFIGURATIONS": 6, "ROUNDS": 2, "WRITER_KILLS": 2, "JOB_KILLS": 4}


def main() -> None:
    """Print what was left after kills of a sweep, rounds of 2, 4 and 8 writers, and early kills of each."""
    with tempfile.TemporaryDirectory() as home:
        print("   " + ", ".join(f"{name} {value}" for name, value in
                                cut_again_and_again(Path(home), kills=SWEEP_KILLS, count=CONFIGURATIONS, seed=0).items()))
    for scene, left in killed.in_a_process("tests.writers", ROUNDS, WRITER_KILLS).items():
        print(f"   {scene}: " + ", ".join(f"{name} {value}" for name, value in left.items()))
    summary = killed.in_a_process("tests.killed", JOB_KILLS)
    print("   runs of jobs: " + ", ".join(f"{name} {value}" for name, value in summary.items()))


if __name__ == "__main__":
    main()
