"""What the GEMMs of a network take in joules, by the power model of its device."""

import math
from typing import Any

import numpy as np

from lib.predict.networks.composition import Estimate
from lib.predict.power.model import OPS, PowerModel
from lib.predict.scores import OUTSIDE

_NOTHING = {**dict.fromkeys(("energy_j", "energy_low_j", "energy_high_j", "energy_share"), math.nan), "energy_source": None}


def per_image(power: PowerModel | None, estimate: Estimate, batch_size: int) -> dict[str, Any]:
    """Return joules an image of a network's GEMMs, low and high, the share of the predicted time that they are, and the source.

    Power times predicted time, operator by operator; the interval joins the power's and the time's as independent, and adds
    operators up as if they erred together. Without a power model, or without a GEMM, nothing is known: NaN, and no source.
    """
    if power is None:
        return _NOTHING
    operators = estimate.operators
    gemms = operators[operators["op"].isin(OPS) & (operators["pass"] == "forward")]
    if gemms.empty:
        return _NOTHING
    watts = power.predict(gemms.assign(latency_ms=gemms["predicted_ms"]))
    spent_ms = gemms["predicted_ms"] * gemms["calls"]
    wider = np.maximum(watts["high_w"] / watts["power_w"], watts["power_w"] / watts["low_w"])  # one side may end at a limit
    joules, widths = watts["power_w"] * spent_ms / 1e3, np.hypot(np.log(wider), gemms["half"])
    total_ms, outside = (operators["predicted_ms"] * operators["calls"]).sum(), spent_ms[watts["out_of_range"]].sum()
    share = float(outside / spent_ms.sum())
    bounds = {"energy_j": joules, "energy_low_j": joules * np.exp(-widths), "energy_high_j": joules * np.exp(widths)}
    return {**{name: float(values.sum() / batch_size) for name, values in bounds.items()},
            "energy_share": float(spent_ms.sum() / total_ms),
            "energy_source": "modelled" + (f", {share:.0%} out of range" if share > OUTSIDE else "")}
