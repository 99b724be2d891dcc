"""What a lowered power limit of a GPU does to time and energy: physics of clocks, from facts of the data sheet.

All powers are shares of the most that the board may draw. A board draws *static* power while its kernels wait for the host.
The rest, dynamic power, is rationed by a limit: time grows as a power of 1 / y - 1, where y is the share of it that is left.
Functions take numbers or arrays.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from lib import paths
from lib.config.definitions import load_devices
from lib.predict.model_file import Format, Positive, Saved, vector
from lib.predict.networks.composition import Estimate
from lib.predict.networks.step import Step
from lib.predict.power.energy import ENDS, ENERGY_PER_BIT, QUANTITIES, RATIOS, is_known, with_ranges

PATH = paths.REFERENCE / "models" / "power" / "limits.json"
COLUMNS = ("power_limit_w", *RATIOS)
_LOWER = 0.85  # of static power remains at the voltages of low clocks
_LEAST, _LEAST_W = 1 / 6, 0.02  # of dynamic power is drawn at the lowest clock; of all power, so that no share is 0
_OF_HOST = ("loader_wait", "h2d")  # parts of a step that no clock of the GPU changes
_ALWAYS = 0.15  # log time: the width of intervals without any slowdown


def refusal(device: str, limit_w: float) -> str:
    """Return why a device does not take a limit, or why nobody knows; empty if it does."""
    card = load_devices().get(device)
    if not is_known(device) or not card.least_power_w:
        return (f"{device} has no known power limits; those of GPUs are least_power_w and power_w of params/devices.yaml, "
                "which are used with boost_mhz, multiprocessors and architecture")
    takes = card.least_power_w <= limit_w <= card.power_w
    return "" if takes else f"{device} takes power limits of {card.least_power_w:g} to {card.power_w:g} W, not {limit_w:g} W"


@dataclass(frozen=True)
class PowerLimits(Saved):
    """The model of all cards. ``least``: the lowest limit in training; below it intervals double.

    ``static``: the share that a board with HBM draws while kernels wait. ``clock``, ``power``: rates of ``slowdown`` and
    ``power``. ``halves``: of intervals, in units of ``width``.
    """

    least: Positive
    static: Positive
    clock: vector()
    power: vector()
    halves: dict[str, Positive]
    source: str
    licence: str

    FORMAT: ClassVar = Format("model of power limits", "train it: python -m lib models --train power --labels FOLDER", 2)

    def factors(self, static, limit, drawn) -> dict[str, Any]:
        """Return the factors of QUANTITIES from shares of power: static, the limit, and drawn without a limit."""
        time = slowdown(self.clock, static, limit, drawn)
        return {"energy": time * power(self.power, static, limit, drawn), "time": time}

    def ratios(self, device: str, limit_w: float, drawn_w: float) -> dict[str, float]:
        """Return what a limit that a device takes changes (COLUMNS) for work that draws ``drawn_w`` without it."""
        card = load_devices()[device]
        limit, drawn, static = limit_w / card.power_w, drawn_w / card.power_w, self.static * ENERGY_PER_BIT[card.memory]
        factors = self.factors(static, limit, drawn)
        wide = width(factors["time"]) * (1 + (limit < self.least))
        halves = {name: self.halves[name] * wide for name in QUANTITIES}
        return {"power_limit_w": limit_w} | with_ranges(factors, halves)


@cache
def shipped() -> PowerLimits:
    """Return the model that ships."""
    return PowerLimits.load(PATH)


def limited(estimate: Estimate | Step, ratios: Mapping[str, float], of_gpu: bool = False) -> Any:
    """Return an estimate under a limit or at a clock; the parts of a step grow alike, or those ``of_gpu`` alone."""
    time = ratios["time_ratio"]
    if isinstance(estimate, Step):
        changed = {name: part if of_gpu and name in _OF_HOST else part.times(time) for name, part in estimate.parts.items()}
        return replace(estimate, parts=changed, passes=limited(estimate.passes, ratios))
    return estimate.scaled(time, math.log(ratios["time_ratio_high"] / time), parallel_ms=estimate.parallel_ms * time)


def text(ratios: Mapping[str, float]) -> str:
    """Return the changes of energy and time in words, those that are known."""
    changes = {name: [100 * ratios[f"{name}_ratio{end}"] - 100 for end in ENDS] for name in QUANTITIES
               if not math.isnan(ratios[f"{name}_ratio"])}
    return ", ".join(f"{usual:+.0f} % {name} ({low:+.0f} to {high:+.0f})" for name, (usual, low, high) in changes.items())


def slowdown(rates, static, limit, drawn):
    """Return the factor of time under a limit, which grows with what is drawn between ``begin`` and ``full``."""
    begin, full, factor, exponent = rates
    left = np.clip((limit - _LOWER * static) / (1 - _LOWER * static), _LEAST, 1)
    return 1 + np.clip((drawn - begin) / (full - begin), 0, 1) * factor * (1 / left - 1) ** exponent


def power(rates, static, limit, drawn):
    """Return the factor of mean power: the soft minimum of what is drawn and of what the limit leaves, above static power."""
    sharpness, reached = rates

    def mean(share):
        dynamic, left = (np.maximum(value - static, _LEAST_W) for value in (drawn, share))
        return static + (dynamic ** -sharpness + (reached * left) ** -sharpness) ** (-1 / sharpness)
    return mean(limit) / mean(1.0)


def width(time):
    """Return the unit of intervals in log, which grows with the factor of time."""
    return _ALWAYS + np.log(time)
