"""The bodies of requests, the types of their fields, and the errors of a request by field."""

import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from lib.config.base import whole
from lib.dashboard.tables import ROW_ID
from lib.errors import InputError, printable

MAX_DEPTH, MAX_CHARACTERS = 16, 100_000  # of a JSON object


class FieldsError(InputError):
    """Wrong values, all at once; ``errors`` has the reason by field."""

    def __init__(self, errors: Mapping[str, str]):
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in errors.items()))
        self.errors = dict(errors)


def reasons(errors: Iterable[Mapping[str, Any]], drop: int = 0) -> dict[str, str]:
    """Return pydantic's errors by field; ``drop`` leaves out the first parts of a field's place."""
    found: dict[str, str] = {}
    for error in errors:
        name = printable(".".join(map(str, error["loc"][drop:])) or "value")[:100]
        reason = error["msg"].removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            reason = "is no known field"
        found[name] = f"{found[name]}; {reason}" if name in found else reason
    return found


def validated(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    """Return values as their model; FieldsError names every wrong one."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise FieldsError(reasons(error.errors())) from None


def _plain_text(text: str) -> str:
    if any(unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\n\t\r" for sign in text):
        raise ValueError("holds characters that control a terminal, or half characters")
    return text


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, parts), default=0)


def _json_column(value: Any) -> Any:
    """Refuse what a JSON column cannot hold: NaN, half characters, too deep or too long."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        raise ValueError("holds NaN, an infinite number or half characters") from None
    if len(text) > MAX_CHARACTERS or b"\\u0000" in text or _depth(value) > MAX_DEPTH:
        raise ValueError(f"must be of at most {MAX_CHARACTERS} characters and {MAX_DEPTH} levels, "
                         "without NUL")
    return value


def _parsed(value: Any) -> Any:
    """Parse the JSON text of a form."""
    return from_json(value) if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    """Split the text of a form at its commas."""
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return value


RowId = Annotated[str, Field(pattern=f"^{ROW_ID}$")]
Name = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^\S(.*\S)?$"),
                 AfterValidator(_plain_text)]
Line = Annotated[str, Field(max_length=500), AfterValidator(_plain_text)]
Text = Annotated[str, Field(max_length=5000), AfterValidator(_plain_text)]
GpuIndex = whole(0, 1023)
JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_json_column)]
Priority = whole(-1000, 1000)


class Body(BaseModel):
    """A body of a request: unknown names are refused; a null is as if the name were left out."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if value is not None}
        return values

    @classmethod
    def from_form(cls, form: Mapping[str, Any]) -> Any:
        """Return a form as a body, without its empty fields; FieldsError."""
        return validated(cls, {name: value for name, value in form.items() if value != ""})


class ProjectIn(Body):
    """A new project."""

    name: Name
    description: Text = ""


class GroupIn(Body):
    """A new group of configurations of a project."""

    project_id: RowId
    name: Name
    description: Text = ""
    tags: Annotated[list[Name], Field(max_length=32), BeforeValidator(_listed)] = []


class DatasetIn(Body):
    """A new dataset."""

    name: Name
    description: Text = ""
    root_path: Line = ""
    split_layout: JsonObject = {}
    class_map: JsonObject = {}
    sample_stats: JsonObject = {}


class ModelIn(Body):
    """A new network."""

    label: Name
    hf_checkpoint_id: Line = ""
    default_pretrained: bool = True
    notes: Text = ""


class AugmentationIn(Body):
    """A new augmentation with its parameters."""

    name: Name
    type: Line = ""
    params: JsonObject = {}
    enabled: bool = True
    version: Line = ""


class AgentIn(Body):
    """A machine, entered by hand."""

    name: Name
    host: Line = ""
    labels: JsonObject = {}
    description: Text = ""


class GpuIn(Body):
    """A card of an agent, entered by hand."""

    agent_id: RowId
    index: GpuIndex
    uuid: Line = ""
    name: Line = ""
    total_mem_mb: whole(0, 100_000_000) = 0
    compute_capability: Annotated[str, Field(pattern=r"^(\d{1,2}\.\d{1,2})?$")] = ""


class ConfigIn(Body):
    """A new configuration: a TrainConfig, or ``{"notebook": ..., "parameters": {}}``."""

    project_id: RowId
    group_id: RowId | None = None
    name: Name
    config_json: Annotated[JsonObject, BeforeValidator(_parsed)]


class RunIn(Body):
    """How a configuration is run; without ``enqueue`` somebody carries the run out by hand."""

    agent_id: RowId | None = None
    gpu_indices: Annotated[list[GpuIndex], Field(max_length=64), BeforeValidator(_listed)] = []
    priority: Priority = 0
    enqueue: bool = True
    docker_image: None = None
    env: None = None

    @field_validator("docker_image", "env", mode="before")
    @classmethod
    def _refused(cls, value: Any) -> None:
        if value is not None:
            raise ValueError("is refused: a run starts no container and sets no variables; start "
                             "the dashboard inside of the image, with the variables set")


class PriorityIn(Body):
    """A place in the queue; the highest priority goes first."""

    priority: Priority


class EndIn(Body):
    """How a run that was carried out by hand ended."""

    state: Literal["finished", "failed"] = "finished"
    reason: Line = ""


class ErrorOut(BaseModel):
    """The answer to a wrong request: an error in one line; of a wrong body also by field."""

    detail: str
    errors: dict[str, str] = {}
