"""The run matrix: models x batch sizes x precisions x optimizers, each cell trained repeatedly."""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product

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
from lib.measure.worker import WorkerLostError, call

# parameters that the matrix sets for each cell
_FIXED = {"workload", "model", "folder", "source", "reference", "device", "batch_size", "precision",
          "optimizer", "label"}
_USUAL = {"source": "measure", "data_source": "auto", "resolution": "native", "epochs": 1,
          "channels_last": False, "grad_accum_steps": 1, "num_workers": 0, "augment": False,
          "deterministic": False, "cudnn_benchmark": False, "threads": 0}  # without options


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix: what is trained, and the parameters of its runs."""

    label: str  # environment/model/b<batch>/<precision>, and the optimizer unless it is Adam
    workload: Workload
    params: ProfileParams

    @property
    def name(self) -> str:
        """Return the label without the environment."""
        return self.label.partition("/")[2]


def workload_of(workload_id: str, model: str, batch_size: int, folder: str = "") -> Workload:
    """Return the workload of a run: one of params/workloads.yaml, or ``<dataset>-<size>``.

    ``folder`` holds the images of the dataset imagefolder; empty: that of params/matrix.yaml.
    Raises InputError for any other id.
    """
    if workload_id in workloads():
        return workloads()[workload_id].model_copy(update={"batch_size": batch_size})
    match = re.fullmatch(r"([a-z0-9]+)-(\d+)", workload_id)
    if not match:
        raise InputError(f"no workload {workload_id!r}; there are: {choices(workloads())}, "
                         "and <dataset>-<size>")
    dataset, size = match.groups()
    values = {"id": workload_id, "dataset": dataset, "size": int(size), "model": model,
              "batch_size": batch_size}
    if dataset == "imagefolder":
        values["folder"] = folder or load_matrix().folder
    return build(Workload, values, workload_id)


def cells(matrix: Matrix, device: str = "auto", wanted: Sequence[str] = (),
          options: store.Facts | None = None) -> list[Cell]:
    """Return the cells of the matrix for one device.

    ``wanted`` names some of them, ``options`` override parameters of 02_profile. Raises InputError
    for a device without a grid, an unknown cell or a wrong option.
    """
    where = machine.device(device)
    if where.type not in matrix.grids:
        raise InputError(f"params/matrix.yaml has no grid for {where.type}; "
                         f"it has: {choices(matrix.grids)}")
    grid, env = matrix.grids[where.type], matrix.environment or machine.name()
    options = matrix.options | grid.options | (options or {})
    if fixed := sorted(_FIXED & options.keys()):
        raise InputError(f"{choices(fixed)} is no option: the matrix sets it for each cell")
    precisions = dict.fromkeys(machine.precision(name, where) for name in grid.precisions)
    chosen = {}
    for model, batch, precision, optimizer in product(grid.models, grid.batch_sizes, precisions,
                                                      grid.optimizers):
        name = f"{model}/b{batch}/{precision}" + ("" if optimizer == "adam" else f"/{optimizer}")
        label = f"{env}/{name}"
        params = build(ProfileParams, {
            **_USUAL, **options, "device": str(where), "batch_size": batch, "precision": precision,
            "optimizer": optimizer, "label": label}, label)
        workload = workload_of(f"{matrix.dataset}-{matrix.size}", model, batch, matrix.folder)
        chosen[name] = Cell(label, workload, params)
    for name in wanted:
        entry(list(chosen), name, "cell")
    return [cell for name, cell in chosen.items() if not wanted or name in wanted]


def repeats_done(chosen: list[Cell]) -> dict[str, int]:
    """Return how many usable runs each cell has on this machine, by its label."""
    runs = archive.runs("measure")
    usable = (runs["hardware_id"] == machine.ids()["hardware_id"]) & (runs["verdict"] != UNUSABLE)
    counts = runs.loc[usable, "label"].value_counts()
    return {cell.label: int(counts.get(cell.label, 0)) for cell in chosen}


def _measure(p: ProfileParams, workload: Workload) -> pd.Series:
    from lib.measure.training import profile_run

    return profile_run.measure(p, workload=workload).run


def in_a_process(p: ProfileParams, workload: Workload) -> pd.Series:
    """Measure one run in its own process: the peak memory is the run's, and it may be killed."""
    return call(_measure, p, workload)


def _outcome(cell: Cell, repeat: int) -> store.Facts:
    """Measure one repeat of a cell; a failure is a row with its reason, a held device an error."""
    row = {"label": cell.label, "arch": cell.workload.model,
           "backend": cell.params.device.partition(":")[0],
           "batch_size": cell.workload.batch_size, "precision": cell.params.precision,
           "repeat": repeat, "status": "ok", "reason": "", "run_id": "", "images_per_sec": np.nan,
           "hardware_id": machine.ids()["hardware_id"]}
    try:
        run = in_a_process(cell.params, cell.workload)
        row |= {"run_id": run["run_id"], "images_per_sec": run["images_per_sec"]}
        if run["verdict"] == UNUSABLE:
            row["reason"] = f"unusable, so it does not count: {run['reason']}"
    except locks.HeldError:
        raise
    except (InputError, WorkerLostError) as error:
        row |= {"status": "failed", "reason": str(error)}
    except (RuntimeError, OSError, MemoryError) as error:
        row |= {"status": "failed", "reason": one_line(error)}
    return {**row, "at_utc": store.utc_now()}


def run_matrix(chosen: list[Cell], repeats: int, budget_s: float = 0.0,
               report: Callable[[store.Facts], None] = lambda row: None) -> pd.DataFrame:
    """Measure each cell until it has ``repeats`` usable runs; return the attempts (``cells``).

    A second call resumes; one that comes meanwhile waits and measures what is left. A failed cell
    is not tried again in this call. No run starts after ``budget_s`` (0: no limit), nor one that
    would end later than 1.5 times the budget if it took as long as the longest so far. Rows go to
    ``data/matrix/cells.csv`` and to ``report``.
    """
    rows, failed, longest_s = [], set(), 0.0
    here = machine.ids()["hardware_id"]
    devices = {cell.params.device.replace(":", "-") for cell in chosen}
    with locks.writers({paths.MATRIX / f"{here}-{name}" for name in devices}, locks.PATIENCE_S):
        budget, done = Budget(budget_s), repeats_done(chosen)
        for number, cell in interleaved(chosen, repeats):
            if cell.label in failed or done[cell.label] > number:
                continue
            if budget.spent or longest_s > budget.left_s + budget_s / 2:
                break
            begin = time.monotonic()
            rows.append(_outcome(cell, number + 1))
            longest_s = max(longest_s, time.monotonic() - begin)
            with closing(store.Appender(paths.MATRIX / "cells.csv", "cells", resume=True,
                                        timeout_s=locks.PATIENCE_S)) as file:
                file.append(list(rows[-1].values()))
            if rows[-1]["status"] == "failed":
                failed.add(cell.label)
            report(rows[-1])
    return pd.DataFrame(rows)
