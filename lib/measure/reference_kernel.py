"""A fixed piece of work beside every measurement, whose time tells when the processor was disturbed."""

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

SLOW = 1.06  # of the usual, and the processor counts as disturbed
USUAL = 20  # percentile of its recent times
_MEMORY, _SETTLE_S, _WAIT_S = 600, 0.5, 0.12
ELASTICITY, _WEIGHT = 0.45, 1.0  # expected of a machine of which nothing is known, and what that weighs, in squared logs


class _Reversal:
    """A square matrix whose rows and columns are reversed in turn by GEMMs, each of which reads what all threads wrote."""

    def __init__(self, size: int):
        self._reversal = torch.eye(size).flip(0).contiguous()
        self._matrix, self._other = torch.randn(size, size), torch.empty(size, size)

    def run(self, pairs: int) -> None:
        for _ in range(pairs):
            torch.mm(self._reversal, self._matrix, out=self._other)
            torch.mm(self._other, self._reversal, out=self._matrix)


class ReferenceKernel:
    """A fixed piece of work that tells whether the processor is as fast as usual just now.

    A neighbour on the same host shows in no counter of ours; it comes and goes within seconds, and slows this by as much
    as it slows what we measure. A host that moves a virtual machine's cores apart slows what these pass to each other.
    Off the CPU it does not run: its times are NaN.
    """

    def __init__(self, device: torch.device):
        self._runs = device.type == "cpu"
        self._large, self._small, self._vector = _Reversal(256), _Reversal(96), torch.randn(64)
        self._history = deque(maxlen=_MEMORY)

    def ms(self) -> float:
        """Return how long it takes now: the geometric mean of three parts.

        Six large GEMMs on all threads; twelve small ones, whose threads mostly wait for each other's results; a hundred calls
        on one thread.
        """
        if not self._runs:
            return np.nan
        begin = time.perf_counter_ns()
        self._large.run(3)
        first = time.perf_counter_ns()
        self._small.run(6)
        second = time.perf_counter_ns()
        for _ in range(100):
            torch.relu(self._vector)
        taken = ((first - begin) * (second - first) * (time.perf_counter_ns() - second)) ** (1 / 3) / 1e6
        self._history.append(taken)
        return taken

    def settle(self) -> None:
        """Run it for SETTLE_S: a process is slow its first moments, and what is usual must be known."""
        end = time.perf_counter() + _SETTLE_S
        while self._runs and time.perf_counter() < end:
            self.ms()
        self._history = deque(list(self._history)[len(self._history) // 2:], maxlen=_MEMORY)

    def is_slow(self, taken_ms: float) -> bool:
        """Return whether a time was slower than usual; usual is the fast fifth of the recent ones."""
        return self._runs and taken_ms > SLOW * float(np.percentile(self._history, USUAL))

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


@dataclass(frozen=True)
class ProcessorSpeed:
    """How fast a processor usually was, by the reference kernel, and how other work follows: with a power of its time.

    A neighbour that shares a core or its clock slows the kernel, which computes in its caches, more than work that waits for
    memory. It may stay for many minutes, so that no pass of a measurement found the processor as fast as usual.
    """

    usual_ms: float
    elasticity: float

    @classmethod
    def from_visits(cls, visits: pd.DataFrame, expected: float = ELASTICITY) -> "ProcessorSpeed":
        """Learn from visits that repeat configurations (``config, latency_ms, yardstick_ms``): least squares within each.

        ``expected`` is the elasticity of which few or alike visits leave most.
        """
        good = visits[(visits["yardstick_ms"] > 0) & (visits["latency_ms"] > 0)]
        if good.empty:
            return cls(float("nan"), expected)
        logs = np.log(good[["yardstick_ms", "latency_ms"]])
        kernel, latency = (logs - logs.groupby(good["config"]).transform("median")).to_numpy().T
        slope = (kernel @ latency + _WEIGHT * expected) / (kernel @ kernel + _WEIGHT)
        return cls(float(np.percentile(good["yardstick_ms"], USUAL)), float(np.clip(slope, 0.0, 1.0)))

    def at_usual_ms(self, latency_ms: pd.Series, reference_ms: pd.Series) -> pd.Series:
        """Return what latencies are on the processor as fast as usual; as they are where the kernel's time is not known."""
        return latency_ms * (self.usual_ms / reference_ms).fillna(1.0) ** self.elasticity
