"""A sweep killed with SIGKILL at 20 random moments: what is lost, torn or measured twice."""

import tempfile
from pathlib import Path

from tests.interrupted import cut_again_and_again


def main() -> None:
    """Print what was found after the last resumption."""
    with tempfile.TemporaryDirectory() as home:
        print("   " + ", ".join(f"{name} {value}" for name, value in
                                cut_again_and_again(Path(home), kills=20, count=120, seed=0).items()))


if __name__ == "__main__":
    main()
