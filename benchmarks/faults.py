"""A sweep killed at 20 random moments, 1,000 runs of jobs within 50 ms of their start: what is lost, torn or done twice."""

import tempfile
from pathlib import Path

from tests import killed
from tests.interrupted import cut_again_and_again


def main() -> None:
    """Print what was found after the last resumption."""
    with tempfile.TemporaryDirectory() as home:
        print("   " + ", ".join(f"{name} {value}" for name, value in
                                cut_again_and_again(Path(home), kills=20, count=120, seed=0).items()))
    print("   runs of jobs: " + ", ".join(f"{name} {value}" for name, value in killed.in_a_process(1000).items()))


if __name__ == "__main__":
    main()
