"""What else runs here: a lock a device, waiting for quiet, and what other processes took while we measured."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from lib.errors import InputError

QUIET_CORES = 0.10  # what other processes may use without harm
LOUD_CORES = 0.50


@dataclass(frozen=True)
class Load:
    """What happened beside a measurement of ``seconds``: cores used by others, cores stolen by the host, switches."""

    seconds: float
    own_cores: float
    other_cores: float
    stolen_cores: float
    involuntary_per_s: float

    def crowding(self, threads: int) -> float:
        """Return how many cores' worth of others stood in our way: half of the cores that we leave idle are free to them."""
        spare = max(0, (os.cpu_count() or 1) - threads)
        return max(0.0, self.other_cores - spare / 2) + self.stolen_cores


def _own_seconds() -> float:
    """Return CPU seconds of this process and its children, dead or alive."""
    me = psutil.Process()
    times = me.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in me.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def _snapshot() -> tuple[float, float, float, float, int]:
    all_cpus = psutil.cpu_times()
    busy = sum(getattr(all_cpus, field, 0.0) for field in ("user", "nice", "system", "irq", "softirq"))
    switches = psutil.Process().num_ctx_switches().involuntary
    return time.perf_counter(), busy, _own_seconds(), getattr(all_cpus, "steal", 0.0), switches


class LoadWatch:
    """Watch the machine from ``__enter__`` on; ``reading()`` tells what others used since then (10 ms resolution)."""

    def __enter__(self) -> "LoadWatch":
        self._start = _snapshot()
        return self

    def __exit__(self, *_) -> None:
        return None

    def reading(self) -> Load:
        """Return the load since the watch began."""
        seconds, busy, own, stolen, switches = (now - then for now, then in zip(_snapshot(), self._start, strict=True))
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


@contextmanager
def device_lock(device: str, timeout_s: float = 600.0) -> Iterator[None]:
    """Hold the machine-wide lock of one device, so that two measurements never share it.

    Raises InputError when another process still holds it after ``timeout_s``.
    """
    from filelock import FileLock, Timeout

    path = Path(tempfile.gettempdir()) / f"measuring-{device.replace(':', '-')}.lock"
    try:
        with FileLock(path, timeout=timeout_s, mode=0o666):
            yield
    except Timeout:
        raise InputError(f"device {device} is being measured by another process (lock {path}); "
                         "try again when it ends") from None
    except PermissionError:
        raise InputError(f"cannot use the lock {path}; it belongs to another user") from None
