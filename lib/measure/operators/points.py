"""The points of a sweep: drawn once, and shared by all devices of one kind that measure side by side."""

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.work.graph import spaces
from lib.work.graph.spaces import Config, Point

_BOTH = {"latency_type": ("kernel", "end_to_end"), "cache": ("warm", "cold")}


def timings(latency_type: str, cache: str) -> list[dict[str, str]]:
    """Return the ways of timing a point that two parameters of a sweep ask for, each of which may be ``both``."""
    chosen = [_BOTH[name] if value == "both" else (value,) for name, value in zip(_BOTH, (latency_type, cache), strict=True)]
    return [dict(zip(_BOTH, way, strict=True)) for way in product(*chosen)]


class Points:
    """The points of a sweep, each of which is given to one device; devices may take them from threads of their own.

    ``rooms`` are the bytes that each of these devices, all of one kind, has room for. ``assigned`` holds the keys of the
    configurations that a device has, from this call or an earlier one. A point is a configuration with its operators.
    """

    def __init__(self, p: SweepParams, rooms: dict[str, float], chosen: Sequence[Config] = (), assigned: Iterable[str] = ()):
        self._p, self._chosen, self._device, self._lock = p, chosen, next(iter(rooms)), threading.Lock()
        self.rooms, self.assigned, self.returned = rooms, set(assigned), []
        self.invalid, self.last_invalid = 0, ""
        self.cut = ""  # why the walk ended before all points of the grid were drawn
        self._drawn = self._all()

    @property
    def families(self) -> set[str]:
        """Return the families that points are drawn from."""
        if self._chosen:
            return {config.op for config in self._chosen}
        return {spaces.load_sweeps().grids[self._p.grid].op} if self._p.grid else set(self._p.ops)

    def take(self, device: str, without: Container[str], over: Callable[[], bool]) -> Point | None:
        """Return the next point that no device has; None where there is no more or, among invalid ones, it is ``over``.

        Points of the families ``without`` are left to others, as are those given back for which only others have room.
        """
        with self._lock:
            while not (self._p.count and len(self.assigned) >= self._p.count):
                point = self._given_back(device, without) or next(self._drawn, ())
                if point == () or (point is None and over()):
                    return None
                if point is None or point[0].key in self.assigned:
                    continue
                if point[0].op not in without:
                    self.assigned.add(point[0].key)
                    return point
                self.returned.append(point)
        return None

    def _given_back(self, device: str, without: Container[str]) -> Point | None:
        for place, point in enumerate(self.returned):
            if point[0].op not in without and (self._fits(point, [device]) or not self._fits(point, self.rooms)):
                return self.returned.pop(place)  # also one that is too large for all: it is refused then
        return None

    def _fits(self, point: Point, devices: Iterable[str]) -> bool:
        return any(spaces.footprint(point[1]) <= self.rooms[device] for device in devices)

    def refuse(self, point: Point) -> bool:
        """Take back a point that is too large for a device; return whether it is so for all."""
        with self._lock:
            self.assigned.discard(point[0].key)
            fits = self._fits(point, self.rooms)
            self.returned += [point] if fits else []
        return not fits

    def leave(self, device: str, points: Sequence[Point] = ()) -> None:
        """Count a device that is lost no more, and take back the points that it could not visit before."""
        with self._lock:
            self.rooms.pop(device, None)
            self.assigned -= {config.key for config, _ in points}
            self.returned += points

    def _all(self) -> Iterator[Point | None]:
        """Give the points in each way of timing them, and None for a place of a grid without a valid point."""
        ways = timings(self._p.latency_type, self._p.cache)
        for point in self._one_way():
            yield from ((replace(point[0], **way), point[1]) for way in ways) if point else (None,)

    def _one_way(self) -> Iterator[Point | None]:
        p, sweeps = self._p, spaces.load_sweeps()
        if self._chosen:
            yield from ((config, config.ops(self._device)) for config in self._chosen)
            return
        if not p.grid:
            try:
                yield from spaces.sample_families(p.ops, sweeps, p.seed, p.dtype, self._device, p.shard_pair)
            except InputError as error:  # a space of few points is drawn to its end
                if not self.assigned:
                    raise
                self.last_invalid = str(error)
            return
        for config in spaces.product(sweeps.grids[p.grid], p.seed, p.shard_pair):
            try:
                yield config, config.ops(self._device)
            except InputError as error:
                self.invalid, self.last_invalid = self.invalid + 1, str(error)
                yield None
        self.cut = spaces.too_large(sweeps.grids[p.grid], p.shard_pair)
