"""Power and energy of named windows of work, sampled from a meter in a thread beside the work.

The rules are those of Yang, Adamek and Armour, "Accurate and convenient energy measurements for
GPUs" (SC 2024): repeat the work for seconds, log the idle power of the same run, and take no number
from too few samples. Without a meter, energies are NaN with the reason.
"""

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from lib.measure.energy.meters import Meter
from lib.measure.energy.trace import LEAST_SAMPLES, Energy, of_window

_IDLE_PERIODS, _IDLE_S = LEAST_SAMPLES + 2, 0.25  # idle power is logged at least so long
LEAST_S = 2.0  # of work, where it can be repeated


def idle_seconds(meter: Meter) -> float:
    """Return how long to log the idle power for enough samples."""
    return max(_IDLE_PERIODS * meter.period_s, _IDLE_S)


@dataclass
class Recorder(AbstractContextManager):
    """Samples a meter while it is entered; ask for energies of windows then or afterwards.

    The clock is ``time.perf_counter``. ``idle_w`` is the mean power while it last rested.
    """

    meter: Meter
    idle_w: float = math.nan

    def __post_init__(self):
        self._samples: list[tuple[float, float, float]] = []
        self._over, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Recorder":
        if self.present:
            self._sample()
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
            self._sample()

    @property
    def present(self) -> bool:
        """Return whether there is a meter."""
        return not self.meter.reason

    def _run(self) -> None:
        while not self._over.wait(self.meter.period_s):
            self._sample()

    def _sample(self) -> None:
        with self._lock:  # samples stay in order
            now = time.perf_counter()
            self._samples.append((now, self.meter.power_w(), self.meter.counter_j()))

    def rest(self, seconds: float) -> None:
        """Log the idle power of this run; returns at once without a meter."""
        if self.present:
            start_s = time.perf_counter()
            time.sleep(seconds)
            self.idle_w = self.energy(start_s, time.perf_counter()).power_w

    def energy(self, start_s: float, end_s: float) -> Energy:
        """Return the energy between two moments of its clock; without a meter it has the reason."""
        if not self.present:
            return Energy(end_s - start_s, reason=self.meter.reason)
        if self._thread.is_alive():
            self._sample()
        first = max(0, bisect_left(self._samples, (start_s,)) - 1)
        samples = np.array(self._samples[first:], float).reshape(-1, 3)
        return of_window(samples, start_s, end_s, self.idle_w, self.meter.name)

    def energy_j(self, start_s: float, end_s: float) -> float:
        """Return the energy of a window that has just ended, in J; NaN at once for a short one."""
        if end_s - start_s < LEAST_SAMPLES * self.meter.period_s:
            return math.nan
        return self.energy(start_s, end_s).energy_j


def of_calls(chunk: Callable[[], object], calls: int, seconds: float, meter: Meter,
             idle_w: float) -> tuple[Energy, int]:
    """Repeat ``chunk``, which makes ``calls`` calls and waits for them; return energy and calls.

    Without a meter nothing is repeated.
    """
    repeats = 0
    with Recorder(meter, idle_w) as recorder:
        start_s = end_s = time.perf_counter()
        while recorder.present and end_s < start_s + seconds:
            chunk()
            repeats, end_s = repeats + 1, time.perf_counter()
    return recorder.energy(start_s, end_s), repeats * calls


def idle_w(meter: Meter) -> float:
    """Return the mean power at rest, in W; NaN without a meter, at once."""
    with Recorder(meter) as recorder:
        recorder.rest(idle_seconds(meter))
    return recorder.idle_w
