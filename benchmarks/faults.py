"""Writers and runs of jobs killed at random moments and as they start, several writers at once: what is lost or doubled."""

from tests import killed

ROUNDS, WRITER_KILLS, JOB_KILLS = 300, 334, 1000
TOY = {"ROUNDS": 2, "WRITER_KILLS": 2, "JOB_KILLS": 4}


def main() -> None:
    """Print what was left after rounds of 2, 4 and 8 writers and early kills of each, and after kills of runs."""
    for scene, left in killed.in_a_process("tests.writers", ROUNDS, WRITER_KILLS).items():
        print(f"   {scene}: " + ", ".join(f"{name} {value}" for name, value in left.items()))
    summary = killed.in_a_process("tests.killed", JOB_KILLS)
    print("   runs of jobs: " + ", ".join(f"{name} {value}" for name, value in summary.items()))
