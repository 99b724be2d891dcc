"""The throughput of a matrix as files, a CSV and a Markdown table an environment: derived from its runs, and compared."""

from pathlib import Path

import pandas as pd

from lib import files, paths, store
from lib.config.notebooks import ProfileParams
from lib.measure.training import matrix
from lib.tables import columns

_STEM = "throughput_"
_ELSEWHERE = ("threads", "data_source")  # threads are the machine's, and go with its id
_SHOWN = ["arch", "backend", "batch_size", "precision", "settings", "n", "images_per_sec", "std", "low", "high", "cpu_percent"]


def path_of(environment: str) -> Path:
    """Return where the table of an environment lies."""
    return paths.MATRIX / f"{_STEM}{environment}.csv"


def rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table ``matrix`` of some ``runs``; its settings are what is not as usual in a configuration."""
    table, usual = matrix.configurations(runs).rename(columns={"mean": "images_per_sec"}), ProfileParams().model_dump()
    names = [name for name in matrix.SETTINGS if name in usual and name not in _ELSEWHERE]
    settings = [" ".join([str(row["data_source"]), *(f"{name}={row[name]}" for name in names if row[name] != usual[name])])
                for row in table.to_dict("records")]
    return table.assign(settings=settings)[columns("matrix")]


def write(runs: pd.DataFrame) -> list[Path]:
    """Write a CSV and a Markdown table for each environment of some ``runs``, anew from all of them; return their paths."""
    written, table = [], rows(runs)
    for environment, part in table.groupby("env"):
        path = path_of(str(environment))
        written.append(store.write(part, path, "matrix", derived=True))
        shown = f"# Throughput of {environment}, images/s\n\n{matrix.markdown(part[_SHOWN])}\n"
        written.append(files.replace(path.with_suffix(".md"), shown.encode()))
    return written
