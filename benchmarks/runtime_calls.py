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

from lib.config.definitions import ONNXRUNTIME, OPENVINO, TORCH
from lib.errors import InputError
from lib.measure import machine
from lib.measure.networks.case import Case, program
from lib.measure.worker import call

SECONDS = 0.3  # of passes of a case
WARMUP = 50
TOY = {"SECONDS": 0.01}
CONDITIONS = [(TORCH, False, "fp32"), (TORCH, False, "bf16"), (TORCH, True, "fp32"), (ONNXRUNTIME, False, "fp32"),
              (ONNXRUNTIME, False, "int8"), (OPENVINO, False, "fp32"), (OPENVINO, False, "bf16"), (OPENVINO, False, "int8")]


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


def samples_ms(case: Case, folder: Path, seconds: float) -> list[float]:
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
            case = Case(f"{__name__}:{name}", "infer", batch, shape, dtype, compiled=compiled, runtime=runtime)
            torch.set_num_threads(threads or every)
            try:
                samples = samples_ms(case, Path(folder), seconds)
            except InputError as error:
                print(f"   {case.words}: {error}", file=sys.stderr)
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
