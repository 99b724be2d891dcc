"""A network's time on a card as a sum over its kernels of soft rooflines, beside which the host launches them.

A kernel takes (compute^p + move^p)^(1/p) + floor, where compute and move are its ideal times over efficiencies: logistic
functions of linear forms of features, by kind of work and condition. A network takes (kernels^q + launches^q)^(1/q), for
launches overlap.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from lib.predict.cards.features import COMPUTING_FEATURES, MOVING_FEATURES, Terms
from lib.predict.cards.operator_kinds import COMPUTING, KERNEL_KINDS
from lib.predict.model_file import Count, NotNegative, array, require
from lib.predict.networks.sums import HOST_MS, OVERLAP, Range, launched

SHAPES = {"computing": (len(COMPUTING), len(COMPUTING_FEATURES)), "moving": (len(KERNEL_KINDS), len(MOVING_FEATURES)),
          "overheads": (2,)}
SIZE = sum(math.prod(shape) for shape in SHAPES.values())
BEST = {"computing": 1.25, "moving": 4.0}  # of the vendor's rates: clocks may be higher, and caches faster than memory
USUAL = {"computing": 0.5, "moving": 0.75}
USUAL_MS = (0.006, 0.002)  # to launch a kernel, and that each takes at least
_SOFT = 3.0  # p; q is OVERLAP
INTERCEPTS = {"computing": np.array(COMPUTING_FEATURES) == "one", "moving": np.array(MOVING_FEATURES) == "one"}


def flat(**parts: np.ndarray | float) -> np.ndarray:
    """Return values that broadcast to SHAPES as a vector of all weights (SIZE)."""
    return np.concatenate([np.broadcast_to(parts[name], shape).ravel() for name, shape in SHAPES.items()])


def usual() -> np.ndarray:
    """Return the weights at which every efficiency is the usual one."""
    intercepts = {name: INTERCEPTS[name] * math.log(USUAL[name] / (most - USUAL[name])) for name, most in BEST.items()}
    return flat(**intercepts, overheads=np.log(USUAL_MS))


def _over_efficiency(ideal_ms: torch.Tensor, features: torch.Tensor, weights: torch.Tensor, edges: tuple[int, ...],
                     most: float) -> torch.Tensor:
    forms = [features[start:stop] @ weights[kind] for kind, (start, stop) in enumerate(pairwise(edges))]
    return ideal_ms / most * (1 + torch.exp(-torch.cat(forms)))


def _split_weights(weights: torch.Tensor) -> list[torch.Tensor]:
    """Return the weights of each of SHAPES from a vector of all (SIZE)."""
    parts = torch.split(weights, [math.prod(shape) for shape in SHAPES.values()])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES.values(), strict=True)]


def kernels_ms(terms: Terms, weights: torch.Tensor) -> torch.Tensor:
    """Return how long each row takes, all its calls together."""
    of_computing, of_moving, overheads = _split_weights(weights)
    edges = terms.edges[:len(COMPUTING) + 1]
    move = _over_efficiency(terms.move_ms, terms.moving, of_moving, terms.edges, BEST["moving"])
    compute = _over_efficiency(terms.compute_ms, terms.computing, of_computing, edges, BEST["computing"])
    roofs = (compute ** _SOFT + move[:edges[-1]] ** _SOFT + 1e-30) ** (1 / _SOFT)
    return (torch.cat([roofs, move[edges[-1]:]]) + torch.exp(overheads[1])) * terms.calls


def log_ms(terms: Terms, weights: torch.Tensor) -> torch.Tensor:
    """Return the log of the ms of each network."""
    device, launches = _both_ms(terms, weights)
    return torch.log(device ** OVERLAP + launches ** OVERLAP) / OVERLAP


def _both_ms(terms: Terms, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ms of the kernels of each network, and those of launching them."""
    return (terms.by_network(kernels_ms(terms, weights)),
            terms.by_network(terms.calls) * torch.exp(_split_weights(weights)[-1][0]))


@dataclass(frozen=True)
class FittedWeights:
    """The weights of one condition, half its 90 % interval in log time, its scores on families left out, its batch sizes.

    Outside of the trained batch sizes the interval doubles. ``basis``: many networks of the card, few, or those of other cards.
    ``scored``: the condition that interval and scores come from, if not this one. ``corrected``: how many networks a user
    measured on the card to correct the weights.
    """

    weights: array(float, file="<f4")
    half: NotNegative
    scores: dict[Literal["mape", "median", "p90", "bias", "within_10", "n", "families"], float]
    batches: tuple[Count, Count]
    basis: Literal["many", "few", "others"] = "many"
    scored: Annotated[str, Field(pattern=r"^(\w+-\w+-\w+-[0-9.]+)?$")] = ""
    corrected: Count = 0

    def __post_init__(self):
        """Refuse weights of another number, and batch sizes in disorder."""
        require(self.weights.shape == (SIZE,), f"has {self.weights.shape} weights, not {SIZE}")
        require(self.batches[0] <= self.batches[1], "the least batch size is above the largest")

    @property
    def corrected_since(self) -> int:
        """Give by how many networks the weights were corrected after these scores were made."""
        return 0 if self.basis == "few" else self.corrected

    def predict(self, terms: Terms, batch_size: int, half: float | None = None) -> Range:
        """Return predicted, low and high ms of the one network of ``terms``, which are of this batch size.

        ``half`` is half the interval of networks of its kind (default: of all).
        """
        half = (self.half if half is None else half) * (1 + self.outside(batch_size))
        kernels_ms, launches_ms = map(float, _both_ms(terms, torch.as_tensor(self.weights)))
        _, *ends = (launches_ms if self.corrected else float(terms.calls.sum()) * ms for ms in HOST_MS)
        return launched(kernels_ms, half, (launches_ms, min(launches_ms, ends[0]), max(launches_ms, ends[1])))

    def kinds_ms(self, terms: Terms) -> dict[str, float]:
        """Return the ms of each kind of kernels of the one network of ``terms``."""
        ms = torch.split(kernels_ms(terms, torch.as_tensor(self.weights)), np.diff(terms.edges).tolist())
        return {kind: float(part.sum()) for kind, part in zip(KERNEL_KINDS, ms, strict=True)}

    def outside(self, batch_size: int) -> bool:
        """Return whether a batch size is beyond those that were learned from."""
        return not self.batches[0] <= batch_size <= self.batches[1]
