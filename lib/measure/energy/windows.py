"""Power and energy of named windows of work, from whatever meter there is; where none is, NaN and the reason.

A meter is sampled beside the work in a thread. A window's energy is the difference of the meter's counter where it has one,
and the integral of the sampled power (trapezoids, the ends interpolated); where both exist each checks the other. The rules are
those of Yang, Adamek and Armour, "Accurate and convenient energy measurements for GPUs" (SC 2024): repeat the work for seconds,
log the idle power of the same run, and take no number from too few samples.
"""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import numpy as np

from lib.measure.energy.meters import NOT_MEASURED, Absent, Meter

LEAST_SAMPLES = 10


@dataclass(frozen=True)
class Trace:
    """What a meter gave: moments in s of one clock, power in W and counter in J at each, NaN where there is none (n each)."""

    at_s: np.ndarray
    power_w: np.ndarray
    counter_j: np.ndarray

    @classmethod
    def of_power(cls, at_s: np.ndarray, power_w: np.ndarray) -> "Trace":
        """Return a trace of power alone, such as a recorded log."""
        return cls(np.asarray(at_s, float), np.asarray(power_w, float), np.full(len(at_s), np.nan))


@dataclass(frozen=True)
class Energy:
    """The energy of one window: in all and above idle, mean power, how it was got, by both ways, samples; why it is NaN."""

    seconds: float
    energy_j: float
    above_idle_j: float
    power_w: float
    method: str
    counter_j: float
    integrated_j: float
    samples: int
    reason: str = ""

    @property
    def disagreement(self) -> float:
        """Return integral / counter - 1; NaN where one of them is missing."""
        return self.integrated_j / self.counter_j - 1 if self.counter_j > 0 else math.nan


def of_window(trace: Trace, start_s: float, end_s: float, idle_w: float = math.nan) -> Energy:
    """Return the energy of a window of a trace; NaN with a reason where fewer than LEAST_SAMPLES samples lie within it.

    By the counter where the meter has one, else by integration. ``idle_w`` is taken off for ``above_idle_j``.
    """
    seconds, samples = end_s - start_s, int(((trace.at_s >= start_s) & (trace.at_s <= end_s)).sum())
    reason = _why_not(trace, start_s, end_s, samples)
    if reason:
        return Energy(seconds, math.nan, math.nan, math.nan, NOT_MEASURED, math.nan, math.nan, samples, reason)
    counter_j, integrated_j = _counted(trace, start_s, end_s), _integrated(trace, start_s, end_s)
    method = "counter" if math.isfinite(counter_j) else "integration"
    energy_j = counter_j if method == "counter" else integrated_j
    return Energy(seconds, energy_j, energy_j - idle_w * seconds, energy_j / seconds, method, counter_j, integrated_j, samples)


def _why_not(trace: Trace, start_s: float, end_s: float, samples: int) -> str:
    if not len(trace.at_s):
        return "the meter gave no sample"
    if start_s < trace.at_s[0] or end_s > trace.at_s[-1]:
        return "the window is not within the trace"
    if samples < LEAST_SAMPLES:
        return f"{samples} samples within {end_s - start_s:.3g} s; {LEAST_SAMPLES} are needed"
    return ""


def _counted(trace: Trace, start_s: float, end_s: float) -> float:
    """Return the difference of the counter between the ends, interpolated between its readings; NaN without a counter."""
    good = np.isfinite(trace.counter_j)
    if good.sum() < 2:
        return math.nan
    return float(np.diff(np.interp([start_s, end_s], trace.at_s[good], trace.counter_j[good]))[0])


def _integrated(trace: Trace, start_s: float, end_s: float) -> float:
    """Return the integral of the power by trapezoids, the ends interpolated; NaN without power."""
    good = np.isfinite(trace.power_w)
    if good.sum() < 2:
        return math.nan
    at_s, power_w = trace.at_s[good], trace.power_w[good]
    within = (at_s > start_s) & (at_s < end_s)
    ends_w = np.interp([start_s, end_s], at_s, power_w)
    return float(np.trapezoid(np.concatenate([ends_w[:1], power_w[within], ends_w[1:]]),
                              np.concatenate([[start_s], at_s[within], [end_s]])))


@dataclass
class Recorder(AbstractContextManager):
    """Samples a meter beside the work, from entering to leaving; windows are named while it runs, energies asked afterwards.

    The clock is ``time.perf_counter``. Idle power is the mean over the windows named ``idle``.
    """

    meter: Meter
    windows: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def __enter__(self) -> "Recorder":
        self._samples: list[tuple[float, float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        if not isinstance(self.meter, Absent):
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        while True:
            self._samples.append((time.perf_counter(), self.meter.power_w(), self.meter.counter_j()))
            if self._over.wait(self.meter.period_s):
                self._samples.append((time.perf_counter(), self.meter.power_w(), self.meter.counter_j()))
                return

    @contextmanager
    def window(self, name: str) -> Iterator[None]:
        """Name what runs meanwhile; one name may be given several times."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self.windows.setdefault(name, []).append((start_s, time.perf_counter()))

    def rest(self, seconds: float) -> None:
        """Log the idle power of this run; without a meter there is nothing to wait for."""
        if not isinstance(self.meter, Absent):
            with self.window("idle"):
                time.sleep(seconds)

    @property
    def trace(self) -> Trace:
        """Return what the meter gave until now."""
        return Trace(*np.array(self._samples, float).reshape(-1, 3).T)

    @property
    def idle_w(self) -> float:
        """Return the mean power of the idle windows, in W; NaN where there is none."""
        trace, idle = self.trace, [of_window(self.trace, *window) for window in self.windows.get("idle", ())]
        return float(np.mean([energy.power_w for energy in idle])) if idle and len(trace.at_s) else math.nan

    def energies(self, name: str) -> list[Energy]:
        """Return the energy of each window of a name, in order; without a meter they say why there is none."""
        windows = self.windows.get(name, [])
        if isinstance(self.meter, Absent):
            nothing = (math.nan, math.nan, math.nan, NOT_MEASURED, math.nan, math.nan, 0, self.meter.reason)
            return [Energy(end_s - start_s, *nothing) for start_s, end_s in windows]
        trace, idle_w = self.trace, self.idle_w
        return [of_window(trace, start_s, end_s, idle_w) for start_s, end_s in windows]
