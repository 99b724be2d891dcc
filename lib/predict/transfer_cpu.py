"""Models for a CPU that nobody measured: the nearest reference CPU's, scaled by ceilings measured here."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import geometric_mean
from typing import Any

import pandas as pd
import torch

from lib import locks, paths
from lib.config.notebooks import MachineParams
from lib.measure import ceilings, machine
from lib.measure.statistics import VERDICTS
from lib.predict.analytic.scaling import Scaling
from lib.predict.operators.cost_model import CostModel

CPU = "cpu-"  # the device of a CPU's model, before the machine's name
_CEILINGS_S = 8.0
_SCALAR = ("launch", "timer_call")
_PAGE_MB = 4096 / 1e6
DOUBTFUL = "doubtful_ceilings"  # fact of a model left unscaled because the ceilings were measured on a busy machine
CALIBRATED = "calibrated_from"  # fact of a calibrated model


@dataclass(frozen=True)
class Host:
    """A machine's CPU as measured: fp32 ceilings and the cost of first-touch page faults (None: unknown).

    ``peak_gflops`` is the faster of convolutions and GEMMs (``gemm_gflops``), ``gbps_by_mb`` the bandwidth by working set in
    MB, ``core_us`` the scalar time of one core. ``doubtful``: measured on a busy machine only, perhaps too low; scales nothing.
    """

    hardware_id: str
    threads: int
    peak_gflops: float
    peak_gbps: float
    first_touch_ms_per_mb: float | None
    doubtful: bool = False
    gemm_gflops: float | None = None
    core_us: float | None = None
    gbps_by_mb: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Host":
        """Read the CPU of a model from its facts."""
        return cls(**{name: facts[name] for name in cls.__dataclass_fields__ if name in facts})


def identity() -> dict[str, Any]:
    """Return what identifies this machine's CPU: its hardware id and torch's thread count."""
    return {"hardware_id": machine.ids()["hardware_id"], "threads": torch.get_num_threads()}


def host() -> Host | None:
    """Return the best ceilings measured here at torch's thread count, on a quiet machine if there are any; None without any."""
    rows, overheads = ceilings.of_machine(paths.CEILINGS, ["cpu"], **identity(), quiet=True)
    computing, moving = rows[(rows["level"] == "compute") & (rows["dtype"] == "fp32")], rows[rows["level"] == "RAM"]
    if not (len(computing) and len(moving)):
        return None
    doubtful = any((part["verdict"] == VERDICTS[-1]).all() for part in (computing, moving))
    return Host(**identity(), peak_gflops=float(computing["peak_gflops"].max()), peak_gbps=float(moving["peak_gbps"].max()),
                doubtful=doubtful, **rates(rows[rows["verdict"] != VERDICTS[-1]], overheads))


def rates(rows: pd.DataFrame, overheads: pd.DataFrame) -> dict[str, Any]:
    """Return the fields of a ``Host`` besides its peaks from rows of ceilings and overheads; None or empty if unknown.

    ``first_touch_ms_per_mb`` is the least ms per MB. ``core_us`` is the geometric mean of launch and clock reading.
    """
    gemms = rows[(rows["dtype"] == "fp32") & rows["method"].str.startswith("torch.mm")]["peak_gflops"]
    moving = rows[rows["peak_gbps"].notna()]
    by_mb = moving.groupby(moving["working_set_mb"].map("{:.3g}".format))["peak_gbps"].max()
    best_us = overheads[overheads["median_us"] > 0].groupby("what")["median_us"].min().to_dict()
    touch_us, core_us = best_us.get("first_touch"), [best_us[what] for what in _SCALAR if what in best_us]
    return {"first_touch_ms_per_mb": touch_us and touch_us / 1e3 / _PAGE_MB, "gbps_by_mb": by_mb.to_dict(),
            "gemm_gflops": float(gemms.max()) if len(gemms) else None,
            "core_us": geometric_mean(core_us) if len(core_us) == len(_SCALAR) else None}


def measure_ceilings(wait_s: float = locks.PATIENCE_S) -> Host | None:
    """Measure this CPU's ceilings as 01_machine does, in about ten seconds, and keep them.

    Raises HeldError if another measurement runs for longer than ``wait_s``.
    """
    p = MachineParams(source="measure", device="cpu", budget_s=_CEILINGS_S, gemm_max=0, triad_max_mb=0, threads=0)
    ceilings.measure_ceilings(p, wait_s)
    return host()


def scaling(model: CostModel, here: Host, of: str = "peak_gflops") -> Scaling:
    """Return the scaling from the machine of a CPU's model to this one; ``of`` names the compute ceiling.

    Memory scales by the geometric mean over working sets measured on both machines, because tensors lie in caches and in RAM.
    The rest scales with thread count and core speed, if both machines measured it.
    """
    there = model.facts
    by_mb = there.get("gbps_by_mb") or {}
    both = by_mb.keys() & here.gbps_by_mb
    gbps, gbps_here = (geometric_mean(rates[size] for size in both) if both else peak
                       for rates, peak in ((by_mb, there["peak_gbps"]), (here.gbps_by_mb, here.peak_gbps)))
    core = there["core_us"] / here.core_us if there.get("core_us") and here.core_us else 1.0
    cores = here.threads / (there.get("threads") or here.threads)
    return Scaling(getattr(here, of) / there[of], gbps_here / gbps, core * cores, there[of], gbps)


def scaled(model: CostModel, here: Host) -> CostModel:
    """Return another CPU's model scaled to this machine by its ceilings; GEMMs scale by the GEMM ceiling."""
    facts, whole = asdict(here), scaling(model, here)
    both = here.gemm_gflops and model.facts.get("gemm_gflops")
    of_gemms = scaling(model, here, "gemm_gflops") if both else whole
    return model.scaled(whole, of_gemms, **{DOUBTFUL: facts.pop("doubtful")}, **facts)


def transferred(models: Sequence[CostModel], here: Host | None) -> list[CostModel]:
    """Return other CPUs' models for this machine, nearest ceilings first; unscaled without usable ceilings here."""
    if here is None or here.doubtful:
        return [model.borrowed(**identity(), **{DOUBTFUL: bool(here)}) for model in models]
    return sorted((scaled(model, here) for model in models), key=lambda model: model.scaling.distance)

