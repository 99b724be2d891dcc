"""Typed parameters of the notebooks and typed definitions from ``params/*.yaml``; errors list the choices."""

import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, RootModel, ValidationInfo, field_validator

from lib import paths
from lib.config.base import Seed, Source, Strict, Threads, build, load_yaml, mapping, number, parse, text, whole
from lib.errors import InputError, entry
from lib.files import NAME
from lib.names import known

_DEVICE = r"(auto|cpu|mps|cuda(:\d{1,3})?)"
_NO_TEXT = ("Cc", "Cs", "Zl", "Zp")  # categories of control characters, half characters, breaks of lines
_LONGEST = 1000


def _spelled(value: Any) -> Any:
    """Spell devices as here (GPU is cuda) and remove spaces beside commas; what is no text is refused later."""
    usual = ("all", "auto", "cpu", "mps", "cuda")
    return ",".join(known(name.strip(), usual) for name in value.split(",")) if isinstance(value, str) else value


Device = Annotated[str, BeforeValidator(_spelled), Field(pattern=f"^{_DEVICE}$")]
Devices = Annotated[str, BeforeValidator(_spelled), Field(pattern=f"^(all|{_DEVICE}(,{_DEVICE})*)$")]
Names = Annotated[str, BeforeValidator(_spelled), Field(pattern=r"^[^,]+(,[^,]+)*$")]
MachineName = text(r"^([A-Za-z0-9][A-Za-z0-9._-]{0,209})?$")
FolderName = text(rf"^({NAME})?$")
RunFolder = text(r"^(([A-Za-z0-9_][A-Za-z0-9._@-]{0,219}/)?[A-Za-z0-9_][A-Za-z0-9._@-]{0,219})?$")
Shape = text(r"^([0-9]{1,6}(x[0-9]{1,6}){2,3})?$")  # such as 3x224x224
BatchSize = whole(0, 1_000_000)
Batches = whole(0, 1_000_000_000)


class Sourced(Strict):
    """Parameters that every notebook has: measure here, or replay the data of a reference machine.

    Whatever is text is one line of bounded length.
    """

    source: Source = "measure"
    reference: MachineName = ""

    @field_validator("*")
    @classmethod
    def _one_line(cls, value: Any) -> Any:
        if isinstance(value, str) and (len(value) > _LONGEST or any(unicodedata.category(sign) in _NO_TEXT for sign in value)):
            raise ValueError(f"must be one line of at most {_LONGEST} characters")
        return value


def _names(text: str) -> list[str]:
    """Return names with commas between them in order, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


class SummaryParams(Sourced):
    """Parameters of ``00_summary``."""

    executed: str = ""


class MachineParams(Sourced):
    """Parameters of ``01_machine``."""

    device: Device = "auto"
    budget_s: number(1, 3600) = 15.0
    gemm_max: whole(0, 32768) = 0
    triad_max_mb: number(0, 65536) = 0.0
    threads: Threads = 0


class ProfileParams(Sourced):
    """Parameters of ``02_profile`` and of one profiled run."""

    workload: str = "W1"
    model: str = ""
    folder: str = ""
    device: Device = "auto"
    data_source: Literal["auto", "medmnist", "synthetic", "imagefolder"] = "auto"
    resolution: Literal["native", "resized"] = "native"
    batch_size: BatchSize = 0
    epochs: whole(1, 1_000_000) = 1
    warmup_iters: Batches = 5
    warmup_s: number(0, 600) = 4.0
    iters: Batches = 30
    budget_s: number(0, 1e6) = 24.0
    profile: bool = True
    precision: Literal["fp32", "bf16", "fp16", "amp"] = "fp32"
    lr: number(above=0, most=10) = 1e-3
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: number(0, 1) = 1e-4
    channels_last: bool = False
    grad_accum_steps: whole(1, 1_000_000) = 1
    num_workers: whole(0, 256) = 0
    pin_memory: bool = False
    prefetch_factor: whole(0, 1000) = 0
    augment: bool = False
    random_crop: bool = False
    deterministic: bool = False
    cudnn_benchmark: bool = False
    nvtx: bool = False
    threads: Threads = 0
    seed: Seed = 42
    label: str = ""


class SweepParams(Sourced):
    """Parameters of ``03_sweep`` and of one sweep."""

    op: Names = "conv2d"
    grid: str = ""
    device: Devices = "auto"
    budget_s: number(0, 1e6) = 30.0
    count: Batches = 0
    rounds: whole(1, 100) = 5
    visit_ms: number(1, 10_000) = 20.0
    energy_s: number(0, 600) = 0.0
    latency_type: Literal["kernel", "end_to_end", "both"] = "kernel"
    cache: Literal["warm", "cold", "both"] = "warm"
    dtype: Literal["fp64", "fp32", "bf16", "fp16", "complex64"] = "fp32"
    shard: text(r"^[0-9]{1,6}/[0-9]{1,6}$") = "0/1"
    threads: Threads = 0
    timeout_s: number(above=0, most=1e5) = 60.0
    patience_s: number(0, 3600) = 10.0
    memory_share: number(above=0, most=1) = 0.5
    seed: Seed = 0
    name: FolderName = ""
    merge: str = ""

    @property
    def ops(self) -> list[str]:
        """Return the operator families, each once; ``all`` are those that params/sweeps.yaml has a space for."""
        if self.op == "all":
            path = paths.PARAMS / "sweeps.yaml"
            names = list(mapping(mapping(load_yaml(path), path).get("spaces"), f"{path}: spaces"))
            if not names:
                raise InputError(f"{path}: spaces is empty; op = 'all' needs one")
            return names
        return _names(self.op)

    @field_validator("shard")
    @classmethod
    def _below(cls, shard: str) -> str:
        number, of = shard.split("/")
        if int(number) >= int(of):
            raise ValueError("must be i/n with i below n, such as 0/8 to 7/8")
        return shard

    @field_validator("device")
    @classmethod
    def _each_once(cls, device: str) -> str:
        names = ["cuda:0" if name == "cuda" else name for name in device.split(",")]
        if len(set(names)) < len(names):
            raise ValueError("names a device twice")
        return device

    @property
    def shard_pair(self) -> tuple[int, int]:
        """Return the shard as (i, n)."""
        number, of = self.shard.split("/")
        return int(number), int(of)


class RooflineParams(Sourced):
    """Parameters of ``05_roofline``."""

    device: Device = "auto"
    models: Names = "resnet50,vgg16,mobilenet_v2"
    batch_size: whole(1, 1_000_000) = 1
    dtype: Literal["fp64", "fp32", "bf16", "fp16"] = "fp32"
    budget_s: number(0, 3600) = 20.0
    vendor: str = ""
    nsight: str = ""


class ComplexityParams(Sourced):
    """Parameters of ``04_complexity``."""

    models: str = "W1,W2,W3,W4,W5,W6,W7,resnet50,vgg16,mobilenet_v2"
    input_shape: Shape = ""
    batch_sizes: text(r"^[1-9][0-9]{0,5}( *, *[1-9][0-9]{0,5})*$") = "1,8,32"
    detail: str = ""

    @field_validator("models")
    @classmethod
    def _some(cls, models: str) -> str:
        if not _names(models):
            raise ValueError("is empty; name some with commas, such as W1,resnet50,mymodule:Class")
        return models

    @field_validator("detail")
    @classmethod
    def _listed(cls, detail: str, info: ValidationInfo) -> str:
        if detail and detail not in _names(models := info.data.get("models", detail)):
            raise ValueError(f"is not among the models {models}")
        return detail

    @property
    def names(self) -> list[str]:
        """Return the models in order, each once."""
        return _names(self.models)

    @property
    def sizes(self) -> list[int]:
        """Return the batch sizes, each once, the smallest first."""
        return sorted({int(size) for size in self.batch_sizes.split(",")})


class CostModelParams(Sourced):
    """Parameters of ``06_cost_model``."""

    model: Annotated[str, Field(min_length=1)] = "resnet50"
    input_shape: Shape = ""
    batch_size: BatchSize = 16
    mode: Literal["infer", "train"] = "infer"
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    verify: bool = False


class SchedulerParams(Sourced):
    """Parameters of ``07_scheduler_eval``."""

    scenarios: Names = "one_gpu,large_gpu,mixed,cards"
    count: whole(10, 20_000) = 120
    seeds: whole(1, 100) = 5
    few: whole(1, 100) = 2
    arriving: whole(100, 100_000) = 400
    jobs: str = ""
    workloads: Names = "W1,W6"
    real: whole(2, 1000) = 6
    job_s: number(0.5, 3600) = 1.5

    @property
    def names(self) -> list[str]:
        """Return the scenarios, each once."""
        return _names(self.scenarios)


class LayerPowerParams(Sourced):
    """Parameters of ``08_layer_power``."""

    recordings: str = ""
    network: FolderName = ""
    engine: str = ""
    device_name: FolderName = ""
    trials: whole(0, 10_000) = 0
    seed: Seed = 0


class FinetuneParams(Sourced):
    """Parameters of ``09_finetune``."""

    config: FolderName = "cnn"
    run: RunFolder = ""
    device: Device = "auto"
    epochs: whole(0, 1_000_000) = 0
    threads: Threads = 0
    resume: bool = True


KEYS_MIME = "application/vnd.lib.keys+json"  # type of the output in which a notebook records its key numbers
NOTEBOOKS: dict[str, type[Strict]] = {"00_summary": SummaryParams, "01_machine": MachineParams,
                                    "02_profile": ProfileParams, "03_sweep": SweepParams,
                                    "04_complexity": ComplexityParams, "05_roofline": RooflineParams,
                                    "06_cost_model": CostModelParams, "07_scheduler_eval": SchedulerParams,
                                    "08_layer_power": LayerPowerParams, "09_finetune": FinetuneParams}


def notebook_model(name: str) -> type[Strict]:
    """Return the parameter class of notebook ``name``; InputError lists the notebooks."""
    return entry(NOTEBOOKS, name, "notebook")


class _Parameters(RootModel[dict[str, JsonValue]]):
    """Parameters as JSON, of any notebook."""


def own_model(path: str | Path) -> type[Strict] | None:
    """Return the parameter class of the notebook at ``path`` (relative to the repository or not), None for a foreign one."""
    whole = paths.ROOT / path
    return NOTEBOOKS.get(whole.stem) if whole.parent.resolve() == paths.NOTEBOOKS.resolve() else None


def given(path: str | Path, parameters: Mapping[str, Any], where: str) -> Any:
    """Check parameters for the notebook at ``path``; return its parameter set, None for a notebook that is not of this project.

    Raises InputError, in one line that begins with ``where``, for a name that it does not have, or a wrong value.
    """
    model = own_model(path)
    return model and build(model, parameters, where)


def parsed(path: str | Path, text: str, where: str) -> dict[str, Any]:
    """Return the parameters that a JSON object holds, checked by ``given``; empty for an empty text. Raises InputError."""
    parameters = parse(_Parameters, text.encode(errors="surrogatepass"), where).root if text else {}
    given(path, parameters, where)
    return parameters


def check(notebook: str, namespace: Mapping[str, Any]) -> Any:
    """Coerce and validate what a notebook's parameters cell left in ``namespace`` (its ``globals()``).

    Returns the frozen parameter set of that notebook. Raises InputError for a wrong value, and for an unknown name in the cell
    that papermill injected last, as IPython's history ``In`` has it; whatever other cells assign is free.
    """
    model, cells = notebook_model(notebook), reversed(namespace.get("In", ()))
    injected = re.findall(r"^(\w+) = ", next((cell for cell in cells if cell.startswith("# Parameters\n")), ""), re.MULTILINE)
    names = dict.fromkeys([*injected, *model.model_fields])
    return build(model, {name: namespace[name] for name in names if name in namespace}, notebook)
