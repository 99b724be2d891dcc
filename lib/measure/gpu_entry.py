"""The entry of ``params/devices.yaml`` for a GPU that the file lacks, from its measured ceilings."""

import re
from typing import Any

import torch

from lib.config.base import build
from lib.config.definitions import VendorDevice, find_device, load_devices
from lib.errors import choices
from lib.measure import machine
from lib.measure.ceilings import Ceilings
from lib.names import MAKERS, did_you_mean

# NVIDIA's generation by compute capability, or by its major version
_ARCHITECTURES = {"6": "pascal", "7.0": "volta", "7.5": "turing", "8": "ampere", "8.9": "ada",
                  "9": "hopper", "10": "blackwell", "12": "blackwell"}


def unlisted(results: Ceilings) -> tuple[str, dict[str, Any]]:
    """Return a text that ``params/devices.yaml`` lacks the measured GPU, and the entry to add.

    Both are empty for a listed device and one of another machine. The entry is also empty if a
    ceiling that it needs was not measured; the text then says which.
    """
    device = next(iter(results.table["device"]), "cpu")
    is_here = results.facts["hardware_id"] == machine.ids()["hardware_id"]
    if not device.startswith("cuda") or device not in machine.devices() or not is_here:
        return "", {}
    name = machine.device_name(torch.device(device))
    if find_device(name):
        return "", {}
    near = did_you_mean(name, [listed.name for listed in load_devices().values()])
    text = f"params/devices.yaml does not list {name!r}{near}"
    missing = {"compute", "device"} - set(results.best["level"])
    if missing:
        return (f"{text}; this run has no ceiling of level {choices(sorted(missing))}: "
                "give a larger budget_s"), {}
    chip, best = machine.own_hardware(device), results.best.set_index("level")
    capability = str(chip["compute_capability"])
    architecture = _ARCHITECTURES.get(capability.partition(".")[0], "")
    rates = best.loc[["compute"]].set_index("dtype")["peak_gflops"]
    words = re.findall(r"[a-z0-9]+", name.lower())
    id_ = "-".join(word for word in words if word not in MAKERS)
    entry = {"name": name, "peak_gbps": _rounded(best.loc[["device"], "peak_gbps"].max()),
             "memory_mb": int(machine.memory_mb(device)), "multiprocessors": chip["multiprocessors"],
             "cache_mb": round(machine.levels(torch.device(device), 1)["L2"] / 1e6, 1),
             "architecture": _ARCHITECTURES.get(capability, architecture),
             "peak_gflops": rates.map(_rounded).to_dict(),
             "source": f"measured by 01_machine, {results.facts['started_utc'][:10]}"}
    build(VendorDevice, {"id": id_, **entry}, id_)  # raises for an entry that the file refuses
    return text, {id_: entry}


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
