"""Summary of a profiled run: its steady steps, the share of time outside its phases, and its verdict."""

import numpy as np
import pandas as pd

from lib.measure import disturbance
from lib.measure.statistics import STABLE, Timing, judged

DRIFT = 0.03  # thirds of a run whose medians differ by more than this are not one population
LEAST_STEPS = 5  # fewer say little of their spread
PIPELINED = 0.05  # a mean against a median of the same steps, a few seconds apart
REPEAT = 0.03  # two runs of the same configuration
CONFIGURATION = ("workload_id", "dataset", "arch", "backend", "batch_size", "precision", "optimizer", "data_source",
                 "resolution", "channels_last", "grad_accum_steps", "num_workers", "pin_memory", "prefetch_factor", "augment",
                 "random_crop", "deterministic", "cudnn_benchmark", "threads", "hardware_id", "software_id")
PHASES_MS = {"loader_wait_ms": "loader wait", "h2d_ms": "copy to device", "forward_time_ms": "forward",
             "backward_time_ms": "backward", "optimizer_ms": "optimizer"}


def steady(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that statistics are made of: full batches, warm-up left out."""
    full = rows.groupby("run_id")["batch_size"].transform("max")
    return rows[~rows["warmup"] & (rows["batch_size"] == full)]


def same_configuration(runs: pd.DataFrame, row: dict) -> pd.DataFrame:
    """Return the stable runs of the very same configuration, machine and software as ``row``."""
    same = np.logical_and.reduce([runs[name] == row[name] for name in CONFIGURATION])
    return runs[same & (runs["verdict"] == STABLE)]


def judge(step_ms: np.ndarray, seen: disturbance.Load, threads: int, pipelined_ms: float | None,
          earlier_ms: list[float]) -> tuple[str, str]:
    """Return the verdict on a run and the reason, empty when it is stable.

    Looked at: the spread of its steps (n,); drift between its thirds; ``pipelined_ms``, the pipelined step, where it must
    equal the profiled one (on a CPU); ``earlier_ms``, the medians of earlier stable runs of the same configuration; and what
    else ran meanwhile. The same machine may run a whole minute slower and look quiet: only the last two show that.
    """
    findings = []
    if 0 < len(step_ms) < LEAST_STEPS:
        findings.append(("noisy", f"only {len(step_ms)} steps"))
    if len(step_ms) >= 3:
        timing = Timing(step_ms)
        thirds = [float(np.median(part)) for part in np.array_split(step_ms, 3)]
        drift = max(thirds) / min(thirds) - 1
        findings += [(timing.verdict, f"IQR is {timing.iqr_ms / timing.median_ms:.0%} of the median"),
                     ("noisy" if drift > DRIFT else "stable", f"the medians of the run's thirds differ by {drift:.0%}")]
        usual_ms = float(np.median(earlier_ms)) if earlier_ms else None
        for expected_ms, allowed, whose in ((pipelined_ms, PIPELINED, "the pipelined pass"),
                                            (usual_ms, REPEAT, "earlier stable runs of the same")):
            if expected_ms:
                apart = expected_ms / timing.median_ms - 1
                findings.append(("noisy" if abs(apart) > allowed else "stable",
                                 f"{whose} took {expected_ms:.1f} ms, {apart:+.0%}"))
    return judged([*findings, (seen.verdict(threads), seen.words())])


def unaccounted(rows: pd.DataFrame) -> float:
    """Return the median share of a step that its phases do not explain."""
    total = rows[list(PHASES_MS)].sum(axis=1)
    return float(((rows["step_time_ms"] - total).abs() / rows["step_time_ms"]).median())
