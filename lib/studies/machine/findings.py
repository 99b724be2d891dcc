"""What the ceilings of a machine say, in words whose numbers are put in, and its key numbers."""

import numpy as np
import pandas as pd

from lib.measure.ceilings import Ceilings
from lib.measure.statistics import VERDICTS
from lib.missing import needs
from lib.studies.machine import unlisted


def _peaks(results: Ceilings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the best compute rows by element type, and the best bandwidth rows by level."""
    compute = results.best["level"] == "compute"
    return results.best[compute].set_index("dtype"), results.best[~compute].set_index("level")


def ridge_point(results: Ceilings) -> float:
    """Return the FLOPs of fp32 that the device computes while it moves a byte beyond the caches; NaN without one of them."""
    compute, memory = _peaks(results)
    return float(compute["peak_gflops"].get("fp32", np.nan) / memory["peak_gbps"].get(results.last_level, np.nan))


@needs("overheads")
def clock_words(overheads: pd.DataFrame) -> str:
    """Say how finely time can be measured here; ``overheads`` is the table of that name."""
    median, p99 = (overheads.set_index("what")[name] for name in ("median_us", "p99_us"))
    text = {"timer_step": lambda: f"The clock moves in steps of **{median['timer_step'] * 1000:.0f} ns**.",
            "timer_call": lambda: f"To read it costs **{median['timer_call'] * 1000:.0f} ns**.",
            "timer_jitter": lambda: f"The same small product, again and again, takes {median['timer_jitter']:.1f} µs at the "
            f"median and {p99['timer_jitter']:.1f} µs at the 99th percentile.",
            "launch": lambda: f"An operator on a single element costs **{median['launch']:.1f} µs**: work smaller than that is "
            "bound by the launch, whatever the ceilings say."}
    return " ".join(say() for what, say in text.items() if what in median)


def learned_words(results: Ceilings) -> str:
    """Say what the device reaches, and what that asks of an operator."""
    (compute, memory), lines = _peaks(results), []
    if len(compute):
        fastest = compute["peak_gflops"].idxmax()
        lines.append(f"The fastest element type is **{fastest}** with {compute['peak_gflops'][fastest]:,.0f} GFLOP/s.")
    if "fp32" in compute.index:
        lines.insert(0, f"fp32 reaches **{compute['peak_gflops']['fp32']:,.0f} GFLOP/s** ({compute['method']['fp32']}).")
    if results.last_level in memory.index:
        lines.append(f"Memory beyond the caches gives **{memory['peak_gbps'][results.last_level]:.0f} GB/s**, the best level "
                     f"{memory['peak_gbps'].max():.0f} GB/s.")
    if ridge_point(results) > 0:
        lines.append(f"An fp32 operator must therefore do about **{ridge_point(results):.1f} FLOPs for each byte** it takes "
                     f"from {results.last_level} before arithmetic, and not memory, bounds it.")
    lines += [results.warning] if results.warning else []
    listed = "\n".join(f"- {line}" for line in lines) or "Nothing to show: no measured ceilings."
    return "\n\n".join(filter(None, (listed, unlisted.words(results))))


def key_numbers(results: Ceilings, exact: bool) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers of a device, name to value, unit and tolerance; ``exact`` for a replay, which must reproduce."""
    (compute, memory), device = _peaks(results), results.table["device"][0]
    launch = results.overheads.set_index("what")["median_us"].get("launch", np.nan)
    return {"ceiling rows": (len(results.table), "rows", 0.0),
            "unusable rows": (int((results.table["verdict"] == VERDICTS[-1]).sum()), "rows", 0.0),
            f"{device} fp32 ceiling": (compute["peak_gflops"].get("fp32", np.nan), "GFLOP/s", None),
            f"{device} memory ceiling": (memory["peak_gbps"].get(results.last_level, np.nan), "GB/s", None),
            f"{device} launch overhead": (launch, "µs", None),
            f"{device} fp32 ridge point": (ridge_point(results), "FLOP/byte", 0.001 if exact else None)}
