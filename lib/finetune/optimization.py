"""What is minimised, by name, and how: which weights decay, how they are stepped, and at what rate.

A loss is made for a dataset, and takes logits (N, C) and targets, (N,) classes or (N, C) of 0 and 1.
"""

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from lib.errors import InputError, choices
from lib.finetune.config import TrainConfig

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


def build_loss(name: str, multi_label: bool) -> nn.Module:
    """Make a loss; InputError for a name that is none, and for one that does not fit several labels an image."""
    fitting = [one for one, (several, _) in LOSSES.items() if several or not multi_label]
    if name not in fitting:
        what = "takes one class an image, but these may have several" if name in LOSSES else "is no loss"
        raise InputError(f"loss_name {name!r} {what}; there are: {choices(fitting)}")
    return LOSSES[name][1]()


# ----------------------------------------------------------------------------------------------- steps

_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Return the trainable parameters in two groups: those that decay, and biases, norms and others of one dimension.

    Raises InputError where nothing can be trained.
    """
    norms = {id(parameter) for layer in model.modules() if "Norm" in type(layer).__name__
             for parameter in layer.parameters(recurse=False)}
    decayed, kept = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim < 2 or id(parameter) in norms or name.endswith("bias")
            (kept if plain else decayed).append(parameter)
    if not decayed and not kept:
        raise InputError("no parameter of the model is trained; leave out freeze_backbone")
    return [{"params": params, "weight_decay": decay} for params, decay in ((decayed, weight_decay), (kept, 0.0)) if params]


def optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the config's optimizer of what the model trains."""
    return _OPTIMIZERS[config.optimizer](groups(model, config.weight_decay), lr=config.lr)


def factor(step: int, steps: int, warmup: int) -> float:
    """Return the share of the learning rate at optimizer step ``step`` of ``steps``, as transformers' schedule does.

    It rises linearly from 0 over the first ``warmup`` of them, and falls as half a cosine to 0 after the last.
    """
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))


def schedule(config: TrainConfig, stepped: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Return cosine with warm-up over ``steps`` optimizer steps."""
    warmup = math.ceil(config.warmup_ratio * steps)
    return torch.optim.lr_scheduler.LambdaLR(stepped, lambda step: factor(step, steps, warmup))
