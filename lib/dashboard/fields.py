"""Types of columns and of requests, which pydantic checks and SQLAlchemy keeps; all errors of a request at once by field."""

import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue, ValidationError
from sqlalchemy.orm import mapped_column

from lib.config.base import number, whole
from lib.errors import InputError, printable

_DEEPEST, _LONGEST = 16, 100_000


class FieldsError(InputError):
    """Wrong values, all at once; ``errors`` has the reason by field."""

    def __init__(self, errors: Mapping[str, str]):
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in errors.items()))
        self.errors = dict(errors)


def fields(errors: Iterable[Mapping[str, Any]], drop: int = 0) -> dict[str, str]:
    """Return pydantic's errors as field and reason; ``drop`` leaves out the first parts of a field's place."""
    reasons: dict[str, str] = {}
    for error in errors:
        name = printable(".".join(map(str, error["loc"][drop:])) or "value")[:100]
        reason = "is no known field" if error["type"] == "extra_forbidden" else error["msg"].removeprefix("Value error, ")
        reasons[name] = f"{reasons[name]}; {reason}" if name in reasons else reason
    return reasons


def validated(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    """Return values as their model; FieldsError names every wrong one."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise FieldsError(fields(error.errors())) from None


def checked(model: type[BaseModel], form: Mapping[str, Any]) -> Any:
    """Return a form as its model, without its empty fields; FieldsError."""
    return validated(model, {name: value for name, value in form.items() if value != ""})


def _plain(text: str) -> str:
    if any(unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\n\t\r" for sign in text):
        raise ValueError("holds characters that control a terminal, or half characters")
    return text


def _bounded(value: Any) -> Any:
    """Refuse values that a JSON column cannot hold: NaN, half characters, too deep or too long."""
    def depth(part: Any) -> int:
        parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        return 1 + max(map(depth, parts), default=0)

    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        raise ValueError("holds NaN, an infinite number or half characters, which JSON has not") from None
    if len(text) > _LONGEST or b"\\u0000" in text or depth(value) > _DEEPEST:
        raise ValueError(f"must be of at most {_LONGEST} characters and {_DEEPEST} levels, without NUL")
    return value


PLAIN, BOUNDED = AfterValidator(_plain), AfterValidator(_bounded)
LISTED = BeforeValidator(lambda value: [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str)
                         else value)  # of a form
ROW_ID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
RowId = Annotated[str, Field(pattern=f"^{ROW_ID}$")]
Index = whole(0, 1023)
Name = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^\S(.*\S)?$"), PLAIN]
Line = Annotated[str, Field(max_length=500), PLAIN, mapped_column(default="")]
Long = Annotated[str, Field(max_length=5000), PLAIN, mapped_column(default="")]
Megabytes = Annotated[int, Field(ge=0, le=100_000_000), mapped_column(default=0)]
Capability = Annotated[str, Field(pattern=r"^(\d{1,2}\.\d{1,2})?$"), mapped_column(default="")]
Seconds = number(above=0, most=1e9)
Priority = Annotated[int, Field(ge=-1000, le=1000), mapped_column(default=0)]
Object = Annotated[dict[str, JsonValue], BOUNDED, mapped_column(default=dict)]
Indices = Annotated[list[Index], Field(max_length=64), LISTED, mapped_column(default=list)]
Names = Annotated[list[Name], Field(max_length=32), LISTED, mapped_column(default=list)]
Items = Annotated[list[Any], mapped_column(default=list)]
Flag = Annotated[bool, mapped_column(default=False)]
Count = Annotated[int, mapped_column(default=0)]
