"""The pages: lists with forms for new rows, one run, agents, the schedule, and the login."""

import datetime
import io
import json
import re
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lib import executed_notebooks
from lib.config import notebooks
from lib.dashboard import access, api, bodies, configurations, outputs
from lib.dashboard import tables as db
from lib.dashboard.api import Here, Offset
from lib.dashboard.fields import FieldsError, GpuIndex, RowId, from_form
from lib.errors import InputError
from lib.schedule.gantt import gantt

FOLDER = Path(__file__).parent
MAX_ROWS = 100
CHART_S = 10  # between two charts of the schedule
RUN = "/web/runs/{run_id}"
_drawing = threading.Lock()  # pyplot draws in one thread at a time


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f} s" if value < 60 else str(datetime.timedelta(seconds=round(value)))


def _moment(at_s: float) -> str:
    """Return a time, in seconds from now, in words."""
    return f"in {_seconds(at_s)}" if at_s > 0 else f"{_seconds(-at_s)} ago"


def _taken(run: db.Run) -> float | None:
    """Return the seconds of a run's last attempt, until now while it runs; None while it waits."""
    if not run.started_at:
        return None
    return ((run.finished_at or db.now()) - run.started_at).total_seconds()


_environment = Environment(loader=FileSystemLoader(FOLDER / "templates"), undefined=StrictUndefined,
                           autoescape=True, trim_blocks=True, lstrip_blocks=True)
_environment.filters["json"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False)
_environment.filters["time"] = lambda at: f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else ""
_environment.filters.update(seconds=_seconds, moment=_moment, taken=_taken)
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


@pages.post("/web/projects")
def new_project(board: Here, form: Form) -> Response:
    """Add a project."""
    project = api.add_project(board, from_form(bodies.ProjectIn, form))
    return _go(f"/web/projects/{project['id']}/configs")


# ------------------------------------------------------------------------------ configurations

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
                  configs=board.database.rows(db.TrainConfig, project_id=project_id),
                  fields=configurations.finetune_fields(), notebooks=notebooks.NOTEBOOKS)


@pages.post("/web/projects/{project_id}/configs")
def new_config(request: Request, board: Here, project_id: RowId, form: Form) -> Response:
    """Save a configuration; show the form again, as it was filled in, where it is refused."""
    try:
        values = {**form, "project_id": project_id,
                  "config_json": configurations.pasted(form.get("config_json", ""))}
        api.add_config(board, from_form(bodies.ConfigIn, values))
    except InputError as error:
        errors = error.errors if isinstance(error, FieldsError) else {"name": str(error)}
        return _configs(request, board, project_id, form, errors)
    return _go(f"/web/projects/{project_id}/runs")


@pages.post("/web/projects/{project_id}/groups")
def new_group(board: Here, project_id: RowId, form: Form) -> Response:
    """Add a group of configurations."""
    api.add_group(board, from_form(bodies.GroupIn, {**form, "project_id": project_id}))
    return _go(f"/web/projects/{project_id}/configs")


# ------------------------------------------------------------------------------ runs

@pages.get("/web/projects/{project_id}/runs")
def runs_page(request: Request, board: Here, project_id: RowId, group_id: RowId | Literal[""] = "",
              state: Literal["", *db.STATES] = "", offset: Offset = 0) -> Response:
    """Show the runs of a project, or those of a group or a state."""
    database, conditions = board.database, [db.in_state(state)] if state else []
    runs = database.rows(db.Run, *conditions, limit=MAX_ROWS, offset=offset, project_id=project_id,
                         group_id=group_id or None)
    waits = any(run.job and run.state == db.QUEUED for run in runs)
    plans = {row["job_id"]: row for row in api.get_schedule(board)} if waits else {}
    return render(request, "runs.html", project=database.get(db.Project, project_id), runs=runs,
                  plans=plans, progress={run.id: outputs.progress(run) for run in runs},
                  groups=database.rows(db.Group, project_id=project_id),
                  agents=database.rows(db.Agent),
                  configs=database.rows(db.TrainConfig, project_id=project_id), states=db.STATES,
                  chosen={"group_id": group_id, "state": state},
                  older=offset + MAX_ROWS if len(runs) == MAX_ROWS else None)


@pages.post("/web/projects/{project_id}/runs")
def new_run(board: Here, project_id: RowId, form: Form) -> Response:
    """Queue a run."""
    run = api.queue_run(board, form.pop("config_id", ""), from_form(bodies.RunIn, form))
    return _go(f"/web/runs/{run['id']}")


@pages.get(RUN)
def run_page(request: Request, board: Here, run_id: RowId) -> Response:
    """Show a run: its state, curves, log and files."""
    run, planned = board.database.get(db.Run, run_id), None
    if run.job and run.state == db.QUEUED:
        planned = next((row for row in api.get_schedule(board) if row["job_id"] == run_id), None)
    mlflow_run = outputs.mlflow_run(run)
    mlflow = f"{board.mlflow_url}/#/runs/{mlflow_run}" if board.mlflow_url and mlflow_run else ""
    project = board.database.get(db.Project, run.project_id)
    return render(request, "run.html", run=run, project=project, planned=planned,
                  ended=run.state in db.ENDS, progress=outputs.progress(run),
                  charts=outputs.charts(run), log=outputs.log_tail(run), files=outputs.files_of(run),
                  mlflow=mlflow)


@pages.post(f"{RUN}/{{change}}")
def change_run(board: Here, run_id: RowId, form: Form,
               change: Literal["cancel", "start", "finish", "priority", "delete"]) -> Response:
    """Change the state or the place of a run, or delete it."""
    if change == "priority":
        run = api.reorder_run(board, run_id, from_form(bodies.PriorityIn, form))
    elif change == "finish":
        run = api.finish_run(board, run_id, from_form(bodies.EndIn, form))
    else:
        changes = {"cancel": api.cancel_run, "start": api.start_run, "delete": api.delete_run}
        run = changes[change](board, run_id)
    listed = change in ("delete", "priority")
    return _go(f"/web/projects/{run['project_id']}/runs" if listed else f"/web/runs/{run_id}")


@pages.get(f"{RUN}/log")
def whole_log(board: Here, run_id: RowId) -> Response:
    """Return the log of a run as text."""
    path = outputs.folder_of(board.database.get(db.Run, run_id)) / outputs.LOG
    if not path.is_file():
        return PlainTextResponse("")
    return FileResponse(path, media_type="text/plain; charset=utf-8")


@pages.get(f"{RUN}/files/{{name:path}}")
def run_file(board: Here, run_id: RowId, name: str) -> Response:
    """Return a file of a run's folder, a picture to be shown, all else to be saved."""
    path = outputs.file_of(board.database.get(db.Run, run_id), name)
    kind, shown = "application/octet-stream", "attachment"
    if path.suffix == ".png":
        kind, shown = "image/png", "inline"
    return FileResponse(path, media_type=kind, filename=path.name, content_disposition_type=shown,
                        headers={"Content-Security-Policy": "default-src 'none'; sandbox"})


@pages.get(f"{RUN}/notebook/{{name:path}}")
def executed_notebook(request: Request, board: Here, run_id: RowId, name: str) -> Response:
    """Show an executed notebook, cleaned of what a browser would run."""
    run = board.database.get(db.Run, run_id)
    cells = executed_notebooks.read(outputs.file_of(run, name)).cells
    body = executed_notebooks.cells_to_html(cells)
    return render(request, "notebook.html", run=run, name=name, body=body)


# ------------------------------------------------------------------------------ agents, schedule

@pages.get("/web/agents")
def agents_page(request: Request, board: Here) -> Response:
    """Show the machines and their cards."""
    return render(request, "agents.html", agents=board.database.rows(db.Agent),
                  running=board.database.rows(db.Run, db.in_state(db.RUNNING)))


@pages.post("/web/agents")
def new_agent(board: Here, form: Form) -> Response:
    """Enter a machine by hand."""
    api.add_agent(board, from_form(bodies.AgentIn, form))
    return _go("/web/agents")


@pages.post("/web/agents/gpus")
def new_gpu(board: Here, form: Form) -> Response:
    """Enter a card by hand."""
    api.add_gpu(board, from_form(bodies.GpuIn, form))
    return _go("/web/agents")


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


@pages.get("/web/schedule")
def schedule_page(request: Request, board: Here) -> Response:
    """Show what runs, what is planned and why, and how long earlier runs took."""
    runs = [run for run in board.database.rows(db.Run) if run.job]
    return render(request, "schedule.html", planned=api.get_schedule(board),
                  past=[run for run in runs if run.started_at][:MAX_ROWS],
                  waiting=len([run for run in runs if run.state == db.QUEUED]),
                  chart=int(time.time()) // CHART_S, names={run.id: run.name for run in runs})


@pages.get("/web/schedule.png")
def schedule_chart(board: Here) -> Response:
    """Return the plan as a chart."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    plan = board.runner.plan().dropna(subset=["start_s", "end_s"])
    plan = plan[np.isfinite(plan["end_s"])]
    states = dict(zip(plan["job_id"], plan["status"], strict=True))
    picture = io.BytesIO()
    with _drawing:
        mpl.use("agg")
        figure = gantt({"running and planned runs, in s from now": plan}, states)
        figure.savefig(picture, format="png", dpi=110)
        plt.close(figure)
    return Response(picture.getvalue(), media_type="image/png")


# ------------------------------------------------------------------------------ login, API

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
    access.set_cookie(response, token, request.url.scheme == "https")
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


@pages.get("/docs/openapi.json")
def openapi_document(request: Request) -> dict[str, Any]:
    """Return the API as an OpenAPI document."""
    return request.app.openapi()
