"""Typed parameters of the notebooks and typed definitions from ``params/*.yaml``; errors list the choices."""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from lib import paths
from lib.errors import InputError, choices

Source = Literal["measure", "replay"]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """Base of every parameter set: frozen, unknown names refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _text_stays_text(cls, value: Any, info) -> Any:
        """Refuse a number where text is meant: papermill's ``-p`` reads ``12e5678`` as a number, ``-r`` does not."""
        wants_text = cls.model_fields[info.field_name].annotation is str
        if wants_text and isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError(f"is text, but {value!r} arrived as a number; pass it with papermill's -r")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be a finite number")
        return value


class MachineParams(Strict):
    """Parameters of ``01_machine``."""

    source: Source = "measure"
    reference: str = ""
    device: str = "auto"
    budget_s: Annotated[float, Field(ge=1, le=3600)] = 15.0
    gemm_max: Annotated[int, Field(ge=0, le=32768)] = 0
    triad_max_mb: Annotated[float, Field(ge=0, le=65536)] = 0.0
    threads: Count = 0


class ProfileParams(Strict):
    """Parameters of ``02_profile`` and of one profiled run."""

    workload: str = "W1"
    device: str = "auto"
    source: Source = "measure"
    reference: str = ""
    data_source: Literal["auto", "medmnist", "synthetic", "imagefolder"] = "auto"
    resolution: Literal["native", "resized"] = "native"
    batch_size: Count = 0
    epochs: Positive = 1
    warmup_iters: Count = 5
    warmup_s: Annotated[float, Field(ge=0, le=600)] = 4.0
    iters: Count = 30
    budget_s: Annotated[float, Field(ge=0, le=1e6)] = 24.0
    profile: bool = True
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    lr: Annotated[float, Field(gt=0, le=10)] = 1e-3
    channels_last: bool = False
    grad_accum_steps: Positive = 1
    num_workers: Count = 0
    pin_memory: bool = False
    prefetch_factor: Count = 0
    augment: bool = False
    deterministic: bool = False
    cudnn_benchmark: bool = False
    nvtx: bool = False
    threads: Count = 0
    seed: Count = 42
    label: str = ""


class SweepParams(Strict):
    """Parameters of ``03_sweep`` and of one sweep."""

    source: Source = "measure"
    reference: str = ""
    op: str = "conv2d"
    grid: str = ""
    device: str = "auto"
    budget_s: Annotated[float, Field(ge=0, le=1e6)] = 30.0
    count: Count = 0
    rounds: Annotated[int, Field(ge=1, le=100)] = 5
    visit_ms: Annotated[float, Field(ge=1, le=10_000)] = 20.0
    latency_type: Literal["kernel", "end_to_end", "both"] = "kernel"
    cache: Literal["warm", "cold", "both"] = "warm"
    dtype: str = "fp32"
    shard: Annotated[str, Field(pattern=r"^\d+/\d+$")] = "0/1"
    threads: Count = 0
    timeout_s: Annotated[float, Field(gt=0, le=1e5)] = 60.0
    patience_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    seed: Count = 0
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]*$")] = ""

    @property
    def ops(self) -> list[str]:
        """Return the operator families; ``all`` are those that params/sweeps.yaml has a space for."""
        if self.op == "all":
            return list(load_yaml(paths.PARAMS / "sweeps.yaml")["spaces"])
        return self.op.split(",")

    @property
    def shard_pair(self) -> tuple[int, int]:
        """Return the shard as (i, n)."""
        number, of = (int(part) for part in self.shard.split("/"))
        if number >= of:
            raise InputError(f"shard = {self.shard!r} must be i/n with i below n, such as 0/8 to 7/8")
        return number, of


class RooflineParams(Strict):
    """Parameters of ``05_roofline``."""

    source: Source = "measure"
    reference: str = ""
    device: str = "auto"
    models: Annotated[str, Field(pattern=r"^[^,\s]+(,[^,\s]+)*$")] = "resnet50,vgg16,mobilenet_v2"
    batch_size: Positive = 1
    dtype: Literal["fp64", "fp32", "bf16", "fp16"] = "fp32"
    budget_s: Annotated[float, Field(ge=0, le=3600)] = 20.0
    vendor: str = ""
    nsight: str = ""


class ComplexityParams(Strict):
    """Parameters of ``04_complexity``."""

    source: Source = "measure"
    reference: str = ""
    models: str = "W1,W2,W3,W4,W5,W6,W7,resnet50,vgg16,mobilenet_v2"
    input_shape: str = ""
    batch_sizes: Annotated[str, Field(pattern=r"^[1-9]\d*( *, *[1-9]\d*)*$")] = "1,8,32"
    detail: str = ""

    @property
    def names(self) -> list[str]:
        """Return the models in order, each once; InputError when there is none."""
        found = list(dict.fromkeys(name.strip() for name in self.models.split(",") if name.strip()))
        if not found:
            raise InputError("models is empty; name some with commas, such as W1,resnet50,mymodule:Class")
        return found

    @property
    def sizes(self) -> list[int]:
        """Return the batch sizes, each once, the smallest first."""
        return sorted({int(size) for size in self.batch_sizes.split(",")})


class CostModelParams(Strict):
    """Parameters of ``06_cost_model``."""

    source: Source = "measure"
    reference: str = ""
    quick: bool = True
    families: str = "conv2d forward,matmul and linear"
    model: Annotated[str, Field(min_length=1)] = "resnet50"
    input_shape: str = ""
    batch_size: Count = 16
    mode: Literal["infer", "train"] = "infer"
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    verify: bool = False

    @property
    def asked(self) -> list[str]:
        """Return the families to learn again."""
        return [name.strip() for name in self.families.split(",") if name.strip()]


class SchedulerParams(Strict):
    """Parameters of ``07_scheduler_eval``."""

    source: Source = "measure"
    reference: str = ""
    scenarios: Annotated[str, Field(pattern=r"^[^,\s]+(,[^,\s]+)*$")] = "one_gpu,large_gpu,mixed"
    count: Annotated[int, Field(ge=10, le=20_000)] = 120
    seeds: Annotated[int, Field(ge=1, le=100)] = 2
    arriving: Annotated[int, Field(ge=100, le=100_000)] = 800
    scale: Annotated[int, Field(ge=1000, le=1_000_000)] = 10_000
    jobs: str = ""
    workloads: Annotated[str, Field(pattern=r"^[^,\s]+(,[^,\s]+)*$")] = "W1,W6"
    real: Annotated[int, Field(ge=2, le=1000)] = 6
    job_s: Annotated[float, Field(ge=0.5, le=3600)] = 1.5

    @property
    def names(self) -> list[str]:
        """Return the scenarios, each once."""
        return list(dict.fromkeys(self.scenarios.split(",")))


NOTEBOOKS: dict[str, type[Strict]] = {"01_machine": MachineParams, "02_profile": ProfileParams, "03_sweep": SweepParams,
                                    "04_complexity": ComplexityParams, "05_roofline": RooflineParams,
                                    "06_cost_model": CostModelParams, "07_scheduler_eval": SchedulerParams}


class Workload(Strict):
    """One line of ``params/workloads.yaml``: what is trained on what."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*$")]
    dataset: str
    size: Annotated[int, Field(ge=8, le=1024)]
    model: str
    batch_size: Positive
    purpose: str = ""
    folder: str = ""


class Section(Strict):
    """One notebook of ``params/report.yaml``: what it runs over and its parameter sets."""

    notebook: str
    over: tuple[Literal["workloads", "devices"], ...] = ()
    quick: dict[str, Any] = {}
    full: dict[str, Any] = {}


class ReportPlan(Strict):
    """``params/report.yaml``: the order of the report and how each notebook is run for it."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]


def _reason(error: dict) -> str:
    """Turn one pydantic error into ``name = value: reason``."""
    name = ".".join(str(part) for part in error["loc"]) or "value"
    if error["type"] == "extra_forbidden":
        return f"unknown name {name!r}"
    if error["type"] == "missing":
        return f"{name} is missing"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{name} = {error['input']!r} {message}"


def build(model: type[Strict], values: Mapping[str, Any], where: str) -> Any:
    """Build ``model`` from ``values``.

    Raises InputError, in one line that names ``where``, each wrong value and the known names.
    """
    try:
        return model(**values)
    except ValidationError as error:
        reasons = "; ".join(_reason(item) for item in error.errors())
        unknown = any(item["type"] == "extra_forbidden" for item in error.errors())
        known = f" (known: {choices(model.model_fields)})" if unknown else ""
        raise InputError(f"{where}: {reasons}{known}") from None


def notebook_model(name: str) -> type[Strict]:
    """Return the parameter class of notebook ``name``; InputError lists the notebooks."""
    if name not in NOTEBOOKS:
        raise InputError(f"no notebook {name!r}; there are: {choices(NOTEBOOKS)}")
    return NOTEBOOKS[name]


def check(notebook: str, namespace: Mapping[str, Any]) -> Any:
    """Coerce and validate what a notebook's parameters cell left in ``namespace`` (its ``globals()``).

    Returns the frozen parameter set of that notebook. Raises InputError for a wrong value.
    """
    model = notebook_model(notebook)
    return build(model, {name: namespace[name] for name in model.model_fields if name in namespace}, notebook)


def load_yaml(path: Path) -> Any:
    """Read one YAML 1.2 file (``no`` is text, ``1e-3`` a number, a repeated key an error).

    Raises InputError naming the file and the line.
    """
    from ruamel.yaml import YAML, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except (YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line} is not readable YAML: {getattr(error, 'problem', None) or error}") from None


def load_workloads(path: Path = paths.PARAMS / "workloads.yaml") -> dict[str, Workload]:
    """Read the workload definitions, id to Workload; InputError names the file and the wrong entry."""
    table = (load_yaml(path) or {}).get("workloads")
    if not isinstance(table, dict) or not table:
        raise InputError(f"{path}: expected a mapping 'workloads:' of id to definition")
    return {str(key): build(Workload, {"id": str(key), **_mapping(value, path, key)}, f"{path}: {key}")
            for key, value in table.items()}


def _mapping(value: Any, path: Path, key: str) -> dict:
    if not isinstance(value, dict):
        raise InputError(f"{path}: {key} must be a mapping such as {{dataset: pathmnist, size: 28, ...}}, not {value!r}")
    return value


@cache
def workloads() -> dict[str, Workload]:
    """Return the project's own workload definitions, read once."""
    return load_workloads()


def workload(workload_id: str) -> Workload:
    """Return one workload; InputError lists the known ids."""
    table = workloads()
    if workload_id not in table:
        raise InputError(f"no workload {workload_id!r}; there are: {choices(table)} (add yours to params/workloads.yaml)")
    return table[workload_id]


def load_report_plan(path: Path = paths.PARAMS / "report.yaml") -> ReportPlan:
    """Read the plan of the report; each parameter set is checked against its notebook's class."""
    plan = build(ReportPlan, _mapping(load_yaml(path), path, "the file"), str(path))
    for section in plan.sections:
        for name in ("quick", "full"):
            build(notebook_model(section.notebook), getattr(section, name), f"{path}: {section.notebook}.{name}")
    return plan
