"""The run matrix: models x batch sizes x precisions, each cell trained several times, and the throughput of such runs."""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from lib import locks, paths, store
from lib.config.base import build
from lib.config.definitions import Matrix, Workload, load_matrix, workloads
from lib.config.notebooks import ProfileParams
from lib.errors import InputError, choices, entry, one_line
from lib.measure import archive, machine
from lib.measure.budget import Budget, interleaved
from lib.measure.statistics import UNUSABLE
from lib.measure.training.summary import CONFIGURATION
from lib.measure.worker import WorkerLostError, call

KEYS = ["env", "arch", "backend", "batch_size", "precision"]
# by the matrix, for each cell
_FIXED = {"workload", "model", "folder", "source", "reference", "device", "batch_size", "precision", "optimizer", "label"}
_STATISTICS = ["n", "mean", "std", "median", "low", "high"]


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix: what is trained, and the parameters of its runs."""

    label: str
    workload: Workload
    params: ProfileParams

    @property
    def name(self) -> str:
        """Return ``model/b<batch>/<precision>``, and the optimizer where it is not Adam: the label without the environment."""
        return self.label.partition("/")[2]


def workload_of(workload_id: str, model: str, batch_size: int, folder: str = "") -> Workload:
    """Return the workload of a run: one of params/workloads.yaml, or ``<dataset>-<size>`` as the matrix names its own.

    ``folder`` holds the images of the dataset imagefolder; empty: the folder of params/matrix.yaml.

    Raises InputError for an id that is neither.
    """
    if workload_id in workloads():
        return workloads()[workload_id].model_copy(update={"batch_size": batch_size})
    match = re.fullmatch(r"([a-z0-9]+)-(\d+)", workload_id)
    if not match:
        raise InputError(f"no workload {workload_id!r}; there are: {choices(workloads())}, and <dataset>-<size>")
    images = match.group(1) == "imagefolder"
    return build(Workload, {"id": workload_id, "dataset": match.group(1), "size": int(match.group(2)), "model": model,
                            "batch_size": batch_size, "folder": folder or load_matrix().folder if images else ""}, workload_id)


def cells(matrix: Matrix, device: str = "auto", wanted: Sequence[str] = (),
          options: store.Facts | None = None) -> list[Cell]:
    """Return the cells of the matrix for one device; ``wanted`` names some of them, ``options`` override parameters.

    Raises InputError for a device without a grid, an unknown cell or a wrong option.
    """
    where = machine.device(device)
    if where.type not in matrix.grids:
        raise InputError(f"params/matrix.yaml has no grid for {where.type}; it has: {choices(matrix.grids)}")
    grid, env = matrix.grids[where.type], matrix.environment or machine.name()
    changed = matrix.options | grid.options | (options or {})
    if fixed := _FIXED & changed.keys():
        raise InputError(f"{choices(sorted(fixed))} is no option: the matrix sets it for each cell")
    chosen, precisions = [], dict.fromkeys(machine.precision(name, where) for name in grid.precisions)
    for model, batch, precision, optimizer in product(grid.models, grid.batch_sizes, precisions, grid.optimizers):
        label = f"{env}/{model}/b{batch}/{precision}" + (f"/{optimizer}" if optimizer != "adam" else "")
        values = {**changed, "device": str(where), "batch_size": batch, "precision": precision, "optimizer": optimizer,
                  "label": label}
        workload = workload_of(f"{matrix.dataset}-{matrix.size}", model, batch, matrix.folder)
        chosen.append(Cell(label, workload, build(ProfileParams, values, label)))
    for name in wanted:
        entry([cell.name for cell in chosen], name, "cell")
    return [cell for cell in chosen if not wanted or cell.name in wanted]


def repeats_done(chosen: list[Cell]) -> dict[str, int]:
    """Return how many usable runs each cell has on this machine under its label."""
    table, here = archive.runs("measure"), machine.ids()["hardware_id"]
    usable = table[(table["hardware_id"] == here) & (table["verdict"] != UNUSABLE)]
    counts = usable["label"].value_counts()
    return {cell.label: int(counts.get(cell.label, 0)) for cell in chosen}


def _measure(p: ProfileParams, workload: Workload) -> pd.Series:
    from lib.measure.training import profile_run

    return profile_run.measure(p, workload=workload).run


def in_a_process(p: ProfileParams, workload: Workload) -> pd.Series:
    """Measure one run in a process of its own, whose peak memory is the run's and whose death is not ours."""
    return call(_measure, p, workload)


def _outcome(cell: Cell, repeat: int) -> store.Facts:
    """Measure one repeat of one cell; whatever goes wrong becomes a row with its reason, but for a device that others hold."""
    row = {"label": cell.label, "arch": cell.workload.model, "backend": cell.params.device.partition(":")[0],
           "batch_size": cell.workload.batch_size, "precision": cell.params.precision, "repeat": repeat, "status": "ok",
           "reason": "", "run_id": "", "images_per_sec": np.nan, "hardware_id": machine.ids()["hardware_id"]}
    try:
        run = in_a_process(cell.params, cell.workload)
        why = f"unusable, so it does not count: {run['reason']}" if run["verdict"] == UNUSABLE else ""
        row |= {"run_id": run["run_id"], "images_per_sec": run["images_per_sec"], "reason": why}
    except locks.HeldError:
        raise
    except (InputError, RuntimeError, OSError, MemoryError) as error:
        row |= {"status": "failed",
                "reason": str(error) if isinstance(error, InputError | WorkerLostError) else one_line(error)}
    return {**row, "at_utc": store.utc_now()}


def run_matrix(chosen: list[Cell], repeats: int, budget_s: float = 0.0,
               report: Callable[[store.Facts], None] = lambda row: None) -> pd.DataFrame:
    """Measure every cell until it has ``repeats`` usable runs; return what became of each attempt (table ``cells``).

    Cells that have them are skipped, so that a second call resumes; one that comes meanwhile waits, and then measures what is
    left on its devices. A cell that fails is not tried again in this call; the rest goes on. No run starts after ``budget_s``
    (0: no limit), nor one that would end later than half of that again if it took as long as the longest so far. Rows are kept
    in ``data/matrix/cells.csv`` and given to ``report``.
    """
    rows, failed, longest_s = [], set(), 0.0
    here = machine.ids()["hardware_id"]  # its cells are this process's: what is done is counted while nobody else adds to it
    targets = {paths.MATRIX / f"{here}-{cell.params.device.replace(':', '-')}" for cell in chosen}
    with locks.writers(targets, locks.PATIENCE_S):
        budget = Budget(budget_s)
        done = repeats_done(chosen)
        for number, cell in interleaved(chosen, repeats):
            if cell.label in failed or done[cell.label] > number:
                continue
            if budget.spent or longest_s > budget.left_s + budget_s / 2:
                break
            begin = time.monotonic()
            rows.append(_outcome(cell, number + 1))
            longest_s = max(longest_s, time.monotonic() - begin) if budget_s else 0.0
            with closing(store.Appender(paths.MATRIX / "cells.csv", "cells", resume=True, timeout_s=locks.PATIENCE_S)) as file:
                file.append(list(rows[-1].values()))  # where other devices add theirs too
            failed |= {cell.label} if rows[-1]["status"] == "failed" else set()
            report(rows[-1])
    return pd.DataFrame(rows)


# ----------------------------------------------------------------------------------------------- throughput

def environment(table: pd.DataFrame) -> pd.Series:
    """Return the environment of each run: what its label says before the first slash, else its machine's hardware id."""
    named = table["label"].str.contains("/", regex=False)
    return table["label"].str.split("/").str[0].where(named, table["hardware_id"])


def newest(table: pd.DataFrame, by: list) -> tuple[pd.DataFrame, int]:
    """Return the newest usable run of each group of runs, and how many of the runs are unusable."""
    usable = table[table["verdict"] != UNUSABLE]
    return usable.sort_values("timestamp", kind="stable").groupby(by).tail(1), len(table) - len(usable)


SETTINGS = [name for name in CONFIGURATION if name not in (*KEYS, "workload_id", "dataset", "hardware_id", "software_id")]


def configurations(table: pd.DataFrame) -> pd.DataFrame:
    """Return images/s of the same configuration on the same machine and software, a row a configuration, from ``runs``.

    Columns: workload_id, KEYS, SETTINGS, n, mean, std (NaN for one run), median, low, high, cpu_percent (median), and both ids.
    Unusable runs are left out and counted in ``attrs["unusable"]``. Nothing is averaged over different settings or machines.
    """
    usable = table[table["verdict"] != UNUSABLE].assign(env=environment)
    groups = usable.groupby(["workload_id", *KEYS, *SETTINGS, "hardware_id", "software_id"], sort=True, dropna=False)
    rates, result = groups["images_per_sec"], groups.agg(cpu_percent=("cpu_percent", "median"))
    result = rates.agg(n="size", mean="mean", std="std", median="median", low="min", high="max").join(result).reset_index()
    result.attrs["unusable"] = len(table) - len(usable)
    return result


def throughput(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``configurations`` as people read them: of the settings only those that set rows apart."""
    result = configurations(table)
    varying = [name for name in SETTINGS if len(set(result[name])) > 1]
    shown = result[["env", "workload_id", *KEYS[1:], *_STATISTICS, "cpu_percent", *varying, "hardware_id", "software_id"]]
    shown.attrs["unusable"] = result.attrs["unusable"]
    return shown


def markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown: numbers with three significant digits or whole, what is missing as a dash."""
    def text(value: Any) -> str:
        if not isinstance(value, str) and pd.isna(value):
            return "–"
        if isinstance(value, float | np.floating):
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return str(value).replace("\\", "\\\\").replace("|", "\\|")

    lines = [list(map(text, table)), ["---"] * len(table.columns)]
    lines += [[text(value) for value in row] for row in table.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
