"""Small neural networks for operator times: trained by torch, saved as plain arrays, evaluated by NumPy in microseconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

WIDTH, EPOCHS, SEEDS = 96, 300, 3
_BATCH, _LARGE_BATCH, _MANY, _MOST_STEPS = 128, 512, 6000, 8000
_RATE, _DECAY, _FAR = 4e-3, 0.05, 5.0  # beyond _FAR standard deviations an input counts as just there


@dataclass
class Nets:
    """Several perceptrons with two hidden layers (SiLU), one beside another, whose mean is the answer."""

    centre: np.ndarray  # (features)
    scale: np.ndarray
    layers: list[tuple[np.ndarray, np.ndarray]]  # per layer: weights (nets, in, out), biases (nets, 1, out)

    @cached_property
    def _folded(self) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """Give the least and largest inputs, and the layers with standardising folded in, halved for SiLU by a tanh."""
        low, high = self.centre - _FAR * self.scale, self.centre + _FAR * self.scale
        (first, bias), *middle, last = self.layers
        shift = (self.centre / self.scale) @ first.astype(float)
        folded = [(first / self.scale[:, None] / 2, (bias - shift[:, None]) / 2), *((w / 2, b / 2) for w, b in middle), last]
        if len(first) == 1:  # one net needs no axis of its own
            folded = [(w[0], b[0]) for w, b in folded]
        single = [(w.astype(np.float32), b.astype(np.float32)) for w, b in folded]
        return low.astype(np.float32), high.astype(np.float32), single

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the mean answer for rows of features (n, features)."""
        low, high, layers = self._folded
        z = np.minimum(np.maximum(x.astype(np.float32), low), high)
        for weights, biases in layers[:-1]:
            z = z @ weights
            z += biases
            z *= np.tanh(z) + 1  # x sigmoid(x) = x/2 (1 + tanh(x/2))
        weights, biases = layers[-1]
        answer = (z @ weights + biases)[..., 0]
        return (answer if answer.ndim == 1 else answer.mean(axis=0)).astype(float)


def train(x: np.ndarray, y: np.ndarray, weight: np.ndarray, seeds: Sequence[int] = range(SEEDS), epochs: int = EPOCHS,
          width: int = WIDTH) -> Nets:
    """Train on rows of features (n, features) to answers (n,), by the weighted mean absolute error (AdamW, one cycle).

    All nets are trained at once, as one batched network; each sees the rows in its own order.
    """
    import torch

    centre, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
    rows, answer, weight = (torch.tensor(values, dtype=torch.float32) for values in (
        np.clip((x - centre) / scale, -_FAR, _FAR), y, weight / weight.mean()))
    draw, count, nets = torch.Generator().manual_seed(int(seeds[0])), len(rows), len(seeds)
    sizes = (x.shape[1], width, width, 1)
    layers = [(torch.empty(nets, before, after).uniform_(-1, 1, generator=draw).mul_(before ** -0.5).requires_grad_(),
               torch.zeros(nets, 1, after, requires_grad=True)) for before, after in zip(sizes, sizes[1:], strict=False)]
    *hidden, last = layers
    batch = _BATCH if count < _MANY else _LARGE_BATCH
    epochs = max(1, min(epochs, _MOST_STEPS * epochs // EPOCHS * batch // count))
    optimizer = torch.optim.AdamW([tensor for layer in layers for tensor in layer], _RATE, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=epochs * -(-count // batch) + 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums of several threads end in other digits, and training amplifies them
    try:
        for _ in range(epochs):
            order = torch.stack([torch.randperm(count, generator=draw) for _ in range(nets)])
            for chosen in order.split(batch, dim=1):
                z = rows[chosen]
                for weights, biases in hidden:
                    z = torch.nn.functional.silu(torch.baddbmm(biases, z, weights))
                error = (torch.baddbmm(last[1], z, last[0])[:, :, 0] - answer[chosen]).abs()
                optimizer.zero_grad()
                (weight[chosen] * error).mean(dim=1).sum().backward()
                optimizer.step()
                schedule.step()
    finally:
        torch.set_num_threads(threads)
    return Nets(centre, scale, [(w.detach().numpy(), b.detach().numpy()) for w, b in layers])
