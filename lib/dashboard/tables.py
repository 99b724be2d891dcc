"""The tables of the dashboard; a run of the queue is also a job in ``lib.schedule.run.queue``."""

import re
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any

import sqlalchemy as sa
from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.ext.associationproxy import AssociationProxy, association_proxy
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

from lib.dashboard.fields import ROW_ID
from lib.errors import InputError
from lib.schedule.run.database import Base
from lib.schedule.run.queue import CANCELLED, DONE, FAILED, QUEUED, RUNNING, QueueJob

FINISHED = "finished"
PREDICTING = "predicting"  # the status of a job that is not to be started yet
STATES = (QUEUED, RUNNING, FINISHED, FAILED, CANCELLED)
ENDS = (FINISHED, FAILED, CANCELLED)
STATUSES = {QUEUED: (PREDICTING, QUEUED), RUNNING: (RUNNING,), FINISHED: (DONE,), FAILED: (FAILED,),
            CANCELLED: (CANCELLED,)}  # of the queue, by the states of runs
STEPS_BY_HAND = {QUEUED: (RUNNING, CANCELLED), RUNNING: ENDS}


class NotFoundError(InputError):
    """There is no such row."""


class ConflictError(InputError):
    """The request conflicts with existing rows: a name is taken, a state forbids the wanted one."""


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
Numbers = Annotated[list[int], mapped_column(sa.JSON, default=list)]
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

    Its state and times are those of its job in the queue. A run by hand has no job, but columns.
    """

    __tablename__ = "runs"
    project_id: Mapped[ProjectId]
    config_id: Mapped[str] = mapped_column(ForeignKey("train_configs.id"))
    name: Mapped[str]
    folder: Mapped[str] = mapped_column(unique=True)
    monitor_metric: Mapped[Text]
    monitor_mode: Mapped[str] = mapped_column(default="max")
    epochs: Mapped[int | None]
    seed: Mapped[int | None] = mapped_column(sa.BigInteger)
    agent_id: Mapped[str | None]  # where alone it may be placed
    gpu_indices: Mapped[Numbers]  # the cards that it may have
    state_by_hand: Mapped[str | None]
    reason_by_hand: Mapped[Text]
    started_by_hand_at: Mapped[Time | None]
    finished_by_hand_at: Mapped[Time | None]
    config: Mapped[TrainConfig] = relationship(lazy="joined", innerjoin=True)
    group_id: AssociationProxy[str | None] = association_proxy("config", "group_id")
    job: Mapped[QueueJob | None] = relationship(
        primaryjoin=lambda: sa.orm.foreign(QueueJob.job_id) == Run.id, lazy="joined", viewonly=True)

    @property
    def state(self) -> str:
        """Return its state, one of STATES."""
        if not self.job:
            return self.state_by_hand
        return next(state for state, statuses in STATUSES.items() if self.job.status in statuses)

    @property
    def reason(self) -> str:
        """Return why it failed, or waits again."""
        return self.job.reason if self.job else self.reason_by_hand

    @property
    def started_at(self) -> datetime | None:
        """Return when its last attempt started; None while it waits."""
        if not self.job:
            return self.started_by_hand_at
        return None if self.state == QUEUED else _time(self.job.start_s)

    @property
    def finished_at(self) -> datetime | None:
        """Return when it ended."""
        if not self.job:
            return self.finished_by_hand_at
        return _time(self.job.end_s) if self.state in ENDS else None

    def as_dict(self) -> dict[str, Any]:
        """Return what is known of it by name, and its place in the queue as ``job``."""
        columns, job = super().as_dict(), self.job
        columns = {name: columns[name] for name in columns if "by_hand" not in name}
        return columns | {
            "group_id": self.group_id, "state": self.state, "reason": self.reason,
            "started_at": self.started_at, "finished_at": self.finished_at,
            "attempt": job.attempt if job else 0, "device": job.device if job else "",
            "predicted_s": job.predicted_s if job else None,
            "placement": job.placement if job else "",
            "job": job and {"priority": job.priority, "retries": max(0, job.attempt - 1),
                            "last_error": job.reason, "enqueued_at": _time(job.arrival_s)}}


def in_state(state: str) -> sa.ColumnElement[bool]:
    """Return the condition that a run is in a state."""
    return sa.or_(Run.state_by_hand == state, Run.job.has(QueueJob.status.in_(STATUSES[state])))


def get(session: Session, table: type[TableRow], row_id: str) -> Any:
    """Return a row with its relations; NotFoundError names the missing one."""
    row = session.get(table, row_id) if re.fullmatch(ROW_ID, row_id) else None
    if row is None:
        raise NotFoundError(f"there is no {table.__name__.lower()} {row_id}")
    return row
