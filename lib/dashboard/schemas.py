"""The bodies of requests and answers, made of the columns of their tables."""

from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from lib.dashboard import database as db
from lib.dashboard.fields import Line, Long, Names, Object, Priority, RowId, Seconds
from lib.errors import choices
from lib.finetune.config import Refused


class _In(BaseModel):
    """A body of a request: unknown names are refused; a null is as if the name were left out.

    ``original`` says where names go that the original platform's clients send: another name, or into an object (``facts.``).
    """

    model_config = ConfigDict(extra="forbid")
    original: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _as_ours(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = {name: value for name, value in values.items() if value is not None}
        for name, place in cls.original.items():
            ours, dot, _ = place.partition(".")
            if name in values and (isinstance(values.get(ours, {}), dict) if dot else ours not in values):
                value = values.pop(name)
                values[ours] = {**values.get(ours, {}), name: value} if dot else value
        return values


def _in(table: db.Table, names: str, original: dict[str, str] | None = None, **more: Any) -> type[_In]:
    """Return the body that brings these columns of a new row, and ``more``; those with a default may be left out."""
    hints, columns = get_type_hints(table, include_extras=True), {}
    for name in names.split():
        column = table.__table__.c[name]
        default = ... if column.default is None else column.default.arg
        default = None if column.nullable else default(None) if callable(default) else default
        columns[name] = (get_args(hints[name])[0], default)
    body = create_model(f"{table.__name__}In", __base__=_In, __doc__=f"A new {table.__name__}.", **columns, **more)
    body.original = original or {}
    return body


class GroupIn(_in(db.Group, "project_id name description")):
    """A new group of configurations; ``tags`` become a line of its description."""

    tags: Annotated[Names, Field(exclude=True)] = []

    @model_validator(mode="after")
    def _described(self) -> "GroupIn":
        if self.tags:
            self.description = f"{self.description}\ntags: {choices(self.tags)}".strip()
        return self


ProjectIn, AgentIn = _in(db.Project, "name description"), _in(db.Agent, "name host labels description")
DatasetIn = _in(db.Dataset, "name description root facts",
                {"root_path": "root", **dict.fromkeys(("split_layout", "class_map", "sample_stats"), "facts.")})
ModelIn = _in(db.Model, "name description flavour facts", {
    "label": "name", "hf_checkpoint_id": "flavour", "notes": "description", "default_pretrained": "facts."})
AugmentationIn = _in(db.Augmentation, "name description params", dict.fromkeys(("type", "enabled", "version"), "params."))
GpuIn = _in(db.Gpu, "agent_id index uuid name total_mem_mb compute_capability")
# ``config`` has the fields of a TrainConfig, or {"notebook": ..., "parameters": {...}}
ConfigIn = _in(db.TrainConfig, "project_id group_id name", {"config_json": "config"}, config=(Object, ...))
# without ``enqueue`` somebody carries the run out by hand
RunIn = _in(db.Run, "gpu_indices tags", docker_image=(Refused, None), env=(Refused, None),
            agent_id=(RowId | None, None), priority=(Priority, 0), deadline_s=(Seconds | None, None), enqueue=(bool, True))


class PriorityIn(_In):
    """A new place in the queue; higher first."""

    priority: Priority


class NotesIn(_In):
    """What people write beside a run."""

    notes: Long = ""
    tags: Names = []


class EndIn(_In):
    """How a run that was carried out by hand ended."""

    state: Literal["finished", "failed"] = "finished"
    reason: Line = ""


def _out(table: db.Table, **more: Any) -> type[BaseModel]:
    """Return the model of a table's rows in answers: its columns, and ``more``."""
    hints = get_type_hints(table)
    columns = {column.name: (get_args(hints[column.name])[0], ...) for column in table.__table__.columns}
    return create_model(f"{table.__name__}Out", __config__=ConfigDict(from_attributes=True), __doc__=table.__doc__,
                        **columns, **more)


OUT = {mapper.class_: _out(mapper.class_) for mapper in db.Base.registry.mappers}
OUT |= {db.Run: _out(db.Run, job=(OUT[db.Job] | None, None)), db.Agent: _out(db.Agent, gpus=(list[OUT[db.Gpu]], ...))}


class PlannedOut(BaseModel):
    """A running or planned job: its times in seconds from now, its device and the reason.

    A job without a slot, or behind a run whose end is unknown, has no times. ``in_time``: the probability that it keeps its
    deadline, if it has one.
    """

    job_id: str
    device: str
    start_s: float | None
    end_s: float | None
    status: str
    reason: str
    in_time: float | None


class ValidityOut(BaseModel):
    """Whether a configuration is valid, and what is wrong with each field."""

    valid: bool
    errors: dict[str, str]
