"""All pages together: those of many rows with their forms (projects, configurations, runs, agents), schedule and login."""

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import numpy as np
import pandas as pd
import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field, field_validator
from sqlalchemy import func, select
from sse_starlette.sse import EventSourceResponse

from lib.config import notebooks
from lib.dashboard import configurations, events, schemas, security
from lib.dashboard import database as db
from lib.dashboard.fields import Index, RowId, checked
from lib.dashboard.operations import Offset, Operations
from lib.dashboard.pages import run
from lib.dashboard.pages.rendering import Facts, Form, add_page, render
from lib.errors import choices

_MOST_ROWS = 100
_PROJECT = "/web/projects/{project_id}"
_TICKS, _PAST_S = 5, 3600.0
_STEPS_S = (0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400)  # between two ticks
_BEST = sa.case((db.Run.monitor_mode == "max", -db.Run.best_value), else_=db.Run.best_value)
_SORTS = {"newest": (), "best": (_BEST.is_(None), _BEST), "name": (db.Run.name,), "state": (db.Run.state,),
          "longest": (db.Run.predicted_s.is_(None), db.Run.predicted_s.desc())}
_Search = Annotated[str, Field(max_length=120)]


class Wanted(BaseModel):
    """Which runs of a project are listed, and in which order; all are fields of the list's form."""

    group_id: RowId | None = None
    state: Literal[db.STATES] | None = None
    text: _Search = ""  # a part of the run's name
    tag: _Search = ""
    archived: bool = False
    sort: Literal[tuple(_SORTS)] | None = None
    offset: Offset = 0

    @field_validator("group_id", "state", "sort", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return value or None

    def page(self, operations: Operations, project_id: str) -> list[db.Run]:
        """Return a page of these runs of a project; runs of a group are compared: the best first."""
        archived = db.Run.archived_at.is_not(None) if self.archived else db.Run.archived_at.is_(None)
        named = db.Run.name.icontains(self.text, autoescape=True)
        tagged = sa.cast(db.Run.tags, sa.Text).contains(self.tag and json.dumps(self.tag), autoescape=True)
        order = _SORTS[self.sort or ("best" if self.group_id else "newest")]
        return operations.page(db.Run, _MOST_ROWS, self.offset, archived, named, tagged, first=order, project_id=project_id,
                               group_id=self.group_id, state=self.state)

    def address(self, **changes: Any) -> str:
        """Return the query of the list with some fields changed."""
        fields = self.model_copy(update={"offset": 0, **changes}).model_dump(exclude_defaults=True)
        return "?" + urlencode(fields)


def add_lists(pages: APIRouter, operations: Operations) -> None:
    """Add the lists and their forms."""
    def adding(table: db.Table, wanted: type[schemas.BaseModel], target: str) -> Callable[..., str]:
        """Return the change of a form that brings a new row."""
        return lambda form: target.format(row=operations.add(table, checked(wanted, form).model_dump()))

    def projects() -> Facts:
        with operations.database.reading() as session:
            counts = dict(session.execute(select(db.Run.project_id, func.count()).group_by(db.Run.project_id)).all())
        return {"projects": operations.page(db.Project), "counts": counts}

    def agents() -> Facts:
        return {"agents": operations.page(db.Agent),
                "running": operations.page(db.Run, state=db.RUNNING)}

    def schedule() -> Facts:
        planned = operations.schedule()
        past = operations.page(db.Run, 100, 0, db.Run.started_at.is_not(None))
        in_queue = (db.Run.state == db.QUEUED) & db.Run.job.has()
        with operations.database.reading() as session:
            waiting = dict(session.execute(select(db.Run.id, db.Run.name).where(in_queue)).all())
        attempts = operations.dispatcher.attempts(_PAST_S).to_dict("records")
        return {"chart": chart(planned, attempts), "past": past, "planned": planned, "waiting": len(waiting),
                "unpredicted": len(waiting.keys() - {row["job_id"] for row in planned}),
                "names": {run.id: run.name for run in past} | waiting}

    add_page(pages, "/web/projects", "projects.html", projects,
             ("/web/projects", adding(db.Project, schemas.ProjectIn, "/web/projects/{row.id}/configs"), "name"))
    add_page(pages, "/web/agents", "agents.html", agents,
             ("/web/agents", adding(db.Agent, schemas.AgentIn, "/web/agents"), "name"),
             ("/web/agents/gpus", adding(db.Gpu, schemas.GpuIn, "/web/agents"), "index"))
    add_page(pages, "/web/schedule", "schedule.html", schedule)
    _add_project(pages, operations)

    @pages.post("/web/agents/{agent_id}/gpus/{index}/{change}")
    def allocate(agent_id: RowId, index: Index, change: Literal["reserve", "release"]):
        operations.allocate(change == "reserve", agent_id, index)
        return RedirectResponse("/web/agents", 303)


def _add_project(pages: APIRouter, operations: Operations) -> None:
    """Add the pages of a project: its configurations and its runs, with the forms of new ones."""
    def facts(project_id: str, **rest: Any) -> Facts:
        return {"project": operations.get(db.Project, project_id), **rest,
                "groups": operations.page(db.Group, project_id=project_id),
                "configs": operations.page(db.TrainConfig, project_id=project_id)}

    def configs(project_id: RowId, source_id: RowId | None = None) -> Facts:
        source = operations.get(db.TrainConfig, source_id) if source_id else None
        form = {"source": "json", "name": source.name, "config": json.dumps(source.config_json, indent=1)} if source else {}
        return facts(project_id, form=form, fields=configurations.form_fields(), basic=configurations.BASIC,
                     notebooks=[f"notebooks/{name}.ipynb" for name in notebooks.NOTEBOOKS])

    def new_config(form: Form, project_id: str) -> str:
        operations.save_config(checked(schemas.ConfigIn, {
            "project_id": project_id, "name": form.get("name"), "group_id": form.get("group_id"),
            "config": configurations.config_of(form)}))
        return f"/web/projects/{project_id}/runs"

    def new_group(form: Form, project_id: str) -> str:
        group = checked(schemas.GroupIn, {"project_id": project_id, "name": form.get("group")})
        operations.add(db.Group, group.model_dump())
        return f"/web/projects/{project_id}/configs"

    def runs(project_id: RowId, wanted: Annotated[Wanted, Query()]) -> Facts:
        rows = wanted.page(operations, project_id)
        older = wanted.offset + _MOST_ROWS if len(rows) == _MOST_ROWS else None
        waits = any(run.job and run.state == db.QUEUED for run in rows)
        plans = {row["job_id"]: row for row in (operations.schedule() if waits else ())}
        return facts(project_id, runs=rows, plans=plans, wanted=wanted, older=older, states=db.STATES, sorts=_SORTS,
                     agents=operations.page(db.Agent))

    def new_run(form: Form, project_id: str) -> str:
        wanted = checked(schemas.RunIn, {name: value for name, value in form.items() if name != "config_id"})
        return f"/web/runs/{operations.queue_run(form.get('config_id', ''), wanted).id}"

    add_page(pages, f"{_PROJECT}/configs", "configs.html", configs, (f"{_PROJECT}/configs", new_config, "name"),
             (f"{_PROJECT}/groups", new_group, "group"))
    add_page(pages, f"{_PROJECT}/runs", "runs.html", runs, (f"{_PROJECT}/runs", new_run, "config_id"))


def chart(planned: list[Facts], attempts: list[Facts]) -> Facts:
    """Return the bars of the attempts that ended, as measured, and of a plan, as predicted; all in seconds from now.

    A bar is a row of a plan with its number of a lane, its ``left`` end and its ``width``, in percent of the chart. Beside the
    ``bars`` are the names of the ``lanes``, where ``now`` is (percent), and ``ticks`` (percent, seconds from now).
    """
    bars = pd.DataFrame([*planned, *attempts], columns=list(schemas.PlannedOut.model_fields))
    bars = bars.astype({"start_s": float, "end_s": float}).dropna(subset="start_s")
    bars["end_s"] = bars["end_s"].fillna(bars["start_s"].clip(lower=0.0))
    bars = bars[bars["end_s"] > -_PAST_S].assign(start_s=lambda rows: rows["start_s"].clip(lower=-_PAST_S))
    first = min([0.0, *bars["start_s"]])
    last = max([0.0, first + 1.0, *bars["end_s"]])

    def percent(at_s: Any) -> Any:
        return round(100 * (at_s - first) / (last - first), 3)

    lanes = sorted(set(bars["device"]))
    left = percent(bars["start_s"])
    bars = bars.assign(lane=bars["device"].map(lanes.index), left=left, width=(percent(bars["end_s"]) - left).clip(lower=0.3))
    step_s = next((step_s for step_s in _STEPS_S if step_s * _TICKS >= last - first), (last - first) / _TICKS)
    ticks = [(percent(at_s), at_s) for at_s in step_s * np.arange(np.ceil(first / step_s), np.floor(last / step_s) + 1)]
    return {"bars": bars.to_dict("records"), "lanes": lanes, "now": percent(0.0), "ticks": ticks}


def router(operations: Operations, token: str) -> APIRouter:
    """Return all pages."""
    pages = APIRouter()
    add_lists(pages, operations)
    run.add_run(pages, operations)
    run.add_files(pages, operations)
    run.add_compare(pages, operations)
    _add_login(pages, token)

    @pages.get("/")
    def home():
        return RedirectResponse("/web/projects", 303)

    @pages.get("/docs")
    def docs(request: Request):
        return render(request, "docs.html", api=request.app.openapi(), host=str(request.base_url).rstrip("/"))

    @pages.get("/docs/openapi.json")
    def document(request: Request) -> dict[str, Any]:
        return request.app.openapi()

    @pages.get("/web/changes/{topic}")
    def changes(topic: str):
        if topic not in events.TOPICS:
            raise db.NotFoundError(f"there is no topic {topic}; there are: {choices(events.TOPICS)}")
        return EventSourceResponse(events.changes(operations.database, topic))

    return pages


def _add_login(pages: APIRouter, token: str) -> None:
    @pages.get("/login")
    def login(request: Request, next: str = "/", given: Annotated[str, Query(alias="token")] = ""):
        return enter(request, {"token": given, "next": next}) if given else render(request, "login.html", next=next, error="")

    @pages.post("/login")
    def enter(request: Request, form: Form):
        target = form.get("next", "/")
        if not security.same(form.get("token", "").strip(), token):
            return render(request, "login.html", 401, next=target, error="this is not the token")
        is_page = re.fullmatch(r"/(docs|web/[\w/.-]*)?", target, re.ASCII)
        response = RedirectResponse(target if is_page else "/", 303)
        security.set_cookie(response, token, request.url.scheme == "https")
        return response

    @pages.post("/logout")
    def leave():
        response = RedirectResponse("/login", 303)
        response.delete_cookie(security.COOKIE)
        return response
