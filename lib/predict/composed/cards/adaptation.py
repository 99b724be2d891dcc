"""A few networks of a card correct the weights that it starts from: one shift for all conditions, held by a normal prior."""

from collections.abc import Mapping

import numpy as np
import torch

from lib.predict.composed import model
from lib.predict.composed.features import Terms
from lib.predict.composed.training import SIGMA, Cases, network_weights

ITERATIONS = 60
TOGETHER = 0.5  # prior width of what all computing, and all moving, is faster by
INTERCEPT, SLOPE, OVERHEAD = 0.15, 0.02, 0.4  # of each weight of its own


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
        own = np.full(shape, OVERHEAD if name == "overheads" else SLOPE)
        together = np.zeros(shape)
        if name != "overheads":
            own[:, 0], together[:, 0] = INTERCEPT, TOGETHER
        widths.append(own.ravel())
        directions.append(together.ravel())
    computing, moving, none = directions
    both = [np.concatenate([computing, 0 * moving, none]), np.concatenate([0 * computing, moving, none])]
    return torch.as_tensor(np.concatenate(widths)), torch.as_tensor(np.stack(both))


def shift(start: Mapping[str, np.ndarray], cases: Mapping[str, Cases], iterations: int = ITERATIONS) -> np.ndarray:
    """Return what to add to the weights that each condition starts from, the same for all of them.

    The mode under a pseudo-Huber loss of the log time, families weighed, as in ``training.fit``.
    """
    from scipy.optimize import minimize  # fitting alone waits for it to load

    width, directions = _priors()
    started = {name: torch.as_tensor(weights) for name, weights in start.items()}
    measured = {name: torch.as_tensor(one.log_ms) for name, one in cases.items()}
    weight = {name: torch.as_tensor(network_weights(one, np.full(one.terms.networks, True))) for name, one in cases.items()}

    def of(apart: torch.Tensor) -> torch.Tensor:
        return width * apart[2:] + apart[:2] @ directions

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        apart = torch.as_tensor(flat).requires_grad_()
        total = 0.5 * (apart ** 2).sum()
        for name, one in cases.items():
            error = (model.log_ms(one.terms, model.split(started[name] + of(apart))) - measured[name]) / SIGMA
            total = total + ((torch.sqrt(1 + error ** 2) - 1) * weight[name]).sum()
        total.backward()
        return float(total.detach()), apart.grad.numpy()

    best = minimize(loss, np.zeros(model.SIZE + 2), jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    return of(torch.as_tensor(best.x)).numpy()


def predict(cases: Cases, weights: np.ndarray) -> np.ndarray:
    """Return the log ms of every network of ``cases``."""
    return model.log_ms(cases.terms, model.split(torch.as_tensor(weights))).numpy()
