"""The REST API under /api/v1: requests are checked by their schemas, answers are rows, errors one readable line."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import pandas as pd
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.security import HTTPBearer
from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.orm import selectinload

from lib.dashboard import configurations, events, operations, schemas
from lib.dashboard import database as db
from lib.dashboard.engine import Database
from lib.dashboard.operations import Dispatcher

Limit = Annotated[int, Query(ge=1, le=500)]
Offset = Annotated[int, Query(ge=0, le=1_000_000_000)]
Id = Annotated[schemas.RowId, Path()]
Index = Annotated[int, Path(ge=0, le=1023)]
_NAMED = (("projects", db.Project, schemas.ProjectIn, schemas.ProjectOut, {}),
          ("groups", db.Group, schemas.GroupIn, schemas.GroupOut, {"project_id": db.Project}),
          ("datasets", db.Dataset, schemas.DatasetIn, schemas.DatasetOut, {}),
          ("models", db.Model, schemas.ModelIn, schemas.ModelOut, {}),
          ("augmentations", db.Augmentation, schemas.AugmentationIn, schemas.AugmentationOut, {}))


class Line(schemas.BaseModel):
    """An error in one line; of a wrong body also by field."""

    detail: str
    errors: dict[str, str] = {}


REFUSALS = {status: {"model": Line, "description": text} for status, text in (
    (401, "No token, or a wrong one"), (404, "No such row"), (409, "Does not fit what is there"), (413, "Too large"),
    (422, "Wrong input"), (503, "The database is locked or gone; try again"))}


def router(database: Database, dispatcher: Dispatcher) -> APIRouter:
    """Return all endpoints but those that agents talk to."""
    api = APIRouter(prefix="/api/v1", dependencies=[Depends(HTTPBearer(auto_error=False))], responses=REFUSALS)
    for name, table, wanted, shown, parents in _NAMED:
        _add_named(api, database, name, table, wanted, shown, parents)
    for part in (_configs(database), _runs(database, dispatcher), _outputs(database), _agents(database), _others(dispatcher)):
        api.include_router(part)
    return api


def listed(shown: type[schemas.BaseModel], rows: Sequence[Any]) -> Response:
    """Return rows as JSON, made in the thread that read them: FastAPI would write them in its loop, while all others wait."""
    return Response(_adapter(shown).dump_json(_adapter(shown).validate_python(rows)), media_type="application/json")


@cache
def _adapter(shown: type[schemas.BaseModel]) -> TypeAdapter:
    return TypeAdapter(list[shown])


def page(database: Database, table: type[db.Base], limit: int, offset: int, *conditions: Any) -> list[Any]:
    """Return a page of rows, the newest first."""
    with database.reading() as session:
        return list(session.scalars(select(table).where(*conditions).order_by(table.created_at.desc(), table.id)
                                    .limit(limit).offset(offset)))


def _add_named(api: APIRouter, database: Database, name: str, table: type[db.Base], wanted: type, shown: type,
               parents: dict[str, type[db.Base]]) -> None:
    """Add list, one and new of a table whose rows have names."""
    @api.get(f"/{name}", response_model=list[shown], tags=[name], name=f"list {name}")
    def rows(limit: Limit = 100, offset: Offset = 0):
        return listed(shown, page(database, table, limit, offset))

    @api.get(f"/{name}/{{row_id}}", response_model=shown, tags=[name], name=f"one of {name}")
    def row(row_id: Id):
        return operations.get_loaded(database, table, row_id)

    @api.post(f"/{name}", response_model=shown, status_code=201, tags=[name], name=f"new {name}")
    def new(body: wanted):
        return operations.add(database, table, body.model_dump(), **parents)


def _configs(database: Database) -> APIRouter:
    part = APIRouter(prefix="/configs", tags=["configs"])

    @part.get("/project/{project_id}", response_model=list[schemas.ConfigOut])
    def configs_of_project(project_id: Id, limit: Limit = 100, offset: Offset = 0):
        operations.get_loaded(database, db.Project, project_id)
        rows = page(database, db.TrainConfig, limit, offset, db.TrainConfig.project_id == project_id)
        return listed(schemas.ConfigOut, rows)

    @part.post("", response_model=schemas.ConfigOut, status_code=201)
    def new_config(body: schemas.ConfigIn):
        return operations.save_config(database, body)

    @part.get("/{config_id}", response_model=schemas.ConfigOut)
    def one_config(config_id: Id):
        return operations.get_loaded(database, db.TrainConfig, config_id)

    @part.post("/{config_id}/validate", response_model=schemas.ValidityOut)
    def validate_config(config_id: Id):
        config = operations.get_loaded(database, db.TrainConfig, config_id)
        try:
            configurations.check_config(config.config_json)
        except schemas.FieldsError as error:
            return {"valid": False, "errors": error.errors}
        return {"valid": True, "errors": {}}

    return part


def _runs(database: Database, dispatcher: Dispatcher) -> APIRouter:
    part = APIRouter(prefix="/runs", tags=["runs"])

    @part.get("", response_model=list[schemas.RunOut])
    def list_runs(limit: Limit = 100, offset: Offset = 0, project_id: schemas.RowId | None = None,
                  group_id: schemas.RowId | None = None,
                  state: Annotated[str | None, Query(pattern=f"^({'|'.join(db.STATES)})$")] = None):
        wanted = {db.Run.project_id: project_id, db.Run.state: state, db.TrainConfig.group_id: group_id}
        with database.reading() as session:
            rows = operations.runs(session, limit, offset, *(column == value for column, value in wanted.items() if value))
        return listed(schemas.RunOut, rows)

    @part.get("/{run_id}", response_model=schemas.RunOut)
    def one_run(run_id: Id):
        return operations.get_loaded(database, db.Run, run_id)

    @part.post("/from-config/{config_id}", response_model=schemas.RunOut, status_code=201)
    def queue_run(config_id: Id, body: schemas.RunIn):
        return operations.queue_run(database, dispatcher, config_id, body)

    @part.post("/{run_id}/cancel", response_model=schemas.RunOut)
    def cancel_run(run_id: Id):
        return operations.cancel(database, dispatcher, run_id)

    @part.post("/{run_id}/priority", response_model=schemas.RunOut)
    def reorder_run(run_id: Id, body: schemas.PriorityIn):
        return operations.reorder(database, dispatcher, run_id, body.priority)

    @part.post("/{run_id}/start", response_model=schemas.RunOut)
    def start_manual_run(run_id: Id):
        return operations.move_manually(database, run_id, db.RUNNING)

    @part.post("/{run_id}/finish", response_model=schemas.RunOut)
    def finish_manual_run(run_id: Id, body: schemas.EndIn):
        return operations.move_manually(database, run_id, body.state, body.reason)

    return part


def _outputs(database: Database) -> APIRouter:
    part = APIRouter(prefix="/runs/{run_id}", tags=["runs"])

    def rows_after(table: type[db.Base], shown: type[schemas.BaseModel], run_id: str, after: int, limit: int) -> Response:
        with database.reading() as session:
            operations.get(session, db.Run, run_id)
            rows = session.execute(select(*table.__table__.c).where(table.run_id == run_id, table.id > after).order_by(table.id)
                                   .limit(limit)).all()
        return listed(shown, rows)

    @part.get("/logs", response_model=list[schemas.LogOut])
    def run_logs(run_id: Id, after: Offset = 0, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000):
        return rows_after(db.RunLog, schemas.LogOut, run_id, after, limit)

    @part.get("/metrics", response_model=list[schemas.MetricOut])
    def run_metrics(run_id: Id, after: Offset = 0, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000):
        return rows_after(db.RunMetric, schemas.MetricOut, run_id, after, limit)

    @part.get("/events", response_class=events.EventSourceResponse)
    def run_events(run_id: Id, request: Request, after: events.Cursor = ""):
        return events.of_run(database, run_id, request, after)

    return part


def _agents(database: Database) -> APIRouter:
    part = APIRouter(prefix="/agents", tags=["agents"])

    @part.get("", response_model=list[schemas.AgentOut])
    def list_agents(limit: Limit = 100, offset: Offset = 0):
        return listed(schemas.AgentOut, agents(database, limit, offset))

    @part.post("/gpus", response_model=schemas.GpuOut, status_code=201)
    def new_gpu(body: schemas.GpuIn):
        return operations.add(database, db.Gpu, body.model_dump(), agent_id=db.Agent)

    @part.post("", response_model=schemas.AgentOut, status_code=201)
    def new_manual_agent(body: schemas.AgentIn):
        return operations.add(database, db.Agent, body.model_dump() | {"manual": True})

    @part.post("/{agent_id}/refresh", response_model=schemas.AgentOut)
    def refresh_agent(agent_id: Id):
        """Give an agent as it is: agents say by themselves, each second, what they have."""
        return operations.get_loaded(database, db.Agent, agent_id)

    @part.get("/{agent_id}/gpus", response_model=list[schemas.GpuOut])
    def gpus_of_agent(agent_id: Id):
        return operations.get_loaded(database, db.Agent, agent_id).gpus

    @part.post("/{agent_id}/gpus/{index}/reserve", response_model=schemas.GpuOut)
    def reserve_gpu(agent_id: Id, index: Index):
        return operations.reserve(database, agent_id, index, True)

    @part.post("/{agent_id}/gpus/{index}/release", response_model=schemas.GpuOut)
    def release_gpu(agent_id: Id, index: Index):
        return operations.reserve(database, agent_id, index, False)

    return part


def agents(database: Database, limit: int, offset: int) -> list[db.Agent]:
    """Return a page of agents with their cards, by name."""
    with database.reading() as session:
        return list(session.scalars(select(db.Agent).order_by(db.Agent.name).limit(limit).offset(offset)
                                    .options(selectinload(db.Agent.gpus))))


def _others(dispatcher: Dispatcher) -> APIRouter:
    part = APIRouter()

    @part.get("/schedule", response_model=list[schemas.PlannedOut], tags=["schedule"])
    def schedule():
        return planned(dispatcher.plan())

    @part.get("/auth", tags=["auth"])
    def auth() -> dict[str, bool]:
        """Say that the token is right; without it nothing gets here."""
        return {"authenticated": True}

    return part


def planned(plan: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a plan as rows; a time that nobody knows is None."""
    return [row | {name: row[name] if math.isfinite(row[name]) else None for name in ("start_s", "end_s")}
            for row in plan[list(schemas.PlannedOut.model_fields)].to_dict("records")]
