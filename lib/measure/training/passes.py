"""The passes of a profiled run: warm-up, the unsynchronised pass, the profiled epochs, evaluation and test."""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from lib import files, paths
from lib.config.notebooks import ProfileParams
from lib.measure import disturbance
from lib.measure.budget import Budget
from lib.measure.energy.windows import LEAST_S, Recorder
from lib.measure.timing import synchronize
from lib.measure.training.profiled import PASSES
from lib.measure.training.profiler import BatchProfiler, constants, profiler
from lib.progress import track
from lib.work import datasets, workloads
from lib.work.training import Batch, Observer, Trainer

_LEAST_WARM = 2  # batches of warm-up, where the budget allows: one starts the loader, one is clocked
_STEADY = 0.03
_WARM_SHARE = 0.2  # of the budget, for warm-up
_EVAL_SHARE = 0.4  # what an evaluation batch takes of a training step, about
_OVERRUN = 1.2  # times its share of the budget that a pass may take before it ends early


class Limited:
    """A loader that stops after ``batches``, which is its length, or after ``most_s`` seconds and at least one batch."""

    def __init__(self, loader: torch.utils.data.DataLoader, batches: int, most_s: float):
        self._loader, self._batches, self._most_s = loader, min(batches, len(loader)), most_s

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator:
        end = time.monotonic() + self._most_s
        for number, batch in enumerate(self._loader, 1):
            yield batch
            if number == self._batches or time.monotonic() > end:
                return


class Stopwatch(Observer):
    """An observer that takes the time from the end of the first batch, which starts the loader, to that of batch ``last``.

    ``every``: the clock is read after each batch in between, too, for a pass that may end early. If that pass has one batch,
    the batch is timed, from the creation of the stopwatch. ``observer`` gets all calls, too.
    """

    def __init__(self, device: torch.device, last: int, every: bool, observer: Observer | None = None):
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
    """The limits of each pass, by the rest of the budget and the newest time of a training step."""

    def __init__(self, p: ProfileParams, budget: Budget, step_s: float):
        self._p, self._budget, self.step_s = p, budget, step_s
        self._weight = (1 + p.epochs + 2 * _EVAL_SHARE) if p.profile else 1.0  # of what is to come, in training passes

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


@dataclass
class Run:
    """The parts of one run while it is being measured."""

    p: ProfileParams
    task: workloads.Task
    opened: datasets.Opened
    device: torch.device
    trainer: Trainer
    run_id: str
    recorder: Recorder

    @property
    def kinds(self) -> list[str]:
        """Return the passes of PASSES whose split the dataset has, train first."""
        return [kind for kind, split in PASSES.items() if split in self.opened.splits]

    def loader(self, kind: str, iters: int):
        """Return the loader of a pass: ``iters`` full batches (0: all) and the odd last one, if the set has one."""
        p, size = self.p, self.task.workload.batch_size
        if p.num_workers:
            files.shorten_sockets()
        return torch.utils.data.DataLoader(
            datasets.bounded(self.opened.splits[PASSES[kind]], iters, size, p.seed), size, shuffle=kind == "train",
            num_workers=p.num_workers, pin_memory=p.pin_memory, prefetch_factor=p.prefetch_factor or None,
            generator=torch.Generator().manual_seed(p.seed))

    def bounded(self, kind: str, iters: int, most_s: float) -> Limited:
        """Return the loader of a pass that ends early, after one batch at least, when ``most_s`` seconds are over."""
        loader = self.loader(kind, iters)
        return Limited(loader, len(loader), most_s)

    def profiler(self, kind: str) -> AbstractContextManager[BatchProfiler]:
        """Open the file of a pass and give the profiler that writes it."""
        shared = constants(self.run_id, self.task.workload, kind, self.device, self.p.num_workers, self.p.precision,
                           self.opened.data_source)
        return profiler(self.path(kind), shared, self.device, self.p.nvtx, self.recorder)

    def path(self, kind: str) -> Path:
        """Return the file of a pass."""
        return paths.PROFILES / f"{self.run_id}_{kind}.csv"


@dataclass(frozen=True)
class Outcome:
    """The results of the passes of one run, beside their rows: ``pipelined`` is the clock of the unsynchronised pass."""

    pipelined: Stopwatch
    seen: disturbance.Load
    metrics: dict[str, dict[str, float]]


def _pipelined(run: Run, iters: int, most_s: float) -> Stopwatch:
    """Train without a profiler and without synchronising inside; full batches after the first are counted, where there are."""
    size, on_cpu = run.task.workload.batch_size, run.device.type == "cpu"  # elsewhere the clock cannot be read in between
    loader = run.loader("train", iters + 1 if iters else 0)
    odd = len(loader.dataset) % size > 0
    clock = Stopwatch(run.device, len(loader) - odd - 1, every=on_cpu)
    run.trainer.train(Limited(loader, len(loader), most_s if on_cpu else math.inf), clock)
    return clock


def _warm_up(run: Run, observer: Observer | None, budget: Budget) -> float:
    """Train warm-up batches, again until two such passes agree or ``warmup_s`` is over; return the last step, in seconds."""
    most_s = budget.left_s * _WARM_SHARE
    end = time.monotonic() + most_s
    step_s = _warm_pass(run, observer, most_s)
    end = min(end, time.monotonic() + run.p.warmup_s)
    while time.monotonic() < end:
        before, step_s = step_s, _warm_pass(run, observer, end - time.monotonic())
        if abs(step_s / before - 1) < _STEADY:
            break
    return step_s


def _warm_pass(run: Run, observer: Observer | None, most_s: float) -> float:
    """Train the warm-up batches once; return the mean step after the first, in seconds."""
    batches = max(_LEAST_WARM, run.p.warmup_iters)
    loader = Limited(run.loader("train", batches), batches, most_s)
    clock = Stopwatch(run.device, len(loader) - 1, every=True, observer=observer)
    run.trainer.train(loader, clock)
    return clock.step_s


def measure_passes(run: Run, budget: Budget) -> Outcome:
    """Run warm-up, the unsynchronised pass, the profiled epochs, evaluation and test."""
    p, metrics, least_s = run.p, {}, LEAST_S if run.recorder.present else 0.0
    watch = disturbance.LoadWatch(str(run.device))
    if not p.profile:
        pipelined = _pipelined(run, *PassLimits(p, budget, _warm_up(run, None, budget)).next(least_s=least_s))
        return Outcome(pipelined, watch.reading(), metrics)
    with run.profiler("train") as observer:
        observer.warmup = True
        passes = PassLimits(p, budget, _warm_up(run, observer, budget))
        observer.warmup = False
        pipelined = _pipelined(run, *passes.next(least_s=least_s))
        passes.step_s = pipelined.step_s
        observer.pipelined_ms = passes.step_s * 1000
        for epoch in track(range(p.epochs), "train"):
            if epoch and budget.spent:
                break
            observer.epoch = epoch
            metrics["train"] = {"loss": run.trainer.train(run.bounded("train", *passes.next()), observer)}
    seen = watch.reading()
    for kind in track(run.kinds[1:], "evaluate"):
        with run.profiler(kind) as observer:
            if not budget.spent:
                observer.warmup = True
                warm = Limited(run.loader(kind, p.warmup_iters), max(1, p.warmup_iters), budget.left_s * _WARM_SHARE)
                run.trainer.evaluate(warm, observer)
                observer.warmup = False
            metrics[kind] = run.trainer.evaluate(run.bounded(kind, *passes.next(_EVAL_SHARE)), observer)
    return Outcome(pipelined, seen, metrics)
