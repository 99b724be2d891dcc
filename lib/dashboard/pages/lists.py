"""The pages of many rows, with their forms: projects, configurations, runs, agents, the schedule."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse
from sqlalchemy import func, select

from lib.config import notebooks
from lib.dashboard import api, configurations, operations, schemas
from lib.dashboard import database as db
from lib.dashboard.engine import Database
from lib.dashboard.operations import Dispatcher
from lib.dashboard.pages import gantt
from lib.dashboard.pages.rendering import NOTHING, Form, Texts, render, sent

_MOST_ROWS, _MOST_CHOICES = 100, 500


def _created(database: Database, table: type[db.Base], wanted: type[schemas.BaseModel], form: Texts, page: str,
             more: Mapping[str, Any] = NOTHING, **parents: type[db.Base]) -> str:
    """Add a row as a form describes it, with ``more`` columns; return the ``page`` to go to, which may name its id."""
    row = operations.add(database, table, {**schemas.checked(wanted, form).model_dump(), **more}, **parents)
    return page.format(id=row.id)


def projects(database: Database) -> APIRouter:
    """Return the list of projects, and the form of a new one."""
    part = APIRouter()

    def shown(request: Request, status: int = 200, errors: Texts = NOTHING, form: Texts = NOTHING):
        with database.reading() as session:
            counts = dict(session.execute(select(db.Run.project_id, func.count()).group_by(db.Run.project_id)).all())
        return render(request, "projects.html", status, projects=api.page(database, db.Project, 500, 0), counts=counts,
                      errors=errors, form=form)

    @part.get("/web/projects")
    def projects(request: Request):
        return shown(request)

    @part.post("/web/projects")
    def new_project(request: Request, form: Form):
        change = partial(_created, database, db.Project, schemas.ProjectIn, form, "/web/projects/{id}/configs")
        return sent(change, partial(shown, request), form, "name")

    return part


def configs(database: Database) -> APIRouter:
    """Return the configurations of a project, and the forms of new ones."""
    part = APIRouter()

    def shown(request: Request, project_id: str, status: int = 200, errors: Texts = NOTHING, form: Texts = NOTHING):
        project = operations.get_loaded(database, db.Project, project_id)
        return render(request, "configs.html", status, project=project, errors=errors, form=form,
                      fields=configurations.form_fields(),
                      notebooks=[f"notebooks/{name}.ipynb" for name in notebooks.NOTEBOOKS],
                      groups=api.page(database, db.Group, 500, 0, db.Group.project_id == project_id),
                      configs=api.page(database, db.TrainConfig, 200, 0, db.TrainConfig.project_id == project_id))

    @part.get("/web/projects/{project_id}/configs")
    def configs(request: Request, project_id: api.Id):
        return shown(request, project_id)

    @part.post("/web/projects/{project_id}/configs")
    def new_config(request: Request, project_id: api.Id, form: Form):
        def change() -> str:
            own = {"project_id": project_id, "name": form.get("name", ""), "group_id": form.get("group_id", ""),
                   "config": configurations.config_of(form)}
            operations.save_config(database, schemas.checked(schemas.ConfigIn, own))
            return f"/web/projects/{project_id}/runs"

        return sent(change, partial(shown, request, project_id), form, "name")

    @part.post("/web/projects/{project_id}/groups")
    def new_group(request: Request, project_id: api.Id, form: Form):
        own = {"project_id": project_id, "name": form.get("group", "")}
        change = partial(_created, database, db.Group, schemas.GroupIn, own, f"/web/projects/{project_id}/configs",
                         project_id=db.Project)
        return sent(change, partial(shown, request, project_id), form, "group")

    return part


def runs(database: Database, dispatcher: Dispatcher) -> APIRouter:
    """Return the runs of a project, and the form of a new one."""
    part = APIRouter()

    def shown(request: Request, project_id: str, status: int = 200, errors: Texts = NOTHING, form: Texts = NOTHING, *,
              offset: int = 0, group_id: str | None = None):
        project = operations.get_loaded(database, db.Project, project_id)
        config, agent = db.TrainConfig, db.Agent
        choices = select(config.id, config.name, config.version, config.kind).where(config.project_id == project_id)
        with database.reading() as session:
            rows = operations.runs(session, _MOST_ROWS, offset, db.Run.project_id == project_id,
                                   *([config.group_id == group_id] if group_id else []))
            configs = session.execute(choices.order_by(config.created_at.desc(), config.id).limit(_MOST_CHOICES)).all()
            agents = session.execute(select(agent.id, agent.name).order_by(agent.name).limit(_MOST_CHOICES)).all()
        if group_id:  # its runs are compared: the best first
            rows.sort(key=lambda run: math.inf if run.best_value is None else
                      -run.best_value if run.monitor_mode == "max" else run.best_value)
        return render(request, "runs.html", status, project=project, runs=rows, errors=errors, form=form, group_id=group_id,
                      groups=api.page(database, db.Group, _MOST_CHOICES, 0, db.Group.project_id == project_id),
                      older=offset + _MOST_ROWS if len(rows) == _MOST_ROWS else None,
                      configs=configs, agents=agents)

    @part.get("/web/projects/{project_id}/runs")
    def runs(request: Request, project_id: api.Id, offset: api.Offset = 0, group_id: schemas.RowId | None = None):
        return shown(request, project_id, offset=offset, group_id=group_id)

    @part.post("/web/projects/{project_id}/runs")
    def new_run(request: Request, project_id: api.Id, form: Form):
        def change() -> str:
            wanted = schemas.checked(schemas.RunIn, {name: value for name, value in form.items() if name != "config_id"})
            return f"/web/runs/{operations.queue_run(database, dispatcher, form.get('config_id', ''), wanted).id}"

        return sent(change, partial(shown, request, project_id), form, "config_id")

    return part


def agents(database: Database) -> APIRouter:
    """Return the agents, the forms of those entered by hand, and the buttons of cards."""
    part = APIRouter(prefix="/web/agents")

    def shown(request: Request, status: int = 200, errors: Texts = NOTHING, form: Texts = NOTHING):
        with database.reading() as session:
            running = operations.runs(session, 500, 0, db.Run.state == db.RUNNING)
        return render(request, "agents.html", status, agents=api.agents(database, 500, 0), running=running, errors=errors,
                      form=form)

    @part.get("")
    def agents(request: Request):
        return shown(request)

    @part.post("")
    def new_agent(request: Request, form: Form):
        change = partial(_created, database, db.Agent, schemas.AgentIn, form, "/web/agents", {"manual": True})
        return sent(change, partial(shown, request), form, "name")

    @part.post("/gpus")
    def new_gpu(request: Request, form: Form):
        change = partial(_created, database, db.Gpu, schemas.GpuIn, form, "/web/agents", agent_id=db.Agent)
        return sent(change, partial(shown, request), form, "index")

    @part.post("/{agent_id}/gpus/{index}/{what}")
    def reserve_gpu(agent_id: api.Id, index: api.Index, what: Literal["reserve", "release"]):
        operations.reserve(database, agent_id, index, what == "reserve")
        return RedirectResponse("/web/agents", 303)

    return part


def schedule(database: Database, dispatcher: Dispatcher) -> APIRouter:
    """Return what has run, runs and is planned."""
    part = APIRouter()

    @part.get("/web/schedule")
    def schedule(request: Request):
        planned = api.planned(dispatcher.plan())
        with database.reading() as session:
            past = operations.runs(session, 100, 0, db.Run.started_at.is_not(None))
            waiting = session.execute(select(db.Run.id, db.Run.name).where(db.Run.state == db.QUEUED)
                                      .order_by(db.Run.created_at.desc()).limit(500)).all()
            count = session.scalar(select(func.count()).select_from(db.Run).where(db.Run.state == db.QUEUED))
        names = {run.id: run.name for run in (*past, *waiting)}
        return render(request, "schedule.html", chart=gantt.chart(planned, past, names, db.now()), past=past, planned=planned,
                      names=names, waiting=count)

    return part
