"""A workload made ready to run: definition, facts of its dataset, model and loss."""

from dataclasses import dataclass

import torch
from torch import nn

from lib.config.definitions import Workload
from lib.work import datasets, models


@dataclass(frozen=True)
class Task:
    """A workload and the facts of its dataset."""

    workload: Workload
    facts: datasets.Facts

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one sample, (C, H, W) or (C, D, H, W)."""
        return (self.facts.channels, *[self.workload.size] * self.facts.spatial)

    @property
    def multi_label(self) -> bool:
        """Return whether one sample may carry several labels."""
        return self.facts.multi_label

    def model(self) -> nn.Module:
        """Build the model with random weights drawn from torch's current seed."""
        return models.build(self.workload.model, self.facts.channels, self.facts.classes,
                            self.facts.spatial, self.workload.size)

    def loss(self) -> nn.Module:
        """Return the loss: BCE-with-logits for several labels, else cross-entropy."""
        return nn.BCEWithLogitsLoss() if self.multi_label else nn.CrossEntropyLoss()

    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        """Shape labels (N, L) for the loss: (N, L) floats, or (N,) classes, also for N = 1."""
        return labels.float() if self.multi_label else labels.reshape(len(labels)).long()

    def scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Turn logits into a probability per label (sigmoid) or per class (softmax)."""
        return logits.sigmoid() if self.multi_label else logits.softmax(1)


def prepare(workload: Workload, batch_size: int = 0) -> Task:
    """Resolve a workload against its dataset; ``batch_size`` 0 keeps the workload's own.

    Raises InputError for a dataset or folder that does not exist.
    """
    if batch_size:
        workload = workload.model_copy(update={"batch_size": batch_size})
    return Task(workload, datasets.facts(workload))
