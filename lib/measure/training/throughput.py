"""Throughput of runs: tables of repeats of one configuration, one CSV and Markdown per environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lib import files, paths, store
from lib.config.notebooks import ProfileParams
from lib.measure.statistics import UNUSABLE
from lib.tables import columns

KEYS = ["workload_id", "env", "arch", "backend", "batch_size", "precision", "settings"]
_SETTINGS = ("optimizer", "resolution", "channels_last", "grad_accum_steps", "num_workers",
             "pin_memory", "prefetch_factor", "augment", "random_crop", "deterministic",
             "cudnn_benchmark")
_SHOWN = ["arch", "backend", "batch_size", "precision", "settings", "n", "images_per_sec", "std",
          "low", "high", "cpu_percent"]


def environment(runs: pd.DataFrame) -> pd.Series:
    """Return the environment of each run: its label before the slash, else its hardware id."""
    named = runs["label"].str.contains("/", regex=False)
    return runs["label"].str.split("/").str[0].where(named, runs["hardware_id"])


def newest(runs: pd.DataFrame, by: list[str]) -> tuple[pd.DataFrame, int]:
    """Return the newest usable run of each group, and how many of the runs are unusable."""
    usable = runs[runs["verdict"] != UNUSABLE].sort_values("timestamp", kind="stable")
    return usable.groupby(by).tail(1), len(runs) - len(usable)


def _settings(run: Mapping[str, Any]) -> str:
    """Return the source of the images of a run, and its switches that differ from the defaults."""
    usual = ProfileParams()
    changed = [f"{name}={run[name]}" for name in _SETTINGS if run[name] != getattr(usual, name)]
    return " ".join([str(run["data_source"]), *changed])


def throughput(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table ``matrix``: images/s of runs of one configuration, machine and software.

    Unusable runs are left out and counted in ``attrs["unusable"]``.
    """
    usable = runs[runs["verdict"] != UNUSABLE]
    settings = [_settings(run) for run in usable.to_dict("records")]
    usable = usable.assign(env=environment(usable), settings=pd.Series(settings, usable.index, str))
    groups = usable.groupby([*KEYS, "threads", "hardware_id", "software_id"])
    rates = groups["images_per_sec"]
    table = rates.agg(n="size", images_per_sec="mean", std="std", median="median", low="min",
                      high="max").assign(cpu_percent=groups["cpu_percent"].median())
    table = table.reset_index()[columns("matrix")]
    table.attrs["unusable"] = len(runs) - len(usable)
    return table


def path_of(environment: str) -> Path:
    """Return the path of the throughput table of an environment."""
    return paths.MATRIX / f"throughput_{environment}.csv"


def write(runs: pd.DataFrame) -> list[Path]:
    """Write a CSV and a Markdown table per environment of ``runs``; return their paths."""
    written = []
    for env, part in throughput(runs).groupby("env"):
        path = store.write(part, path_of(env), "matrix", derived=True)
        text = f"# Throughput of {env}, images/s\n\n{markdown(part[_SHOWN])}\n"
        written += [path, files.replace(path.with_suffix(".md"), text.encode())]
    return written


def markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown, numbers with three significant digits or whole."""
    def text(value: Any) -> str:
        if not isinstance(value, str) and pd.isna(value):
            return "–"
        if isinstance(value, float):
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return str(value).replace("\\", "\\\\").replace("|", "\\|")

    rows = [list(map(text, table)), ["---"] * table.shape[1]]
    rows += [list(map(text, row)) for row in table.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
