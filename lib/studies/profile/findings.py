"""Numbers of profiled runs, for the sentences of 02_profile and 09_finetune, and their key numbers."""

import pandas as pd

from lib.measure.training.summary import PHASES_MS, steady, unaccounted
from lib.missing import MissingError, needs
from lib.report.sentences import Numbers, extremes
from lib.studies.profile.tables import phase_table, warm_up


def run_numbers(run: pd.Series) -> Numbers:
    """Return a row of ``runs`` with the pipelined step, ms, how far the profiled one is above it, and J an image above idle."""
    pipelined_ms = run["elapsed_sec"] / run["measured_iters"] * 1000
    idle_known, metered = bool(run["idle_w"] > 0), bool(run["image_j"] > 0)
    return {**run.to_dict(), "pipelined_ms": pipelined_ms, "over_pipelined": run["step_median_ms"] / pipelined_ms - 1,
            "stable": run["verdict"] == "stable", "profiled": bool(run["step_n"]), "on_cpu": run["backend"] == "cpu",
            "idle_unknown": metered and not idle_known,
            "above_idle_j": run["image_j"] * (1 - run["idle_w"] / run["power_w"]) if idle_known else None}


@needs("profiled training steps")
def phases(table: pd.DataFrame) -> Numbers:
    """Return the two longest phases of a training step, what a perfect loader would gain, the share of an evaluation step.

    ``table``: ``tables.phase_table``.
    """
    steps = table.set_index("task_type")
    if "train" not in steps.index:
        raise MissingError("profiled training steps")
    train = steps.loc["train"]
    shares = (train[list(PHASES_MS.values())].astype(float) / train["step_ms"]).sort_values(ascending=False)
    evaluation_ms = steps["step_ms"].get("eval")
    loading = shares["loader wait"] + shares["copy to device"]
    return {"step_ms": train["step_ms"], "longest": shares.index[0], "longest_share": shares.iloc[0],
            "second": shares.index[1], "second_share": shares.iloc[1], "evaluation_ms": evaluation_ms,
            "evaluation_share": evaluation_ms and evaluation_ms / train["step_ms"],
            "unexplained_pct": table["unaccounted_pct"].max(), "loading_share": loading, "perfect_loader": 1 / (1 - loading),
            "arithmetic_share": shares["forward"] + shares["backward"]}


@needs("profiled training steps")
def settling(rows: pd.DataFrame) -> Numbers:
    """Return how the training pass settles; ``rows`` are its rows of ``profile``."""
    if not (rows["task_type"] == "train").any():
        raise MissingError("profiled training steps")
    return warm_up(rows)


def comparison(table: pd.DataFrame, rows: pd.DataFrame) -> Numbers:
    """Return what runs side by side have in common; ``table``: ``tables.side_by_side``, ``rows``: their ``profile``."""
    shares = table.assign(loader_share=table["loader wait"] / table["step_median_ms"])
    steps = extremes(shares, "step_median_ms", "fastest_", "slowest_")
    return {**steps, **extremes(shares, "loader_share"), "runs": len(table) or None,
            "stable": int((table["verdict"] == "stable").sum()),
            "ratio": table["step_median_ms"].max() / table["step_median_ms"].min(),
            "loader_pct": shares["loader_share"].max() * 100,
            "backward_over_forward": (table["backward"] / table["forward"]).median(),
            "unexplained_pct": pd.Series([unaccounted(part) * 100 for _, part in
                                          steady(rows).groupby(["run_id", "task_type"])], dtype=float).max()}


def key_numbers(run: pd.Series, rows: pd.DataFrame) -> dict[str, tuple[float | str, str, float | None]]:
    """Return the key numbers of one run: name to value, unit and tolerance.

    ``run`` is its row of ``runs``, ``rows`` are its rows of ``profile``, none where only the pipelined pass was run.
    """
    name = f"{run['workload_id']}_{run['backend']}_{run['precision']}"
    numbers = {"rows": (len(rows), "rows", 0.0), "warm-up rows": (int(rows["warmup"].sum()), "rows", 0.0),
               "smallest batch": (rows["batch_size"].min() if len(rows) else 0, "samples", 0.0)}
    if len(rows):
        numbers["unexplained share of the step"] = (phase_table(rows)["unaccounted_pct"].max(), "%", 0.001)
    numbers |= {"throughput": (run["images_per_sec"], "images/s", None), "step": (run["step_median_ms"], "ms", None),
                "verdict": (run["verdict"], "", None)}
    return {f"{name} {what}": number for what, number in numbers.items()}


def shared_numbers(compared: Numbers) -> dict[str, tuple[float | str, str, float | None]]:
    """Return the key numbers of the runs of ``comparison``."""
    return {"backward over forward": (compared["backward_over_forward"], "", 0.001),
            "largest loader share": (compared["loader_pct"], "%", 0.001),
            "largest unexplained share": (compared["unexplained_pct"], "%", 0.001),
            "stable runs": (f"{compared['stable']} of {compared['runs'] or 0}", "", None)}
