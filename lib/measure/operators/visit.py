"""One visit of a sweep: build a configuration, check it, time it for a moment. Runs in a worker process of its own."""

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lib.errors import InputError, is_broken_device, is_out_of_memory, one_line
from lib.measure import machine
from lib.measure.energy import windows
from lib.measure.energy.meters import Absent, Meter, open_meter
from lib.measure.energy.trace import Energy
from lib.measure.gpus.watch import GpuUse
from lib.measure.load import LoadWatch
from lib.measure.operators.cold_memory import ColdCalls, Rings
from lib.measure.timing import Repeat, repeated, synchronize, time_calls
from lib.measure.worker import WorkerLostError
from lib.work.dtypes import torch_name
from lib.work.graph import families, rebuild
from lib.work.graph.ops import Op
from lib.work.graph.spaces import Config

SAMPLE_MS = 1.0
_LEAST, _LEAST_WARM = 3, 2  # samples of a visit; with two of a long call sweeps agree as well as with three
_COLD_WARMUP, _COLD_PATIENCE = 2, 4
_WARM_MS = 3.0
_MOST_CALLS = 1000
LAUNCHED = "no CUDA graph of it can be recorded: its launches are in its time"
_FAILURES = (RuntimeError, TypeError, ValueError, IndexError, MemoryError)  # of a configuration
_CHUNK_MS = 20.0  # of an energy loop, between looks at the clock


class Flusher:
    """Writes more than the caches hold, so that the next call finds its inputs in memory.

    For whole programs, and for accelerators, where device events leave the writing out; operators on a CPU are given other
    memory instead (lib.measure.operators.cold_memory).
    """

    def __init__(self, device: torch.device):
        largest = max(machine.levels(device, torch.get_num_threads()).values(), default=32 * 2**20)
        self._buffer = torch.zeros(int(1.5 * largest) // 4, device=device)

    def __call__(self) -> None:
        """Write the buffer once."""
        self._buffer.add_(1.0)


class Tools:
    """Tools of a worker that last from visit to visit, made when first needed."""

    def __init__(self, device: torch.device):
        self._device, self.watch = device, LoadWatch(str(device), refresh=False)

    @cached_property
    def meter(self) -> Meter:
        """Give the meter of the device."""
        return open_meter(str(self._device))

    @cached_property
    def idle_w(self) -> float:
        """Give the idle power of this process, logged when first needed; NaN without a meter."""
        return windows.idle_w(self.meter)

    @cached_property
    def flusher(self) -> Flusher:
        """Give what empties the caches."""
        return Flusher(self._device)

    @cached_property
    def rings(self) -> Rings:
        """Give memory used long ago."""
        return Rings(self._device)


def _program(config: Config, device: torch.device) -> Callable[[], object]:
    """Return the call as a program makes it: the public function, or autograd's backward pass through it."""
    function, inputs = families.family(config.op).build(dict(config.parameters), torch_name(config.dtype))
    backward = config.passes == "backward"
    tensors = [rebuild.make(spec, device).requires_grad_(wants and backward) for spec, wants in inputs]
    if not backward:
        def forward() -> object:
            with torch.no_grad():
                return function(*tensors)
        return forward
    output = function(*tensors)
    wanted, gradient = [tensor for tensor in tensors if tensor.requires_grad], torch.ones_like(output)
    return lambda: torch.autograd.grad(output, wanted, gradient, retain_graph=True)


def _check(result: Any, ops: tuple[Op, ...]) -> None:
    """Refuse a result of another shape than expected: another operator was run."""
    got = [tuple(tensor.shape) for tensor in (result if isinstance(result, tuple | list) else [result])
           if isinstance(tensor, torch.Tensor)]
    expected = [spec.shape for spec in ops[0].outputs]
    if len(ops) == 1 and got[:1] != expected[:1]:
        raise InputError(f"{ops[0].name} gave {got}, expected {expected}")


def _back_to_back(call: Callable[[], object], device: torch.device) -> tuple[Repeat, float]:
    """Return what makes the calls of a sample of SAMPLE_MS back to back, and the ms of a lone call."""
    begin, once = time.perf_counter(), np.inf
    while once == np.inf or (time.perf_counter() - begin) * 1e3 < _WARM_MS:
        once = min(once, time_calls(call, 1, device))
    return repeated(call, once, device, SAMPLE_MS, _MOST_CALLS), once


def _kernel_samples(call: Callable[[], object], device: torch.device, visit_ms: float) -> tuple[list[float], int, str]:
    """Time calls back to back, as many in a sample as fill SAMPLE_MS; return the times, the calls, and what is in them too."""
    repeat, once_ms = _back_to_back(call, device)
    samples, end = [once_ms] if once_ms > _WARM_MS else [], time.perf_counter() + visit_ms / 1e3
    while len(samples) < _LEAST_WARM or time.perf_counter() < end:
        samples.append(repeat.ms(device))
    return samples, repeat.calls, LAUNCHED if device.type == "cuda" and not repeat.graphed else ""


def _lone_samples(call: Callable[[], object], device: torch.device, visit_ms: float, flush: Callable | None,
                  host: bool) -> list[float]:
    """Time calls one by one, each after ``flush``; ``host`` clocks on the host from before the call to the device's end."""
    def one() -> float:
        if not host:
            return time_calls(call, 1, device, flush)
        if flush:
            flush()
        synchronize(device)
        begin = time.perf_counter_ns()
        call()
        synchronize(device)
        return (time.perf_counter_ns() - begin) / 1e6

    one()
    if flush and not host and device.type == "cuda":
        flush = _lasting(flush, call, device)
    samples, end = [], time.perf_counter() + visit_ms / 1e3
    while len(samples) < _LEAST or time.perf_counter() < end:
        samples.append(one())
    return samples


def _lasting(flush: Callable[[], object], call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return as many flushes as keep a GPU at work for twice as long as the host takes to queue ``call``."""
    synchronize(device)
    begin = time.perf_counter()
    call()
    queued_ms = (time.perf_counter() - begin) * 1e3
    times = 1 + int(np.ceil(2 * queued_ms / time_calls(flush, 1, device, flush)))
    return lambda: [flush() for _ in range(times)]


def _cold_samples(ops: tuple[Op, ...], device: torch.device, visit_ms: float, rings: Rings) -> list[float]:
    """Time calls one by one, each on memory used long ago; calls for which the process grew count only if all did."""
    calls, samples, grown = ColdCalls(ops, device, rings), [], []
    for _ in range(_COLD_WARMUP):
        calls.one()
    end = time.perf_counter() + visit_ms / 1e3
    while len(samples) + len(grown) // _COLD_PATIENCE < _LEAST or time.perf_counter() < end:
        taken, grew = calls.one()
        (grown if grew else samples).append(taken)
    return samples if len(samples) >= _LEAST else samples + grown


def visit(config: Config, ops: tuple[Op, ...], device: torch.device, visit_ms: float,
          tools: Tools) -> dict[str, Any]:
    """Build, check and time one configuration; return what ``repeats`` needs. A failure is a result with its reason."""
    row: dict[str, Any] = {"latency_ms": np.nan, "n": 0, "calls": 0, "spread_ms": np.nan}
    with tools.watch as watch:
        try:
            samples, calls, reason = _samples(config, ops, device, visit_ms, tools)
            low, median, high = np.percentile(samples, (25, 50, 75))
            row |= {"latency_ms": float(median), "n": len(samples), "calls": calls, "spread_ms": float(high - low)}
            status = "ok"
        except _FAILURES as error:
            status, reason = "failed", _reason(error, device)
        seen = watch.reading()
    return {**row, "other_cores": seen.other_cores, "stolen_cores": seen.stolen_cores, **(seen.gpu or GpuUse()).columns,
            "status": status, "reason": reason}


def _samples(config: Config, ops: tuple[Op, ...], device: torch.device, visit_ms: float,
             tools: Tools) -> tuple[list[float], int, str]:
    """Build a configuration, check its result and time it; return the times, the calls of each, and what else is in them."""
    kernel, cold = config.latency_type == "kernel", config.cache == "cold"
    call = rebuild.runnable(ops, device) if kernel else _program(config, device)
    result = call()
    if config.passes == "forward":
        _check(result, ops)
    del result
    if kernel and not cold:
        return _kernel_samples(call, device, visit_ms)
    if kernel and device.type == "cpu":
        del call
        return _cold_samples(ops, device, visit_ms, tools.rings), 1, ""
    return _lone_samples(call, device, visit_ms, tools.flusher if cold else None, host=not kernel), 1, ""


def _reason(error: Exception, device: torch.device) -> str:
    """Return why a configuration failed. Raises WorkerLostError where this process can use its GPU no more."""
    if is_broken_device(error):
        raise WorkerLostError(one_line(error)) from None
    if is_out_of_memory(error) and device.type == "cuda":
        torch.cuda.empty_cache()
    return one_line(error)


def energy(config: Config, ops: tuple[Op, ...], device: torch.device, seconds: float, tools: Tools) -> dict[str, Any]:
    """Loop one configuration for so many seconds; return what ``energies`` needs. No energy is a result with its reason.

    Calls follow each other without a pause: cold ones, which something must come between, have no energy of their own.
    """
    begin, calls = time.perf_counter(), 0
    try:
        of_loop, calls = _looped(config, ops, device, seconds, tools)
    except _FAILURES as error:
        of_loop = Energy(0.0, reason=_reason(error, device))
    return {"energy_j": of_loop.energy_j / calls if calls else np.nan, "calls": calls, "loop_s": time.perf_counter() - begin,
            **of_loop.columns}


def _looped(config: Config, ops: tuple[Op, ...], device: torch.device, seconds: float, tools: Tools) -> tuple[Energy, int]:
    if config.cache == "cold":
        return Energy(0.0, reason="the energy of a cold call cannot be told from that of what comes between calls"), 0
    if isinstance(tools.meter, Absent):
        return Energy(0.0, reason=tools.meter.reason), 0
    idle_w = tools.idle_w
    call = rebuild.runnable(ops, device) if config.latency_type == "kernel" else _program(config, device)
    repeat, once_ms = _back_to_back(call, device)
    times = max(1, int(_CHUNK_MS / (repeat.calls * max(once_ms, 1e-4))))
    return windows.of_calls(lambda: time_calls(repeat.run, repeat.width * times, device), repeat.calls * times, seconds,
                            tools.meter, idle_w)
