"""What profiling costs: W1's training epoch with the profiler against the same without, in interleaved pairs."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from lib.config import definitions
from lib.measure import machine, statistics, timing
from lib.measure.training.profiler import profiler
from lib.work import datasets, workloads
from lib.work.training import Options, Trainer

PAIRS, BATCHES = 150, 5
CONSTANTS = ("run_id", "workload_id", "dataset", "model", "task_type", "split", "device_type", "device_index", "num_workers",
             "precision", "threads", "sync", "data_source", "hardware_id", "software_id")


def main() -> None:
    """Print the ratio of the two, with its interval."""
    device = machine.device("auto")
    task = workloads.prepare(definitions.workload("W1"))
    opened = datasets.open_splits(task.workload, "auto", "native")
    trainer = Trainer(task, Options(device))
    subset = torch.utils.data.Subset(opened.splits["train"], range(BATCHES * task.workload.batch_size))
    loader = torch.utils.data.DataLoader(subset, task.workload.batch_size, shuffle=True)
    constants = dict.fromkeys(CONSTANTS, "constant")

    def epoch(observer) -> float:
        begin = time.perf_counter()
        trainer.train(loader, observer)
        timing.synchronize(device)
        return time.perf_counter() - begin

    with tempfile.TemporaryDirectory() as folder, profiler(Path(folder) / "rows.csv", constants, device) as observer:
        for _ in range(5):
            epoch(None), epoch(observer)
        result = timing.compare(lambda: epoch(observer), lambda: epoch(None), PAIRS)
        control = timing.compare(lambda: epoch(None), lambda: epoch(None), PAIRS)
        extra_us, low_us, high_us = _extra(task, device, observer)
    step_ms = epoch(None) / BATCHES * 1e3
    print(f"   profiled / bare on {device}: {result.ratio:.4f} [{result.low:.4f}, {result.high:.4f}] at 95 %, "
          f"{result.pairs} pairs of {BATCHES} steps of about {step_ms:.1f} ms")
    print(f"   bare / bare, as a control: {control.ratio:.4f} [{control.low:.4f}, {control.high:.4f}]")
    print(f"   where the step is almost nothing: {extra_us:.0f} µs a batch more [{low_us:.0f}, {high_us:.0f}], "
          f"{extra_us / step_ms / 10:.2f} % of that step")


def _extra(task: workloads.Task, device: torch.device, observer) -> tuple[float, float, float]:
    """Return what the profiler adds to a batch in microseconds, with its interval, from a network that costs little."""
    trainer = Trainer(task, Options(device))
    trainer.model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 9)).to(device)
    trainer.optimizer = torch.optim.Adam(trainer.model.parameters())
    data = [(torch.randn(64, *task.shape), torch.randint(0, 9, (64, 1))) for _ in range(20)]

    def batch_us(watching) -> float:
        begin = time.perf_counter()
        trainer.train(data, watching)
        return (time.perf_counter() - begin) / len(data) * 1e6

    extra = np.array([batch_us(observer) - batch_us(None) for _ in range(320)][20:])
    return float(np.median(extra)), *statistics.bootstrap(extra)
