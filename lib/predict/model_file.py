"""The file of a cost model: compressed JSON, of which every name, number and shape is checked before one is computed with.

Data, never code; ``operators`` turn what is read here into what predicts.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, field_validator, model_validator

from lib import files
from lib.config.base import parse
from lib.config.definitions import Dtype
from lib.errors import InputError, one_line

SCHEMA = 4
RETRAIN = ("train it again with: python -m lib models --train cpu, neusight, aiconfigurator or power; a calibrated one with: "
            "python -m lib calibrate")
_RENAMED = {"taken_mb": "blocks_mb"}  # rates of earlier releases, by other names
_DELETED = ("modules",)  # and those that were always 0
_MOST_BYTES = 64_000_000  # uncompressed; the largest that ships holds 2 million


class Entry(BaseModel):
    """Base of every entry: finite numbers of the right type, no other names."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def require(holds: Any, what: str) -> None:
    """Raise ValueError, which says ``what`` is wrong, where something does not hold."""
    if not np.all(holds):
        raise ValueError(what)


def _ordered(pair: tuple[float, float]) -> tuple[float, float]:
    require(pair[0] <= pair[1], "the lower limit is above the upper one")
    return pair


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    require(not path.is_absolute() and ".." not in path.parts, "is no folder below data/reference")
    return name


Count = Annotated[int, Field(ge=0)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Limits = Annotated[tuple[float, float], AfterValidator(_ordered)]
Names = tuple[str, ...]


class Array(Entry):
    """An array of finite numbers: its shape, element type, and bytes in base64."""

    shape: tuple[Count, ...]
    dtype: Literal["<f4", "<f8", "<i2", "<i4", "<u2"]
    data: Base64Bytes

    @model_validator(mode="after")
    def _fits(self) -> "Array":
        size = int(np.prod(self.shape, dtype=object)) * np.dtype(self.dtype).itemsize
        require(size == len(self.data), f"{len(self.data)} bytes are no {self.dtype} of shape {self.shape}")
        require(np.isfinite(self.array()), "holds numbers that are not finite")
        return self

    def array(self) -> np.ndarray:
        """Return the numbers."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape).copy()

    @staticmethod
    def plain(array: np.ndarray) -> dict[str, Any]:
        """Return an array as an entry of the file, its bytes in little order."""
        import base64

        small = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return {"shape": list(array.shape), "dtype": small.dtype.str, "data": base64.b64encode(small.tobytes()).decode()}


class Rates(Entry):
    """What one of each term costs."""

    form: Literal["rates"]
    terms: Names
    costs: tuple[NotNegative, ...]
    names: Names = Field((), exclude=True, max_length=0)

    @model_validator(mode="after")
    def _aligned(self) -> "Rates":
        require(len(self.terms) == len(self.costs) > 0, f"{len(self.terms)} terms have {len(self.costs)} costs")
        return self


class Trees(Entry):
    """Boosted trees, whose nodes lie one after another: a child comes after its parent."""

    feature: Array
    value: Array
    right: Array
    roots: Array
    ensembles: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _walkable(self) -> "Trees":
        feature, right, roots = self.feature.array(), self.right.array(), self.roots.array()
        require(len(self.feature.shape) == 1 and self.feature.shape == self.value.shape == self.right.shape,
                 f"nodes of shapes {self.feature.shape}, {self.value.shape}, {self.right.shape} are no trees")
        require(roots.ndim == 1 and len(roots) and (roots >= 0).all() and (roots < len(feature)).all(),
                 "a tree begins at no node")
        inner = np.flatnonzero(feature >= 0)
        require((feature >= -1).all() and (right[inner] >= 1).all() and (inner + right[inner] < len(feature)).all(),
                 "a split has no child")
        return self


class Boosted(Rates):
    """Rates and trees."""

    form: Literal["boosted"]
    names: Names
    known: dict[str, tuple[float, ...]]
    quantiles: Limits
    trees: Trees


class Student(Rates):
    """Rates and small networks, standardised inputs first."""

    form: Literal["student"]
    names: Names
    known: dict[str, tuple[float, ...]]
    bounds: Limits
    centre: tuple[float, ...]
    scale: tuple[Positive, ...]
    layers: Annotated[tuple[tuple[Array, Array], ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _chained(self) -> "Student":
        sizes = [(weights.shape, biases.shape) for weights, biases in self.layers]
        require(all(len(shape) == 3 for shape, _ in sizes), f"layers of shapes {sizes} are no networks")
        nets, width = sizes[0][0][0], len(self.centre)
        inputs = [width, *(shape[2] for shape, _ in sizes)]
        expected = [((nets, one, other), (nets, 1, other)) for one, other in pairwise(inputs)]
        require(nets >= 1 and len(self.scale) == width and sizes == expected and inputs[-1] == 1,
                 f"layers of shapes {sizes} do not follow one another from {width} inputs to 1")
        return self


class Correction(Entry):
    """A Gaussian process by its points and weights."""

    names: Names
    centre: tuple[float, ...]
    scale: tuple[Positive, ...]
    points: Annotated[tuple[tuple[float, ...], ...], Field(min_length=1)]
    weights: tuple[float, ...]
    mean: float
    signal: NotNegative
    length: Positive

    @model_validator(mode="after")
    def _aligned(self) -> "Correction":
        require({len(self.centre), len(self.scale), *map(len, self.points)} == {len(self.names)}
                 and len(self.points) == len(self.weights), "centre, scale, points and weights are not of the same features")
        return self


class Scaling(Entry):
    """From the CPU that a part was trained on to the one that is predicted."""

    compute: Positive
    memory: Positive
    rest: Positive
    gflops: Positive
    gbps: Positive


class Interval(Entry):
    """Half intervals in log time, by bin of the predicted time."""

    edges_ms: tuple[float, ...]
    halves: tuple[NotNegative, ...]

    @model_validator(mode="after")
    def _binned(self) -> "Interval":
        require(len(self.halves) == len(self.edges_ms) + 1 and list(self.edges_ms) == sorted(self.edges_ms),
                 f"{len(self.halves)} intervals do not fit edges {self.edges_ms}, which have to grow")
        return self


class Part(Interval):
    """The regressor of one group and pass, where it holds, and how wrong it was."""

    regressor: Annotated[Rates | Boosted | Student, Field(discriminator="form")]
    features: Names
    ranges: dict[str, Limits]
    kinds: tuple[tuple[str, str, str], ...]
    rows: Count
    scores: dict[str, float]
    origin: str
    correction: Correction | None
    scaling: Scaling | None = None  # only of parts that were trained on another CPU
    families: dict[str, Interval] = {}  # only where there are several of many rows each

    @model_validator(mode="after")
    def _coherent(self) -> "Part":
        used = {*self.regressor.names, *self.ranges, *(self.correction.names if self.correction else ()),
                *(["op"] if self.families else [])}
        require(used <= set(self.features), f"{sorted(used - set(self.features))[:3]} are none of its features")
        require(set(getattr(self.regressor, "known", ())) <= set(self.regressor.names), "known values of no feature")
        return self


class Composition(Entry):
    """What a network adds to its operators, or what it takes of resident memory."""

    rates: dict[str, NotNegative]
    half: NotNegative
    networks: Annotated[int, Field(ge=1)]
    scores: dict[str, float]
    interval_of: Literal["", "default", "kept"] = ""

    @field_validator("rates")
    @classmethod
    def _of_today(cls, rates: dict[str, float]) -> dict[str, float]:
        """Take the rates of an earlier release for those of today."""
        return {_RENAMED.get(name, name): rate for name, rate in rates.items() if rate or name not in _DELETED}


class Chip(Entry):
    """A device's ceilings."""

    flops_per_ms: Positive
    vector_flops_per_ms: Positive
    bytes_per_ms: Positive
    multiprocessors: Annotated[int, Field(ge=1)]
    cache_bytes: NotNegative
    item: Annotated[int, Field(ge=1, le=16)]
    powered_flops_per_ms: NotNegative = 0.0


class Facts(Entry):
    """What is known of a model besides; others than these may stand there too."""

    model_config = ConfigDict(extra="allow")

    dtype: Dtype = ""
    latency_type: Literal["kernel", "end_to_end"] = ""
    cache: Literal["warm", "cold"] = ""
    hardware_id: str = ""
    software_id: str = ""
    source: str = ""
    licence: str = ""
    launch_ms: NotNegative = 0.0
    peak_gflops: Positive = 0.0
    peak_gbps: Positive = 0.0
    sweeps: list[Annotated[str, AfterValidator(_inside)]] = []


class Model(Entry):
    """A whole file."""

    version: int = Field(alias="schema")
    device: Annotated[str, Field(pattern=r"^[a-z0-9:-]+$")]
    facts: Facts
    compositions: dict[str, Composition]
    efficiencies: dict[str, dict[str, Positive]] = {}
    resident: dict[str, Composition] = {}
    chip: Chip | None
    parts: Annotated[dict[str, Part], Field(min_length=1)]


def read(path: Path) -> Model:
    """Read a file and check it; InputError names the file and what is wrong with it. Runs no code of it."""
    try:
        with gzip.open(path) as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise InputError(f"{path} holds more than {_MOST_BYTES / 1e6:.0f} MB: it is no cost model")
        content = json.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path} is missing") from None
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no cost model, or is damaged ({one_line(error)}); {RETRAIN}") from None
    version = content.get("schema") if isinstance(content, dict) else None
    if type(version) is int and version != SCHEMA:
        raise InputError(f"{path} is a cost model of schema {version}, this program reads schema {SCHEMA}: "
                         + (RETRAIN if version < SCHEMA else "update the program"))
    return parse(Model, text, f"{path} is no cost model, or is damaged, or of an earlier release; {RETRAIN}")


def write(path: Path, content: Mapping[str, Any]) -> Path:
    """Write what ``read`` takes, in one step; InputError for what it would not take."""
    text = json.dumps({"schema": SCHEMA, **content}).encode()
    parse(Model, text, f"{path} is not written")
    return files.replace(path, gzip.compress(text, mtime=0))
