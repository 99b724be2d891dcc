"""Median, spread, bootstrap interval and verdict of samples: the only definitions of these."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

STABLE_IQR = 0.10  # of the median, as torch.utils.benchmark warns
NOISY_IQR = 0.25
QUIET_CORES = 0.10  # what other processes may use without harm: cores, or the share of a GPU's time
LOUD_CORES = 0.50  # more, and what was measured meanwhile is unusable
_LEVEL = 0.95
STABLE, NOISY, UNUSABLE = VERDICTS = ("stable", "noisy", "unusable")


def spread_verdict(iqr_over_median: float) -> str:
    """Return the verdict on a relative spread: stable up to 10 %, noisy up to 25 %, else (NaN too) unusable."""
    return STABLE if iqr_over_median <= STABLE_IQR else NOISY if iqr_over_median <= NOISY_IQR else UNUSABLE


def crowd_verdict(cores: float) -> str:
    """Return the verdict on a measurement by the cores, or the share of its GPU, that other processes took from it."""
    return STABLE if cores < QUIET_CORES else NOISY if cores < LOUD_CORES else UNUSABLE


def worst(*verdicts: str) -> str:
    """Return the worst of some verdicts."""
    return VERDICTS[max(VERDICTS.index(verdict) for verdict in verdicts)]


def is_usable(table):
    """Return which rows of a table of measurements (columns ``status`` and ``verdict``) ran, and are of use."""
    return (table["status"] == "ok") & (table["verdict"] != UNUSABLE)


def judged(findings: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Return the worst verdict of some findings, which are verdicts with reasons, and the reasons of those not stable."""
    findings = list(findings)
    reasons = dict.fromkeys(why for verdict, why in findings if why and verdict != STABLE)
    return worst(*(verdict for verdict, _ in findings)), "; ".join(reasons)


def bootstrap(samples: np.ndarray, statistic: Callable[..., np.ndarray] = np.median, draws: int = 1000,
              seed: int = 0) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a statistic (taken with ``axis=1``) of ``samples`` (n,)."""
    samples = np.asarray(samples)
    places = np.random.default_rng(seed).integers(0, len(samples), (draws, len(samples)))
    low, high = np.quantile(statistic(samples[places], axis=1), ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2))
    return float(low), float(high)


@dataclass(frozen=True)
class Timing:
    """The samples of one measurement (n,), in ms a call; what they say is computed from them."""

    samples_ms: np.ndarray
    calls: int = 1
    graphed: bool = False  # the calls of a sample were one CUDA graph

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

    def interval_ms(self) -> tuple[float, float]:
        """Return the bootstrap interval of the median, in ms."""
        return bootstrap(self.samples_ms)

    @property
    def verdict(self) -> str:
        """Return the verdict on the IQR over the median."""
        return spread_verdict(self.iqr_ms / self.median_ms if self.median_ms > 0 else np.inf)


def joined(parts: Sequence[Timing]) -> Timing:
    """Return the samples of several measurements as one, none of none; it is graphed where all were."""
    return Timing(np.concatenate([*(part.samples_ms for part in parts), []]),
                  graphed=all(part.graphed for part in parts))
