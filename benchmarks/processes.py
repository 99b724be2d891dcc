"""Whole processes, for benchmarks: what one takes, and a neighbour that is busy."""

import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from lib import paths


def python_s(words: Sequence[str], times: int) -> tuple[float, float]:
    """Return the medians of wall and user time of Python with ``words``; beside busy neighbours the latter tells more."""
    taken = []
    for _ in range(times):
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run([sys.executable, *words], check=True, capture_output=True, cwd=paths.ROOT)
        taken.append((time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before))
    wall_s, user_s = np.median(taken, axis=0)
    return float(wall_s), float(user_s)


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Run a process that is always busy."""
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()
