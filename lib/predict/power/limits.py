"""What a lowered power limit of a GPU does to time and energy: physics of clocks, from facts of the data sheet.

All powers are shares of the most that the board may draw. A board draws *static* power while its kernels wait for the host.
The rest, dynamic power, is rationed by a limit: time grows as a power of (1 - y) / y, where y is the share of it that is left.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from lib import paths
from lib.config.definitions import VendorDevice, load_devices
from lib.predict.model_file import Format, Positive, Saved, vector
from lib.predict.networks.composition import Estimate
from lib.predict.networks.step import Step

PATH = paths.REFERENCE / "models" / "power" / "limits.json"
ENERGY_PER_BIT = {"hbm": 1.0, "gddr": 7.5 / 3.9}  # over HBM2's 3.9 pJ (O'Connor et al., MICRO 2017); GDDR6's 7.5 pJ is Micron's
QUANTITIES, _ENDS = ("time", "energy"), {"": 0, "_low": -1, "_high": 1}
COLUMNS = ("power_limit_w", *(f"{name}_ratio{end}" for name in QUANTITIES for end in _ENDS))
_LOWER = 0.85  # of static power remains at the voltages of low clocks
_LEAST = 1 / 6  # of dynamic power is drawn at the lowest clock
_ALWAYS = 0.15  # log time: widths of intervals grow with this and the predicted log time


@dataclass(frozen=True)
class Effect:
    """What a limit changes: factors of time and energy, and half of their intervals in log."""

    limit_w: float
    time: float
    energy: float
    time_half: float
    energy_half: float

    @property
    def columns(self) -> dict[str, float]:
        """Return the limit and the factors with their ranges, as columns of an answer."""
        return {"power_limit_w": self.limit_w} | {
            f"{name}_ratio{end}": getattr(self, name) * math.exp(sign * getattr(self, f"{name}_half"))
            for name in QUANTITIES for end, sign in _ENDS.items()}

    def of(self, estimate: Estimate | Step) -> Any:
        """Return an estimate under the limit; the parts of a step grow alike."""
        if isinstance(estimate, Step):
            parts = {name: part.times(self.time) for name, part in estimate.parts.items()}
            return replace(estimate, parts=parts, passes=self.of(estimate.passes))
        ms = estimate.predicted_ms
        below, above = (math.exp(math.hypot(math.log(end / ms), self.time_half)) for end in (estimate.low_ms, estimate.high_ms))
        ms *= self.time
        return replace(estimate, predicted_ms=ms, low_ms=ms / below, high_ms=ms * above)


def text(columns: Mapping[str, Any]) -> str:
    """Return the changes of energy and time (``columns`` of Effect) in words."""
    shown = {name: f"{100 * (value - 1):+.0f}" for name, value in columns.items() if "_ratio" in name}
    return ", ".join(f"{shown[f'{name}_ratio']} % {name} ({shown[f'{name}_ratio_low']} to {shown[f'{name}_ratio_high']})"
                     for name in reversed(QUANTITIES))


def refusal(device: str, limit_w: float) -> str:
    """Return why a device does not take a limit, or why nobody knows; empty if it does."""
    vendor = load_devices().get(device)
    if not vendor:
        return f"{device} has no power limit: it is no GPU of params/devices.yaml"
    if not (vendor.power_w and vendor.least_power_w):
        return f"{device}: its power limits are unknown; add power_w and least_power_w in params/devices.yaml"
    if vendor.least_power_w <= limit_w <= vendor.power_w:
        return ""
    return f"{device} takes power limits of {vendor.least_power_w:g} to {vendor.power_w:g} W, not {limit_w:g} W"


@dataclass(frozen=True)
class PowerLimits(Saved):
    """The model of all cards.

    ``static``: the share that a board with HBM draws while kernels wait. ``drawn``, ``clock``, ``power``: rates of ``draw``,
    ``slowdown`` and ``power``. ``halves``: widths of the intervals of time and energy.
    """

    static: Positive
    drawn: vector()
    clock: vector()
    power: vector()
    halves: dict[str, Positive]
    source: str
    licence: str

    FORMAT: ClassVar = Format("model of power limits", "train it: python -m lib models --train power-limits --labels FOLDER")

    def effect(self, device: VendorDevice, limit_w: float, busy: float, memory: float) -> Effect:
        """Return what a limit changes for work, see ``draw``."""
        static = static_of(self.static, device)
        drawn = draw(self.drawn, static, busy, memory)
        time = slowdown(self.clock, static, limit_w / device.power_w, drawn)
        energy = time * power(self.power, static, limit_w / device.power_w, drawn)
        return Effect(limit_w, float(time), float(energy), *(float(self.halves[name] * width(time)) for name in QUANTITIES))


@cache
def shipped() -> PowerLimits:
    """Return the model that ships."""
    return PowerLimits.load(PATH)


def static_of(static: float, device: VendorDevice) -> float:
    """Return the static share of a card from that of cards with HBM."""
    return static * ENERGY_PER_BIT[device.memory]


def draw(rates: Any, static: Any, busy: Any, memory: Any) -> Any:
    """Return the share that work draws unlimited.

    ``busy``: its roofline time over its predicted time; ``memory``: the share of the former that memory bounds. Rates: dynamic
    shares of compute and of memory work, and how fast they saturate as a device gets busy.
    """
    compute, move, begin = rates
    return static + (1 - static) * (compute * (1 - memory) + move * memory) * (1 - np.exp(-busy / begin))


def slowdown(rates: Any, static: Any, limit: Any, drawn: Any) -> Any:
    """Return the factor of time under a limit, which grows with what is drawn between ``begin`` and ``full``."""
    begin, full, factor, exponent = rates
    low = _LOWER * static
    left = np.clip((limit - low) / (1 - low), _LEAST, 1)
    return 1 + np.clip((drawn - begin) / (full - begin), 0, 1) * factor * ((1 - left) / left) ** exponent


def power(rates: Any, static: Any, limit: Any, drawn: Any) -> Any:
    """Return the factor of mean power: the soft minimum of what is drawn and of what the limit leaves, above static power."""
    sharpness, reached = rates

    def mean(share: Any) -> Any:
        dynamic = [np.maximum(drawn - static, 0.01), reached * np.maximum(share - static, 0.03)]
        return static + sum(part ** -sharpness for part in dynamic) ** (-1 / sharpness)
    return mean(limit) / mean(1.0)


def width(time: Any) -> Any:
    """Return what intervals are in proportion to."""
    return _ALWAYS + np.log(time)
