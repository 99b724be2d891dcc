"""What ``01_machine`` shows: ceilings, their key numbers, and the entry of a GPU that ``params/devices.yaml`` does not list."""

import re
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml

from lib.config.base import build
from lib.config.definitions import VendorDevice
from lib.errors import InputError, choices
from lib.measure import machine
from lib.measure.ceilings import Ceilings
from lib.measure.statistics import VERDICTS
from lib.missing import needs
from lib.names import MAKERS
from lib.predict import registry
from lib.report.plots import axes, groups
from lib.report.sentences import KeyNumbers, Numbers
from lib.report.style import SERIES

# the vendor's generation by compute capability, or by its first figure
_ARCHITECTURES = {"6": "pascal", "7.0": "volta", "7.5": "turing", "8": "ampere", "8.9": "ada", "9": "hopper", "10": "blackwell",
                  "12": "blackwell"}


@needs("measured ceilings")
def ceilings(best: pd.DataFrame, table: pd.DataFrame):
    """Return two panels: the best GEMM rate of each dtype, and triad bandwidth over the working set."""
    figure, (left, right) = axes(2, 9, 3.4)
    compute = best.query("level == 'compute'").sort_values("peak_gflops")
    bars = left.barh(compute["dtype"], compute["peak_gflops"], color=SERIES[0])
    left.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=9)
    left.set(xscale="log", xlabel="GFLOP/s", title="Compute, by element type")
    left.set_xlim(right=compute["peak_gflops"].max() * 4 if len(compute) else None)
    left.grid(axis="y", visible=False)
    triad = table[table["peak_gbps"].notna()].sort_values("working_set_mb")
    for _, part, options in groups(triad, "level"):
        right.plot(part["working_set_mb"], part["peak_gbps"], **options)
    right.set(xscale="log", ylim=(0, None), xlabel="working set, MB", ylabel="GB/s", title="Bandwidth, by working set")
    if len(triad):
        right.legend()
    return figure


@needs("overheads")
def clock(overheads: pd.DataFrame) -> Numbers:
    """Return how finely time can be measured, by what was timed; ``overheads`` is the table of that name."""
    rows = overheads.set_index("what").reindex(["timer_step", "timer_call", "timer_jitter", "launch"])
    return {"median_us": rows["median_us"], "median_ns": 1e3 * rows["median_us"], "p99_us": rows["p99_us"]}


def reached(results: Ceilings) -> Numbers:
    """Return the best rates of a device; ``ridge_point``: of fp32 and the memory beyond the caches, FLOP/byte."""
    is_compute = results.best["level"] == "compute"
    compute, memory = results.best[is_compute], results.best[~is_compute]
    fp32, gbps = compute.query("dtype == 'fp32'"), memory[memory["level"] == results.last_level]["peak_gbps"].max()
    return {"fp32": fp32, "fp32_gflops": fp32["peak_gflops"].max(), "compute": compute, "memory": memory,
            "results": results, "gbps": gbps, "ridge_point": fp32["peak_gflops"].max() / gbps}


def key_numbers(results: Ceilings) -> KeyNumbers:
    """Return the key numbers of a device: name to value, unit and tolerance."""
    rates, device = reached(results), results.table["device"][0]
    launch = results.overheads.set_index("what")["median_us"].get("launch", np.nan)
    return {"ceiling rows": (len(results.table), "rows", 0.0),
            "unusable rows": ((results.table["verdict"] == VERDICTS[-1]).sum(), "rows", 0.0),
            "cpu name": (results.facts["hardware"]["cpu"], ""),
            f"{device} fp32 ceiling": (rates["fp32_gflops"], "GFLOP/s"),
            f"{device} memory ceiling": (rates["gbps"], "GB/s"),
            f"{device} launch overhead": (launch, "µs"),
            f"{device} fp32 ridge point": (rates["ridge_point"], "FLOP/byte", 0.001)}


# ------------------------------------------------------------------------------------------------- a GPU that is not listed

def unlisted(results: Ceilings) -> Numbers:
    """Return the id and the YAML ``entry`` of an ``unknown`` GPU that was measured here, or the ceilings ``lacking`` for them.

    All are None for a device that is listed or that is not of this machine.
    """
    numbers = dict.fromkeys(("unknown", "lacking", "id", "entry"))
    device = next(iter(results.table["device"]), "cpu")
    if not device.startswith("cuda") or device not in machine.devices():
        return numbers
    name = machine.device_name(torch.device(device))
    try:
        registry.vendor_of(name)
        return numbers
    except InputError as error:
        numbers["unknown"] = str(error).partition("; add it there")[0]
    if missing := {"compute", "device"} - set(results.best["level"]):
        return {**numbers, "lacking": choices(sorted(missing))}
    named = _entry(results, name)
    return {**numbers, "id": next(iter(named)), "entry": yaml.safe_dump(named, sort_keys=False)}


def _entry(results: Ceilings, name: str) -> dict[str, Any]:
    """Return the entry of a GPU by its id, from the ceilings that were measured on it."""
    device = torch.device(str(results.table["device"][0]))
    chip = machine.hardware()["gpus"][device.index or 0]
    capability = str(chip["compute_capability"])
    id_ = "-".join(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in MAKERS)
    best = results.best.set_index("level")
    content = {"name": name, "peak_gbps": _rounded(best.loc[["device"], "peak_gbps"].max()),
               "memory_mb": int(machine.memory_mb(str(device))), "multiprocessors": chip["multiprocessors"],
               "cache_mb": round(machine.levels(device, 1)["L2"] / 1e6, 1),
               "architecture": _ARCHITECTURES.get(capability, _ARCHITECTURES.get(capability.partition(".")[0], "")),
               "peak_gflops": best.loc[["compute"]].set_index("dtype")["peak_gflops"].map(_rounded).to_dict(),
               "source": f"measured by 01_machine, {results.facts['started_utc'][:10]}"}
    build(VendorDevice, {"id": id_, **content}, id_)
    return {id_: content}


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
