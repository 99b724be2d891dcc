"""Predict the joules per sample of a network on a GPU: power times predicted time."""

import math
from collections.abc import Mapping

from lib.config.definitions import load_devices
from lib.predict.power import limits

COLUMNS = ("energy_j", "energy_low_j", "energy_high_j")
_SPREAD = 0.45  # log power: holds 90 % of 17,001 published GEMMs on an H200, which the model never saw


def per_sample(device: str, times: Mapping[str, float], roofline: tuple[float, float],
               batch_size: int, energy_ratio: float = 1.0) -> dict[str, float]:
    """Predict the joules per sample of the board; NaN for a device whose maximum power is not stated.

    Args:
        device: a device of params/devices.yaml; others have no stated power.
        times: ``predicted_ms``, ``low_ms`` and ``high_ms`` at the board's default power limit.
        roofline: roofline time over predicted time, and the memory-bound share of the roofline.
        batch_size: samples per board.
        energy_ratio: factor of the energy under a lowered power limit.
    """
    card = load_devices().get(device)
    if card is None or not card.power_w:
        return dict.fromkeys(COLUMNS, math.nan)
    joules = limits.shipped().watts(device, *roofline) * times["predicted_ms"] / 1e3
    joules *= energy_ratio / batch_size
    below, above = (times["predicted_ms"] / times["low_ms"] if times["low_ms"] else math.inf,
                    times["high_ms"] / times["predicted_ms"])
    low = joules * math.exp(-math.hypot(_SPREAD, math.log(below)))
    high = joules * math.exp(math.hypot(_SPREAD, math.log(above)))
    return dict(zip(COLUMNS, (joules, low, high), strict=True))
