"""The bodies of requests and answers as pydantic models, and all errors of a body at once by field."""

import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    create_model,
    model_validator,
)

from lib.dashboard import database as db
from lib.errors import InputError, choices, printable

_DEEPEST, _LONGEST = 16, 100_000


class FieldsError(InputError):
    """Wrong values, all at once; ``errors`` has the reason by field."""

    def __init__(self, errors: Mapping[str, str], where: str = ""):
        super().__init__((f"{where}: " if where else "") + "; ".join(f"{name}: {reason}" for name, reason in errors.items()))
        self.errors = dict(errors)


def fields(errors: Iterable[Mapping[str, Any]], drop: int = 0) -> dict[str, str]:
    """Return pydantic's errors as field and reason; ``drop`` leaves out the first parts of a field's place."""
    reasons: dict[str, str] = {}
    for error in errors:
        name = printable(".".join(str(part) for part in error["loc"][drop:]) or "value")[:100]
        reason = "is no known field" if error["type"] == "extra_forbidden" else error["msg"].removeprefix("Value error, ")
        reasons[name] = f"{reasons[name]}; {reason}" if name in reasons else reason
    return reasons


def _plain(text: str) -> str:
    if any(unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\n\t\r" for sign in text):
        raise ValueError("holds characters that control a terminal, or half characters")
    return text


def _bounded(value: Any) -> Any:
    """Refuse values that a JSON column cannot hold: NaN, half characters, too deep or too long."""
    def depth(part: Any) -> int:
        parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        return 1 + max(map(depth, parts), default=0)

    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        raise ValueError("holds NaN, an infinite number or half characters, which JSON has not") from None
    if len(text) > _LONGEST or b"\\u0000" in text or depth(value) > _DEEPEST:
        raise ValueError(f"must be of at most {_LONGEST} characters and {_DEEPEST} levels, without NUL")
    return value


def _text(least: int, most: int) -> Any:
    return Annotated[str, Field(min_length=least, max_length=most), AfterValidator(_plain)]


RowId = Annotated[str, Field(pattern=f"^{db.ROW_ID}$")]
Index = Annotated[int, Field(ge=0, le=1023)]
Name = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^\S(.*\S)?$"), AfterValidator(_plain)]
Line, Long = _text(0, 500), _text(0, 5000)
Object = Annotated[dict[str, JsonValue], AfterValidator(_bounded)]
Priority = Annotated[int, Field(ge=-1000, le=1000)]


class _In(BaseModel):
    """A request: null counts as left out, names of the original platform are accepted, unknown names are refused.

    ``ORIGINAL`` has our name for each of those; a name that ends with a dot is an object that takes the value under its name.
    """

    model_config = ConfigDict(extra="forbid")
    ORIGINAL: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _as_ours(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = {name: value for name, value in values.items() if value is not None}
        for name, place in cls.ORIGINAL.items():
            ours, dot, _ = place.partition(".")
            if name in values and (isinstance(values.get(ours, {}), dict) if dot else ours not in values):
                value = values.pop(name)
                values[ours] = {**values.get(ours, {}), name: value} if dot else value
        return values


class ProjectIn(_In):
    """A new project."""

    name: Name
    description: Long = ""


class GroupIn(ProjectIn):
    """A new group of configurations; ``tags`` become a line of its description."""

    project_id: RowId
    tags: Annotated[list[Name], Field(max_length=32, exclude=True)] = []

    @model_validator(mode="after")
    def _described(self) -> "GroupIn":
        if self.tags:
            self.description = f"{self.description}\ntags: {choices(self.tags)}".strip()
        return self


class DatasetIn(ProjectIn):
    """A new dataset."""

    ORIGINAL = {"root_path": "root", **dict.fromkeys(("split_layout", "class_map", "sample_stats"), "facts.")}
    root: Line = ""
    facts: Object = {}


class ModelIn(ProjectIn):
    """A new network."""

    ORIGINAL = {"label": "name", "hf_checkpoint_id": "flavour", "notes": "description", "default_pretrained": "facts."}
    flavour: Line = ""
    facts: Object = {}


class AugmentationIn(ProjectIn):
    """A new augmentation."""

    ORIGINAL = dict.fromkeys(("type", "enabled", "version"), "params.")
    params: Object = {}


class ConfigIn(_In):
    """A new configuration: the fields of a TrainConfig, or ``{"notebook": ..., "parameters": {...}}``."""

    ORIGINAL = {"config_json": "config"}
    project_id: RowId
    group_id: RowId | None = None
    name: Name
    config: Object


class RunIn(_In):
    """A new run of a configuration; without ``enqueue`` somebody carries it out by hand."""

    agent_id: RowId | None = None
    gpu_indices: Annotated[list[Index], Field(max_length=64),
                           BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)] = []
    docker_image: Line = ""
    env: Annotated[dict[str, Line], AfterValidator(_bounded)] = {}
    priority: Priority = 0
    tags: Annotated[list[Name], Field(max_length=32)] = []
    enqueue: bool = True


class PriorityIn(_In):
    """A new place in the queue; higher first."""

    priority: Priority


class EndIn(_In):
    """How a run that was carried out by hand ended."""

    state: Annotated[str, Field(pattern="^(finished|failed)$")] = "finished"
    reason: Line = ""


class AgentIn(_In):
    """An agent that is entered by hand."""

    name: Name
    host: Line = ""
    labels: Object = {}
    description: Long = ""


class GpuIn(_In):
    """A card that is entered by hand."""

    agent_id: RowId
    index: Index
    uuid: Line = ""
    name: Line = ""
    total_mem_mb: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    compute_capability: Annotated[str, Field(pattern=r"^(\d{1,2}\.\d{1,2})?$")] = ""


def _out(table: type[db.Base], **more: Any) -> type[BaseModel]:
    """Return the model of a table's rows in answers: its columns, and ``more``."""
    hints = get_type_hints(table)
    columns = {column.name: (get_args(hints[column.name])[0], ...) for column in table.__table__.columns}
    return create_model(f"{table.__name__}Out", __config__=ConfigDict(from_attributes=True), __doc__=table.__doc__,
                        **columns, **more)


ProjectOut, GroupOut, ConfigOut = _out(db.Project), _out(db.Group), _out(db.TrainConfig)
DatasetOut, ModelOut, AugmentationOut = _out(db.Dataset), _out(db.Model), _out(db.Augmentation)
JobOut, GpuOut, LogOut, MetricOut = _out(db.Job), _out(db.Gpu), _out(db.RunLog), _out(db.RunMetric)
RunOut = _out(db.Run, job=(JobOut | None, None))
AgentOut = _out(db.Agent, gpus=(list[GpuOut], ...))


class PlannedOut(BaseModel):
    """A running or planned job: its times in seconds from now, its device and the reason; a job without a slot has no times."""

    job_id: str
    device: str
    start_s: float | None
    end_s: float | None
    status: str
    reason: str


class ValidityOut(BaseModel):
    """Whether a configuration is valid, and what is wrong with each field."""

    valid: bool
    errors: dict[str, str]


def validated(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    """Return values as their model; FieldsError names every wrong one."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise FieldsError(fields(error.errors())) from None


def checked(model: type[BaseModel], form: Mapping[str, Any]) -> Any:
    """Return a form as its model, without its empty fields; FieldsError."""
    return validated(model, {name: value for name, value in form.items() if value != ""})
