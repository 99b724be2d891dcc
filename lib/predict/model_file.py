"""The files of models: a dataclass as JSON, gzipped where the name ends in .gz, of which every field is checked; never code.

A dataclass that is saved has a FORMAT and annotations that say what a field may be: the types below, and ``__post_init__`` for
what its fields must be together.
"""

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from lib import csv_files, files, store
from lib.config.base import error_line, mapping
from lib.errors import InputError, refused

ENTRY = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
_MOST_BYTES = 64_000_000  # uncompressed; the largest that ships holds 2 million


@dataclass(frozen=True)
class Format:
    """What a file holds, in words, the command that makes another one, and the number of its schema."""

    noun: str
    retrain: str
    schema: int = 1


def require(holds: Any, wrong: str) -> None:
    """Raise ValueError, which says what is ``wrong``, where something does not hold."""
    if not np.all(holds):
        raise ValueError(wrong)


def _ordered(pair: tuple[float, float]) -> tuple[float, float]:
    require(pair[0] <= pair[1], "the lower limit is above the upper one")
    return pair


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    require(not path.is_absolute() and ".." not in path.parts, "is no folder below data/reference")
    return name


Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Limits = Annotated[tuple[float, float], AfterValidator(_ordered)]
Below = Annotated[str, AfterValidator(_inside)]  # the name of a folder below data/reference
Device = Annotated[str, Field(pattern=r"^[a-z0-9:._-]+$")]


def _absent(value: Any) -> Any:
    raise ValueError("is nothing that a file has")


Unsaved = Annotated[Any, AfterValidator(_absent), Field(exclude=True)]  # of what is in memory alone


class StoredArray(BaseModel):
    """An array of finite numbers as files have it: shape, element type, and bytes in base64."""

    model_config = ENTRY

    shape: tuple[Count, ...]
    dtype: Literal["<f4", "<f8", "<i2", "<i4", "<u2"]
    data: Base64Bytes


def stored(array: np.ndarray) -> dict[str, Any]:
    """Return an array as an entry of a file."""
    small = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"shape": list(array.shape), "dtype": small.dtype.str, "data": base64.b64encode(small.tobytes()).decode()}


def array(memory: type | None = None, file: str | None = None, axes: int = 1) -> Any:
    """Return the type of an array field of so many axes; of type ``memory``, in the file of element type ``file``, if given."""
    def read(entry: StoredArray) -> np.ndarray:
        require(len(entry.shape) == axes, f"shape {entry.shape} has not {axes} axes")
        size = int(np.prod(entry.shape, dtype=object)) * np.dtype(entry.dtype).itemsize
        require(size == len(entry.data), f"{len(entry.data)} bytes are no {entry.dtype} of shape {entry.shape}")
        numbers = np.frombuffer(entry.data, entry.dtype).reshape(entry.shape)
        require(np.isfinite(numbers), "holds numbers that are not finite")
        return numbers.astype(memory or entry.dtype)

    write = PlainSerializer(lambda value: stored(value.astype(file or value.dtype)))
    return Annotated[StoredArray, AfterValidator(read), write]


def vector(number: Any = float) -> Any:
    """Return the type of an array field that is a list of numbers in the file."""
    return Annotated[list[number], AfterValidator(np.array), PlainSerializer(lambda value: value.tolist())]


def keyed(key: type, value: type, names: Sequence[str] = ()) -> Any:
    """Return the type of a mapping from one dataclass to another: in files a list of entries with the fields of both.

    ``names``: the key's fields that files have, if not all; the others are as by default.
    """
    key_fields = [one for one in fields(key) if not names or one.name in names]
    entry = make_dataclass(value.__name__, [
        (one.name, one.type, field(default=one.default, default_factory=one.default_factory))
        for one in (*key_fields, *fields(value))], frozen=True, kw_only=True)

    def part(cls: type, of: Sequence[Any], record: Any) -> Any:
        return cls(**{one.name: getattr(record, one.name) for one in of})

    def paired(records: list[Any]) -> dict[Any, Any]:
        return {part(key, key_fields, record): part(value, fields(value), record) for record in records}

    def joined(pairs: dict[Any, Any]) -> list[Any]:
        return [entry(**{one.name: getattr(key_, one.name) for one in key_fields}, **vars(value_))
                for key_, value_ in pairs.items()]

    return Annotated[list[entry], Field(min_length=1), AfterValidator(paired), PlainSerializer(joined, return_type=list[entry])]


@cache
def _adapter(cls: type) -> TypeAdapter:
    cls.__pydantic_config__ = ENTRY
    return TypeAdapter(cls)


def _parsed(cls: type, content: Any, where: str) -> Any:
    try:
        return _adapter(cls).validate_json(to_json(content, inf_nan_mode="constants"))
    except ValidationError as error:
        raise InputError(error_line(error, where, [field.name for field in fields(cls)])) from None


def _text(path: Path, noun: str) -> bytes:
    if path.suffix != ".gz":
        return csv_files.bytes_of(path)
    with gzip.open(path) as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise InputError(f"{path} holds more than {_MOST_BYTES / 1e6:.0f} MB: it is no {noun}")
    return text


class Saved:
    """Base of dataclasses that have a file."""

    FORMAT: ClassVar[Format]

    def save(self, path: Path) -> Path:
        """Write the file, in one step; InputError for what ``load`` would not take."""
        content = _adapter(type(self)).dump_python(self, mode="json", warnings=False)
        _parsed(type(self), content, f"{path} is not written")
        content = {"schema": self.FORMAT.schema, **content}
        return files.replace(path, gzip.compress(json.dumps(content).encode(), mtime=0) if path.suffix == ".gz"
                             else store.encoded_json(content))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file by its FORMAT. Runs no code of it.

        InputError names the file, what is wrong with it, and what makes another one.
        """
        form = cls.FORMAT
        damaged = f"{path} is no {form.noun}, or is damaged"
        with refused(f"{damaged} (", f"); {form.retrain}"):
            if not path.exists():
                raise InputError(f"{path} is missing")
            content = from_json(_text(path, form.noun))
        version = mapping(content, f"{damaged}; {form.retrain}").pop("schema", None)
        if type(version) is not int:
            raise InputError(f"{damaged}: schema = {version!r} is no number; {form.retrain}")
        if version != form.schema:
            raise InputError(f"{path} is a {form.noun} of schema {version}, this program reads schema {form.schema}: "
                             + (form.retrain if version < form.schema else "update the program"))
        return _parsed(cls, content, f"{damaged}, or of an earlier release; {form.retrain}")
