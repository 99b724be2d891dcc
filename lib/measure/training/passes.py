"""The passes of a profiled run: warm-up, the unsynchronised pass, the profiled epochs, evaluation and test."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lib import files, paths
from lib.config.notebooks import ProfileParams
from lib.measure import load
from lib.measure.budget import Budget
from lib.measure.energy.windows import LEAST_S, Recorder
from lib.measure.training.limits import EVAL_SHARE, Limited, PassLimits, Stopwatch
from lib.measure.training.profiled import PASSES
from lib.measure.training.profiler import constants, profiler
from lib.progress import track
from lib.work import datasets, workloads
from lib.work.training import Observer, Trainer

_LEAST_WARM = 2  # batches of warm-up, where the budget allows: one starts the loader, one is clocked
_STEADY = 0.03
_WARM_SHARE = 0.2  # of the budget, for warm-up


def _loader(p: ProfileParams, dataset, batch_size: int, shuffle: bool) -> torch.utils.data.DataLoader:
    if p.num_workers:
        files.shorten_sockets()
    return torch.utils.data.DataLoader(
        dataset, batch_size=batch_size, shuffle=shuffle, num_workers=p.num_workers, pin_memory=p.pin_memory,
        prefetch_factor=p.prefetch_factor or None, generator=torch.Generator().manual_seed(p.seed))


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
        subset = datasets.bounded(self.opened.splits[PASSES[kind]], iters, self.task.workload.batch_size, self.p.seed)
        return _loader(self.p, subset, self.task.workload.batch_size, shuffle=kind == "train")

    def bounded(self, kind: str, iters: int, most_s: float) -> Limited:
        """Return the loader of a pass that ends early, after one batch at least, when ``most_s`` seconds are over."""
        loader = self.loader(kind, iters)
        return Limited(loader, len(loader), most_s)

    def constants(self, kind: str) -> dict[str, Any]:
        """Return the columns of ``profile`` that do not change within a pass."""
        return constants(self.run_id, self.task.workload, kind, self.device, self.p.num_workers, self.p.precision,
                         self.opened.data_source)

    def path(self, kind: str) -> Path:
        """Return the file of a pass."""
        return paths.PROFILES / f"{self.run_id}_{kind}.csv"


@dataclass(frozen=True)
class Outcome:
    """The results of the passes of one run, beside their rows: ``pipelined`` is the clock of the unsynchronised pass."""

    pipelined: Stopwatch
    seen: load.Load
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
    with load.LoadWatch(str(run.device)) as watch:
        if not p.profile:
            pipelined = _pipelined(run, *PassLimits(p, budget, _warm_up(run, None, budget)).next(least_s=least_s))
            return Outcome(pipelined, watch.reading(), metrics)
        with profiler(run.path("train"), run.constants("train"), run.device, p.nvtx, run.recorder) as observer:
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
        with profiler(run.path(kind), run.constants(kind), run.device, p.nvtx, run.recorder) as observer:
            if not budget.spent:
                observer.warmup = True
                warm = Limited(run.loader(kind, p.warmup_iters), max(1, p.warmup_iters), budget.left_s * _WARM_SHARE)
                run.trainer.evaluate(warm, observer)
                observer.warmup = False
            metrics[kind] = run.trainer.evaluate(run.bounded(kind, *passes.next(EVAL_SHARE)), observer)
    return Outcome(pipelined, seen, metrics)
