"""The progress of a run, and its batches as they are trained: their rows, sums and reports."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from lib.errors import InputError
from lib.finetune.reports import Reports
from lib.work.training import Batch, Observer

_FETCH_S = 0.5  # between two fetches of values from the device


@dataclass
class Progress:
    """The progress of a run: the epoch, its finished batches, all batches and optimizer steps.

    ``rows`` are those of the profile. ``sums`` are this process's sums of the epoch's loss, right
    samples and samples, and ``seconds`` its time. ``history`` has one record per epoch.
    """

    epoch: int = 0
    batch: int = 0
    batches: int = 0
    steps: int = 0
    rows: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    seconds: float = 0.0
    best: float = math.nan
    best_epoch: int = -1
    history: list[dict[str, float]] = field(default_factory=list)


class _Step(NamedTuple):
    """A batch whose loss and right samples wait on the device, ``both`` of shape (2,)."""

    number: int
    samples: int
    lr: float
    unix_s: float
    both: torch.Tensor


class BatchLog(Observer):
    """Observes an epoch beside ``rows``: adds up its batches in ``progress``, and reports them.

    Losses stay on the device, and are fetched twice a second. ``after_step`` is called after
    ``every`` optimizer steps. ``reports`` are None but in the first process.
    """

    def __init__(self, progress: Progress, rows: Observer, reports: Reports | None, every: int,
                 after_step: Callable[[], None]):
        self._progress, self._rows, self._reports = progress, rows, reports
        self._every, self._after_step = every, after_step
        self.start, self.mark = rows.start, rows.mark
        self._waiting: list[_Step] = []
        self._since_s = time.perf_counter()  # the seconds until here are counted

    def end(self, batch: Batch) -> None:
        """Note a batch; InputError where the loss of a fetched batch is no number."""
        self._rows.end(batch)
        progress = self._progress
        both = [batch.loss.detach().float(), _right_samples(batch.logits, batch.targets).float()]
        self._waiting.append(_Step(progress.batches, len(batch.targets), batch.lr, time.time(),
                                   torch.stack(both)))
        progress.batch += 1
        progress.batches += 1
        progress.rows += type(self._rows) is not Observer
        progress.steps += batch.stepped
        due = batch.stepped and progress.steps % self._every == 0
        if due or time.perf_counter() - self._since_s >= _FETCH_S:
            self.fetch()
        if due:
            self._after_step()
            self._since_s = time.perf_counter()

    def fetch(self) -> None:
        """Add the waiting batches to the sums, in their order, and report them."""
        steps, self._waiting = self._waiting, []
        if not steps:
            return
        progress, sums = self._progress, self._progress.sums
        for step, (loss, right) in zip(steps, torch.stack([step.both for step in steps]).tolist(),
                                       strict=True):
            sums[0] += loss * step.samples
            sums[1] += right
            sums[2] += step.samples
            if self._reports:
                values = {"train/step_loss": loss, "train/step_acc@1": right / step.samples,
                          "train/lr": step.lr}
                self._reports.scalars(values, step.number, progress.epoch, step.unix_s)
            if not math.isfinite(loss):
                raise InputError(f"the loss is {loss} at step {step.number} (epoch "
                                 f"{progress.epoch}, lr {step.lr:.3g}): training stops; a smaller "
                                 "lr, more warm-up, max_grad_norm or fp32 may help")
        now = time.perf_counter()
        progress.seconds += now - self._since_s
        self._since_s = now


def _right_samples(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return how many samples are right; multi-label, the sum of their shares of right labels."""
    if targets.ndim == 1:
        return (logits.argmax(1) == targets).sum()
    return ((logits > 0) == (targets > 0.5)).float().mean(1).sum()
