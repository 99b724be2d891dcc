"""The REST API under /api/v1: bodies are checked, answers are rows, errors one readable line.

The pages call the same functions.
"""

import hashlib
import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPBearer
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from lib import files, paths
from lib.config.base import whole
from lib.dashboard import bodies, configurations, inventory, outputs
from lib.dashboard import tables as db
from lib.dashboard.bodies import FieldsError, GpuIndex, RowId
from lib.dashboard.database import Database
from lib.dashboard.runner import Runner
from lib.dashboard.tables import ConflictError, NotFoundError
from lib.errors import choices
from lib.schedule.run.jobs_file import NOTEBOOK
from lib.schedule.run.queue import QueueAttempt, QueueJob

Row = dict[str, Any]
Limit = whole(1, 500)
Offset = whole(0, 1_000_000_000)
NEW_ROWS = {"projects": (db.Project, bodies.ProjectIn), "groups": (db.Group, bodies.GroupIn),
            "datasets": (db.Dataset, bodies.DatasetIn), "models": (db.Model, bodies.ModelIn),
            "augmentations": (db.Augmentation, bodies.AugmentationIn),
            "agents": (db.Agent, bodies.AgentIn), "agents/gpus": (db.Gpu, bodies.GpuIn)}
TABLES = {kind: table for kind, (table, _) in NEW_ROWS.items() if table is not db.Gpu}
TABLES["configs"] = db.TrainConfig
ERRORS = {401: "No token, or a wrong one", 404: "No such row", 409: "Does not fit what is there",
          413: "Too large", 422: "Wrong input", 503: "The database is locked or gone; try again"}


@dataclass(frozen=True)
class Board:
    """What endpoints work on: the database, the runner, the token, and the address of MLflow."""

    database: Database
    runner: Runner
    token: str
    mlflow_url: str = ""


def _board(request: Request) -> Board:
    return request.app.state.board


Here = Annotated[Board, Depends(_board)]
api = APIRouter(prefix="/api/v1", dependencies=[Depends(HTTPBearer(auto_error=False))], responses={
    status: {"model": bodies.ErrorOut, "description": text} for status, text in ERRORS.items()})


def _dicts(rows: list[db.TableRow]) -> list[Row]:
    return [row.as_dict() for row in rows]


def _offer_new_rows(kind: str, table: type[db.TableRow], body_type: type[bodies.Body]) -> None:
    """Add the endpoint that adds a row of a table."""
    def add_row(board: Here, body: body_type) -> Row:
        return board.database.add(table, body.model_dump()).as_dict()

    api.post(f"/{kind}", status_code=201, description=f"Add: {body_type.__doc__}")(add_row)


def _offer_rows(kind: str, table: type[db.TableRow]) -> None:
    """Add the endpoints that return the rows of a table, the newest first, and one of them."""
    def list_rows(board: Here, limit: Limit = 100, offset: Offset = 0) -> list[Row]:
        return _dicts(board.database.rows(table, limit=limit, offset=offset))

    def get_row(board: Here, row_id: RowId) -> Row:
        return board.database.get(table, row_id).as_dict()

    api.get(f"/{kind}", description="Return rows, the newest first.")(list_rows)
    api.get(f"/{kind}/{{row_id}}", description="Return one row.")(get_row)


for _kind, (_table, _body_type) in NEW_ROWS.items():
    _offer_new_rows(_kind, _table, _body_type)
for _kind, _table in TABLES.items():
    _offer_rows(_kind, _table)


@api.post("/agents/refresh")
def refresh_agents(board: Here) -> list[Row]:
    """Read the devices of this machine again; return all machines."""
    board.runner.refresh()
    return _dicts(board.database.rows(db.Agent))


@api.get("/agents/{agent_id}/gpus")
def list_gpus(board: Here, agent_id: RowId) -> list[Row]:
    """Return the cards of a machine."""
    return _dicts(board.database.get(db.Agent, agent_id).gpus)


@api.post("/agents/{agent_id}/gpus/{index}/{change}")
def allocate_gpu(board: Here, agent_id: RowId, index: GpuIndex,
                 change: Literal["reserve", "release"]) -> Row:
    """Reserve a card, so that no run is placed on it, or release it."""
    reserved = change == "reserve"
    with board.database.writing() as session:
        wanted = select(db.Gpu).filter_by(agent_id=agent_id, index=index)
        gpu = session.scalar(wanted.with_for_update())
        if gpu is None:
            raise NotFoundError(f"agent {agent_id} has no GPU {index}")
        if gpu.is_allocated == reserved:
            raise ConflictError(f"GPU {index} is {'reserved' if reserved else 'free'} already")
        gpu.is_allocated = reserved
    board.runner.refresh()
    return gpu.as_dict()


@api.post("/configs", status_code=201)
def add_config(board: Here, body: bodies.ConfigIn) -> Row:
    """Save a configuration: other content under the same name is the next version."""
    values = configurations.check_config(body.config_json)
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    with board.database.writing() as session:
        db.get(session, db.Project, body.project_id)
        if body.group_id and db.get(session, db.Group, body.group_id).project_id != body.project_id:
            raise ConflictError("the group is of another project")
        earlier = session.scalars(select(db.TrainConfig).filter_by(
            project_id=body.project_id, name=body.name)).all()
        for config in earlier:
            if config.config_hash == digest:
                raise ConflictError(f"{body.name} has this content: it is version {config.version}")
        config = db.TrainConfig(
            project_id=body.project_id, group_id=body.group_id, name=body.name,
            kind="notebook" if "notebook" in values else "finetune", config_json=values,
            config_hash=digest, version=len(earlier) + 1)
        session.add(config)
    return config.as_dict()


@api.get("/configs/project/{project_id}")
def list_configs(board: Here, project_id: RowId, limit: Limit = 100,
                 offset: Offset = 0) -> list[Row]:
    """Return the configurations of a project, the newest first."""
    board.database.get(db.Project, project_id)
    return _dicts(board.database.rows(db.TrainConfig, limit=limit, offset=offset,
                                      project_id=project_id))


@api.post("/configs/{config_id}/validate")
def validate_config(board: Here, config_id: RowId) -> Row:
    """Check a saved configuration again; return whether it is valid, and errors by field."""
    errors = {}
    try:
        configurations.check_config(board.database.get(db.TrainConfig, config_id).config_json)
    except FieldsError as error:
        errors = error.errors
    return {"valid": not errors, "errors": errors}


@api.post("/runs/from-config/{config_id}", status_code=201)
def queue_run(board: Here, config_id: RowId, body: bodies.RunIn) -> Row:
    """Queue a run of a configuration."""
    config = board.database.get(db.TrainConfig, config_id)
    configurations.check_config(config.config_json)
    with board.database.writing() as session:
        types = inventory.allowed_types(session, body.agent_id, body.gpu_indices)
        folder, task, arguments = _task(config)
        run = db.Run(project_id=config.project_id, config_id=config.id,
                     name=_next_name(session, config), folder=str(folder.relative_to(paths.DATA)),
                     agent_id=body.agent_id, gpu_indices=body.gpu_indices)
        session.add(run)
        session.flush()
        session.add(QueueJob(
            job_id=run.id, task=task if body.enqueue else "", arguments=arguments,
            job_class=config.config_hash, devices=config.config_json.get("devices", 1),
            device_types=types, priority=body.priority, arrival_s=time.time(),
            status=db.PREDICTING if body.enqueue else db.WAITS_BY_HAND))
    return get_run(board, run.id)


def _task(config: db.TrainConfig) -> tuple[Path, str, Row]:
    """Make the folder of a new run; return it, and the task with its arguments."""
    from lib.finetune import folders
    from lib.finetune.config import TrainConfig

    values = config.config_json
    if config.kind != "notebook":
        folder = folders.new_folder(TrainConfig(**values))
        return folder, "lib.finetune.task:finetune", {"config": values, "folder": str(folder)}
    name = f"{folders.plain_name(config.name)[:80]}-{uuid.uuid4().hex[:12]}"
    folder = files.folder(paths.DATA / "dashboard/notebooks" / name)
    return folder, NOTEBOOK, {"path": values["notebook"], "parameters": values["parameters"],
                              "out": str(folder / Path(values["notebook"]).name)}


def _next_name(session: Session, config: db.TrainConfig) -> str:
    """Return the configuration's name and the number after the last run of that name."""
    earlier = select(db.Run.name).join(db.TrainConfig).where(
        db.Run.project_id == config.project_id, db.TrainConfig.name == config.name)
    numbers = [int(name.rpartition(" ")[2]) for name in session.scalars(earlier)]
    return f"{config.name} {max(numbers, default=0) + 1}"


@api.get("/runs")
def list_runs(board: Here, limit: Limit = 100, offset: Offset = 0, project_id: RowId | None = None,
              group_id: RowId | None = None, state: Literal[db.STATES] | None = None) -> list[Row]:
    """Return runs, the newest first."""
    conditions = [db.in_state(state)] if state else []
    runs = board.database.rows(db.Run, *conditions, limit=limit, offset=offset,
                               project_id=project_id, group_id=group_id)
    return [run.as_dict() | outputs.progress(run) for run in runs]


@api.get("/runs/{run_id}")
def get_run(board: Here, run_id: RowId) -> Row:
    """Return a run."""
    run = board.database.get(db.Run, run_id)
    return run.as_dict() | outputs.progress(run)


@api.delete("/runs/{run_id}")
def delete_run(board: Here, run_id: RowId) -> Row:
    """Remove a run that has ended; its folder stays."""
    with board.database.writing() as session:
        run = db.get(session, db.Run, run_id)
        if run.state not in db.ENDS:
            raise ConflictError(f"the run is {run.state}; cancel it first")
        deleted = run.as_dict()
        session.execute(delete(QueueAttempt).where(QueueAttempt.number == run.job.number))
        session.execute(delete(QueueJob).where(QueueJob.number == run.job.number))
        session.delete(run)
    return deleted


@api.post("/runs/{run_id}/cancel")
def cancel_run(board: Here, run_id: RowId) -> Row:
    """End a run: a waiting one at once, a running one when its worker has stopped."""
    if board.database.get(db.Run, run_id).by_hand:
        return _move_by_hand(board, run_id, db.CANCELLED)
    waits = update(QueueJob).where(QueueJob.job_id == run_id,
                                   QueueJob.status.in_(db.STATUSES[db.QUEUED]))
    ended = waits.values(status=db.CANCELLED, cancel=True, start_s=None, end_s=time.time())
    with board.database.writing() as session:
        cancelled = session.execute(ended).rowcount
    if not cancelled and not board.database.queue.cancel(run_id):
        raise ConflictError(f"the run is {get_run(board, run_id)['state']} already")
    return get_run(board, run_id)


@api.post("/runs/{run_id}/start")
def start_run(board: Here, run_id: RowId) -> Row:
    """Note that somebody has started a run by hand."""
    return _move_by_hand(board, run_id, db.RUNNING)


@api.post("/runs/{run_id}/finish")
def finish_run(board: Here, run_id: RowId, body: bodies.EndIn) -> Row:
    """Note how a run by hand ended."""
    return _move_by_hand(board, run_id, body.state, body.reason)


def _move_by_hand(board: Board, run_id: str, state: str, reason: str = "") -> Row:
    steps = {db.QUEUED: (db.RUNNING, db.CANCELLED), db.RUNNING: db.ENDS}
    with board.database.writing() as session:
        run = db.get(session, db.Run, run_id)
        if not run.by_hand:
            raise ConflictError("the run is in the queue, and its state is what its worker says; "
                                "only cancel changes it")
        if state not in (possible := steps.get(run.state, ())):
            leads = choices(possible) or "no other state"
            raise ConflictError(f"the run is {run.state}, which leads to {leads}; not to {state}")
        run.job.status, run.job.reason = db.STATUSES[state][-1], reason
        if state == db.RUNNING:
            run.job.start_s = time.time()
        else:
            run.job.end_s = time.time()
    return get_run(board, run_id)


@api.post("/runs/{run_id}/priority")
def reorder_run(board: Here, run_id: RowId, body: bodies.PriorityIn) -> Row:
    """Give a waiting run another priority."""
    with board.database.writing() as session:
        run = db.get(session, db.Run, run_id)
        if run.by_hand or run.state != db.QUEUED:
            raise ConflictError("only a run that waits has a place in the queue; it is "
                                f"{run.state}")
        run.job.priority = body.priority
    return get_run(board, run_id)


@api.get("/runs/{run_id}/logs")
def list_log_lines(board: Here, run_id: RowId, after: Offset = 0,
                   limit: whole(1, 10_000) = 1000) -> list[Row]:
    """Return lines of a run's log, those after a number; they count from 1."""
    lines = outputs.log_lines(board.database.get(db.Run, run_id), after, limit)
    return [{"n": n, "line": line} for n, line in enumerate(lines, after + 1)]


@api.get("/schedule")
def get_schedule(board: Here) -> list[Row]:
    """Return the runs that run, then those that wait: the highest priority first."""
    return _dicts(runs_in_order(board.database))


def runs_in_order(database: Database) -> list[db.Run]:
    """Return the runs of the queue that run, then the first 500 that wait, by priority."""
    chosen = select(db.Run).join(QueueJob, QueueJob.job_id == db.Run.id)
    waiting = chosen.where(QueueJob.status.in_((db.QUEUED, db.PREDICTING))).order_by(
        QueueJob.priority.desc(), QueueJob.number).limit(500)
    with database.reading() as session:
        running = session.scalars(chosen.where(QueueJob.status == db.RUNNING))
        return [*running, *session.scalars(waiting)]


@api.get("/auth")
def get_auth() -> dict[str, bool]:
    """Return that the token is right; without it no request gets here."""
    return {"authenticated": True}
