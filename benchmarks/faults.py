"""Sweeps killed at random moments, several writers at once, writers killed as they start: what is lost, torn or doubled."""

import tempfile
from pathlib import Path

from tests import writers
from tests.interrupted import cut_again_and_again


def main() -> None:
    """Print what was found after the last resumption, and after rounds of two, four and eight writers and 1,000 early kills."""
    with tempfile.TemporaryDirectory() as home:
        print("   " + ", ".join(f"{name} {value}" for name, value in
                                cut_again_and_again(Path(home), kills=20, count=120, seed=0).items()))
    for scene, found in writers.run("sweep", "matrix", "networks", "--rounds", 300, "--kills", 334).items():
        print(f"   {scene}: " + ", ".join(f"{name} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
