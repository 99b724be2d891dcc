"""The time of a network on a GPU: the sum over its kernels of soft rooflines, beside which the host launches them.

A kernel takes (compute^p + move^p)^(1/p) + floor, where compute and move are its ideal times over
efficiencies: logistic functions of linear forms of features, by kind of work. A network takes
(kernels^q + launches^q)^(1/q), for launches overlap with kernels. A single operator is a network of one.
"""

import math

import numpy as np
import torch

from lib.predict.gpu.features import COMPUTING_FEATURES, MOVING_FEATURES, Terms
from lib.predict.gpu.kinds import COMPUTING, KERNEL_KINDS

OVERHEADS = ("launch", "floor", "pass")  # ms: to launch a kernel, that each takes at least, once a pass
SHAPES = {"computing": (len(COMPUTING), len(COMPUTING_FEATURES)), "moving": (len(KERNEL_KINDS), len(MOVING_FEATURES)),
          "overheads": (len(OVERHEADS),)}
SIZE = sum(math.prod(shape) for shape in SHAPES.values())
BEST = {"computing": 1.25, "moving": 4.0}  # of the vendor's rates: clocks may be higher, and caches faster than memory
_USUAL = {"computing": 0.5, "moving": 0.75}  # efficiencies
_USUAL_MS = (0.02, 0.002, 0.01)  # OVERHEADS
SOFT, OVERLAP = 3.0, 4.0  # p and q
INTERCEPTS = {"computing": np.array(COMPUTING_FEATURES) == "one", "moving": np.array(MOVING_FEATURES) == "one"}


def flat(**parts: np.ndarray | float) -> np.ndarray:
    """Return values that broadcast to SHAPES as a vector of all weights (SIZE)."""
    return np.concatenate([np.broadcast_to(parts[name], shape).ravel() for name, shape in SHAPES.items()])


def usual() -> np.ndarray:
    """Return the weights at which every efficiency is the usual one."""
    intercepts = {name: INTERCEPTS[name] * math.log(_USUAL[name] / (most - _USUAL[name])) for name, most in BEST.items()}
    return flat(**intercepts, overheads=np.log(_USUAL_MS))


def split(weights: torch.Tensor) -> list[torch.Tensor]:
    """Return weights (cases, SIZE) as those of each of SHAPES: (cases, kinds, features) twice and (cases, overheads)."""
    parts = torch.split(weights, [math.prod(shape) for shape in SHAPES.values()], dim=1)
    return [part.reshape(len(weights), *shape) for part, shape in zip(parts, SHAPES.values(), strict=True)]


def _over_efficiency(ideal_ms: torch.Tensor, features: torch.Tensor, weights: torch.Tensor, best: float) -> torch.Tensor:
    return ideal_ms / best * (1 + torch.exp(-(features * weights).sum(1)))


def kernels_ms(terms: Terms, weights: torch.Tensor) -> torch.Tensor:
    """Return how long each row takes, all its calls together; ``weights`` (cases, SIZE): of each case of the terms."""
    of_computing, of_moving, overheads = split(weights)
    place = terms.computes
    move = _over_efficiency(terms.move_ms, terms.moving, of_moving[terms.case, terms.kind], BEST["moving"])
    compute = _over_efficiency(terms.compute_ms, terms.computing, of_computing[terms.case[place], terms.kind[place]],
                               BEST["computing"])
    together = (move ** SOFT + 1e-30).index_add(0, place, compute ** SOFT)
    return (together ** (1 / SOFT) + torch.exp(overheads[terms.case, 1])) * terms.calls


def both_ms(terms: Terms, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ms of the kernels of each network, and those of launching them."""
    launch_ms, _, pass_ms = torch.exp(split(weights)[-1])[terms.case_of_network].T
    return terms.by_network(kernels_ms(terms, weights)), terms.by_network(terms.launches) * launch_ms + pass_ms


def log_ms(terms: Terms, weights: torch.Tensor) -> torch.Tensor:
    """Return the log of the ms of each network."""
    device, launches = both_ms(terms, weights)
    return torch.log(device ** OVERLAP + launches ** OVERLAP) / OVERLAP
