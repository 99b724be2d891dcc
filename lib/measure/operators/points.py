"""The points of a sweep in the order of their first visits, from spaces or a grid."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.work.graph import spaces
from lib.work.graph.spaces import Config, Point

_BOTH = {"latency_type": ("kernel", "end_to_end"), "cache": ("warm", "cold")}
Part = tuple[int, int]  # a share of the points: number i of n


def timings(latency_type: str, cache: str) -> list[dict[str, str]]:
    """Return the timings of a point that two parameters of a sweep ask for; each may be ``both``."""
    latency_types, caches = (_BOTH[name] if value == "both" else (value,)
                             for name, value in (("latency_type", latency_type), ("cache", cache)))
    return [{"latency_type": one, "cache": other} for one, other in product(latency_types, caches)]


def families(p: SweepParams, chosen: Sequence[Config] = ()) -> set[str]:
    """Return the operator families of a sweep's points."""
    if chosen:
        return {config.op for config in chosen}
    return {spaces.load_sweeps().grids[p.grid].op} if p.grid else set(p.ops)


def drawn(p: SweepParams, device: str, part: Part,
          chosen: Sequence[Config] = ()) -> Iterator[Point | str]:
    """Yield a device's part of the points of a sweep, or of ``chosen`` ones, once for each timing.

    A point that is impossible, and the end of a space of few points, is yielded as its reason.
    """
    for point in _untimed(p, device, part, chosen):
        if isinstance(point, str):
            yield point
            continue
        for timing in timings(p.latency_type, p.cache):
            yield replace(point[0], **timing), point[1]


def cut(p: SweepParams, part: Part, chosen: Sequence[Config] = ()) -> str:
    """Return why the walk over a part of a grid ends before the grid does; empty if it does not."""
    if chosen or not p.grid:
        return ""
    return spaces.too_large(spaces.load_sweeps().grids[p.grid], part)


def _untimed(p: SweepParams, device: str, part: Part,
             chosen: Sequence[Config]) -> Iterator[Point | str]:
    sweeps = spaces.load_sweeps()
    if not (chosen or p.grid):
        try:
            yield from spaces.sample_families(p.ops, sweeps, p.seed, p.dtype, device, part)
        except InputError as error:
            yield str(error)
        return
    walk = chosen[part[0]::part[1]] if chosen else spaces.product(sweeps.grids[p.grid], p.seed, part)
    for config in walk:
        try:
            yield config, config.ops(device)
        except InputError as error:
            yield str(error)
