"""Typed parameters of the notebooks and typed definitions from ``params/*.yaml``; errors list the choices."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from lib import paths
from lib.config.base import Count, Positive, Seed, Source, Strict, Threads, build, load_yaml, mapping
from lib.errors import InputError, choices
from lib.files import NAME


class MachineParams(Strict):
    """Parameters of ``01_machine``."""

    source: Source = "measure"
    reference: str = ""
    device: str = "auto"
    budget_s: Annotated[float, Field(ge=1, le=3600)] = 15.0
    gemm_max: Annotated[int, Field(ge=0, le=32768)] = 0
    triad_max_mb: Annotated[float, Field(ge=0, le=65536)] = 0.0
    threads: Threads = 0


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
    num_workers: Annotated[int, Field(ge=0, le=256)] = 0
    pin_memory: bool = False
    prefetch_factor: Count = 0
    augment: bool = False
    deterministic: bool = False
    cudnn_benchmark: bool = False
    nvtx: bool = False
    threads: Threads = 0
    seed: Seed = 42
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
    threads: Threads = 0
    timeout_s: Annotated[float, Field(gt=0, le=1e5)] = 60.0
    patience_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    seed: Seed = 0
    name: Annotated[str, Field(pattern=rf"^({NAME})?$")] = ""

    @property
    def ops(self) -> list[str]:
        """Return the operator families, each once; ``all`` are those that params/sweeps.yaml has a space for."""
        if self.op == "all":
            path = paths.PARAMS / "sweeps.yaml"
            names = list(mapping(mapping(load_yaml(path), path).get("spaces"), f"{path}: spaces"))
            if not names:
                raise InputError(f"{path}: spaces is empty; op = 'all' needs one")
            return names
        return list(dict.fromkeys(self.op.split(",")))

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
        names = list(dict.fromkeys(name.strip() for name in self.models.split(",") if name.strip()))
        if not names:
            raise InputError("models is empty; name some with commas, such as W1,resnet50,mymodule:Class")
        return names

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
    def family_names(self) -> list[str]:
        """Return the families to train again."""
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
