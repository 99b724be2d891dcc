"""Readings of a meter over time, and the energy of a window of them."""

import math
from dataclasses import dataclass, replace

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
    """The energy of one window: in all, mean power, how it was got, by both ways, samples; idle power; why it is NaN."""

    seconds: float
    energy_j: float = math.nan
    method: str = NOT_MEASURED
    counter_j: float = math.nan
    integrated_j: float = math.nan
    samples: int = 0
    idle_w: float = math.nan
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
    def disagreement(self) -> float:
        """Return integral / counter - 1; NaN where one of them is missing."""
        return self.integrated_j / self.counter_j - 1 if self.counter_j > 0 else math.nan

    def by(self, meter: str) -> "Energy":
        """Return the same, the method with the meter's name."""
        return self if self.method == NOT_MEASURED else replace(self, method=f"{meter} {self.method}")

    @property
    def columns(self) -> dict[str, float | int | str]:
        """Return the columns of a table that say how an energy was got (``ENERGY`` in lib.tables)."""
        return {"power_w": self.power_w, "idle_w": self.idle_w, "energy_method": self.method, "energy_n": self.samples,
                "energy_disagreement": self.disagreement, "energy_reason": self.reason}


def of_window(trace: Trace, start_s: float, end_s: float, idle_w: float = math.nan) -> Energy:
    """Return the energy of a window of a trace; NaN with a reason where fewer than LEAST_SAMPLES samples lie within it.

    By the counter where the meter has one, else by integration, which must not bridge a gap of half the window.
    """
    seconds = end_s - start_s
    counter, power = (_known(trace.at_s, values) for values in (trace.counter_j, trace.power_w))
    samples = [int(((at_s >= start_s) & (at_s <= end_s)).sum()) for at_s, _ in (counter, power)]
    reasons = [_why_not(at_s, start_s, end_s, n) for (at_s, _), n in zip((counter, power), samples, strict=True)]
    reasons[1] = reasons[1] or _gap(power[0], start_s, end_s)
    if all(reasons):
        most = samples.index(max(samples)) if any(samples) else 1
        return Energy(seconds, samples=samples[most], idle_w=idle_w, reason=reasons[most])
    counter_j = math.nan if reasons[0] else float(np.diff(np.interp([start_s, end_s], *counter))[0])
    integrated_j = math.nan if reasons[1] else _integrated(*power, start_s, end_s)
    method = "integration" if reasons[0] else "counter"
    energy_j = integrated_j if reasons[0] else counter_j
    return Energy(seconds, energy_j, method, counter_j, integrated_j, samples[bool(reasons[0])], idle_w)


def _known(at_s: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    good = np.isfinite(values)
    return at_s[good], values[good]


def _why_not(at_s: np.ndarray, start_s: float, end_s: float, samples: int) -> str:
    if not len(at_s):
        return "the meter gave no sample"
    if start_s < at_s[0] or end_s > at_s[-1]:
        return "the window is not within the trace"
    if samples < LEAST_SAMPLES:
        return f"{samples} samples within {end_s - start_s:.3g} s; {LEAST_SAMPLES} are needed"
    return ""


def _gap(at_s: np.ndarray, start_s: float, end_s: float) -> str:
    within = at_s[(at_s >= start_s) & (at_s <= end_s)]
    longest_s = float(np.diff(np.concatenate([[start_s], within, [end_s]])).max())
    return f"no power for {longest_s:.3g} s of {end_s - start_s:.3g} s" if longest_s > (end_s - start_s) / 2 else ""


def _integrated(at_s: np.ndarray, power_w: np.ndarray, start_s: float, end_s: float) -> float:
    """Return the integral of the power by trapezoids, the ends interpolated."""
    within = (at_s > start_s) & (at_s < end_s)
    ends_w = np.interp([start_s, end_s], at_s, power_w)
    return float(np.trapezoid(np.concatenate([ends_w[:1], power_w[within], ends_w[1:]]),
                              np.concatenate([[start_s], at_s[within], [end_s]])))
