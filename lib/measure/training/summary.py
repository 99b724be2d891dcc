"""What the rows of a profiled run say: its steady part, its phases, its warm-up, its verdict, and runs side by side."""

import numpy as np
import pandas as pd

from lib.measure import load
from lib.measure.statistics import VERDICTS, Timing, worst

DRIFT = 0.03  # thirds of a run whose medians differ by more than this are not one population
LEAST_STEPS = 5  # fewer say little of their spread
TWINS = 0.05  # a mean against a median of the same steps, a few seconds apart
REPEAT = 0.03  # two runs of the same configuration
CONFIGURATION = ("workload_id", "dataset", "arch", "backend", "batch_size", "precision", "data_source", "resolution",
                 "channels_last", "grad_accum_steps", "num_workers", "pin_memory", "prefetch_factor", "augment",
                 "deterministic", "cudnn_benchmark", "threads", "hardware_id", "software_id")
PHASES_MS = {"loader_wait_ms": "loader wait", "h2d_ms": "copy to device", "forward_time_ms": "forward",
             "backward_time_ms": "backward", "optimizer_ms": "optimizer"}


SHOWN = ["workload_id", "arch", "backend", "precision", "batch_size", "data_source", "step_median_ms", "step_low_ms",
         "step_high_ms", "images_per_sec", "verdict"]


def steady(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that statistics are made of: full batches, warm-up left out."""
    full = rows.groupby("run_id")["batch_size"].transform("max")
    return rows[~rows["warmup"] & (rows["batch_size"] == full)]


def same_configuration(runs: pd.DataFrame, row: dict) -> pd.DataFrame:
    """Return the stable runs of the very same configuration, machine and software as ``row``."""
    same = np.logical_and.reduce([runs[name] == row[name] for name in CONFIGURATION])
    return runs[same & (runs["verdict"] == VERDICTS[0])]


def judge(step_ms: np.ndarray, seen: load.Load, threads: int, twin_ms: float | None = None,
          earlier_ms: list[float] | None = None) -> tuple[str, str]:
    """Return the verdict on a run and the reason, empty when it is stable.

    Looked at: the spread of its steps (n,); drift between its thirds; ``twin_ms``, the pipelined step, where it must
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
        findings += [_apart(timing.median_ms, twin_ms, TWINS, "the pipelined pass took")] if twin_ms else []
        if earlier_ms:
            usual = float(np.median(earlier_ms))
            findings.append(_apart(timing.median_ms, usual, REPEAT, "earlier stable runs of the same took"))
    findings.append((seen.verdict(threads), f"others took {seen.other_cores:.1f} cores and the host {seen.stolen_cores:.1f}"))
    return worst(*(verdict for verdict, _ in findings)), "; ".join(why for verdict, why in findings if verdict != "stable")


def _apart(median_ms: float, other_ms: float, allowed: float, what: str) -> tuple[str, str]:
    apart = other_ms / median_ms - 1
    return "noisy" if abs(apart) > allowed else "stable", f"{what} {other_ms:.1f} ms, {apart:+.0%}"


def phase_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, for each pass, the median step, its IQR and n, the median of each phase, and what the phases leave over.

    Columns: task_type, n, step_ms, iqr_pct, one a phase (ms), unaccounted_pct (median of |step - sum| / step).
    """
    part, table = steady(rows), []
    names = ["task_type", "n", "step_ms", "iqr_pct", *PHASES_MS.values(), "unaccounted_pct"]
    for kind, group in part.groupby("task_type", sort=False):
        timing = Timing(group["step_time_ms"].to_numpy())
        table.append({"task_type": kind, "n": timing.n, "step_ms": timing.median_ms,
                      "iqr_pct": timing.iqr_ms / timing.median_ms * 100,
                      **{label: group[name].median() for name, label in PHASES_MS.items()},
                      "unaccounted_pct": unaccounted(group) * 100})
    return pd.DataFrame(table, columns=names)


def unaccounted(rows: pd.DataFrame) -> float:
    """Return the median share of a step that its phases do not explain."""
    total = rows[list(PHASES_MS)].sum(axis=1)
    return float(((rows["step_time_ms"] - total).abs() / rows["step_time_ms"]).median())


def warm_up(rows: pd.DataFrame) -> dict[str, float]:
    """Return how a training pass settles: the first step against the steady median, and the time the warm-up took."""
    train = rows[rows["task_type"] == "train"]
    median = float(steady(train)["step_time_ms"].median())
    first = float(train["step_time_ms"].iloc[0])
    return {"first_ms": first, "steady_ms": median, "ratio": first / median,
            "warmup_s": float(train.loc[train["warmup"], "step_time_ms"].sum() / 1000)}


def across(table: pd.DataFrame, rows: pd.DataFrame) -> dict[str, float]:
    """Return what the runs of ``side_by_side`` have in common: the ratios that the report's hypotheses ask for."""
    return {"backward over forward": float((table["backward"] / table["forward"]).median()),
            "largest loader share": float((table["loader wait"] / table["step_median_ms"]).max() * 100),
            "largest unexplained share": max((unaccounted(part) * 100 for _, part in
                                              steady(rows).groupby(["run_id", "task_type"])), default=np.nan),
            "stable runs": float((table["verdict"] == "stable").sum())}


def latest(runs: pd.DataFrame, hardware_id: str) -> pd.DataFrame:
    """Return the newest run of each workload, backend and precision on one machine, unusable ones left out.

    ``attrs["unusable"]`` counts what was left out.
    """
    mine = runs[(runs["hardware_id"] == hardware_id) & runs["step_median_ms"].notna()]
    usable = mine[mine["verdict"] != VERDICTS[-1]].sort_values("timestamp", kind="stable")
    newest = usable.groupby(["workload_id", "backend", "precision"]).tail(1)
    newest = newest.sort_values(["workload_id", "backend", "precision"], ignore_index=True)
    newest.attrs["unusable"] = len(mine) - len(usable)
    return newest


def side_by_side(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line a run: its identity, throughput, verdict, and the median of every phase of its training step.

    ``rows`` are the profile rows of those runs.
    """
    train = steady(rows[rows["task_type"] == "train"])
    phases = train.groupby("run_id")[list(PHASES_MS)].median().rename(columns=PHASES_MS)
    names = ["run_id", "workload_id", "arch", "backend", "precision", "batch_size", "data_source", "step_median_ms",
             "step_low_ms", "step_high_ms", "images_per_sec", "verdict"]
    return runs[names].merge(phases, left_on="run_id", right_index=True, validate="one_to_one")


# --------------------------------------------------------------------------------------- the same in words







_WHY = {True: "; on a CPU, where nothing runs ahead, the two differ only by what disturbed one of them",
        False: "; the difference is what waiting for the device after each step costs"}




# --------------------------------------------------------------------------------------- key numbers

def key_numbers(run: pd.Series, rows: pd.DataFrame, exact: bool) -> dict[str, tuple[float | str, str, float | None]]:
    """Return the key numbers of one run, name to value, unit and tolerance; ``exact`` for a replay, which must reproduce.

    ``run`` is its row of ``runs``, ``rows`` are its rows of ``profile``, none where only the pipelined pass was run.
    """
    name = f"{run['workload_id']}_{run['backend']}_{run['precision']}"
    numbers = {"rows": (len(rows), "rows", 0.0), "warm-up rows": (int(rows["warmup"].sum()), "rows", 0.0),
               "smallest batch": (rows["batch_size"].min() if len(rows) else 0, "samples", 0.0)}
    if len(rows):
        numbers["unexplained share of the step"] = (phase_table(rows)["unaccounted_pct"].max(), "%", 0.001 if exact else None)
    numbers |= {"throughput": (run["images_per_sec"], "images/s", None), "step": (run["step_median_ms"], "ms", None),
                "verdict": (run["verdict"], "", None)}
    return {f"{name} {what}": number for what, number in numbers.items()}


def shared_numbers(table: pd.DataFrame, rows: pd.DataFrame, exact: bool) -> dict[str, tuple[float | str, str, float | None]]:
    """Return the key numbers of the runs of ``side_by_side``; ``rows`` are their rows of ``profile``."""
    shared, tolerance = across(table, rows), 0.001 if exact else None
    units = {"backward over forward": "", "largest loader share": "%", "largest unexplained share": "%"}
    return {name: (shared[name], unit, tolerance) for name, unit in units.items()} | {
        "stable runs": (f"{shared['stable runs']:.0f} of {len(table)}", "", None)}
