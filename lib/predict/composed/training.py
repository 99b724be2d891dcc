"""Fitting of the composed model to whole networks: through the sum, robustly, with what conditions share held together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lib.predict.composed import model
from lib.predict.composed.features import COMPUTING_FEATURES, Terms

SIGMA = 0.08  # of the log time: beyond it an error counts in proportion, not squared
# Prior widths of intercepts, slopes and overheads; other kernels run backward, and convolutions of a kind differ more in them.
WIDTHS = {"base": (0.25, 0.085, 1.0), "level": (0.14, 0.042, 0.5), "train": (0.28, 0.085, 0.5)}
ALIKE = {"way:compiled": 0.2}  # correlation of the errors of one family, by level: how much less each of many networks says
FLAGS = tuple(map(COMPUTING_FEATURES.index, ("one", "window_7", "group_wide", "group_odd")))  # as wide as intercepts
ITERATIONS = 150


@dataclass(frozen=True)
class Cases:
    """Networks measured under one condition: their terms, log of the ms, and families, and the levels that it shares."""

    terms: Terms
    log_ms: np.ndarray
    levels: tuple[str, ...]
    families: np.ndarray


def _widths(which: str, scale: float = 1.0) -> np.ndarray:
    intercept, slope, overhead = WIDTHS[which]
    parts = []
    for name, shape in model.SHAPES.items():
        part = np.full(shape, overhead if name == "overheads" else slope * scale)
        if name != "overheads":
            part[:, list(FLAGS) if name == "computing" else 0] = intercept * scale
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


def network_weights(cases: Cases, keep: np.ndarray) -> np.ndarray:
    """Return how much each network that is kept says: n of a family as n / (1 + (n - 1) ALIKE), as their errors go together.

    The effective number of observations in a cluster (Kish, Survey Sampling, 1965).
    """
    alike = max((ALIKE.get(level, 0.0) for level in cases.levels), default=0.0)
    _, place, several = np.unique(cases.families[keep], return_inverse=True, return_counts=True)
    return 1 / (1 + (several[place] - 1) * alike)


def fit(cases: Mapping[str, Cases], keep: Mapping[str, np.ndarray], iterations: int = ITERATIONS, scale: float = 1.0,
        sigma: float = SIGMA) -> Weights:
    """Fit to the networks that ``keep`` (a mask a condition) leaves in.

    A pseudo-Huber loss of the log time (Charbonnier et al., 1997) and normal priors around the usual efficiencies: the
    weights are their mode. ``scale`` widens the priors.
    """
    from scipy.optimize import minimize  # fitting alone waits for it to load

    levels = tuple(sorted({level for one in cases.values() for level in one.levels}))
    mean = torch.as_tensor(np.stack([model.usual(), *np.zeros((len(levels), model.SIZE))]))
    own = [_widths("train" if "train" in level else "level", scale) for level in levels]
    width = torch.as_tensor(np.stack([_widths("base", scale), *own]))
    chosen = {name: torch.as_tensor(np.flatnonzero(keep[name])) for name in cases}
    measured = {name: torch.as_tensor(one.log_ms) for name, one in cases.items()}
    weight = {name: torch.as_tensor(network_weights(one, keep[name])) for name, one in cases.items()}
    rows = {name: [0, *(1 + levels.index(level) for level in one.levels)] for name, one in cases.items()}

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        apart = torch.as_tensor(flat).reshape(mean.shape).requires_grad_()
        weights = mean + width * apart
        total = 0.5 * (apart ** 2).sum()
        for name, one in cases.items():
            error = (model.log_ms(one.terms, model.split(weights[rows[name]].sum(0))) - measured[name])[chosen[name]] / sigma
            total = total + ((torch.sqrt(1 + error ** 2) - 1) * weight[name]).sum()
        total.backward()
        return float(total.detach()), apart.grad.numpy().ravel()

    best = minimize(loss, np.zeros(mean.numel()), jac=True, method="L-BFGS-B",
                    options={"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": 20})
    return Weights((mean + width * torch.as_tensor(best.x).reshape(mean.shape)).numpy(), levels)


def predict(cases: Cases, weights: Weights, levels: Sequence[str] | None = None) -> np.ndarray:
    """Return the log ms of every network of ``cases``."""
    vector = torch.as_tensor(weights.of(cases.levels if levels is None else levels))
    return model.log_ms(cases.terms, model.split(vector)).numpy()
