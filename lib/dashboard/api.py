"""The REST API under /api/v1: requests are checked by their schemas, answers are rows, errors one readable line."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.security import HTTPBearer
from pydantic import TypeAdapter

from lib.dashboard import database as db
from lib.dashboard import events, schemas
from lib.dashboard.operations import Operations
from lib.dashboard.schemas import RowId

Limit = Annotated[int, Query(ge=1, le=500)]
Offset = Annotated[int, Query(ge=0, le=1_000_000_000)]
_TABLES = (("projects", db.Project, schemas.ProjectIn, schemas.ProjectOut),
           ("groups", db.Group, schemas.GroupIn, schemas.GroupOut),
           ("datasets", db.Dataset, schemas.DatasetIn, schemas.DatasetOut),
           ("models", db.Model, schemas.ModelIn, schemas.ModelOut),
           ("augmentations", db.Augmentation, schemas.AugmentationIn, schemas.AugmentationOut),
           ("agents", db.Agent, schemas.AgentIn, schemas.AgentOut))
_KINDS = {"get": ("GET", 200), "change": ("POST", 200), "new": ("POST", 201)}


class Line(schemas.BaseModel):
    """An error in one line; of a wrong body also by field."""

    detail: str
    errors: dict[str, str] = {}


PROTECTED = {"dependencies": [Depends(HTTPBearer(auto_error=False))], "responses": {
    status: {"model": Line, "description": text} for status, text in (
        (401, "No token, or a wrong one"), (404, "No such row"), (409, "Does not fit what is there"), (413, "Too large"),
        (422, "Wrong input"), (503, "The database is locked or gone; try again"))}}


def router(operations: Operations) -> APIRouter:
    """Return all endpoints but those that agents talk to."""
    api = APIRouter(prefix="/api/v1", **PROTECTED)
    for kind, path, endpoint, shown in (*_rows(operations), *_lists(operations), *_changes(operations)):
        method, status = _KINDS[kind]
        api.add_api_route(path, endpoint, methods=[method], status_code=status, response_model=shown, tags=[path.split("/")[1]])
    events.add_stream(api, "/runs/{run_id}/events", operations.database)
    return api


Route = tuple[str, str, Callable[..., Any], Any]  # a kind, a path, an endpoint, and the model of its answer


def _changes(operations: Operations) -> list[Route]:
    return [
        ("new", "/configs", operations.save_config, schemas.ConfigOut),
        ("change", "/configs/{config_id}/validate", operations.validate_config, schemas.ValidityOut),
        ("new", "/runs/from-config/{config_id}", operations.queue_run, schemas.RunOut),
        ("change", "/runs/{run_id}/cancel", operations.cancel, schemas.RunOut),
        ("change", "/runs/{run_id}/priority", operations.reorder, schemas.RunOut),
        ("change", "/runs/{run_id}/start", operations.start, schemas.RunOut),
        ("change", "/runs/{run_id}/finish", operations.finish, schemas.RunOut),
        ("change", "/agents/{agent_id}/gpus/{index}/reserve", operations.reserve, schemas.GpuOut),
        ("change", "/agents/{agent_id}/gpus/{index}/release", operations.release, schemas.GpuOut),
        ("get", "/schedule", operations.schedule, list[schemas.PlannedOut]),
        ("get", "/auth", _auth, dict[str, bool])]


def _auth() -> dict[str, bool]:
    """Say that the token is right: without it no request gets here."""
    return {"authenticated": True}


def _rows(operations: Operations) -> Iterator[Route]:
    """Yield the endpoints that read or add rows of a table."""
    def page(table: type[db.Base], shown: type[schemas.BaseModel]):
        def rows(limit: Limit = 100, offset: Offset = 0):
            return listed(shown, operations.page(table, limit, offset))

        return rows

    def get(table: type[db.Base]):
        def row(row_id: RowId):
            return operations.get(table, row_id)

        return row

    def add(table: type[db.Base], wanted: type[schemas.BaseModel]):
        def new(body: wanted):
            return operations.add(table, body.model_dump())

        return new

    for name, table, wanted, shown in _TABLES:
        yield "get", f"/{name}", page(table, shown), list[shown]
        yield "get", f"/{name}/{{row_id}}", get(table), shown
        yield "new", f"/{name}", add(table, wanted), shown
    yield "new", "/agents/gpus", add(db.Gpu, schemas.GpuIn), schemas.GpuOut
    yield "change", "/agents/{row_id}/refresh", get(db.Agent), schemas.AgentOut  # agents send news by themselves


def _lists(operations: Operations) -> Iterator[Route]:
    """Yield the endpoints that read configurations and runs."""
    def config(config_id: RowId):
        return operations.get(db.TrainConfig, config_id)

    def configs(project_id: RowId, limit: Limit = 100, offset: Offset = 0):
        operations.get(db.Project, project_id)
        return listed(schemas.ConfigOut, operations.page(db.TrainConfig, limit, offset, project_id=project_id))

    def run(run_id: RowId):
        return operations.get(db.Run, run_id)

    def runs(limit: Limit = 100, offset: Offset = 0, project_id: RowId | None = None, group_id: RowId | None = None,
             state: Annotated[str | None, Query(pattern=f"^({'|'.join(db.STATES)})$")] = None):
        rows = operations.page(db.Run, limit, offset, project_id=project_id, group_id=group_id, state=state)
        return listed(schemas.RunOut, rows)

    def outputs(table: type[db.RunLog] | type[db.RunMetric], shown: type[schemas.BaseModel]):
        def rows_after(run_id: RowId, after: Offset = 0, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000):
            operations.get(db.Run, run_id)
            return listed(shown, operations.database.rows_after(table, run_id, after, limit))

        return rows_after

    def gpus(agent_id: RowId):
        return operations.get(db.Agent, agent_id).gpus

    yield "get", "/configs/{config_id}", config, schemas.ConfigOut
    yield "get", "/configs/project/{project_id}", configs, list[schemas.ConfigOut]
    yield "get", "/runs/{run_id}", run, schemas.RunOut
    yield "get", "/runs", runs, list[schemas.RunOut]
    yield "get", "/runs/{run_id}/logs", outputs(db.RunLog, schemas.LogOut), list[schemas.LogOut]
    yield "get", "/runs/{run_id}/metrics", outputs(db.RunMetric, schemas.MetricOut), list[schemas.MetricOut]
    yield "get", "/agents/{agent_id}/gpus", gpus, list[schemas.GpuOut]


def listed(shown: type[schemas.BaseModel], rows: Sequence[Any]) -> Response:
    """Return rows as JSON, made in the thread that read them: FastAPI would write them in its loop, while all others wait."""
    return Response(_adapter(shown).dump_json(_adapter(shown).validate_python(rows)), media_type="application/json")


@cache
def _adapter(shown: type[schemas.BaseModel]) -> TypeAdapter:
    return TypeAdapter(list[shown])
