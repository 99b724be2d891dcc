"""Losses by name, of logits (N, C) and targets: (N,) classes, or (N, C) of 0 and 1."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from lib.errors import InputError, choices


class BinaryCrossEntropy(nn.Module):
    """The mean binary cross-entropy of all labels; a class counts as one label among the others."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean."""
        if targets.ndim == 1:
            targets = functional.one_hot(targets, logits.shape[1])
        return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))


class Focal(nn.Module):
    """Focal loss (Lin et al. 2017), gamma 2: of the softmax, or of each label's sigmoid."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean over samples, or over labels."""
        if targets.ndim == 1:
            each = functional.cross_entropy(logits, targets, reduction="none")
        else:
            each = functional.binary_cross_entropy_with_logits(
                logits, targets.to(logits.dtype), reduction="none")
        return ((1 - torch.exp(-each)) ** 2 * each).mean()


LOSSES: dict[str, Callable[[], nn.Module]] = {
    "cross_entropy": nn.CrossEntropyLoss,
    "label_smoothing": lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
    "bce": BinaryCrossEntropy,
    "focal": Focal}
MULTI_LABEL = ("bce", "focal")  # losses that take several labels a sample


def build(name: str, multi_label: bool) -> nn.Module:
    """Make a loss; InputError for a wrong name, and for a loss that takes no several labels."""
    fitting = MULTI_LABEL if multi_label else tuple(LOSSES)
    if name not in fitting:
        what = "takes one class an image, but these may have several"
        raise InputError(f"loss_name {name!r} {what if name in LOSSES else 'is no loss'}; there "
                         f"are: {choices(fitting)}")
    return LOSSES[name]()
