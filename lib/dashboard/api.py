"""The REST API under /api/v1: requests are checked by their schemas, answers are rows, errors one readable line."""

from collections.abc import Callable
from functools import partial
from inspect import getdoc
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.security import HTTPBearer
from pydantic import BaseModel

from lib.dashboard import database as db
from lib.dashboard import events, schemas
from lib.dashboard.operations import Operations
from lib.dashboard.schemas import OUT

_TABLES = {"projects": (db.Project, schemas.ProjectIn), "groups": (db.Group, schemas.GroupIn),
           "datasets": (db.Dataset, schemas.DatasetIn), "models": (db.Model, schemas.ModelIn),
           "augmentations": (db.Augmentation, schemas.AugmentationIn), "agents": (db.Agent, schemas.AgentIn)}


class Line(BaseModel):
    """An error in one line; of a wrong body also by field."""

    detail: str
    errors: dict[str, str] = {}


PROTECTED = {"dependencies": [Depends(HTTPBearer(auto_error=False))], "responses": {
    status: {"model": Line, "description": text} for status, text in (
        (401, "No token, or a wrong one"), (404, "No such row"), (409, "Does not fit what is there"),
        (410, "The session of the agent is over; register again"), (413, "Too large"), (422, "Wrong input"),
        (503, "The database is locked or gone, or the agent's name is taken; try again"))}}


def router(operations: Operations) -> APIRouter:
    """Return all endpoints but those that agents talk to."""
    api = APIRouter(prefix="/api/v1", **PROTECTED)

    def add(request: str, endpoint: Callable[..., Any], shown: Any, status: int = 200) -> None:
        (method, path), text = request.split(), getdoc(getattr(endpoint, "func", endpoint))
        api.add_api_route(path, endpoint, methods=[method], status_code=status, response_model=shown, tags=[path.split("/")[1]],
                          summary=text.partition("\n")[0], description=text)

    def added(table: db.Table, wanted: type[BaseModel]) -> Callable[..., Any]:
        def new(body: wanted):
            return operations.add(table, body.model_dump())

        new.__doc__ = f"Add a row: {table.__doc__}"
        return new

    def authenticated():
        """Return that the token is right; without it no request gets here."""
        return {"authenticated": True}

    run, config, gpu, agent = (OUT[table] for table in (db.Run, db.TrainConfig, db.Gpu, db.Agent))
    for name, (table, wanted) in _TABLES.items():
        add(f"GET /{name}", partial(operations.rows, table), list[OUT[table]])
        add(f"GET /{name}/{{row_id}}", partial(operations.get, table), OUT[table])
        add(f"POST /{name}", added(table, wanted), OUT[table], 201)
    add("POST /agents/gpus", added(db.Gpu, schemas.GpuIn), gpu, 201)
    add("GET /agents/{agent_id}/gpus", operations.gpus, list[gpu])
    add("POST /agents/{row_id}/refresh", partial(operations.get, db.Agent), agent)  # agents send news by themselves
    for word, reserved in (("reserve", True), ("release", False)):
        add(f"POST /agents/{{agent_id}}/gpus/{{index}}/{word}", partial(operations.allocate, reserved), gpu)
    add("POST /configs", operations.save_config, config, 201)
    add("GET /configs/{row_id}", partial(operations.get, db.TrainConfig), config)
    add("GET /configs/project/{project_id}", operations.configs, list[config])
    add("POST /configs/{config_id}/validate", operations.validate_config, schemas.ValidityOut)
    add("POST /runs/from-config/{config_id}", operations.queue_run, run, 201)
    add("GET /runs", operations.runs, list[run])
    add("GET /runs/{row_id}", partial(operations.get, db.Run), run)
    add("DELETE /runs/{run_id}", operations.delete, run)
    for word, change in operations.changes.items():
        add(f"POST /runs/{{run_id}}/{word}", change, run)
    for word, table in (("logs", db.RunLog), ("metrics", db.RunMetric)):
        add(f"GET /runs/{{run_id}}/{word}", partial(operations.outputs, table), list[OUT[table]])
    add("GET /schedule", operations.schedule, list[schemas.PlannedOut])
    add("GET /auth", authenticated, dict[str, bool])
    events.add_stream(api, "/runs/{run_id}/events", operations.database)
    return api
