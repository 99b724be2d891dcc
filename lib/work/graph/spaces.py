"""Which configurations a sweep measures: sampled from a space, or the full product of exact lists."""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lib import paths
from lib.config.base import Positive, Strict, load, number, some, whole
from lib.errors import InputError, beginning, choices, entry
from lib.tables import PARAMETERS
from lib.work import dtypes
from lib.work.graph import counts, families
from lib.work.graph.ops import Ops

_BLOCK = 128  # points of one Latin hypercube
_TRIES = 4000  # points drawn in vain before a space counts as empty
_MOST_ORDERED = 300_000
_DEPTH = 3  # axes, one referring to the next
_TEXTS = {name for name, column in PARAMETERS.items() if column.kind == "str"}


Whole = whole(0, 10**9)
Text = Annotated[str, Field(min_length=1)]
Range = tuple[number(0, 1e9), number(0, 1e9)]
Passes = some(Literal[families.PASSES])
Dtypes = some(Literal[tuple(dtypes.NAMES)])


class Axis(Strict):
    """One parameter's values: a range on a logarithmic or linear scale, or a list of values, other axes, or halves of them."""

    log: Range | None = None
    linear: Range | None = None
    of: tuple[Whole | Text, ...] = ()
    multiple: Positive = 1

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {"of": value}
        return value if isinstance(value, dict) else {"of": [value]}

    @model_validator(mode="after")
    def _one_of(self) -> "Axis":
        if (self.log is not None) + (self.linear is not None) + bool(self.of) != 1:
            raise ValueError("is none: give a list of values, {log: [low, high]} or {linear: [low, high]}")
        low, high = self.log or self.linear or (1, 1)
        if not (1 if self.log else 0) <= low <= high:
            raise ValueError(f"is no range from {low:g} to {high:g}: it grows, and from 1 or more where it is logarithmic")
        return self

    def at(self, share: float) -> int | str:
        """Return the value at ``share`` of the axis, in [0, 1)."""
        if self.of:
            return self.of[int(share * len(self.of))]
        low, high = self.log or self.linear
        value = exp(log(low) + share * (log(high + 1) - log(low))) if self.log else low + share * (high + 1 - low)
        return max(self.multiple, round(min(int(value), high) / self.multiple) * self.multiple)


class Limits(Strict):
    """The largest sampled point, by its FLOPs and compulsory bytes."""

    most_flops: number(above=0) = 1e10
    most_bytes: number(above=0) = 1e8


class Space(Strict):
    """The space of one family: its axes, the passes to draw from, and how often it is drawn among others."""

    axes: dict[str, Axis]
    passes: Passes = ("forward",)
    weight: number(above=0) = 1.0


class Grid(Strict):
    """The product of exact lists for one family."""

    op: str
    axes: dict[str, Axis]
    dtypes: Dtypes = ("fp32",)
    passes: Passes = ("forward",)


class Sweeps(Strict):
    """``params/sweeps.yaml``: limits by device type, a space a family, and named grids."""

    limits: dict[Literal["cpu", "cuda", "mps"], Limits] = {}
    spaces: dict[str, Space]
    grids: dict[str, Grid] = {}


def load_sweeps(path: Path = paths.PARAMS / "sweeps.yaml") -> Sweeps:
    """Read the sweep definitions; InputError names the file, the entry, and an unknown family or parameter."""
    sweeps = load(Sweeps, path)
    for grid in sweeps.grids.values():
        if any(axis.log or axis.linear for axis in grid.axes.values()):
            raise InputError(f"{path}: a grid takes exact lists, no ranges")
    for name, item in [*sweeps.spaces.items(), *((grid.op, grid) for grid in sweeps.grids.values())]:
        with beginning(str(path)):
            _check_axes(name, item.axes)
    return sweeps


def _check_axes(op: str, axes: dict[str, Axis]) -> None:
    """Raise InputError unless the axes are the parameters of a family, and each value a number, a text or another axis."""
    takes = families.family(op).parameters
    unknown = set(axes) - set(takes)
    if unknown:
        raise InputError(f"{op} has no parameters {choices(sorted(unknown))}; it takes: {choices(takes)}")
    families.settled(op, dict.fromkeys(axes, 1))
    references = {name: _references(op, name, axes) for name in axes}
    for _ in range(_DEPTH + 1):
        references = {name: refers & set(references) for name, refers in references.items() if refers & set(references)}
    if references:
        raise InputError(f"{op}: {choices(references)} refer to one another, or over more than {_DEPTH} axes")


def _word(value: int | str) -> str:
    """Return the text that a value is, without ``half`` before it; empty for a number."""
    return value.removeprefix("half ") if isinstance(value, str) else ""


def _references(op: str, name: str, axes: dict[str, Axis]) -> set[str]:
    """Return the axes that an axis refers to; InputError for a value that is none, of a number or of a text."""
    references = set()
    for value in axes[name].of or (0,):
        word = _word(value)
        if word in axes and word != "groups" and (word in _TEXTS) == (name in _TEXTS) and (word == value or name not in _TEXTS):
            references.add(word)
        elif isinstance(value, str) != (name in _TEXTS) and (name, value) != ("groups", "depthwise"):
            raise InputError(f"{op}: {name} = {value!r} is {'no text' if name in _TEXTS else 'no number, and no other axis'}")
    return references


@dataclass(frozen=True)
class Config:
    """One thing to measure: an operator with its parameters, element type and pass, and how it is to be timed."""

    op: str
    parameters: tuple[tuple[str, int | str], ...]
    dtype: str = "fp32"
    passes: str = "forward"
    latency_type: str = "kernel"
    cache: str = "warm"

    @cached_property
    def key(self) -> str:
        """Return the hash that stands for this configuration in every file."""
        text = json.dumps([self.op, sorted(self.parameters), self.dtype, self.passes, self.latency_type, self.cache])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def ops(self, device: str = "cpu") -> Ops:
        """Return the operators that torch runs for it on ``device``; InputError for what is impossible."""
        dtype = entry(dtypes.NAMES, self.dtype, "element type")
        return families.make(self.op, dict(self.parameters), dtype, self.passes, device)


Point = tuple[Config, Ops]


def config(op: str, parameters: dict[str, int | str], dtype: str = "fp32", passes: str = "forward") -> Config:
    """Return a configuration whose parameters are complete, so that one thing to measure has one key."""
    return Config(op, tuple(families.settled(op, parameters).items()), dtype, passes)


def footprint(ops: Ops) -> int:
    """Return the bytes that timing ``ops`` may need: inputs, outputs, and as much again for the library's workspace."""
    from lib.work.graph.rebuild import span

    touched = sum(span(spec) * spec.itemsize for op in ops for spec in (*op.tensors, *op.outputs))
    return 2 * touched


def work(ops: Ops) -> tuple[float, float]:
    """Return FLOPs and compulsory bytes of one configuration."""
    return sum(counts.flops(op) for op in ops), float(sum(counts.compulsory_bytes(op) for op in ops))


def _resolve(axes: dict[str, Axis], drawn: dict[str, int | str]) -> dict[str, int | str]:
    """Turn names of other axes and ``half NAME`` into values, whatever their order."""
    values = dict(drawn)
    for _ in range(_DEPTH):
        for name, value in values.items():
            if _word(value) in axes and _word(other := values[_word(value)]) not in axes:
                values[name] = other // 2 if value.startswith("half ") else other
    return values


def fitted(op: str, values: dict[str, int | str]) -> dict[str, int | str]:
    """Make groups and channels fit each other, and leave out the parameters that a kind of pooling does not have."""
    if op.startswith("pool"):
        adaptive = values["kind"] == "adaptive_avg"
        drop = ("kernel_", "stride_", "padding_") if adaptive else ("out_",)
        return {name: value for name, value in values.items() if not name.startswith(drop)}
    groups = values.get("groups", 1)
    if groups == "depthwise":
        return {**values, "groups": values["in_channels"], "out_channels": values["in_channels"]}
    if op.startswith("conv") and groups > 1:
        return values | {name: -(-values[name] // groups) * groups for name in ("in_channels", "out_channels")}
    return values


def sample(op: str, space: Space, limits: Limits, seed: int, dtype: str = "fp32",
           device: str = "cpu", shard: tuple[int, int] = (0, 1)) -> Iterator[Point]:
    """Draw valid configurations of one family for ever, each once, with its operators on ``device``.

    They are those of Latin hypercubes over its axes (SciPy's, by seed). Of n shards each draws the same points, and keeps its
    own share of them by their keys before it looks at more. Raises InputError with the last reason where nothing valid is drawn
    any more.
    """
    import numpy as np
    from scipy.stats import qmc

    generator, seen, vain, reason, most = np.random.default_rng(seed), set(), 0, "", _TRIES * shard[1]
    while True:
        for point in qmc.LatinHypercube(len(space.axes) + 1, rng=generator).random(_BLOCK):
            vain += 1
            if vain > most:
                raise InputError(f"{op}: no new valid point among {most} drawn from params/sweeps.yaml; the last: {reason}")
            values = {name: axis.at(place) for (name, axis), place in zip(space.axes.items(), point, strict=False)}
            values = fitted(op, _resolve(space.axes, values))
            passes = space.passes[int(point[-1] * len(space.passes))]
            try:
                drawn_config = config(op, values, dtype, passes)
                if int(drawn_config.key, 16) % shard[1] != shard[0]:
                    continue
                ops = drawn_config.ops(device)
            except InputError as error:
                reason = str(error)
                continue
            flops, moved = work(ops)
            if drawn_config.key in seen or flops > limits.most_flops or moved > limits.most_bytes:
                reason = f"{flops:.2g} FLOPs or {moved:.2g} bytes are beyond the limits, or it was drawn before"
                continue
            seen.add(drawn_config.key)
            vain = 0
            yield drawn_config, ops


def sample_families(ops: list[str], sweeps: Sweeps, seed: int, dtype: str = "fp32",
            device: str = "cpu", shard: tuple[int, int] = (0, 1)) -> Iterator[Point]:
    """Draw from several families: each once, then each as often as its weight says; of n shards, see ``sample``."""
    generator = random.Random(seed)
    limits = sweeps.limits.get(device.partition(":")[0], Limits())
    draws = {op: sample(op, sweeps.spaces[op], limits, seed + number, dtype, device, shard)
             for number, op in enumerate(ops)}
    weights = [sweeps.spaces[op].weight for op in ops]
    yield from (next(draw) for draw in draws.values())  # a sweep that is soon over has a point of each
    while True:
        yield next(draws[generator.choices(ops, weights)[0]])


def _values(grid: Grid) -> dict[str, tuple]:
    """Return the values whose product a grid is."""
    return {"dtype": grid.dtypes, "passes": grid.passes, **{name: axis.of for name, axis in grid.axes.items()}}


def too_large(grid: Grid, shard: tuple[int, int]) -> str:
    """Return why a shard (i of n) of a grid cannot be walked to its end, and what can; empty where it can."""
    size = prod(len(values) for values in _values(grid).values())
    points = len(range(shard[0], size, shard[1]))
    return (f"shard {shard[0]}/{shard[1]} has {points:,} points, of which {_MOST_ORDERED:,} at most are walked; take one of "
            f"{-(-size // _MOST_ORDERED)} or more shards") if points > _MOST_ORDERED else ""


def product(grid: Grid, seed: int, shard: tuple[int, int] = (0, 1)) -> Iterator[Config]:
    """Walk a shard (i of n) of a grid's full product in random order; what is invalid is walked over by whoever measures it.

    It ends early where ``too_large`` says so.
    """
    import numpy as np

    named = _values(grid)
    sizes = [len(values) for values in named.values()]
    indices = range(shard[0], prod(sizes), shard[1])
    order = random.Random(seed).sample(indices, min(len(indices), _MOST_ORDERED))
    for index in order:
        places = np.unravel_index(index, sizes, order="F")
        point = {name: values[place] for (name, values), place in zip(named.items(), places, strict=True)}
        dtype, passes = point.pop("dtype"), point.pop("passes")
        yield config(grid.op, _resolve(grid.axes, point), dtype, passes)
