"""What a run has written into its folder: its log, its history, its curves and its files."""

import io
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from lib import csv_files, paths
from lib.dashboard import tables as db
from lib.finetune.reports import HISTORY, LOG
from lib.finetune.tracking import RUN_ID

MAX_FILES, MAX_POINTS, TAIL_BYTES = 500, 300, 64_000
WIDTH, HEIGHT = 100.0, 40.0  # of a chart
GROUPS = {".pt": "Checkpoints", ".png": "Figures", ".ipynb": "Notebooks"}
OTHERS = "Other files"


def folder_of(run: db.Run) -> Path:
    """Return the folder of a run."""
    return paths.DATA / run.folder


def log_lines(run: db.Run, after: int = 0, limit: int = 1000) -> list[str]:
    """Return up to ``limit`` lines of the log after the first ``after`` ones."""
    try:
        with (folder_of(run) / LOG).open(encoding="utf-8", errors="replace", newline="\n") as file:
            return [line.removesuffix("\n") for line in islice(file, after, after + limit)]
    except FileNotFoundError:
        return []


def log_tail(run: db.Run) -> str:
    """Return the end of the log."""
    try:
        with (folder_of(run) / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, io.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _history(path: Path) -> tuple[pd.DataFrame, str]:
    """Return step, epoch, name and value of what a run has reported, and why that is unreadable."""
    types = {"step": int, "epoch": int, "name": str, "value": float}
    if path.exists() and path.stat().st_size:
        try:
            return csv_files.frame(path, torn=True, usecols=list(types), dtype=types), ""
        except ValueError as error:  # InputError, or pandas' for what is missing or no number
            return pd.DataFrame(columns=list(types)), f"{path.name} is damaged: {error}"
    return pd.DataFrame(columns=list(types)), ""


def progress(run: db.Run) -> dict[str, float | int | str | None]:
    """Return ``epoch``, ``step`` and ``best_value`` of a run so far, None before any report."""
    path, version = folder_of(run) / HISTORY, (0, 0)
    if path.exists():
        version = path.stat().st_mtime_ns, path.stat().st_size
    metric = run.settings.get("monitor_metric", "").replace("_", "/", 1)
    return dict(_progress(path, version, metric, run.settings.get("monitor_mode")))


@lru_cache(maxsize=10_000)
def _progress(path: Path, _version: tuple[int, int], metric: str,
              mode: str | None) -> dict[str, float | int | str | None]:
    """Return the progress in a history; a version of it (time, size) is read once."""
    rows, error = _history(path)
    found = {"epoch": None, "step": None, "best_value": None, "history_error": error}
    if len(rows):
        found["epoch"], found["step"] = int(rows["epoch"].iloc[-1]), int(rows["step"].iloc[-1])
    values = rows.loc[rows["name"] == metric, "value"].dropna()
    if len(values):
        found["best_value"] = float(values.max() if mode == "max" else values.min())
    return found


def charts(run: db.Run) -> list[dict[str, Any]]:
    """Return the chart of all losses, and that of the monitored metric.

    A chart has a title, the ranges of steps and values, and ``curves``: name, SVG's points, last.
    """
    rows = _history(folder_of(run) / HISTORY)[0].dropna()
    metric = run.settings.get("monitor_metric", "").partition("_")[2]
    titles = {"loss": rows["name"].str.endswith("loss")}
    if metric and metric != "loss":
        names = [f"{split}/{metric}" for split in ("train", "val", "test")]
        titles[metric] = rows["name"].isin(names)
    return [_chart(title, rows[chosen]) for title, chosen in titles.items() if chosen.any()]


def _chart(title: str, rows: pd.DataFrame) -> dict[str, Any]:
    first, last = int(rows["step"].min()), int(rows["step"].max())
    low, high = float(rows["value"].min()), float(rows["value"].max())
    x = WIDTH * (rows["step"] - first) / max(1, last - first)
    y = HEIGHT * (high - rows["value"]) / ((high - low) or 1.0)
    curves = []
    for name, part in rows.assign(x=x, y=y).groupby("name", sort=False):
        stride = -(-len(part) // MAX_POINTS)
        shown = pd.concat([part.iloc[:-1:stride], part.iloc[-1:]])
        points = " ".join(f"{row.x:.2f},{row.y:.2f}" for row in shown.itertuples())
        curves.append({"name": name, "points": points, "last": part["value"].iloc[-1]})
    return {"title": title, "curves": curves, "first_step": first, "last_step": last,
            "low": low, "high": high}


def mlflow_run(run: db.Run) -> str:
    """Return the id of the run in MLflow, empty if it has none yet."""
    try:
        text = (folder_of(run) / RUN_ID).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    return text if text.isalnum() else ""


def files_of(run: db.Run) -> dict[str, list[tuple[str, int]]]:
    """Return the files of a run by their kind: each with its path in the folder and its size."""
    groups: dict[str, list[tuple[str, int]]] = {kind: [] for kind in (*GROUPS.values(), OTHERS)}
    for path in sorted(folder_of(run).rglob("*"))[:MAX_FILES]:
        try:
            if path.is_file() and not path.name.startswith("."):
                entry = str(path.relative_to(folder_of(run))), path.stat().st_size
                groups[GROUPS.get(path.suffix, OTHERS)].append(entry)
        except OSError:  # gone meanwhile
            continue
    return groups


def file_of(run: db.Run, name: str) -> Path:
    """Return a file of a run's folder; NotFoundError for what lies outside, wherever links lead."""
    folder = folder_of(run).resolve()
    try:
        path = (folder / name).resolve(strict=True)
        inside = folder.is_relative_to(paths.DATA.resolve()) and path.is_relative_to(folder)
        if inside and path.is_file():
            return path
    except (OSError, ValueError):
        pass
    raise db.NotFoundError("the run has no such file")
