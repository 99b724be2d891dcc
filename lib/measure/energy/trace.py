"""The energy of a window of a meter's readings."""

import math
from dataclasses import dataclass

import numpy as np

LEAST_SAMPLES = 10
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Energy:
    """The energy of one window, how it was measured, and the reason if it is NaN.

    ``disagreement`` is integrated power / counter - 1, NaN unless both were read.
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
    def columns(self) -> dict[str, float | int | str]:
        """Return the columns of a table that say how an energy was measured."""
        return {"power_w": self.power_w, "idle_w": self.idle_w, "energy_method": self.method,
                "energy_n": self.samples, "energy_disagreement": self.disagreement,
                "energy_reason": self.reason}


def of_window(samples: np.ndarray, start_s: float, end_s: float, idle_w: float = math.nan,
              meter: str = "") -> Energy:
    """Return the energy of a window: by the meter's counter if it has one, else by integration.

    ``samples`` (n, 3) has the time in s, power in W and counter in J, NaN where one was not read.
    The energy is NaN with a reason if the window has fewer than LEAST_SAMPLES samples.
    """
    seconds = end_s - start_s
    _, counter_j, no_counter = _within(samples[:, [0, 2]], start_s, end_s)
    at_s, power_w, no_power = _within(samples[:, [0, 1]], start_s, end_s)
    gap_s = np.diff(at_s).max(initial=0.0)
    if not no_power and gap_s > seconds / 2:
        no_power = f"no power for {gap_s:.3g} s of {seconds:.3g} s"
    if no_counter and no_power:
        reason = no_power if len(power_w) >= len(counter_j) else no_counter
        count = max(len(power_w), len(counter_j), 2) - 2
        return Energy(seconds, samples=count, idle_w=idle_w, reason=reason)
    integral_j = math.nan if no_power else float(np.trapezoid(power_w, at_s))
    if no_counter:
        return Energy(seconds, integral_j, f"{meter} integration".strip(), len(power_w) - 2, idle_w)
    counted_j = float(counter_j[-1] - counter_j[0])
    disagreement = integral_j / counted_j - 1 if counted_j > 0 else math.nan
    return Energy(seconds, counted_j, f"{meter} counter".strip(), len(counter_j) - 2, idle_w,
                  disagreement)


def _within(samples: np.ndarray, start_s: float,
            end_s: float) -> tuple[np.ndarray, np.ndarray, str]:
    """Return times and values of a window, its ends interpolated, and why they are too few."""
    at_s, values = samples[np.isfinite(samples[:, 1])].T
    if not len(at_s):
        return at_s, values, "the meter gave no sample"
    inside = at_s[(at_s >= start_s) & (at_s <= end_s)]
    times = np.concatenate([[start_s], inside, [end_s]])
    reason = ""
    if start_s < at_s[0] or end_s > at_s[-1]:
        reason = "the window is not within the trace"
    elif len(inside) < LEAST_SAMPLES:
        reason = f"{len(inside)} samples within {end_s - start_s:.3g} s; {LEAST_SAMPLES} are needed"
    return times, np.interp(times, at_s, values), reason
