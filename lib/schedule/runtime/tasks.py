"""Tasks: train a workload for a number of steps, run a notebook. Each is given the worker's job first."""

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from lib import paths
from lib.errors import InputError
from lib.execution import execute_notebook
from lib.schedule.runtime.worker_process import Job

WEIGHTS = "weights.pt"
_STATE = "state.pt"  # of a job that is not done: from it the next attempt goes on
_WARM_STEPS = 2
_KEEP_S, _KEEP_SHARE = 10.0, 20.0  # between states that are kept: so long, and so many times what the last one took


class _Steps:
    """So many batches; before each the job may stop, and ``between`` is told how many are done."""

    def __init__(self, job: Job, batches: Iterator[Any], steps: int, between: Callable[[int], None] = lambda done: None):
        self._job, self._batches, self._steps, self._between = job, batches, steps, between

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        for done in range(self._steps):
            self._between(done)
            self._job.check()
            yield next(self._batches)


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
def _opened(workload_id: str) -> tuple[Any, Any]:
    """Open a workload's data once a worker; return its task and its whole training split."""
    from lib.config import definitions
    from lib.work import datasets, workloads

    task = workloads.prepare(definitions.workload(workload_id))
    opened = datasets.open_splits(task.workload, "auto", "native")
    return task, datasets.bounded(opened.splits["train"], 0, task.workload.batch_size, 0)


def _order(samples: int, batch_size: int, first: int) -> Iterator[list[int]]:
    """Yield the samples of batch ``first`` and all that follow: full batches, each epoch in a random order of its own."""
    import torch

    batches = samples // batch_size
    for epoch in count(first // batches):
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
        for batch in range(first - epoch * batches if epoch == first // batches else 0, batches):
            yield order[batch * batch_size:(batch + 1) * batch_size].tolist()


def _trainer(job: Job, workload_id: str, first: int = 0) -> tuple[Any, Iterator[Any]]:
    """Build a workload's model anew; return its trainer, and its batches from number ``first`` on, without an end."""
    import torch

    from lib.measure import machine
    from lib.work import training

    torch.set_num_threads(job.threads)
    training.seed_everything(0)
    task, data = _opened(workload_id)
    size = task.workload.batch_size
    if len(data) < size:
        raise InputError(f"{workload_id} has {len(data)} samples to train on, fewer than its batch of {size}")
    loader = torch.utils.data.DataLoader(data, batch_sampler=_order(len(data), size, first))
    return training.Trainer(task, training.Options(machine.device(_device(job)))), iter(loader)


class _Checkpoint:
    """The state of a job in its folder: kept now and then, so that the next attempt goes on from it; in the end the weights."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._kept_s, self._took_s = time.monotonic(), 0.0

    def read(self) -> dict[str, Any] | None:
        """Return the state that was kept, None where there is none; InputError for a damaged one."""
        from lib.work import weights

        return weights.load(self.folder / _STATE) if (self.folder / _STATE).is_file() else None

    def keep(self, trainer: Any, steps: int) -> None:
        """Keep the state after so many steps."""
        import torch

        from lib.work import weights

        begin = time.monotonic()
        weights.save({"steps": steps, "model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict(),
                      "random": torch.get_rng_state()}, self.folder / _STATE)
        self._kept_s = time.monotonic()
        self._took_s = self._kept_s - begin

    def keep_when_due(self, trainer: Any, steps: int) -> None:
        """Keep the state, unless that was done a moment ago."""
        if time.monotonic() - self._kept_s >= max(_KEEP_S, _KEEP_SHARE * self._took_s):
            self.keep(trainer, steps)

    def end(self, trainer: Any) -> Path:
        """Write the weights; the state is no longer wanted."""
        from lib.work import weights

        path = weights.save(trainer.model.state_dict(), self.folder / WEIGHTS)
        (self.folder / _STATE).unlink(missing_ok=True)
        return path


def workload(job: Job, workload_id: str, steps: int, folder: str) -> dict[str, Any]:
    """Train a workload for ``steps`` steps, over all its data; its weights are in ``folder`` in the end.

    An attempt that was cut short goes on where its state was last kept. Returns the steps, those of this attempt with the
    seconds and the mean loss of a sample that they took, and the file of the weights.
    """
    import torch

    checkpoint = _Checkpoint(Path(folder))
    state = checkpoint.read()
    before = state["steps"] if state else 0
    trainer, batches = _trainer(job, workload_id, before)
    if state:
        trainer.model.load_state_dict(state["model"])
        trainer.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    begin = time.perf_counter()
    loss = trainer.train(_Steps(job, batches, steps - before, lambda done: checkpoint.keep_when_due(trainer, before + done)))
    seconds = time.perf_counter() - begin
    weights = checkpoint.end(trainer)
    return {"steps": steps, "trained": steps - before, "seconds": seconds, "loss": loss, "weights": str(weights)}


def probe(job: Job, workload_id: str, seconds: float) -> dict[str, float]:
    """Return how long a step of a workload takes here, and how long it takes to set it up and keep its weights, both in s.

    The second of two set-ups counts: the first also loads libraries and data, once a worker.
    """
    _trainer(job, workload_id)
    begin = time.perf_counter()
    trainer, batches = _trainer(job, workload_id)
    setup_s = time.perf_counter() - begin
    trainer.train(_Steps(job, batches, _WARM_STEPS))
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        trainer.train(_Steps(job, batches, _WARM_STEPS))
        steps += _WARM_STEPS
    step_s, begin = (time.perf_counter() - begin) / steps, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        _Checkpoint(Path(folder)).end(trainer)
        setup_s += time.perf_counter() - begin
    return {"step_s": step_s, "setup_s": setup_s}


@cache
def _cached_trainer(workload_id: str, device: str, threads: int) -> tuple[Any, Any]:
    """Return a trainer and its batches that stay for the life of a worker, warmed up."""
    job = Job(device, (), threads)
    trainer, batches = _trainer(job, workload_id)
    trainer.train(_Steps(job, batches, _WARM_STEPS))
    return trainer, batches


def paced(job: Job, workload_id: str, seconds: float, at_s: float = 0.0) -> dict[str, Any]:
    """Train a workload for ``seconds`` from ``at_s`` on (CLOCK_MONOTONIC, which all processes of a host share).

    Returns ``step_s``, the median of the steps that ended in that time (the first, if none did), and their number ``n``.
    """
    trainer, batches = _cached_trainer(workload_id, job.device, job.threads)
    time.sleep(max(0.0, at_s - time.monotonic()))
    until, taken = max(at_s, time.monotonic()) + seconds, []
    while (begin := time.monotonic()) < until or not taken:
        trainer.train(_Steps(job, batches, 1))
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
