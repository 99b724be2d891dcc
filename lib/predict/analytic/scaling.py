"""From the times of one CPU to those of another, by the ceilings of both."""

import math
from dataclasses import dataclass

import numpy as np

from lib.predict.model_file import Positive


@dataclass(frozen=True)
class Scaling:
    """How many times as fast the other CPU computes, moves memory, and does the rest; and the first one's ceilings.

    An operator's roof is its FLOPs at ``gflops`` and its bytes at ``gbps``. What it takes beyond that is dispatch, scalar code
    and vectors half filled: it changes with the cores, not with the ceilings.
    """

    compute: Positive
    memory: Positive
    rest: Positive
    gflops: Positive
    gbps: Positive

    def after(self, first: "Scaling | None") -> "Scaling":
        """Return what leads as far as ``first`` and then this one (None: this one alone)."""
        return self if first is None else Scaling(first.compute * self.compute, first.memory * self.memory,
                                                  first.rest * self.rest, first.gflops, first.gbps)

    def scaled_ms(self, ms: np.ndarray, flops: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """Return what operators of so many FLOPs and bytes take there that take ``ms`` on the first CPU.

        Those that are faster than their roof, from caches, stay so by the same factor.
        """
        computing, moving = np.asarray(flops, float) / self.gflops / 1e6, np.asarray(moved, float) / self.gbps / 1e6
        roof = computing + moving
        share = np.minimum(1.0, ms / np.maximum(roof, 1e-30))  # work without FLOPs and bytes has no roof to be faster than
        return share * (computing / self.compute + moving / self.memory) + (ms - share * roof) / self.rest

    @property
    def distance(self) -> float:
        """Return how far apart the two are: the logs of all three ratios together."""
        return sum(abs(math.log(ratio)) for ratio in (self.compute, self.memory, self.rest))

    def __str__(self) -> str:
        """Say the ratios."""
        return f"compute x{self.compute:.2f}, memory x{self.memory:.2f}, rest x{self.rest:.2f}"
