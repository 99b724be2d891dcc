"""What the API and the pages both do: each function is one change, checked, in one transaction."""

import re
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pandas as pd
from fastapi import APIRouter
from sqlalchemy import Row, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from lib import files, paths
from lib.dashboard import configurations, schemas
from lib.dashboard import database as db
from lib.dashboard.database import ConflictError, NotFoundError
from lib.dashboard.engine import Database

_RUN, _JOB = (tuple(table.__table__.c.keys()) for table in (db.Run, db.Job))
_RUNS = (select(*db.Run.__table__.c, *db.Job.__table__.c, db.Agent.name, db.TrainConfig.name).select_from(db.Run)
         .join(db.TrainConfig, db.TrainConfig.id == db.Run.config_id).outerjoin(db.Job)
         .outerjoin(db.Agent, db.Agent.id == db.Run.agent_id).order_by(db.Run.created_at.desc(), db.Run.id))


class Dispatcher(Protocol):
    """What places runs on agents; its ``router`` is what agents talk to, mounted under /api/v1."""

    router: APIRouter

    def start(self) -> None:
        """Begin to serve the queue."""

    def close(self) -> None:
        """End; what runs stays in the journal."""

    def submit(self, run: db.Run) -> None:
        """Take a queued run, with its job and configuration; one that is known already stays."""

    def cancel(self, run_id: str) -> bool:
        """End a run; False where it is not known, or has ended."""

    def has_ended(self, run_id: str) -> bool:
        """Return whether the queue knows how a run ended, which is in the database a moment later."""

    def reorder(self, run_id: str, priority: int) -> bool:
        """Give a waiting run another priority; False where it is not known, or does not wait."""

    def plan(self) -> pd.DataFrame:
        """Return job_id, device, start_s, end_s (from now), status and reason of what runs and what is planned."""


def get(session: Session, table: type[db.Base], row_id: str) -> Any:
    """Return a row; NotFoundError names what is missing."""
    row = session.get(table, row_id) if re.fullmatch(schemas.ROW_ID, row_id) else None
    if row is None:
        raise NotFoundError(f"there is no {table.__name__.lower()} {row_id}")
    return row


def add(database: Database, table: type[db.Base], values: dict[str, Any], **parents: type[db.Base]) -> Any:
    """Add a row whose columns ``parents`` name rows of other tables.

    Raises NotFoundError where one of those is missing, ConflictError where the name is taken.
    """
    try:
        with database.writing() as session:
            for column, parent in parents.items():
                if values.get(column) is not None:
                    get(session, parent, values[column])
            row = table(**values)
            session.add(row)
            session.flush()
    except IntegrityError:
        name = values["index"] if table is db.Gpu else repr(values["name"])
        raise ConflictError(f"there is a {table.__name__.lower()} {name} already; choose another") from None
    return get_loaded(database, table, row.id)


def get_loaded(database: Database, table: type[db.Base], row_id: str) -> Any:
    """Return a row with all that its schema shows."""
    with database.reading() as session:
        row = get(session, table, row_id)
        if isinstance(row, db.Run):
            _ = row.job, row.config, row.agent
        elif isinstance(row, db.Agent):
            _ = row.gpus
        return row


def save_config(database: Database, wanted: schemas.ConfigIn) -> db.TrainConfig:
    """Keep a valid configuration: the first of its name in the project is version 1, another content the next version.

    Raises FieldsError for wrong values, NotFoundError, and ConflictError where the same is there already.
    """
    checked = configurations.check_config(wanted.config)
    with database.writing() as session:
        get(session, db.Project, wanted.project_id)
        if wanted.group_id is not None and get(session, db.Group, wanted.group_id).project_id != wanted.project_id:
            raise ConflictError("the group is of another project")
        versions = select(db.TrainConfig).where(db.TrainConfig.project_id == wanted.project_id,
                                                db.TrainConfig.name == wanted.name)
        same = session.scalar(versions.where(db.TrainConfig.config_hash == checked.digest))
        if same is not None:
            raise ConflictError(f"{wanted.name} has this content already: it is version {same.version}")
        newest = session.scalar(versions.with_only_columns(func.max(db.TrainConfig.version))) or 0
        config = db.TrainConfig(project_id=wanted.project_id, group_id=wanted.group_id, name=wanted.name, kind=checked.kind,
                                config_json=checked.values, config_hash=checked.digest, version=newest + 1)
        session.add(config)
    return config


def queue_run(database: Database, dispatcher: Dispatcher, config_id: str, wanted: schemas.RunIn) -> db.Run:
    """Make a run of a configuration and hand it to the queue (``enqueue``), or keep it for somebody who carries it out.

    Raises FieldsError where the configuration no longer is valid, NotFoundError where it or the agent is missing.
    """
    with database.reading() as session:
        config = get(session, db.TrainConfig, config_id)
        if wanted.agent_id is not None:
            get(session, db.Agent, wanted.agent_id)
    checked = configurations.check_config(config.config_json)
    folder = _new_folder(config, checked)
    name = folder.name if checked.kind == "finetune" else config.name
    run = db.Run(project_id=config.project_id, config_id=config.id, name=name, folder=str(folder.relative_to(paths.DATA)),
                 epochs=checked.epochs, monitor_metric=checked.monitor_metric, monitor_mode=checked.monitor_mode,
                 seed=checked.seed, only_agent_id=wanted.agent_id, gpu_indices=wanted.gpu_indices, env=wanted.env,
                 docker_image=wanted.docker_image, tags=wanted.tags)
    run.job = db.Job(priority=wanted.priority) if wanted.enqueue else None
    with database.writing() as session:
        session.add(run)
    run = get_loaded(database, db.Run, run.id)
    if wanted.enqueue:
        dispatcher.submit(run)
    return run


def _new_folder(config: db.TrainConfig, checked: configurations.Checked) -> Path:
    """Make the folder of a new run; of a fine-tune it is ``data/training/<dataset>/<name>``, with -v1, -v2, ... where taken."""
    if checked.kind == "notebook":
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", config.name).strip("._-")[:80] or "run"
        return files.folder(paths.DATA / "dashboard/notebooks" / f"{name}-{uuid.uuid4().hex[:12]}")
    from lib.finetune import config as finetune_config
    from lib.finetune import finetune

    return finetune.new_folder(finetune_config.TrainConfig(**checked.values))


def cancel(database: Database, dispatcher: Dispatcher, run_id: str) -> db.Run:
    """End a run: one that waits at once, one that runs when its worker has stopped; ConflictError where it has ended."""
    run = get_loaded(database, db.Run, run_id)
    if run.state in db.ENDS:
        raise ConflictError(f"the run is {run.state} already")
    if run.job is None or not dispatcher.cancel(run_id):
        if run.job is not None and dispatcher.has_ended(run_id):
            raise ConflictError("the run has just ended by itself")
        with database.writing() as session:
            db.transition(session, run_id, db.CANCELLED, "cancelled")
    return get_loaded(database, db.Run, run_id)


def move_manually(database: Database, run_id: str, state: str, reason: str = "") -> db.Run:
    """Say of a run that is carried out by hand that it runs or how it ended; ConflictError for a run of the queue."""
    with database.writing() as session:
        if get(session, db.Run, run_id).job is not None:
            raise ConflictError("the run is in the queue, and its state is what its worker says; only cancel changes it")
        db.transition(session, run_id, state, reason)
    return get_loaded(database, db.Run, run_id)


def reorder(database: Database, dispatcher: Dispatcher, run_id: str, priority: int) -> db.Run:
    """Give a waiting run another priority; ConflictError where it does not wait in the queue."""
    with database.writing() as session:
        run = get(session, db.Run, run_id)
        if run.job is None or run.state != db.QUEUED:
            raise ConflictError(f"only a run that waits in the queue has a place there; this one is {run.state}")
        run.job.priority = priority
        run.updated_at = db.now()
    dispatcher.reorder(run_id, priority)
    return get_loaded(database, db.Run, run_id)


def reserve(database: Database, agent_id: str, index: int, wanted: bool) -> db.Gpu:
    """Reserve a card, so that nothing is placed on it, or release it; ConflictError where it is so already."""
    with database.writing() as session:
        chosen = (db.Gpu.agent_id == agent_id, db.Gpu.index == index)
        changed = session.execute(update(db.Gpu).where(*chosen, db.Gpu.is_allocated != wanted)
                                  .values(is_allocated=wanted, updated_at=db.now()))
        gpu = session.scalar(select(db.Gpu).where(*chosen))
        if gpu is None:
            raise NotFoundError(f"agent {agent_id} has no GPU {index}")
        if not changed.rowcount:
            raise ConflictError(f"GPU {index} is {'reserved' if wanted else 'free'} already")
        return gpu


def runs(session: Session, limit: int, offset: int, *conditions: Any) -> list[SimpleNamespace]:
    """Return a page of runs, the newest first: columns, and ``job``, ``agent`` (None without one) and ``config``.

    ``agent`` and ``config`` have their names, ``job`` all columns. They are plain values, which
    are made in a fraction of the time that objects of the tables take.
    """
    return [_plain(row) for row in session.execute(_RUNS.where(*conditions).limit(limit).offset(offset))]


def _plain(row: Row) -> SimpleNamespace:
    """Return a run with its job and agent; all columns of the others are empty where there is none."""
    run, job = (dict(zip(names, values, strict=True)) for names, values in ((_RUN, row[:len(_RUN)]), (_JOB, row[len(_RUN):-2])))
    return SimpleNamespace(**run, job=SimpleNamespace(**job) if job["id"] else None,
                           agent=SimpleNamespace(name=row[-2]) if row[-2] else None, config=SimpleNamespace(name=row[-1]))
