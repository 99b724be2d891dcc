"""Tasks of workers: train a workload for a number of steps, probe it, or run a notebook.

Each is called as ``task(**arguments, devices=[...], threads=n)`` and returns a small dict. Several
devices share each batch, by one process per device. Imports nothing heavy.
"""

import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lib import executed_notebooks, paths
from lib.errors import InputError
from lib.work import distributed

WEIGHTS = "weights.pt"
_PART = 2  # steps that are trained in one go, by a job as by its probe
_SAVE_S = 20.0  # between two states, at least


def warm_up() -> None:
    """Import what every training task needs, so that no task pays for it."""
    import medmnist  # noqa: F401
    import torchvision  # noqa: F401

    from lib.measure import machine

    machine.ids()


@cache
def _opened(workload_id: str) -> tuple[Any, Any]:
    """Open a workload's data, once per worker; return its task and its whole training split."""
    from lib.config import definitions
    from lib.work import datasets, workloads

    task = workloads.prepare(definitions.workload(workload_id))
    opened = datasets.open_splits(task.workload, "auto", "native")
    return task, datasets.bounded(opened.splits["train"], 0, task.workload.batch_size, 0)


class _Training:
    """A workload in training on this process's device, batch after batch, epoch after epoch."""

    def __init__(self, workload_id: str, device: str, accelerator: Any, folder: Path | None = None):
        """Build the model, or go on from the last state in ``folder``, if there is one."""
        import torch
        from accelerate.utils import set_seed

        from lib.work import training

        set_seed(0)
        task, data = _opened(workload_id)
        size, processes = task.workload.batch_size, accelerator.num_processes
        if len(data) < size:
            raise InputError(f"{workload_id} has {len(data)} samples to train on, fewer than its "
                             f"batch of {size}")
        if size % processes:
            raise InputError(f"{processes} devices cannot share {workload_id}'s batch of {size} "
                             "equally")
        self.trainer = training.Trainer(task, training.Options(torch.device(device)))
        self.trainer.distribute(accelerator)
        loader = torch.utils.data.DataLoader(data, size, shuffle=True, drop_last=True)
        self._loader = accelerator.prepare_data_loader(loader)
        progress = distributed.load_state(accelerator, folder) if folder else {}
        self.steps = progress.get("steps", 0)  # that are done
        self._batches = self._endless(*divmod(self.steps, len(self._loader)))

    def _endless(self, epoch: int, done: int) -> Iterator[Any]:
        """Yield the batches of an epoch that are not done, and those of all later epochs."""
        from accelerate import skip_first_batches

        while True:
            self._loader.set_epoch(epoch)
            yield from skip_first_batches(self._loader, done)
            epoch, done = epoch + 1, 0

    def train(self, steps: int) -> float:
        """Train so many steps; return the mean loss."""
        loss = self.trainer.train([next(self._batches) for _ in range(steps)])
        self.steps += steps
        return loss


@contextlib.contextmanager
def _prepared(device: str, threads: int) -> Iterator[Any]:
    """Use a device and so many threads meanwhile; give the accelerator."""
    from lib.measure import machine

    place = machine.device(device)
    machine.use(place)
    with machine.on_threads(threads):
        accelerator = distributed.accelerator(place.type, 0)
        try:
            yield accelerator
        finally:
            accelerator.end_training()


def workload(workload: str, steps: int, folder: str, devices: list[str],
             threads: int) -> dict[str, Any]:
    """Train a workload for ``steps`` steps over all its data, from the last state in ``folder``.

    Returns the steps, those of this attempt (``trained``) with their seconds and mean loss (NaN of
    none), and the file of the weights.
    """
    if len(devices) > 1:
        arguments = {"workload": workload, "steps": steps, "folder": folder}
        return distributed.torchrun(f"{__name__}:workload", arguments, devices, threads)
    from lib.work import weights

    home = Path(folder)
    with _prepared(devices[0], threads) as accelerator:
        training = _Training(workload, devices[0], accelerator, home)
        left, begin = steps - training.steps, time.perf_counter()
        loss, saved = 0.0 if left else math.nan, begin
        while training.steps < steps:
            part = min(_PART, steps - training.steps)
            loss += training.train(part) * part / left
            if distributed.first_value(time.perf_counter() - saved >= _SAVE_S):
                distributed.save_state(accelerator, home, f"{training.steps:08d}",
                                       {"steps": training.steps})
                saved = time.perf_counter()
        seconds = time.perf_counter() - begin
        loss = distributed.gathered_sums([loss])[0] / accelerator.num_processes
        if accelerator.is_main_process:
            weights.save(training.trainer.model.state_dict(), home / WEIGHTS)
            for state in distributed.states(home):
                shutil.rmtree(state, ignore_errors=True)
    return {"steps": steps, "trained": left, "seconds": seconds, "loss": loss,
            "weights": str(home / WEIGHTS)}


def probe(workload: str, seconds: float, devices: list[str], threads: int) -> dict[str, float]:
    """Return the seconds of a step (``step_s``), and of set-up and writing weights (``setup_s``).

    Steps count after ``seconds`` of others, since a worker's first ones are slow. The second of two
    set-ups counts: the first also loads libraries and data, once per worker.
    """
    if len(devices) > 1:
        begin = time.perf_counter()
        arguments = {"workload": workload, "seconds": seconds}
        times = distributed.torchrun(f"{__name__}:probe", arguments, devices, threads)
        spent_s = time.perf_counter() - begin  # processes start anew for each job
        return {"step_s": times["step_s"], "setup_s": spent_s - times["measured_s"]}
    from lib.work import weights

    with _prepared(devices[0], threads) as accelerator:
        _Training(workload, devices[0], accelerator)
        begin = time.perf_counter()
        training = _Training(workload, devices[0], accelerator)
        setup_s, measured_s = time.perf_counter() - begin, 0.0
        for _ in ("warm-up", "measured"):
            steps, begin = training.steps, time.perf_counter()
            while distributed.first_value(time.perf_counter() - begin < seconds):
                training.train(_PART)
            spent_s = time.perf_counter() - begin
            measured_s += spent_s
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            weights.save(training.trainer.model.state_dict(), Path(folder) / WEIGHTS)
        setup_s += time.perf_counter() - begin
    return {"step_s": spent_s / (training.steps - steps), "setup_s": setup_s,
            "measured_s": measured_s}


def notebook(path: str, parameters: dict[str, Any], out: str, devices: list[str],
             threads: int) -> dict[str, str]:
    """Execute a notebook in the folder of ``out``; return the path of the executed copy.

    Its parameter ``device``, if it has one that is not given, is the job's. Raises InputError for
    several devices.
    """
    if len(devices) > 1:
        raise InputError(f"{path} is to run on {len(devices)} devices; a notebook runs on one")
    target = Path(out).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    source = paths.ROOT / path
    if "device" in executed_notebooks.check_declared(source, parameters):
        parameters = {"device": devices[0]} | parameters
    executed_notebooks.execute(source, target, parameters, target.parent)
    return {"notebook": str(target)}
