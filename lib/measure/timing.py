"""Timing of functions: warmed up, repeated, synchronised."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lib.measure.statistics import Timing

Call = Callable[[], object]  # what is timed


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done all of its work; nothing on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def host_ms(call: Call, device: torch.device, calls: int = 1) -> float:
    """Time calls in a row by the host's clock, until the device has ended them, in ms a call."""
    synchronize(device)
    begin = time.perf_counter_ns()
    for _ in range(calls):
        call()
    synchronize(device)
    return (time.perf_counter_ns() - begin) / 1e6 / calls


def time_calls(call: Call, calls: int, device: torch.device, before: Call | None = None) -> float:
    """Time calls in a row, in ms a call: by device events on CUDA, by the host's clock elsewhere.

    ``before`` runs untimed; on CUDA it keeps the device at work while the host queues the calls.
    """
    if before:
        before()
    if device.type != "cuda":
        return host_ms(call, device, calls)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def _graphed(call: Call, calls: int, device: torch.device) -> Call:
    """Record calls as one CUDA graph, so that the host's launches do not bound a small kernel."""
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
    """``calls`` calls in a row: ``run`` made ``width`` times, once where it replays a CUDA graph."""

    run: Call
    width: int
    calls: int
    graphed: bool = False

    def ms(self, device: torch.device) -> float:
        """Return the time of a call, in ms; an untimed replay of a graph before it hides its launch."""
        before = self.run if self.graphed else None
        return time_calls(self.run, self.width, device, before) * self.width / self.calls


def repeated(call: Call, once_ms: float, device: torch.device, sample_ms: float,
             most: int = 10_000, graph: bool = True) -> Repeat:
    """Return as many calls, ``most`` at most, as fill ``sample_ms``, if possible as a CUDA graph.

    ``once_ms`` is the time of a lone call, which on CUDA may be mostly its launch: a first graph
    tells how many calls fit.
    """
    def filling(ms: float) -> int:
        return int(np.clip(np.ceil(sample_ms / max(ms, 1e-4)), 1, most))

    calls = filling(once_ms)
    if graph and device.type == "cuda":
        try:
            repeat = Repeat(_graphed(call, calls, device), 1, calls, True)
            fitting = filling(repeat.ms(device))
            if fitting > calls:
                repeat = Repeat(_graphed(call, fitting, device), 1, fitting, True)
            return repeat
        except RuntimeError:
            synchronize(device)
    return Repeat(call, calls, calls)


def warm_up(call: Call, device: torch.device, seconds: float) -> float:
    """Call for so long, at least once; return the time of the fastest call, in ms."""
    end, once_ms = time.perf_counter() + seconds, np.inf
    while once_ms == np.inf or time.perf_counter() < end:
        once_ms = min(once_ms, time_calls(call, 1, device))
    return once_ms


def take_samples(sample: Callable[[], float], seconds: float, least: int, most_s: float = np.inf,
                 before: Sequence[float] = ()) -> list[float]:
    """Take samples for so long, at least ``least`` unless that takes ``most_s``, after those ``before``."""
    samples, begin = [*before], time.perf_counter()
    while not samples or time.perf_counter() < begin + (seconds if len(samples) >= least else most_s):
        samples.append(sample())
    return samples


def measure(call: Call, device: torch.device, budget_s: float = 0.3, sample_ms: float = 1.0,
            least: int = 5, most_s: float = np.inf, graph: bool = False) -> Timing:
    """Time ``call`` on ``device`` for about ``budget_s``, a fifth of it to warm up.

    Each sample is of as many calls as fill ``sample_ms``, with ``graph`` as one CUDA graph where it
    can be recorded; the result says so. There are ``least`` samples, unless they would take more
    than ``most_s``; a first call that takes as long is the sample.
    """
    begin = time.perf_counter()
    once_ms = warm_up(call, device, min(budget_s / 5, most_s))
    left_s = begin + most_s - time.perf_counter()
    if left_s <= 0:
        return Timing(np.array([once_ms]))
    repeat = repeated(call, once_ms, device, sample_ms, graph=graph)
    samples = take_samples(lambda: repeat.ms(device), 0.8 * budget_s, least, left_s)
    return Timing(np.array(samples), repeat.calls, repeat.graphed)
