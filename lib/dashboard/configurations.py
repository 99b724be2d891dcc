"""The check of a configuration: a fine-tune, or a notebook with its parameters."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lib import paths
from lib.config import notebooks
from lib.dashboard.fields import FieldsError, JsonObject, reasons, validated
from lib.errors import InputError, choices

SECRET = "hf_token"
MAX_EPOCHS = 1_000_000_000
GENERATED_ROOTS = ("medmnist", "synthetic")  # no folders
PATH_PARAMETERS = ("nsight", "recordings", "engine", "jobs", "energy", "folder")  # of notebooks
CODE_PARAMETERS = ("models", "model")
IMAGE_FIELDS = ("root", "folder")  # may lie in ``data_roots``
data_roots: list[Path] = []  # folders of images elsewhere, which the server's command line allows


@dataclass(frozen=True)
class Checked:
    """A valid configuration, all defaults filled in."""

    kind: str  # finetune | notebook
    values: dict[str, Any]
    facts: dict[str, Any]  # of a run of it, by the names of its columns

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the values, whatever order they came in."""
        text = json.dumps(self.values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def pasted(text: str) -> dict[str, Any]:
    """Return a pasted JSON object; FieldsError of the field ``config_json``."""
    try:
        return TypeAdapter(JsonObject).validate_json(text)
    except ValidationError as error:
        raise FieldsError({"config_json": "; ".join(reasons(error.errors()).values())}) from None


def check_config(values: Mapping[str, Any]) -> Checked:
    """Check a configuration of a fine-tune or a notebook; FieldsError names every wrong field."""
    return _check_notebook(values) if "notebook" in values else _check_finetune(values)


def _check_finetune(values: Mapping[str, Any]) -> Checked:
    from lib.finetune import folders
    from lib.finetune.config import TrainConfig

    wrong = {}
    if values.get(SECRET):
        wrong[SECRET] = "is a secret and not kept; set HF_TOKEN where the dashboard runs"
    try:
        config = validated(TrainConfig, {**values, SECRET: None})
    except FieldsError as error:
        raise FieldsError(error.errors | wrong) from None
    named = {name: getattr(config, name) for name in ("root", "model_flavour")}
    wrong |= _outside({name: value for name, value in named.items()
                       if value.partition(":")[0] not in GENERATED_ROOTS})
    if config.epochs > MAX_EPOCHS:
        wrong["epochs"] = f"is more than {MAX_EPOCHS:,}"
    if wrong:
        raise FieldsError(wrong)
    try:
        folders.check(config)
    except InputError as error:
        raise FieldsError({"config_json": str(error)}) from None
    facts = config.model_dump(include={"monitor_metric", "monitor_mode", "epochs", "seed"})
    return Checked("finetune", config.model_dump(mode="json"), facts)


def _check_notebook(values: Mapping[str, Any]) -> Checked:
    """Check the name of a notebook, and its parameters by the notebook's model."""
    errors = dict.fromkeys(set(values) - {"notebook", "parameters"}, "is no known field")
    name, parameters = values["notebook"], values.get("parameters", {})
    stems = {f"notebooks/{stem}.ipynb": stem for stem in notebooks.NOTEBOOKS
             if (paths.NOTEBOOKS / f"{stem}.ipynb").is_file()}
    if name not in list(stems):
        errors["notebook"] = f"must be one of {choices(stems)}"
    if not isinstance(parameters, Mapping):
        errors["parameters"] = "must be an object of names and values"
    elif "notebook" not in errors:
        try:
            model = notebooks.notebook_model(stems[name])
            parameters = validated(model, parameters).model_dump(mode="json")
            wrong = _outside({field: parameters[field] for field in PATH_PARAMETERS
                              if parameters.get(field)})
            for field in CODE_PARAMETERS:
                if ":" in str(parameters.get(field)):
                    wrong[field] = "names code (module:Class), which a dashboard does not run"
        except FieldsError as error:
            wrong = error.errors
        errors |= {f"parameters.{field}": reason for field, reason in wrong.items()}
    if errors:
        raise FieldsError(errors)
    content = {"notebook": name, "parameters": parameters}
    return Checked("notebook", content, {"seed": parameters.get("seed")})


def _outside(values: Mapping[str, str]) -> dict[str, str]:
    """Return by field why a path may not be read: it lies outside of the folders for runs."""
    errors = {}
    for field, value in values.items():
        path, roots = Path(value), [paths.DATA.resolve(), paths.ROOT.resolve()]
        allowed = f"must lie in {roots[0]} or in the repository, without .. and ~"
        if field in IMAGE_FIELDS:
            roots += data_roots
            allowed += ", or in a --data-root of the server"
        inside = any((paths.ROOT / path).resolve().is_relative_to(root) for root in roots)
        if value.startswith("~") or ".." in path.parts or not inside:
            errors[field] = allowed
    return errors


def finetune_fields() -> dict[str, str]:
    """Return the fields of a fine-tune with their defaults, as JSON."""
    from lib.finetune.config import TrainConfig

    schema = TrainConfig.model_json_schema()["properties"]
    shown = [name for name, field in TrainConfig.model_fields.items() if not field.exclude]
    return {name: json.dumps(schema[name]["default"]) if "default" in schema[name] else "needed"
            for name in shown}
