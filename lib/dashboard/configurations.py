"""The check of a configuration: a fine-tune, or a notebook with its parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib import paths
from lib.config import notebooks
from lib.dashboard.bodies import FieldsError, validated
from lib.errors import InputError, choices

MAX_EPOCHS = 1_000_000_000
GENERATED_ROOTS = ("medmnist", "synthetic")  # no folders
PATH_PARAMETERS = ("nsight", "recordings", "engine", "jobs", "folder")  # of notebooks
CODE_PARAMETERS = ("models", "model")
IMAGE_FIELDS = ("root", "folder")  # may lie in ``data_roots``
data_roots: list[Path] = []  # folders of images elsewhere, which the server's command line allows


def check_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of a fine-tune or a notebook with all defaults filled in.

    FieldsError names every wrong field.
    """
    return _check_notebook(values) if "notebook" in values else _check_finetune(values)


def _check_finetune(values: Mapping[str, Any]) -> dict[str, Any]:
    from lib.finetune import folders
    from lib.finetune.config import TrainConfig

    wrong = {}
    if values.get("hf_token"):
        wrong["hf_token"] = "is a secret and not kept; set HF_TOKEN where the dashboard runs"
    try:
        config = validated(TrainConfig, {**values, "hf_token": None})
    except FieldsError as error:
        raise FieldsError(error.errors | wrong) from None
    named = {"root": config.root, "model_flavour": config.model_flavour}
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
    return config.model_dump(mode="json")


def _check_notebook(values: Mapping[str, Any]) -> dict[str, Any]:
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
    return {"notebook": name, "parameters": parameters}


def _outside(values: Mapping[str, str]) -> dict[str, str]:
    """Return by field why a path may not be read: it lies outside of the folders for runs."""
    errors = {}
    for field, value in values.items():
        path, roots = Path(value), [paths.DATA.resolve(), paths.ROOT.resolve()]
        allowed = f"must lie in {roots[0]} or in the repository, without .. and ~"
        if field in IMAGE_FIELDS:
            roots += data_roots
            allowed += ", or in a --data-dir of the server"
        inside = any((paths.ROOT / path).resolve().is_relative_to(root) for root in roots)
        if value.startswith("~") or ".." in path.parts or not inside:
            errors[field] = allowed
    return errors
