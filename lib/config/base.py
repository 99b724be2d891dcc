"""What every checked definition stands on: strict pydantic models, one-line errors, and YAML 1.2."""

import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from lib import store
from lib.errors import InputError, choices

Source = Literal["measure", "replay"]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]  # becomes that of a file or folder


class Strict(BaseModel):
    """Base of every parameter set: frozen, unknown names refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _types_stay(cls, value: Any, info) -> Any:
        """Refuse a number where text is meant (papermill's ``-p`` takes ``12e5678`` for one, ``-r`` not), and True for one."""
        wanted = cls.model_fields[info.field_name].annotation
        if wanted is str and isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError("is text, but arrived as a number; pass it with papermill's -r")
        if wanted in (int, float) and isinstance(value, bool):
            raise ValueError("is a number, neither True nor False")
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
    return f"{name} = {_short(error['input'])} {message}"


def _short(value: Any) -> str:
    """Return a value as its representation, in one line and cut where it is long."""
    try:
        return " ".join(reprlib.repr(value).split())
    except ValueError:  # a whole number of more digits than Python writes
        return f"an endless {type(value).__name__}"


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


def load(model: type[Strict], path: Path) -> Any:
    """Read a YAML or JSON file (by its suffix) as ``model``; InputError names the file and each wrong value."""
    return build(model, mapping(store.read_json(path) if path.suffix == ".json" else load_yaml(path), path), str(path))


def mapping(content: Any, path: Path) -> dict[str, Any]:
    """Return what a file holds, which must be a mapping of names to values; InputError says what it is instead."""
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise InputError(f"{path}: expected a mapping of names to values, not {str(content)[:60]!r}")
    return content


def load_yaml(path: Path) -> Any:
    """Read one YAML 1.2 file (``no`` is text, ``1e-3`` a number, a repeated key an error).

    Raises InputError naming the file and the line.
    """
    from ruamel.yaml import YAML, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path} is missing") from None
    except (YAMLError, ValueError, OSError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line} is not readable YAML: {getattr(error, 'problem', None) or error}") from None
