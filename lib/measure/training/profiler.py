"""Profile a training workload batch by batch: one row per batch, written as soon as it ends."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from lib import store
from lib.config.definitions import Workload
from lib.measure import machine
from lib.measure.energy.windows import Recorder
from lib.measure.timing import synchronize
from lib.measure.training.profiled import PASSES
from lib.tables import columns
from lib.work.training import PHASES, Batch

_CLOCKS = {"cpu": "none", "cuda": "event"}  # how phases are clocked; elsewhere by synchronising


def constants(run_id: str, workload: Workload, kind: str, device: torch.device, num_workers: int,
              precision: str, data_source: str) -> store.Facts:
    """Return the columns of ``profile`` that do not change within a pass of ``kind`` (PASSES)."""
    index = -1 if device.type == "cpu" else device.index or 0
    return {"run_id": run_id, "workload_id": workload.id, "dataset": workload.dataset,
            "model": workload.model, "task_type": kind, "split": PASSES[kind],
            "device_type": device.type, "device_index": index, "num_workers": num_workers,
            "precision": precision, "threads": torch.get_num_threads(),
            "sync": _CLOCKS.get(device.type, "synchronize"), "data_source": data_source,
            **machine.ids(), "tf32": machine.tf32(device)}


class BatchProfiler:
    """An observer of the training loop that appends one row per batch to a ``profile`` table.

    On CUDA the phases are device events and each step ends with one synchronisation; on MPS every
    phase ends with one; on the CPU the host's clock is the truth. The step is clocked on the host,
    apart from its phases. Steps are counted from ``step``; long ones have their energy.
    """

    def __init__(self, file: store.Appender, constants: dict, device: torch.device,
                 nvtx: bool = False, recorder: Recorder | None = None, step: int = 0):
        self._file, self._constants, self._device = file, constants, device
        self._nvtx, self._recorder, self._step = nvtx, recorder, step
        self._events = []
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in PHASES]
        self.warmup, self.epoch, self.pipelined_ms = False, 0, None
        self._began, self._marks, self._is_open = time.perf_counter(), [], False

    def start(self) -> None:
        """Begin a step."""
        self._marks = []
        self._open_range(PHASES[0])
        self._start = time.perf_counter_ns()

    def mark(self, phase: str) -> None:
        """End a phase."""
        number = PHASES.index(phase)
        if self._events:
            self._events[number].record()
        elif self._device.type == "mps":
            synchronize(self._device)
        self._marks.append(time.perf_counter_ns())
        if phase != PHASES[-1]:
            self._open_range(PHASES[number + 1])

    def _open_range(self, phase: str) -> None:
        """Close the open NVTX range, if any, and open that of a phase."""
        self.close_range()
        if self._nvtx:
            torch.cuda.nvtx.range_push(phase)
            self._is_open = True

    def close_range(self) -> None:
        """Close the open NVTX range, if any: the last step has one when the loader runs dry."""
        if self._is_open:
            torch.cuda.nvtx.range_pop()
            self._is_open = False

    def _phases_ms(self) -> list[float]:
        """Return the five phases of the step; those that did not happen are 0."""
        ends = [self._start, *self._marks]
        phases = [(now - then) / 1e6 for then, now in zip(ends, self._marks, strict=False)]
        if self._events:
            used = self._events[:len(self._marks)]
            phases[1:] = [a.elapsed_time(b) for a, b in zip(used, used[1:], strict=False)]
        return phases + [0.0] * (len(PHASES) - len(phases))

    def end(self, batch: Batch) -> None:
        """Finish the step and write its row."""
        if self._events:
            self._events[len(self._marks) - 1].synchronize()
        self.close_range()
        now = time.perf_counter_ns()
        step_ms, energy_j = (now - self._start) / 1e6, math.nan
        if self._recorder:
            energy_j = self._recorder.energy_j(self._start / 1e9, now / 1e9)
        loader, h2d, forward, backward, optimizer = self._phases_ms()
        size, channels, *dims = batch.inputs.shape
        allocated = reserved = 0.0
        if self._device.type == "cuda":
            allocated = torch.cuda.memory_allocated(self._device) / 1e6
            reserved = torch.cuda.memory_reserved(self._device) / 1e6
        row = {
            "epoch": -1 if batch.lr is None else self.epoch, "batch_idx": batch.index,
            "global_step": self._step, "batch_size": size, "channels": channels,
            "dim1": dims[0], "dim2": dims[1], "dim3": dims[2] if len(dims) > 2 else 0,
            "data_time_ms": loader + h2d, "forward_time_ms": forward,
            "backward_time_ms": backward, "step_time_ms": step_ms,
            "data_time_pct": (loader + h2d) / step_ms * 100,
            "forward_time_pct": forward / step_ms * 100,
            "backward_time_pct": backward / step_ms * 100,
            "images_per_sec": size / step_ms * 1000, "loss": batch.loss.item(), "lr": batch.lr,
            "cuda_mem_alloc_mb": allocated, "cuda_mem_reserved_mb": reserved,
            "wall_time_s": time.perf_counter() - self._began, "loader_wait_ms": loader,
            "h2d_ms": h2d, "optimizer_ms": optimizer, "pipelined_ms": self.pipelined_ms,
            "energy_j": None if math.isnan(energy_j) else energy_j,
            "peak_rss_mb": machine.peak_rss_mb(), "warmup": self.warmup}
        row = {name: f"{value:.5f}" if isinstance(value, float) else value
               for name, value in row.items()} | self._constants
        self._file.append([row[name] for name in columns("profile")])
        self._step += 1


@contextmanager
def profiler(path: Path, constants: dict, device: torch.device, nvtx: bool = False,
             recorder: Recorder | None = None) -> Iterator[BatchProfiler]:
    """Open a profile file, give the profiler that writes it, and close the file at the end."""
    file = store.Appender(path, "profile")
    observer = BatchProfiler(file, constants, device, nvtx, recorder)
    try:
        yield observer
    finally:
        observer.close_range()
        file.close()
