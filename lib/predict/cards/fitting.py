"""Fitting of the model of cards to the total times of whole networks, robust to outliers; conditions share weights.

Weights are the most probable ones under a pseudo-Huber loss of the log time (Charbonnier et al., 1997) and normal priors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch

from lib.predict.cards import features, kernel_sum
from lib.predict.operators.chip import Chip

SIGMA = 0.08  # of the log time: beyond it an error counts in proportion, not squared
# Prior widths of intercepts, slopes and overheads; other kernels run backward, and convolutions of a kind differ more in them.
WIDTHS = {"base": (0.25, 0.085, 1.0), "level": (0.14, 0.042, 0.5), "train": (0.28, 0.085, 0.5)}
FAMILY_CORRELATION = {"way:compiled": 0.2}  # of the errors of one family, by level: how much less each of many networks says
FLAGS = np.isin(features.COMPUTING_FEATURES, ("one", "window_7", "group_wide", "group_odd"))  # as wide as intercepts
ITERATIONS, SHIFT_ITERATIONS = 150, 60
# Prior widths of a shift by few networks: of what all computing, and all moving, is faster by, and of each weight of its own.
TOGETHER = 0.5
SHIFT_WIDTHS = 0.15, 0.02, 0.4


@dataclass(frozen=True)
class ConditionNetworks:
    """Networks measured on a card under one condition, at the rates of ``chip``.

    ``table`` has a row a network: ``rows`` (its work), ``batch_size, latency_ms, module``. ``levels``: names of the offsets
    of weights that are added; ``start``: weights that a few networks shift.
    """

    table: pd.DataFrame
    condition: features.Condition
    chip: Chip
    levels: tuple[str, ...] = ()
    start: np.ndarray | None = None

    @cached_property
    def terms(self) -> features.Terms:
        """Give the terms of all networks."""
        frames = list(self.table["rows"])
        network = np.repeat(np.arange(len(frames)), list(map(len, frames)))
        return features.terms(pd.concat(frames, ignore_index=True), self.table["batch_size"].to_numpy(float)[network],
                              self.chip, self.condition, network, len(frames))

    @cached_property
    def log_ms(self) -> np.ndarray:
        """Give the log of the measured ms."""
        return np.log(self.table["latency_ms"].to_numpy(float))

    def of(self, networks: np.ndarray) -> "ConditionNetworks":
        """Return some of the networks, by their numbers or by a mask."""
        return replace(self, table=self.table.iloc[networks])

    def predicted(self, weights: np.ndarray) -> pd.DataFrame:
        """Return the table with what weights predict, ``log_predicted`` beside ``log_ms``, and the ``condition`` by name."""
        log_predicted = kernel_sum.log_ms(self.terms, torch.as_tensor(weights)).numpy()
        return self.table.assign(log_ms=self.log_ms, log_predicted=log_predicted, condition=self.condition.name)


WeightsByCondition = Callable[[ConditionNetworks], np.ndarray]  # gives the weights of a condition


def _network_weights(cases: ConditionNetworks) -> np.ndarray:
    """Return how much each network says: n of a family as n / (1 + (n - 1) FAMILY_CORRELATION), as their errors go together.

    The effective number of observations in a cluster (Kish, Survey Sampling, 1965).
    """
    alike = max((FAMILY_CORRELATION.get(level, 0.0) for level in cases.levels), default=0.0)
    family = cases.table["module"]
    return 1 / (1 + (family.groupby(family).transform("size").to_numpy() - 1) * alike)


def _most_probable(cases: Sequence[ConditionNetworks], weights: Callable, size: int, iterations: int) -> torch.Tensor:
    """Return the mode of ``size`` standard normal numbers, of which ``weights`` makes those of each case, by its number."""
    from scipy.optimize import minimize  # fitting alone waits for it to load

    counts = [torch.as_tensor(_network_weights(part)) for part in cases]

    def loss(numbers):
        apart = torch.as_tensor(numbers).requires_grad_()
        total = 0.5 * (apart ** 2).sum()
        for number, part in enumerate(cases):
            error = (kernel_sum.log_ms(part.terms, weights(apart, number)) - torch.as_tensor(part.log_ms)) / SIGMA
            total = total + ((torch.sqrt(1 + error ** 2) - 1) * counts[number]).sum()
        total.backward()
        return float(total.detach()), apart.grad.numpy()

    best = minimize(loss, np.zeros(size), jac=True, method="L-BFGS-B",
                    options={"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": 20})
    return torch.as_tensor(best.x)


def _width(flags: np.ndarray, intercept: float, slope: float, overhead: float) -> np.ndarray:
    """Return the prior widths of all weights; those of computing ``flags`` are as wide as intercepts."""
    return kernel_sum.flat(computing=np.where(flags, intercept, slope),
                           moving=np.where(kernel_sum.INTERCEPTS["moving"], intercept, slope), overheads=overhead)


def fit(cases: Sequence[ConditionNetworks]) -> pd.DataFrame:
    """Fit to networks of several conditions, around the usual efficiencies.

    Returns the weights that all conditions share (row "") and what each level adds to them, see ``weights_of``.
    """
    levels = ["", *sorted({level for part in cases for level in part.levels})]
    mean = torch.as_tensor(np.stack([kernel_sum.usual(), *np.zeros((len(levels) - 1, kernel_sum.SIZE))]))
    widths = [WIDTHS["train" if "train" in level else "level" if level else "base"] for level in levels]
    width = torch.as_tensor(np.stack([_width(FLAGS, *of_level) for of_level in widths]))
    rows = [[levels.index(level) for level in ("", *part.levels)] for part in cases]

    def every(apart):
        return mean + width * apart.reshape(mean.shape)

    apart = _most_probable(cases, lambda apart, number: every(apart)[rows[number]].sum(0), mean.numel(), ITERATIONS)
    return pd.DataFrame(every(apart).numpy(), levels)


def weights_of(fitted: pd.DataFrame, levels: Sequence[str]) -> np.ndarray:
    """Return the weights of a condition; a level that is not known adds nothing."""
    return fitted[fitted.index.isin(("", *levels))].to_numpy().sum(0)


def shift(cases: Sequence[ConditionNetworks]) -> np.ndarray:
    """Return what a few networks of a card add to the weights that each condition starts from, the same for all of them."""
    none = dict.fromkeys(kernel_sum.SHAPES, 0.0)
    width = torch.as_tensor(_width(kernel_sum.INTERCEPTS["computing"], *SHIFT_WIDTHS))
    directions = torch.as_tensor(np.stack([kernel_sum.flat(**none | {name: first * TOGETHER})
                                           for name, first in kernel_sum.INTERCEPTS.items()]))
    starts = [torch.as_tensor(part.start) for part in cases]

    def added(apart):
        return width * apart[2:] + apart[:2] @ directions

    return added(_most_probable(cases, lambda apart, number: starts[number] + added(apart), kernel_sum.SIZE + 2,
                                SHIFT_ITERATIONS)).numpy()
