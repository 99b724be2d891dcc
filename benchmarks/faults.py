"""A sweep killed with SIGKILL at 20 random moments, and 1,000 runs of jobs killed within 50 ms of their start: what is lost?"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from lib import paths
from tests.interrupted import cut_again_and_again


def main() -> None:
    """Print what was found after the last resumption."""
    with tempfile.TemporaryDirectory() as home:
        print("   " + ", ".join(f"{name} {value}" for name, value in
                                cut_again_and_again(Path(home), kills=20, count=120, seed=0).items()))
    ran = subprocess.run([sys.executable, "-m", "tests.killed", "1000", "0"], cwd=paths.ROOT, capture_output=True, text=True,
                         check=False)  # in a process of its own: it forks
    print("   " + ", ".join(f"{name} {value}" for name, value in json.loads(ran.stdout).items()))


if __name__ == "__main__":
    main()
