"""The model of a CPU that has none of its own: the nearest reference CPU's, scaled by ceilings that were measured here."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lib.config.notebooks import MachineParams
from lib.measure import ceilings, machine
from lib.predict.operators.cost_model import CostModel
from lib.predict.scaling import Scaling

CPU = "cpu-"  # the device of a CPU's model, before the machine's name
_LOOK_S = 8.0
_PAGE_MB = 4096 / 1e6
CALIBRATED = "calibrated_from"  # the fact of a model that is no reference


@dataclass(frozen=True)
class Host:
    """What was measured of this machine's CPU: its ceilings for fp32, and the first touch of fresh memory (None: unknown)."""

    hardware_id: str
    peak_gflops: float
    peak_gbps: float
    fresh_ms_per_mb: float | None


def host() -> Host | None:
    """Return this machine's newest ceilings for as many threads as torch uses now; None where none were measured."""
    own = machine.ids()["hardware_id"]
    measured = ceilings.saved("cpu", {"hardware_id": own, "threads": torch.get_num_threads()})
    if not measured:
        return None
    best = measured.best
    peaks = best.loc[(best["level"] == "compute") & (best["dtype"] == "fp32"), "peak_gflops"]
    rates = best.loc[best["level"] == measured.last_level, "peak_gbps"]
    if not (len(peaks) and len(rates)):
        return None
    touch_us = measured.overheads.set_index("what")["median_us"].get("first_touch")
    return Host(own, float(peaks.max()), float(rates.max()), touch_us / 1e3 / _PAGE_MB if touch_us else None)


def look() -> Host | None:
    """Measure this CPU's ceilings as 01_machine does, in some ten seconds, and keep them."""
    ceilings.measure_ceilings(MachineParams(source="measure", device="cpu", budget_s=_LOOK_S))
    return host()


def scaling(model: CostModel, here: Host) -> Scaling:
    """Return the scaling from the machine of a CPU's model to this one."""
    return Scaling.between((model.facts["peak_gflops"], model.facts["peak_gbps"]), (here.peak_gflops, here.peak_gbps))


def scaled(model: CostModel, here: Host) -> CostModel:
    """Return a reference CPU's model for this machine: every answer is another device's, scaled by its roof."""
    return model.scaled(scaling(model, here), {"hardware_id": here.hardware_id, "peak_gflops": here.peak_gflops,
                                               "peak_gbps": here.peak_gbps}, here.fresh_ms_per_mb)


def nearest(models: Sequence[CostModel], here: Host | None) -> CostModel:
    """Return the model of the machine with the nearest ceilings, scaled; without ceilings of this one the first, as it is."""
    if here is None:
        return models[0]
    return scaled(min(models, key=lambda model: scaling(model, here).distance), here)
