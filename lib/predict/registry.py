"""The models at hand: those that ship with the reference, and those that were calibrated on this machine."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import psutil

from lib import paths
from lib.config.definitions import VendorDevice, load_devices
from lib.errors import InputError, choices
from lib.measure import machine
from lib.predict.networks import composition as estimate
from lib.predict.networks.composition import Composition, Estimate, Work
from lib.predict.operators import transfer
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.transfer import ANY_GPU

SHIPPED = paths.REFERENCE / "models"
_SUFFIX = ".json.gz"
_LAUNCH_SHARE = 0.5


def path_of(device: str, dtype: str, folder: Path | None = None) -> Path:
    """Return where the model of a device and element type lies."""
    return (folder or paths.MODELS) / f"{device}_{dtype}{_SUFFIX}"


def shelved() -> dict[tuple[str, str], Path]:
    """Return every model file by (device, element type); one that was calibrated here stands before a shipped one."""
    found = {}
    for folder in (SHIPPED, paths.MODELS):
        for path in sorted(folder.glob(f"*_*{_SUFFIX}")):
            device, _, dtype = path.name.removesuffix(_SUFFIX).rpartition("_")
            found[device, dtype] = path
    return found


@dataclass(frozen=True)
class Shelved:
    """A device that can be predicted: its model, and what is known of it besides."""

    device: str
    dtype: str
    model: CostModel
    origin: str  # of whom the model was learned, where it was another machine: then every answer is zero-shot
    memory_mb: float
    price_per_hour: float | None = None

    @cached_property
    def networks(self) -> pd.DataFrame | None:
        """Give the networks that were measured whole on this device, or None."""
        if self.model.facts.get("hardware_id", "vendor:").startswith("vendor:"):
            return None
        files = sorted(paths.REFERENCE.glob("*/networks/*.parquet"))
        tables = [pd.read_parquet(path) for path in files]  # committed, so checked by the tests; here that takes a second
        mine = [table[table["hardware_id"] == self.model.facts.get("hardware_id")] for table in tables]
        return pd.concat(mine, ignore_index=True) if mine else None

    @cached_property
    def stable(self) -> pd.DataFrame:
        """Give the operators that were measured on this device in the state that its model answers for, and repeated well."""
        names = [] if self.origin else self.model.facts.get("sweeps", [])
        files = [path for name in names if (path := paths.REFERENCE / name / "sweep.parquet").is_file()]
        tables = [table[(table["status"] == "ok") & (table["verdict"] == "stable")] for table in map(pd.read_parquet, files)]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["flops", "bytes", "latency_ms"])

    def known(self, item: Work | None = None) -> Mapping[tuple, float]:
        """Return the measured times by ``Asked.key``; with ``item`` of those alone that may be among its operators."""
        table = self.stable
        if item is not None:
            table = table[table["flops"].isin(item.table["flops"]) & table["bytes"].isin(item.table["bytes"])]
        return estimate.lookup(table)

    def composition(self, mode: str, memory: str = "default") -> Composition:
        """Return what a whole adds to its operators; where no network was measured whole, nothing, with their interval."""
        learned = self.model.compositions.get(f"{mode} {memory}")
        if learned:
            return Composition(**learned)
        return Composition({"sum_ms": 1.0, "moved_ms": 1.0, "modules": 0.0, "fresh_mb": 0.0}, math.nan, 0)

    def estimate(self, item: Work, memory: str = "default") -> Estimate:
        """Predict a pass or step on this device; on a CPU ``memory`` says whether the process keeps what it frees."""
        return estimate.estimate(item, self.model, self.composition(item.mode, memory), self.known(item))

    def _ideal_ms(self, item: Work) -> tuple[np.ndarray, np.ndarray]:
        """Return how long each operator computes and moves at the ceilings."""
        return ((item.table["flops"] / self.model.facts["peak_gflops"] / 1e6).to_numpy(),
                (item.table["bytes"] / self.model.facts["peak_gbps"] / 1e6).to_numpy())

    def roof_ms(self, item: Work) -> float:
        """Return how long the operators take at their roofs, one after another."""
        return float((np.maximum(*self._ideal_ms(item)) * item.table["calls"].to_numpy()).sum())

    def launches_ms(self, item: Work) -> float:
        """Return how long launching every operator takes."""
        return float(item.table["calls"].sum() * self.model.facts["launch_ms"])

    def bound(self, item: Work, said: Estimate) -> tuple[str, float]:
        """Return what bounds most of the time (compute, memory or launch), and how many times the roof is faster."""
        compute, moving = self._ideal_ms(item)
        roof_ms = self.roof_ms(item)
        cost = (said.operators["predicted_ms"] * said.operators["calls"]).to_numpy()
        launched = cost[(np.maximum(compute, moving) < 0.1 * said.operators["predicted_ms"].to_numpy())
                        & (said.operators["predicted_ms"].to_numpy() < 10 * self.model.facts.get("launch_ms", 0.0))].sum()
        if launched > _LAUNCH_SHARE * cost.sum():
            return "launch", said.predicted_ms / roof_ms
        return ("compute" if cost[compute >= moving].sum() >= cost[compute < moving].sum() else "memory"), \
            said.predicted_ms / roof_ms


def shipped_cpu(dtype: str) -> CostModel:
    """Return the CPU model that ships with the reference; InputError where there is none of that element type."""
    found = [path for (device, kind), path in shelved().items() if device.startswith("cpu-") and kind == dtype
             and path.parent == SHIPPED]
    if not found:
        raise InputError(f"no {dtype} model of a CPU ships in {SHIPPED}; there are: {choices(sorted(shelved()))}")
    return CostModel.load(found[0])


def vendor_of(name: str) -> str:
    """Return the id in params/devices.yaml of a device by the name that its driver gives; InputError lists the names."""
    known = {device.name: device.id for device in load_devices().values()}
    found = next((id_ for stated, id_ in known.items() if stated in name or name in stated), None)
    if not found:
        raise InputError(f"params/devices.yaml has no device named {name!r}, add it there; it has: {choices(known)}")
    return found


def _own_cpu(dtype: str, held: Mapping[tuple[str, str], Path]) -> Shelved | None:
    """Return the model of this machine's CPU: its own, or else the nearest reference one, which is then zero-shot."""
    memory_mb = psutil.virtual_memory().total / 1e6
    here = held.get((f"cpu-{machine.name()}", dtype))
    if here:
        return Shelved("cpu", dtype, CostModel.load(here), "", memory_mb)
    others = [path for (device, kind), path in held.items() if device.startswith("cpu-") and kind == dtype]
    return Shelved("cpu", dtype, model := CostModel.load(others[0]), model.device, memory_mb) if others else None


def _gpu(vendor: VendorDevice, dtype: str, held: Mapping[tuple[str, str], Path],
         load: Callable[[Path], CostModel]) -> Shelved | None:
    """Return a GPU with its model, completed from others; None for an element type without a rate, or without a donor."""
    if dtype not in vendor.peak_gflops or not vendor.multiprocessors:
        return None
    model = transfer.gpu_model(vendor, dtype, held, load)
    return Shelved(vendor.id, dtype, model, "", vendor.memory_mb, vendor.price_per_hour) if model else None


def for_devices(wanted: Sequence[str], dtype: str) -> list[Shelved]:
    """Return the devices that can be predicted for an element type: those named, or all that have a model of any type.

    Raises InputError for a device that has none, listing those that do and how to calibrate.
    """
    held, vendors, load = shelved(), load_devices(), cache(CostModel.load)  # a donor serves several
    usual = ["cpu", *sorted({device for device, _ in held if device in vendors})]
    found = []
    for device in wanted or usual:
        gpu = vendors.get(device)
        one = _own_cpu(dtype, held) if device == "cpu" else _gpu(gpu, dtype, held, load) if gpu else None
        if one:
            found.append(one)
        elif wanted:
            raise InputError(f"no {dtype} model of a device {device!r}; there are models of: {choices(usual)}; any GPU of "
                             f"params/devices.yaml is predicted zero-shot where {ANY_GPU} has its element type; for a machine "
                             "of your own, run there: python -m lib calibrate")
    if not found:
        raise InputError(f"no {dtype} models in {SHIPPED} or {paths.MODELS}; run: python -m lib calibrate")
    return found
