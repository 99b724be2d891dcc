"""Losses by name: each is made for a dataset, and takes logits (N, C) and targets, (N,) classes or (N, C) of 0 and 1."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from lib.errors import InputError, choices

LOSSES: dict[str, tuple[bool, Callable[[], nn.Module]]] = {}  # name: whether it takes several labels, and what makes it


def loss(name: str, multi_label: bool = False):
    """Register the class or function below it, which makes a loss, under ``name``: all that a new loss takes."""
    def register(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        LOSSES[name] = multi_label, make
        return make

    return register


loss("cross_entropy")(nn.CrossEntropyLoss)


@loss("label_smoothing")
def label_smoothing() -> nn.Module:
    """Return cross-entropy against targets of which 0.1 is spread over all classes."""
    return nn.CrossEntropyLoss(label_smoothing=0.1)


def _labels(targets: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return targets as (N, C) of 0 and 1."""
    return (functional.one_hot(targets, logits.shape[1]) if targets.ndim == 1 else targets).to(logits.dtype)


@loss("bce", multi_label=True)
class BinaryCrossEntropy(nn.Module):
    """The mean binary cross-entropy of all labels; a class counts as one label among the others."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean."""
        return functional.binary_cross_entropy_with_logits(logits, _labels(targets, logits))


@loss("focal", multi_label=True)
class Focal(nn.Module):
    """Focal loss (Lin et al. 2017), gamma 2, unweighted: of the softmax for classes, of each label's sigmoid for labels."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean over samples, or over labels."""
        if targets.ndim == 1:
            each = functional.cross_entropy(logits, targets, reduction="none")
        else:
            each = functional.binary_cross_entropy_with_logits(logits, _labels(targets, logits), reduction="none")
        return ((1 - torch.exp(-each)) ** 2 * each).mean()


def build(name: str, multi_label: bool) -> nn.Module:
    """Make a loss; InputError for a name that is none, and for one that does not fit several labels an image."""
    fitting = [key for key, (takes_labels, _) in LOSSES.items() if takes_labels or not multi_label]
    if name not in fitting:
        what = "takes one class an image, but these may have several" if name in LOSSES else "is no loss"
        raise InputError(f"loss_name {name!r} {what}; there are: {choices(fitting)}")
    return LOSSES[name][1]()
