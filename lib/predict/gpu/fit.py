"""Fitting of the form to measured times of many people at once, robust to outliers; conditions share weights by levels.

Weights are the most probable ones under a pseudo-Huber loss of the log time (Charbonnier et al., 1997) and
normal priors: of each level, what all kinds of kernels share, and what each kind has of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch

from lib.predict.gpu import features, form
from lib.predict.gpu.levels import ROOT, WIDTHS, Condition
from lib.predict.operators.chip import Chip

SIGMA = 0.15  # of the log time: beyond it an error counts in proportion, not squared
OWN = 0.6  # prior width of what a kind of kernels has of its own, over that of what all kinds share
ITERATIONS = 100
_FLAGS = np.isin(features.COMPUTING_FEATURES, ("one", "matrix_units", "window_7", "group_wide", "group_odd", *features.CLASSES))


@dataclass(frozen=True)
class Case:
    """Times measured on one card under one condition, by one source, at the rates of ``chip``.

    ``table`` has a row a network: ``rows`` (its work), ``times`` (its batch over the captured one), ``latency_ms, family``, and
    perhaps ``beside_ms``, what the time includes beside the passes, and ``weight``, how much a row counts.
    """

    table: pd.DataFrame
    device: str
    source: str
    condition: Condition
    chip: Chip
    levels: tuple[str, ...]
    sigma: float = SIGMA
    _of_all: features.Terms | None = field(default=None, repr=False)

    @cached_property
    def terms(self) -> features.Terms:
        """Give the terms of all networks."""
        frames = list(self.table["rows"])
        network = np.repeat(np.arange(len(frames)), list(map(len, frames)))
        return features.terms(pd.concat(frames, ignore_index=True), self.table["times"].to_numpy(float)[network],
                              self.chip, self.condition, network, len(frames))

    @cached_property
    def log_ms(self) -> np.ndarray:
        """Give the log of the measured ms of the passes."""
        return np.log(self.table["latency_ms"].to_numpy(float) - self.table.get("beside_ms", 0.0))

    def of(self, networks: np.ndarray) -> "Case":
        """Return some of the networks, by their numbers or by a mask."""
        return replace(self, table=self.table.iloc[networks] if networks.dtype != bool else self.table[networks])


def expanded(numbers: torch.Tensor, widths: torch.Tensor) -> torch.Tensor:
    """Return offsets (levels, SIZE) from standard normal ``numbers`` (levels, NUMBERS): of each kind, then common ones."""
    own, computing, moving = torch.split(numbers, [form.SIZE, *(shape[1] for shape in list(form.SHAPES.values())[:2])], dim=1)
    common = torch.cat([computing.repeat(1, form.SHAPES["computing"][0]), moving.repeat(1, form.SHAPES["moving"][0]),
                        torch.zeros(len(numbers), len(form.OVERHEADS), dtype=numbers.dtype)], dim=1)
    return (own * torch.as_tensor(_OWN) + common) * widths


_OWN = form.flat(computing=OWN, moving=OWN, overheads=1.0)
NUMBERS = form.SIZE + sum(shape[1] for shape in list(form.SHAPES.values())[:2])


def _widths(level: str) -> np.ndarray:
    intercept, slope, overhead = WIDTHS[level.partition(":")[0]]
    return form.flat(computing=np.where(_FLAGS, intercept, slope),
                     moving=np.where(form.INTERCEPTS["moving"], intercept, slope), overheads=overhead)


def fit(cases: Sequence[Case], known: pd.DataFrame | None = None, iterations: int = ITERATIONS) -> pd.DataFrame:
    """Fit the weights of all levels of the cases, a row a level; levels that are ``known`` stay as they are."""
    from scipy.optimize import minimize  # fitting alone waits for it to load

    names = sorted({level for case in cases for level in case.levels})
    applies = torch.tensor([[level in case.levels for level in names] for case in cases], dtype=torch.float64)
    mean = torch.as_tensor(np.stack([form.usual() if level.startswith(ROOT) else np.zeros(form.SIZE) for level in names]))
    if known is not None:
        mean = torch.tensor(known.reindex(names).fillna(0.0).to_numpy())
    fixed = [known is not None and level in known.index for level in names]
    widths = torch.as_tensor(np.stack([_widths(level) * (not is_fixed) for level, is_fixed in zip(names, fixed, strict=True)]))
    terms = features.joined([case.terms for case in cases])
    log_ms = torch.as_tensor(np.concatenate([case.log_ms for case in cases]))
    counts = torch.as_tensor(np.concatenate([case.table.get("weight", pd.Series(1.0, case.table.index)) for case in cases]))
    sigma = torch.as_tensor(np.concatenate([np.full(len(case.table), case.sigma) for case in cases]))

    def weights(numbers):
        return mean + expanded(numbers.reshape(len(names), NUMBERS), widths)

    def loss(numbers):
        numbers = torch.as_tensor(numbers).requires_grad_()
        error = (form.log_ms(terms, applies @ weights(numbers)) - log_ms) / sigma
        total = 0.5 * (numbers ** 2).sum() + ((torch.sqrt(1 + error ** 2) - 1) * counts).sum()
        total.backward()
        return float(total.detach()), numbers.grad.numpy()

    best = minimize(loss, np.zeros(len(names) * NUMBERS), jac=True, method="L-BFGS-B",
                    options={"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": 20})
    return pd.DataFrame(weights(torch.as_tensor(best.x)).numpy(), names)


def weights_of(fitted: pd.DataFrame, levels: Sequence[str]) -> np.ndarray:
    """Return the weights of a condition; a level that was not learned adds nothing."""
    return fitted[fitted.index.isin(levels)].to_numpy().sum(0)


def predicted_ms(fitted: pd.DataFrame, case: Case, levels: Sequence[str]) -> np.ndarray:
    """Return the ms that the levels predict of each network of a case."""
    return np.exp(form.log_ms(case.terms, torch.as_tensor(weights_of(fitted, levels))[None]).numpy())
