"""The load that other processes put on the cores or the GPU of a measurement; waiting for a quiet machine.

Processes of the same run, and those on cores that this process may not use, do not count. A GPU is judged by its other users
and its throttling (``GpuUse.verdict``), neither by its clock nor by the load of its host.
"""

import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from lib.measure.gpus.card import number_of
from lib.measure.gpus.watch import GpuUse, GpuWatch
from lib.measure.statistics import LOUD_CORES, STABLE, crowd_verdict
from lib.measure.worker import allowed_cores, own_cores

_STAT = Path("/proc/stat")  # of Linux
_BUSY = ("user", "nice", "system", "irq", "softirq")


def spare_cores(threads: int) -> int:
    """Return how many of the cores of this process ``threads`` threads leave idle."""
    return max(0, len(own_cores()) - threads)


def in_the_way(others, stolen, spare: int):
    """Return how many cores others took from a measurement (numbers or Series); half of the idle cores are free to them."""
    return np.maximum(others - spare / 2, 0.0) + stolen


@dataclass(frozen=True)
class Load:
    """What happened beside a measurement of ``seconds``: cores used by others, cores stolen by the host, switches.

    The cores are those that this process may use. ``gpu`` is set if the measurement was on a GPU.
    """

    seconds: float
    own_cores: float
    other_cores: float
    stolen_cores: float
    involuntary_per_s: float
    gpu: GpuUse | None = None

    def verdict(self, threads: int) -> str:
        """Return the verdict on what was measured meanwhile, on a GPU or by ``threads`` threads of ours."""
        if self.gpu:
            return self.gpu.verdict()
        return crowd_verdict(in_the_way(self.other_cores, self.stolen_cores, spare_cores(threads)))

    def words(self) -> str:
        """Return the load as words."""
        if self.gpu:
            return self.gpu.words()
        return f"others took {self.other_cores:.1f} cores and the host {self.stolen_cores:.1f}"


def busy_seconds() -> tuple[float, float]:
    """Return the CPU seconds that everybody has used so far of the cores of this process, and those that the host took.

    They come in ticks of 10 ms. They are of all cores if the system does not list one of ours, as in a container that renames
    them.
    """
    cores, every = own_cores(), _times_of_cores()
    ours = [every[core] for core in cores] if every.keys() >= set(cores) else list(every.values())
    return sum(busy for busy, _ in ours), sum(stolen for _, stolen in ours)


def _times_of_cores() -> dict[int, tuple[float, float]]:
    """Return the CPU seconds of each core that the system lists, by its number: used by everybody, and taken by the host."""
    if not _STAT.exists():
        return {core: (sum(getattr(times, field, 0.0) for field in _BUSY), 0.0)
                for core, times in enumerate(psutil.cpu_times(percpu=True))}
    seconds, times = 1.0 / os.sysconf("SC_CLK_TCK"), {}
    for line in _STAT.read_text().splitlines():
        name, *ticks = line.split() or [""]
        if name.startswith("cpu") and name != "cpu":  # a core that is off has no line
            user, nice, system, _, _, irq, softirq, stolen, *_ = map(int, ticks)
            times[int(name.removeprefix("cpu"))] = ((user + nice + system + irq + softirq) * seconds, stolen * seconds)
    return times


class OwnProcesses:
    """The processes of one run, which are no strangers to each other: the leader that started this one, and all it started.

    The leader is the process that started this one as its worker (multiprocessing), or this one.
    """

    def __init__(self):
        leader = multiprocessing.parent_process()
        self._leader = psutil.Process(leader.pid if leader else None)
        self.refresh()

    def refresh(self) -> None:
        """Find out which processes there are now; it takes milliseconds."""
        try:
            self._all = [self._leader, *self._leader.children(recursive=True)]
        except psutil.Error:  # the leader ended
            self._all = [psutil.Process()]

    @property
    def pids(self) -> set[int]:
        """Return their ids, as of the last ``refresh``."""
        return {process.pid for process in self._all}

    def seconds(self) -> float:
        """Return the CPU seconds of the processes known, and of the children that they have outlived."""
        total = 0.0
        for process in self._all:
            try:
                total += sum(process.cpu_times()[:4])  # user, system, and those of ended children
            except psutil.Error:
                continue
        return total


class LoadWatch:
    """Watches a device; ``reading()`` tells what others used since the watch began (10 ms resolution on a CPU).

    Short measurements ``begin`` it again and again: with ``refresh`` off it looks for processes of this run once, which takes
    milliseconds.
    """

    def __init__(self, device: str = "cpu", refresh: bool = True):
        number = number_of(device)
        self._own, self._refresh = OwnProcesses(), refresh
        self._gpu = None if number is None else GpuWatch(number, self._own.pids)
        self.begin()

    def begin(self) -> None:
        """Begin to watch anew."""
        if self._gpu:
            self._gpu.begin()
        self._start = self._snapshot()

    def _snapshot(self) -> np.ndarray:
        switches = psutil.Process().num_ctx_switches().involuntary
        busy, stolen = busy_seconds()
        return np.array([time.perf_counter(), busy, self._own.seconds(), stolen, switches])

    def reading(self) -> Load:
        """Return the load since the watch began."""
        if self._refresh:
            self._own.refresh()
        seconds, busy, ours, stolen, switches = (self._snapshot() - self._start).tolist()
        seconds = max(seconds, 1e-6)
        return Load(seconds, ours / seconds, max(0.0, busy - ours) / seconds, stolen / seconds, switches / seconds,
                    self._gpu and self._gpu.reading())


def wait_for_quiet(threads: int, patience_s: float, window_s: float = 0.5, device: str = "cpu") -> Load:
    """Wait until others leave a device alone, at most ``patience_s``; return the last reading either way.

    If the users of a GPU are unknown, it does not wait.
    """
    end = time.monotonic() + patience_s
    while True:
        watch = LoadWatch(device)
        time.sleep(window_s)
        load = watch.reading()
        if load.verdict(threads) == STABLE or (load.gpu and load.gpu.unknown) or time.monotonic() > end:
            return load


def free_cores(window_s: float = 0.3) -> int:
    """Return how many of the cores that this run may use others leave free now, at least one; it takes ``window_s``.

    A neighbour holds a core where it uses LOUD_CORES of one or more, or where the host takes as much.
    """
    watch = LoadWatch()
    time.sleep(window_s)
    return cores_left(watch.reading())


def cores_left(reading: Load) -> int:
    """Return how many of the cores that this run may use others left free while a CPU was watched, see ``free_cores``."""
    occupied_cores = int(reading.other_cores + reading.stolen_cores + LOUD_CORES)
    return max(1, min(len(allowed_cores()), len(own_cores()) - occupied_cores))
