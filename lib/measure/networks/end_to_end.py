"""Networks measured end to end, time and memory, as a program would see them: a fresh process and its allocator."""

import gc
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib import locks
from lib.errors import InputError, is_broken_device, one_line
from lib.measure import machine
from lib.measure.energy import windows
from lib.measure.energy.meters import Meter, open_meter
from lib.measure.energy.windows import LEAST_S
from lib.measure.load import LoadWatch
from lib.measure.networks import allocator
from lib.measure.networks.case import Case, program
from lib.measure.networks.visits_file import PassEnergy, Result
from lib.measure.reference_kernel import ReferenceKernel
from lib.measure.timing import synchronize
from lib.measure.worker import WorkerLostError, call
from lib.work import user_code

_WARMUP = 2
LEAST = 5  # passes of a case
_PATIENCE = 3  # times its budget, while fewer passes than that found the processor as fast as usual
_IMPORTED = ("torchvision.models", "timm")  # what networks are built of, and takes longer to import than many to run


def _status_mb(field: str) -> float:
    """Return a line of /proc/self/status in 10^6 bytes; NaN where there is none."""
    try:
        return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1)) * 1024 / 1e6
    except (OSError, AttributeError):
        return float("nan")


def tensor_peak_mb(call: Callable[[], object], device: torch.device) -> float:
    """Return the most that a pass allocates for tensors at once beyond what it started with, in 10^6 bytes.

    On CUDA by the allocator's own count, on the CPU by the profiler's record of every allocation.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    allocated = np.cumsum([size for _, size in changes])
    return float(max(0, allocated.max(initial=0))) / 1e6


def _measure_case(case: Case, device: torch.device, budget_s: float, kernel: ReferenceKernel, meter: Meter,
                  idle_w: float) -> Result:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak of this process begins anew
    before_mb = _status_mb("VmRSS")
    run = program(case, device)
    for _ in range(_WARMUP):
        run()
    synchronize(device)
    samples_ms, reference_ms, usual, begun = [], [], 0, time.perf_counter()
    with LoadWatch(str(device)) as watch:
        while len(samples_ms) < LEAST or time.perf_counter() < begun + budget_s * (1 if usual >= LEAST else _PATIENCE):
            before_ms = kernel.wait()
            begin = time.perf_counter_ns()
            run()
            synchronize(device)
            samples_ms.append((time.perf_counter_ns() - begin) / 1e6)
            reference_ms.append(max(before_ms, kernel.after()))
            usual += not kernel.is_slow(reference_ms[-1])
        gpu = watch.reading().gpu
    rss_mb = _status_mb("VmHWM") - before_mb

    def synchronized() -> None:
        run()
        synchronize(device)

    energy, calls = windows.of_calls(synchronized, 1, LEAST_S, meter, idle_w)
    pass_j = energy.energy_j / calls if calls else float("nan")
    return Result(case=case, samples_ms=samples_ms, reference_kernel_ms=reference_ms, rss_mb=rss_mb, gpu=gpu,
                  tensors_mb=tensor_peak_mb(run, device), energy=PassEnergy(energy_j=pass_j, **energy.columns))


def _measure(cases: Sequence[Case], device_id: str, budget_s: float) -> tuple[list[Result], dict[str, Any]]:
    """Measure cases in this process, one after another; DeviceLostError where a GPU breaks."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler counts allocations, and is to say nothing
    device = machine.device(device_id)
    machine.use(device)
    with locks.device(str(device)):
        kernel = ReferenceKernel(device)
        kernel.settle()
        meter = open_meter(str(device))
        idle_w = windows.idle_w(meter)
        torch.nn.functional.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))  # the libraries are there before we count
        results = []
        for case in cases:
            try:
                with user_code.running(f"model {case.network!r} does not run"):
                    results.append(_measure_case(case, device, budget_s, kernel, meter, idle_w))
            except InputError as error:
                if error.__cause__ and is_broken_device(error.__cause__):  # the other cases would fail in its place
                    raise machine.DeviceLostError(f"{device} broke: {one_line(error.__cause__)}") from None
                results.append(Result(case=case, reason=str(error)))
            gc.collect()
            allocator.trim()
    return results, {**machine.identity(), "threads": torch.get_num_threads(), "tf32": machine.tf32(device),
                     "bf16_instructions": machine.bf16_instructions()}


def in_a_process(cases: Sequence[Case], device_id: str = "cpu", budget_s: float = 1.0,
                 memory: str = "default") -> tuple[list[Result], dict[str, Any]]:
    """Measure cases in a new process, each for ``budget_s`` and five passes at least; return results and the identity.

    On a disturbed processor a case takes up to three times as long, until five passes ran at its usual speed. Where there is a
    meter, an energy loop of LEAST_S follows. A process that dies, or whose GPU breaks, fails all of its cases and has no
    identity.
    """
    heap = allocator.HEAPS[memory]  # variables that only the start of a process reads
    try:
        return call(_measure, tuple(cases), device_id, budget_s, environment=heap, imported=() if heap else _IMPORTED)
    except (WorkerLostError, machine.DeviceLostError) as error:
        return [Result(case=case, reason=str(error)) for case in cases], {}
