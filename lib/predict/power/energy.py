"""What the GEMMs of a network take in joules, by the power model of its device."""

import math
from typing import Any

import numpy as np

from lib.predict.networks.composition import Estimate
from lib.predict.power.features import OPS
from lib.predict.power.model import PowerModel
from lib.predict.scores import OUTSIDE

_NOTHING = {"energy_j": math.nan, "energy_low_j": math.nan, "energy_high_j": math.nan, "energy_share": math.nan,
            "energy_source": None}


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
    spent_ms = (gemms["predicted_ms"] * gemms["calls"]).to_numpy()
    joules = watts["power_w"].to_numpy() * spent_ms / 1e3
    wider = np.maximum(watts["high_w"] / watts["power_w"], watts["power_w"] / watts["low_w"])  # one side may end at a limit
    widths = np.hypot(np.log(wider), gemms["half"]).to_numpy()
    total_ms = float((operators["predicted_ms"] * operators["calls"]).sum())
    outside = float(spent_ms[watts["out_of_range"].to_numpy()].sum() / spent_ms.sum())
    bounds = {"energy_j": joules, "energy_low_j": joules * np.exp(-widths), "energy_high_j": joules * np.exp(widths)}
    return {**{name: float(values.sum() / batch_size) for name, values in bounds.items()},
            "energy_share": float(spent_ms.sum()) / total_ms,
            "energy_source": "modelled" + (f", {outside:.0%} out of range" if outside > OUTSIDE else "")}
