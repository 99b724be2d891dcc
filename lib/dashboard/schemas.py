"""What the API takes and gives: pydantic models, and the one check of a configuration, all errors at once by field."""

import contextlib
import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, create_model
from pydantic_core import from_json

from lib import paths
from lib.config import notebooks
from lib.dashboard import database as db
from lib.errors import InputError, choices, printable

_DEEPEST, _LONGEST = 16, 100_000
_SECRETS = ("hf_token",)
_MADE = ("medmnist", "synthetic")  # roots that are no folder
_PATHS, _CODE = {"nsight", "recordings", "engine", "jobs", "energy"}, ("models", "model")  # parameters of notebooks
_MOST_EPOCHS = 1_000_000_000


class FieldsError(InputError):
    """Wrong values, all at once; ``errors`` says of each field what is wrong with it."""

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
    """Refuse what a JSON column cannot keep: NaN, half characters, too deep or too long."""
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


ROW_ID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
RowId = Annotated[str, Field(pattern=f"^{ROW_ID}$")]
Name = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^\S(.*\S)?$"), AfterValidator(_plain)]
Line, Long = _text(0, 500), _text(0, 5000)
Object = Annotated[dict[str, JsonValue], AfterValidator(_bounded)]
Priority = Annotated[int, Field(ge=-1000, le=1000)]


class _In(BaseModel):
    """What a request brings; unknown names are refused."""

    model_config = ConfigDict(extra="forbid")


class ProjectIn(_In):
    """A new project."""

    name: Name
    description: Long = ""


class GroupIn(ProjectIn):
    """A new group of configurations."""

    project_id: RowId


class DatasetIn(ProjectIn):
    """A new dataset."""

    root: Line = ""
    facts: Object = {}


class ModelIn(ProjectIn):
    """A new network."""

    flavour: Line = ""
    facts: Object = {}


class AugmentationIn(ProjectIn):
    """A new augmentation."""

    params: Object = {}


class ConfigIn(_In):
    """A new configuration: the fields of a TrainConfig, or ``{"notebook": ..., "parameters": {...}}``."""

    project_id: RowId
    group_id: RowId | None = None
    name: Name
    config: Object


class RunIn(_In):
    """How a configuration is to be run; without ``enqueue`` somebody carries it out by hand."""

    agent_id: RowId | None = None
    gpu_indices: Annotated[list[Annotated[int, Field(ge=0, le=1023)]], Field(max_length=64)] = []
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
    description: Long = ""


class GpuIn(_In):
    """A card that is entered by hand."""

    agent_id: RowId
    index: Annotated[int, Field(ge=0, le=1023)]
    uuid: Line = ""
    name: Line = ""
    total_mem_mb: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    compute_capability: Annotated[str, Field(pattern=r"^(\d{1,2}\.\d{1,2})?$")] = ""


def _out(table: type[db.Base], **more: Any) -> type[BaseModel]:
    """Return the model of what is given of a table's rows: its columns, and ``more``."""
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
    """What runs or is planned: from when to when, in seconds from now, where and why; what waits for a slot has no times."""

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


@dataclass(frozen=True)
class Checked:
    """A valid configuration, all defaults filled in."""

    kind: str  # finetune | notebook
    values: dict[str, Any]
    monitor_metric: str = ""
    monitor_mode: str = "max"
    epochs: int | None = None
    seed: int | None = None

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the values, whatever order they came in."""
        return hashlib.sha256(json.dumps(self.values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def pasted(text: str) -> dict[str, Any]:
    """Return the JSON object that somebody pasted; FieldsError of the field ``config``."""
    try:
        return TypeAdapter(Object).validate_json(text)
    except ValidationError as error:
        raise FieldsError({"config": "; ".join(fields(error.errors()).values())}) from None


def check_config(values: Mapping[str, Any]) -> Checked:
    """Check a configuration of a fine-tune or of a notebook; FieldsError names every wrong field."""
    if "notebook" in values:
        return _check_notebook(values)
    from lib.finetune.config import TrainConfig

    secrets = {name: "is a secret and not kept; set HF_TOKEN where the agent runs" for name in _SECRETS if values.get(name)}
    try:
        config = _built(TrainConfig, {name: value for name, value in values.items() if name not in _SECRETS})
    except FieldsError as error:
        raise FieldsError(error.errors | secrets) from None
    outside = _outside({name: getattr(config, name) for name in ("root", "model_flavour")
                        if getattr(config, name).partition(":")[0] not in _MADE})
    bounds = {"epochs": f"is more than {_MOST_EPOCHS:,}"} if (config.epochs or 0) > _MOST_EPOCHS else {}
    if refused := secrets | outside | bounds:
        raise FieldsError(refused)
    facts = {name: getattr(config, name, None) for name in ("monitor_metric", "monitor_mode", "epochs", "seed")}
    return Checked("finetune", config.model_dump(mode="json"), **facts)


def _outside(values: Mapping[str, str]) -> dict[str, str]:
    """Return by field why a path (or a name, which is one within the repository) may not be read: it lies elsewhere."""
    folders = [folder.resolve() for folder in (paths.DATA, paths.ROOT)]

    def inside(value: str) -> bool:
        path = Path(value)
        return not value.startswith("~") and ".." not in path.parts and any(
            (paths.ROOT / path).resolve().is_relative_to(folder) for folder in folders)

    return {field: f"must lie in {folders[0]} or in the repository, without .. and ~" for field, value in values.items()
            if not inside(value)}


def _check_notebook(values: Mapping[str, Any]) -> Checked:
    """Check the name of one of the project's notebooks, and its parameters by that notebook's own model."""
    errors = dict.fromkeys(set(values) - {"notebook", "parameters"}, "is no known field")
    name, parameters = values["notebook"], values.get("parameters", {})
    stems = {f"notebooks/{stem}.ipynb": stem for stem in notebooks.NOTEBOOKS if (paths.NOTEBOOKS / f"{stem}.ipynb").is_file()}
    if not isinstance(name, str) or name not in stems:
        errors["notebook"] = f"must be one of {choices(stems)}"
    if not isinstance(parameters, Mapping):
        errors["parameters"] = "must be an object of names and values"
    elif "notebook" not in errors:
        try:
            parameters = _built(notebooks.notebook_model(stems[name]), parameters).model_dump(mode="json")
            errors |= {f"parameters.{field}": reason for field, reason in _outside(
                {field: parameters[field] for field in _PATHS & parameters.keys() if parameters[field]}).items()}
            errors |= {f"parameters.{field}": "names code (module:Class), which a dashboard does not run" for field in _CODE
                       if ":" in str(parameters.get(field, ""))}
        except FieldsError as error:
            errors |= {f"parameters.{field}": reason for field, reason in error.errors.items()}
    if errors:
        raise FieldsError(errors)
    return Checked("notebook", {"notebook": name, "parameters": parameters}, seed=parameters.get("seed"))


def _built(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise FieldsError(fields(error.errors())) from None
    except InputError as error:
        raise FieldsError({"config": str(error)}) from None


def checked(model: type[BaseModel], form: Mapping[str, Any]) -> Any:
    """Return what a form brings as its model, without fields that are empty; FieldsError."""
    try:
        return model.model_validate({name: value for name, value in form.items() if value != ""})
    except ValidationError as error:
        raise FieldsError(fields(error.errors())) from None


def form_fields() -> list[dict[str, Any]]:
    """Return the fields of a TrainConfig for a form: name, kind of input, choices, default."""
    from lib.finetune.config import TrainConfig

    kinds = {"integer": "number", "number": "number", "boolean": "boolean"}
    rows = []
    for name, field in TrainConfig.model_json_schema()["properties"].items():
        if name in _SECRETS:
            continue
        default = field.get("default")
        rows.append({"name": name, "kind": "choice" if "enum" in field else kinds.get(field.get("type"), "text"),
                     "choices": field.get("enum", ()), "needed": "default" not in field,
                     "default": "" if default is None else json.dumps(default) if isinstance(default, list) else default})
    return rows


def config_of(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration that a form brings: as fields, as pasted JSON, or as a notebook with parameters."""
    if form.get("source") == "json":
        return pasted(form.get("config", ""))
    if form.get("source") == "notebook":
        return {"notebook": form.get("notebook", ""), "parameters": pasted(form.get("parameters", "").strip() or "{}")}
    values: dict[str, Any] = {}
    for name, text in form.items():
        field = name.removeprefix("field.")
        if field != name and text.strip():
            values[field] = text
            if text.lstrip()[:1] in "[{":
                with contextlib.suppress(ValueError):
                    values[field] = from_json(text, allow_inf_nan=False)
    return values
