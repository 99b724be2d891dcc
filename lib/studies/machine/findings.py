"""Numbers of a machine's ceilings, for the sentences of 01_machine, and its key numbers."""

import numpy as np
import pandas as pd

from lib.measure.ceilings import Ceilings
from lib.measure.statistics import VERDICTS
from lib.missing import needs
from lib.report.sentences import Numbers


@needs("overheads")
def clock(overheads: pd.DataFrame) -> Numbers:
    """Return how finely time can be measured; ``overheads`` is the table of that name."""
    rows = overheads.set_index("what").reindex(["timer_step", "timer_call", "timer_jitter", "launch"])
    step_us, call_us, jitter_us, launch_us = rows["median_us"]
    return {"step_ns": step_us * 1e3, "call_ns": call_us * 1e3, "jitter_us": jitter_us,
            "jitter_p99_us": rows["p99_us"]["timer_jitter"], "launch_us": launch_us}


def reached(results: Ceilings) -> Numbers:
    """Return the best rates of a device; ``ridge_point``: of fp32 and the memory beyond the caches, FLOP/byte."""
    is_compute = results.best["level"] == "compute"
    compute, memory = results.best[is_compute].set_index("dtype"), results.best[~is_compute].set_index("level")["peak_gbps"]
    gflops, gbps = compute["peak_gflops"], memory.get(results.last_level, np.nan)
    return {"fp32_gflops": gflops.get("fp32", np.nan), "fp32_method": compute["method"].get("fp32"),
            "fastest": gflops.idxmax() if len(gflops) else None, "fastest_gflops": gflops.max(), "level": results.last_level,
            "gbps": gbps, "best_gbps": memory.max(), "ridge_point": gflops.get("fp32", np.nan) / gbps,
            "warning": results.warning}


def key_numbers(results: Ceilings) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers of a device: name to value, unit and tolerance."""
    rates, device = reached(results), results.table["device"][0]
    launch = results.overheads.set_index("what")["median_us"].get("launch", np.nan)
    return {"ceiling rows": (len(results.table), "rows", 0.0),
            "unusable rows": (int((results.table["verdict"] == VERDICTS[-1]).sum()), "rows", 0.0),
            f"{device} fp32 ceiling": (rates["fp32_gflops"], "GFLOP/s", None),
            f"{device} memory ceiling": (rates["gbps"], "GB/s", None),
            f"{device} launch overhead": (launch, "µs", None),
            f"{device} fp32 ridge point": (rates["ridge_point"], "FLOP/byte", 0.001)}
