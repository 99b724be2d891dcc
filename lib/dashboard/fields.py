"""Types of the fields of requests, and the errors of a request by field."""

import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue, ValidationError

from lib.config.base import whole
from lib.errors import InputError, printable

MAX_DEPTH, MAX_CHARACTERS = 16, 100_000  # of a JSON object


class FieldsError(InputError):
    """Wrong values, all at once; ``errors`` has the reason by field."""

    def __init__(self, errors: Mapping[str, str]):
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in errors.items()))
        self.errors = dict(errors)


def reasons(errors: Iterable[Mapping[str, Any]], drop: int = 0) -> dict[str, str]:
    """Return pydantic's errors by field; ``drop`` leaves out the first parts of a field's place."""
    found: dict[str, str] = {}
    for error in errors:
        name = printable(".".join(map(str, error["loc"][drop:])) or "value")[:100]
        reason = error["msg"].removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            reason = "is no known field"
        found[name] = f"{found[name]}; {reason}" if name in found else reason
    return found


def validated(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    """Return values as their model; FieldsError names every wrong one."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise FieldsError(reasons(error.errors())) from None


def from_form(model: type[BaseModel], form: Mapping[str, Any]) -> Any:
    """Return a form as its model, without its empty fields; FieldsError."""
    return validated(model, {name: value for name, value in form.items() if value != ""})


def _plain_text(text: str) -> str:
    for sign in text:
        if unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\n\t\r":
            raise ValueError("holds characters that control a terminal, or half characters")
    return text


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, parts), default=0)


def _json_column(value: Any) -> Any:
    """Refuse what a JSON column cannot hold: NaN, half characters, too deep or too long."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        raise ValueError("holds NaN, an infinite number or half characters") from None
    if len(text) > MAX_CHARACTERS or b"\\u0000" in text or _depth(value) > MAX_DEPTH:
        raise ValueError(f"must be of at most {MAX_CHARACTERS} characters and {MAX_DEPTH} levels, "
                         "without NUL")
    return value


def _listed(value: Any) -> Any:
    """Split the text of a form at its commas."""
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return value


ROW_ID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
RowId = Annotated[str, Field(pattern=f"^{ROW_ID}$")]
Name = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^\S(.*\S)?$"),
                 AfterValidator(_plain_text)]
Line = Annotated[str, Field(max_length=500), AfterValidator(_plain_text)]
Text = Annotated[str, Field(max_length=5000), AfterValidator(_plain_text)]
GpuIndex = whole(0, 1023)
Indices = Annotated[list[GpuIndex], Field(max_length=64), BeforeValidator(_listed)]
Names = Annotated[list[Name], Field(max_length=32), BeforeValidator(_listed)]
JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_json_column)]
Priority = whole(-1000, 1000)
