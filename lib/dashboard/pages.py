"""The pages: lists, forms and a run's detail, rendered here; what they show of anybody's text is escaped by the templates."""

import contextlib
import datetime
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, RedirectResponse, Response, StreamingResponse
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from sqlalchemy import func, select
from sse_starlette.sse import EventSourceResponse

from lib import paths
from lib.config import notebooks
from lib.dashboard import api, events, gantt, operations, schemas, security
from lib.dashboard import database as db
from lib.dashboard.database import Database, NotFoundError
from lib.dashboard.operations import Dispatcher
from lib.dashboard.schemas import FieldsError
from lib.errors import InputError, choices

HERE = Path(__file__).parent
_TAIL, _MOST_FILES, _MOST_ROWS = 2000, 500, 200
_SHOWN_INLINE = {".png": "image/png"}


def _size(size: float) -> str:
    """Return a size in bytes as people read it."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _seconds(value: float | None) -> str:
    """Return a time span as people read it."""
    if value is None:
        return ""
    return f"{value:.1f} s" if value < 60 else str(datetime.timedelta(seconds=round(value)))


def _taken(run: db.Run) -> float | None:
    """Return for how many seconds a run has run."""
    return ((run.finished_at or db.now()) - run.started_at).total_seconds() if run.started_at else None


_environment = Environment(loader=FileSystemLoader(HERE / "templates"), undefined=StrictUndefined, autoescape=True,
                           trim_blocks=True, lstrip_blocks=True)
_environment.filters |= {"json": partial(json.dumps, indent=1, ensure_ascii=False), "size": _size, "seconds": _seconds,
                         "taken": _taken, "time": lambda at: f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else ""}
_templates = Jinja2Templates(env=_environment)


def render(request: Request, name: str, status: int = 200, headers: Any = None, /, **facts: Any) -> Response:
    """Return a page."""
    return _templates.TemplateResponse(request, name, facts, status, headers)


async def _form(request: Request) -> dict[str, str]:
    return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}


Texts = Mapping[str, str]
_NONE: Texts = MappingProxyType({})
Form = Annotated[dict[str, str], Depends(_form)]


def _sent(change: Callable[[], str], again: Callable[..., Response], form: Mapping[str, str], field: str) -> Response:
    """Make a change and go to the page that it returns; where it is refused show the form ``again``, 422, as it was filled in.

    What is wrong stands beside its field, and what is of no field in particular beside ``field``.
    """
    try:
        return RedirectResponse(change(), 303)
    except InputError as error:
        return again(422, error.errors if isinstance(error, FieldsError) else {field: str(error)}, form)


def router(database: Database, dispatcher: Dispatcher, token: str) -> APIRouter:
    """Return all pages."""
    pages = APIRouter()
    for part in (_login(database, token), _projects(database), _configs(database), _runs(database, dispatcher),
                 _run(database, dispatcher), _files(database), _agents(database), _schedule(database, dispatcher)):
        pages.include_router(part)
    return pages


def _login(database: Database, token: str) -> APIRouter:
    part = APIRouter()

    @part.get("/")
    def home():
        return RedirectResponse("/web/projects", 303)

    @part.get("/login")
    def login(request: Request, next: str = "/"):
        return render(request, "login.html", next=next, error="")

    @part.post("/login")
    def enter(request: Request, form: Form):
        target = form.get("next", "/")
        if not security.same(form.get("token", "").strip(), token):
            return render(request, "login.html", 401, next=target, error="this is not the token")
        own = re.fullmatch(r"/(web/[\w/.-]*)?", target, re.ASCII)
        response = RedirectResponse(target if own else "/", 303)
        security.set_cookie(response, token, request.url.scheme == "https")
        return response

    @part.post("/logout")
    def leave():
        response = RedirectResponse("/login", 303)
        response.delete_cookie(security.COOKIE)
        return response

    @part.get("/web/changes/{topic}")
    def changes(topic: str):
        if topic not in events.TOPICS:
            raise NotFoundError(f"there is no topic {topic}; there are: {choices(events.TOPICS)}")
        return EventSourceResponse(events.changes(database, topic))

    return part


def _projects(database: Database) -> APIRouter:
    part = APIRouter()

    def shown(request: Request, status: int = 200, errors: Texts = _NONE, form: Texts = _NONE):
        with database.reading() as session:
            counts = dict(session.execute(select(db.Run.project_id, func.count()).group_by(db.Run.project_id)).all())
        return render(request, "projects.html", status, projects=api.page(database, db.Project, 500, 0), counts=counts,
                      errors=errors, form=form)

    @part.get("/web/projects")
    def projects(request: Request):
        return shown(request)

    @part.post("/web/projects")
    def new_project(request: Request, form: Form):
        def change() -> str:
            project = operations.add(database, db.Project, schemas.checked(schemas.ProjectIn, form).model_dump())
            return f"/web/projects/{project.id}/configs"

        return _sent(change, partial(shown, request), form, "name")

    return part


def _configs(database: Database) -> APIRouter:
    part = APIRouter()

    def shown(request: Request, project_id: str, status: int = 200, errors: Texts = _NONE, form: Texts = _NONE):
        project = operations.get_loaded(database, db.Project, project_id)
        return render(request, "configs.html", status, project=project, errors=errors, form=form, fields=schemas.form_fields(),
                      notebooks=[f"notebooks/{name}.ipynb" for name in notebooks.NOTEBOOKS],
                      groups=api.page(database, db.Group, 500, 0, db.Group.project_id == project_id),
                      configs=api.page(database, db.TrainConfig, 200, 0, db.TrainConfig.project_id == project_id))

    @part.get("/web/projects/{project_id}/configs")
    def configs(request: Request, project_id: api.Id):
        return shown(request, project_id)

    @part.post("/web/projects/{project_id}/configs")
    def new_config(request: Request, project_id: api.Id, form: Form):
        def change() -> str:
            own = {"project_id": project_id, "name": form.get("name", ""), "group_id": form.get("group_id", "")}
            operations.save_config(database, schemas.checked(schemas.ConfigIn, own | {"config": schemas.config_of(form)}))
            return f"/web/projects/{project_id}/runs"

        return _sent(change, partial(shown, request, project_id), form, "name")

    @part.post("/web/projects/{project_id}/groups")
    def new_group(request: Request, project_id: api.Id, form: Form):
        def change() -> str:
            wanted = schemas.checked(schemas.GroupIn, {"project_id": project_id, "name": form.get("group", "")})
            operations.add(database, db.Group, wanted.model_dump(), project_id=db.Project)
            return f"/web/projects/{project_id}/configs"

        return _sent(change, partial(shown, request, project_id), form, "group")

    return part


def _runs(database: Database, dispatcher: Dispatcher) -> APIRouter:
    part = APIRouter()

    def shown(request: Request, project_id: str, status: int = 200, errors: Texts = _NONE, form: Texts = _NONE, *,
              offset: int = 0):
        project = operations.get_loaded(database, db.Project, project_id)
        with database.reading() as session:
            rows = operations.runs(session, _MOST_ROWS, offset, db.Run.project_id == project_id)
        return render(request, "runs.html", status, project=project, runs=rows, errors=errors, form=form,
                      older=offset + _MOST_ROWS if len(rows) == _MOST_ROWS else None,
                      configs=api.page(database, db.TrainConfig, 500, 0, db.TrainConfig.project_id == project_id),
                      agents=api.agents(database, 200, 0))

    @part.get("/web/projects/{project_id}/runs")
    def runs(request: Request, project_id: api.Id, offset: api.Offset = 0):
        return shown(request, project_id, offset=offset)

    @part.post("/web/projects/{project_id}/runs")
    def new_run(request: Request, project_id: api.Id, form: Form):
        def change() -> str:
            wanted = schemas.checked(schemas.RunIn, {name: value for name, value in form.items() if name != "config_id"})
            return f"/web/runs/{operations.queue_run(database, dispatcher, form.get('config_id', ''), wanted).id}"

        return _sent(change, partial(shown, request, project_id), form, "config_id")

    return part


def _run(database: Database, dispatcher: Dispatcher) -> APIRouter:
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


def _files(database: Database) -> APIRouter:
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


def _agents(database: Database) -> APIRouter:
    part = APIRouter(prefix="/web/agents")

    def shown(request: Request, status: int = 200, errors: Texts = _NONE, form: Texts = _NONE):
        with database.reading() as session:
            running = operations.runs(session, 500, 0, db.Run.state == db.RUNNING)
        return render(request, "agents.html", status, agents=api.agents(database, 500, 0), running=running, errors=errors,
                      form=form)

    @part.get("")
    def agents(request: Request):
        return shown(request)

    @part.post("")
    def new_agent(request: Request, form: Form):
        def change() -> str:
            operations.add(database, db.Agent, schemas.checked(schemas.AgentIn, form).model_dump() | {"manual": True})
            return "/web/agents"

        return _sent(change, partial(shown, request), form, "name")

    @part.post("/gpus")
    def new_gpu(request: Request, form: Form):
        def change() -> str:
            operations.add(database, db.Gpu, schemas.checked(schemas.GpuIn, form).model_dump(), agent_id=db.Agent)
            return "/web/agents"

        return _sent(change, partial(shown, request), form, "index")

    @part.post("/{agent_id}/gpus/{index}/{what}")
    def reserve_gpu(agent_id: api.Id, index: api.Index, what: Literal["reserve", "release"]):
        operations.reserve(database, agent_id, index, what == "reserve")
        return RedirectResponse("/web/agents", 303)

    return part


def _schedule(database: Database, dispatcher: Dispatcher) -> APIRouter:
    part = APIRouter()

    @part.get("/web/schedule")
    def schedule(request: Request):
        planned = api.planned(dispatcher.plan())
        with database.reading() as session:
            past = operations.runs(session, 100, 0, db.Run.started_at.is_not(None))
            waiting = operations.runs(session, 500, 0, db.Run.state == db.QUEUED)
            count = session.scalar(select(func.count()).select_from(db.Run).where(db.Run.state == db.QUEUED))
        names = {run.id: run.name for run in (*past, *waiting)}
        return render(request, "schedule.html", chart=gantt.chart(planned, past, names, db.now()), past=past, planned=planned,
                      names=names, waiting=count)

    return part
