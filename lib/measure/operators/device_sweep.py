"""The sweep of one device: rounds over its configurations, as far as the budget and the count go."""

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.measure import machine
from lib.measure.energy.trace import NOT_MEASURED
from lib.measure.operators import aggregate
from lib.measure.operators.points import Points
from lib.measure.operators.raw_files import RawFiles, raw_folder
from lib.measure.operators.visitor import Visitor
from lib.work.graph import spaces

SAME_FAILURES = 5  # in a row, of one family, before it is abandoned
_MOST_SKIPPED = 1000  # points too large, in a row, before a space counts as too large for this machine
_EXTRA_ROUNDS = 2
_LEAST_LOOP_S = 1e-3  # 0 would ask for a visit
_ENERGY_SHARE = 0.8  # of the budget, at most, for energy loops
_EXTRA_SHARE = 0.15  # of the budget, for configurations whose rounds disagree


class StoppedError(Exception):
    """The sweep was asked to stop."""


class DeviceSweep:
    """Leads one device through the rounds of a sweep: its worker starts at once, ``ready`` waits for it, ``run`` measures."""

    def __init__(self, device: str, p: SweepParams, folder: Path, stop: threading.Event):
        self.device, self.p, self._folder, self._stop = device, p, raw_folder(folder, device), stop
        self.visitor = Visitor(device, p)
        self._too_large = ""  # the last one
        self._abandoned: dict[str, str] = {}
        self._failures: dict[str, Counter] = {}
        self.visited_s = 0.0  # in this call

    def ready(self) -> None:
        """Open the files, then wait for the worker; raises what stopped it, and InputError for files of another device."""
        with ExitStack() as failed:
            failed.callback(self.visitor.shut_down)
            self.files = RawFiles(self._folder, self.device)
            failed.callback(self.files.close)
            self.identity = self.visitor.ready()
            self.files.claim({**machine.own_hardware(self.device, self.identity["hardware"]),
                              **{name: self.identity[name] for name in ("software_id", "threads")}})
            failed.pop_all()
        self.room = self.identity["free_bytes"] * self.p.memory_share  # asked in the worker: this process is on no GPU

    def run(self, points: Points) -> None:
        """Measure as far as budget and count allow.

        Raises InputError where there was nothing to visit, and for a device that is lost meanwhile: what it measured is
        kept, and others go on. Where every visit failed, ``failure`` says why.
        """
        self.points, self._begin = points, time.monotonic()
        try:
            self._rounds()
        except StoppedError:
            pass
        except BaseException as error:
            visited = {key for key, _ in self.files.visits}
            lost = isinstance(error, machine.DeviceLostError)
            left = [point for key, point in self.files.configs.items() if key not in visited]
            points.leave(self.device, left if lost else ())
            if not lost:
                raise
            raise InputError(f"{self.device} was lost after {len(self.files.visits)} visits, which are kept: {error}") from None
        finally:
            self.files.close()
            self.visitor.shut_down()
        if not self.files.configs and not points.assigned:
            raise InputError(f"{self.device}: no valid point to measure ({points.invalid} invalid, "
                             f"{len(self.files.skipped)} skipped); the last: {self._too_large or points.last_invalid}")

    def _rounds(self) -> None:
        p, files = self.p, self.files
        self._first_round()
        for number in range(1, p.rounds):
            self._round(number, files.promising, self._times_s, self._visit)
        self._round("energy", files.promising - files.measured if p.energy_s else (), p.budget_s, self._loop)
        for number in range(p.rounds, p.rounds + _EXTRA_ROUNDS):
            unsettled = aggregate.unsettled(files.folder, self.identity["spare_cores"])
            self._round(number, unsettled & files.promising, p.budget_s * (1 + _EXTRA_SHARE), self._visit)

    @property
    def failure(self) -> str:
        """Return why not one configuration could be measured; empty where one was, or others took them all."""
        if self.files.promising or not self.files.configs:
            return ""
        if self._abandoned:
            return (f"{self.device}: stopped after {SAME_FAILURES} identical failures; "
                    + "; ".join(f"{op}: {why}" for op, why in self._abandoned.items()))
        (reason, times), = Counter(self.files.failed.values()).most_common(1)
        return f"{self.device}: each of {len(self.files.failed)} configurations failed, {times} of them with: {reason}"

    def _over(self, budget_s: float) -> bool:
        """Return whether the visits of earlier calls and this call together took ``budget_s``. Raises StoppedError."""
        if self._stop.is_set():
            raise StoppedError
        return bool(self.p.budget_s) and self._spent_s >= budget_s

    @property
    def _spent_s(self) -> float:
        return self.files.spent_s + time.monotonic() - self._begin

    def _first_round(self) -> None:
        """Visit new configurations until there are ``count`` or a round's share of the budget is spent."""
        for key in list(self.files.configs):  # entered, then interrupted
            self._visit(key, 0)
        if any(number > 0 for _, number in self.files.visits) and not self.points.returned:
            return
        skipped = 0
        while not self._first_round_is_over(skipped) and not self._abandoned.keys() >= self.points.families:
            point = self.points.take(self.device, self._abandoned, lambda: self._over(self.p.budget_s))
            if point is None:
                return
            config, ops = point
            need = spaces.footprint(ops)
            if need <= self.room:
                self.files.enter(config, ops)
                self._visit(config.key, 0)
                skipped = 0
                continue
            skipped += 1
            self._too_large = f"{need / 1e6:,.6g} MB needed, {self.room / 1e6:,.6g} MB allowed by memory_share"
            if self.points.refuse(point) and config.key not in self.files.skipped:
                self.files.enter(config, ops, self._too_large)

    def _first_round_is_over(self, skipped: int) -> bool:
        """Return whether a round's share of the budget is spent and there is one point at least.

        So it is when the energy loops of more points would not fit. Where all points are too large, it is over with the budget,
        or after _MOST_SKIPPED drawn ones.
        """
        spent = self._over(self._times_s / self.p.rounds if self.files.configs else self.p.budget_s) or \
            bool(self.p.budget_s and self._loops_s >= self.p.budget_s * _ENERGY_SHARE)
        return (spent and bool(self.files.configs or skipped)) or (skipped >= _MOST_SKIPPED and not self.p.grid)

    def _round(self, name: int | str, keys: Iterable[str], budget_s: float, measure: Callable) -> None:
        """Measure configurations in a random order, which is the same in each call, until the budget is spent."""
        keys = sorted(keys)
        random.Random(f"{self.p.seed} {name}").shuffle(keys)
        for key in keys:
            if self._over(budget_s):
                return
            measure(key, name)

    @property
    def _loops_s(self) -> float:
        """Return the time that the energy loops of all points take, in seconds; 0 where there is no meter."""
        return self.p.energy_s * len(self.files.configs) if self.identity["meter"] != NOT_MEASURED else 0.0

    @property
    def _times_s(self) -> float:
        """Return the part of the budget that is for times: what the energy loops leave, in seconds."""
        return self.p.budget_s - min(self._loops_s, self.p.budget_s * _ENERGY_SHARE)

    def _loop(self, key: str, _: str) -> None:
        """Loop a configuration for its energy, for no longer than what is left of the budget."""
        left_s = self.p.budget_s - self._spent_s if self.p.budget_s else math.inf
        result = self.visitor.energy(*self.files.configs[key], max(_LEAST_LOOP_S, min(self.p.energy_s, left_s)))
        self.files.add_energy(key, result)
        self.visited_s += result["loop_s"]

    def _visit(self, key: str, number: int) -> None:
        """Visit a configuration, unless it was visited in this round, or its family is abandoned."""
        config, ops = self.files.configs[key]
        if (key, number) in self.files.visits or config.op in self._abandoned:
            return
        result = self.visitor.visit(config, ops)
        self.files.add(key, number, result)
        self.visited_s += result["visit_s"]
        failures = self._failures.setdefault(config.op, Counter())
        if result["status"] == "ok":
            failures.clear()
            return
        failures[result["reason"]] += 1
        if failures[result["reason"]] >= SAME_FAILURES:
            self._abandoned[config.op] = result["reason"]
