"""The baseline training loop, with a hook at the end of every phase, and its evaluation."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from lib.errors import InputError, choices
from lib.work import dtypes
from lib.work.workloads import Task

PHASES = ("loader_wait", "h2d", "forward", "backward", "optimizer")
PRECISIONS = ("fp32", *dtypes.AUTOCAST)


class Observer(Protocol):
    """What may watch a pass. ``start`` before a batch is loaded, ``mark`` after each phase, ``end`` after the batch."""

    def start(self) -> None:
        """Notice that the next batch is about to be loaded."""

    def mark(self, phase: str) -> None:
        """Notice that ``phase`` (one of PHASES) has ended on the host."""

    def end(self, batch: "Batch") -> None:
        """Notice that the batch is done."""


@dataclass(slots=True)
class Batch:
    """What an observer learns of a finished batch; ``lr`` is None in evaluation."""

    index: int
    inputs: torch.Tensor
    loss: torch.Tensor
    lr: float | None


class Unobserved:
    """The observer that does nothing."""

    def start(self) -> None:
        """Do nothing."""

    def mark(self, phase: str) -> None:
        """Do nothing."""

    def end(self, batch: Batch) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Options:
    """The switches of the loop that do not belong to the workload."""

    device: torch.device
    precision: str = "fp32"
    lr: float = 1e-3
    channels_last: bool = False
    grad_accum_steps: int = 1
    pin_memory: bool = False


class Trainer:
    """A task's model, loss and Adam optimizer on one device, and the passes over a loader."""

    def __init__(self, task: Task, options: Options):
        self.task, self.options = task, options
        self.format = _memory_format(task, options.channels_last)
        self.model = task.model().to(options.device, memory_format=self.format)
        self.loss = task.loss().to(options.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=options.lr)
        scaled = options.precision == "fp16" and options.device.type == "cuda"
        self.scaler = torch.amp.GradScaler(options.device.type, enabled=scaled)
        check_precision(options.device, options.precision)
        self._check_forward()

    def _check_forward(self) -> None:
        """Run one sample through the model, so that an input that does not fit is refused in one line."""
        self.model.eval()
        try:
            with torch.inference_mode(), self._autocast():
                self.model(self._place(torch.zeros(1, *self.task.shape)))
        except (RuntimeError, ValueError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"{self.task.workload.id}: model {self.task.workload.model!r} cannot take inputs of "
                             f"{self.task.shape}: {reason}") from None

    def _autocast(self):
        precision = self.options.precision
        return nullcontext() if precision == "fp32" else torch.autocast(self.options.device.type, dtypes.torch_dtype(precision))

    def _place(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(self.options.device, memory_format=self.format, non_blocking=self.options.pin_memory)

    def _receive(self, batch) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = batch
        labels = labels.to(self.options.device, non_blocking=self.options.pin_memory)
        return self._place(inputs), self.task.targets(labels)

    def train(self, loader: Iterable, observer: Observer | None = None) -> float:
        """Train one epoch; return the mean loss a sample. No step synchronises, unless the observer does."""
        observer = observer or Unobserved()
        self.model.train()
        total = torch.zeros((), device=self.options.device)
        seen, waiting, accumulate = 0, iter(loader), self.options.grad_accum_steps
        batches = len(loader)
        lr = self.optimizer.param_groups[0]["lr"]
        index = 0
        while True:
            observer.start()
            batch = next(waiting, None)
            if batch is None:
                break
            observer.mark("loader_wait")
            inputs, targets = self._receive(batch)
            observer.mark("h2d")
            with self._autocast():
                loss = self.loss(self.model(inputs), targets)
            observer.mark("forward")
            self.scaler.scale(loss / _group_size(index, batches, accumulate)).backward()
            observer.mark("backward")
            if (index + 1) % accumulate == 0 or index + 1 == batches:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad(set_to_none=True)
            total += loss.detach() * len(inputs)
            observer.mark("optimizer")
            observer.end(Batch(index, inputs, loss, lr))
            seen, index = seen + len(inputs), index + 1
        return float(total) / max(1, seen)

    @torch.inference_mode()
    def evaluate(self, loader: Iterable, observer: Observer | None = None) -> dict[str, float]:
        """Run the model over ``loader`` without training; return loss, accuracy and AUC (see ``metrics``)."""
        observer = observer or Unobserved()
        self.model.eval()
        losses, scores, targets_seen = [], [], []
        waiting, index = iter(loader), 0
        while True:
            observer.start()
            batch = next(waiting, None)
            if batch is None:
                break
            observer.mark("loader_wait")
            inputs, targets = self._receive(batch)
            observer.mark("h2d")
            with self._autocast():
                logits = self.model(inputs)
                loss = self.loss(logits, targets)
            observer.mark("forward")
            observer.end(Batch(index, inputs, loss, None))
            losses.append(loss * len(inputs))
            scores.append(self.task.scores(logits.float()))
            targets_seen.append(targets)
            index += 1
        score, target = torch.cat(scores).cpu().numpy(), torch.cat(targets_seen).cpu().numpy()
        return {"loss": float(torch.stack(losses).sum()) / len(target), **metrics(score, target)}


def _group_size(index: int, batches: int, accumulate: int) -> int:
    """Return how many batches share the optimizer step of batch ``index``; the last group may be smaller."""
    start = index // accumulate * accumulate
    return min(accumulate, batches - start)


def _memory_format(task: Task, channels_last: bool) -> torch.memory_format:
    if not channels_last:
        return torch.preserve_format
    return torch.channels_last if len(task.shape) == 3 else torch.channels_last_3d


def check_precision(device: torch.device, precision: str) -> None:
    """Raise InputError when ``device`` cannot run a convolution forward and backward in ``precision``."""
    if precision not in PRECISIONS:
        raise InputError(f"no precision {precision!r}; there are: {choices(PRECISIONS)}")
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
        raise InputError(f"precision {precision!r} does not run on {device} ({reason}); use fp32") from None


def metrics(scores: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Return accuracy and AUC of probabilities ``scores`` (N, classes or labels) against ``targets``.

    Multi-class (targets (N,)): the share of right classes; multi-label (N, labels): of right decisions at 0.5.
    The AUC is the mean over labels (one against the rest) of those that occur both ways; NaN where none does.
    """
    from sklearn.metrics import roc_auc_score

    if targets.ndim == 1:
        accuracy = float((scores.argmax(1) == targets).mean())
        truth = targets[:, None] == np.arange(scores.shape[1])
    else:
        accuracy = float(((scores > 0.5) == (targets > 0.5)).mean())
        truth = targets > 0.5
    both = [label for label in range(truth.shape[1]) if 0 < truth[:, label].sum() < len(truth)]
    aucs = [roc_auc_score(truth[:, label], scores[:, label]) for label in both]
    return {"accuracy": accuracy, "auc": float(np.mean(aucs)) if aucs else float("nan")}


def fit(trainer: Trainer, train: Iterable, val: Iterable, epochs: int, checkpoint: Path,
        progress: Callable[[Iterable], Iterable] = iter) -> list[dict[str, float]]:
    """Train for ``epochs``; the weights of the best validation AUC are kept in ``checkpoint`` and left in the model.

    Returns one record an epoch: epoch, train_loss, and loss, accuracy and auc of the validation split.
    """
    history, best = [], -1.0
    for epoch in progress(range(epochs)):
        train_loss = trainer.train(train)
        record = {"epoch": epoch, "train_loss": train_loss, **trainer.evaluate(val)}
        history.append(record)
        if record["auc"] > best:
            best = record["auc"]
            save_weights(trainer.model, checkpoint)
    if best >= 0:
        load_weights(trainer.model, checkpoint)
    return history


def save_weights(model: torch.nn.Module, path: Path) -> None:
    """Write the model's weights to ``path`` in one step; a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    torch.save(model.state_dict(), temporary)
    temporary.replace(path)


def load_weights(model: torch.nn.Module, path: Path) -> None:
    """Load weights that ``save_weights`` wrote, as data and never as code.

    Raises InputError for a missing or damaged file, and for one of another model.
    """
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(weights)
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except Exception as error:  # a damaged file fails in many ways
        raise InputError(f"{path} holds no weights of this model: {(str(error).splitlines() or [''])[0]}") from None


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on every device."""
    import random

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what augmentations of users draw from
    torch.manual_seed(seed)
