"""One profiled run of a workload, carried out on a device."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict

import pandas as pd
import torch

from lib import locks, paths, store
from lib.config import definitions
from lib.config.notebooks import ProfileParams
from lib.errors import InputError
from lib.measure import archive, disturbance, machine
from lib.measure.budget import Budget
from lib.measure.energy.meters import open_meter
from lib.measure.energy.windows import Recorder, idle_seconds
from lib.measure.statistics import Timing
from lib.measure.training import summary
from lib.measure.training.passes import Outcome, Run, measure_passes
from lib.measure.training.profiled import PASSES, Profiled, replay
from lib.tables import columns
from lib.work import datasets, workloads
from lib.work.training import Options, Trainer, adam, seed_everything, sgd

_IDLE_SHARE = 0.1  # of the budget, for the idle power before work


@contextmanager
def settings(device: torch.device, threads: int, deterministic: bool, cudnn_benchmark: bool = False) -> Iterator[None]:
    """Set threads (0: as they are), determinism and cuDNN for a run and put back what was there.

    Raises InputError where torch has an operator of the run on the device, but none that is deterministic.
    """
    was_deterministic, benchmarked = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
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
        raise InputError(f"torch has no deterministic {operator} on {device}: leave deterministic out, or use a CPU") from None
    finally:
        if torch.are_deterministic_algorithms_enabled() != was_deterministic:
            torch.use_deterministic_algorithms(was_deterministic)
        torch.backends.cudnn.benchmark = benchmarked


def _check(p: ProfileParams, device: torch.device) -> None:
    """Refuse switches that would have no effect."""
    plain, on_cuda = ProfileParams(), device.type == "cuda"
    for wrong, why in (
            (p.nvtx and not on_cuda, f"nvtx ranges need a CUDA device, not {device}"),
            (p.prefetch_factor and not p.num_workers, "prefetch_factor needs num_workers of 1 or more"),
            (p.pin_memory and not on_cuda, f"pin_memory speeds up copies to a CUDA device; the device here is {device}"),
            (p.optimizer == "adam" and (p.momentum, p.weight_decay) != (plain.momentum, plain.weight_decay),
             "momentum and weight_decay are of optimizer=sgd"),
            (p.cudnn_benchmark and p.deterministic, "deterministic and cudnn_benchmark exclude each other: choose one")):
        if wrong:
            raise InputError(why)


def _summary(run: Run, outcome: Outcome, rows: pd.DataFrame, started: str) -> dict:
    """Return the row of ``runs``: parameters, which it may have besides its columns, and what was measured with them."""
    p, workload, pipelined, seen = run.p, run.task.workload, outcome.pipelined, outcome.seen
    train = summary.steady(rows[rows["task_type"] == "train"])["step_time_ms"].to_numpy()
    timing = Timing(train) if len(train) else None
    low, high = timing.interval_ms() if timing else (None, None)
    energy, images = run.recorder.energy(*pipelined.window_s), pipelined.batches * workload.batch_size
    row = {**p.model_dump(), "run_id": run.run_id, "label": p.label or f"{workload.id}_{run.device.type}_{p.precision}",
           "timestamp": started, "hostname": socket.gethostname(), "arch": workload.model, "backend": run.device.type,
           "device_name": machine.device_name(run.device), "batch_size": workload.batch_size,
           "measured_iters": pipelined.batches, "elapsed_sec": pipelined.seconds, "images_per_sec": images / pipelined.seconds,
           "images_processed": images, "workload_id": workload.id, "dataset": workload.dataset,
           "data_source": run.opened.data_source,
           "data_root": workload.folder or "medmnist", "torch_version": torch.__version__, "tf32": machine.tf32(run.device),
           "threads": torch.get_num_threads(), "cpu_percent": seen.own_cores * 100, "peak_rss_mb": machine.peak_rss_mb(),
           "other_cpu_cores": seen.other_cores, "involuntary_switches_per_s": seen.involuntary_per_s,
           "step_median_ms": timing and timing.median_ms,
           "step_iqr_ms": timing and timing.iqr_ms, "step_low_ms": low, "step_high_ms": high, "step_n": len(train),
           **machine.ids(), "image_j": energy.energy_j / images, **energy.columns}
    pipelined_ms = pipelined.step_s * 1000 if run.device.type == "cpu" else None
    row |= {} if p.optimizer == "sgd" else {"momentum": None, "weight_decay": None}
    earlier = summary.same_configuration(archive.runs("measure"), row)["step_median_ms"].dropna()
    row["verdict"], row["reason"] = summary.judge(train, seen, torch.get_num_threads(), pipelined_ms, earlier.tolist())
    return row


def _free_name(stem: str, stack: ExitStack) -> str:
    """Return a run id without files, and hold it until ``stack`` closes: one on another device may start at the same time."""
    def taken(run_id: str) -> bool:
        names = [paths.PROFILES / f"{run_id}_{kind}.csv" for kind in PASSES] + [paths.RUNS / f"{run_id}.csv"]
        if any(path.exists() for path in names):
            return True
        try:
            stack.enter_context(locks.writer(paths.PROFILES / run_id))
        except locks.HeldError:
            return True
        return any(path.exists() for path in names)  # its holder ended in between

    return store.fresh_name(stem, taken)


def _workload(p: ProfileParams) -> definitions.Workload:
    """Return the workload of the parameters; with another model or folder of images its id is ``<dataset>-<size>``."""
    workload = definitions.workload(p.workload)
    other = {"model": p.model} if p.model else {}
    other |= {"dataset": "imagefolder", "folder": p.folder} if p.folder else {}
    changed = workload.model_copy(update=other)
    return changed.model_copy(update={"id": f"{changed.dataset}-{changed.size}"}) if other else workload


def measure(p: ProfileParams, workload: definitions.Workload | None = None) -> Profiled:
    """Carry out one profiled run: train, evaluation and test pass of a workload on one device.

    Writes ``data/profiles/<run_id>_<train|eval|test>.csv`` row by row, each with its provenance, and one row of
    ``runs``. ``workload`` stands in for the one that ``p`` names. Raises
    InputError for whatever cannot be run; rows already measured stay.
    """
    device, budget = machine.device(p.device), Budget(p.budget_s)
    _check(p, device)
    mixed, p = p.precision == "amp", p.model_copy(update={"precision": machine.precision(p.precision, device)})
    task = workloads.prepare(workload or _workload(p), p.batch_size)
    with ExitStack() as stack:
        stack.enter_context(settings(device, p.threads, p.deterministic, p.cudnn_benchmark))
        opened = datasets.open_splits(task.workload, p.data_source, p.resolution, p.augment, p.random_crop)
        note = opened.note + f" Precision amp is {p.precision} on {device}." * mixed
        samples, size = datasets.length(opened.splits["train"]), task.workload.batch_size
        if samples < 2 * size:
            raise InputError(f"{task.workload.id}: the training split has {samples} samples, too few for two full batches of "
                             f"{size}; choose a smaller batch_size")
        seed_everything(p.seed)
        options = Options(device, p.precision, p.channels_last, p.grad_accum_steps, p.pin_memory)
        with machine.working(device):
            trainer = Trainer(task, options, adam(p.lr) if p.optimizer == "adam" else sgd(p.lr, p.momentum, p.weight_decay))
        stack.enter_context(locks.device(str(device)))
        before = disturbance.wait_for_quiet(torch.get_num_threads(), patience_s=budget.patience_s, device=str(device))
        stem = f"run_{task.workload.id}_{task.workload.dataset}_{task.workload.model}_{device.type}"
        run_id = _free_name(stem, stack)
        recorder = stack.enter_context(Recorder(open_meter(str(device))))
        recorder.rest(min(idle_seconds(recorder.meter), _IDLE_SHARE * budget.left_s))
        run = Run(p, task, opened, device, trainer, run_id, recorder)
        started = store.utc_now()
        facts = {"run_id": run_id, "started_utc": started, "notebook": "02_profile", "parameters": p.model_dump(),
                 "load_at_start": asdict(before), "data_note": note, **machine.identity()}
        files = [run.path(kind) for kind in run.kinds] if p.profile else []
        for path in files:
            store.write_meta(path, "profile", **facts)
        with machine.working(device):
            outcome = measure_passes(run, budget)
        rows = store.read_all(files, "profile")
        line = pd.DataFrame([_summary(run, outcome, rows, started)], columns=columns("runs"))
        files.append(store.write(line, paths.RUNS / f"{run_id}.csv", "runs"))
        for path in files:
            store.write_meta(path, "runs" if path == files[-1] else "profile", **facts, load_at_end=asdict(outcome.seen),
                             metrics=outcome.metrics)
    return Profiled(rows, store.read(files[-1], "runs").iloc[0], note, tuple(files), outcome.metrics)


def profile(p: ProfileParams) -> Profiled:
    """Measure a run, or replay one from the reference data, as ``source`` says."""
    if p.source == "measure":
        return measure(p)
    if p.model or p.folder:
        raise InputError(f"source=replay has no run of model = {p.model!r}, folder = {p.folder!r}; source=measure runs it")
    return replay(p.workload, p.device, p.reference, p.precision, p.batch_size)
