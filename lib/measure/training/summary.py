"""Summary of a profiled run: its steady steps, the time outside its phases, and its verdict."""

import numpy as np
import pandas as pd

from lib.measure import disturbance
from lib.measure.statistics import NOISY, Timing, judged

DRIFT = 0.03  # between the medians of the thirds of a run
LEAST_STEPS = 5
PIPELINED = 0.05  # between the pipelined and the profiled step, where they must be equal


def steady(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that statistics are made of: full batches, warm-up left out."""
    full = rows.groupby("run_id")["batch_size"].transform("max")
    return rows[~rows["warmup"] & (rows["batch_size"] == full)]


def judge(step_ms: np.ndarray, seen: disturbance.Load, threads: int,
          pipelined_ms: float | None) -> tuple[str, str]:
    """Return the verdict on a run and the reason, empty when it is stable.

    Args:
        step_ms: the steady training steps (n,); their spread and drift count.
        seen: the load while they ran.
        threads: those of the run.
        pipelined_ms: the unsynchronised step, where it must equal the profiled one (on a CPU).
    """
    findings = [(seen.verdict(threads), seen.words())]
    if 0 < len(step_ms) < LEAST_STEPS:
        findings.append((NOISY, f"only {len(step_ms)} steps"))
    if len(step_ms) >= 3:
        timing = Timing(step_ms)
        spread = timing.iqr_ms / timing.median_ms
        findings.insert(0, (timing.verdict, f"IQR is {spread:.0%} of the median"))
        thirds = [float(np.median(part)) for part in np.array_split(step_ms, 3)]
        drift = max(thirds) / min(thirds) - 1
        if drift > DRIFT:
            findings.append((NOISY, f"the medians of the run's thirds differ by {drift:.0%}"))
        apart = pipelined_ms / timing.median_ms - 1 if pipelined_ms else 0.0
        if abs(apart) > PIPELINED:
            findings.append((NOISY, f"the pipelined pass took {pipelined_ms:.1f} ms, {apart:+.0%}"))
    return judged(findings)
