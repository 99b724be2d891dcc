"""Parameters of the notebooks: declared in their parameters cells, limited here.

A parameters cell (``name: type = literal  # meaning, unit``) is the only statement of a parameter's
name, type, default and meaning. What a type cannot say stands here: choices, ranges, formats.
"""

import ast
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, create_model, field_validator, model_validator

from lib import paths, store
from lib.config.base import Strict, build, load_yaml, mapping, number, text, whole
from lib.errors import InputError, choices, entry, refused
from lib.files import NAME
from lib.names import known

KEYS_MIME = "application/vnd.lib.keys+json"  # type of the output with a notebook's key numbers
_DEVICE = r"(auto|cpu|mps|cuda(:\d{1,3})?)"
_LONGEST, _LARGEST = 1000, 2**32 - 1  # characters of a text, and any number
_UNPRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # line breaks among them
_TYPES = {"str": str, "int": int, "float": float, "bool": bool}


def _spelled(value: Any) -> Any:
    """Spell devices as here (GPU is cuda) and remove blanks around commas."""
    usual = ("all", "auto", "cpu", "mps", "cuda")
    if isinstance(value, str):
        return ",".join(known(name.strip(), usual) for name in value.split(","))
    return value  # refused later


def _names(pattern: str) -> Any:
    return Annotated[str, BeforeValidator(_spelled), Field(pattern=pattern)]


Device, Devices = _names(f"^{_DEVICE}$"), _names(f"^(all|{_DEVICE}(,{_DEVICE})*)$")
Names = _names(r"^[^,]+(,[^,]+)*$")
Folder = text(rf"^({NAME})?$")
_RUN = r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,219}"
RunFolder = text(rf"^(({_RUN}/)?{_RUN})?$")  # DATASET/RUN
_LIMITS = {  # of parameters that several notebooks have
    "source": Literal["measure", "replay"],
    "reference": text(r"^([A-Za-z0-9][A-Za-z0-9._-]{0,209})?$"),
    "device": Device, "threads": whole(0, 1024), "models": Names, "mode": Literal["infer", "train"],
    "dtype": Literal["fp32", "bf16", "fp16"],
    "input_shape": text(r"^([0-9]{1,6}(x[0-9]{1,6}){2,3})?$")}


class NotebookParams(Strict):
    """Parameters of a notebook: numbers are not negative, texts are one line."""

    model_config = ConfigDict(validate_default=True)  # a saved notebook may have others

    @field_validator("*")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        if isinstance(value, str) and (len(value) > _LONGEST or _UNPRINTED.search(value)):
            raise ValueError(f"must be one line of at most {_LONGEST} characters")
        if isinstance(value, int | float) and not 0 <= value <= _LARGEST:
            raise ValueError(f"must be from 0 to {_LARGEST}")
        return value


class _Sweep(NotebookParams):
    @property
    def ops(self) -> list[str]:
        """Return the operator families, each once; ``all``: those of params/sweeps.yaml."""
        if self.op == "all":
            path = paths.PARAMS / "sweeps.yaml"
            return list(mapping(mapping(load_yaml(path), path).get("spaces"), f"{path}: spaces"))
        return list(dict.fromkeys(self.op.split(",")))

    @property
    def shard_pair(self) -> tuple[int, int]:
        """Return the shard as (i, n)."""
        number, of = self.shard.split("/")
        return int(number), int(of)

    @field_validator("shard", check_fields=False)
    @classmethod
    def _below(cls, shard: str) -> str:
        number, of = shard.split("/")
        if int(number) >= int(of):
            raise ValueError("must be i/n with i below n, such as 0/8 to 7/8")
        return shard


class _Complexity(NotebookParams):
    @model_validator(mode="after")
    def _listed(self) -> Self:
        if self.detail and self.detail.strip() not in self.models.split(","):
            raise ValueError(f"detail = {self.detail!r} is not among the models {self.models}")
        return self


def declared(notebook: str) -> dict[str, tuple[type, Any]]:
    """Return type and default of each parameter of a notebook, by name, in order.

    Raises InputError for a notebook without a parameters cell, and for a line of another form.
    """
    path, parameters = paths.NOTEBOOKS / f"{notebook}.ipynb", {}
    content = store.read_json(path)
    with refused(f"{path} is no notebook: "):
        cells = [cell for cell in content["cells"]
                 if "parameters" in cell["metadata"].get("tags", ())]
    if not cells:
        raise InputError(f"{path}: no cell has the tag 'parameters'")
    with refused(f"{path}: a parameter is declared as 'name: type = literal  # meaning': "):
        for line in ast.parse("".join(cells[0]["source"])).body:
            kind, default = _TYPES[line.annotation.id], ast.literal_eval(line.value)
            parameters[line.target.id] = (kind, default)
    return parameters


NOTEBOOKS: dict[str, tuple[str, type[Strict], dict[str, Any]]] = {  # class, its base, limits
    "00_summary": ("SummaryParams", NotebookParams, {}),
    "01_machine": ("MachineParams", NotebookParams, {"budget_s": number(1)}),
    "02_profile": ("ProfileParams", NotebookParams, {
        "epochs": whole(1), "grad_accum_steps": whole(1),
        "data_source": Literal["auto", "medmnist", "synthetic", "imagefolder"],
        "resolution": Literal["native", "resized"], "optimizer": Literal["adam", "sgd"],
        "precision": Literal["fp32", "bf16", "fp16", "amp"], "lr": number(above=0),
        "momentum": Annotated[float, Field(lt=1)], "num_workers": whole(0, 256)}),
    "03_sweep": ("SweepParams", _Sweep, {
        "op": Names, "device": Devices, "rounds": whole(1, 100), "visit_ms": number(1),
        "latency_type": Literal["kernel", "end_to_end", "both"],
        "cache": Literal["warm", "cold", "both"], "timeout_s": number(above=0), "name": Folder,
        "dtype": Literal["fp64", "fp32", "bf16", "fp16", "complex64"],
        "shard": text(r"^[0-9]{1,6}/[0-9]{1,6}$"), "memory_share": number(above=0, most=1)}),
    "04_complexity": ("ComplexityParams", _Complexity, {
        "batch_sizes": text(r"^[1-9][0-9]{0,5}( *, *[1-9][0-9]{0,5})*$")}),
    "05_roofline": ("RooflineParams", NotebookParams, {
        "batch_size": whole(1), "dtype": Literal["fp64", "fp32", "bf16", "fp16"]}),
    "06_cost_model": ("CostModelParams", NotebookParams, {"model": text(".")}),
    "07_scheduler_eval": ("SchedulerParams", NotebookParams, {
        "scenarios": Names, "workloads": Names, "count": whole(10, 20_000), "seeds": whole(1, 100),
        "few": whole(1, 100), "arriving": whole(100, 100_000), "real": whole(2, 1000),
        "job_s": number(0.5)}),
    "08_layer_power": ("LayerPowerParams", NotebookParams, {
        "network": Folder, "device_name": Folder}),
    "09_finetune": ("FinetuneParams", NotebookParams, {"config": Folder, "run": RunFolder})}


@cache
def notebook_model(name: str) -> type[Strict]:
    """Return the parameter class of notebook ``name``, made when it is first asked for.

    Raises InputError, which lists the notebooks, and for a parameters cell that is wrong.
    """
    class_name, base, limits = entry(NOTEBOOKS, name, "notebook")
    parameters = declared(name)
    if missing := sorted(limits.keys() - parameters.keys()):
        raise InputError(f"notebooks/{name}.ipynb lacks the parameters {choices(missing)}")
    fields = {field: (limits.get(field, _LIMITS.get(field, kind)), default)
              for field, (kind, default) in parameters.items()}
    model = create_model(class_name, __base__=base, __module__=__name__, **fields)
    build(model, {}, f"defaults in notebooks/{name}.ipynb")
    return model


def __getattr__(name: str) -> type[Strict]:
    """Return a class of NOTEBOOKS by its name."""
    for notebook, (class_name, *_) in NOTEBOOKS.items():
        if class_name == name:
            return notebook_model(notebook)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def own_model(path: str | Path) -> type[Strict] | None:
    """Return the parameter class of the notebook at ``path``; None for a notebook of others."""
    whole = paths.ROOT / path
    is_own = whole.parent.resolve() == paths.NOTEBOOKS and whole.stem in NOTEBOOKS
    return notebook_model(whole.stem) if is_own else None


def given(path: str | Path, parameters: Mapping[str, Any], where: str) -> Any:
    """Check parameters for the notebook at ``path``; return them, None for a notebook of others.

    Raises InputError, which begins with ``where``, for an unknown name or a wrong value.
    """
    model = own_model(path)
    return model and build(model, parameters, where)


def parsed(path: str | Path, text: str, where: str) -> dict[str, Any]:
    """Return the parameters in a JSON object, checked by ``given``; none for an empty text."""
    with refused(f"{where} is no JSON object: "):
        parameters = mapping(json.loads(text or "{}"), where)
    given(path, parameters, where)
    return parameters


def check(notebook: str, namespace: Mapping[str, Any]) -> Any:
    """Coerce and validate what a notebook's parameters cell left in its ``globals()``.

    Returns the frozen parameter set. Raises InputError for a wrong value, and for an unknown name
    in the cell that papermill injected, as IPython's history ``In`` has it.
    """
    model, injected = notebook_model(notebook), []
    for cell in namespace.get("In", ()):
        if cell.startswith("# Parameters\n"):
            injected = re.findall(r"^(\w+) = ", cell, re.MULTILINE)  # the last one counts
    names = dict.fromkeys([*injected, *model.model_fields])
    return build(model, {name: namespace[name] for name in names if name in namespace}, notebook)
