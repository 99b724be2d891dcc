"""What makes a measured row noisy besides its own spread (``statistics.spread_verdict``).

A busy machine gives marked rows, never a failure. Three signs are recorded beside a measurement:

- ``Load``: cores that other processes and the host (steal time) took. ``Load.verdict`` is noisy
  from ``QUIET_CORES`` of them, unusable from ``LOUD_CORES`` (both in ``statistics``).
- ``GpuUse``: on a GPU, the share of its time that others used, and throttling by heat or supply.
- ``reference_kernel``: fixed work before and after. A neighbour on the same host shows in no
  counter of ours; from ``SLOW`` times its usual time on the processor counts as disturbed.
"""

import multiprocessing
import re
import time
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from lib.errors import InputError
from lib.measure.gpus.card import Card, number_of
from lib.measure.statistics import LOUD_CORES, NOISY, STABLE, crowd_verdict, worst
from lib.measure.worker import allowed_cores, own_cores

_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class GpuUse:
    """Use of a GPU during a measurement, by its columns in the table ``repeats``."""

    others: float | None = None  # share of its time that other processes used; None: not known
    clock_mhz: float | None = None
    throttled: str = ""  # the reason
    unknown: str = ""  # why ``others`` is not known

    @property
    def columns(self) -> dict[str, float | str | None]:
        """Return it as columns of ``repeats``."""
        return {"gpu_others": self.others, "gpu_mhz": self.clock_mhz,
                "gpu_throttled": self.throttled, "gpu_unknown": self.unknown}

    def verdict(self) -> str:
        """Return the verdict; a GPU with unknown users is noisy, and so is a throttled one."""
        crowd = NOISY if self.others is None else crowd_verdict(self.others)
        return worst(crowd, NOISY if self.throttled else STABLE)

    def words(self) -> str:
        """Describe the use in words."""
        used = self.unknown or f"others used {self.others:.0%} of the GPU"
        return f"{used}; the GPU was throttled: {self.throttled}" if self.throttled else used


class GpuWatch:
    """Watches one GPU on which this process has memory; ``own_pids`` are processes of this run."""

    def __init__(self, number: int, own_pids: Set[int]):
        self._own_pids, self._card, self._unknown = own_pids, None, ""
        try:
            self._card = Card(number)
        except InputError as error:
            self._unknown = str(error)
        self.begin()

    def begin(self) -> None:
        """Start a new measurement."""
        self._throttled = self._card.throttled if self._card else ""

    def reading(self) -> GpuUse:
        """Return the use since ``begin``.

        In a container NVML lists process ids of the host, not ours: the busiest is taken for ours.
        """
        if not self._card:
            return GpuUse(unknown=self._unknown)
        shares, others = self._card.processes(), None
        if shares is not None:
            strangers = {pid: share for pid, share in shares.items() if pid not in self._own_pids}
            if strangers and len(strangers) == len(shares):
                del strangers[max(strangers, key=lambda pid: strangers[pid] or 0.0)]
            if None not in strangers.values():
                others = min(1.0, sum(strangers.values()))
        return GpuUse(others, self._card.clock_mhz, self._card.throttled or self._throttled,
                      "the driver does not tell who uses the GPU" if others is None else "")


def spare_cores(threads: int) -> int:
    """Return how many cores of this process ``threads`` threads leave idle."""
    return max(0, len(own_cores()) - threads)


def in_the_way(others, stolen, spare: int):
    """Return the cores taken from a measurement (numbers or Series); half of the idle ones are free."""
    return np.maximum(others - spare / 2, 0.0) + stolen


@dataclass(frozen=True)
class Load:
    """Load beside a measurement of ``seconds``, on the cores that this process may use."""

    seconds: float
    own_cores: float
    other_cores: float
    stolen_cores: float  # by the host of a virtual machine
    involuntary_per_s: float  # context switches
    gpu: GpuUse | None = None  # of a measurement on a GPU

    def verdict(self, threads: int) -> str:
        """Return the verdict on a measurement on a GPU, or with ``threads`` CPU threads."""
        if self.gpu:
            return self.gpu.verdict()
        return crowd_verdict(in_the_way(self.other_cores, self.stolen_cores, spare_cores(threads)))

    def words(self) -> str:
        """Describe the load in words."""
        if self.gpu:
            return self.gpu.words()
        return f"others took {self.other_cores:.1f} cores and the host {self.stolen_cores:.1f}"


def _core_numbers() -> list[int]:
    """Return the numbers of the listed cores, those that are off left out; empty if not Linux."""
    if not _STAT.exists():
        return []
    return [int(number) for number in re.findall(r"^cpu(\d+)", _STAT.read_text(), re.MULTILINE)]


def busy_seconds() -> tuple[float, float]:
    """Return the CPU seconds of everybody on our cores, and those stolen by the host (10 ms ticks).

    All cores count if the system does not list one of ours, as in some containers.
    """
    every, cores = psutil.cpu_times(percpu=True), own_cores()
    by_number = dict(zip(_core_numbers() or range(len(every)), every, strict=False))
    times = [by_number[core] for core in cores] if by_number.keys() >= set(cores) else every
    fields = ("user", "nice", "system", "irq", "softirq")
    busy = sum(getattr(core, name, 0.0) for core in times for name in fields)
    return busy, sum(getattr(core, "steal", 0.0) for core in times)


def _run_processes() -> list[psutil.Process]:
    """Return the processes of this run: the parent of a worker, or this one, and all children."""
    parent = multiprocessing.parent_process()
    try:
        leader = psutil.Process(parent.pid if parent else None)
        return [leader, *leader.children(recursive=True)]
    except psutil.Error:  # the leader ended
        return [psutil.Process()]


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    """Return the CPU seconds of processes and of their ended children."""
    total = 0.0
    for process in processes:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


class LoadWatch:
    """Watches a device; ``reading()`` returns the load since ``begin`` (10 ms resolution on a CPU).

    With ``refresh`` off, processes of this run are listed once, which takes milliseconds.
    """

    def __init__(self, device: str = "cpu", refresh: bool = True):
        number = number_of(device)
        self._processes, self._refresh = _run_processes(), refresh
        pids = {process.pid for process in self._processes}
        self._gpu = None if number is None else GpuWatch(number, pids)
        self.begin()

    def begin(self) -> None:
        """Start a new measurement."""
        if self._gpu:
            self._gpu.begin()
        self._start = self._snapshot()

    def _snapshot(self) -> np.ndarray:
        switches = psutil.Process().num_ctx_switches().involuntary
        busy, stolen = busy_seconds()
        own = _cpu_seconds(self._processes)
        return np.array([time.perf_counter(), own, busy, stolen, switches])

    def reading(self) -> Load:
        """Return the load since ``begin``."""
        if self._refresh:
            self._processes = _run_processes()
        seconds, own, busy, stolen, switches = (self._snapshot() - self._start).tolist()
        seconds = max(seconds, 1e-6)
        others = max(0.0, busy - own)
        return Load(seconds, own / seconds, others / seconds, stolen / seconds, switches / seconds,
                    self._gpu.reading() if self._gpu else None)


def wait_for_quiet(threads: int, patience_s: float, window_s: float = 0.5,
                   device: str = "cpu") -> Load:
    """Wait until others leave a device alone, at most ``patience_s``; return the last reading.

    If the users of a GPU are unknown, it does not wait.
    """
    end = time.monotonic() + patience_s
    while True:
        watch = LoadWatch(device)
        time.sleep(window_s)
        load = watch.reading()
        unknown = load.gpu and load.gpu.unknown
        if load.verdict(threads) == STABLE or unknown or time.monotonic() > end:
            return load


def free_cores(window_s: float = 0.3) -> int:
    """Watch for ``window_s`` how many cores of this run others leave free, at least one."""
    watch = LoadWatch()
    time.sleep(window_s)
    return cores_left(watch.reading())


def cores_left(reading: Load) -> int:
    """Return how many cores others left free; a core is held from LOUD_CORES of use or steal on."""
    occupied = int(reading.other_cores + reading.stolen_cores + LOUD_CORES)
    return max(1, min(len(allowed_cores()), len(own_cores()) - occupied))
