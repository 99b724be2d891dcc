"""The pages of runs: the progress, files and log of one; the curves and the configurations of several, compared."""

import contextlib
import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, RedirectResponse, StreamingResponse
from sqlalchemy import Row, select

from lib import executed_notebooks, paths
from lib.dashboard import database as db
from lib.dashboard import events, schemas
from lib.dashboard.database_engine import Database
from lib.dashboard.fields import RowId, checked
from lib.dashboard.operations import Operations
from lib.dashboard.pages.rendering import Facts, Form, add_page, render
from lib.errors import InputError

_RUN = "/web/runs/{run_id}"
_TAIL, _MOST_FILES = 2000, 500
_LEAST_RUNS, _MOST_RUNS, _MOST_POINTS = 2, 8, 500  # that are compared; points of a line
_SPLITS = ("", "train_", "val_", "test_")
_GROUPS = {".pt": "checkpoints", ".png": "figures", ".ipynb": "notebooks"}


def add_run(pages: APIRouter, operations: Operations) -> None:
    """Add the page of a run, the stream that it follows, and its buttons."""
    def facts(run_id: RowId) -> Facts:
        run = operations.get(db.Run, run_id)
        with operations.database.reading() as session:
            before = session.scalar(select(db.RunLog.id).where(db.RunLog.run_id == run_id).order_by(db.RunLog.id.desc())
                                    .offset(_TAIL).limit(1)) or 0
        waits = run.job and run.state == db.QUEUED
        planned = next((row for row in operations.schedule() if row["job_id"] == run_id), None) if waits else None
        return {"run": run, "planned": planned, "project": operations.get(db.Project, run.project_id), "files": _files_of(run),
                "after": f"{before}.0", "ended": run.state in db.ENDS}

    def describe(form: Form, run_id: str) -> str:
        operations.describe(run_id, checked(schemas.NotesIn, form))
        return f"/web/runs/{run_id}"

    add_page(pages, _RUN, "run.html", facts, (f"{_RUN}/notes", describe, "notes"))
    events.add_stream(pages, f"{_RUN}/events", operations.database)

    changes = {**operations.changes, "delete": operations.delete}
    bodies = {"finish": schemas.EndIn, "priority": schemas.PriorityIn}

    @pages.post(f"{_RUN}/{{change}}")
    def changed(run_id: RowId, change: Literal[*changes], form: Form):
        run = changes[change](run_id, *([checked(bodies[change], form)] if change in bodies else []))
        listed = change in ("delete", "priority")
        return RedirectResponse(f"/web/projects/{run.project_id}/runs" if listed else f"/web/runs/{run_id}", 303)


def _files_of(run: db.Run) -> dict[str, list[tuple[str, int]]]:
    """Return the files of a run by their kind, each as its path within the run's folder and its size."""
    folder, groups = paths.DATA / run.folder, defaultdict(list)
    for path in sorted(folder.rglob("*"))[:_MOST_FILES]:
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.is_file() and not path.name.startswith("."):
                groups[_GROUPS.get(path.suffix, "others")].append((str(path.relative_to(folder)), path.stat().st_size))
    return groups


def file_of(run: db.Run, name: str) -> Path:
    """Return a file of a run's folder; NotFoundError for whatever lies outside, wherever links lead."""
    folder = (paths.DATA / run.folder).resolve()
    with contextlib.suppress(OSError, ValueError):
        path = (folder / name).resolve(strict=True)
        if folder.is_relative_to(paths.DATA.resolve()) and path.is_relative_to(folder) and path.is_file():
            return path
    raise db.NotFoundError("the run has no such file")


def add_files(pages: APIRouter, operations: Operations) -> None:
    """Add what a run produced: its files, an executed notebook as a page, its log as text."""
    @pages.get(f"{_RUN}/files/{{name:path}}")
    def run_file(run_id: RowId, name: str):
        path = file_of(operations.get(db.Run, run_id), name)
        kind, shown = ("image/png", "inline") if path.suffix == ".png" else ("application/octet-stream", "attachment")
        return FileResponse(path, media_type=kind, filename=path.name, content_disposition_type=shown,
                            headers={"Content-Security-Policy": "default-src 'none'; sandbox"})

    @pages.get(f"{_RUN}/notebook/{{name:path}}")
    def executed_notebook(request: Request, run_id: RowId, name: str):
        run = operations.get(db.Run, run_id)
        body = executed_notebooks.cells_to_html(executed_notebooks.read(file_of(run, name)).cells)
        return render(request, "notebook.html", run=run, name=name, body=body)

    def batches(table: type[db.Output], run_id: str) -> Iterator[list[Row]]:
        last = 0
        while rows := operations.database.rows_after(table, run_id, last, 5000):
            last = rows[-1].id
            yield rows

    def values(run_id: str) -> Iterator[str]:
        yield "step,epoch,key,split,value\n"
        for rows in batches(db.RunMetric, run_id):
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(
                (row.step, row.epoch, row.key, row.split, row.value) for row in rows)
            yield text.getvalue()

    @pages.get(f"{_RUN}/metrics.csv")
    def all_metrics(run_id: RowId):
        operations.get(db.Run, run_id)
        return StreamingResponse(values(run_id), media_type="text/csv; charset=utf-8",
                                 headers={"Content-Disposition": "attachment; filename=metrics.csv"})

    @pages.get(f"{_RUN}/log")
    def whole_log(run_id: RowId):
        operations.get(db.Run, run_id)
        texts = ("".join(f"{row.line}\n" for row in rows) for rows in batches(db.RunLog, run_id))
        return StreamingResponse(texts, media_type="text/plain; charset=utf-8")


# ------------------------------------------------------------------------------------------------- runs side by side

def add_compare(pages: APIRouter, operations: Operations) -> None:
    """Add the page."""
    def facts(run: Annotated[list[RowId], Query()] = ()) -> Facts:
        chosen = dict.fromkeys(run)
        if not _LEAST_RUNS <= len(chosen) <= _MOST_RUNS:
            raise InputError(f"{_LEAST_RUNS} to {_MOST_RUNS} runs can be compared; chosen: {len(chosen)}. Go back and tick "
                             "others.")
        runs = [operations.get(db.Run, run_id) for run_id in chosen]
        differing, same = differences(runs)
        return {"runs": runs, "differing": differing, "same": same, "curves": curves(operations.database, runs)}

    add_page(pages, "/web/compare", "compare.html", facts)


def differences(runs: Sequence[db.Run]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return the values of configurations by name: where they differ one for each run, and those that all have."""
    contents = [{**run.config.config_json, **run.config.config_json.get("parameters", {})} for run in runs]
    table = {name: [content.get(name) for content in contents] for name in sorted(set().union(*contents) - {"parameters"})}
    texts = {name: {json.dumps(value, sort_keys=True) for value in values} for name, values in table.items()}
    same = {name: values[0] for name, values in table.items() if len(texts[name]) == 1}
    return {name: values for name, values in table.items() if name not in same}, same


def curves(database: Database, runs: Sequence[db.Run]) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of loss, rate and monitored metrics by name: each of a run (its number) and a split, with its points."""
    names = {"loss", "images_per_sec", *(run.monitor_metric.removeprefix("val_") for run in runs if run.monitor_metric)}
    keys = {split + name: name for name in names for split in _SPLITS}
    numbers, metric, lines, charts = {run.id: number for number, run in enumerate(runs)}, db.RunMetric, defaultdict(list), {}
    rows = select(metric.run_id, metric.key, metric.split, metric.step, metric.value).where(
        metric.run_id.in_(numbers), metric.key.in_(keys), metric.value.is_not(None)).order_by(metric.step)
    with database.reading() as session:
        for run_id, key, split, step, value in session.execute(rows):
            lines[keys[key], numbers[run_id], split].append((step, value))
    for (name, number, split), points in sorted(lines.items()):
        stride = -(-len(points) // _MOST_POINTS)
        charts.setdefault(name, []).append({"run": number, "split": split, "points": [*points[:-1:stride], points[-1]]})
    return charts
