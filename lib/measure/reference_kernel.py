"""Fixed CPU work before and after a measurement, whose time tells whether the CPU was disturbed."""

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from lib.measure.disturbance import LoadWatch
from lib.measure.statistics import UNUSABLE

SLOW = 1.06  # times the usual time, from which the processor counts as disturbed
USUAL = 20  # percentile of the recent times that is the usual time
_RECENT = 600  # times that are remembered
_SETTLE_S, _WAIT_S, _NOW_S = 0.5, 0.12, 0.15
ELASTICITY, _WEIGHT = 0.45, 1.0  # of a machine of which nothing is known; its weight


class _Reversal:
    """A matrix that GEMMs reverse in turn, each of which reads what all threads wrote."""

    def __init__(self, size: int):
        self._reversal = torch.eye(size).flip(0).contiguous()
        self._matrix, self._other = torch.randn(size, size), torch.empty(size, size)

    def run(self, pairs: int) -> None:
        for _ in range(pairs):
            torch.mm(self._reversal, self._matrix, out=self._other)
            torch.mm(self._other, self._reversal, out=self._matrix)


class ReferenceKernel:
    """Fixed CPU work that tells whether the processor is as fast as usual now.

    Its time is the geometric mean of six large GEMMs on all threads, twelve small ones, whose
    threads mostly wait for each other, and a hundred calls on one thread. Off the CPU it is NaN.
    """

    def __init__(self, device: torch.device):
        self._runs = device.type == "cpu"
        self._large, self._small, self._vector = _Reversal(256), _Reversal(96), torch.randn(64)
        self._recent = deque(maxlen=_RECENT)

    def ms(self) -> float:
        """Run it once and return its time."""
        if not self._runs:
            return np.nan
        begin = time.perf_counter_ns()
        self._large.run(3)
        first = time.perf_counter_ns()
        self._small.run(6)
        second = time.perf_counter_ns()
        for _ in range(100):
            torch.relu(self._vector)
        parts = (first - begin) * (second - first) * (time.perf_counter_ns() - second)
        self._recent.append(parts ** (1 / 3) / 1e6)
        return self._recent[-1]

    def settle(self, seconds: float = _SETTLE_S) -> float:
        """Run it until the process is warm; return the median ms of the second half."""
        end = time.perf_counter() + seconds
        while self._runs and time.perf_counter() < end:
            self.ms()
        settled = list(self._recent)[len(self._recent) // 2:]
        self._recent = deque(settled, maxlen=_RECENT)
        return float(np.median(settled)) if settled else np.nan

    def is_slow(self, taken_ms: float) -> bool:
        """Return whether a time was slower than usual: the fast fifth of the recent times."""
        return self._runs and taken_ms > SLOW * float(np.percentile(self._recent, USUAL))

    def after(self) -> float:
        """Return the faster of two times, in ms: the first one finds its data out of the caches."""
        return min(self.ms(), self.ms())

    def wait(self) -> float:
        """Run it until the processor is as fast as usual, at most 0.12 s; return the last ms."""
        end = time.perf_counter() + _WAIT_S
        taken = self.ms()
        while self.is_slow(taken) and time.perf_counter() < end:
            taken = self.ms()
        return taken


@dataclass(frozen=True)
class ProcessorSpeed:
    """The usual time of the reference kernel; latencies follow its time with a power.

    A neighbour that shares a core slows the kernel, which computes in its caches, more than work
    that waits for memory.
    """

    usual_ms: float
    elasticity: float

    @classmethod
    def from_visits(cls, visits: pd.DataFrame, expected: float = ELASTICITY) -> "ProcessorSpeed":
        """Fit repeated visits (``config, latency_ms, yardstick_ms``), least squares within configs.

        ``expected`` is the elasticity before anything is learned.
        """
        good = visits[(visits["yardstick_ms"] > 0) & (visits["latency_ms"] > 0)]
        if good.empty:
            return cls(float("nan"), expected)
        logs = np.log(good[["yardstick_ms", "latency_ms"]])
        kernel, latency = (logs - logs.groupby(good["config"]).transform("median")).to_numpy().T
        slope = (kernel @ latency + _WEIGHT * expected) / (kernel @ kernel + _WEIGHT)
        usual_ms = float(np.percentile(good["yardstick_ms"], USUAL))
        return cls(usual_ms, float(np.clip(slope, 0.0, 1.0)))

    def at_usual_ms(self, latency_ms: pd.Series, reference_ms: pd.Series) -> pd.Series:
        """Rescale latencies to the usual speed; without the kernel's time they stay as they are."""
        return latency_ms * (self.usual_ms / reference_ms).fillna(1.0) ** self.elasticity


@dataclass(frozen=True)
class KernelNow:
    """The median time of the reference kernel now; ``busy`` says what held the cores, if anything."""

    ms: float
    busy: str = ""


def kernel_now() -> KernelNow:
    """Run the reference kernel for 0.15 s."""
    kernel, watch = ReferenceKernel(torch.device("cpu")), LoadWatch()
    ms, beside = kernel.settle(_NOW_S), watch.reading()
    is_busy = beside.verdict(torch.get_num_threads()) == UNUSABLE
    return KernelNow(ms, beside.words() if is_busy else "")
