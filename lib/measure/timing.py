"""Time a function honestly: warm, repeated, summarised by the median and an interval, with a verdict."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

STABLE_IQR = 0.10  # of the median, as torch.utils.benchmark warns
NOISY_IQR = 0.25
VERDICTS = ("stable", "noisy", "unusable")


@dataclass(frozen=True)
class Timing:
    """The samples of one measurement, in ms a call; what they say is computed from them."""

    samples_ms: np.ndarray
    calls: int = 1

    @property
    def n(self) -> int:
        """Return the number of samples."""
        return len(self.samples_ms)

    @property
    def median_ms(self) -> float:
        """Return the median, in ms."""
        return float(np.median(self.samples_ms))

    @property
    def iqr_ms(self) -> float:
        """Return the interquartile range, in ms."""
        low, high = np.percentile(self.samples_ms, (25, 75))
        return float(high - low)

    def interval_ms(self, level: float = 0.95, draws: int = 1000, seed: int = 0) -> tuple[float, float]:
        """Return the bootstrap interval of the median, in ms."""
        return bootstrap(self.samples_ms, level, draws, seed)

    @property
    def verdict(self) -> str:
        """Return stable (IQR up to 10 % of the median), noisy (up to 25 %) or unusable."""
        ratio = self.iqr_ms / self.median_ms if self.median_ms > 0 else np.inf
        return VERDICTS[0] if ratio <= STABLE_IQR else VERDICTS[1] if ratio <= NOISY_IQR else VERDICTS[2]


def bootstrap(samples: np.ndarray, level: float = 0.95, draws: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Return the bootstrap interval of the median of ``samples`` (n,)."""
    picks = np.random.default_rng(seed).integers(0, len(samples), (draws, len(samples)))
    medians = np.median(np.asarray(samples)[picks], axis=1)
    low, high = np.quantile(medians, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def worst(*verdicts: str) -> str:
    """Return the worst of several verdicts."""
    return VERDICTS[max(VERDICTS.index(verdict) for verdict in verdicts)]


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done all that it was given; nothing on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _sample_ms(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Time ``calls`` calls in a row, in ms a call: device events on CUDA, the host's clock elsewhere."""
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls
    begin = time.perf_counter_ns()
    for _ in range(calls):
        call()
    synchronize(device)
    return (time.perf_counter_ns() - begin) / 1e6 / calls


def measure(call: Callable[[], object], device: torch.device, budget_s: float = 0.3, sample_ms: float = 1.0,
            least: int = 5, most_s: float = np.inf) -> Timing:
    """Time ``call`` on ``device`` for about ``budget_s``.

    Warms up for a fifth of the budget (one call at least), then takes samples of as many calls as fill ``sample_ms``,
    so that neither the clock's step nor its own cost shows; at least ``least`` samples, unless they would take more than
    ``most_s``: then one is enough, and where the first call took as much already, it is the sample.
    """
    begin = time.monotonic()
    once_ms = _sample_ms(call, 1, device)
    if time.monotonic() >= begin + most_s:
        return Timing(np.array([once_ms]))
    while time.monotonic() < begin + min(budget_s / 5, most_s):
        once_ms = min(once_ms, _sample_ms(call, 1, device))
    calls = max(1, int(np.ceil(sample_ms / max(once_ms, 1e-4))))
    samples, end = [], time.monotonic() + 0.8 * budget_s
    while not samples or time.monotonic() < (end if len(samples) >= least else begin + most_s):
        samples.append(_sample_ms(call, calls, device))
    return Timing(np.array(samples), calls)


@dataclass(frozen=True)
class Comparison:
    """The ratio of two measurements, a / b: the median over interleaved pairs and its 95 % bootstrap interval."""

    ratio: float
    low: float
    high: float
    pairs: int


def compare(sample_a: Callable[[], float], sample_b: Callable[[], float], pairs: int) -> Comparison:
    """Compare two ways of taking a time: samples in turn, A B, B A, A B, ..., and the ratio pair by pair.

    Each function takes one sample and returns its duration. Drift and neighbours fall on both alike.
    """
    ratios = []
    for pair in range(pairs):
        if pair % 2:
            b, a = sample_b(), sample_a()
        else:
            a, b = sample_a(), sample_b()
        ratios.append(a / b)
    low, high = bootstrap(np.array(ratios))
    return Comparison(float(np.median(ratios)), low, high, pairs)
