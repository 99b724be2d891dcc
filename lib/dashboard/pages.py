"""The pages: lists with forms for new rows, one run, agents, the schedule, and the login."""

import datetime
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lib import executed_notebooks
from lib.dashboard import access, api, bodies, outputs
from lib.dashboard import tables as db
from lib.dashboard.api import Here, Offset
from lib.dashboard.bodies import FieldsError, GpuIndex, RowId
from lib.errors import InputError
from lib.schedule.run.queue import ENDS, QueueJob

FOLDER = Path(__file__).parent
MAX_ROWS = 100
RUN = "/web/runs/{run_id}"
SHOWN = {".png": "image/png", ".txt": "text/plain; charset=utf-8"}  # other files are saved


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f} s" if value < 60 else str(datetime.timedelta(seconds=round(value)))


_environment = Environment(loader=FileSystemLoader(FOLDER / "templates"), undefined=StrictUndefined,
                           autoescape=True, trim_blocks=True, lstrip_blocks=True)
_environment.filters["json"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False)
_environment.filters["time"] = lambda at: f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else ""
_environment.filters["seconds"] = _seconds
_templates = Jinja2Templates(env=_environment)


async def _form(request: Request) -> dict[str, str]:
    return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}


Form = Annotated[dict[str, str], Depends(_form)]
pages = APIRouter(include_in_schema=False)


def render(request: Request, template: str, status: int = 200, headers: Any = None,
           **facts: Any) -> Response:
    """Return a page."""
    return _templates.TemplateResponse(request, template, facts, status, headers)


def _go(address: str) -> RedirectResponse:
    return RedirectResponse(address, 303)


@pages.get("/")
def home():
    """Lead to the projects."""
    return _go("/web/projects")


@pages.get("/web/projects")
def projects_page(request: Request, board: Here) -> Response:
    """Show the projects."""
    return render(request, "projects.html", projects=board.database.rows(db.Project))


@pages.get("/web/projects/{project_id}/configs")
def configs_page(request: Request, board: Here, project_id: RowId,
                 source_id: RowId | None = None) -> Response:
    """Show the configurations of a project; the form holds a copy of one, if named."""
    form = {}
    if source_id:
        source = board.database.get(db.TrainConfig, source_id)
        form = {"name": source.name, "config_json": json.dumps(source.config_json, indent=1)}
    return _configs(request, board, project_id, form)


def _configs(request: Request, board: api.Board, project_id: str, form: dict[str, str],
             errors: dict[str, str] | None = None) -> Response:
    return render(request, "configs.html", 422 if errors else 200, form=form, errors=errors or {},
                  project=board.database.get(db.Project, project_id),
                  groups=board.database.rows(db.Group, project_id=project_id),
                  configs=board.database.rows(db.TrainConfig, project_id=project_id))


@pages.post("/web/projects/{project_id}/configs")
def new_config(request: Request, board: Here, project_id: RowId, form: Form) -> Response:
    """Save a configuration; show the form again, as it was filled in, where it is refused."""
    try:
        api.add_config(board, bodies.ConfigIn.from_form({**form, "project_id": project_id}))
    except InputError as error:
        errors = error.errors if isinstance(error, FieldsError) else {"name": str(error)}
        return _configs(request, board, project_id, form, errors)
    return _go(f"/web/projects/{project_id}/runs")


@pages.get("/web/projects/{project_id}/runs")
def runs_page(request: Request, board: Here, project_id: RowId, group_id: RowId | Literal[""] = "",
              state: Literal["", *db.STATES] = "", offset: Offset = 0) -> Response:
    """Show the runs of a project, or those of a group or a state."""
    database, conditions = board.database, [db.in_state(state)] if state else []
    runs = database.rows(db.Run, *conditions, limit=MAX_ROWS, offset=offset, project_id=project_id,
                         group_id=group_id or None)
    return render(request, "runs.html", project=database.get(db.Project, project_id), runs=runs,
                  progress={run.id: outputs.progress(run) for run in runs},
                  groups=database.rows(db.Group, project_id=project_id),
                  agents=[agent for agent in database.rows(db.Agent) if agent.slots],
                  configs=database.rows(db.TrainConfig, project_id=project_id), states=db.STATES,
                  chosen={"group_id": group_id, "state": state},
                  older=offset + MAX_ROWS if len(runs) == MAX_ROWS else None)


@pages.post("/web/projects/{project_id}/runs")
def new_run(board: Here, project_id: RowId, form: Form) -> Response:
    """Queue a run."""
    run = api.queue_run(board, form.pop("config_id", ""), bodies.RunIn.from_form(form))
    return _go(f"/web/runs/{run['id']}")


@pages.get(RUN)
def run_page(request: Request, board: Here, run_id: RowId) -> Response:
    """Show a run: its state, curves, log and files."""
    run = board.database.get(db.Run, run_id)
    mlflow_run = outputs.mlflow_run(run)
    mlflow = f"{board.mlflow_url}/#/runs/{mlflow_run}" if board.mlflow_url and mlflow_run else ""
    return render(request, "run.html", run=run, ended=run.state in db.ENDS, mlflow=mlflow,
                  project=board.database.get(db.Project, run.project_id),
                  progress=outputs.progress(run), charts=outputs.charts(run),
                  log=outputs.log_tail(run), files=outputs.files_of(run))


@pages.post(f"{RUN}/{{change}}")
def change_run(board: Here, run_id: RowId, form: Form,
               change: Literal["cancel", "start", "finish", "priority", "delete"]) -> Response:
    """Change the state or the place of a run, or delete it."""
    if change == "priority":
        run = api.reorder_run(board, run_id, bodies.PriorityIn.from_form(form))
    elif change == "finish":
        run = api.finish_run(board, run_id, bodies.EndIn.from_form(form))
    else:
        changes = {"cancel": api.cancel_run, "start": api.start_run, "delete": api.delete_run}
        run = changes[change](board, run_id)
    listed = change in ("delete", "priority")
    return _go(f"/web/projects/{run['project_id']}/runs" if listed else f"/web/runs/{run_id}")


@pages.get(f"{RUN}/files/{{name:path}}")
def run_file(board: Here, run_id: RowId, name: str) -> Response:
    """Return a file of a run's folder: a picture or a text to be shown, all else to be saved."""
    path = outputs.file_of(board.database.get(db.Run, run_id), name)
    return FileResponse(path, media_type=SHOWN.get(path.suffix, "application/octet-stream"),
                        filename=path.name,
                        content_disposition_type="inline" if path.suffix in SHOWN else "attachment",
                        headers={"Content-Security-Policy": "default-src 'none'; sandbox"})


@pages.get(f"{RUN}/notebook/{{name:path}}")
def executed_notebook(request: Request, board: Here, run_id: RowId, name: str) -> Response:
    """Show an executed notebook, cleaned of what a browser would run."""
    run = board.database.get(db.Run, run_id)
    cells = executed_notebooks.read(outputs.file_of(run, name)).cells
    body = executed_notebooks.cells_to_html(cells)
    return render(request, "notebook.html", run=run, name=name, body=body)


@pages.get("/web/agents")
def agents_page(request: Request, board: Here) -> Response:
    """Show the machines and their cards."""
    return render(request, "agents.html", agents=board.database.rows(db.Agent),
                  running=board.database.rows(db.Run, db.in_state(db.RUNNING)))


@pages.post("/web/agents/refresh")
def refresh_agents(board: Here) -> Response:
    """Read the devices of this machine again."""
    api.refresh_agents(board)
    return _go("/web/agents")


@pages.post("/web/agents/{agent_id}/gpus/{index}/{change}")
def allocate_gpu(board: Here, agent_id: RowId, index: GpuIndex,
                 change: Literal["reserve", "release"]) -> Response:
    """Reserve a card, or release it."""
    api.allocate_gpu(board, agent_id, index, change)
    return _go("/web/agents")


def _take_new_rows(kind: str, next_page: str) -> None:
    """Add the address to which a form sends a new row."""
    table, body_type = api.NEW_ROWS[kind]

    def new_row(board: Here, form: Form) -> Response:
        row = board.database.add(table, body_type.from_form(form).model_dump())
        return _go(next_page.format(**row.as_dict()))

    pages.post(f"/web/{kind}")(new_row)


_take_new_rows("projects", "/web/projects/{id}/configs")
_take_new_rows("groups", "/web/projects/{project_id}/configs")
_take_new_rows("agents", "/web/agents")
_take_new_rows("agents/gpus", "/web/agents")


@pages.get("/web/schedule")
def schedule_page(request: Request, board: Here) -> Response:
    """Show what runs, what waits, and how long earlier runs took."""
    ended = db.Run.job.has(QueueJob.status.in_(ENDS) & (QueueJob.device != ""))
    return render(request, "schedule.html", queue=api.runs_in_order(board.database),
                  past=board.database.rows(db.Run, ended, limit=MAX_ROWS))


@pages.get("/login")
def login_page(request: Request, next: str = "/", token: Annotated[str, Query()] = "") -> Response:
    """Show the login; a link with the token logs in."""
    if token:
        return log_in(request, {"token": token, "next": next})
    return render(request, "login.html", next=next, error="")


@pages.post("/login")
def log_in(request: Request, form: Form) -> Response:
    """Give a browser that knows the token its cookie, and lead it to the page that it wanted."""
    target, token = form.get("next", "/"), request.app.state.board.token
    if not access.same(form.get("token", "").strip(), token):
        return render(request, "login.html", 401, next=target, error="this is not the token")
    is_page = re.fullmatch(r"/(docs|web/[\w/.-]*)?", target, re.ASCII)
    response = _go(target if is_page else "/")
    # no script reads the cookie, no other site sends it
    response.set_cookie(access.COOKIE, access.cookie(token), max_age=access.AGE_S, httponly=True,
                        samesite="strict", secure=request.url.scheme == "https")
    return response


@pages.post("/logout")
def log_out() -> Response:
    """Take the cookie away."""
    response = _go("/login")
    response.delete_cookie(access.COOKIE)
    return response


@pages.get("/docs")
def docs_page(request: Request) -> Response:
    """Show the API: without scripts, and without a network."""
    host = str(request.base_url).rstrip("/")
    return render(request, "docs.html", api=request.app.openapi(), host=host)
