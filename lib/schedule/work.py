"""What jobs do: train a workload for a number of steps, run a notebook. Each is given the worker's job first."""

import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import InputError
from lib.schedule.worker import Job

_HELD_BATCHES = 8  # of a dataset, used again and again: a job is about steps, not about epochs


class _Steps:
    """So many batches of a loader, as often through it as that takes; asks before each whether the job shall stop."""

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


@cache
def _trainer(workload_id: str, device: str, threads: int) -> tuple[Any, Any]:
    """Build a workload once a worker; return its trainer and its loader."""
    import torch

    from lib import params
    from lib.measure import machine
    from lib.work import datasets, training, workloads

    place = "cpu" if device.startswith("cpu") else device
    torch.set_num_threads(threads)
    training.seed_everything(0)
    task = workloads.prepare(params.workload(workload_id))
    opened = datasets.open_splits(task.workload, "auto", "native")
    subset = datasets.bounded(opened.splits["train"], _HELD_BATCHES, task.workload.batch_size, 0)
    loader = torch.utils.data.DataLoader(subset, batch_size=task.workload.batch_size, shuffle=True, drop_last=True,
                                         generator=torch.Generator().manual_seed(0))
    return training.Trainer(task, training.Options(machine.device(place))), loader


def workload(job: Job, workload_id: str, steps: int) -> dict[str, float]:
    """Train a workload for ``steps`` steps; return the steps, the seconds that they took, and the mean loss."""
    trainer, loader = _trainer(workload_id, job.device, job.threads)
    begin = time.perf_counter()
    loss = trainer.train(_Steps(job, loader, steps))
    return {"steps": steps, "seconds": time.perf_counter() - begin, "loss": loss}


def notebook(job: Job, path: str, parameters: dict[str, Any], out: str) -> dict[str, str]:
    """Run a notebook with papermill on the job's device; return where the executed one lies."""
    import papermill

    source = Path(path) if Path(path).is_absolute() else paths.ROOT / path
    if not source.is_file():
        raise InputError(f"{source} is missing")
    target = Path(out)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = str(job.threads)
    papermill.execute_notebook(str(source), str(target), parameters=parameters, progress_bar=False, log_output=False,
                               cwd=str(target.parent))
    return {"notebook": str(target)}
