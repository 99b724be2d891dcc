"""What profiling costs: W1's training epoch with the profiler against the same without, in interleaved pairs."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks import paired, training_epoch
from lib.measure import statistics
from lib.measure.training import profiler
from lib.work import workloads
from lib.work.training import Options, Trainer

PAIRS, BATCHES, DRAWS = 150, 5, 320
TOY = {"PAIRS": 3, "BATCHES": 1, "DRAWS": 25}


def main() -> None:
    """Print the ratio of the two, with its interval."""
    epoch = training_epoch.prepare(BATCHES)
    constants = profiler.constants("overhead", epoch.task.workload, "train", epoch.device, 0, "fp32", "synthetic")
    with (tempfile.TemporaryDirectory() as folder,
          profiler.profiler(Path(folder) / "rows.csv", constants, epoch.device) as observer):
        for _ in range(5):
            epoch(), epoch(observer)
        result = paired.compare(lambda: epoch(observer), epoch, PAIRS)
        control = paired.compare(epoch, epoch, PAIRS)
        extra_us, low_us, high_us = _extra(epoch.task, epoch.device, observer)
    step_ms = epoch() / BATCHES * 1e3
    print(f"   profiled / bare on {epoch.device}: {result.ratio:.4f} [{result.low:.4f}, {result.high:.4f}] at 95 %, "
          f"{result.pairs} pairs of {BATCHES} steps of about {step_ms:.1f} ms")
    print(f"   bare / bare, as a control: {control.ratio:.4f} [{control.low:.4f}, {control.high:.4f}]")
    print(f"   where the step is almost nothing: {extra_us:.0f} µs a batch more [{low_us:.0f}, {high_us:.0f}], "
          f"{extra_us / step_ms / 10:.2f} % of that step")


def _extra(task: workloads.Task, device: torch.device, observer) -> tuple[float, float, float]:
    """Return what the profiler adds to a batch in microseconds, with its interval, from a network that costs little."""
    trainer = Trainer(task, Options(device))
    small = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 9)).to(device)
    trainer.model = trainer.network = small
    trainer.optimizer = torch.optim.Adam(trainer.model.parameters())
    data = [(torch.randn(64, *task.shape), torch.randint(0, 9, (64, 1))) for _ in range(20)]

    def batch_us(watching) -> float:
        begin = time.perf_counter()
        trainer.train(data, watching)
        return (time.perf_counter() - begin) / len(data) * 1e6

    extra = np.array([batch_us(observer) - batch_us(None) for _ in range(DRAWS)][20:])
    return float(np.median(extra)), *statistics.bootstrap(extra)
