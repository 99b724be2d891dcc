"""Loaders that end early and clocks of a pass: they keep a profiled run within its budget."""

import math
import time
from collections.abc import Iterator

import torch

from lib.config.notebooks import ProfileParams
from lib.measure.budget import Budget
from lib.measure.timing import synchronize
from lib.work.training import Batch, Observer

EVAL_SHARE = 0.4  # what an evaluation batch takes of a training step, about
_OVERRUN = 1.2  # times its share of the budget that a pass may take before it ends early


class Limited:
    """A loader that stops after ``batches``; its length says so. After ``most_s`` seconds it stops too, one batch given."""

    def __init__(self, loader: torch.utils.data.DataLoader, batches: int, most_s: float):
        self._loader, self._batches, self._most_s = loader, min(batches, len(loader)), most_s

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator:
        iterator, end = iter(self._loader), time.monotonic() + self._most_s
        for number in range(self._batches):
            if number and time.monotonic() > end:
                return
            yield next(iterator)


class Stopwatch(Observer):
    """An observer that takes the time from the end of the first batch, which starts the loader, to that of batch ``last``.

    ``every`` reads the clock after each batch in between as well, for a pass that may end early; where that has one batch
    only, its time counts, from when this was made. ``observer`` is told all that this one is.
    """

    def __init__(self, device: torch.device, last: int, every: bool = False, observer: Observer | None = None):
        self._device, self._last, self._every, self._begin = device, last, every, time.perf_counter()
        self._observer = observer or Observer()
        self.start, self.mark = self._observer.start, self._observer.mark
        self.window_s, self.batches = (self._begin, self._begin), 0

    def end(self, batch: Batch) -> None:
        """End a batch for the observer, then read the clock."""
        self._observer.end(batch)
        if batch.index not in (0, self._last) and not (self._every and batch.index < self._last):
            return
        synchronize(self._device)
        now = time.perf_counter()
        self.window_s, self.batches = (self._begin, now), max(1, batch.index)
        if batch.index == 0:
            self._begin = now

    @property
    def seconds(self) -> float:
        """Return the length of the window, in seconds."""
        return self.window_s[1] - self.window_s[0]

    @property
    def step_s(self) -> float:
        """Return the mean step, in seconds."""
        return self.seconds / self.batches


class PassLimits:
    """What each pass may take, by what is left of the budget and the newest time of a training step."""

    def __init__(self, p: ProfileParams, budget: Budget, step_s: float):
        self._p, self._budget, self.step_s = p, budget, step_s
        self._weight = (1 + p.epochs + 2 * EVAL_SHARE) if p.profile else 1.0  # of what is to come, in training passes

    def next(self, weight: float = 1.0, least_s: float = 0.0) -> tuple[int, float]:
        """Return the full batches of the next pass, 0 for all, and its seconds; ``weight`` is its share of a training pass.

        It has ``least_s`` seconds of work at least, where the budget allows.
        """
        iters, most_s = self._p.iters, self._budget.left_s * weight / self._weight
        iters = max(iters, math.ceil(least_s / self.step_s)) if iters else 0
        if self._budget.seconds:
            fit = max(1, int(most_s / weight / self.step_s) - 1)  # one for the odd last batch
            iters = min(iters or fit, fit)
        self._weight -= weight
        return iters, _OVERRUN * most_s
