"""The tables of the profile study: phases of a step, how a pass settles, runs side by side."""

import pandas as pd

from lib.measure.statistics import VERDICTS, Timing
from lib.measure.training.profiled import Profiled
from lib.measure.training.summary import PHASES_MS, steady, unaccounted

SHOWN = ["workload_id", "arch", "backend", "precision", "batch_size", "data_source", "step_median_ms", "step_low_ms",
         "step_high_ms", "images_per_sec", "verdict"]


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


def energy(run: pd.Series, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the energy of a batch and of an image in each pass that has it: the pipelined one as a whole, then profiled steps.

    ``run`` is its row of ``runs``. Columns: pass, of (what was measured), J and above idle J, each a batch and an image, mean
    and idle W. Of profiled steps they are medians over the full batches that were long enough for a meter's samples.
    """
    names = ["pass", "of", "J/batch", "J/image", "J/image above idle", "mean W", "idle W"]
    table = [("train, pipelined", f"all {run['measured_iters']} batches", run["image_j"] * run["batch_size"], run["image_j"],
              run["image_j"] * (1 - run["idle_w"] / run["power_w"]), run["power_w"], run["idle_w"])]
    for kind, part in steady(rows).groupby("task_type", sort=False):
        seconds = part["step_time_ms"] / 1e3
        above_j = part["energy_j"] - run["idle_w"] * seconds
        table.append((f"{kind}, profiled", f"{part['energy_j'].count()} of {len(part)} batches",
                      *(values.median() for values in (part["energy_j"], part["energy_j"] / part["batch_size"],
                                                       above_j / part["batch_size"], part["energy_j"] / seconds)),
                      run["idle_w"]))
    frame = pd.DataFrame(table, columns=names)
    return frame[frame["J/batch"].notna()].reset_index(drop=True)


def warm_up(rows: pd.DataFrame) -> dict[str, float]:
    """Return how a training pass settles: the first step against the steady median, and the time the warm-up took."""
    train = rows[rows["task_type"] == "train"]
    median = float(steady(train)["step_time_ms"].median())
    first = float(train["step_time_ms"].iloc[0])
    return {"first_ms": first, "steady_ms": median, "ratio": first / median,
            "warmup_s": float(train.loc[train["warmup"], "step_time_ms"].sum() / 1000)}


def metrics(run: Profiled) -> pd.DataFrame:
    """Return loss, accuracy and AUC of each pass of a run."""
    table = pd.DataFrame([{"pass": kind, **values} for kind, values in run.metrics.items()],
                         columns=["pass", "loss", "accuracy", "auc"])
    return table.rename(columns={"auc": "AUC"})


def latest(runs: pd.DataFrame, hardware_id: str) -> pd.DataFrame:
    """Return the newest run of each workload, backend and precision on one machine, unusable ones left out.

    ``attrs["unusable"]`` counts what was left out.
    """
    here = runs[(runs["hardware_id"] == hardware_id) & runs["step_median_ms"].notna()]
    usable = here[here["verdict"] != VERDICTS[-1]].sort_values("timestamp", kind="stable")
    newest = usable.groupby(["workload_id", "backend", "precision"]).tail(1)
    newest = newest.sort_values(["workload_id", "backend", "precision"], ignore_index=True)
    newest.attrs["unusable"] = len(here) - len(usable)
    return newest


def side_by_side(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line a run: its identity, throughput, verdict, and the median of every phase of its training step.

    ``rows`` are the profile rows of those runs.
    """
    train = steady(rows[rows["task_type"] == "train"])
    phases = train.groupby("run_id")[list(PHASES_MS)].median().rename(columns=PHASES_MS)
    return runs[["run_id", *SHOWN]].merge(phases, left_on="run_id", right_index=True, validate="one_to_one")
