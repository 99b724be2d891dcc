"""One profiled run of a workload, carried out on a device."""

import math
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lib import paths, store
from lib.config import definitions
from lib.config.definitions import Workload
from lib.config.notebooks import ProfileParams
from lib.errors import InputError
from lib.measure import load, machine
from lib.measure.archive import PASSES, Profiled, replay, runs
from lib.measure.budget import Budget
from lib.measure.statistics import Timing
from lib.measure.timing import synchronize
from lib.measure.training import summary
from lib.measure.training.profiler import profiler
from lib.progress import track
from lib.tables import columns
from lib.work import datasets, workloads
from lib.work.training import Batch, Observer, Options, Trainer, Unobserved, seed_everything

_SWITCHES = ("resolution", "channels_last", "grad_accum_steps", "num_workers", "pin_memory", "prefetch_factor", "augment",
             "deterministic", "cudnn_benchmark", "seed")
_LEAST_WARM = 2  # batches of warm-up, whatever they cost: one starts the loader, one is clocked
_STEADY = 0.03
_WARM_SHARE = 0.2  # of the budget, for warm-up
_OVERRUN = 1.2  # times its share of the budget that a pass may take before it ends early
_EVAL_SHARE = 0.4  # what an evaluation batch takes of a training step, about


@contextmanager
def _settings(p: ProfileParams, device: torch.device) -> Iterator[None]:
    """Set threads, determinism and cuDNN for a run and put back what was there."""
    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark)
    machine.use(device)
    try:
        if p.threads:
            torch.set_num_threads(p.threads)
        if p.deterministic and device.type == "cuda":
            import os

            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(p.deterministic)
        torch.backends.cudnn.benchmark = p.cudnn_benchmark
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
        torch.backends.cudnn.benchmark = before[2]


def _check(p: ProfileParams, device: torch.device) -> None:
    """Refuse switches that would silently do nothing."""
    if p.nvtx and device.type != "cuda":
        raise InputError(f"nvtx ranges need a CUDA device, not {device}")
    if p.prefetch_factor and not p.num_workers:
        raise InputError("prefetch_factor needs num_workers of 1 or more")
    if p.pin_memory and device.type != "cuda":
        raise InputError(f"pin_memory speeds up copies to a CUDA device; the device here is {device}")
    if p.cudnn_benchmark and p.deterministic:
        raise InputError("deterministic and cudnn_benchmark exclude each other: choose one")


def _loader(p: ProfileParams, dataset, batch_size: int, shuffle: bool) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(
        dataset, batch_size=batch_size, shuffle=shuffle, num_workers=p.num_workers, pin_memory=p.pin_memory,
        prefetch_factor=p.prefetch_factor or None, generator=torch.Generator().manual_seed(p.seed))


class _Limited:
    """A loader that stops after ``batches``; its length says so. After ``most_s`` seconds it stops too, ``least`` given."""

    def __init__(self, loader: torch.utils.data.DataLoader, batches: int, most_s: float, least: int):
        self._loader, self._batches, self._most_s, self._least = loader, min(batches, len(loader)), most_s, least

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator:
        iterator, end = iter(self._loader), time.monotonic() + self._most_s
        for number in range(self._batches):
            if number >= self._least and time.monotonic() > end:
                return
            yield next(iterator)


@dataclass
class _Run:
    """The parts of one run while it is being measured."""

    p: ProfileParams
    task: workloads.Task
    opened: datasets.Opened
    device: torch.device
    trainer: Trainer
    run_id: str

    def loader(self, kind: str, iters: int):
        """Return the loader of a pass: ``iters`` full batches (0: all) and the odd last one, if the set has one."""
        subset = datasets.bounded(self.opened.splits[PASSES[kind]], iters, self.task.workload.batch_size, self.p.seed)
        return _loader(self.p, subset, self.task.workload.batch_size, shuffle=kind == "train")

    def bounded(self, kind: str, iters: int, most_s: float) -> _Limited:
        """Return the loader of a pass that ends early, after one batch at least, when ``most_s`` seconds are over."""
        loader = self.loader(kind, iters)
        return _Limited(loader, len(loader), most_s, 1)

    def constants(self, kind: str) -> dict[str, Any]:
        """Return the columns of ``profile`` that do not change within a pass."""
        workload = self.task.workload
        index = (self.device.index or 0) if self.device.type == "cuda" else -1 if self.device.type == "cpu" else 0
        return {"run_id": self.run_id, "workload_id": workload.id, "dataset": workload.dataset, "model": workload.model,
                "task_type": kind, "split": PASSES[kind], "device_type": self.device.type, "device_index": index,
                "num_workers": self.p.num_workers, "precision": self.p.precision, "threads": torch.get_num_threads(),
                "sync": {"cpu": "none", "cuda": "event"}.get(self.device.type, "synchronize"),
                "data_source": self.opened.data_source, **machine.ids()}

    def path(self, kind: str) -> Path:
        """Return the file of a pass."""
        return paths.PROFILES / f"{self.run_id}_{kind}.csv"


class _Stopwatch(Unobserved):
    """An observer that takes the time from the end of the first batch, which starts the loader, to that of batch ``last``.

    ``every`` reads the clock after each batch in between as well, for a pass that may end early.
    """

    def __init__(self, device: torch.device, last: int, every: bool = False):
        self._device, self._last, self._every, self._begin = device, last, every, 0.0
        self.seconds, self.batches = 0.0, 0

    def end(self, batch: Batch) -> None:
        """Read the clock."""
        if batch.index not in (0, self._last) and not (self._every and batch.index < self._last):
            return
        synchronize(self._device)
        now = time.perf_counter()
        if batch.index == 0:
            self._begin = now
        self.seconds, self.batches = now - self._begin, batch.index

    @property
    def step_s(self) -> float:
        """Return the mean step, in seconds."""
        return self.seconds / max(1, self.batches)


@dataclass(frozen=True)
class _Pipelined:
    """What the unsynchronised, unprofiled pass gave."""

    batches: int
    images: int
    seconds: float


@dataclass(frozen=True)
class _Outcome:
    """What the passes of one run gave, beside their rows."""

    pipelined: _Pipelined
    seen: load.Load
    metrics: dict[str, dict[str, float]]


def _pipelined(run: _Run, iters: int, most_s: float) -> _Pipelined:
    """Train without a profiler and without synchronising inside; only full batches after the first are counted."""
    size, on_cpu = run.task.workload.batch_size, run.device.type == "cpu"  # elsewhere the clock cannot be read in between
    loader = run.loader("train", iters + 1 if iters else 0)
    odd = len(loader.dataset) % size > 0
    clock = _Stopwatch(run.device, len(loader) - odd - 1, every=on_cpu)
    run.trainer.train(_Limited(loader, len(loader), most_s if on_cpu else math.inf, 2), clock)
    return _Pipelined(clock.batches, clock.batches * size, clock.seconds)


def _check_size(task: workloads.Task, opened: datasets.Opened) -> None:
    """Refuse a batch size for which the training split has no two full batches."""
    samples, size = datasets.length(opened.splits["train"]), task.workload.batch_size
    if samples < 2 * size:
        raise InputError(f"{task.workload.id}: the training split has {samples} samples, too few for two full batches of "
                         f"{size}; choose a smaller batch_size")


class _Passes:
    """What each pass may take, by what is left of the budget and the newest look at a training step."""

    def __init__(self, p: ProfileParams, budget: Budget, step_s: float):
        self._p, self._budget, self.step_s = p, budget, step_s
        self._weight = (1 + p.epochs + 2 * _EVAL_SHARE) if p.profile else 1.0  # of what is to come, in training passes

    def next(self, weight: float = 1.0) -> tuple[int, float]:
        """Return the full batches of the next pass, 0 for all, and its seconds; ``weight`` is its share of a training pass."""
        iters, most_s = self._p.iters, self._budget.left_s * weight / self._weight
        if self._budget.seconds:
            fit = max(1, int(most_s / weight / self.step_s) - 1)  # one for the odd last batch
            iters = min(iters or fit, fit)
        self._weight -= weight
        return iters, _OVERRUN * most_s


def _warm_up(run: _Run, observer: Observer | None, budget: Budget) -> float:
    """Train warm-up batches, then as many again until two looks agree or ``warmup_s`` is over; return the last, in seconds."""
    most_s = budget.left_s * _WARM_SHARE
    end = time.monotonic() + most_s
    step_s = _warm_pass(run, observer, most_s)
    end = min(end, time.monotonic() + run.p.warmup_s)
    while time.monotonic() < end:
        before, step_s = step_s, _warm_pass(run, observer, end - time.monotonic())
        if abs(step_s / before - 1) < _STEADY:
            break
    return step_s


def _warm_pass(run: _Run, observer: Observer | None, most_s: float) -> float:
    """Train the warm-up batches once, two at least; return the mean step after the first, in seconds."""
    batches = max(_LEAST_WARM, run.p.warmup_iters)
    loader = _Limited(run.loader("train", batches), batches, most_s, _LEAST_WARM)
    clock = _Both(observer or Unobserved(), _Stopwatch(run.device, len(loader) - 1, every=True))
    run.trainer.train(loader, clock)
    return clock.second.step_s


class _Both:
    """Two observers of one pass."""

    def __init__(self, first: Observer, second: _Stopwatch):
        self.first, self.second = first, second

    def start(self) -> None:
        """Tell the first; the stopwatch needs no start."""
        self.first.start()

    def mark(self, phase: str) -> None:
        """Tell the first."""
        self.first.mark(phase)

    def end(self, batch: Batch) -> None:
        """Tell both."""
        self.first.end(batch)
        self.second.end(batch)


def _measure_passes(run: _Run, budget: Budget) -> _Outcome:
    """Run warm-up, the unsynchronised pass, the profiled epochs, evaluation and test."""
    p, metrics = run.p, {}
    with load.LoadWatch() as watch:
        if not p.profile:
            pipelined = _pipelined(run, *_Passes(p, budget, _warm_up(run, None, budget)).next())
            return _Outcome(pipelined, watch.reading(), metrics)
        with profiler(run.path("train"), run.constants("train"), run.device, p.nvtx) as observer:
            observer.warmup = True
            passes = _Passes(p, budget, _warm_up(run, observer, budget))
            observer.warmup = False
            pipelined = _pipelined(run, *passes.next())
            passes.step_s = pipelined.seconds / pipelined.batches
            observer.pipelined_ms = passes.step_s * 1000
            for epoch in track(range(p.epochs), "train"):
                observer.epoch = epoch
                metrics["train"] = {"loss": run.trainer.train(run.bounded("train", *passes.next()), observer)}
        seen = watch.reading()
    for kind in track(("eval", "test"), "evaluate"):
        with profiler(run.path(kind), run.constants(kind), run.device, p.nvtx) as observer:
            if not budget.spent:
                observer.warmup = True
                warm = _Limited(run.loader(kind, p.warmup_iters), max(1, p.warmup_iters), budget.left_s * _WARM_SHARE, 1)
                run.trainer.evaluate(warm, observer)
                observer.warmup = False
            metrics[kind] = run.trainer.evaluate(run.bounded(kind, *passes.next(_EVAL_SHARE)), observer)
    return _Outcome(pipelined, seen, metrics)


def _summary(run: _Run, outcome: _Outcome, rows: pd.DataFrame, started: str) -> dict:
    """Return the row of ``runs``."""
    p, workload, pipelined, seen = run.p, run.task.workload, outcome.pipelined, outcome.seen
    train = summary.steady(rows[rows["task_type"] == "train"])["step_time_ms"].to_numpy()
    timing = Timing(train) if len(train) else None
    low, high = timing.interval_ms() if timing else (None, None)
    row = {"run_id": run.run_id, "label": p.label or f"{workload.id}_{run.device.type}_{p.precision}",
           "timestamp": started, "hostname": socket.gethostname(), "arch": workload.model, "backend": run.device.type,
           "device_name": machine.device_name(run.device), "batch_size": workload.batch_size,
           "warmup_iters": p.warmup_iters, "measured_iters": pipelined.batches, "precision": p.precision,
           "elapsed_sec": pipelined.seconds, "images_per_sec": pipelined.images / pipelined.seconds,
           "images_processed": pipelined.images, "workload_id": workload.id, "dataset": workload.dataset,
           "data_source": run.opened.data_source, **{name: getattr(p, name) for name in _SWITCHES},
           "tf32": run.device.type == "cuda" and torch.backends.cudnn.allow_tf32, "threads": torch.get_num_threads(),
           "cpu_percent": seen.own_cores * 100, "peak_rss_mb": machine.peak_rss_mb(), "other_cpu_cores": seen.other_cores,
           "involuntary_switches_per_s": seen.involuntary_per_s, "step_median_ms": timing and timing.median_ms,
           "step_iqr_ms": timing and timing.iqr_ms, "step_low_ms": low, "step_high_ms": high, "step_n": len(train),
           **machine.ids()}
    twin = pipelined.seconds / pipelined.batches * 1000 if run.device.type == "cpu" else None
    earlier = summary.same_configuration(runs("measure"), row)["step_median_ms"].dropna()
    row["verdict"], row["reason"] = summary.judge(train, seen, torch.get_num_threads(), twin, earlier.tolist())
    return row


def _taken(run_id: str) -> bool:
    names = [paths.PROFILES / f"{run_id}_{kind}.csv" for kind in PASSES] + [paths.RUNS / f"{run_id}.csv"]
    return any(path.exists() for path in names)


def measure(p: ProfileParams, workload: Workload | None = None) -> Profiled:
    """Carry out one profiled run: train, evaluation and test pass of a workload on one device.

    Writes ``data/profiles/<run_id>_<train|eval|test>.csv`` row by row, each with its provenance, and one row of
    ``runs``. ``workload`` stands in for the one that ``p`` names. Raises
    InputError for whatever cannot be run; rows already measured stay.
    """
    device, budget = machine.device(p.device), Budget(p.budget_s)
    _check(p, device)
    task = workloads.prepare(workload or definitions.workload(p.workload), p.batch_size)
    with ExitStack() as stack:
        stack.enter_context(_settings(p, device))
        opened = datasets.open_splits(task.workload, p.data_source, p.resolution, p.augment)
        _check_size(task, opened)
        seed_everything(p.seed)
        options = Options(device, p.precision, p.lr, p.channels_last, p.grad_accum_steps, p.pin_memory)
        trainer = Trainer(task, options)
        stack.enter_context(load.device_lock(str(device)))
        before = load.wait_for_quiet(torch.get_num_threads(), patience_s=budget.patience_s)
        stem = f"run_{task.workload.id}_{task.workload.dataset}_{task.workload.model}_{device.type}"
        run_id = store.fresh_name(stem, _taken)
        run = _Run(p, task, opened, device, trainer, run_id)
        started = store.utc_now()
        facts = {"run_id": run_id, "started_utc": started, "notebook": "02_profile", "parameters": p.model_dump(),
                 "load_at_start": vars(before), "data_note": opened.note, **machine.identity()}
        files = [run.path(kind) for kind in PASSES] if p.profile else []
        for path in files:
            store.write_meta(path, "profile", **facts)
        outcome = _measure_passes(run, budget)
        rows = store.read_all(files, "profile")
        line = pd.DataFrame([_summary(run, outcome, rows, started)], columns=columns("runs"))
        files.append(store.write(line, paths.RUNS / f"{run_id}.csv", "runs"))
        for path in files:
            store.write_meta(path, "runs" if path == files[-1] else "profile", **facts, load_at_end=vars(outcome.seen),
                             metrics=outcome.metrics)
    return Profiled(rows, store.read(files[-1], "runs").iloc[0], opened.note, tuple(files), outcome.metrics)


def profile(p: ProfileParams) -> Profiled:
    """Measure a run, or replay one from the reference data, as ``source`` says."""
    return measure(p) if p.source == "measure" else replay(p.workload, p.device, p.reference)
