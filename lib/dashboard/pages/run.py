"""The pages of one run: its progress, its files, its log."""

import contextlib
import csv
import io
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, RedirectResponse, StreamingResponse
from markupsafe import Markup
from sqlalchemy import Row, select

from lib import paths
from lib.dashboard import database as db
from lib.dashboard import events, schemas
from lib.dashboard.fields import RowId, checked
from lib.dashboard.operations import Operations
from lib.dashboard.pages.rendering import Form, add_page, render

_RUN, _ADDRESS, _LIST = "/web/runs/{run_id}", "/web/runs/{run.id}", "/web/projects/{run.project_id}/runs"
_TAIL, _MOST_FILES = 2000, 500
_SHOWN_INLINE = {".png": "image/png"}
_GROUPS = {".pt": "checkpoints", ".png": "figures", ".ipynb": "notebooks"}


def add_run(pages: APIRouter, operations: Operations) -> None:
    """Add the page of a run, the stream that it follows, and its buttons."""
    def facts(run_id: RowId) -> dict[str, Any]:
        run = operations.get(db.Run, run_id)
        with operations.database.reading() as session:
            before = session.scalar(select(db.RunLog.id).where(db.RunLog.run_id == run_id).order_by(db.RunLog.id.desc())
                                    .offset(_TAIL).limit(1)) or 0
        waits = run.job and run.state == db.QUEUED
        planned = next((row for row in operations.schedule() if row["job_id"] == run_id), None) if waits else None
        return {"run": run, "planned": planned, "project": operations.get(db.Project, run.project_id), "files": _files_of(run),
                "after": f"{before}.0", "ended": run.state in db.ENDS}

    def describe(form: Form, run_id: str) -> str:
        return _ADDRESS.format(run=operations.describe(run_id, checked(schemas.NotesIn, form)))

    add_page(pages, _RUN, "run.html", facts, (f"{_RUN}/notes", describe, "notes"))
    events.add_stream(pages, f"{_RUN}/events", operations.database)

    def changed(address: str, operation: Callable[..., db.Run], wanted: type | None, run_id: RowId, form: Form):
        run = operation(run_id, *([checked(wanted, form)] if wanted else []))
        return RedirectResponse(address.format(run=run), 303)

    for name, *change in (("cancel", _ADDRESS, operations.cancel, None), ("start", _ADDRESS, operations.start, None),
                          ("finish", _ADDRESS, operations.finish, schemas.EndIn), ("delete", _LIST, operations.delete, None),
                          ("archive", _ADDRESS, partial(operations.archive, True), None),
                          ("restore", _ADDRESS, partial(operations.archive, False), None),
                          ("priority", _LIST, operations.reorder, schemas.PriorityIn)):
        pages.post(f"{_RUN}/{name}")(partial(changed, *change))


def _files_of(run: db.Run) -> dict[str, list[tuple[str, int]]]:
    """Return the files of a run by their kind, each as its path within the run's folder and its size."""
    folder, groups = paths.DATA / run.folder, defaultdict(list)
    for path in itertools.islice(sorted(folder.rglob("*")), _MOST_FILES):
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
        kind = _SHOWN_INLINE.get(path.suffix)
        return FileResponse(path, media_type=kind or "application/octet-stream", filename=path.name,
                            content_disposition_type="inline" if kind else "attachment",
                            headers={"Content-Security-Policy": "default-src 'none'; sandbox"})

    @pages.get(f"{_RUN}/notebook/{{name:path}}")
    def executed_notebook(request: Request, run_id: RowId, name: str):
        run = operations.get(db.Run, run_id)
        return render(request, "notebook.html", run=run, name=name, body=Markup(_notebook(file_of(run, name))))

    def batches(table: type[db.RunLog] | type[db.RunMetric], run_id: str) -> Iterator[list[Row]]:
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


def _notebook(path: Path) -> str:
    """Return an executed notebook as HTML that runs no code in a browser; InputError for a damaged file."""
    from lib.report import markup, page, runner

    notebook = runner.read(path)
    return markup.clean(page.exported(notebook, notebook.cells, code=True))
