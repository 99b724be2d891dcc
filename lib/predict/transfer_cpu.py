"""The model of a CPU that has none of its own: the nearest reference CPU's, scaled by ceilings that were measured here."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch

from lib import locks
from lib.config.notebooks import MachineParams
from lib.measure import ceilings, machine
from lib.measure.statistics import VERDICTS
from lib.predict.analytic.scaling import Scaling
from lib.predict.operators.cost_model import CostModel

CPU = "cpu-"  # the device of a CPU's model, before the machine's name
_LOOK_S = 8.0
_PAGE_MB = 4096 / 1e6
DOUBTFUL = "doubtful_ceilings"  # the fact of one that was scaled by ceilings of a busy machine
CALIBRATED = "calibrated_from"  # the fact of a model that is no reference


@dataclass(frozen=True)
class Host:
    """What was measured of this machine's CPU: its ceilings for fp32, and the first touch of fresh memory (None: unknown).

    ``doubtful``: on a busy machine alone, so that they are perhaps too low.
    """

    hardware_id: str
    peak_gflops: float
    peak_gbps: float
    fresh_ms_per_mb: float | None
    doubtful: bool = False


def host() -> Host | None:
    """Return the best ceilings that this machine showed with as many threads as torch uses now; None without any."""
    own = machine.ids()["hardware_id"]
    several = ceilings.saved("cpu", {"hardware_id": own, "threads": torch.get_num_threads()})
    if not several:
        return None
    rows = ceilings.counted(pd.concat([one.table for one in several], ignore_index=True))
    computing, moving = rows[(rows["level"] == "compute") & (rows["dtype"] == "fp32")], rows[rows["level"] == "RAM"]
    if not (len(computing) and len(moving)):
        return None
    overheads = pd.concat([one.overheads for one in several])
    touch_us = overheads.loc[(overheads["what"] == "first_touch") & (overheads["median_us"] > 0), "median_us"].min()
    doubtful = any((part["verdict"] == VERDICTS[-1]).all() for part in (computing, moving))
    return Host(own, float(computing["peak_gflops"].max()), float(moving["peak_gbps"].max()),
                float(touch_us) / 1e3 / _PAGE_MB if touch_us > 0 else None, doubtful)


def look(wait_s: float = locks.PATIENCE_S) -> Host | None:
    """Measure this CPU's ceilings as 01_machine does, in some ten seconds, and keep them.

    HeldError where another measurement runs for longer than ``wait_s``.
    """
    ceilings.measure_ceilings(MachineParams(source="measure", device="cpu", budget_s=_LOOK_S), wait_s)
    return host()


def scaling(model: CostModel, here: Host) -> Scaling:
    """Return the scaling from the machine of a CPU's model to this one."""
    return Scaling.between((model.facts["peak_gflops"], model.facts["peak_gbps"]), (here.peak_gflops, here.peak_gbps))


def scaled(model: CostModel, here: Host) -> CostModel:
    """Return a reference CPU's model for this machine: every answer is another device's, scaled by its roof."""
    facts = {"hardware_id": here.hardware_id, "peak_gflops": here.peak_gflops, "peak_gbps": here.peak_gbps,
             DOUBTFUL: here.doubtful}
    return model.scaled(scaling(model, here), facts, here.fresh_ms_per_mb)


def nearest(models: Sequence[CostModel], here: Host | None) -> CostModel:
    """Return the model of the machine with the nearest ceilings, scaled; without ceilings of this one the first, as it is."""
    if here is None:
        return models[0]
    return scaled(min(models, key=lambda model: scaling(model, here).distance), here)
