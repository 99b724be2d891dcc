"""The sweep of one device: rounds over its configurations, as far as the budget and the count go."""

import math
import queue
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.measure import machine
from lib.measure.energy.trace import NOT_MEASURED
from lib.measure.operators import aggregate
from lib.measure.operators.points import Points
from lib.measure.operators.raw_files import RawFiles, raw_folder
from lib.measure.operators.visitor import Visitor
from lib.work.graph import spaces
from lib.work.graph.ops import Op
from lib.work.graph.spaces import Config

SAME_FAILURES = 5  # in a row, of one family, before it is abandoned
_MOST_SKIPPED = 1000  # points too large, in a row, before a space counts as too large for this machine
_EXTRA_ROUNDS = 2
_LEAST_LOOP_S = 1e-3  # 0 would ask for a visit
_ENERGY_SHARE = 0.8  # of the budget, at most, for energy loops
_EXTRA_SHARE = 0.15  # of the budget, for configurations whose rounds disagree


class StoppedError(Exception):
    """The sweep was asked to stop."""


def _load_capture() -> None:
    """Load the parts of torch that capture operators (2 s) while the worker starts, before anything is timed."""
    spaces.config("activation", {"kind": "relu", "elements": 1}).ops()
    spaces.config("conv2d", {"batch": 1, "in_channels": 1, "out_channels": 1, "height": 1, "width": 1, "kernel_h": 1,
                             "kernel_w": 1, "stride_h": 1, "stride_w": 1}).ops()


class DeviceSweep:
    """Leads one device through the rounds of a sweep."""

    def __init__(self, device: str, p: SweepParams, folder: Path, ticks: queue.Queue, stop: threading.Event,
                 points: Points):
        self.device, self.p, self._ticks, self._stop, self.points = device, p, ticks, stop, points
        self.visitor = Visitor(device, p)
        with ExitStack() as undone:
            undone.callback(self.visitor.shut_down)
            self.files = RawFiles(raw_folder(folder, device), device)
            undone.callback(self.files.close)
            _load_capture()
            self.identity = self.visitor.ready()
            self.files.claim({**machine.own_hardware(device, self.identity["hardware"]),
                              **{name: self.identity[name] for name in ("software_id", "threads")}})
            undone.pop_all()
        self._begin, self._before_s = time.monotonic(), self.files.spent_s
        self._too_large = ""  # the last one
        self._abandoned: dict[str, str] = {}
        self._failures: dict[str, Counter] = {}
        self._limit_bytes = self._memory() * p.memory_share
        points.join(device, self._limit_bytes)

    def _memory(self) -> float:
        if self.device.startswith("cuda"):  # asked in the worker: this process is to have no memory on a GPU
            return self.identity["free_bytes"]
        return psutil.virtual_memory().available

    def run(self) -> dict[str, Any]:
        """Measure as far as budget and count allow; return the identity of the worker.

        Raises InputError where there was nothing to visit, and for a device that is lost meanwhile: what it measured is
        kept, and others go on. Where every visit failed, ``failure`` says why.
        """
        try:
            self._first_round()
            for number in range(1, self.p.rounds):
                self._again(number, sorted(self.files.promising), self._times_s)
            self._energies()
            for number in range(self.p.rounds, self.p.rounds + _EXTRA_ROUNDS):
                unsettled = aggregate.unsettled(self.files.folder, self.identity.get("spare_cores", 0))
                self._again(number, sorted(unsettled & self.files.promising), self.p.budget_s * (1 + _EXTRA_SHARE))
        except StoppedError:
            pass
        except machine.DeviceLostError as error:
            visited = {key for key, _ in self.files.visits}
            self.points.give_back([point for key, point in self.files.configs.items() if key not in visited])
            raise InputError(f"{self.device} was lost after {len(self.files.visits)} visits, which are kept: {error}") from None
        finally:
            self.files.close()
            self.visitor.shut_down()
        if not self.files.configs and not self.points.assigned:
            raise InputError(f"{self.device}: no valid point to measure ({self.points.invalid} invalid, "
                             f"{len(self.files.skipped)} skipped); the last: {self._too_large or self.points.last_invalid}")
        return self.identity

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
        return bool(self.p.budget_s) and self._before_s + time.monotonic() - self._begin >= budget_s

    def _first_round(self) -> None:
        """Visit new configurations until there are ``count`` or a round's share of the budget is spent."""
        for key, (config, ops) in list(self.files.configs.items()):
            if (key, 0) not in self.files.visits:  # entered, then interrupted
                self._visit(config, ops, 0)
        if any(number > 0 for _, number in self.files.visits) and not self.points.left:
            return
        skipped = 0
        while not self._first_round_is_over(skipped) and not self._abandoned.keys() >= self.points.families:
            point = self.points.take(self._limit_bytes, self._abandoned, lambda: self._over(self.p.budget_s))
            if point is None:
                return
            config, ops = point
            need = spaces.footprint(ops)
            if need <= self._limit_bytes:
                self.files.enter(config, ops)
                self._visit(config, ops, 0)
                skipped = 0
                continue
            skipped += 1
            self._too_large = f"{need / 1e6:,.6g} MB needed, {self._limit_bytes / 1e6:,.6g} MB allowed by memory_share"
            if self.points.refuse(point) and config.key not in self.files.skipped:
                self.files.enter(config, ops, "skipped", self._too_large)

    def _first_round_is_over(self, skipped: int) -> bool:
        """Return whether a round's share of the budget is spent and there is one point at least.

        So it is when the energy loops of more points would not fit. Where all points are too large, it is over with the budget,
        or after _MOST_SKIPPED drawn ones.
        """
        spent = self._over(self._times_s / self.p.rounds if self.files.configs else self.p.budget_s) or \
            bool(self.p.budget_s and self._loops_s >= self.p.budget_s * _ENERGY_SHARE)
        return (spent and bool(self.files.configs or skipped)) or (skipped >= _MOST_SKIPPED and not self.p.grid)

    def _again(self, number: int, keys: list[str], budget_s: float) -> None:
        random.Random(f"{self.p.seed} {number}").shuffle(keys)
        for key in keys:
            if self._over(budget_s):
                return
            config, ops = self.files.configs[key]
            if (key, number) not in self.files.visits and config.op not in self._abandoned:
                self._visit(config, ops, number)

    @property
    def _loops_s(self) -> float:
        """Return the time that the energy loops of all points take, in seconds; 0 where there is no meter."""
        return self.p.energy_s * len(self.files.configs) if self.identity.get("meter", NOT_MEASURED) != NOT_MEASURED else 0.0

    @property
    def _times_s(self) -> float:
        """Return the part of the budget that is for times: what the energy loops leave, in seconds."""
        return self.p.budget_s - min(self._loops_s, self.p.budget_s * _ENERGY_SHARE)

    def _energies(self) -> None:
        """Loop the configurations for their energy, in a random order; no loop is longer than what is left of the budget."""
        keys = sorted(self.files.promising - self.files.measured) if self.p.energy_s else []
        random.Random(f"{self.p.seed} energy").shuffle(keys)
        for key in keys:
            if self._over(self.p.budget_s):
                return
            config, ops = self.files.configs[key]
            result = self.visitor.energy(config, ops, max(_LEAST_LOOP_S, min(self.p.energy_s, self._left_s())))
            self.files.add_energy(key, result)
            self._ticks.put(result["loop_s"])

    def _left_s(self) -> float:
        spent_s = self._before_s + time.monotonic() - self._begin
        return max(0.0, self.p.budget_s - spent_s) if self.p.budget_s else math.inf

    def _visit(self, config: Config, ops: tuple[Op, ...], number: int) -> None:
        result = self.visitor.visit(config, ops)
        self.files.add(config.key, number, result)
        self._ticks.put(result["visit_s"])
        failures = self._failures.setdefault(config.op, Counter())
        if result["status"] == "ok":
            failures.clear()
            return
        failures[result["reason"]] += 1
        if failures[result["reason"]] >= SAME_FAILURES:
            self._abandoned[config.op] = result["reason"]
