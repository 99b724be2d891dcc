"""The entry in ``params/devices.yaml`` for a GPU of this machine that the file does not list, from its measured ceilings."""

import re
from typing import Any

import torch

from lib.config.base import build
from lib.config.definitions import VendorDevice, find_device, load_devices
from lib.errors import choices
from lib.measure import machine
from lib.measure.ceilings import Ceilings
from lib.names import MAKERS, did_you_mean

# the vendor's generation by CUDA compute capability, or by its major version
_ARCHITECTURES = {"6": "pascal", "7.0": "volta", "7.5": "turing", "8": "ampere", "8.9": "ada", "9": "hopper",
                  "10": "blackwell", "12": "blackwell"}


def unlisted(results: Ceilings) -> tuple[str, dict[str, Any]]:
    """Say that ``params/devices.yaml`` does not list the measured GPU, and give the entry to add: its id to its content.

    The text is empty for a listed device and for a device of another machine. The entry is empty where the text is, and
    where a ceiling that it needs was not measured: the text then says which.
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
        return f"{text}; this run has no ceiling of level {choices(sorted(missing))}: give a larger budget_s", {}
    return text, _entry(results, torch.device(device), name)


def _entry(results: Ceilings, device: torch.device, name: str) -> dict[str, Any]:
    chip = machine.hardware()["gpus"][device.index or 0]
    capability = str(chip["compute_capability"])
    major = capability.partition(".")[0]
    id_ = "-".join(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in MAKERS)
    best = results.best.set_index("level")
    rates = best.loc[["compute"]].set_index("dtype")["peak_gflops"]
    content = {"name": name, "peak_gbps": _rounded(best.loc[["device"], "peak_gbps"].max()),
               "memory_mb": int(machine.memory_mb(str(device))), "multiprocessors": chip["multiprocessors"],
               "cache_mb": round(machine.levels(device, 1)["L2"] / 1e6, 1),
               "architecture": _ARCHITECTURES.get(capability, _ARCHITECTURES.get(major, "")),
               "peak_gflops": rates.map(_rounded).to_dict(),
               "source": f"measured by 01_machine, {results.facts['started_utc'][:10]}"}
    build(VendorDevice, {"id": id_, **content}, id_)  # raises for an entry that the file could not hold
    return {id_: content}


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
