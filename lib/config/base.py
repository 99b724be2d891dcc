"""What every checked definition stands on: strict pydantic models, one-line errors, and YAML 1.2."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

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
