"""Optimizer, weight decay and learning rate of a run."""

import math

import torch
from torch import nn

from lib.errors import InputError
from lib.finetune.config import TrainConfig


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
    return [{"params": params, "weight_decay": decay}
            for params, decay in ((decayed, weight_decay), (undecayed, 0.0)) if params]


def optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the config's optimizer of what the model trains."""
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
    return kind(groups(model, config.weight_decay), lr=config.lr)


def schedule(config: TrainConfig, stepped: torch.optim.Optimizer,
             steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Return cosine with warm-up over ``steps`` optimizer steps."""
    from transformers import get_cosine_schedule_with_warmup

    return get_cosine_schedule_with_warmup(stepped, math.ceil(config.warmup_ratio * steps), steps)
