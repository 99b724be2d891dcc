"""Fitting of the model of cards to whole networks: through the sum, robustly, with what conditions share held together.

Weights are the most probable ones under a pseudo-Huber loss of the log time (Charbonnier et al., 1997) and normal priors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lib.predict.cards import model
from lib.predict.cards.features import COMPUTING_FEATURES, Terms

SIGMA = 0.08  # of the log time: beyond it an error counts in proportion, not squared
# Prior widths of intercepts, slopes and overheads; other kernels run backward, and convolutions of a kind differ more in them.
WIDTHS = {"base": (0.25, 0.085, 1.0), "level": (0.14, 0.042, 0.5), "train": (0.28, 0.085, 0.5)}
ALIKE = {"way:compiled": 0.2}  # correlation of the errors of one family, by level: how much less each of many networks says
FLAGS = tuple(map(COMPUTING_FEATURES.index, ("one", "window_7", "group_wide", "group_odd")))  # as wide as intercepts
ITERATIONS, SHIFT_ITERATIONS = 150, 60
# Prior widths of a shift by few networks: of what all computing, and all moving, is faster by, and of each weight of its own.
TOGETHER = 0.5
INTERCEPT, SLOPE, OVERHEAD = 0.15, 0.02, 0.4


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


def _network_weights(cases: Cases, keep: np.ndarray) -> np.ndarray:
    """Return how much each network that is kept says: n of a family as n / (1 + (n - 1) ALIKE), as their errors go together.

    The effective number of observations in a cluster (Kish, Survey Sampling, 1965).
    """
    alike = max((ALIKE.get(level, 0.0) for level in cases.levels), default=0.0)
    _, place, counts = np.unique(cases.families[keep], return_inverse=True, return_counts=True)
    return 1 / (1 + (counts[place] - 1) * alike)


def _most_probable(cases: Mapping[str, Cases], keep: Mapping[str, np.ndarray],
                   weights: Callable[[torch.Tensor, str], torch.Tensor], size: int, iterations: int,
                   sigma: float = SIGMA) -> torch.Tensor:
    """Return the mode of ``size`` standard normal numbers, of which ``weights`` makes those of each case.

    ``keep`` says which networks of a case count.
    """
    from scipy.optimize import minimize  # fitting alone waits for it to load

    chosen = {name: torch.as_tensor(np.flatnonzero(keep[name])) for name in cases}
    measured = {name: torch.as_tensor(part.log_ms)[chosen[name]] for name, part in cases.items()}
    counts = {name: torch.as_tensor(_network_weights(part, keep[name])) for name, part in cases.items()}

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        apart = torch.as_tensor(flat).requires_grad_()
        total = 0.5 * (apart ** 2).sum()
        for name, part in cases.items():
            error = (model.log_ms(part.terms, model.split(weights(apart, name)))[chosen[name]] - measured[name]) / sigma
            total = total + ((torch.sqrt(1 + error ** 2) - 1) * counts[name]).sum()
        total.backward()
        return float(total.detach()), apart.grad.numpy()

    best = minimize(loss, np.zeros(size), jac=True, method="L-BFGS-B",
                    options={"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": 20})
    return torch.as_tensor(best.x)


def fit(cases: Mapping[str, Cases], keep: Mapping[str, np.ndarray], iterations: int = ITERATIONS, scale: float = 1.0,
        sigma: float = SIGMA) -> Weights:
    """Fit to the networks that ``keep`` (a mask a condition) leaves in, around the usual efficiencies.

    ``scale`` widens the priors.
    """
    levels = tuple(sorted({level for part in cases.values() for level in part.levels}))
    mean = torch.as_tensor(np.stack([model.usual(), *np.zeros((len(levels), model.SIZE))]))
    widths = [_widths("train" if "train" in level else "level", scale) for level in levels]
    width = torch.as_tensor(np.stack([_widths("base", scale), *widths]))
    rows = {name: [0, *(1 + levels.index(level) for level in part.levels)] for name, part in cases.items()}

    def weights(apart: torch.Tensor, name: str) -> torch.Tensor:
        return (mean[rows[name]] + width[rows[name]] * apart.reshape(mean.shape)[rows[name]]).sum(0)

    apart = _most_probable(cases, keep, weights, mean.numel(), iterations, sigma)
    return Weights((mean + width * apart.reshape(mean.shape)).numpy(), levels)


def part_of(cases: Cases, networks: np.ndarray) -> Cases:
    """Return the cases of some networks (their numbers) alone, in their order."""
    terms = cases.terms
    place = np.full(terms.networks, -1)
    place[networks] = np.arange(len(networks))
    network = torch.as_tensor(place)[terms.network]
    keep = network >= 0
    first = keep[:len(terms.compute_ms)]
    edges = tuple(int(keep[:edge].sum()) for edge in terms.edges)
    few = Terms(len(networks), network[keep], terms.calls[keep], terms.compute_ms[first], terms.move_ms[keep],
                terms.computing[first], terms.moving[keep], edges)
    return Cases(few, cases.log_ms[networks], cases.levels, cases.families[networks])


def _priors() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the prior width of each weight's own shift, and the two directions (2, SIZE) in which all shift together."""
    widths, directions = [], []
    for name, shape in model.SHAPES.items():
        spread = np.full(shape, OVERHEAD if name == "overheads" else SLOPE)
        together = np.zeros(shape)
        if name != "overheads":
            spread[:, 0], together[:, 0] = INTERCEPT, TOGETHER
        widths.append(spread.ravel())
        directions.append(together.ravel())
    computing, moving, none = directions
    both = [np.concatenate([computing, 0 * moving, none]), np.concatenate([0 * computing, moving, none])]
    return torch.as_tensor(np.concatenate(widths)), torch.as_tensor(np.stack(both))


def shift(start: Mapping[str, np.ndarray], cases: Mapping[str, Cases]) -> np.ndarray:
    """Return what a few networks of a card add to the weights that each condition starts from, the same for all of them."""
    width, directions = _priors()
    started = {name: torch.as_tensor(weights) for name, weights in start.items()}
    every = {name: np.full(part.terms.networks, True) for name, part in cases.items()}

    def added(apart: torch.Tensor) -> torch.Tensor:
        return width * apart[2:] + apart[:2] @ directions

    return added(_most_probable(cases, every, lambda apart, name: started[name] + added(apart), model.SIZE + 2,
                                SHIFT_ITERATIONS)).numpy()


def predict(cases: Cases, weights: np.ndarray) -> np.ndarray:
    """Return the log ms of every network of ``cases``."""
    return model.log_ms(cases.terms, model.split(torch.as_tensor(weights))).numpy()
