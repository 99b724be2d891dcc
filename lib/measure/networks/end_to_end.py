"""Networks measured end to end, time and memory, as a program would see them: a fresh process and its allocator."""

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
from lib.config.definitions import OPENVINO, TORCH
from lib.errors import InputError, is_broken_device, one_line
from lib.measure import machine
from lib.measure.disturbance import LoadWatch
from lib.measure.energy import windows
from lib.measure.energy.meters import Meter, absent, open_meter
from lib.measure.networks import allocator
from lib.measure.networks.case import Case, Program, program
from lib.measure.networks.runtimes import TENSORS
from lib.measure.networks.visits_file import PassEnergy, Result
from lib.measure.reference_kernel import ReferenceKernel
from lib.measure.timing import Call, host_ms, synchronize
from lib.measure.worker import Service, WorkerLostError, allowed_cores, call, pin
from lib.work import user_code

_WARMUP = 2
LEAST = 5  # passes of a case
_PATIENCE = 3  # times its budget, while fewer passes than that found the processor as fast as usual
_SPIN_S = 0.015  # so long torch's threads spin after the reference kernel, on cores that another runtime then lacks
PREPARE_S = 300.0  # most seconds of an export or a compilation
LATE = "it was not exported or compiled within"
_IMPORTED = ("torchvision.models", "timm")  # what networks are built of, and takes longer to import than many to run


def _status_mb(field: str) -> float:
    """Return a line of /proc/self/status in 10^6 bytes; NaN where there is none."""
    try:
        return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1)) * 1024 / 1e6
    except (OSError, AttributeError):
        return float("nan")


def tensor_peak_mb(call: Call, device: torch.device) -> float:
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


@dataclass(frozen=True)
class Conditions:
    """How cases are measured: seconds of each, seconds in which one must be prepared, and where exported files are kept.

    ``energy_s``: how long a pass is repeated where there is a meter; 0: no energy is measured.
    """

    case_s: float = 1.0
    prepare_s: float = PREPARE_S
    folder: Path | None = None
    energy_s: float = windows.LEAST_S


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise InputError if what runs meanwhile takes longer, and is Python or waits for other processes (as compilers do)."""
    def late(*_) -> None:
        raise InputError(f"{LATE} {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    timer = threading.Timer(seconds, signal.pthread_kill, (threading.get_ident(), signal.SIGALRM))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGALRM, before)


def _prepared(case: Case, device: torch.device, how: Conditions) -> Program:
    """Return the program of a case, on its threads, warmed up."""
    limited = case.compiled or case.runtime != TORCH
    with machine.on_threads(case.threads), _within(how.prepare_s) if limited else nullcontext():
        one_pass, prepare_s = program(case, device, how.folder)

    def run() -> object:
        with machine.on_threads(case.threads):
            return one_pass()

    for _ in range(_WARMUP):
        run()
    synchronize(device)
    return run, prepare_s


@contextmanager
def _instance(case: Case, device_id: str, how: Conditions, cores: tuple[int, ...]) -> Iterator[tuple[float, Callable]]:
    """Prepare a case on cores of this process's own; give the seconds that took, and what runs it for so many seconds."""
    pin(cores)
    torch.set_num_threads(len(cores))
    with user_code.running(f"{case.words} does not run"):
        device = torch.device(device_id)
        run, prepare_s = _prepared(case, device, how)

        def respond(seconds: float) -> tuple[list[float], float]:
            end, samples_ms = time.perf_counter() + seconds, []
            while len(samples_ms) < LEAST or time.perf_counter() < end:
                samples_ms.append(host_ms(run, device))
            return samples_ms, _status_mb("VmHWM")

        yield prepare_s, respond


def _side_by_side(case: Case, device: torch.device, how: Conditions, kernel: ReferenceKernel) -> Result:
    """Measure ``instances`` of a case at once, each on cores of its own; the reference kernel runs before and after."""
    cores = allowed_cores()
    threads = case.threads or max(1, len(cores) // case.instances)
    if case.instances * threads > len(cores):
        raise InputError(f"{case.instances} instances of {threads} threads need more cores than the {len(cores)} here")

    workers = [Service(_instance, case, str(device), how, tuple(cores[number * threads:(number + 1) * threads]))
               for number in range(case.instances)]
    try:
        prepare_s = max(worker.ready() for worker in workers)
        before_ms = kernel.wait()
        for worker in workers:
            worker.send(how.case_s)
        parts = [worker.ready() for worker in workers]
    except WorkerLostError as error:
        raise InputError(f"an instance of {case.words}: {error}") from error
    finally:
        for worker in workers:
            worker.shut_down()
    samples_ms = [ms for part, _ in parts for ms in part]
    return Result(case=case, samples_ms=samples_ms, reference_kernel_ms=[max(before_ms, kernel.after())] * len(samples_ms),
                  rss_mb=sum(mb for _, mb in parts), prepare_s=prepare_s)


def _run_for(seconds: float, run: Callable[[], object]) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        run()


def _measure_case(case: Case, device: torch.device, how: Conditions, kernel: ReferenceKernel, meter: Meter,
                  idle_w: float) -> Result:
    if case.instances > 1:
        return _side_by_side(case, device, how, kernel)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak of this process begins anew
    before_mb = _status_mb("VmRSS")
    run, prepare_s = _prepared(case, device, how)
    samples_ms, reference_ms, usual, begun = [], [], 0, time.perf_counter()
    watch = LoadWatch(str(device))
    while len(samples_ms) < LEAST or time.perf_counter() < begun + how.case_s * (1 if usual >= LEAST else _PATIENCE):
        before_ms = kernel.wait()
        if case.runtime != TORCH:
            _run_for(_SPIN_S, run)
        samples_ms.append(host_ms(run, device))
        reference_ms.append(max(before_ms, kernel.after()))
        usual += not kernel.is_slow(reference_ms[-1])
    gpu, rss_mb = watch.reading().gpu, _status_mb("VmHWM") - before_mb
    energy, calls = windows.of_calls(lambda: host_ms(run, device), 1, how.energy_s, meter, idle_w)
    pass_j = energy.energy_j / calls if calls else float("nan")
    tensors_mb = tensor_peak_mb(run, device) if case.runtime == TORCH else np.nan
    return Result(case=case, samples_ms=samples_ms, reference_kernel_ms=reference_ms, rss_mb=rss_mb, gpu=gpu,
                  prepare_s=prepare_s, tensors_mb=tensors_mb, energy=PassEnergy(energy_j=pass_j, **energy.columns))


def _measure(cases: Sequence[Case], device_id: str, how: Conditions) -> tuple[list[Result], store.Facts]:
    """Measure cases in this process, one after another; DeviceLostError where a GPU breaks."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler counts allocations, and is to say nothing
    device = machine.device(device_id)
    machine.use(device)
    with locks.device(str(device)):
        kernel = ReferenceKernel(device)
        kernel.settle()
        meter = open_meter(str(device)) if how.energy_s else absent("energy_s is 0")
        idle_w = windows.idle_w(meter)
        torch.nn.functional.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))  # the libraries are there before we count
        results = []
        for case in cases:
            try:
                with user_code.running(f"model {case.network!r} does not run"):
                    results.append(_measure_case(case, device, how, kernel, meter, idle_w))
            except InputError as error:
                if error.__cause__ and is_broken_device(error.__cause__):  # the other cases would fail in its place
                    raise machine.DeviceLostError(f"{device} broke: {one_line(error.__cause__)}") from None
                results.append(Result(case=case, reason=str(error)))
            gc.collect()
            allocator.trim()
    return results, {**machine.identity(), "threads": torch.get_num_threads(), "tf32": machine.tf32(device),
                     **{f"{dtype}_instructions": machine.instructions(dtype) for dtype in ("bf16", "int8")},
                     **({"openvino": TENSORS} if any(case.runtime == OPENVINO for case in cases) else {})}


def in_a_process(cases: Sequence[Case], device_id: str, how: Conditions,
                 memory: str = "default") -> tuple[list[Result], store.Facts]:
    """Measure cases in a new process, each for ``case_s`` and five passes at least; return results and the identity.

    What torch compiles is kept beside exported files. On a disturbed processor a case takes up to three times as long, until
    five passes ran at its usual speed. Where there is a meter, an energy loop follows. Where a process dies, its cases are
    measured again in halves, so that the one which ends it fails alone; a GPU that breaks fails all of them. What fails has no
    identity.
    """
    heap = allocator.HEAPS[memory]  # variables that only the start of a process reads
    compiled = {"TORCHINDUCTOR_CACHE_DIR": str(how.folder / "inductor")} if how.folder else {}
    try:
        return call(_measure, tuple(cases), device_id, how, environment=heap | compiled, imported=() if heap else _IMPORTED)
    except (WorkerLostError, machine.DeviceLostError) as error:
        if len(cases) > 1 and isinstance(error, WorkerLostError):
            middle = len(cases) // 2
            halves = [in_a_process(part, device_id, how, memory) for part in (cases[:middle], cases[middle:])]
            return [result for results, _ in halves for result in results], halves[0][1] or halves[1][1]
        return [Result(case=case, reason=str(error)) for case in cases], {}
