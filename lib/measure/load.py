"""What else runs here: a lock a device, waiting for quiet, and what other processes took while we measured."""

import multiprocessing
import os
import time
from dataclasses import dataclass

import psutil

from lib.measure.statistics import VERDICTS
from lib.measure.worker import usable_cores

QUIET_CORES = 0.10  # what other processes may use without harm
LOUD_CORES = 0.50  # more, and what was measured meanwhile is unusable


def crowd_verdict(cores: float) -> str:
    """Return the verdict on what was measured while others used so many cores that it needs."""
    return VERDICTS[0] if cores < QUIET_CORES else VERDICTS[1] if cores < LOUD_CORES else VERDICTS[2]


@dataclass(frozen=True)
class Load:
    """What happened beside a measurement of ``seconds``: cores used by others, cores stolen by the host, switches."""

    seconds: float
    own_cores: float
    other_cores: float
    stolen_cores: float
    involuntary_per_s: float

    def verdict(self, threads: int) -> str:
        """Return the verdict on what ``threads`` threads of ours measured meanwhile."""
        return crowd_verdict(self.crowding(threads))

    def crowding(self, threads: int) -> float:
        """Return how many cores' worth of others stood in our way: half of the cores that we leave idle are free to them."""
        spare = max(0, (os.cpu_count() or 1) - threads)
        return max(0.0, self.other_cores - spare / 2) + self.stolen_cores


def busy_seconds() -> tuple[float, float]:
    """Return the CPU seconds that everybody on this machine has used so far, and those that the host took (ticks of 10 ms)."""
    every = psutil.cpu_times()
    return (sum(getattr(every, field, 0.0) for field in ("user", "nice", "system", "irq", "softirq")),
            getattr(every, "steal", 0.0))


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

    def seconds(self) -> float:
        """Return the CPU seconds of the processes known, and of the children that they have outlived."""
        total = 0.0
        for process in self._all:
            try:
                total += sum(process.cpu_times()[:4])  # user, system, and those of ended children
            except psutil.Error:
                continue
        return total


def _snapshot(own: OwnProcesses) -> tuple[float, float, float, float, int]:
    own.refresh()
    switches = psutil.Process().num_ctx_switches().involuntary
    busy, stolen = busy_seconds()
    return time.perf_counter(), busy, own.seconds(), stolen, switches


class LoadWatch:
    """Watch the machine from ``__enter__`` on; ``reading()`` tells what others used since then (10 ms resolution)."""

    def __enter__(self) -> "LoadWatch":
        self._own = OwnProcesses()
        self._start = _snapshot(self._own)
        return self

    def __exit__(self, *_) -> None:
        return None

    def reading(self) -> Load:
        """Return the load since the watch began."""
        seconds, busy, own, stolen, switches = (now - then for now, then in zip(_snapshot(self._own), self._start, strict=True))
        seconds = max(seconds, 1e-6)
        return Load(seconds, own / seconds, max(0.0, busy - own) / seconds, stolen / seconds, switches / seconds)


def wait_for_quiet(threads: int, patience_s: float = 10.0, window_s: float = 0.5) -> Load:
    """Wait until others leave the processor alone, at most ``patience_s``; return the last reading either way."""
    end = time.monotonic() + patience_s
    while True:
        with LoadWatch() as watch:
            time.sleep(window_s)
            load = watch.reading()
        if load.crowding(threads) < QUIET_CORES or time.monotonic() > end:
            return load


def free_cores(window_s: float = 0.3) -> int:
    """Return how many of the cores that this run may use others leave free now, at least one; it takes ``window_s``.

    A neighbour holds a core where it uses LOUD_CORES of one or more, or where the host takes as much.
    """
    with LoadWatch() as watch:
        time.sleep(window_s)
        reading = watch.reading()
    taken = int(reading.other_cores + reading.stolen_cores + LOUD_CORES)
    return max(1, min(usable_cores(), (os.cpu_count() or 1) - taken))
