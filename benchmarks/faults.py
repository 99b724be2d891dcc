"""Runs of jobs killed at random moments and at each statement of their queue: what is lost or doubled."""

from tests import killed

JOB_KILLS = 1000
TOY = {"JOB_KILLS": 4}


def main() -> None:
    """Print what was left after kills of runs."""
    summary = killed.in_a_process("tests.killed", JOB_KILLS)
    print("   runs of jobs: " + ", ".join(f"{name} {value}" for name, value in summary.items()))
