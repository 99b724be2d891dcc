"""W1's training of a few steps, for benchmarks of what is done beside them."""

import time
from dataclasses import dataclass

import torch

from lib.config import definitions
from lib.measure import machine, timing
from lib.work import datasets, workloads
from lib.work.training import Options, Trainer


@dataclass(frozen=True)
class TrainingEpoch:
    """What trains W1 on a device, with the batches of ``loader``."""

    task: workloads.Task
    device: torch.device
    trainer: Trainer
    loader: torch.utils.data.DataLoader

    def __call__(self, observer=None) -> float:
        """Train on every batch once, watched by ``observer`` (a profiler's) or by none; return the seconds."""
        begin = time.perf_counter()
        self.trainer.train(self.loader, observer)
        timing.synchronize(self.device)
        return time.perf_counter() - begin


def prepare(batches: int) -> TrainingEpoch:
    """Return the training of so many full batches on the device that there is."""
    device, task = machine.device("auto"), workloads.prepare(definitions.workload("W1"))
    opened, size = datasets.open_splits(task.workload, "auto", "native"), task.workload.batch_size
    subset = torch.utils.data.Subset(opened.splits["train"], range(batches * size))
    return TrainingEpoch(task, device, Trainer(task, Options(device)), torch.utils.data.DataLoader(subset, size, shuffle=True))
