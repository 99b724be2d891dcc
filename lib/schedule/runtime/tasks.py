"""Tasks: train a workload for a number of steps, or run a notebook. The first argument of each is the worker's job."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

from lib import executed_notebooks, paths
from lib.config import definitions
from lib.errors import InputError
from lib.measure import machine
from lib.schedule.runtime.worker_process import Job
from lib.work import datasets, training, weights, workloads
from lib.work.processes import ALONE, Processes, joined

WEIGHTS = "weights.pt"
_STATE = "state.pt"  # of a job that is not done: the next attempt resumes from it
_WARM_STEPS = 2
_KEEP_S, _KEEP_SHARE = 10.0, 20.0  # least time between checkpoints, in s and in multiples of the time to write one


@dataclass
class _Steps:
    """A number of batches; before each the job may stop, and ``between`` is called with the number of steps done."""

    job: Job
    batches: Iterator[Any]
    steps: int
    between: Callable[[int], None] = lambda done: None

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        for done in range(self.steps):
            self.between(done)
            self.job.check()
            yield next(self.batches)


def _device(job: Job) -> str:
    """Return the device of a job's slot; a slot of CPU cores is ``cpu``."""
    return job.device if job.device.startswith(("cuda", "mps")) else "cpu"


@contextmanager
def together(job: Job) -> Iterator[tuple[Processes, torch.device]]:
    """Join the other members of the job's gang, if there are any; give the processes, and the device of this one."""
    device, member = machine.device(_device(job)), job.member
    with joined(Processes(member.rank, member.count, member.rank), device, Path(member.rendezvous)) as processes:
        yield processes, device


def warm_up() -> None:
    """Import what every training task needs, so that no task pays for it."""
    import medmnist  # noqa: F401
    import torchvision  # noqa: F401

    machine.ids()


@cache
def _opened(workload_id: str) -> tuple[Any, Any]:
    """Open a workload's data, once per worker; return its task and its whole training split."""
    task = workloads.prepare(definitions.workload(workload_id))
    opened = datasets.open_splits(task.workload, "auto", "native")
    return task, datasets.bounded(opened.splits["train"], 0, task.workload.batch_size, 0)


def _order(samples: int, batch_size: int, first: int, processes: Processes = ALONE) -> Iterator[list[int]]:
    """Yield a process's samples of batch ``first`` and all later ones: full batches, in a new random order each epoch."""
    batches = samples // batch_size
    for epoch in count(first // batches):
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
        for batch in range(max(0, first - epoch * batches), batches):
            yield order[batch * batch_size:(batch + 1) * batch_size][processes.rank::processes.count].tolist()


def _trainer(job: Job, workload_id: str, first: int = 0, processes: Processes = ALONE) -> tuple[Any, Iterator[Any]]:
    """Build a workload's model; return its trainer, and its endless batches from number ``first`` on.

    Processes share each batch: a step is that of one process with the whole batch, but for the batch's norms.
    """
    torch.set_num_threads(job.threads)
    training.seed_everything(0)
    task, data = _opened(workload_id)
    size = task.workload.batch_size
    if len(data) < size:
        raise InputError(f"{workload_id} has {len(data)} samples to train on, fewer than its batch of {size}")
    if size < processes.count:
        raise InputError(f"a batch of {workload_id} has {size} samples, too few for {processes.count} devices")
    loader = torch.utils.data.DataLoader(data, batch_sampler=_order(len(data), size, first, processes))
    options = training.Options(machine.device(_device(job)))
    share = len(range(processes.rank, size, processes.count)) * processes.count / size
    recipe = replace(training.adam(), weight=lambda index: share, parallel=processes.parallel) \
        if processes.count > 1 else None
    return training.Trainer(task, options, recipe), iter(loader)


class _Checkpoint:
    """The state of a job in its folder, kept now and then for the next attempt, and in the end its weights."""

    def __init__(self, folder: Path, processes: Processes = ALONE):
        self.folder, self._first = folder, processes.first
        self._kept_s, self._took_s = time.monotonic(), 0.0

    def resume(self, trainer_at: Callable[[int], tuple[Any, Iterator[Any]]]) -> tuple[int, Any, Iterator[Any]]:
        """Return the steps done, the trainer and its batches from there on; InputError for a damaged state."""
        if not (self.folder / _STATE).is_file():
            return 0, *trainer_at(0)
        state = weights.load(self.folder / _STATE)
        trainer, batches = trainer_at(state["steps"])
        trainer.model.load_state_dict(state["model"])
        trainer.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        return state["steps"], trainer, batches

    def keep_when_due(self, trainer: Any, steps: int) -> None:
        """Keep the state after so many steps, unless one was kept a moment ago; the first process does."""
        begin = time.monotonic()
        if not self._first or begin - self._kept_s < max(_KEEP_S, _KEEP_SHARE * self._took_s):
            return
        weights.save({"steps": steps, "model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict(),
                      "random": torch.get_rng_state()}, self.folder / _STATE)
        self._kept_s = time.monotonic()
        self._took_s = self._kept_s - begin

    def end(self, trainer: Any) -> Path:
        """Write the weights, and remove the state; the first process does."""
        path = self.folder / WEIGHTS
        if self._first:
            weights.save(trainer.model.state_dict(), path)
            (self.folder / _STATE).unlink(missing_ok=True)
        return path


def workload(job: Job, workload_id: str, steps: int, folder: str) -> dict[str, Any]:
    """Train a workload for ``steps`` steps, over all its data; in the end its weights are in ``folder``.

    An attempt resumes from the state that an earlier one kept. Members of a gang share each batch. Returns the steps, those of
    this attempt (``trained``) with their seconds and mean loss of a sample, and the file of the weights.
    """
    with together(job) as (processes, _):
        checkpoint = _Checkpoint(Path(folder), processes)
        before, trainer, batches = checkpoint.resume(lambda first: _trainer(job, workload_id, first, processes))
        begin = time.perf_counter()
        left = _Steps(job, batches, steps - before, lambda done: checkpoint.keep_when_due(trainer, before + done))
        loss = trainer.train(left)
        seconds = time.perf_counter() - begin
        path = str(checkpoint.end(trainer))
    return {"steps": steps, "trained": steps - before, "seconds": seconds, "loss": loss, "weights": path}


def probe(job: Job, workload_id: str, seconds: float) -> dict[str, float]:
    """Return the seconds of a step of a workload here (``step_s``), and of its set-up and writing its weights (``setup_s``).

    Steps count after ``seconds`` of others, since a worker's first ones are slow. The second of two set-ups counts: the first
    also loads libraries and data, once per worker. Members of a gang do all of it together.
    """
    begin = time.perf_counter()
    with together(job) as (processes, _):
        joined_s = time.perf_counter() - begin
        _trainer(job, workload_id, processes=processes)
        begin = time.perf_counter()
        trainer, batches = _trainer(job, workload_id, processes=processes)
        setup_s = joined_s + time.perf_counter() - begin
        for _ in ("warm-up", "measured"):
            steps, begin = 0, time.perf_counter()
            while processes.shared(time.perf_counter() - begin < seconds):
                trainer.train(_Steps(job, batches, _WARM_STEPS))
                steps += _WARM_STEPS
            step_s = (time.perf_counter() - begin) / steps
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            _Checkpoint(Path(folder), processes).end(trainer)
            setup_s += time.perf_counter() - begin
    return {"step_s": step_s, "setup_s": setup_s}


def notebook(job: Job, path: str, parameters: dict[str, Any], out: str) -> dict[str, str]:
    """Execute a notebook in the folder of ``out``; return the path of the executed copy.

    Its parameter ``device``, if it has one that is not given, is the job's device.
    """
    target = Path(out).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    source = paths.ROOT / path
    if "device" in executed_notebooks.check_declared(source, parameters):
        parameters = {"device": _device(job)} | parameters
    executed_notebooks.execute(source, target, parameters, target.parent)
    return {"notebook": str(target)}
