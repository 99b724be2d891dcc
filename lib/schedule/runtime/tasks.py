"""Tasks: train a workload for a number of steps, run a notebook. Each is given the worker's job first."""

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from lib import paths
from lib.execution import execute_notebook
from lib.schedule.runtime.worker_process import Job

_WARM_STEPS = 2
_BATCHES = 8  # of a dataset, used again and again: a job is about steps, not about epochs


class _Steps:
    """So many batches of a loader, as often through it as that takes; before each the job may stop."""

    def __init__(self, job: Job, loader: Any, steps: int):
        self._job, self._loader, self._steps = job, loader, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        left = self._steps
        while left > 0:
            for batch in self._loader:
                self._job.check()
                if left <= 0:
                    return
                left -= 1
                yield batch


def _device(job: Job) -> str:
    """Return the device of a job's slot; some cores of the CPU are ``cpu``."""
    return job.device if job.device.startswith(("cuda", "mps")) else "cpu"


def warm_up() -> None:
    """Import what every training task needs, so that no task pays for it."""
    import medmnist  # noqa: F401
    import torchvision  # noqa: F401

    from lib.measure import machine
    from lib.work import training  # noqa: F401

    machine.ids()


@cache
def _batches(workload_id: str) -> tuple[Any, Any]:
    """Open a workload's data once a worker; return its task and a loader over a few batches."""
    import torch

    from lib.config import definitions
    from lib.work import datasets, workloads

    task = workloads.prepare(definitions.workload(workload_id))
    opened = datasets.open_splits(task.workload, "auto", "native")
    subset = datasets.bounded(opened.splits["train"], _BATCHES, task.workload.batch_size, 0)
    return task, torch.utils.data.DataLoader(subset, batch_size=task.workload.batch_size, shuffle=True, drop_last=True)


def _trainer(job: Job, workload_id: str) -> tuple[Any, Any]:
    """Build a workload's model anew; return its trainer and its loader."""
    import torch

    from lib.measure import machine
    from lib.work import training

    torch.set_num_threads(job.threads)
    training.seed_everything(0)
    task, loader = _batches(workload_id)
    return training.Trainer(task, training.Options(machine.device(_device(job)))), loader


def workload(job: Job, workload_id: str, steps: int) -> dict[str, float]:
    """Train a workload for ``steps`` steps; return the steps, the seconds that they took, and the mean loss."""
    trainer, loader = _trainer(job, workload_id)
    begin = time.perf_counter()
    loss = trainer.train(_Steps(job, loader, steps))
    return {"steps": steps, "seconds": time.perf_counter() - begin, "loss": loss}


def probe(job: Job, workload_id: str, seconds: float) -> dict[str, float]:
    """Return how long a step of a workload takes here, and how long it takes to set it up, both in s.

    The second of two set-ups counts: the first also loads libraries and data, once a worker.
    """
    _trainer(job, workload_id)
    begin = time.perf_counter()
    trainer, loader = _trainer(job, workload_id)
    setup_s = time.perf_counter() - begin
    trainer.train(_Steps(job, loader, _WARM_STEPS))
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        trainer.train(_Steps(job, loader, _WARM_STEPS))
        steps += _WARM_STEPS
    return {"step_s": (time.perf_counter() - begin) / steps, "setup_s": setup_s}


@cache
def _cached_trainer(workload_id: str, device: str, threads: int) -> tuple[Any, Any]:
    """Return a trainer and its loader that stay for the life of a worker, warmed up."""
    job = Job(device, (), threads)
    trainer, loader = _trainer(job, workload_id)
    trainer.train(_Steps(job, loader, _WARM_STEPS))
    return trainer, loader


def paced(job: Job, workload_id: str, seconds: float, at_s: float = 0.0) -> dict[str, Any]:
    """Train a workload for ``seconds`` from ``at_s`` on (CLOCK_MONOTONIC, which all processes of a host share).

    Returns ``step_s``, the median of the steps that ended in that time (the first, if none did), and their number ``n``.
    """
    trainer, loader = _cached_trainer(workload_id, job.device, job.threads)
    time.sleep(max(0.0, at_s - time.monotonic()))
    until, taken = max(at_s, time.monotonic()) + seconds, []
    while (begin := time.monotonic()) < until or not taken:
        trainer.train(_Steps(job, loader, 1))
        end = time.monotonic()
        taken.append((end, end - begin))
    whole = [took for end, took in taken if end <= until] or [taken[0][1]]
    return {"step_s": median(whole), "n": len(whole)}


def notebook(job: Job, path: str, parameters: dict[str, Any], out: str) -> dict[str, str]:
    """Execute a notebook on the job's device, in the folder of ``out``, and keep it there; return where.

    Its parameter ``device``, where it has one that is not given, is the job's.
    """
    target = Path(out).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    execute_notebook(paths.ROOT / path, target, parameters, target.parent, offered={"device": _device(job)})
    return {"notebook": str(target)}
