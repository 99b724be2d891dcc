"""Timing of functions: warmed up, repeated, synchronised."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from lib.measure.statistics import Timing

Call = Callable[[], object]  # what is timed


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done all that it was given; nothing on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def host_ms(call: Call, device: torch.device, calls: int = 1) -> float:
    """Time ``calls`` calls in a row by the host's clock, until the device has ended them, in ms a call."""
    synchronize(device)
    begin = time.perf_counter_ns()
    for _ in range(calls):
        call()
    synchronize(device)
    return (time.perf_counter_ns() - begin) / 1e6 / calls


def time_calls(call: Call, calls: int, device: torch.device,
               before: Call | None = None) -> float:
    """Time ``calls`` calls in a row, in ms a call: device events on CUDA, the host's clock elsewhere.

    ``before`` runs untimed: on CUDA the device is at work with it while the host queues the calls, elsewhere it has ended.
    """
    if before:
        before()
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls
    return host_ms(call, device, calls)


def _graphed(call: Call, calls: int, device: torch.device) -> Call:
    """Record ``calls`` launches as one CUDA graph, so that the host's launches do not bound a small kernel."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph.replay


@dataclass(frozen=True)
class Repeat:
    """``calls`` calls in a row: ``run`` made ``width`` times, which is once for the replay of a CUDA graph."""

    run: Call
    width: int
    calls: int
    graphed: bool = False

    def ms(self, device: torch.device) -> float:
        """Return the time of a call, in ms; a graph is replayed before, untimed, so that its launch is not in the time."""
        return time_calls(self.run, self.width, device, self.run if self.graphed else None) * self.width / self.calls


def repeated(call: Call, once_ms: float, device: torch.device, sample_ms: float, most: int = 10_000,
             graph: bool = True) -> Repeat:
    """Return as many calls, ``most`` at most, as fill ``sample_ms``: in a CUDA graph where one is wanted and can be recorded.

    ``once_ms`` is the time of a lone call, on CUDA mostly its launch where it is short: a first graph tells how many calls fit.
    """
    def filling(ms: float) -> int:
        return int(np.clip(np.ceil(sample_ms / max(ms, 1e-4)), 1, most))

    calls = filling(once_ms)
    if graph and device.type == "cuda":
        try:
            repeat = Repeat(_graphed(call, calls, device), 1, calls, True)
            fitting = filling(repeat.ms(device))
            return Repeat(_graphed(call, fitting, device), 1, fitting, True) if fitting > calls else repeat
        except RuntimeError:
            synchronize(device)
    return Repeat(call, calls, calls)


def measure(call: Call, device: torch.device, budget_s: float = 0.3, sample_ms: float = 1.0,
            least: int = 5, most_s: float = np.inf, graph: bool = False) -> Timing:
    """Time ``call`` on ``device`` for about ``budget_s``.

    Warms up for a fifth of the budget (one call at least), then takes samples of as many calls as fill ``sample_ms``,
    so that neither the clock's step nor its own cost shows; at least ``least`` samples, unless they would take more than
    ``most_s``: then one is enough, and where the first call took as much already, it is the sample. With ``graph`` the calls of
    a sample are one CUDA graph where one can be recorded, so that their launches do not bound them; the result says so.
    """
    begin = time.monotonic()
    once_ms = time_calls(call, 1, device)
    if time.monotonic() >= begin + most_s:
        return Timing(np.array([once_ms]))
    while time.monotonic() < begin + min(budget_s / 5, most_s):
        once_ms = min(once_ms, time_calls(call, 1, device))
    repeat = repeated(call, once_ms, device, sample_ms, graph=graph)
    samples, end = [], time.monotonic() + 0.8 * budget_s
    while not samples or time.monotonic() < (end if len(samples) >= least else begin + most_s):
        samples.append(repeat.ms(device))
    return Timing(np.array(samples), repeat.calls, repeat.graphed)
