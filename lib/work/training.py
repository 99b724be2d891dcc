"""The training loop, with a hook at the end of every phase, and its evaluation."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lib.errors import InputError, entry
from lib.work import dtypes
from lib.work.workloads import Task

PHASES = ("loader_wait", "h2d", "forward", "backward", "optimizer")
PRECISIONS = ("fp32", *dtypes.AUTOCAST)


@dataclass(slots=True)
class Batch:
    """A finished batch; ``lr``: None in evaluation; ``stepped``: it ended an optimizer step."""

    index: int
    inputs: torch.Tensor
    loss: torch.Tensor
    lr: float | None
    logits: torch.Tensor
    targets: torch.Tensor
    stepped: bool = False


class Observer:
    """What may watch a pass: ``start``, a ``mark`` after each phase, ``end``."""

    def start(self) -> None:
        """Notice that the next batch is about to be loaded."""

    def mark(self, phase: str) -> None:
        """Notice that ``phase`` (one of PHASES) has ended on the host."""

    def end(self, batch: Batch) -> None:
        """Notice that the batch is done."""


@dataclass(frozen=True)
class Options:
    """The switches of the loop that do not belong to the workload."""

    device: torch.device
    precision: str = "fp32"
    channels_last: bool = False
    grad_accum_steps: int = 1
    pin_memory: bool = False


@dataclass(frozen=True)
class Recipe:
    """The optimizer, its schedule (stepped with it), clipping (0: none), and augmentation.

    ``augment`` changes a batch of inputs on the device.
    """

    optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer]
    schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    max_grad_norm: float = 0.0
    augment: Callable[[torch.Tensor], torch.Tensor] | None = None


def adam(lr: float = 1e-3) -> Recipe:
    """Return the baseline: Adam at a constant rate."""
    return Recipe(lambda model: torch.optim.Adam(model.parameters(), lr=lr))


def sgd(lr: float, momentum: float, weight_decay: float) -> Recipe:
    """Return stochastic gradient descent at a constant rate."""
    return Recipe(lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum,
                                                weight_decay=weight_decay))


class Trainer:
    """A task's model, loss and optimizer on one device, and the passes over a loader."""

    def __init__(self, task: Task, options: Options, recipe: Recipe | None = None):
        """Build the model; InputError for a precision or an input that does not run.

        Without a ``recipe`` the optimizer is ``adam``'s.
        """
        check_precision(options.device, options.precision)
        self.task, self.options, self.recipe = task, options, recipe or adam()
        last = torch.channels_last if len(task.shape) == 3 else torch.channels_last_3d
        self.format = last if options.channels_last else torch.preserve_format
        self.model = task.model().to(options.device, memory_format=self.format)
        self.network = self.model  # as it is called: what accelerate makes of the model
        self.loss = task.loss().to(options.device)
        self.optimizer = self.recipe.optimizer(self.model)
        self.schedule = self.recipe.schedule(self.optimizer) if self.recipe.schedule else None
        scaled = options.precision == "fp16" and options.device.type == "cuda"
        self.scaler = torch.amp.GradScaler(options.device.type, enabled=scaled)
        self._check_forward()

    def distribute(self, accelerator: Any) -> None:
        """Share training with the processes of an Accelerator, which then saves this state, too."""
        if accelerator.num_processes > 1 and self.options.device.type == "cuda":
            self.model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        self.network = accelerator.prepare_model(self.model)
        accelerator.prepare_optimizer(self.optimizer)
        if self.schedule:
            accelerator.prepare_scheduler(self.schedule)
        if self.scaler.is_enabled():
            accelerator.scaler = self.scaler

    def _check_forward(self) -> None:
        """Run one sample through the model; InputError for an input that does not fit."""
        self.model.eval()
        try:
            with torch.inference_mode(), self._autocast():
                self.model(self._place(torch.zeros(1, *self.task.shape)))
        except (RuntimeError, ValueError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            workload = self.task.workload
            raise InputError(f"{workload.id}: model {workload.model!r} cannot take inputs of "
                             f"{self.task.shape}: {reason}") from None

    def _autocast(self) -> AbstractContextManager:
        options = self.options
        if options.precision == "fp32":
            return nullcontext()
        return torch.autocast(options.device.type, dtypes.torch_dtype(options.precision))

    def _place(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(self.options.device, memory_format=self.format,
                         non_blocking=self.options.pin_memory)

    def _batches(self, loader: Iterable,
                 observer: Observer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield inputs and targets of each batch on the device; loading is observed."""
        waiting = iter(loader)
        while True:
            observer.start()
            batch = next(waiting, None)
            if batch is None:
                return
            observer.mark("loader_wait")
            inputs, labels = batch
            labels = labels.to(self.options.device, non_blocking=self.options.pin_memory)
            yield self._place(inputs), self.task.targets(labels)

    def train(self, loader: Iterable, observer: Observer | None = None, first: int = 0) -> float:
        """Train one epoch; return the mean loss per sample. Only an observer synchronises.

        ``first`` is the number of the loader's first batch in the epoch, a multiple of
        ``grad_accum_steps``: of a resumed epoch.
        """
        observer = observer or Observer()
        self._train_mode()
        total = torch.zeros((), device=self.options.device)
        seen, batches, accumulate = 0, first + len(loader), self.options.grad_accum_steps
        for index, (images, targets) in enumerate(self._batches(loader, observer), first):
            inputs = self._place(self.recipe.augment(images)) if self.recipe.augment else images
            observer.mark("h2d")
            stepped = (index + 1) % accumulate == 0 or index + 1 == batches
            with nullcontext() if stepped else self._apart():
                loss, logits = self._forward(inputs, targets)
                observer.mark("forward")
                if index % accumulate == 0:  # a step begins, as if its batches were all this large
                    expected = len(inputs) * min(accumulate, batches - index)
                    samples = 0
                samples += len(inputs)
                weight = len(inputs) / expected
                self.scaler.scale(loss if weight == 1 else loss * weight).backward()
            observer.mark("backward")
            lr = self.optimizer.param_groups[0]["lr"]
            if stepped:
                self._step(expected / samples)
            total += loss.detach() * len(inputs)
            observer.mark("optimizer")
            observer.end(Batch(index, inputs, loss, lr, logits, targets, stepped))
            seen += len(inputs)
        return float(total) / max(1, seen)

    def _train_mode(self) -> None:
        """Put the model into training mode, but layers whose parameters are all frozen."""
        self.model.train()
        for layer in self.model.modules():
            has_parameters = next(layer.parameters(recurse=False), None) is not None
            if has_parameters and not any(item.requires_grad for item in layer.parameters()):
                layer.eval()

    def _forward(self, inputs: torch.Tensor,
                 targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean loss and the logits of a batch."""
        with self._autocast():
            output = self.network(inputs)
            logits = getattr(output, "logits", output)  # some libraries' models wrap them
            return self.loss(logits, targets), logits

    def _apart(self) -> AbstractContextManager:
        """Keep the gradients of this process to itself: they are exchanged before a step."""
        return self.network.no_sync() if self.network is not self.model else nullcontext()

    def _step(self, scale: float) -> None:
        """Step optimizer and schedule with scaled gradients; neither if fp16 overflowed."""
        if scale != 1:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        if self.recipe.max_grad_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.max_grad_norm)
        loss_scale = self.scaler.get_scale() if self.schedule else 1.0
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.schedule and loss_scale <= self.scaler.get_scale():
            self.schedule.step()

    def evaluate(self, loader: Iterable, observer: Observer | None = None) -> dict[str, float]:
        """Run the model over ``loader`` without training; return loss, accuracy and AUC."""
        losses, logits, targets = zip(*self.predict(loader, observer), strict=True)
        score = self.task.scores(torch.cat(logits).float()).cpu().numpy()
        target = torch.cat(targets).cpu().numpy()
        loss = sum(loss * len(batch) for loss, batch in zip(losses, targets, strict=True))
        return {"loss": float(loss) / len(target), **metrics(score, target)}

    @torch.inference_mode()
    def predict(self, loader: Iterable,
                observer: Observer | None = None) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield the mean loss, logits and targets of each batch of ``loader``, without training."""
        observer = observer or Observer()
        self.model.eval()
        for index, (inputs, targets) in enumerate(self._batches(loader, observer)):
            observer.mark("h2d")
            loss, logits = self._forward(inputs, targets)
            observer.mark("forward")
            observer.end(Batch(index, inputs, loss, None, logits, targets))
            yield loss, logits, targets


def check_precision(device: torch.device, precision: str) -> None:
    """Raise InputError when ``device`` cannot run a convolution and its backward pass in it."""
    entry(PRECISIONS, precision, "precision")
    if precision == "fp32":
        return
    try:
        layer = torch.nn.Conv2d(1, 1, 1, device=device)
        with torch.autocast(device.type, dtypes.torch_dtype(precision)):
            output = layer(torch.ones(1, 1, 2, 2, device=device))
        if output.dtype != dtypes.torch_dtype(precision):
            raise RuntimeError(f"autocast computes in {output.dtype}")
        output.sum().backward()
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"precision {precision!r} does not run on {device} ({reason}); use "
                         "fp32") from None


def metrics(scores: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Return accuracy and AUC of probabilities (N, classes or labels).

    ``targets`` are (N,) classes, or (N, labels) of 0 and 1: a label is given where its score is
    above 0.5. The AUC is the mean over the labels, one against the rest, that occur both ways; NaN
    where none does.
    """
    from sklearn.metrics import roc_auc_score

    if targets.ndim == 1:
        accuracy = float((scores.argmax(1) == targets).mean())
        truth = targets[:, None] == np.arange(scores.shape[1])
    else:
        accuracy = float(((scores > 0.5) == (targets > 0.5)).mean())
        truth = targets > 0.5
    both = np.flatnonzero(truth.any(0) & ~truth.all(0))
    aucs = [roc_auc_score(truth[:, label], scores[:, label]) for label in both]
    return {"accuracy": accuracy, "auc": float(np.mean(aucs)) if aucs else float("nan")}


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what augmentations of users draw from
    torch.manual_seed(seed)
