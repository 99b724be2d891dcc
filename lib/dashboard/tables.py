"""The tables of the dashboard, and ``transition``, the one function that changes the state of a run.

A run of the queue has a row in ``jobs`` (priority, retries, last error); a run that somebody carries
out by hand has none.
"""

import re
import uuid
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ForeignKey, UniqueConstraint, select, update
from sqlalchemy.ext.associationproxy import AssociationProxy, association_proxy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

from lib.dashboard.fields import ROW_ID
from lib.errors import InputError, choices, printable

QUEUED, RUNNING, FINISHED, FAILED, CANCELLED = "queued", "running", "finished", "failed", "cancelled"
STATES = (QUEUED, RUNNING, FINISHED, FAILED, CANCELLED)
ENDS = (FINISHED, FAILED, CANCELLED)
TRANSITIONS = {QUEUED: (RUNNING, FAILED, CANCELLED), RUNNING: (*ENDS, QUEUED), FINISHED: (),
               FAILED: (), CANCELLED: ()}


class NotFoundError(InputError):
    """There is no such row."""


class ConflictError(InputError):
    """The request conflicts with existing rows: a name is taken, a state forbids the wanted one."""


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


class UtcTime(TypeDecorator):
    """A time in UTC; SQLite keeps no zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value, dialect):
        """Return a time with its zone."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class Base(DeclarativeBase):
    """Base of the tables: an id, and when a row was made and changed."""

    type_annotation_map = {datetime: UtcTime, str: sa.Text, int: sa.BigInteger, float: sa.Double,
                           dict[str, Any]: sa.JSON, list[str]: sa.JSON, list[int]: sa.JSON}

    id: Mapped[str] = mapped_column(primary_key=True, default=lambda: str(uuid.uuid4()))
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)
    updated_at: Mapped[datetime] = mapped_column(default=now, onupdate=now)

    def as_dict(self) -> dict[str, Any]:
        """Return its columns by name."""
        return {column.key: getattr(self, column.key) for column in sa.inspect(type(self)).columns}


Table = type[Base]


class Project(Base):
    """A project: groups, configurations and runs."""

    __tablename__ = "projects"
    name: Mapped[str] = mapped_column(unique=True)
    description: Mapped[str] = mapped_column(default="")


class Group(Base):
    """Configurations of a project that belong together."""

    __tablename__ = "experiment_groups"
    __table_args__ = (UniqueConstraint("project_id", "name"),)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str]
    description: Mapped[str] = mapped_column(default="")
    tags: Mapped[list[str]] = mapped_column(default=list)


class Dataset(Base):
    """A dataset."""

    __tablename__ = "datasets"
    name: Mapped[str] = mapped_column(unique=True)
    description: Mapped[str]
    root_path: Mapped[str]
    split_layout: Mapped[dict[str, Any]]
    class_map: Mapped[dict[str, Any]]
    sample_stats: Mapped[dict[str, Any]]


class Model(Base):
    """A network."""

    __tablename__ = "models"
    label: Mapped[str] = mapped_column(unique=True)
    hf_checkpoint_id: Mapped[str]
    default_pretrained: Mapped[bool]
    notes: Mapped[str]


class Augmentation(Base):
    """An augmentation with its parameters."""

    __tablename__ = "augmentations"
    name: Mapped[str] = mapped_column(unique=True)
    type: Mapped[str]
    params: Mapped[dict[str, Any]]
    enabled: Mapped[bool]
    version: Mapped[str]


class Agent(Base):
    """A machine of the inventory; ``slots`` are the names of its devices for runs."""

    __tablename__ = "agents"
    name: Mapped[str] = mapped_column(unique=True)
    host: Mapped[str] = mapped_column(default="")
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    description: Mapped[str] = mapped_column(default="")
    manual: Mapped[bool] = mapped_column(default=True)  # entered by hand: no run is placed there
    slots: Mapped[list[str]] = mapped_column(default=list)
    last_heartbeat_at: Mapped[datetime | None]
    gpus: Mapped[list["Gpu"]] = relationship(order_by="Gpu.index", lazy="selectin")

    def as_dict(self) -> dict[str, Any]:
        """Return its columns by name, and its cards."""
        return super().as_dict() | {"gpus": [gpu.as_dict() for gpu in self.gpus]}


class Gpu(Base):
    """A card of an agent; nothing is placed on it while ``is_allocated``: it is reserved by hand."""

    __tablename__ = "gpus"
    __table_args__ = (UniqueConstraint("agent_id", "index"),)
    agent_id: Mapped[str] = mapped_column(ForeignKey("agents.id"))
    index: Mapped[int]
    uuid: Mapped[str] = mapped_column(default="")
    name: Mapped[str] = mapped_column(default="")
    total_mem_mb: Mapped[int] = mapped_column(default=0)
    compute_capability: Mapped[str] = mapped_column(default="")
    is_allocated: Mapped[bool] = mapped_column(default=False)
    last_seen_at: Mapped[datetime | None]


class TrainConfig(Base):
    """A configuration of a fine-tune (``kind`` finetune), or of a notebook with its parameters."""

    __tablename__ = "train_configs"
    __table_args__ = (UniqueConstraint("project_id", "name", "version"),
                      UniqueConstraint("project_id", "name", "config_hash"))
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    group_id: Mapped[str | None] = mapped_column(ForeignKey("experiment_groups.id"))
    name: Mapped[str]
    kind: Mapped[str]
    config_json: Mapped[dict[str, Any]]
    config_hash: Mapped[str]  # SHA-256 of the JSON with sorted keys, all defaults filled in
    version: Mapped[int] = mapped_column(default=1)
    status: Mapped[str] = mapped_column(default="valid")


class Run(Base):
    """One run of a configuration; its ``folder`` lies in ``paths.DATA``."""

    __tablename__ = "runs"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), index=True)
    config_id: Mapped[str] = mapped_column(ForeignKey("train_configs.id"))
    name: Mapped[str]
    folder: Mapped[str] = mapped_column(unique=True)
    state: Mapped[str] = mapped_column(default=QUEUED, index=True)
    reason: Mapped[str] = mapped_column(default="")  # why it ended or waits again
    monitor_metric: Mapped[str] = mapped_column(default="")
    monitor_mode: Mapped[str] = mapped_column(default="max")
    best_value: Mapped[float | None]
    epoch: Mapped[int | None]
    epochs: Mapped[int | None]
    step: Mapped[int | None]
    seed: Mapped[int | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    attempt: Mapped[int] = mapped_column(default=0)
    agent_id: Mapped[str | None] = mapped_column(ForeignKey("agents.id"))
    only_agent_id: Mapped[str | None]  # where alone it may be placed
    gpu_indices: Mapped[list[int]] = mapped_column(default=list)  # the cards that it may have
    device: Mapped[str] = mapped_column(default="")  # the slot's name, such as cpu[0-1] or cuda:0
    predicted_s: Mapped[float | None]
    placement: Mapped[str] = mapped_column(default="")  # why it went to its device
    config: Mapped[TrainConfig] = relationship(lazy="joined", innerjoin=True)
    agent: Mapped[Agent | None] = relationship(lazy="joined")
    job: Mapped["Job | None"] = relationship(lazy="joined", cascade="all, delete-orphan")
    group_id: AssociationProxy[str | None] = association_proxy("config", "group_id")

    def as_dict(self) -> dict[str, Any]:
        """Return its columns by name, its group, and its place in the queue."""
        job = self.job and self.job.as_dict()
        return super().as_dict() | {"group_id": self.group_id, "job": job}


class Job(Base):
    """A run's place in the queue: higher ``priority`` first."""

    __tablename__ = "jobs"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), unique=True)
    queue_id: Mapped[str] = mapped_column(default="default")
    enqueued_at: Mapped[datetime] = mapped_column(default=now)
    dequeued_at: Mapped[datetime | None]
    retries: Mapped[int] = mapped_column(default=0)
    last_error: Mapped[str] = mapped_column(default="")
    priority: Mapped[int] = mapped_column(default=0)


def get(session: Session, table: Table, row_id: str) -> Any:
    """Return a row with its relations; NotFoundError names the missing one."""
    row = session.get(table, row_id) if re.fullmatch(ROW_ID, row_id) else None
    if row is None:
        raise NotFoundError(f"there is no {table.__name__.lower()} {row_id}")
    return row


def transition(session: Session, run_id: str, state: str, reason: str = "", **facts: Any) -> bool:
    """Move a run to ``state`` and set ``facts`` (columns of Run); return False if it is there already.

    Sets started_at (of this attempt, if any), finished_at and dequeued_at; a run that goes back to
    the queue counts a retry with its reason. Raises NotFoundError, and ConflictError for a step that
    is not in TRANSITIONS; of several who make the same step at once, one gets True.
    """
    at, reason = now(), printable(reason)
    values = {"state": state, "reason": reason, "updated_at": at, **facts}
    if state == RUNNING:
        values["started_at"] = at
    elif state == QUEUED:
        values["started_at"] = None
    else:
        values["finished_at"] = at
    sources = [source for source, targets in TRANSITIONS.items() if state in targets]
    step = update(Run).where(Run.id == run_id, Run.state.in_(sources)).values(values)
    if not session.execute(step).rowcount:
        current = session.scalar(select(Run.state).where(Run.id == run_id))
        if current is None:
            raise NotFoundError(f"there is no run {run_id}")
        if current == state:
            return False
        leads = choices(TRANSITIONS[current]) or "no other state"
        raise ConflictError(f"the run is {current}, which leads to {leads}; not to {state}")
    job = update(Job).where(Job.run_id == run_id)
    if state == RUNNING:
        session.execute(job.values(dequeued_at=at))
    if state == QUEUED:
        session.execute(job.values(retries=Job.retries + 1, last_error=reason, dequeued_at=None))
    session.expire_all()
    return True
