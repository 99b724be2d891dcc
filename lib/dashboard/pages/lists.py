"""The pages of many rows, with their forms: projects, configurations, runs, agents."""

import math
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import RedirectResponse
from sqlalchemy import func, select

from lib.config import notebooks
from lib.dashboard import configurations, schemas
from lib.dashboard import database as db
from lib.dashboard.api import Offset
from lib.dashboard.operations import Operations
from lib.dashboard.pages.rendering import add_page
from lib.dashboard.schemas import RowId, checked

_MOST_ROWS, _MOST_CHOICES = 100, 500
_PROJECT = "/web/projects/{project_id}"


def add_projects(pages: APIRouter, operations: Operations) -> None:
    """Add the list of projects, and the form of a new one."""
    def facts() -> dict[str, Any]:
        with operations.database.reading() as session:
            counts = dict(session.execute(select(db.Run.project_id, func.count()).group_by(db.Run.project_id)).all())
        return {"projects": operations.page(db.Project, _MOST_CHOICES), "counts": counts}

    def new_project(form: dict[str, str]) -> str:
        return f"/web/projects/{operations.add(db.Project, checked(schemas.ProjectIn, form).model_dump()).id}/configs"

    add_page(pages, "/web/projects", "projects.html", facts, ("/web/projects", new_project, "name"))


def add_configs(pages: APIRouter, operations: Operations) -> None:
    """Add the configurations of a project, and the forms of new ones."""
    def facts(project_id: RowId) -> dict[str, Any]:
        return {"project": operations.get(db.Project, project_id), "fields": configurations.form_fields(),
                "notebooks": [f"notebooks/{name}.ipynb" for name in notebooks.NOTEBOOKS],
                "groups": operations.page(db.Group, _MOST_CHOICES, project_id=project_id),
                "configs": operations.page(db.TrainConfig, 200, project_id=project_id)}

    def new_config(form: dict[str, str], project_id: str) -> str:
        values = {"project_id": project_id, "name": form.get("name", ""), "group_id": form.get("group_id", ""),
                  "config": configurations.config_of(form)}
        operations.save_config(checked(schemas.ConfigIn, values))
        return f"/web/projects/{project_id}/runs"

    def new_group(form: dict[str, str], project_id: str) -> str:
        group = checked(schemas.GroupIn, {"project_id": project_id, "name": form.get("group", "")})
        operations.add(db.Group, group.model_dump())
        return f"/web/projects/{project_id}/configs"

    add_page(pages, f"{_PROJECT}/configs", "configs.html", facts, (f"{_PROJECT}/configs", new_config, "name"),
             (f"{_PROJECT}/groups", new_group, "group"))


def add_runs(pages: APIRouter, operations: Operations) -> None:
    """Add the runs of a project, and the form of a new one."""
    def facts(project_id: RowId, offset: Offset = 0, group_id: RowId | None = None) -> dict[str, Any]:
        rows = operations.page(db.Run, _MOST_ROWS, offset, project_id=project_id, group_id=group_id)
        if group_id:  # its runs are compared: the best first
            rows.sort(key=lambda run: math.inf if run.best_value is None else
                      -run.best_value if run.monitor_mode == "max" else run.best_value)
        return {"project": operations.get(db.Project, project_id), "runs": rows, "group_id": group_id,
                "groups": operations.page(db.Group, _MOST_CHOICES, project_id=project_id),
                "older": offset + _MOST_ROWS if len(rows) == _MOST_ROWS else None,
                "configs": operations.page(db.TrainConfig, _MOST_CHOICES, project_id=project_id),
                "agents": operations.page(db.Agent, _MOST_CHOICES)}

    def new_run(form: dict[str, str], project_id: str) -> str:
        config_id = form.get("config_id", "")
        wanted = checked(schemas.RunIn, {name: value for name, value in form.items() if name != "config_id"})
        return f"/web/runs/{operations.queue_run(config_id, wanted).id}"

    add_page(pages, f"{_PROJECT}/runs", "runs.html", facts, (f"{_PROJECT}/runs", new_run, "config_id"))


def add_agents(pages: APIRouter, operations: Operations) -> None:
    """Add the agents, the forms of those entered by hand, and the buttons of cards."""
    def facts() -> dict[str, Any]:
        return {"agents": operations.page(db.Agent, _MOST_CHOICES),
                "running": operations.page(db.Run, _MOST_CHOICES, state=db.RUNNING)}

    def new(table: type[db.Base], wanted: type[schemas.BaseModel]):
        def change(form: dict[str, str]) -> str:
            operations.add(table, checked(wanted, form).model_dump())
            return "/web/agents"

        return change

    add_page(pages, "/web/agents", "agents.html", facts, ("/web/agents", new(db.Agent, schemas.AgentIn), "name"),
             ("/web/agents/gpus", new(db.Gpu, schemas.GpuIn), "index"))

    @pages.post("/web/agents/{agent_id}/gpus/{index}/{change}")
    def allocate(agent_id: RowId, index: schemas.Index, change: Literal["reserve", "release"]):
        {"reserve": operations.reserve, "release": operations.release}[change](agent_id, index)
        return RedirectResponse("/web/agents", 303)
