"""From the times of one CPU to those of another, by the ceilings of both."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scaling:
    """How many times as fast the other CPU computes and moves memory, and the first one's ridge point in FLOPs a byte.

    An operator's time changes as its roof does: its FLOPs at the peak plus its bytes at the bandwidth.
    """

    compute: float
    memory: float
    ridge: float

    def after(self, first: "Scaling | None") -> "Scaling":
        """Return what leads as far as ``first`` and then this one (None: this one alone)."""
        return self if first is None else Scaling(first.compute * self.compute, first.memory * self.memory, first.ridge)

    def factor(self, flops: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """Return by what operators of so many FLOPs and bytes take longer; 1 for those without both."""
        computing, moving = np.asarray(flops, float), np.asarray(moved, float) * self.ridge
        before, after = computing + moving, computing / self.compute + moving / self.memory
        return np.divide(after, before, out=np.ones_like(before), where=before > 0)

    @property
    def distance(self) -> float:
        """Return how far apart the two are: the logs of both ratios together."""
        return abs(math.log(self.compute)) + abs(math.log(self.memory))

    def __str__(self) -> str:
        """Say both ratios."""
        return f"compute x{self.compute:.2f}, memory x{self.memory:.2f}"
