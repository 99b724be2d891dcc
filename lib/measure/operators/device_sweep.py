"""The sweep of one device: rounds over its configurations, as far as the budget and the count go."""

import math
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.measure.energy.trace import NOT_MEASURED
from lib.measure.operators import aggregate
from lib.measure.operators.raw_files import RawFiles, raw_folder
from lib.measure.operators.visitor import Visitor
from lib.work.graph import spaces
from lib.work.graph.ops import Op
from lib.work.graph.spaces import Config

SAME_FAILURES = 5  # in a row, of one family, before it is abandoned
_MOST_SKIPPED = 1000  # points too large, in a row, before a space counts as too large for this machine
_EXTRA_ROUNDS = 2
_ENERGY_SHARE = 0.8  # of the budget, at most, for energy loops
_EXTRA_SHARE = 0.15  # of the budget, for configurations whose rounds disagree


class StoppedError(Exception):
    """The sweep was asked to stop."""


def _load_capture() -> None:
    """Let torch load what describing an operator needs (2 s), while the worker starts and before anything is timed."""
    spaces.config("activation", {"kind": "relu", "elements": 1}).ops()
    spaces.config("conv2d", {"batch": 1, "in_channels": 1, "out_channels": 1, "height": 1, "width": 1, "kernel_h": 1,
                             "kernel_w": 1, "stride_h": 1, "stride_w": 1}).ops()


class DeviceSweep:
    """Leads one device through the rounds of a sweep."""

    def __init__(self, device: str, p: SweepParams, folder: Path, ticks: queue.Queue, stop: threading.Event,
                 chosen: Sequence[Config] = ()):
        self.device, self.p, self._ticks, self._stop, self._chosen = device, p, ticks, stop, chosen
        self.visitor = Visitor(device, p)
        try:
            self.files = RawFiles(raw_folder(folder, device), device)
            _load_capture()
            self.identity = self.visitor.ready()
        except BaseException:
            self.visitor.shut_down()
            raise
        self._begin, self._before_s = time.monotonic(), self.files.spent_s
        self.invalid, self.last_invalid = 0, ""
        self._abandoned: dict[str, str] = {}
        self._failures: dict[str, Counter] = {}
        self._limit_bytes = self._memory() * p.memory_share

    def _memory(self) -> float:
        if self.device.startswith("cuda"):
            return torch.cuda.mem_get_info(torch.device(self.device))[0]
        return psutil.virtual_memory().available

    def run(self) -> dict[str, Any]:
        """Carry the sweep out as far as budget and count allow; return the worker's identity.

        Raises InputError where there was nothing to visit; where every visit failed, ``failure`` says why.
        """
        try:
            self._first_round()
            for number in range(1, self.p.rounds):
                self._again(number, sorted(self.files.promising), self._times_s)
            self._energies()
            for number in range(self.p.rounds, self.p.rounds + _EXTRA_ROUNDS):
                unsettled = aggregate.unsettled(self.files.folder)
                self._again(number, sorted(unsettled & self.files.promising), self.p.budget_s * (1 + _EXTRA_SHARE))
        except StoppedError:
            pass
        finally:
            self.files.close()
            self.visitor.shut_down()
        if not self.files.configs:
            raise InputError(f"{self.device}: no valid point to measure ({self.invalid} invalid, {len(self.files.skipped)} "
                             f"skipped); the last: {self.last_invalid}")
        return self.identity

    @property
    def failure(self) -> str:
        """Return why not one configuration could be measured; empty where one was."""
        if self.files.promising:
            return ""
        if self._abandoned:
            return (f"{self.device}: stopped after {SAME_FAILURES} identical failures; "
                    + "; ".join(f"{op}: {why}" for op, why in self._abandoned.items()))
        (reason, times), = Counter(self.files.failed.values()).most_common(1)
        return f"{self.device}: each of {len(self.files.failed)} configurations failed, {times} of them with: {reason}"

    def _over(self, budget_s: float) -> bool:
        """Return whether so much time was spent: the visits of earlier calls, and all that this one has taken."""
        if self._stop.is_set():
            raise StoppedError
        return bool(self.p.budget_s) and self._before_s + time.monotonic() - self._begin >= budget_s

    def _first_round(self) -> None:
        """Visit new configurations until there are ``count`` or a round's share of the budget is spent."""
        for key, (config, ops) in list(self.files.configs.items()):
            if (key, 0) not in self.files.visits:  # entered, then interrupted
                self._visit(config, ops, 0)
        if any(number > 0 for _, number in self.files.visits):
            return
        skipped, families = 0, self._families()
        for config, ops in self._candidates():
            if self._first_round_is_over(skipped) or self._abandoned.keys() >= families:
                return
            if config.key in self.files.configs or config.op in self._abandoned:
                continue
            need = spaces.footprint(ops)
            if need <= self._limit_bytes:
                self.files.enter(config, ops)
                self._visit(config, ops, 0)
                skipped = 0
                continue
            skipped += 1
            self.last_invalid = f"{need / 1e6:,.6g} MB needed, {self._limit_bytes / 1e6:,.6g} MB allowed by memory_share"
            if config.key not in self.files.skipped:
                self.files.enter(config, ops, "skipped", self.last_invalid)

    def _families(self) -> set[str]:
        """Return the families that points are drawn from."""
        if self._chosen:
            return {config.op for config in self._chosen}
        return {spaces.load_sweeps().grids[self.p.grid].op} if self.p.grid else set(self.p.ops)

    def _first_round_is_over(self, skipped: int) -> bool:
        """Return whether there are ``count`` points, or a round's share of the budget is spent and there is one at least.

        So it is when the energy loops of more points would not fit. Where all points are too large, it is over with the budget,
        or after _MOST_SKIPPED drawn ones.
        """
        spent = self._over(self._times_s / self.p.rounds if self.files.configs else self.p.budget_s) or \
            bool(self.p.budget_s and self._loops_s >= self.p.budget_s * _ENERGY_SHARE)
        return (spent and bool(self.files.configs or skipped)) or (skipped >= _MOST_SKIPPED and not self.p.grid) or \
            bool(self.p.count and len(self.files.configs) >= self.p.count)

    def _candidates(self) -> Iterator[tuple[Config, tuple[Op, ...]]]:
        """Yield valid configurations in every wanted way of timing them."""
        for config, ops in self._drawn():
            for latency_type in aggregate.BOTH["latency_type"] if self.p.latency_type == "both" else (self.p.latency_type,):
                for cache in aggregate.BOTH["cache"] if self.p.cache == "both" else (self.p.cache,):
                    yield Config(config.op, config.parameters, config.dtype, config.passes, latency_type, cache), ops

    def _drawn(self) -> Iterator[tuple[Config, tuple[Op, ...]]]:
        sweeps = spaces.load_sweeps()
        if self._chosen:
            yield from ((config, config.ops(self.device)) for config in self._chosen)
            return
        if not self.p.grid:
            yield from spaces.several(self.p.ops, sweeps, self.p.seed, self.p.dtype, self.device)
            return
        for config in spaces.product(sweeps.grids[self.p.grid], self.p.seed, self.p.shard_pair):
            try:
                yield config, config.ops(self.device)
            except InputError as error:
                self.invalid, self.last_invalid = self.invalid + 1, str(error)
                if self._over(self.p.budget_s):
                    return

    def _again(self, number: int, keys: list[str], budget_s: float) -> None:
        """Visit the given configurations once more, in a new random order."""
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
            result = self.visitor.energy(config, ops, min(self.p.energy_s, self._left_s()))
            self.files.add_energy(key, result)
            self._ticks.put(result["loop_s"])

    def _left_s(self) -> float:
        """Return what is left of the budget, in seconds; inf without one."""
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
