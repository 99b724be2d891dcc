"""The tables of the dashboard; the state of a run is that of its job in the queue."""

import re
import time
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any

import sqlalchemy as sa
from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.ext.associationproxy import AssociationProxy, association_proxy
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

from lib.errors import InputError
from lib.schedule.run.database import Base
from lib.schedule.run.queue import CANCELLED, DONE, FAILED, QUEUED, RUNNING, QueueJob

ROW_ID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
FINISHED = "finished"
STATES = (QUEUED, RUNNING, FINISHED, FAILED, CANCELLED)
ENDS = (FINISHED, FAILED, CANCELLED)
# statuses of jobs that nobody starts (yet): they are being predicted, or carried out by hand
PREDICTING, WAITS_BY_HAND, RUNS_BY_HAND = "predicting", "waits by hand", "runs by hand"
STATUSES = {QUEUED: (PREDICTING, QUEUED, WAITS_BY_HAND), RUNNING: (RUNNING, RUNS_BY_HAND),
            FINISHED: (DONE,), FAILED: (FAILED,), CANCELLED: (CANCELLED,)}  # by the states of runs


class NotFoundError(InputError):
    """There is no such row."""

    status = 404  # of HTTP


class ConflictError(InputError):
    """The request conflicts with existing rows: a name is taken, a state forbids the wanted one."""

    status = 409


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


def _time(unix_s: float | None) -> datetime | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC)


class UtcTime(TypeDecorator):
    """A time in UTC; SQLite keeps no zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value, dialect):
        """Return a time with its zone."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


Time = Annotated[datetime, mapped_column(UtcTime)]
Json = Annotated[dict[str, Any], mapped_column(sa.JSON, default=dict)]
Texts = Annotated[list[str], mapped_column(sa.JSON, default=list)]
Text = Annotated[str, mapped_column(sa.Text, default="")]
ProjectId = Annotated[str, mapped_column(ForeignKey("projects.id"), index=True)]


class TableRow(Base):
    """Base of the tables: an id, and when a row was made and changed."""

    __abstract__ = True
    id: Mapped[str] = mapped_column(primary_key=True, default=lambda: str(uuid.uuid4()))
    created_at: Mapped[Time] = mapped_column(default=now)
    updated_at: Mapped[Time] = mapped_column(default=now, onupdate=now)

    def as_dict(self) -> dict[str, Any]:
        """Return its columns by name."""
        return {column.key: getattr(self, column.key) for column in sa.inspect(type(self)).columns}


class Project(TableRow):
    """A project: groups, configurations and runs."""

    __tablename__ = "projects"
    name: Mapped[str] = mapped_column(unique=True)
    description: Mapped[Text]


class Group(TableRow):
    """Configurations of a project that belong together."""

    __tablename__ = "experiment_groups"
    __table_args__ = (UniqueConstraint("project_id", "name"),)
    project_id: Mapped[ProjectId]
    name: Mapped[str]
    description: Mapped[Text]
    tags: Mapped[Texts]


class Dataset(TableRow):
    """A dataset."""

    __tablename__ = "datasets"
    name: Mapped[str] = mapped_column(unique=True)
    description: Mapped[Text]
    root_path: Mapped[Text]
    split_layout: Mapped[Json]
    class_map: Mapped[Json]
    sample_stats: Mapped[Json]


class Model(TableRow):
    """A network."""

    __tablename__ = "models"
    label: Mapped[str] = mapped_column(unique=True)
    hf_checkpoint_id: Mapped[Text]
    default_pretrained: Mapped[bool]
    notes: Mapped[Text]


class Augmentation(TableRow):
    """An augmentation with its parameters."""

    __tablename__ = "augmentations"
    name: Mapped[str] = mapped_column(unique=True)
    type: Mapped[Text]
    params: Mapped[Json]
    enabled: Mapped[bool]
    version: Mapped[Text]


class Agent(TableRow):
    """A machine of the inventory; ``slots`` are its devices for runs, none if entered by hand."""

    __tablename__ = "agents"
    name: Mapped[str] = mapped_column(unique=True)
    host: Mapped[Text]
    labels: Mapped[Json]
    description: Mapped[Text]
    manual: Mapped[bool] = mapped_column(default=True)
    slots: Mapped[Texts]
    last_heartbeat_at: Mapped[Time | None]
    gpus: Mapped[list["Gpu"]] = relationship(order_by="Gpu.index", lazy="selectin")

    def as_dict(self) -> dict[str, Any]:
        """Return its columns by name, and its cards."""
        return super().as_dict() | {"gpus": [gpu.as_dict() for gpu in self.gpus]}


class Gpu(TableRow):
    """A card of an agent; nothing is placed on it while it is reserved (``is_allocated``)."""

    __tablename__ = "gpus"
    __table_args__ = (UniqueConstraint("agent_id", "index"),)
    agent_id: Mapped[str] = mapped_column(ForeignKey("agents.id"))
    index: Mapped[int]
    uuid: Mapped[Text]
    name: Mapped[Text]
    total_mem_mb: Mapped[int] = mapped_column(default=0)
    compute_capability: Mapped[Text]
    is_allocated: Mapped[bool] = mapped_column(default=False)
    last_seen_at: Mapped[Time | None]


class TrainConfig(TableRow):
    """A configuration of a fine-tune (``kind`` finetune), or of a notebook with its parameters."""

    __tablename__ = "train_configs"
    __table_args__ = (UniqueConstraint("project_id", "name", "version"),
                      UniqueConstraint("project_id", "name", "config_hash"))
    project_id: Mapped[ProjectId]
    group_id: Mapped[str | None] = mapped_column(ForeignKey("experiment_groups.id"))
    name: Mapped[str]
    kind: Mapped[str]
    config_json: Mapped[Json]
    config_hash: Mapped[str]  # SHA-256 of the JSON with sorted keys, all defaults filled in
    version: Mapped[int] = mapped_column(default=1)
    status: Mapped[str] = mapped_column(default="valid")


class Run(TableRow):
    """One run of a configuration; its ``folder`` lies in ``paths.DATA``.

    Its state and times are those of its job. That of a run by hand has no task.
    """

    __tablename__ = "runs"
    project_id: Mapped[ProjectId]
    config_id: Mapped[str] = mapped_column(ForeignKey("train_configs.id"))
    name: Mapped[str]
    folder: Mapped[str] = mapped_column(unique=True)
    agent_id: Mapped[str | None]  # where alone it may be placed
    gpu_indices: Mapped[list[int]] = mapped_column(sa.JSON, default=list)  # that it may have
    config: Mapped[TrainConfig] = relationship(lazy="joined", innerjoin=True)
    group_id: AssociationProxy[str | None] = association_proxy("config", "group_id")
    job: Mapped[QueueJob] = relationship(
        primaryjoin=lambda: sa.orm.foreign(QueueJob.job_id) == Run.id, lazy="joined",
        innerjoin=True, viewonly=True, uselist=False)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the fields of its fine-tune, or the parameters of its notebook."""
        return self.config.config_json.get("parameters", self.config.config_json)

    @property
    def by_hand(self) -> bool:
        """Return whether somebody carries it out by hand."""
        return not self.job.task

    @property
    def state(self) -> str:
        """Return its state, one of STATES."""
        return next(state for state, statuses in STATUSES.items() if self.job.status in statuses)

    @property
    def taken_s(self) -> float | None:
        """Return the seconds of its last attempt, until now while it runs; None while it waits."""
        if self.state == QUEUED or self.job.start_s is None:
            return None
        return (self.job.end_s or time.time()) - self.job.start_s

    def as_dict(self) -> dict[str, Any]:
        """Return what is known of it by name, and its place in the queue as ``job``."""
        job, place = self.job, None
        if not self.by_hand:
            place = {"priority": job.priority, "retries": max(0, job.attempt - 1),
                     "last_error": job.reason, "enqueued_at": _time(job.arrival_s)}
        names = ("monitor_metric", "monitor_mode", "epochs", "seed")
        return super().as_dict() | {name: self.settings.get(name) for name in names} | {
            "group_id": self.group_id, "state": self.state, "reason": job.reason,
            "started_at": None if self.state == QUEUED else _time(job.start_s),
            "finished_at": _time(job.end_s), "attempt": job.attempt, "device": job.device,
            "predicted_s": job.predicted_s, "placement": job.placement, "job": place}


def in_state(state: str) -> sa.ColumnElement[bool]:
    """Return the condition that a run is in a state."""
    return Run.job.has(QueueJob.status.in_(STATUSES[state]))


def get(session: Session, table: type[TableRow], row_id: str) -> Any:
    """Return a row with its relations; NotFoundError names the missing one."""
    row = session.get(table, row_id) if re.fullmatch(ROW_ID, row_id) else None
    if row is None:
        raise NotFoundError(f"there is no {table.__name__.lower()} {row_id}")
    return row
