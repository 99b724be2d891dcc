"""What the ceilings of a device are measured with: GEMMs, convolutions, triads; and overheads."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch

from lib.config.notebooks import MachineParams
from lib.measure import machine
from lib.measure.timing import Call, host_ms, measure, time_calls
from lib.tables import columns
from lib.work.dtypes import torch_dtype

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16")
_SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)  # of square GEMMs
_CHANNELS, _SIDE = 256, 32  # of the convolution
_VECTOR_RATE = 2e10  # FLOP/s below which a dtype has no matrix kernels: convolutions take seconds
_FILL_RATE = 1e9  # bytes/s at which a triad is allocated and called three times, at least
_LARGEST_SHARE = 0.1  # of the budget, for a visit of a convolution or a working set
_TOUCHED, _PAGE = 2**26, 2**12  # bytes


@dataclass(frozen=True)
class Probe:
    """One thing to time: the work of one call, and how to build the call."""

    dtype: str
    level: str
    method: str
    flops: float
    bytes: float
    build: Callable[[], Call]


def _gemm(dtype: str, n: int, device: torch.device) -> Call:
    left, right = (torch.randn(n, n, device=device).to(torch_dtype(dtype)) for _ in range(2))
    out = torch.empty_like(left)

    def call() -> None:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        torch.mm(left, right, out=out)
    return call


def _convolution(dtype: str, batch: int, device: torch.device) -> Call:
    layer = torch.nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, bias=False).requires_grad_(False)
    images = torch.randn(batch, _CHANNELS, _SIDE, _SIDE)
    layer, images = (thing.to(device, torch_dtype(dtype), memory_format=torch.channels_last)
                     for thing in (layer, images))

    def call() -> None:
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        layer(images)
    return call


def _triad(elements: int, device: torch.device) -> Call:
    b, c = (torch.ones(elements, device=device, dtype=_triad_dtype(device)) for _ in range(2))
    a = torch.empty_like(b)
    return lambda: torch.add(b, c, alpha=3.0, out=a)


def _triad_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def compute_probes(p: MachineParams, device: torch.device) -> list[Probe]:
    """Return the three largest GEMMs of each dtype that budget and memory allow, and a convolution.

    The convolution is computed by another library than the GEMM, often by the faster one.
    """
    on_cpu, free, probes = device.type == "cpu", machine.free_bytes(device), []
    largest = p.gemm_max or (2048 if on_cpu else 8192)
    for dtype in DTYPES:
        rate, width = _first_rate(dtype, device), torch_dtype(dtype).itemsize
        fitting = [n for n in (*_SIZES, largest) if rate and n <= largest
                   and 2.0 * n**3 / rate < p.budget_s / 100 and 32.0 * n**2 < free / 2]
        for n in sorted(set(fitting))[-3:]:
            probes.append(Probe(dtype, "compute", f"torch.mm {n}x{n}x{n}", 2.0 * n**3,
                                3.0 * n**2 * width, partial(_gemm, dtype, n, device)))
        batch = 8 if on_cpu else 256
        flops, moved = (factor * batch * _CHANNELS * _SIDE**2
                        for factor in (2.0 * 9 * _CHANNELS, 2.0 * width))
        is_short = rate > _VECTOR_RATE and flops / rate < _LARGEST_SHARE * p.budget_s
        if is_short and 2.0 * moved < free / 2:
            method = f"conv2d 3x3, {_CHANNELS} channels, batch {batch}"
            build = partial(_convolution, dtype, batch, device)
            probes.append(Probe(dtype, "compute", method, flops, moved, build))
    return probes


def _first_rate(dtype: str, device: torch.device) -> float:
    """Return a first estimate of the FLOP/s of a dtype; 0 if the device has no GEMM of it."""
    if dtype == "tf32" and device.type != "cuda":
        return 0.0
    side = 256 if device.type == "cpu" else 2048  # a small GEMM is all launch on a GPU
    try:
        call = _gemm(dtype, side, device)
        return 2.0 * side**3 / min(time_calls(call, 1, device) for _ in range(4)) * 1e3
    except (RuntimeError, TypeError):
        return 0.0


def triad_probes(p: MachineParams, device: torch.device, threads: int) -> list[Probe]:
    """Return triads of doubling working sets; none between one and four times the last cache."""
    caches, beyond = machine.levels(device, threads), "RAM" if device.type == "cpu" else "device"
    last = max(caches.values(), default=32 * 2**20)
    most = max(p.triad_max_mb * 1e6 or 8.0 * last, 2.0 ** np.ceil(np.log2(4 * last)))
    most = min(most, machine.free_bytes(device) / 2)
    width, probes, smallest = _triad_dtype(device).itemsize, [], caches.get("L1", 2**19) + 1
    for touched in 2 ** np.arange(np.ceil(np.log2(smallest)), np.log2(most) + 1e-9, 1.0):
        level = next((name for name, size in caches.items() if touched <= size), beyond)
        is_first = level not in [probe.level for probe in probes]
        is_long = touched / _FILL_RATE > _LARGEST_SHARE * p.budget_s
        if (level == beyond and touched < 4 * last) or (is_long and not is_first):
            continue
        elements = int(touched) // (3 * width)
        probes.append(Probe(f"fp{8 * width}", level, "triad a = b + s*c", 0.0,
                            3.0 * width * elements, partial(_triad, elements, device)))
    return probes


def overheads(device: torch.device, budget_s: float) -> pd.DataFrame:
    """Measure the table ``overheads``: step and cost of the clock, jitter, launch, first touch."""
    steps = np.diff([time.perf_counter_ns() for _ in range(20_000)]) / 1e3
    scalar, spin = torch.zeros(1, device=device), torch.ones(64, 64)
    jitter = [host_ms(lambda: torch.mm(spin, spin), spin.device) * 1e3 for _ in range(2000)]
    launch = measure(lambda: scalar.add_(1), device, budget_s, sample_ms=2.0)
    samples_us = {
        "timer_step": (steps[steps > 0], "smallest differences of time.perf_counter_ns"),
        "timer_call": (steps.mean(keepdims=True), "mean of 20,000 readings in a row"),
        "timer_jitter": (np.array(jitter), "one 64x64 GEMM, repeated"),
        "launch": (launch.samples_ms * 1e3, "x.add_(1) of one element, many in a row")}
    if device.type == "cpu":
        method = "a page of 4 KiB, beyond writing it again"
        samples_us["first_touch"] = _first_touch_us(), method
    rows = [{"device": str(device), "what": what, "median_us": np.median(times),
             "p99_us": np.percentile(times, 99), "n": len(times), "method": method}
            for what, (times, method) in samples_us.items()]
    return pd.DataFrame(rows, columns=columns("overheads"))


def _first_touch_us() -> np.ndarray:
    """Return how much longer writing fresh memory takes than writing it again, in µs per page."""
    pages = int(min(_TOUCHED, machine.free_bytes(torch.device("cpu")) / 8)) // _PAGE
    taken_us = []
    for _ in range(4):
        fresh = torch.empty(pages * _PAGE, dtype=torch.uint8)  # too large for the heap
        first_ms, again_ms = (host_ms(partial(fresh.fill_, 1), fresh.device) for _ in range(2))
        taken_us.append((first_ms - again_ms) * 1e3 / pages)
        del fresh
    return np.maximum(taken_us, 0.0)
