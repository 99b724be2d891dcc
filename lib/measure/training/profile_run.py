"""One profiled run of a workload on one device."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch

from lib import locks, paths, store
from lib.config import definitions
from lib.config.notebooks import ProfileParams
from lib.errors import InputError
from lib.measure import disturbance, machine
from lib.measure.budget import Budget
from lib.measure.energy.meters import open_meter
from lib.measure.energy.windows import Recorder, idle_seconds
from lib.measure.statistics import Timing
from lib.measure.training import summary
from lib.measure.training.passes import Outcome, Run, measure_passes
from lib.measure.training.profiled import Profiled, replay
from lib.tables import columns
from lib.work import datasets, workloads
from lib.work.training import Options, Trainer, adam, seed_everything, sgd

_IDLE_SHARE = 0.1  # of the budget, for the idle power before work


@contextmanager
def settings(device: torch.device, threads: int, deterministic: bool,
             cudnn_benchmark: bool = False) -> Iterator[None]:
    """Set threads (0: unchanged), determinism and cuDNN for a run; restore them afterwards.

    Raises InputError where torch has no deterministic form of an operator of the run.
    """
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    benchmarked = torch.backends.cudnn.benchmark
    machine.use(device)
    try:
        if deterministic and device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if deterministic != was_deterministic:  # it loads torch's compiler, for seconds
            torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = cudnn_benchmark
        with machine.on_threads(threads):
            yield
    except RuntimeError as error:
        operator, missing, _ = str(error).partition(" does not have a deterministic implementation")
        if not missing:
            raise
        raise InputError(f"torch has no deterministic {operator} on {device}: "
                         "leave deterministic out, or use a CPU") from None
    finally:
        if torch.are_deterministic_algorithms_enabled() != was_deterministic:
            torch.use_deterministic_algorithms(was_deterministic)
        torch.backends.cudnn.benchmark = benchmarked


def _check(p: ProfileParams, device: torch.device) -> None:
    """Refuse switches that would have no effect."""
    on_cuda, plain = device.type == "cuda", ProfileParams()
    if p.nvtx and not on_cuda:
        raise InputError(f"nvtx ranges need a CUDA device, not {device}")
    if p.pin_memory and not on_cuda:
        raise InputError(f"pin_memory speeds up copies to a CUDA device, not to {device}")
    if p.prefetch_factor and not p.num_workers:
        raise InputError("prefetch_factor needs num_workers of 1 or more")
    of_sgd = (p.momentum, p.weight_decay) != (plain.momentum, plain.weight_decay)
    if p.optimizer == "adam" and of_sgd:
        raise InputError("momentum and weight_decay are of optimizer=sgd")
    if p.cudnn_benchmark and p.deterministic:
        raise InputError("deterministic and cudnn_benchmark exclude each other: choose one")


def _summary(run: Run, outcome: Outcome, rows: pd.DataFrame, started: str) -> pd.DataFrame:
    """Return the row of ``runs``: the parameters that it has as columns, and what was measured."""
    p, workload, clock, seen = run.p, run.task.workload, outcome.pipelined, outcome.seen
    threads, images = torch.get_num_threads(), clock.batches * workload.batch_size
    step_ms = summary.steady(rows[rows["task_type"] == "train"])["step_time_ms"].to_numpy()
    pipelined_ms = clock.step_s * 1000 if run.device.type == "cpu" else None
    verdict, reason = summary.judge(step_ms, seen, threads, pipelined_ms)
    energy = run.recorder.energy(*clock.window)
    row = {
        **p.model_dump(), "run_id": run.run_id, "timestamp": started,
        "label": p.label or f"{workload.id}_{run.device.type}_{p.precision}",
        "hostname": socket.gethostname(), "arch": workload.model, "backend": run.device.type,
        "device_name": machine.device_name(run.device), "batch_size": workload.batch_size,
        "measured_iters": clock.batches, "elapsed_sec": clock.seconds,
        "images_per_sec": images / clock.seconds, "images_processed": images,
        "workload_id": workload.id, "dataset": workload.dataset,
        "data_source": run.opened.data_source, "data_root": workload.folder or "medmnist",
        "torch_version": torch.__version__, "tf32": machine.tf32(run.device), "threads": threads,
        "cpu_percent": seen.own_cores * 100, "peak_rss_mb": machine.peak_rss_mb(),
        "other_cpu_cores": seen.other_cores, "involuntary_switches_per_s": seen.involuntary_per_s,
        "step_n": len(step_ms), "verdict": verdict, "reason": reason, **machine.ids(),
        "image_j": energy.energy_j / images, **energy.columns}
    if len(step_ms):
        timing = Timing(step_ms)
        low, high = timing.interval_ms()
        row |= {"step_median_ms": timing.median_ms, "step_iqr_ms": timing.iqr_ms,
                "step_low_ms": low, "step_high_ms": high}
    if p.optimizer != "sgd":
        row |= {"momentum": None, "weight_decay": None}
    return pd.DataFrame([row], columns=columns("runs"))


def _workload(p: ProfileParams) -> definitions.Workload:
    """Return the workload; with another model or folder its id is ``<dataset>-<size>``."""
    workload = definitions.workload(p.workload)
    if not p.model and not p.folder:
        return workload
    dataset, folder = workload.dataset, workload.folder
    if p.folder:
        dataset, folder = "imagefolder", p.folder
    return workload.model_copy(update={
        "id": f"{dataset}-{workload.size}", "model": p.model or workload.model,
        "dataset": dataset, "folder": folder})


def _trainer(p: ProfileParams, task: workloads.Task, device: torch.device) -> Trainer:
    options = Options(device, p.precision, p.channels_last, p.grad_accum_steps, p.pin_memory)
    recipe = adam(p.lr) if p.optimizer == "adam" else sgd(p.lr, p.momentum, p.weight_decay)
    with machine.working(device):
        return Trainer(task, options, recipe)


def _open(p: ProfileParams, workload: definitions.Workload) -> datasets.Opened:
    """Open the dataset; InputError where it has fewer than two full batches."""
    opened = datasets.open_splits(workload, p.data_source, p.resolution, p.augment, p.random_crop)
    samples = datasets.length(opened.splits["train"])
    if samples < 2 * workload.batch_size:
        raise InputError(f"{workload.id}: the training split has {samples} samples, too few for "
                         f"two full batches of {workload.batch_size}; choose a smaller batch_size")
    return opened


@contextmanager
def _claimed(run: Run, facts: store.Facts) -> Iterator[dict[Path, str]]:
    """Name the run and write the provenance of its files, which keeps the name from others.

    Yields the table of each file, that of ``runs`` last. If the run fails, the provenance of files
    that it did not write goes.
    """
    workload = run.task.workload
    stem = f"run_{workload.id}_{workload.dataset}_{workload.model}_{run.device.type}"
    with locks.writer(paths.RUNS / "names", locks.PATIENCE_S):
        run.run_id = store.fresh_name(stem, lambda name: any(
            [*paths.PROFILES.glob(f"{name}_*"), *paths.RUNS.glob(f"{name}.*")]))
        kinds = run.kinds if run.p.profile else []
        tables = dict.fromkeys(map(run.path, kinds), "profile")
        tables[paths.RUNS / f"{run.run_id}.csv"] = "runs"
        for path, table in tables.items():
            store.write_meta(path, table, **facts, run_id=run.run_id)
    try:
        yield tables
    except BaseException:
        for path in tables:
            if not path.exists():
                path.with_suffix(".meta.json").unlink()
        raise


def measure(p: ProfileParams, workload: definitions.Workload | None = None) -> Profiled:
    """Carry out one profiled run: train, evaluation and test pass of a workload on one device.

    Writes ``data/profiles/<run_id>_<train|eval|test>.csv`` row by row, each with its provenance,
    and one row of ``runs``. ``workload`` stands in for the one that ``p`` names. Raises InputError
    for whatever cannot be run; rows already measured stay.
    """
    device, budget, wanted = machine.device(p.device), Budget(p.budget_s), p.precision
    _check(p, device)
    p = p.model_copy(update={"precision": machine.precision(wanted, device)})
    task = workloads.prepare(workload or _workload(p), p.batch_size)
    with ExitStack() as stack:
        stack.enter_context(settings(device, p.threads, p.deterministic, p.cudnn_benchmark))
        opened = _open(p, task.workload)
        seed_everything(p.seed)
        trainer = _trainer(p, task, device)
        stack.enter_context(locks.device(str(device)))
        before = disturbance.wait_for_quiet(torch.get_num_threads(), device=str(device),
                                            patience_s=budget.patience_s)
        recorder = stack.enter_context(Recorder(open_meter(str(device))))
        recorder.rest(min(idle_seconds(recorder.meter), _IDLE_SHARE * budget.left_s))
        run = Run(p, task, opened, device, trainer, "", recorder, budget)
        note = opened.note
        if wanted == "amp":
            note += f" Precision amp is {p.precision} on {device}."
        facts = {"started_utc": store.utc_now(), "notebook": "02_profile",
                 "parameters": p.model_dump(), "load_at_start": asdict(before), "data_note": note,
                 **machine.identity()}
        tables = stack.enter_context(_claimed(run, facts))
        *profiles, line = tables
        with machine.working(device):
            outcome = measure_passes(run)
        rows = store.read_all(profiles, "profile")
        store.write(_summary(run, outcome, rows, facts["started_utc"]), line, "runs")
        for path, table in tables.items():
            store.write_meta(path, table, **facts, run_id=run.run_id,
                             load_at_end=asdict(outcome.seen), metrics=outcome.metrics)
    row = store.read(line, "runs").iloc[0]
    return Profiled(rows, row, note, tuple(tables), outcome.metrics)


def profile(p: ProfileParams) -> Profiled:
    """Measure a run, or replay one from the reference data, as ``source`` says."""
    if p.source == "measure":
        return measure(p)
    if p.model or p.folder:
        raise InputError(f"source=replay has no run of model = {p.model!r}, folder = {p.folder!r}; "
                         "source=measure runs it")
    return replay(p.workload, p.device, p.reference, p.precision, p.batch_size)
