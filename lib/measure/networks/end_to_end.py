"""Networks measured end to end, as a program would see them: in a fresh process with its allocator."""

import gc
import json
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lib import locks, store
from lib.errors import InputError, is_broken_device, one_line
from lib.measure import machine
from lib.measure.disturbance import LoadWatch
from lib.measure.energy import windows
from lib.measure.energy.meters import Meter, absent, open_meter
from lib.measure.networks import allocator
from lib.measure.networks.program import Program, program
from lib.measure.networks.visits_file import PassEnergy, Result
from lib.measure.reference_kernel import ReferenceKernel
from lib.measure.timing import Call, host_ms, synchronize
from lib.measure.worker import Service, WorkerLostError, allowed_cores, call, pin
from lib.work import user_code
from lib.work.run_config import RunConfig
from lib.work.runtimes import RUNTIMES, TORCH

_WARMUP = 2
LEAST = 5  # passes of a case
_PATIENCE = 3  # times its budget, while fewer passes than that found the processor as fast as usual
_SPIN_S = 0.015  # torch's threads spin so long after the reference kernel, on cores others then lack
PREPARE_S = 300.0  # most seconds of an export or a compilation
LATE = "it was not exported or compiled within"
_IMPORTED = ("torchvision.models", "timm")  # importing them takes longer than many networks run


@dataclass(frozen=True)
class MeasureOptions:
    """How cases are measured.

    Args:
        case_s: seconds of each case.
        prepare_s: most seconds of an export or a compilation.
        folder: where exported and compiled files are kept.
        energy_s: how long a pass is repeated where there is a meter; 0: no energy is measured.
    """

    case_s: float = 1.0
    prepare_s: float = PREPARE_S
    folder: Path | None = None
    energy_s: float = windows.LEAST_S


def _status_mb(field: str) -> float:
    """Return a line of /proc/self/status in 10^6 bytes; NaN where there is none."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", status).group(1)) * 1024 / 1e6
    except (OSError, AttributeError):
        return float("nan")


def tensor_peak_mb(call: Call, device: torch.device) -> float:
    """Return the most that a pass allocates for tensors beyond what it started with, in 10^6 bytes.

    On CUDA by the allocator's own count, on the CPU by the profiler's record of every allocation.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events
                     if event.get("name") == "[memory]")
    allocated = np.cumsum([size for _, size in changes])
    return float(max(0, allocated.max(initial=0))) / 1e6


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise InputError if this block takes longer, in Python or waiting for other processes."""
    def late(*_) -> None:
        raise InputError(f"{LATE} {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    interrupted = (threading.get_ident(), signal.SIGALRM)
    timer = threading.Timer(seconds, signal.pthread_kill, interrupted)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGALRM, before)


def _prepared(config: RunConfig, device: torch.device, options: MeasureOptions) -> Program:
    """Return the program of a case, on its threads, warmed up."""
    is_limited = config.compiled or config.runtime != TORCH
    limit = _within(options.prepare_s) if is_limited else nullcontext()
    with machine.on_threads(config.threads), limit:
        one_pass, prepare_s = program(config, device, options.folder)

    def run() -> object:
        with machine.on_threads(config.threads):
            return one_pass()

    for _ in range(_WARMUP):
        run()
    synchronize(device)
    return run, prepare_s


@contextmanager
def _instance(config: RunConfig, device_id: str, options: MeasureOptions,
              cores: tuple[int, ...]) -> Iterator[tuple[float, Callable]]:
    """Prepare a case on cores of its own; give the seconds that took, and what runs it for a time."""
    pin(cores)
    torch.set_num_threads(len(cores))
    with user_code.running(f"{config.label} does not run"):
        device = torch.device(device_id)
        run, prepare_s = _prepared(config, device, options)

        def respond(seconds: float) -> tuple[list[float], float]:
            end, samples_ms = time.perf_counter() + seconds, []
            while len(samples_ms) < LEAST or time.perf_counter() < end:
                samples_ms.append(host_ms(run, device))
            return samples_ms, _status_mb("VmHWM")

        yield prepare_s, respond


def _side_by_side(config: RunConfig, device: torch.device, options: MeasureOptions,
                  kernel: ReferenceKernel) -> Result:
    """Measure the instances of a case at once; the reference kernel runs before and after."""
    cores = allowed_cores()
    threads = config.threads or max(1, len(cores) // config.instances)
    if config.instances * threads > len(cores):
        raise InputError(f"{config.instances} instances of {threads} threads need more cores than "
                         f"the {len(cores)} here")
    workers = [Service(_instance, config, str(device), options, tuple(cores[first:first + threads]))
               for first in range(0, config.instances * threads, threads)]
    try:
        prepare_s = max(worker.ready() for worker in workers)
        before_ms = kernel.wait()
        for worker in workers:
            worker.send(options.case_s)
        parts = [worker.receive() for worker in workers]
    except WorkerLostError as error:
        raise InputError(f"an instance of {config.label}: {error}") from error
    finally:
        for worker in workers:
            worker.shut_down()
    samples_ms = [ms for part, _ in parts for ms in part]
    kernel_ms = [max(before_ms, kernel.after())] * len(samples_ms)
    return Result(case=config, samples_ms=samples_ms, reference_kernel_ms=kernel_ms,
                  rss_mb=sum(mb for _, mb in parts), prepare_s=prepare_s)


def _run_for(seconds: float, run: Callable[[], object]) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        run()


def _measure_case(config: RunConfig, device: torch.device, options: MeasureOptions,
                  kernel: ReferenceKernel, meter: Meter, idle_w: float) -> Result:
    if config.instances > 1:
        return _side_by_side(config, device, options, kernel)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak of this process begins anew
    before_mb = _status_mb("VmRSS")
    run, prepare_s = _prepared(config, device, options)
    samples_ms, reference_ms, usual = [], [], 0
    watch, begun = LoadWatch(str(device)), time.perf_counter()

    def is_due() -> bool:
        patience = 1 if usual >= LEAST else _PATIENCE
        return len(samples_ms) < LEAST or time.perf_counter() < begun + options.case_s * patience

    while is_due():
        before_ms = kernel.wait()
        if config.runtime != TORCH:
            _run_for(_SPIN_S, run)
        samples_ms.append(host_ms(run, device))
        reference_ms.append(max(before_ms, kernel.after()))
        usual += not kernel.is_slow(reference_ms[-1])
    gpu, rss_mb = watch.reading().gpu, _status_mb("VmHWM") - before_mb
    energy, calls = windows.of_calls(lambda: host_ms(run, device), 1, options.energy_s, meter,
                                     idle_w)
    pass_j = energy.energy_j / calls if calls else float("nan")
    tensors_mb = tensor_peak_mb(run, device) if config.runtime == TORCH else np.nan
    return Result(case=config, samples_ms=samples_ms, reference_kernel_ms=reference_ms,
                  rss_mb=rss_mb, gpu=gpu, prepare_s=prepare_s, tensors_mb=tensors_mb,
                  energy=PassEnergy(energy_j=pass_j, **energy.columns))


def _measure(cases: Sequence[RunConfig], device_id: str,
             options: MeasureOptions) -> tuple[list[Result], store.Facts]:
    """Measure cases in this process, one after another; DeviceLostError where a GPU breaks."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler is to say nothing
    device = machine.device(device_id)
    machine.use(device)
    with locks.device(str(device)):
        kernel = ReferenceKernel(device)
        kernel.settle()
        meter = open_meter(str(device)) if options.energy_s else absent("energy_s is 0")
        idle_w = windows.idle_w(meter)
        # load the libraries before memory is counted
        torch.nn.functional.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))
        results = []
        for config in cases:
            try:
                with user_code.running(f"model {config.network!r} does not run"):
                    results.append(_measure_case(config, device, options, kernel, meter, idle_w))
            except InputError as error:
                if error.__cause__ and is_broken_device(error.__cause__):  # it would fail all others
                    reason = f"{device} broke: {one_line(error.__cause__)}"
                    raise machine.DeviceLostError(reason) from None
                results.append(Result(case=config, reason=str(error)))
            gc.collect()
            allocator.trim()
    return results, _identity(cases, device)


def _identity(cases: Sequence[RunConfig], device: torch.device) -> store.Facts:
    facts = {**machine.identity(), "threads": torch.get_num_threads(), "tf32": machine.tf32(device)}
    for dtype in ("bf16", "int8"):
        facts[f"{dtype}_instructions"] = machine.instructions(dtype)
    for name in {config.runtime for config in cases} - {TORCH}:
        facts[name] = RUNTIMES[name].INPUTS
    return facts


def in_a_process(cases: Sequence[RunConfig], device_id: str, options: MeasureOptions,
                 memory: str = "default") -> tuple[list[Result], store.Facts]:
    """Measure cases in a new process; return their results, and its identity unless it was lost.

    What torch compiles is kept beside exported files. On a disturbed processor a case takes up to
    three times as long, until five passes ran at its usual speed. Where a process dies, its cases are
    measured again in halves, so that the one which ends it fails alone; a GPU that breaks fails all.
    """
    variables = allocator.HEAPS[memory]  # only the start of a process reads them
    imported = () if variables else _IMPORTED
    if options.folder:
        variables = variables | {"TORCHINDUCTOR_CACHE_DIR": str(options.folder / "inductor")}
    try:
        return call(_measure, tuple(cases), device_id, options, environment=variables,
                    imported=imported)
    except (WorkerLostError, machine.DeviceLostError) as error:
        if len(cases) == 1 or isinstance(error, machine.DeviceLostError):
            return [Result(case=config, reason=str(error)) for config in cases], {}
        middle = len(cases) // 2
        halves = [in_a_process(part, device_id, options, memory)
                  for part in (cases[:middle], cases[middle:])]
        results = [result for part, _ in halves for result in part]
        return results, halves[0][1] or halves[1][1]
