"""The points of a sweep: drawn once, and shared by all devices of one kind that measure side by side."""

import math
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.measure.operators.aggregate import BOTH
from lib.work.graph import spaces
from lib.work.graph.ops import Op
from lib.work.graph.spaces import Config

Point = tuple[Config, tuple[Op, ...]]
INVALID: Point = ()  # a place of a grid without a valid point


class Points:
    """The points of a sweep, each of which is given to one device; devices may take them from threads of their own.

    ``assigned`` holds the keys of the configurations that a device has, from this call or an earlier one. A point is a
    configuration with its operators on ``device``, one of that kind, in each wanted way of timing it.
    """

    def __init__(self, p: SweepParams, chosen: Sequence[Config] = (), assigned: Iterable[str] = (), device: str = "cpu"):
        self._p, self._chosen, self._device, self._lock = p, chosen, device, threading.Lock()
        self._drawn, self._limits = self._all(), {}  # the bytes that each device has room for
        self._returned, self._too_large = [], []
        self.assigned = set(assigned)
        self.invalid, self.last_invalid = 0, ""
        self.cut = ""  # why the walk ended before all points of the grid were drawn

    @property
    def families(self) -> set[str]:
        """Return the families that points are drawn from."""
        if self._chosen:
            return {config.op for config in self._chosen}
        return {spaces.load_sweeps().grids[self._p.grid].op} if self._p.grid else set(self._p.ops)

    @property
    def left(self) -> int:
        """Return how many points were given back and have no device now."""
        return len(self._returned)

    def join(self, device: str, limit_bytes: float) -> None:
        """Count a device among those that share the points; it has room for so many bytes."""
        with self._lock:
            self._limits[device] = limit_bytes
            self._returned += [point for point in self._too_large if spaces.footprint(point[1]) <= limit_bytes]
            self._too_large = [point for point in self._too_large if spaces.footprint(point[1]) > limit_bytes]

    def leave(self, device: str) -> None:
        """Count a device no more: it is lost, and points that it alone had room for are too large for all others."""
        with self._lock:
            self._limits.pop(device, None)

    def take(self, limit_bytes: float, without: Container[str], over: Callable[[], bool]) -> Point | None:
        """Return the next point that no device has; None where there is no more or, among invalid ones, it is ``over``.

        Points of the families ``without`` are left to others, as are those given back for which only others have room.
        """
        with self._lock:
            while not (self._p.count and len(self.assigned) >= self._p.count):
                point = self._next(limit_bytes, without)
                if point is None or (point is INVALID and over()):
                    return None
                if point is INVALID or point[0].key in self.assigned:
                    continue
                if point[0].op not in without:
                    self.assigned.add(point[0].key)
                    return point
                self._returned.append(point)
        return None

    def _next(self, limit_bytes: float, without: Container[str]) -> Point | None:
        for place, (config, ops) in enumerate(self._returned):
            need = spaces.footprint(ops)
            if config.op not in without and (need <= limit_bytes or need > self._most):  # too large for all: it is refused then
                return self._returned.pop(place)
        return next(self._drawn, None)

    @property
    def _most(self) -> float:
        """Return the bytes that the largest device has room for; inf where none has joined."""
        return max(self._limits.values(), default=math.inf)

    def refuse(self, point: Point) -> bool:
        """Take back a point that is too large for a device; return whether it is so for all that are there by now."""
        with self._lock:
            self.assigned.discard(point[0].key)
            others = self._most >= spaces.footprint(point[1])
            (self._returned if others else self._too_large).append(point)
        return not others

    def give_back(self, points: Iterable[Point]) -> None:
        """Take back points that a device could not visit before it was lost."""
        with self._lock:
            for point in points:
                self.assigned.discard(point[0].key)
                self._returned.append(point)

    def _all(self) -> Iterator[Point]:
        p = self._p
        for point in self._one_way():
            if point is INVALID:
                yield point
                continue
            config, ops = point
            for latency_type in BOTH["latency_type"] if p.latency_type == "both" else (p.latency_type,):
                for cache in BOTH["cache"] if p.cache == "both" else (p.cache,):
                    yield Config(config.op, config.parameters, config.dtype, config.passes, latency_type, cache), ops

    def _one_way(self) -> Iterator[Point]:
        sweeps = spaces.load_sweeps()
        if self._chosen:
            yield from ((config, config.ops(self._device)) for config in self._chosen)
            return
        if not self._p.grid:
            try:
                yield from spaces.sample_families(self._p.ops, sweeps, self._p.seed, self._p.dtype, self._device,
                                                      self._p.shard_pair)
            except InputError as error:  # a space of few points is drawn to its end
                if not self.assigned:
                    raise
                self.last_invalid = str(error)
            return
        grid = sweeps.grids[self._p.grid]
        for config in spaces.product(grid, self._p.seed, self._p.shard_pair):
            try:
                yield config, config.ops(self._device)
            except InputError as error:
                self.invalid, self.last_invalid = self.invalid + 1, str(error)
                yield INVALID
        self.cut = spaces.too_large(grid, self._p.shard_pair)
