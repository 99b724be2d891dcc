"""Small neural networks for operator times: trained by torch, kept as plain arrays, evaluated by NumPy in microseconds."""

from collections.abc import Sequence
from dataclasses import dataclass

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

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the mean answer for rows of features (n, features)."""
        z = np.clip((x - self.centre) / self.scale, -_FAR, _FAR).astype(np.float32)[None]
        for number, (weights, biases) in enumerate(self.layers):
            z = z @ weights + biases
            if number < len(self.layers) - 1:
                z = z / (1 + np.exp(-z))
        return z[:, :, 0].mean(axis=0).astype(float)


def train(x: np.ndarray, y: np.ndarray, weight: np.ndarray, seeds: Sequence[int] = range(SEEDS), epochs: int = EPOCHS,
          width: int = WIDTH) -> Nets:
    """Train on rows of features (n, features) to answers (n,), by the weighted mean absolute error (AdamW, one cycle).

    All nets are trained at once, as one batched network; each sees the rows in its own order.
    """
    import torch

    centre, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
    rows = torch.tensor(np.clip((x - centre) / scale, -_FAR, _FAR), dtype=torch.float32)
    answer, weight = (torch.tensor(values, dtype=torch.float32) for values in (y, weight / weight.mean()))
    draw, count, nets = torch.Generator().manual_seed(int(seeds[0])), len(rows), len(seeds)
    sizes = (x.shape[1], width, width, 1)
    layers = [(torch.empty(nets, before, after).uniform_(-1, 1, generator=draw).mul_(before ** -0.5).requires_grad_(),
               torch.zeros(nets, 1, after, requires_grad=True)) for before, after in zip(sizes, sizes[1:], strict=False)]
    optimizer = torch.optim.AdamW([tensor for layer in layers for tensor in layer], _RATE, weight_decay=_DECAY)
    batch = _BATCH if count < _MANY else _LARGE_BATCH
    epochs = max(1, min(epochs, _MOST_STEPS * epochs // EPOCHS * batch // count))
    steps = epochs * -(-count // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps + 1)
    for _ in range(epochs):
        order = torch.stack([torch.randperm(count, generator=draw) for _ in range(nets)])
        for begin in range(0, count, batch):
            chosen = order[:, begin:begin + batch]
            z = rows[chosen]
            for number, (weights, biases) in enumerate(layers):
                z = torch.baddbmm(biases, z, weights)
                if number < len(layers) - 1:
                    z = torch.nn.functional.silu(z)
            loss = (weight[chosen] * (z[:, :, 0] - answer[chosen]).abs()).mean(dim=1).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return Nets(centre, scale, [(w.detach().numpy(), b.detach().numpy()) for w, b in layers])
