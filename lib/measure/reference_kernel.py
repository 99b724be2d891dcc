"""A fixed piece of work beside every measurement, whose time tells when the processor was disturbed."""

import time
from collections import deque

import numpy as np
import torch

SLOW = 1.06  # of the usual, and the processor counts as disturbed
USUAL = 20  # percentile of its recent times
_MEMORY, _SETTLE_S, _WAIT_S = 600, 0.5, 0.12


class ReferenceKernel:
    """A fixed piece of work that tells whether the processor is as fast as usual just now.

    A neighbour on the same host shows in no counter of ours; it comes and goes within seconds, and slows this by as much
    as it slows what we measure.
    """

    def __init__(self):
        self._left, self._right, self._small = torch.randn(256, 256), torch.randn(256, 256), torch.randn(64)
        self._out, self._history = torch.empty(256, 256), deque(maxlen=_MEMORY)

    def ms(self) -> float:
        """Return how long it takes now: the geometric mean of six GEMMs on all threads and a hundred small calls on one."""
        begin = time.perf_counter_ns()
        for _ in range(6):
            torch.mm(self._left, self._right, out=self._out)
        middle = time.perf_counter_ns()
        for _ in range(100):
            torch.relu(self._small)
        taken = ((middle - begin) * (time.perf_counter_ns() - middle)) ** 0.5 / 1e6
        self._history.append(taken)
        return taken

    def settle(self) -> None:
        """Run it for SETTLE_S: a process is slow its first moments, and what is usual must be known."""
        end = time.perf_counter() + _SETTLE_S
        while time.perf_counter() < end:
            self.ms()
        self._history = deque(list(self._history)[len(self._history) // 2:], maxlen=_MEMORY)

    def is_slow(self, taken_ms: float) -> bool:
        """Return whether a time was slower than usual; usual is the fast fifth of the recent ones."""
        return taken_ms > SLOW * float(np.percentile(self._history, USUAL))

    def after(self) -> float:
        """Return the faster of two times, in ms: the first run finds its own data out of the caches, and the code cold."""
        return min(self.ms(), self.ms())

    def wait(self) -> float:
        """Run it, at most for WAIT_S, until the processor is as fast as usual; return the last time, in ms.

        Without sleeping: a processor that slept is slow its first moments.
        """
        end = time.perf_counter() + _WAIT_S
        taken = self.ms()
        while self.is_slow(taken) and time.perf_counter() < end:
            taken = self.ms()
        return taken
