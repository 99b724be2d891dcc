"""Readings of a meter over time, and the energy of a window of them."""

import math
from dataclasses import dataclass

import numpy as np

LEAST_SAMPLES = 10
NOT_MEASURED = "not measured"


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
    """The energy of one window: in all, how it was got, samples, idle power, integral / counter - 1, and why it is NaN.

    ``disagreement`` is NaN unless both were read.
    """

    seconds: float
    energy_j: float = math.nan
    method: str = NOT_MEASURED
    samples: int = 0
    idle_w: float = math.nan
    disagreement: float = math.nan
    reason: str = ""

    @property
    def power_w(self) -> float:
        """Return the mean power, in W."""
        return self.energy_j / self.seconds if self.seconds > 0 else math.nan

    @property
    def above_idle_j(self) -> float:
        """Return what it took above idle; NaN without an idle power of the same session."""
        return self.energy_j - self.idle_w * self.seconds

    @property
    def columns(self) -> dict[str, float | int | str]:
        """Return the columns of a table that say how an energy was got (``[*energy]`` in lib.tables)."""
        return {"power_w": self.power_w, "idle_w": self.idle_w, "energy_method": self.method, "energy_n": self.samples,
                "energy_disagreement": self.disagreement, "energy_reason": self.reason}


def of_window(trace: Trace, start_s: float, end_s: float, idle_w: float = math.nan, meter: str = "") -> Energy:
    """Return the energy of a window of a trace; NaN with a reason where fewer than LEAST_SAMPLES samples lie within it.

    By the counter where the meter has one, else by integration, which must not bridge a gap of half the window.
    """
    seconds = end_s - start_s
    counter_n, no_counter, _, counter_j = _window(trace.at_s, trace.counter_j, start_s, end_s)
    power_n, no_power, at_s, power_w = _window(trace.at_s, trace.power_w, start_s, end_s)
    longest_s = np.diff(at_s).max()
    if not no_power and longest_s > seconds / 2:
        no_power = f"no power for {longest_s:.3g} s of {seconds:.3g} s"
    if no_counter and no_power:
        samples, reason = max((power_n, no_power), (counter_n, no_counter), key=lambda side: side[0])
        return Energy(seconds, samples=samples, idle_w=idle_w, reason=reason)
    integrated_j = math.nan if no_power else float(np.trapezoid(power_w, at_s))
    if no_counter:
        return Energy(seconds, integrated_j, f"{meter} integration".strip(), power_n, idle_w)
    counted_j = float(counter_j[-1] - counter_j[0])
    disagreement = integrated_j / counted_j - 1 if counted_j > 0 else math.nan
    return Energy(seconds, counted_j, f"{meter} counter".strip(), counter_n, idle_w, disagreement)


def _window(at_s: np.ndarray, values: np.ndarray, start_s: float, end_s: float) -> tuple[int, str, np.ndarray, np.ndarray]:
    """Return the samples of a window, why they are too few (or nothing), its moments and the values then, ends interpolated."""
    known = np.isfinite(values)
    at_s, values = at_s[known], values[known]
    within = (at_s >= start_s) & (at_s <= end_s)
    samples, moments = int(within.sum()), np.concatenate([[start_s], at_s[within], [end_s]])
    if not len(at_s):
        return 0, "the meter gave no sample", moments, moments
    outside = start_s < at_s[0] or end_s > at_s[-1]
    few = f"{samples} samples within {end_s - start_s:.3g} s; {LEAST_SAMPLES} are needed" if samples < LEAST_SAMPLES else ""
    return samples, "the window is not within the trace" if outside else few, moments, np.interp(moments, at_s, values)
