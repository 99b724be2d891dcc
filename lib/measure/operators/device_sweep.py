"""The sweep of one device: rounds over its points, and the raw files that resume it."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from lib import store
from lib.config.base import mapping
from lib.config.notebooks import SweepParams
from lib.errors import InputError, choices, is_broken_device, one_line
from lib.measure import machine
from lib.measure.energy.trace import NOT_MEASURED
from lib.measure.operators import aggregate, points
from lib.measure.operators.visitor import Visitor
from lib.measure.worker import WorkerLostError
from lib.tables import columns
from lib.work.graph import spaces
from lib.work.graph.ops import Ops

MOST_FAILURES = 8  # of a family in a row, before the rest of it is left out
_MOST_TOO_LARGE = 1000  # sampled points in a row, before their space counts as too large
_EXTRA_ROUNDS = 2  # for configurations whose rounds disagree
_EXTRA_SHARE = 0.15  # of the budget, beyond it, for these rounds
_TIMES_SHARE = 0.2  # of the budget, at least, for times; energy loops take what is left
_LEAST_LOOP_S = 1e-3


class StoppedError(Exception):
    """The sweep was asked to stop."""


class DeviceSweep:
    """One device's part of a sweep, resumed from its raw files (a CSV for each of _TABLES).

    Its worker starts at once, ``ready`` waits for it, ``run`` measures, ``close`` ends it. What
    goes wrong is in ``failure``, and in ``error`` where it is no failure of the input or the device.
    """

    def __init__(self, device: str, p: SweepParams, folder: Path, stop: threading.Event,
                 part: points.Part = (0, 1), chosen: Sequence[spaces.Config] = ()):
        """Start the worker.

        Args:
            device: the id of the device
            p: the parameters of the sweep
            folder: the sweep's; the raw files are in a folder of it
            stop: set where the sweep is to end after the present visit
            part: which share of the sweep's points this device measures
            chosen: configurations to measure in place of drawn ones
        """
        self.device, self._p, self._stop = device, p, stop
        self.folder, self._files = aggregate.device_folder(folder, device), {}
        self._points = points.drawn(p, device, part, chosen)
        self._cut = points.cut(p, part, chosen)
        self._families = points.families(p, chosen)
        self.failure, self.error, self.identity = "", None, {}
        self.invalid, self._refused = 0, ""  # points, and why the last one is not measured
        self._failures = Counter()  # in a row, by family
        self.visitor = None
        with self._noting():
            self.visitor = Visitor(device, p)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except StoppedError:
            return
        except Exception as error:
            expected = isinstance(error, InputError | WorkerLostError | OSError)
            self.failure = str(error) if expected else one_line(error)
            self.error = None if expected or is_broken_device(error) else error

    def ready(self) -> None:
        """Open the raw files and wait for the worker."""
        if self.failure:
            return
        with self._noting():
            self._read()
            identity = self.visitor.ready()
            self._claim({**machine.own_hardware(self.device, identity["hardware"]),
                         **{name: identity[name] for name in ("software_id", "threads")}})
            self.identity, self._room = identity, identity["free_bytes"] * self._p.memory_share

    def close(self) -> None:
        """End the worker and close the files."""
        if self.visitor:
            self.visitor.shut_down()
        for file in self._files.values():
            file.close()

    def _read(self) -> None:
        """Open the raw files; take from them what earlier calls measured."""
        tables = {}
        for name in ("configs", "repeats", "energies"):
            path = self.folder / f"{name}.csv"
            self._files[name] = store.Appender(path, name, resume=True)
            tables[name] = store.read(path, name)
        entered, done, loops = tables.values()
        self.skipped = set(entered.loc[entered["status"] == "skipped", "config"])
        self.visits = set(zip(done["config"], done["round"], strict=True))
        failed = done[done["status"] != "ok"]
        self.failed = dict(zip(failed["config"], failed["reason"], strict=True))
        self._looped = set(loops.loc[loops["energy_j"].notna(), "config"])
        self._earlier_s = float(done["visit_s"].sum() + loops["loop_s"].sum())
        self.configs: dict[str, spaces.Point] = {}
        for row in entered[entered["status"] == "ok"].to_dict("records"):
            parameters = tuple(json.loads(row["parameters"]).items())
            config = spaces.Config(row["op"], parameters, row["dtype"], row["pass"],
                                   row["latency_type"], row["cache"])
            self.configs[row["config"]] = (config, config.ops(self.device))

    def _claim(self, facts: store.Facts) -> None:
        """Note hardware, software and threads of the visits; InputError where they changed."""
        path = self.folder / "measured_on.json"
        before = mapping(store.read_json(path), path) if self.visits and path.exists() else facts
        differing = [f"{name} was {before.get(name)!r} and is {facts.get(name)!r}"
                     for name in sorted({*before, *facts}) if before.get(name) != facts.get(name)]
        if differing:
            raise InputError(f"{self.folder} cannot be gone on with, {self.device} is another one "
                             f"now: {choices(differing)}; give this sweep another name")
        store.write_json(facts, path)

    def _append(self, table: str, row: store.Facts) -> None:
        self._files[table].append([row[name] for name in columns(table)])

    def _enter(self, config: spaces.Config, ops: Ops, skipped: str = "") -> None:
        """Write down a configuration before its first visit, or why it is skipped."""
        flops, moved = spaces.work(ops)
        same = {name: getattr(config, name) for name in ("op", "dtype", "latency_type", "cache")}
        self._append("configs", {
            **same, "config": config.key, "parameters": json.dumps(dict(config.parameters)),
            "pass": config.passes, "flops": flops, "bytes": moved, "reason": skipped,
            "footprint_mb": spaces.footprint(ops) / 1e6, "status": "skipped" if skipped else "ok"})
        if skipped:
            self.skipped.add(config.key)
        else:
            self.configs[config.key] = (config, ops)

    def run(self) -> None:
        """Measure as far as budget and count allow."""
        self._begin = time.monotonic()
        with self._noting():
            try:
                self._rounds()
            except machine.DeviceLostError as error:
                raise InputError(f"{self.device} was lost after {len(self.visits)} visits, "
                                 f"which are kept: {error}") from None
            if not (self.configs or self.invalid or self.skipped):
                return  # its share of a small grid is empty
            if not self.configs:
                raise InputError(f"{self.device}: no valid point to measure ({self.invalid} "
                                 f"invalid, {len(self.skipped)} skipped); the last: {self._refused}")
            if not self._promising:
                (reason, times), = Counter(self.failed.values()).most_common(1)
                raise InputError(f"{self.device}: each of {len(self.failed)} configurations "
                                 f"failed, {times} of them with: {reason}; to measure them "
                                 "again, give this sweep another name")

    def _rounds(self) -> None:
        p, budget_s = self._p, self._p.budget_s
        self._first_round()
        times_s = max(_TIMES_SHARE * budget_s, budget_s - self._loops_s)
        for number in range(1, p.rounds):
            self._round(number, self._promising, times_s, self._visit)
        if p.energy_s:
            self._round("energy", self._promising - self._looped, budget_s, self._loop)
        for number in range(p.rounds, p.rounds + _EXTRA_ROUNDS):
            unsettled = aggregate.unsettled(self.folder, self.identity["spare_cores"])
            self._round(number, unsettled & self._promising, budget_s * (1 + _EXTRA_SHARE), self._visit)

    @property
    def _promising(self) -> set[str]:
        """Return the configurations of which no visit failed."""
        return self.configs.keys() - self.failed.keys()

    @property
    def _spent_s(self) -> float:
        return self._earlier_s + time.monotonic() - self._begin

    @property
    def _loops_s(self) -> float:
        """Return the time of the energy loops of all points, in seconds; 0 without a meter."""
        return self._p.energy_s * len(self.configs) if self.identity["meter"] != NOT_MEASURED else 0.0

    def _is_over(self, budget_s: float) -> bool:
        if self._stop.is_set():
            raise StoppedError
        return bool(self._p.budget_s) and self._spent_s >= budget_s

    def _is_abandoned(self, family: str) -> bool:
        return self._failures[family] >= MOST_FAILURES

    def _first_round(self) -> None:
        """Visit new points until there are ``count``, or the rounds need the time that is left."""
        for key in list(self.configs):  # entered, then interrupted
            self._visit(key, 0)
        if any(number > 0 for _, number in self.visits):
            return
        too_large = 0
        for point in self._points:
            if self._is_first_round_over() or all(map(self._is_abandoned, self._families)):
                return
            if isinstance(point, str):
                self.invalid, self._refused = self.invalid + 1, point
                continue
            config, ops = point
            if config.key in self.configs or self._is_abandoned(config.op):
                continue
            need = spaces.footprint(ops)
            if need <= self._room:
                too_large = 0
                self._enter(config, ops)
                self._visit(config.key, 0)
                continue
            too_large += 1
            self._refused = (f"{need / 1e6:,.6g} MB needed, {self._room / 1e6:,.6g} MB allowed "
                             "by memory_share")
            if config.key not in self.skipped:
                self._enter(config, ops, self._refused)
            if too_large >= _MOST_TOO_LARGE and not self._p.grid:
                return
        self.failure = self._cut

    def _is_first_round_over(self) -> bool:
        p = self._p
        if p.count and len(self.configs) >= p.count:
            return True
        if not self.configs:
            return self._is_over(p.budget_s)
        return self._is_over((p.budget_s - self._loops_s) / p.rounds)

    def _round(self, name: int | str, keys: Iterable[str], budget_s: float,
               measure: Callable) -> None:
        """Measure configurations in a random order, by a fixed seed, until the budget is spent."""
        keys = sorted(keys)
        random.Random(f"{self._p.seed} {name}").shuffle(keys)
        for key in keys:
            if self._is_over(budget_s):
                return
            measure(key, name)

    def _visit(self, key: str, number: int) -> None:
        """Visit a configuration, unless it was in this round, or its family is abandoned."""
        config, ops = self.configs[key]
        if (key, number) in self.visits or self._is_abandoned(config.op):
            return
        row = self.visitor.visit(config, ops)
        self._append("repeats", {"config": key, "round": number, **row})
        self.visits.add((key, number))
        if row["status"] == "ok":
            self._failures[config.op] = 0
        else:
            self._failures[config.op] += 1
            self.failed[key] = row["reason"]

    def _loop(self, key: str, _: str) -> None:
        """Loop a configuration for its energy, for no longer than what is left of the budget."""
        left_s = self._p.budget_s - self._spent_s if self._p.budget_s else np.inf
        seconds = max(_LEAST_LOOP_S, min(self._p.energy_s, left_s))
        row = self.visitor.energy(*self.configs[key], seconds)
        self._append("energies", {"config": key, **row})
