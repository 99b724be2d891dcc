"""Optimizer, weight decay and learning rate of a run."""

import math

import torch
from torch import nn

from lib.errors import InputError
from lib.finetune.config import TrainConfig

_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Return the trainable parameters in two groups: those that decay, and biases, norms and others of one dimension.

    Raises InputError where nothing can be trained.
    """
    norms = {id(parameter) for layer in model.modules() if "Norm" in type(layer).__name__
             for parameter in layer.parameters(recurse=False)}
    decayed, undecayed = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim < 2 or id(parameter) in norms or name.endswith("bias")
            (undecayed if plain else decayed).append(parameter)
    if not decayed and not undecayed:
        raise InputError("no parameter of the model is trained; leave out freeze_backbone")
    groups = ((decayed, weight_decay), (undecayed, 0.0))
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


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
