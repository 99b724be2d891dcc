"""Rounds of visits: the time that they may take, their order, and the samples of what is timed in memory."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from lib.measure.statistics import Timing, joined
from lib.progress import track

Item = TypeVar("Item")
ROUNDS = 3  # of what is timed in memory
_PATIENCE_SHARE, _PATIENCE_S = 0.15, 10.0


class Budget:
    """``seconds`` of wall time from the moment of construction, set-up included; 0: no limit."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds if seconds else math.inf

    @property
    def left_s(self) -> float:
        """Return what is left, in seconds; 0 when it is spent, inf without a limit."""
        return max(0.0, self._end - time.monotonic())

    @property
    def spent(self) -> bool:
        """Return whether nothing is left."""
        return not self.left_s

    @property
    def patience_s(self) -> float:
        """Return how long to wait for a quiet machine: a share of the budget, ten seconds at most."""
        return min(_PATIENCE_S, _PATIENCE_SHARE * self.seconds) if self.seconds else _PATIENCE_S


def interleaved(items: Sequence[Item], rounds: int) -> Iterator[tuple[int, Item]]:
    """Yield the number of the round and an item; each round has its own random order, by a fixed seed."""
    draw = np.random.default_rng(0)
    for number in range(rounds):
        for index in draw.permutation(len(items)):
            yield number, items[index]


def sampled(count: int, budget: Budget, sample: Callable[[int, float], Timing | None],
            what: str) -> list[Timing]:
    """Return the samples of ``count`` items over ROUNDS rounds; none of an item that never ran.

    ``sample`` takes an item's number and its share of the budget, in seconds, and returns None where
    the item does not run. Once the budget is spent, only items without samples are visited.
    """
    parts = [[] for _ in range(count)]
    for number, (_, index) in enumerate(track(list(interleaved(range(count), ROUNDS)), what)):
        if parts[index] and budget.spent:
            continue
        timing = sample(index, budget.left_s / (count * ROUNDS - number))
        parts[index] += [timing] if timing else []
    return [joined(timings) for timings in parts]
