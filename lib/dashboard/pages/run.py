"""The pages of one run: how far it is, its files, its log."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, RedirectResponse, StreamingResponse
from markupsafe import Markup
from sqlalchemy import select

from lib import paths
from lib.dashboard import api, events, operations, schemas
from lib.dashboard import database as db
from lib.dashboard.database import NotFoundError
from lib.dashboard.engine import Database
from lib.dashboard.operations import Dispatcher
from lib.dashboard.pages.rendering import Form, render

_TAIL, _MOST_FILES = 2000, 500
_SHOWN_INLINE = {".png": "image/png"}


def run(database: Database, dispatcher: Dispatcher) -> APIRouter:
    """Return the page of a run, what it follows, and its buttons."""
    part = APIRouter(prefix="/web/runs/{run_id}")

    @part.get("")
    def run(request: Request, run_id: api.Id):
        row = operations.get_loaded(database, db.Run, run_id)
        with database.reading() as session:
            before = session.scalar(select(db.RunLog.id).where(db.RunLog.run_id == run_id).order_by(db.RunLog.id.desc())
                                    .offset(_TAIL).limit(1)) or 0
        return render(request, "run.html", run=row, project=operations.get_loaded(database, db.Project, row.project_id),
                      files=_files_of(row), after=f"{before}.0", ended=row.state in db.ENDS)

    @part.get("/events")
    def run_events(run_id: api.Id, request: Request, after: events.Cursor = ""):
        return events.of_run(database, run_id, request, after)

    @part.post("/cancel")
    def cancel(run_id: api.Id):
        operations.cancel(database, dispatcher, run_id)
        return RedirectResponse(f"/web/runs/{run_id}", 303)

    @part.post("/priority")
    def priority(run_id: api.Id, form: Form):
        run = operations.reorder(database, dispatcher, run_id, schemas.checked(schemas.PriorityIn, form).priority)
        return RedirectResponse(f"/web/projects/{run.project_id}/runs", 303)

    @part.post("/start")
    def start(run_id: api.Id):
        operations.move_manually(database, run_id, db.RUNNING)
        return RedirectResponse(f"/web/runs/{run_id}", 303)

    @part.post("/finish")
    def finish(run_id: api.Id, form: Form):
        end = schemas.checked(schemas.EndIn, form)
        operations.move_manually(database, run_id, end.state, end.reason)
        return RedirectResponse(f"/web/runs/{run_id}", 303)

    return part


def _files_of(run: db.Run) -> dict[str, list[tuple[str, int]]]:
    """Return the files of a run by what they are, each as its path within the run's folder and its size."""
    folder, groups = paths.DATA / run.folder, {".pt": [], ".png": [], ".ipynb": [], "": []}
    for path in itertools.islice(sorted(folder.rglob("*")), _MOST_FILES):
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.is_file() and not path.name.startswith("."):
                group = groups.get(path.suffix, groups[""])
                group.append((str(path.relative_to(folder)), path.stat().st_size))
    return {"checkpoints": groups[".pt"], "figures": groups[".png"], "notebooks": groups[".ipynb"], "others": groups[""]}


def file_of(run: db.Run, name: str) -> Path:
    """Return a file of a run's folder; NotFoundError for whatever lies outside, wherever links lead."""
    folder = (paths.DATA / run.folder).resolve()
    with contextlib.suppress(OSError, ValueError):
        path = (folder / name).resolve(strict=True)
        if folder.is_relative_to(paths.DATA.resolve()) and path.is_relative_to(folder) and path.is_file():
            return path
    raise NotFoundError("the run has no such file")


def files(database: Database) -> APIRouter:
    """Return what a run gave out: its files, an executed notebook as a page, its log as text."""
    part = APIRouter(prefix="/web/runs/{run_id}")

    @part.get("/files/{name:path}")
    def run_file(run_id: api.Id, name: str):
        path = file_of(operations.get_loaded(database, db.Run, run_id), name)
        kind = _SHOWN_INLINE.get(path.suffix)
        return FileResponse(path, media_type=kind or "application/octet-stream", filename=path.name,
                            content_disposition_type="inline" if kind else "attachment",
                            headers={"Content-Security-Policy": "default-src 'none'; sandbox"})

    @part.get("/notebook/{name:path}")
    def executed_notebook(request: Request, run_id: api.Id, name: str):
        run = operations.get_loaded(database, db.Run, run_id)
        path = file_of(run, name)
        return render(request, "notebook.html", run=run, name=name, body=Markup(_notebook(path)))

    @part.get("/log")
    def whole_log(run_id: api.Id):
        operations.get_loaded(database, db.Run, run_id)
        return StreamingResponse(_lines(database, run_id), media_type="text/plain; charset=utf-8")

    return part


def _notebook(path: Path) -> str:
    """Return an executed notebook as HTML with nothing in it that a browser would run; InputError where it is none."""
    from nbconvert import HTMLExporter

    from lib.report import markup, runner

    return markup.clean(HTMLExporter(template_name="basic").from_notebook_node(runner.read(path))[0])


def _lines(database: Database, run_id: str) -> Iterator[str]:
    """Give all lines of a run."""
    last = 0
    while True:
        with database.reading() as session:
            rows = session.execute(select(db.RunLog.id, db.RunLog.line).where(db.RunLog.run_id == run_id, db.RunLog.id > last)
                                   .order_by(db.RunLog.id).limit(5000)).all()
        if not rows:
            return
        last = rows[-1].id
        yield "".join(f"{row.line}\n" for row in rows)
