"""What a call of each runtime takes on this CPU: an empty network, and small ones; rows of models/runtimes/calls.csv.

A pass of the empty network computes one ReLU of one number. The 10 % quantile of passes in a row is robust on a busy machine.
"""

import sys
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.errors import InputError
from lib.measure import machine
from lib.measure.networks.program import program
from lib.measure.worker import call
from lib.work.run_config import RunConfig
from lib.work.runtimes import RUNTIMES

SECONDS = 0.3  # of passes of a case
WARMUP = 50
TOY = {"SECONDS": 0.01}
CONDITIONS = [("torch", True, "fp32"), *((name, False, dtype) for name, runtime in RUNTIMES.items()
                                         for dtype in ("fp32", "bf16", "int8") if dtype in runtime.DTYPES)]


class Empty(nn.Module):
    """One ReLU of one number: the least that every runtime must compute."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the positive part."""
        return torch.relu(batch)


class Linear(nn.Module):
    """A linear layer of 16."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return 16 numbers."""
        return self.layer(batch)


class Policy(nn.Module):
    """A controller's policy: 24 numbers, two hidden layers of 256, 4 out."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 4))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return 4 numbers."""
        return self.layers(batch)


class SmallCnn(nn.Module):
    """Two convolutions and a linear layer for pictures of 28 x 28."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1, stride=2),
                                    nn.ReLU(), nn.Flatten(), nn.Linear(32 * 14 * 14, 10))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return 10 numbers for each picture."""
        return self.layers(batch)


NETWORKS = [("Empty", "1", 1), ("Linear", "16", 1), ("Policy", "24", 1), ("SmallCnn", "3x28x28", 1), ("SmallCnn", "3x28x28", 8)]


def samples_ms(case: RunConfig, folder: Path, seconds: float) -> list[float]:
    """Return the times of passes in a row, after a warm-up."""
    run, _ = program(case, torch.device("cpu"), folder)
    for _ in range(WARMUP):
        run()
    samples, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < WARMUP:
        begin = time.perf_counter()
        run()
        samples.append((time.perf_counter() - begin) * 1e3)
    return samples


def measured(name: str, shape: str, batch: int, seconds: float) -> list[dict]:
    """Return a row for each condition that a network runs in here; threads 0 are all of them."""
    rows, every = [], torch.get_num_threads()
    with TemporaryDirectory() as folder:
        for (runtime, compiled, dtype), threads in product(CONDITIONS, (0, 1)):
            case = RunConfig(f"{__name__}:{name}", batch, shape, dtype=dtype, compiled=compiled, runtime=runtime)
            torch.set_num_threads(threads or every)
            try:
                samples = samples_ms(case, Path(folder), seconds)
            except InputError as error:
                print(f"   {case.label}: {error}", file=sys.stderr)
                continue
            rows.append({"machine": machine.name(), "network": name, "input_shape": shape, "batch_size": batch,
                         "runtime": runtime, "compiled": compiled, "dtype": dtype, "threads": threads,
                         "low_ms": f"{np.quantile(samples, 0.1):.5f}", "median_ms": f"{np.median(samples):.5f}",
                         "passes": len(samples)})
    return rows


def main() -> None:
    """Print the rows as CSV; each network has a process of its own."""
    rows = [row for name, shape, batch in NETWORKS for row in call(measured, name, shape, batch, SECONDS)]
    print(pd.DataFrame(rows).to_csv(index=False), end="")
