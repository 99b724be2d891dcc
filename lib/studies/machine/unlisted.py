"""A GPU that ``params/devices.yaml`` does not list: the entry that makes it known, from its measured ceilings."""

import re
from typing import Any

import torch
import yaml

from lib.config.base import build
from lib.config.definitions import VendorDevice
from lib.errors import InputError, choices
from lib.measure import machine
from lib.measure.ceilings import Ceilings
from lib.predict import registry
from lib.report.sentences import Numbers

# the vendor's generation by compute capability, or by its first figure
_ARCHITECTURES = {"6": "pascal", "7.0": "volta", "7.5": "turing", "8": "ampere", "8.9": "ada", "9": "hopper", "10": "blackwell",
                  "12": "blackwell"}
_DIGITS = 3  # of a measured rate


def numbers(results: Ceilings) -> Numbers:
    """Return the id and the YAML ``entry`` of an ``unknown`` GPU that was measured here, or the ceilings ``lacking`` for them.

    All are None for a device that is listed or that is not of this machine.
    """
    nothing = dict.fromkeys(("unknown", "lacking", "id", "entry"))
    device = next(iter(results.table["device"]), "cpu")
    if not device.startswith("cuda") or device not in machine.devices():
        return nothing
    name = machine.device_name(torch.device(device))
    try:
        registry.vendor_of(name)
        return nothing
    except InputError as error:
        unknown = {**nothing, "unknown": str(error).partition(", add it there")[0]}
    if missing := [level for level in ("compute", "device") if _best(results, level).empty]:
        return {**unknown, "lacking": choices(missing)}
    named = entry(results, name)
    return {**unknown, "id": next(iter(named)), "entry": yaml.safe_dump(named, sort_keys=False)}


def _best(results: Ceilings, level: str):
    return results.best[results.best["level"] == level]


def entry(results: Ceilings, name: str) -> dict[str, Any]:
    """Return the entry of a GPU by its id, from the ceilings that were measured on it."""
    device = torch.device(str(results.table["device"][0]))
    chip = machine.hardware()["gpus"][device.index or 0]
    capability = str(chip["compute_capability"])
    id_ = "-".join(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in registry.MAKERS)
    rates = _best(results, "compute").set_index("dtype")["peak_gflops"]
    content = {"name": name, "peak_gbps": _rounded(_best(results, "device")["peak_gbps"].max()),
               "memory_mb": int(machine.memory_mb(str(device))), "multiprocessors": chip["multiprocessors"],
               "cache_mb": round(machine.levels(device, 1)["L2"] / 1e6, 1),
               "architecture": _ARCHITECTURES.get(capability, _ARCHITECTURES.get(capability.partition(".")[0], "")),
               "peak_gflops": {dtype: _rounded(rate) for dtype, rate in rates.items()},
               "source": f"measured by 01_machine, {results.facts['started_utc'][:10]}"}
    build(VendorDevice, {"id": id_, **content}, id_)
    return {id_: content}


def _rounded(rate: float) -> float:
    return float(f"{rate:.{_DIGITS}g}")
