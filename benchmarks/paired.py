"""Two ways of taking a time, compared in interleaved pairs."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lib.measure.statistics import bootstrap


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
