"""One visit of a sweep: build a configuration, check it, time it for a moment."""

import time
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lib import store
from lib.errors import InputError, is_broken_device, is_out_of_memory, one_line
from lib.measure import machine
from lib.measure.disturbance import GpuUse, LoadWatch
from lib.measure.energy import windows
from lib.measure.energy.meters import open_meter
from lib.measure.energy.trace import Energy
from lib.measure.operators.cold_memory import ColdCalls, Rings
from lib.measure.reference_kernel import ReferenceKernel
from lib.measure.timing import Call, Repeat, host_ms, repeated, synchronize, take_samples, time_calls, warm_up
from lib.measure.worker import WorkerLostError
from lib.work.dtypes import torch_name
from lib.work.graph import families, rebuild
from lib.work.graph.ops import Ops
from lib.work.graph.spaces import Config

_SAMPLE_MS, _WARM_MS = 1.0, 3.0
_LEAST, _LEAST_WARM = 3, 2  # samples; with two of a long call sweeps agree as well as with three
_MOST_CALLS = 1000  # in a sample
LAUNCHED = "no CUDA graph of it can be recorded: its launches are in its time"
_FAILURES = (RuntimeError, TypeError, ValueError, IndexError, MemoryError)  # of a configuration
_CHUNK_MS = 20.0  # of an energy loop, between looks at the clock

# a row of ``repeats`` without a time
NOTHING = {"latency_ms": np.nan, "n": 0, "calls": 0, "spread_ms": np.nan, "yardstick_ms": np.nan,
           "at_s": 0.0, "other_cores": 0.0, "stolen_cores": 0.0, "status": "failed", **GpuUse().columns}


class Bench:
    """What times configurations on a device, for ``visit_ms`` each."""

    def __init__(self, device: torch.device, visit_ms: float):
        self.device, self.visit_ms, self._begin = device, visit_ms, time.perf_counter()
        self.kernel, self._watch = ReferenceKernel(device), LoadWatch(str(device), refresh=False)
        self.meter = open_meter(str(device))

    @cached_property
    def idle_w(self) -> float:
        """Give the idle power of this process, logged when first needed; NaN without a meter."""
        return windows.idle_w(self.meter)

    @cached_property
    def flush(self) -> Call:
        """Give what writes more than the caches hold, so that a call finds its inputs in memory.

        For whole calls, and for accelerators, where device events leave the writing out; kernels on
        a CPU are given other memory instead (``cold_memory``).
        """
        levels = machine.levels(self.device, torch.get_num_threads())
        largest = max(levels.values(), default=32 * 2**20)
        buffer = torch.zeros(int(1.5 * largest) // 4, device=self.device)
        return lambda: buffer.add_(1.0)

    @cached_property
    def _rings(self) -> Rings:
        return Rings(self.device)

    def visit(self, config: Config, ops: Ops) -> store.Facts:
        """Build, check and time one configuration; return its row of ``repeats``.

        The reference kernel waits a moment for the processor to be as fast as usual, and tells
        whether it stayed so.
        """
        row, at_s = dict(NOTHING), time.perf_counter() - self._begin
        before_ms = self.kernel.wait()
        self._watch.begin()
        try:
            samples, calls, reason = self._samples(config, ops)
            low, median, high = np.percentile(samples, (25, 50, 75))
            row |= {"latency_ms": float(median), "n": len(samples), "calls": calls,
                    "spread_ms": float(high - low), "status": "ok"}
        except _FAILURES as error:
            reason = self._reason(error)
        seen = self._watch.reading()
        reference_ms = max(before_ms, self.kernel.after())
        return {**row, "other_cores": seen.other_cores, "stolen_cores": seen.stolen_cores,
                **(seen.gpu.columns if seen.gpu else {}), "reason": reason, "at_s": at_s,
                "yardstick_ms": reference_ms, "visit_s": time.perf_counter() - self._begin - at_s}

    def energy(self, config: Config, ops: Ops, seconds: float) -> store.Facts:
        """Loop one configuration for so many seconds; return its row of ``energies``.

        Calls follow each other without a pause: cold calls, between which the caches are emptied,
        have no energy. No energy is a row with its reason.
        """
        begin, calls, energy = time.perf_counter(), 0, Energy(0.0, reason=self.meter.reason)
        if config.cache == "cold":
            energy = Energy(0.0, reason="the energy of a cold call cannot be told from that of what "
                                        "comes between calls")
        elif not self.meter.reason:
            try:
                idle_w = self.idle_w
                repeat, once_ms = self._back_to_back(self._call(config, ops))
                times = max(1, int(_CHUNK_MS / (repeat.calls * max(once_ms, 1e-4))))
                energy, calls = windows.of_calls(
                    lambda: time_calls(repeat.run, repeat.width * times, self.device),
                    repeat.calls * times, seconds, self.meter, idle_w)
            except _FAILURES as error:
                energy = Energy(0.0, reason=self._reason(error))
        return {"energy_j": energy.energy_j / calls if calls else np.nan, "calls": calls,
                "loop_s": time.perf_counter() - begin, **energy.columns}

    def _reason(self, error: Exception) -> str:
        """Return why a configuration failed; WorkerLostError where the GPU is broken."""
        if is_broken_device(error):
            raise WorkerLostError(one_line(error)) from None
        if is_out_of_memory(error) and self.device.type == "cuda":
            torch.cuda.empty_cache()
        return one_line(error)

    def _call(self, config: Config, ops: Ops) -> Call:
        """Return the operators alone, or the public function, or its backward pass by autograd."""
        if config.latency_type == "kernel":
            return rebuild.runnable(ops, self.device)
        family, dtype = families.family(config.op), torch_name(config.dtype)
        function, inputs = family.build(dict(config.parameters), dtype)
        backward = config.passes == "backward"
        tensors = [rebuild.make(spec, self.device).requires_grad_(wants and backward)
                   for spec, wants in inputs]
        if not backward:
            return torch.no_grad()(lambda: function(*tensors))
        output = function(*tensors)
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        gradient = torch.ones_like(output)
        return lambda: torch.autograd.grad(output, wanted, gradient, retain_graph=True)

    def _samples(self, config: Config, ops: Ops) -> tuple[list[float], int, str]:
        """Build, check and time a configuration; return times, calls of each, and a note."""
        kernel, cold = config.latency_type == "kernel", config.cache == "cold"
        call = self._call(config, ops)
        result = call()
        if config.passes == "forward":
            _check(result, ops)
        del result
        if kernel and not cold:
            return self._kernel_samples(call)
        if kernel and self.device.type == "cpu":
            del call
            calls = ColdCalls(ops, self.device, self._rings)
            return calls.samples(self.visit_ms / 1e3, _LEAST), 1, ""
        return self._lone_samples(call, cold, host=not kernel), 1, ""

    def _back_to_back(self, call: Call) -> tuple[Repeat, float]:
        """Return the calls of a sample back to back, and the time of a lone call, in ms."""
        once_ms = warm_up(call, self.device, _WARM_MS / 1e3)
        return repeated(call, once_ms, self.device, _SAMPLE_MS, _MOST_CALLS), once_ms

    def _kernel_samples(self, call: Call) -> tuple[list[float], int, str]:
        """Time calls back to back; return times, calls of each, and a note."""
        repeat, once_ms = self._back_to_back(call)
        before = [once_ms] if once_ms > _WARM_MS else []
        samples = take_samples(lambda: repeat.ms(self.device), self.visit_ms / 1e3, _LEAST_WARM,
                               before=before)
        launched = self.device.type == "cuda" and not repeat.graphed
        return samples, repeat.calls, LAUNCHED if launched else ""

    def _lone_samples(self, call: Call, cold: bool, host: bool) -> list[float]:
        """Time calls one by one, on flushed caches if ``cold``, by the host's clock if ``host``."""
        flush = self.flush if cold else None

        def one() -> float:
            if not host:
                return time_calls(call, 1, self.device, flush)
            if flush:
                flush()
            return host_ms(call, self.device)

        one()
        if flush and not host and self.device.type == "cuda":
            flush = self._lasting(call)
        return take_samples(one, self.visit_ms / 1e3, _LEAST)

    def _lasting(self, call: Call) -> Call:
        """Return flushes that keep a GPU at work for twice as long as queueing ``call`` takes."""
        synchronize(self.device)
        begin = time.perf_counter()
        call()
        queued_ms = (time.perf_counter() - begin) * 1e3
        flush_ms = time_calls(self.flush, 1, self.device, self.flush)
        times = 1 + int(np.ceil(2 * queued_ms / flush_ms))
        return lambda: [self.flush() for _ in range(times)]


def _check(result: Any, ops: Ops) -> None:
    """Raise InputError for a result of another shape than expected: another operator was run."""
    parts = result if isinstance(result, tuple | list) else [result]
    got = [tuple(tensor.shape) for tensor in parts if isinstance(tensor, torch.Tensor)]
    expected = [spec.shape for spec in ops[0].outputs]
    if len(ops) == 1 and got[:1] != expected[:1]:
        raise InputError(f"{ops[0].name} gave {got}, expected {expected}")
