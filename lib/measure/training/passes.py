"""The passes of a profiled run: warm-up, unsynchronised pass, profiled epochs, evaluation, test."""

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

_STEADY = 0.03  # warm-up ends when two passes agree so well
_WARM_SHARE = 0.2  # of the budget, for warm-up
_EVAL_SHARE = 0.4  # what an evaluation batch takes of a training step, about
_OVERRUN = 1.2  # times its share of the budget that a pass may take before it ends early


class Limited:
    """A loader that ends after ``most_s`` seconds and at least one batch, but reports its length."""

    def __init__(self, loader: torch.utils.data.DataLoader, most_s: float):
        self._loader, self._most_s = loader, most_s

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator:
        end = time.monotonic() + self._most_s
        for batch in self._loader:
            yield batch
            if time.monotonic() > end:
                return


class Stopwatch(Observer):
    """An observer that clocks a pass from the end of its first batch, which starts the loader.

    The ``window`` ends with batch ``last``, before the loader stops its workers. With ``every`` it
    ends with each batch so far, for a pass that may end early. A single batch is clocked from the
    creation of the stopwatch. All calls are forwarded to ``observer``.
    """

    def __init__(self, device: torch.device, last: int, every: bool,
                 observer: Observer | None = None):
        self._device, self._last, self._every = device, last, every
        self._begin, self._observer = time.perf_counter(), observer or Observer()
        self.start, self.mark = self._observer.start, self._observer.mark
        self.window, self.batches = (self._begin, self._begin), 1

    def end(self, batch: Batch) -> None:
        """End a batch for the observer, then read the clock where the window begins or ends."""
        self._observer.end(batch)
        if batch.index not in (0, self._last) and not self._every:
            return
        synchronize(self._device)
        now = time.perf_counter()
        self.window, self.batches = (self._begin, now), max(1, batch.index)
        if batch.index == 0:
            self._begin = now

    @property
    def seconds(self) -> float:
        """Return the length of the window, in seconds."""
        return self.window[1] - self.window[0]

    @property
    def step_s(self) -> float:
        """Return the mean step, in seconds."""
        return self.seconds / self.batches


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
    budget: Budget

    def __post_init__(self):
        self.kinds = [kind for kind, split in PASSES.items() if split in self.opened.splits]
        self._ahead = [1.0] * (1 + self.p.epochs) + [_EVAL_SHARE] * 2 if self.p.profile else [1.0]

    def limits(self, step_s: float, least_s: float = 0.0) -> tuple[int, float]:
        """Return the full batches of the next pass, 0 for all, and its seconds.

        The rest of the budget is shared among the passes to come, by ``step_s`` per training step.
        The pass has ``least_s`` seconds of work at least, where the budget allows.
        """
        most_s = self.budget.left_s * self._ahead[0] / sum(self._ahead)
        weight, iters = self._ahead.pop(0), self.p.iters
        if iters:
            iters = max(iters, math.ceil(least_s / step_s))
        if self.budget.seconds:
            fit = max(1, int(most_s / weight / step_s) - 1)  # one for the odd last batch
            iters = min(iters or fit, fit)
        return iters, _OVERRUN * most_s

    def loader(self, kind: str, iters: int, most_s: float = math.inf, odd: bool = True) -> Limited:
        """Return the loader of a pass: ``iters`` full batches (0: all), and the odd last one."""
        p, size = self.p, self.task.workload.batch_size
        if p.num_workers:
            files.shorten_sockets()
        subset = datasets.bounded(self.opened.splits[PASSES[kind]], iters, size, p.seed)
        return Limited(torch.utils.data.DataLoader(
            subset, size, shuffle=kind == "train", drop_last=not odd, num_workers=p.num_workers,
            pin_memory=p.pin_memory, prefetch_factor=p.prefetch_factor or None,
            generator=torch.Generator().manual_seed(p.seed)), most_s)

    def profiler(self, kind: str) -> AbstractContextManager[BatchProfiler]:
        """Open the file of a pass and give the profiler that writes it."""
        shared = constants(self.run_id, self.task.workload, kind, self.device, self.p.num_workers,
                           self.p.precision, self.opened.data_source)
        return profiler(self.path(kind), shared, self.device, self.p.nvtx, self.recorder)

    def path(self, kind: str) -> Path:
        """Return the file of a pass."""
        return paths.PROFILES / f"{self.run_id}_{kind}.csv"


@dataclass(frozen=True)
class Outcome:
    """Clock of the unsynchronised pass, load while training, and metrics of the passes."""

    pipelined: Stopwatch
    seen: disturbance.Load
    metrics: dict[str, dict[str, float]]


def _clocked(run: Run, iters: int, most_s: float, every: bool,
             observer: Observer | None = None) -> Stopwatch:
    """Train full batches; return the stopwatch, which leaves out the first of them."""
    loader = run.loader("train", iters, most_s, odd=False)
    clock = Stopwatch(run.device, len(loader) - 1, every, observer)
    run.trainer.train(loader, clock)
    return clock


def _pipelined(run: Run, step_s: float) -> Stopwatch:
    """Train without profiler and synchronisation; only a CPU's clock can end it early."""
    iters, most_s = run.limits(step_s, LEAST_S if run.recorder.present else 0.0)
    on_cpu = run.device.type == "cpu"
    return _clocked(run, iters + 1 if iters else 0, most_s if on_cpu else math.inf, every=on_cpu)


def _warm_up(run: Run, observer: Observer | None = None) -> float:
    """Train until two passes agree or ``warmup_s`` is over; return the last step, in seconds."""
    most_s, batches = run.budget.left_s * _WARM_SHARE, max(2, run.p.warmup_iters)
    end = time.monotonic() + most_s
    step_s = _clocked(run, batches, most_s, True, observer).step_s
    end = min(end, time.monotonic() + run.p.warmup_s)
    while (left_s := end - time.monotonic()) > 0:
        before, step_s = step_s, _clocked(run, batches, left_s, True, observer).step_s
        if abs(step_s / before - 1) < _STEADY:
            break
    return step_s


def measure_passes(run: Run) -> Outcome:
    """Run warm-up, the unsynchronised pass, the profiled epochs, evaluation and test."""
    p, metrics, watch = run.p, {}, disturbance.LoadWatch(str(run.device))
    if not p.profile:
        pipelined = _pipelined(run, _warm_up(run))
        return Outcome(pipelined, watch.reading(), metrics)
    with run.profiler("train") as observer:
        observer.warmup = True
        step_s = _warm_up(run, observer)
        observer.warmup = False
        pipelined = _pipelined(run, step_s)
        observer.pipelined_ms = pipelined.step_s * 1000
        for epoch in track(range(p.epochs), "train"):
            if epoch and run.budget.spent:
                break
            observer.epoch = epoch
            loader = run.loader("train", *run.limits(pipelined.step_s))
            metrics["train"] = {"loss": run.trainer.train(loader, observer)}
    seen = watch.reading()
    for kind in track(run.kinds[1:], "evaluate"):
        with run.profiler(kind) as observer:
            if not run.budget.spent:
                observer.warmup = True
                most_s = run.budget.left_s * _WARM_SHARE
                run.trainer.evaluate(run.loader(kind, max(1, p.warmup_iters), most_s), observer)
                observer.warmup = False
            loader = run.loader(kind, *run.limits(pipelined.step_s))
            metrics[kind] = run.trainer.evaluate(loader, observer)
    return Outcome(pipelined, seen, metrics)
