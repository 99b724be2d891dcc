"""Fitting of the composed model to whole networks: through the sum, robustly, with what conditions share held together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lib.predict.composed import model
from lib.predict.composed.features import Terms

SIGMA = 0.08  # of the log time: beyond it an error counts in proportion, not squared
WIDTHS = {"base": (0.35, 0.12, 1.0), "level": (0.2, 0.06, 0.5)}  # prior widths of intercepts, slopes and overheads
ITERATIONS = 150


@dataclass(frozen=True)
class Cases:
    """Networks measured under one condition: their terms, the log of the ms, and the levels that the condition shares."""

    terms: Terms
    log_ms: np.ndarray
    levels: tuple[str, ...]


def _widths(which: str, scale: float = 1.0) -> np.ndarray:
    intercept, slope, overhead = WIDTHS[which]
    parts = []
    for name, shape in model.SHAPES.items():
        part = np.full(shape, overhead if name == "overheads" else slope * scale)
        if name != "overheads":
            part[:, 0] = intercept * scale
        parts.append(part.ravel())
    return np.concatenate(parts)


@dataclass(frozen=True)
class Weights:
    """Weights that all conditions share (row 0) and what each level adds to them (the other rows, as ``levels``)."""

    values: np.ndarray
    levels: tuple[str, ...]

    def of(self, levels: Sequence[str]) -> np.ndarray:
        """Return the weights of a condition; a level that is not known adds nothing."""
        return self.values[[0, *(1 + self.levels.index(level) for level in levels if level in self.levels)]].sum(0)


def fit(cases: Mapping[str, Cases], keep: Mapping[str, np.ndarray], iterations: int = ITERATIONS, scale: float = 1.0,
        sigma: float = SIGMA) -> Weights:
    """Fit to the networks that ``keep`` (a mask a condition) leaves in.

    A pseudo-Huber loss of the log time (Charbonnier et al., 1997) and normal priors around the usual efficiencies: the
    weights are their mode. ``scale`` widens the priors.
    """
    from scipy.optimize import minimize  # fitting alone waits for it to load

    levels = tuple(sorted({level for one in cases.values() for level in one.levels}))
    mean = torch.as_tensor(np.stack([model.usual(), *np.zeros((len(levels), model.SIZE))]))
    width = torch.as_tensor(np.stack([_widths("base", scale), *[_widths("level", scale)] * len(levels)]))
    chosen = {name: torch.as_tensor(np.flatnonzero(keep[name])) for name in cases}
    measured = {name: torch.as_tensor(one.log_ms) for name, one in cases.items()}
    rows = {name: [0, *(1 + levels.index(level) for level in one.levels)] for name, one in cases.items()}

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        apart = torch.as_tensor(flat).reshape(mean.shape).requires_grad_()
        weights = mean + width * apart
        total = 0.5 * (apart ** 2).sum()
        for name, one in cases.items():
            error = (model.log_ms(one.terms, model.split(weights[rows[name]].sum(0))) - measured[name])[chosen[name]] / sigma
            total = total + (torch.sqrt(1 + error ** 2) - 1).sum()
        total.backward()
        return float(total.detach()), apart.grad.numpy().ravel()

    best = minimize(loss, np.zeros(mean.numel()), jac=True, method="L-BFGS-B",
                    options={"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": 20})
    return Weights((mean + width * torch.as_tensor(best.x).reshape(mean.shape)).numpy(), levels)


def predict(cases: Cases, weights: Weights, levels: Sequence[str] | None = None) -> np.ndarray:
    """Return the log ms of every network of ``cases``."""
    vector = torch.as_tensor(weights.of(cases.levels if levels is None else levels))
    return model.log_ms(cases.terms, model.split(vector)).numpy()
