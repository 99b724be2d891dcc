"""What profiling costs: W1's training epoch with the profiler against the same without, in interleaved pairs."""

import tempfile
import time
from pathlib import Path

import torch

from lib import params
from lib.measure import machine, timing
from lib.measure.profiler import profiler
from lib.tables import columns
from lib.work import datasets, workloads
from lib.work.training import Options, Trainer

PAIRS, BATCHES = 60, 15


def main() -> None:
    """Print the ratio of the two, with its interval."""
    device = machine.device("auto")
    task = workloads.prepare(params.workload("W1"))
    opened = datasets.open_splits(task.workload, "auto", "native")
    trainer = Trainer(task, Options(device))
    subset = torch.utils.data.Subset(opened.splits["train"], range(BATCHES * task.workload.batch_size))
    loader = torch.utils.data.DataLoader(subset, task.workload.batch_size, shuffle=True)
    constants = dict.fromkeys(columns("profile"), "x")

    def epoch(observer) -> float:
        begin = time.perf_counter()
        trainer.train(loader, observer)
        timing.synchronize(device)
        return time.perf_counter() - begin

    with tempfile.TemporaryDirectory() as folder, profiler(Path(folder) / "rows.csv", constants, device) as observer:
        for _ in range(5):
            epoch(None), epoch(observer)
        result = timing.compare(lambda: epoch(observer), lambda: epoch(None), PAIRS)
        begin = time.perf_counter()
        for number in range(1000):
            observer.start()
            for phase in ("loader_wait", "h2d", "forward", "backward", "optimizer"):
                observer.mark(phase)
            observer.end(_batch(number, device))
        own_us = (time.perf_counter() - begin) * 1e3
    step_ms = epoch(None) / BATCHES * 1e3
    print(f"   profiled / bare on {device}: {result.ratio:.4f} [{result.low:.4f}, {result.high:.4f}] at 95 %, "
          f"{result.pairs} pairs of {BATCHES} steps of about {step_ms:.1f} ms")
    print(f"   the profiler's own work: {own_us:.0f} µs a batch, {own_us / step_ms / 10:.2f} % of that step")


def _batch(number: int, device: torch.device):
    from lib.work.training import Batch

    return Batch(number, torch.zeros(64, 3, 28, 28, device=device), torch.zeros((), device=device), 1e-3)
