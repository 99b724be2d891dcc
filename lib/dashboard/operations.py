"""What the API and the pages both do: each change is checked, and made in one transaction."""

import math
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError

from lib import files, paths
from lib.config.base import whole
from lib.dashboard import configurations, fields, schemas
from lib.dashboard import database as db
from lib.dashboard.database import ConflictError, NotFoundError
from lib.dashboard.database_engine import Database
from lib.dashboard.dispatcher import Dispatcher
from lib.dashboard.fields import RowId

Limit = whole(1, 500)
Offset = whole(0, 1_000_000_000)
_CLASSES = {mapper.local_table: mapper.class_ for mapper in db.Base.registry.mappers}


class Operations:
    """Reads and changes the rows of ``database``, and hands runs to the queue of ``dispatcher``.

    Rows are returned with their relations. All methods raise NotFoundError for a row that does not exist. Their parameters are
    those of the API.
    """

    def __init__(self, database: Database, dispatcher: Dispatcher):
        self.database, self.dispatcher = database, dispatcher

    def page(self, table: db.Table, limit: int = 500, offset: int = 0, *conditions: Any, first: Sequence[Any] = (),
             **values: Any) -> list[Any]:
        """Return a page of rows, by ``first`` and then in the order of their table.

        ``values`` are what columns must be, None leaves one out.
        """
        wanted = {name: value for name, value in values.items() if value is not None}
        rows = select(table).where(*conditions).filter_by(**wanted)
        rows = rows.order_by(*first, *table.order()).limit(limit).offset(offset)
        with self.database.reading() as session:
            return list(session.scalars(rows))

    def rows(self, table: db.Table, limit: Limit = 100, offset: Offset = 0):
        """Return a page of rows, the newest first."""
        return self.page(table, limit, offset)

    def configs(self, project_id: RowId, limit: Limit = 100, offset: Offset = 0):
        """Return a page of a project's configurations."""
        self.get(db.Project, project_id)
        return self.page(db.TrainConfig, limit, offset, project_id=project_id)

    def runs(self, limit: Limit = 100, offset: Offset = 0, project_id: RowId | None = None, group_id: RowId | None = None,
             state: Literal[db.STATES] | None = None):
        """Return a page of runs."""
        return self.page(db.Run, limit, offset, project_id=project_id, group_id=group_id, state=state)

    def outputs(self, table: type[db.Output], run_id: RowId, after: Offset = 0, limit: whole(1, 10_000) = 1000):
        """Return lines or values of a run after the one of an id."""
        self.get(db.Run, run_id)
        return self.database.rows_after(table, run_id, after, limit)

    def gpus(self, agent_id: RowId):
        """Return the cards of an agent."""
        return self.get(db.Agent, agent_id).gpus

    def get(self, table: db.Table, row_id: RowId):
        """Return a row."""
        with self.database.reading() as session:
            return db.get(session, table, row_id)

    def add(self, table: db.Table, values: dict[str, Any]) -> Any:
        """Add a row; NotFoundError for a missing parent, ConflictError where the name is taken."""
        try:
            with self.database.writing() as session:
                for key in table.__table__.foreign_keys:
                    if (row_id := values.get(key.parent.name)) is not None:
                        db.get(session, _CLASSES[key.column.table], row_id)
                session.add(row := table(**values))
        except IntegrityError:
            name = values["index"] if table is db.Gpu else repr(values["name"])
            raise ConflictError(f"there is a {table.__name__.lower()} {name} already; choose another") from None
        return self.get(table, row.id)

    def save_config(self, body: schemas.ConfigIn):
        """Save a valid configuration: the first of its name in the project is version 1, other content is the next version.

        Raises FieldsError for wrong values, and ConflictError where a version has this content already.
        """
        checked = configurations.check_config(body.config)
        with self.database.writing() as session:
            db.get(session, db.Project, body.project_id)
            if body.group_id is not None and db.get(session, db.Group, body.group_id).project_id != body.project_id:
                raise ConflictError("the group is of another project")
            versions = dict(session.execute(select(db.TrainConfig.config_hash, db.TrainConfig.version).filter_by(
                project_id=body.project_id, name=body.name)).all())
            if checked.digest in versions:
                raise ConflictError(f"{body.name} has this content already: it is version {versions[checked.digest]}")
            config = db.TrainConfig(**body.model_dump(exclude={"config"}), kind=checked.kind, config_json=checked.values,
                                    config_hash=checked.digest, version=1 + max(versions.values(), default=0))
            session.add(config)
        return config

    def validate_config(self, config_id: RowId) -> dict[str, Any]:
        """Check a saved configuration again."""
        config = self.get(db.TrainConfig, config_id)
        try:
            configurations.check_config(config.config_json)
        except fields.FieldsError as error:
            return {"valid": False, "errors": error.errors}
        return {"valid": True, "errors": {}}

    def queue_run(self, config_id: RowId, body: schemas.RunIn):
        """Make a run of a configuration and hand it to the queue; without ``enqueue`` somebody carries it out by hand.

        Raises FieldsError where the configuration is no longer valid.
        """
        config = self.get(db.TrainConfig, config_id)
        if body.agent_id is not None:
            self.get(db.Agent, body.agent_id)
        checked = configurations.check_config(config.config_json)
        folder = _new_folder(config, checked)
        run = self.add(db.Run, {
            "project_id": config.project_id, "config_id": config.id, "folder": str(folder.relative_to(paths.DATA)),
            "name": self._next_name(config), "only_agent_id": body.agent_id,
            "job": db.Job(priority=body.priority, deadline_s=body.deadline_s) if body.enqueue else None, **checked.facts,
            **body.model_dump(include={"gpu_indices", "tags"})})
        if body.enqueue:
            self.dispatcher.submit(run.id)
        return run

    def _next_name(self, config: db.TrainConfig) -> str:
        """Return the configuration's name and the number after the last one that a run of that name has."""
        with self.database.reading() as session:
            names = session.scalars(select(db.Run.name).join(db.TrainConfig).where(
                db.Run.project_id == config.project_id, db.TrainConfig.name == config.name))
            numbers = [int(end) for name in names if (end := name.rpartition(" ")[2]).isdecimal()]
        return f"{config.name} {max(numbers, default=0) + 1}"

    @property
    def changes(self) -> dict[str, Callable[..., Any]]:
        """Return what the API and the pages do to a run, by the last word of the address."""
        return {"cancel": self.cancel, "priority": self.reorder, "start": self.start, "finish": self.finish,
                "notes": self.describe, "archive": partial(self.archive, True), "restore": partial(self.archive, False)}

    def describe(self, run_id: RowId, body: schemas.NotesIn):
        """Set the notes and tags of a run."""
        return self._change(run_id, **body.model_dump())

    def archive(self, archived: bool, run_id: RowId):
        """Leave a run out of the lists, or show it there again."""
        return self._change(run_id, archived_at=db.now() if archived else None)

    def _change(self, run_id: str, **values: Any) -> db.Run:
        with self.database.writing() as session:
            run = db.get(session, db.Run, run_id)
            for name, value in values.items():
                setattr(run, name, value)
        return self.get(db.Run, run_id)

    def delete(self, run_id: RowId):
        """Remove a run with its log and metrics, and return it; its folder stays. ConflictError for one that has not ended."""
        with self.database.writing() as session:
            run = db.get(session, db.Run, run_id)
            if run.state not in db.ENDS:
                raise ConflictError(f"the run is {run.state}; cancel it first")
            for table in (db.RunLog, db.RunMetric):
                session.execute(delete(table).where(table.run_id == run_id))
            session.delete(run)
        return run

    def cancel(self, run_id: RowId):
        """End a run: a waiting one at once, a running one when its worker has stopped; ConflictError where it has ended."""
        run = self.get(db.Run, run_id)
        if run.state in db.ENDS:
            raise ConflictError(f"the run is {run.state} already")
        if run.job is None or not self.dispatcher.cancel(run_id):
            if run.job is not None and self.dispatcher.has_ended(run_id):
                raise ConflictError("the run has just ended by itself")
            with self.database.writing() as session:
                db.transition(session, run_id, db.CANCELLED, "cancelled")
        return self.get(db.Run, run_id)

    def start(self, run_id: RowId):
        """Note that somebody has started a run by hand; ConflictError for a run of the queue."""
        return self._move_manually(run_id, db.RUNNING)

    def finish(self, run_id: RowId, body: schemas.EndIn):
        """Note how a run that was carried out by hand ended; ConflictError for a run of the queue."""
        return self._move_manually(run_id, body.state, body.reason)

    def _move_manually(self, run_id: str, state: str, reason: str = "") -> db.Run:
        with self.database.writing() as session:
            if db.get(session, db.Run, run_id).job is not None:
                raise ConflictError("the run is in the queue, and its state is what its worker says; only cancel changes it")
            db.transition(session, run_id, state, reason)
        return self.get(db.Run, run_id)

    def reorder(self, run_id: RowId, body: schemas.PriorityIn):
        """Give a waiting run another priority; ConflictError where it does not wait in the queue."""
        with self.database.writing() as session:
            run = db.get(session, db.Run, run_id)
            if run.job is None or run.state != db.QUEUED:
                raise ConflictError(f"only a run that waits in the queue has a place there; this one is {run.state}")
            run.job.priority = body.priority
            run.updated_at = db.now()
        self.dispatcher.reorder(run_id, body.priority)
        return self.get(db.Run, run_id)

    def allocate(self, allocated: bool, agent_id: RowId, index: fields.Index):
        """Reserve a card, so that nothing is placed on it, or release it; ConflictError where that is so already."""
        with self.database.writing() as session:
            gpu = session.scalar(select(db.Gpu).filter_by(agent_id=agent_id, index=index).with_for_update())
            if gpu is None:
                raise NotFoundError(f"agent {agent_id} has no GPU {index}")
            if gpu.is_allocated == allocated:
                raise ConflictError(f"GPU {index} is {'reserved' if allocated else 'free'} already")
            gpu.is_allocated = allocated
        return gpu

    def schedule(self) -> list[dict[str, Any]]:
        """Return what runs and what is planned, by seconds from now; unknown times are None."""
        plan = self.dispatcher.plan()[list(schemas.PlannedOut.model_fields)]
        return plan.astype(object).where(plan.ne(math.inf) & plan.notna(), None).to_dict("records")


def _new_folder(config: db.TrainConfig, checked: configurations.Checked) -> Path:
    """Make the folder of a new run; of a fine-tune it is ``data/training/<dataset>/<name>``, with -v1, -v2, ... where taken."""
    from lib.finetune import folders
    from lib.finetune.config import TrainConfig

    if checked.kind == "notebook":
        name = folders.plain_name(config.name)[:80]
        return files.folder(paths.DATA / "dashboard/notebooks" / f"{name}-{uuid.uuid4().hex[:12]}")
    return folders.new_folder(TrainConfig(**checked.values))
