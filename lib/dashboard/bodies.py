"""The bodies of requests."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lib.config.base import whole
from lib.dashboard.fields import (
    GpuIndex,
    Indices,
    JsonObject,
    Line,
    Name,
    Names,
    Priority,
    RowId,
    Text,
)


class Body(BaseModel):
    """A body of a request: unknown names are refused; a null is as if the name were left out."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if value is not None}
        return values


class ProjectIn(Body):
    """A new project."""

    name: Name
    description: Text = ""


class GroupIn(Body):
    """A new group of configurations of a project."""

    project_id: RowId
    name: Name
    description: Text = ""
    tags: Names = []


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
    config_json: JsonObject


class RunIn(Body):
    """How a configuration is run; without ``enqueue`` somebody carries the run out by hand."""

    agent_id: RowId | None = None
    gpu_indices: Indices = []
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
