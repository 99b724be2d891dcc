"""A file of jobs as rows of a queue, and the folder of its run."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import files, paths
from lib.config.definitions import workload
from lib.config.notebooks import parsed
from lib.errors import InputError, choices
from lib.schedule import problem_files
from lib.schedule.problem import Jobs
from lib.schedule.run.queue import QueueJob
from lib.schedule.run.record import FOLDER

_TASKS = "lib.schedule.run.tasks"
WORKLOAD, NOTEBOOK, PROBE = f"{_TASKS}:workload", f"{_TASKS}:notebook", f"{_TASKS}:probe"
QUEUE, PROBES = "queue.sqlite", "probes.json"  # in the folder of a run


def read(path: Path, out: Path) -> tuple[list[QueueJob], Jobs]:
    """Read ``jobs.csv`` (table ``jobs``): each job is a workload with steps, or a notebook.

    Their outputs go into the folder ``out``. Raises InputError naming what is wrong.
    """
    table, rows = problem_files.read_jobs(path), []
    for row in table.itertuples():
        if bool(row.workload_id) == bool(row.notebook):
            raise InputError(f"{path}: job {row.job_id!r} must have a workload_id or a notebook, "
                             "one of them")
        called = _notebook_call if row.notebook else _workload_call
        name, task, arguments = called(row, path, out.resolve())
        if row.notebook:
            table.loc[row.Index, "notebook"] = name
        rows.append(QueueJob(
            job_id=row.job_id, task=task, arguments=arguments, job_class=name, devices=row.devices,
            memory_mb=row.memory_mb, cpu_cores=row.cpu_cores, arrival_s=row.arrival_s,
            deadline_s=row.deadline_s if row.deadline_s < np.inf else None))
    return rows, problem_files.jobs_of(table)


def _workload_call(row: Any, path: Path, out: Path) -> tuple[str, str, dict[str, Any]]:
    if row.parameters:
        raise InputError(f"{path}: job {row.job_id!r} has parameters; only a notebook takes them")
    if pd.isna(row.steps):
        raise InputError(f"{path}: steps of {row.job_id!r} is empty: a workload needs a whole "
                         "number, 1 or more")
    name, folder = workload(row.workload_id).id, out / "weights" / files.safe_name(row.job_id)
    return name, WORKLOAD, {"workload": name, "steps": int(row.steps), "folder": str(folder)}


def _notebook_call(row: Any, path: Path, out: Path) -> tuple[str, str, dict[str, Any]]:
    if row.devices > 1:
        raise InputError(f"{path}: job {row.job_id!r} is to run on several devices: a notebook "
                         "runs on one")
    name = _find_notebook(row.notebook, path, row.job_id)
    parameters = parsed(name, row.parameters, f"{path}: parameters of {row.job_id!r}")
    executed = out / "notebooks" / f"{files.safe_name(row.job_id)}.ipynb"
    return name, NOTEBOOK, {"path": name, "parameters": parameters, "out": str(executed)}


def _find_notebook(text: str, path: Path, job_id: str) -> str:
    """Return the notebook of a job: a file in the folder of ``path``, or else in the repository.

    A path in the repository is relative to it. Raises InputError for one that lies in neither.
    """
    for folder in (path.parent.resolve(), paths.ROOT):
        notebook = (folder / text).resolve()
        if notebook.suffix == ".ipynb" and notebook.is_relative_to(folder) and notebook.is_file():
            inside = notebook.is_relative_to(paths.ROOT)
            return str(notebook.relative_to(paths.ROOT) if inside else notebook)
    raise InputError(f"{path}: the notebook of job {job_id!r}, {text!r}, is no .ipynb file in "
                     f"{path.parent.resolve()} or {paths.ROOT}, where it is looked for")


def folder_of(path: Path, out: Path | None = None) -> Path:
    """Return the folder of a run: ``out``, or ``data/schedule/<name of the file of jobs>``.

    Raises InputError if it holds anything but a run, or the parent of ``out`` is missing.
    """
    folder = out or paths.DATA / FOLDER / path.stem
    if out and not out.absolute().parent.is_dir():
        raise InputError(f"{out}: there is no folder {out.absolute().parent}; make it first, or "
                         "name another")
    with files.writing(folder):
        names = sorted(os.listdir(folder)) if os.path.lexists(folder) else []
        has_queue = QUEUE in names and (folder / QUEUE).stat().st_size > 0
    foreign = [name for name in names if name not in (PROBES, "jobs.csv") and QUEUE not in name]
    if foreign and not has_queue:
        raise InputError(f"{folder} holds other things than a run, such as {choices(foreign[:3])}; "
                         "name a folder of its own")
    return folder
