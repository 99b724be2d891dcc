"""Configurations of runs: the check of a fine-tune or notebook, and the form for a new one."""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from lib import paths
from lib.config import notebooks
from lib.dashboard.fields import FieldsError, Object, fields, validated
from lib.errors import InputError, choices

_SECRET = "hf_token"
_MADE = ("medmnist", "synthetic")  # roots that are no folder
_PATHS, _CODE = {"nsight", "recordings", "engine", "jobs", "energy", "folder"}, ("models", "model")  # parameters of notebooks
_IMAGES = ("root", "folder")  # fields that may lie in ``data_roots``
data_roots: list[Path] = []  # folders of images elsewhere, which the server's command line allows
BASIC = ("root", "model_flavour", "loss_name", "epochs", "batch_size", "lr", "optimizer", "autocast_dtype",
         "load_pretrained")  # fields of a form
_MOST_EPOCHS = 1_000_000_000


@dataclass(frozen=True)
class Checked:
    """A valid configuration, all defaults filled in."""

    kind: str  # finetune | notebook
    values: dict[str, Any]
    facts: dict[str, Any]  # of a run of it, by the names of its columns

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the values, whatever order they came in."""
        return hashlib.sha256(json.dumps(self.values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def pasted(text: str) -> dict[str, Any]:
    """Return a pasted JSON object; FieldsError of the field ``config``."""
    try:
        return TypeAdapter(Object).validate_json(text)
    except ValidationError as error:
        raise FieldsError({"config": "; ".join(fields(error.errors()).values())}) from None


def check_config(values: Mapping[str, Any]) -> Checked:
    """Check a configuration of a fine-tune or of a notebook; FieldsError names every wrong field."""
    if "notebook" in values:
        return _check_notebook(values)
    from lib.finetune import folders
    from lib.finetune.config import TrainConfig

    secrets = {_SECRET: "is a secret and not kept; set HF_TOKEN where the agent runs"} if values.get(_SECRET) else {}
    try:
        config = validated(TrainConfig, {**values, _SECRET: None})
    except FieldsError as error:
        raise FieldsError(error.errors | secrets) from None
    wrong = secrets | _outside({name: value for name in ("root", "model_flavour")
                                if (value := getattr(config, name)).partition(":")[0] not in _MADE})
    if config.epochs > _MOST_EPOCHS:
        wrong["epochs"] = f"is more than {_MOST_EPOCHS:,}"
    if wrong:
        raise FieldsError(wrong)
    try:
        folders.check(config)
    except InputError as error:
        raise FieldsError({"config": str(error)}) from None
    facts = config.model_dump(include={"monitor_metric", "monitor_mode", "epochs", "seed"})
    return Checked("finetune", config.model_dump(mode="json"), facts)


def _outside(values: Mapping[str, str]) -> dict[str, str]:
    """Return by field why a path may not be read: it lies outside of the folders that runs may use."""
    errors = {}
    for field, value in values.items():
        path, roots = Path(value), [paths.DATA.resolve(), paths.ROOT.resolve(), *(data_roots if field in _IMAGES else ())]
        inside = any((paths.ROOT / path).resolve().is_relative_to(root) for root in roots)
        if value.startswith("~") or ".." in path.parts or not inside:
            errors[field] = f"must lie in {roots[0]} or in the repository, without .. and ~" + (
                ", or in a --data-root of the server" if field in _IMAGES else "")
    return errors


def _check_notebook(values: Mapping[str, Any]) -> Checked:
    """Check the name of a notebook, and its parameters by the notebook's model."""
    errors = dict.fromkeys(set(values) - {"notebook", "parameters"}, "is no known field")
    name, parameters = values["notebook"], values.get("parameters", {})
    stems = {f"notebooks/{stem}.ipynb": stem for stem in notebooks.NOTEBOOKS if (paths.NOTEBOOKS / f"{stem}.ipynb").is_file()}
    if name not in [*stems]:
        errors["notebook"] = f"must be one of {choices(stems)}"
    if not isinstance(parameters, Mapping):
        errors["parameters"] = "must be an object of names and values"
    elif "notebook" not in errors:
        try:
            parameters = validated(notebooks.notebook_model(stems[name]), parameters).model_dump(mode="json")
            wrong = _outside({field: value for field in _PATHS if (value := parameters.get(field))})
            wrong |= {field: "names code (module:Class), which a dashboard does not run" for field in _CODE
                      if ":" in str(parameters.get(field))}
        except FieldsError as error:
            wrong = error.errors
        errors |= {f"parameters.{field}": reason for field, reason in wrong.items()}
    if errors:
        raise FieldsError(errors)
    return Checked("notebook", {"notebook": name, "parameters": parameters}, {"seed": parameters.get("seed")})


def form_fields() -> dict[str, dict[str, Any]]:
    """Return the fields of a TrainConfig for a form, by name, as JSON Schema has them, with ``examples`` to choose from."""
    from lib.finetune import metrics
    from lib.finetune.config import TrainConfig
    from lib.work import losses, medmnist_files, models

    schemas = TrainConfig.model_json_schema()["properties"]
    schemas = {name: schemas[name] for name in TrainConfig.model_fields if not TrainConfig.model_fields[name].exclude}
    found = [str(path.parent) for root in data_roots for path in sorted(root.glob("*/train"))]
    schemas["root"]["examples"] = [*found, *(f"{made}:{name}" for made in reversed(_MADE) for name in medmnist_files.info())]
    schemas["model_flavour"]["examples"] = [*models.names(), "google/vit-base-patch16-224-in21k"]
    schemas["loss_name"]["enum"] = list(losses.LOSSES)
    measured = metrics.names(schemas["eval_topk"]["default"])
    schemas["monitor_metric"]["examples"] = [f"val_{name}" for name in measured]
    schemas["device"]["examples"] = ["auto", "cpu", "cuda:0", "mps"]
    return schemas


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
