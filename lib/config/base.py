"""What every checked definition stands on: strict pydantic models, one-line errors, and YAML 1.2."""

import math
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from lib import csv_files, store
from lib.errors import InputError, choices
from lib.files import NAME
from lib.names import did_you_mean, known


def _no_truth(value: Any) -> Any:
    """Refuse true and false where a number is meant: they would count as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("is no number")
    return value


NUMBER = BeforeValidator(_no_truth)


def whole(least: int = 0, most: int | None = None) -> Any:
    """Return the type of a whole number from ``least`` to ``most``."""
    return Annotated[int, NUMBER, Field(ge=least, le=most)]


def number(least: float | None = None, most: float | None = None, above: float | None = None) -> Any:
    """Return the type of a number from ``least``, or ``above`` another, to ``most``."""
    return Annotated[float, NUMBER, Field(ge=least, gt=above, le=most)]


def text(pattern: str) -> Any:
    """Return the type of a text that fits a pattern."""
    return Annotated[str, Field(pattern=pattern)]


def some(kind: Any) -> Any:
    """Return the type of one or more values of a type."""
    return Annotated[tuple[kind, ...], Field(min_length=1)]


Count = whole(0)
Positive = whole(1)
Threads = whole(0, 1024)
Seed = whole(0, 2**32 - 1)
PlainName = text(rf"^{NAME}$")
_REASONS = 5  # wrong values that one line names
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # in a model, in a dataclass
_SHORT = reprlib.Repr()  # how a wrong value looks in it: a file may hold anything, and more of it than memory holds
_SHORT.maxstring = _SHORT.maxother = 100
_SHORT.maxlevel = 2


class Strict(BaseModel):
    """Base of every parameter set: frozen, unknown names refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _types_stay(cls, value: Any, info) -> Any:
        """Refuse a number where text is meant (papermill's ``-p`` takes ``12e5678`` for one, ``-r`` not), and True for one."""
        wanted = cls.model_fields[info.field_name].annotation
        if wanted in (int, float):
            _no_truth(value)
        if wanted is str and isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError("is text, but arrived as a number; pass it with papermill's -r")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be a finite number")
        is_choice = isinstance(value, str) and get_origin(wanted) is Literal
        return known(value, map(str, get_args(wanted))) if is_choice else value  # float16 is fp16


def _reason(error: dict) -> str:
    """Turn one pydantic error into ``name = value: reason``."""
    name = ".".join(str(part) for part in error["loc"]) or "value"
    if error["type"] in _UNKNOWN:
        return f"unknown name {name!r}"
    if error["type"] == "missing":
        return f"{name} is missing"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if isinstance(error["input"], dict) and error["type"] == "value_error":  # of several values together
        return f"{name}: {message}" if error["loc"] else message
    return f"{name} = {_short(error['input'])} {message}"


def _short(value: Any) -> str:
    """Return a value as its representation, in one line and cut where it is long."""
    try:
        return " ".join(_SHORT.repr(value).split())
    except ValueError:  # a whole number of more digits than Python writes
        return f"an endless {type(value).__name__}"


def error_line(error: ValidationError, where: str, names: Iterable[str]) -> str:
    """Return the line that names each wrong value, the first _REASONS of them, and the known ``names``."""
    errors = [item for item in error.errors() if item["type"] != "too_short" or not item["input"]]  # else for wrong values
    reasons = [_reason(item) for item in errors[:_REASONS]]
    more = f"; and {len(errors) - _REASONS} more" if len(errors) > _REASONS else ""
    unknown = next((str(item["loc"][-1]) for item in errors if item["type"] in _UNKNOWN), "")
    listed = f" (known: {choices(names)}){did_you_mean(unknown, names)}" if unknown else ""
    return f"{where}: {'; '.join(reasons)}{more}{listed}"


def build(model: type[Strict], values: Mapping[str, Any], where: str) -> Any:
    """Build ``model`` from ``values``.

    Raises InputError, in one line that names ``where``, each wrong value and the known names.
    """
    try:
        return model(**values)
    except ValidationError as error:
        raise InputError(error_line(error, where, model.model_fields)) from None


def load(model: type[Strict], path: Path) -> Any:
    """Read a YAML or JSON file (by its suffix) as ``model``; InputError names the file and each wrong value."""
    return build(model, mapping(store.read_json(path) if path.suffix == ".json" else load_yaml(path), path), str(path))


def mapping(content: Any, where: Path | str) -> dict[str, Any]:
    """Return what a file, or an entry of it, holds, which must be a mapping of names to values.

    Raises InputError, which says what it is instead.
    """
    if not isinstance(content, dict):
        raise InputError(f"{where}: expected a mapping of names to values, not {_SHORT.repr(content)}")
    wrong = [name for name in content if not isinstance(name, str)]
    if wrong:
        raise InputError(f"{where}: expected a mapping of names to values, but the name {_SHORT.repr(wrong[0])} is no text; "
                         "put it in quotes")
    return content


def json_mapping(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds a mapping of names to values; InputError for any other."""
    return mapping(store.read_json(path), path)


def load_yaml(path: Path) -> Any:
    """Read one YAML 1.2 file (``no`` is text, ``1e-3`` a number, a repeated key an error).

    Raises InputError naming the file and the line.
    """
    from ruamel.yaml import YAML, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(csv_files.bytes_of(path).decode())
    except InputError:
        raise
    except (YAMLError, ValueError, OSError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line} is not readable YAML: {getattr(error, 'problem', None) or error}") from None
