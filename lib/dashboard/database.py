"""The dashboard's database: its tables, and the one function that changes the state of a run (``database_engine`` opens it).

Contents::

    transition(session, run_id, state, ...)    -> bool; the table TRANSITIONS, enforced for everybody in one UPDATE
    add_logs(session, run_id, attempt, lines)  numbered lines, each once; add_metrics(...) values by step, each once
    Project, Group, TrainConfig, Run, Job, Agent, Gpu, Dataset, Model, Augmentation, RunLog, RunMetric    the tables

A run of the queue has a row in ``jobs`` (priority, retries, last error); a run that somebody carries out by hand has none. A
database that is locked, full or gone raises one of ``UNAVAILABLE``, and works again when it is back.
"""

import math
import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from pydantic import JsonValue
from sqlalchemy import ForeignKey, Index, UniqueConstraint, exc, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.associationproxy import AssociationProxy, association_proxy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

from lib.dashboard import fields
from lib.dashboard.fields import Count, Flag, Items, Line, Long, Name, Names, Object, RowId
from lib.errors import InputError, choices

QUEUED, RUNNING, FINISHED, FAILED, CANCELLED = STATES = ("queued", "running", "finished", "failed", "cancelled")
ENDS = (FINISHED, FAILED, CANCELLED)
TRANSITIONS = {QUEUED: (RUNNING, FAILED, CANCELLED), RUNNING: (*ENDS, QUEUED), **dict.fromkeys(ENDS, ())}
UNAVAILABLE = (exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError, exc.DisconnectionError)
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite numbers rows by itself only in a plain INTEGER


class NotFoundError(InputError):
    """There is no such row."""


class ConflictError(InputError):
    """The request conflicts with existing rows: a name is taken, a state does not lead to the wanted one."""


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


class _Utc(TypeDecorator):
    """A time in UTC; SQLite keeps no zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value, dialect):
        """Return a time with its zone."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class _Finite(TypeDecorator):
    """A number; NaN and infinite values (such as a loss) become empty."""

    impl = sa.Double
    cache_ok = True

    def process_bind_param(self, value, dialect):
        """Return the stored value."""
        return float(value) if value is not None and math.isfinite(value) else None


class _Text(TypeDecorator):
    """A text; PostgreSQL keeps no NUL."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value, dialect):
        """Return the stored value."""
        return value.replace("\0", "\ufffd") if value else value


class Base(DeclarativeBase):
    """Base of the tables."""

    type_annotation_map = {float: _Finite, datetime: _Utc, str: _Text, int: _NUMBER, **dict.fromkeys(
        (dict[str, Any], dict[str, JsonValue], list[Any], list[Name], list[fields.Index]), sa.JSON)}


Table = type[Base]


class _Row:
    """The columns of every row: an id, and when it was made and changed."""

    id: Mapped[str] = mapped_column(primary_key=True, default=lambda: str(uuid.uuid4()))
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)
    updated_at: Mapped[datetime] = mapped_column(default=now, onupdate=now, index=True)

    @classmethod
    def order(cls) -> tuple[Any, ...]:
        """Return the order of lists: the newest row first."""
        return cls.created_at.desc(), cls.id


class _Named(_Row):
    """A row with a name that no other has."""

    name: Mapped[Name] = mapped_column(unique=True)
    description: Mapped[Long]


class Project(_Named, Base):
    """A project: groups, configurations and runs."""

    __tablename__ = "projects"


class _InProject(_Row):
    """A named row of a project."""

    project_id: Mapped[RowId] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[Name]


class Group(_InProject, Base):
    """Configurations of a project that are compared with one another."""

    __tablename__ = "experiment_groups"
    __table_args__ = (UniqueConstraint("project_id", "name"),)
    description: Mapped[Long]


class TrainConfig(_InProject, Base):
    """A configuration: of a fine-tune (``kind`` finetune), or of a notebook with its parameters (notebook)."""

    __tablename__ = "train_configs"
    __table_args__ = (UniqueConstraint("project_id", "name", "version"), UniqueConstraint("project_id", "name", "config_hash"))
    group_id: Mapped[RowId | None] = mapped_column(ForeignKey("experiment_groups.id"))
    kind: Mapped[str]
    config_json: Mapped[dict[str, Any]]
    config_hash: Mapped[str]  # SHA-256 of the JSON with sorted keys, all defaults filled in
    version: Mapped[int] = mapped_column(default=1)
    status: Mapped[str] = mapped_column(default="valid")


class Agent(_Named, Base):
    """A machine that carries out runs; ``slots`` are its devices, ``load`` its last reported load."""

    __tablename__ = "agents"
    host: Mapped[Line]
    labels: Mapped[Object]
    api_version: Mapped[Line]
    runner_version: Mapped[Line]
    last_heartbeat_at: Mapped[datetime | None]
    manual: Mapped[bool] = mapped_column(default=True)  # entered on the page; nothing registered
    connected: Mapped[Flag]
    slots: Mapped[Items]
    load: Mapped[Object]
    gpus: Mapped[list["Gpu"]] = relationship(order_by="Gpu.index", cascade="all, delete-orphan", lazy="selectin")

    @classmethod
    def order(cls) -> tuple[Any, ...]:
        """Return the order of lists: by name."""
        return (cls.name,)


class Gpu(_Row, Base):
    """A card of an agent; nothing is placed on it while ``is_allocated`` (reserved by hand)."""

    __tablename__ = "gpus"
    __table_args__ = (UniqueConstraint("agent_id", "index"),)
    agent_id: Mapped[RowId] = mapped_column(ForeignKey("agents.id"))
    index: Mapped[fields.Index]
    uuid: Mapped[Line]
    name: Mapped[Line]
    total_mem_mb: Mapped[fields.Megabytes]
    compute_capability: Mapped[fields.Capability]
    is_allocated: Mapped[Flag]
    last_seen_at: Mapped[datetime | None]


class Run(_InProject, Base):
    """One run of a configuration; ``reason`` says why it ended or waits again, ``placement`` why it went to its device.

    ``folder`` is relative to ``paths.DATA``: checkpoints, figures, the executed notebook.
    """

    __tablename__ = "runs"
    __table_args__ = (Index("runs_of_project", "project_id", "created_at"), Index("runs_by_state", "state", "created_at"))
    config_id: Mapped[str] = mapped_column(ForeignKey("train_configs.id"))
    folder: Mapped[str] = mapped_column(unique=True)
    state: Mapped[str] = mapped_column(default=QUEUED)
    reason: Mapped[Line]
    monitor_metric: Mapped[Line]
    monitor_mode: Mapped[str] = mapped_column(default="max")
    best_value: Mapped[float | None]
    epoch: Mapped[int | None]
    epochs: Mapped[int | None]
    step: Mapped[int | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    only_agent_id: Mapped[str | None]  # where alone it may be placed
    agent_id: Mapped[str | None] = mapped_column(ForeignKey("agents.id"), index=True)
    device: Mapped[Line]  # the slot's name, such as cpu[0-1] or cuda:0
    attempt: Mapped[Count]
    predicted_s: Mapped[float | None]
    placement: Mapped[Line]
    docker_image: Mapped[Line]  # of runs of earlier versions, as env; no run uses either
    gpu_indices: Mapped[fields.Indices]  # of that agent; the only cards that it may be placed on
    env: Mapped[Object]
    tags: Mapped[Names]
    notes: Mapped[Long | None] = mapped_column(default=None)
    archived_at: Mapped[datetime | None]  # lists leave it out from then on
    seed: Mapped[int | None]
    config: Mapped[TrainConfig] = relationship(lazy="joined", innerjoin=True)
    agent: Mapped[Agent | None] = relationship(lazy="joined")
    job: Mapped["Job | None"] = relationship(lazy="joined", cascade="all, delete-orphan")
    group_id: AssociationProxy[str | None] = association_proxy("config", "group_id")


class Job(_Row, Base):
    """A run's place in the queue; higher ``priority`` first. It should end within ``deadline_s`` of being queued, if given."""

    __tablename__ = "jobs"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), unique=True)
    queue_id: Mapped[str] = mapped_column(default="default")
    enqueued_at: Mapped[datetime] = mapped_column(default=now)
    dequeued_at: Mapped[datetime | None]
    retries: Mapped[Count]
    last_error: Mapped[Line]
    priority: Mapped[fields.Priority]
    deadline_s: Mapped[fields.Seconds | None]


class Dataset(_Named, Base):
    """A dataset that configurations name."""

    __tablename__ = "datasets"
    root: Mapped[Line]
    facts: Mapped[Object]


class Model(_Named, Base):
    """A network that configurations name."""

    __tablename__ = "models"
    flavour: Mapped[Line]
    facts: Mapped[Object]


class Augmentation(_Named, Base):
    """A named augmentation and its parameters."""

    __tablename__ = "augmentations"
    params: Mapped[Object]


class Output:
    """What a run says; ``id`` grows in the order in which a run's rows became visible."""

    id: Mapped[int] = mapped_column(_NUMBER, primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))


class RunLog(Output, Base):
    """A line of a run's output."""

    __tablename__ = "run_logs"
    __table_args__ = (UniqueConstraint("run_id", "attempt", "n"), Index("run_logs_in_order", "run_id", "id"))
    attempt: Mapped[int]
    n: Mapped[int]  # from 1 in each attempt
    line: Mapped[str]
    at: Mapped[datetime] = mapped_column(default=now)


class RunMetric(Output, Base):
    """A value of a run at a step; NaN is empty."""

    __tablename__ = "run_metrics"
    __table_args__ = (UniqueConstraint("run_id", "key", "split", "step"), Index("run_metrics_in_order", "run_id", "id"))
    step: Mapped[int]
    epoch: Mapped[int | None]
    key: Mapped[str]
    value: Mapped[float | None]
    split: Mapped[str]


def get(session: Session, table: Table, row_id: str) -> Any:
    """Return a row with its relations; NotFoundError names the missing one."""
    row = session.get(table, row_id) if re.fullmatch(fields.ROW_ID, row_id) else None
    if row is None:
        raise NotFoundError(f"there is no {table.__name__.lower()} {row_id}")
    return row


def transition(session: Session, run_id: str, state: str, reason: str = "", **facts: Any) -> bool:
    """Move a run to ``state`` and set ``facts`` (columns of Run); return False where it is in that state already.

    Sets started_at (of this attempt, if any), finished_at and dequeued_at; back to queued counts a retry with its reason.
    Raises NotFoundError, and ConflictError for a step that is not in TRANSITIONS.
    """
    sources = [source for source, targets in TRANSITIONS.items() if state in targets]
    at = now()
    # started_at is that of this attempt: waiting and lost attempts are no time of a run
    times = {RUNNING: {"started_at": at}, QUEUED: {"started_at": None}}.get(state, {"finished_at": at})
    changed = session.execute(update(Run).where(Run.id == run_id, Run.state.in_(sources)).values(
        state=state, reason=reason, updated_at=at, **times, **facts))
    if not changed.rowcount:
        current = session.scalar(select(Run.state).where(Run.id == run_id))
        if current is None:
            raise NotFoundError(f"there is no run {run_id}")
        if current == state:
            return False
        raise ConflictError(f"the run is {current}, which leads to {choices(TRANSITIONS[current]) or 'no other state'}; "
                            f"not to {state}")
    job = update(Job).where(Job.run_id == run_id)
    if state == RUNNING:
        session.execute(job.values(dequeued_at=at))
    if state == QUEUED:
        session.execute(job.values(retries=Job.retries + 1, last_error=reason, dequeued_at=None))
    session.expire_all()
    return True


def add_logs(session: Session, run_id: str, attempt: int, lines: Iterable[tuple[int, str]]) -> None:
    """Add numbered lines of a run's attempt; existing ones stay. NotFoundError without such a run."""
    attempted = {"run_id": run_id, "attempt": attempt, "at": now()}
    _add(session, RunLog, run_id, [{**attempted, "n": n, "line": line} for n, line in lines])


def add_metrics(session: Session, run_id: str, step: int, values: Mapping[str, float | None], epoch: int | None = None,
                split: str = "train") -> None:
    """Add a run's values at a step; existing ones stay. NotFoundError without such a run."""
    position = {"run_id": run_id, "step": step, "epoch": epoch, "split": split}
    _add(session, RunMetric, run_id, [{**position, "key": key, "value": value} for key, value in values.items()])


def _add(session: Session, table: Table, run_id: str, rows: list[dict[str, Any]]) -> None:
    """Insert rows of a run while its row is locked, so that ids of a run become visible in order."""
    if session.scalar(select(Run.id).where(Run.id == run_id).with_for_update()) is None:
        raise NotFoundError(f"there is no run {run_id}")
    if rows:
        insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
        session.execute(insert(table.__table__).on_conflict_do_nothing(), rows)
