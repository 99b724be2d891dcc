"""Budgeted, resumable sweeps: one worker process a device, interleaved rounds in random order, nothing measured is lost."""

import json
import multiprocessing
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from lib import paths, store
from lib.config.notebooks import SweepParams
from lib.errors import InputError, choices
from lib.measure import machine
from lib.measure.archive import Progress
from lib.measure.budget import Budget
from lib.measure.networks import allocator
from lib.measure.operators import aggregate, visit
from lib.tables import columns
from lib.work.graph import families, spaces
from lib.work.graph.capture import Op
from lib.work.graph.spaces import Config

SAME_FAILURES = 5  # in a row, of one family, before it is given up
_DEATHS = 2  # of the worker at one configuration, before that is given up
_EXTRA_ROUNDS = 2
_EXTRA_SHARE = 0.15  # of the budget, for configurations whose rounds disagree
_IDENTITY = ("op", "grid", "count", "rounds", "visit_ms", "latency_type", "cache", "dtype", "shard", "seed", "threads")


class _StopError(Exception):
    """The sweep was asked to stop."""


class _Worker:
    """The process that measures on one device; it is started again after it died or hung."""

    def __init__(self, device: str, p: SweepParams):
        self._device, self._p = device, p
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        patience_s = min(self._p.patience_s, Budget(self._p.budget_s).patience_s)
        self._process = context.Process(target=visit.serve, daemon=True,
                                        args=(other, self._device, self._p.threads, self._p.visit_ms, patience_s))
        with allocator.kept_by_children():  # or large outputs would be fetched anew from the system at each call
            self._process.start()
        other.close()

    def ready(self) -> dict[str, Any]:
        """Wait until the process is set up and the machine is quiet; return its identity, or raise what stopped it."""
        try:
            hello = self._pipe.recv()
        except EOFError:
            raise InputError(f"{self._device}: the worker process died at its start") from None
        if isinstance(hello, InputError):
            raise hello
        return hello

    def ask(self, config: Config, ops: tuple[Op, ...]) -> dict[str, Any]:
        """Have one configuration measured; a worker that dies or hangs gives a failed result and is started again."""
        begin = time.monotonic()
        try:
            self._pipe.send((config, ops))
            if self._pipe.poll(self._p.timeout_s):
                return self._pipe.recv()
            reason = f"no answer within {self._p.timeout_s:g} s"
        except (EOFError, ConnectionError, BrokenPipeError):
            self._process.join(5)
            code = self._process.exitcode
            reason = f"the worker was killed (signal {-code}): out of memory?" if code and code < 0 else \
                f"the worker ended with status {code}"
        self.close()
        self._start()
        self.ready()
        nothing = dict.fromkeys(("latency_ms", "spread_ms", "yardstick_ms"), float("nan"))
        return {**nothing, "n": 0, "calls": 0, "at_s": 0.0, "visit_s": time.monotonic() - begin, "other_cores": 0.0,
                "stolen_cores": 0.0, "status": "failed", "reason": reason}

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


@dataclass
class _Book:
    """What one device has measured so far, on disk and in mind."""

    folder: Path
    configs: dict[str, tuple[Config, tuple[Op, ...]]] = field(default_factory=dict)
    visits: set[tuple[str, int]] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    spent_s: float = 0.0

    def __post_init__(self):
        self._configs = store.Appender(self.folder / "configs.csv", "configs", resume=True)
        self._repeats = store.Appender(self.folder / "repeats.csv", "repeats", resume=True)
        known = store.read(self.folder / "configs.csv", "configs")
        done = store.read(self.folder / "repeats.csv", "repeats")
        foreign = set(done["config"]) - set(known["config"])
        if foreign:
            raise InputError(f"{self.folder}/repeats.csv holds configurations that configs.csv does not: "
                             f"{choices(sorted(foreign)[:3])}; the folder is no sweep of this project")
        self.skipped = set(known.loc[known["status"] == "skipped", "config"])
        self.visits = set(zip(done["config"], done["round"], strict=True))
        self.failed = set(done.loc[done["status"] != "ok", "config"])
        self.spent_s = float(done["visit_s"].sum())  # by earlier calls
        for row in known[known["status"] == "ok"].to_dict("records"):
            config = Config(row["op"], tuple(json.loads(row["parameters"]).items()), row["dtype"], row["pass"],
                            row["latency_type"], row["cache"])
            self.configs[row["config"]] = (config, config.ops())

    def enter(self, config: Config, ops: tuple[Op, ...], status: str = "ok", reason: str = "") -> None:
        """Write down a configuration before it is measured, or why it is not."""
        flops, moved = spaces.work(ops) if ops else (float("nan"), float("nan"))
        self._configs.append([config.key, config.op, json.dumps(dict(config.parameters)), config.dtype, config.passes,
                              config.latency_type, config.cache, flops, moved, spaces.footprint(ops) / 1e6, status, reason])
        if status == "ok":
            self.configs[config.key] = (config, ops)
        else:
            self.skipped.add(config.key)

    def add(self, key: str, number: int, result: dict[str, Any]) -> None:
        """Write down one visit."""
        row = {"config": key, "round": number, **result}
        self._repeats.append([row[name] for name in columns("repeats")])
        self.visits.add((key, number))
        if result["status"] != "ok":
            self.failed.add(key)

    def close(self) -> None:
        """Close both files."""
        self._configs.close()
        self._repeats.close()


def _warm_up_capture() -> None:
    """Let torch load what describing an operator needs (2 s), while the worker starts and before anything is timed."""
    spaces.config("activation", {"kind": "relu", "elements": 1}).ops()
    spaces.config("conv2d", {"batch": 1, "in_channels": 1, "out_channels": 1, "height": 1, "width": 1, "kernel_h": 1,
                             "kernel_w": 1, "stride_h": 1, "stride_w": 1}).ops()


class _Drive:
    """Leads one device through the rounds of a sweep."""

    def __init__(self, device: str, p: SweepParams, folder: Path, ticks: queue.Queue, stop: threading.Event,
                 chosen: Sequence[Config] = ()):
        self.device, self.p, self._ticks, self._stop, self._chosen = device, p, ticks, stop, chosen
        self.worker = _Worker(device, p)
        try:
            self.book = _Book(folder / device.replace(":", "-"))
            _warm_up_capture()
            self.identity = self.worker.ready()
        except BaseException:
            self.worker.close()
            raise
        self._begin, self._before_s = time.monotonic(), self.book.spent_s
        self.invalid, self.last_invalid = 0, ""
        self._given_up: dict[str, str] = {}
        self._row_of_failures: dict[str, Counter] = {}
        self._limit_bytes = self._memory() * p.memory_share

    def _memory(self) -> float:
        if self.device.startswith("cuda"):
            return torch.cuda.mem_get_info(torch.device(self.device))[0]
        return psutil.virtual_memory().available

    def run(self) -> dict[str, Any]:
        """Carry the sweep out as far as budget and count allow; return the worker's identity."""
        try:
            self._first_round()
            for number in range(1, self.p.rounds):
                self._again(number, sorted(set(self.book.configs) - self.book.failed), self.p.budget_s)
            for number in range(self.p.rounds, self.p.rounds + _EXTRA_ROUNDS):
                unsettled = aggregate.unsettled(self.book.folder)
                self._again(number, sorted(unsettled - self.book.failed), self.p.budget_s * (1 + _EXTRA_SHARE))
        except _StopError:
            pass
        finally:
            self.book.close()
            self.worker.close()
        if self._given_up and not set(self.book.configs) - self.book.failed:
            raise InputError(f"{self.device}: stopped after {SAME_FAILURES} identical failures; "
                             + "; ".join(f"{op}: {why}" for op, why in self._given_up.items()))
        if not self.book.configs:
            raise InputError(f"{self.device}: no valid point to measure ({self.invalid} invalid, {len(self.book.skipped)} "
                             f"skipped); the last: {self.last_invalid}")
        return self.identity

    def _over(self, budget_s: float) -> bool:
        """Return whether so much time was spent: the visits of earlier calls, and all that this one has taken."""
        if self._stop.is_set():
            raise _StopError
        return bool(self.p.budget_s) and self._before_s + time.monotonic() - self._begin >= budget_s

    def _first_round(self) -> None:
        """Visit new configurations until there are ``count`` or a round's share of the budget is spent."""
        for key, (config, ops) in list(self.book.configs.items()):
            if (key, 0) not in self.book.visits:  # entered, then interrupted
                self._visit(config, ops, 0)
        if any(number > 0 for _, number in self.book.visits):
            return
        for config, ops in self._candidates():
            if self._over(self.p.budget_s / self.p.rounds) or (self.p.count and len(self.book.configs) >= self.p.count):
                return
            if config.key in self.book.configs or config.key in self.book.skipped or config.op in self._given_up:
                if len(self._given_up) == len(self.p.ops):
                    return
                continue
            need = spaces.footprint(ops)
            if need > self._limit_bytes:
                self.last_invalid = f"{need / 1e6:,.0f} MB needed, {self._limit_bytes / 1e6:,.0f} MB allowed"
                self.book.enter(config, ops, "skipped", self.last_invalid)
                continue
            self.book.enter(config, ops)
            self._visit(config, ops, 0)

    def _candidates(self) -> Iterator[tuple[Config, tuple[Op, ...]]]:
        """Yield valid configurations in every asked way of timing them."""
        for config, ops in self._drawn():
            for latency_type in aggregate.BOTH["latency_type"] if self.p.latency_type == "both" else (self.p.latency_type,):
                for cache in aggregate.BOTH["cache"] if self.p.cache == "both" else (self.p.cache,):
                    yield Config(config.op, config.parameters, config.dtype, config.passes, latency_type, cache), ops

    def _drawn(self) -> Iterator[tuple[Config, tuple[Op, ...]]]:
        sweeps = spaces.load_sweeps()
        if self._chosen:
            yield from ((config, config.ops()) for config in self._chosen)
            return
        if not self.p.grid:
            yield from spaces.several(self.p.ops, sweeps, self.p.seed, self.p.dtype)
            return
        for config in spaces.product(sweeps.grids[self.p.grid], self.p.seed, self.p.shard_pair):
            try:
                yield config, config.ops()
            except InputError as error:
                self.invalid, self.last_invalid = self.invalid + 1, str(error)

    def _again(self, number: int, keys: list[str], budget_s: float) -> None:
        """Visit the given configurations once more, in a new random order."""
        random.Random(f"{self.p.seed} {number}").shuffle(keys)
        for key in keys:
            if self._over(budget_s):
                return
            config, ops = self.book.configs[key]
            if (key, number) not in self.book.visits and config.op not in self._given_up:
                self._visit(config, ops, number)

    def _visit(self, config: Config, ops: tuple[Op, ...], number: int) -> None:
        result = self.worker.ask(config, ops)
        for _ in range(_DEATHS - 1):
            if "worker" in result["reason"]:
                result = self.worker.ask(config, ops)
        self.book.add(config.key, number, result)
        self._ticks.put(result["visit_s"])
        failures = self._row_of_failures.setdefault(config.op, Counter())
        if result["status"] == "ok":
            failures.clear()
            return
        failures[result["reason"]] += 1
        if failures[result["reason"]] >= SAME_FAILURES:
            self._given_up[config.op] = result["reason"]


@dataclass(frozen=True)
class _Seconds:
    """The visits of all devices as they end, counted in seconds: what a progress bar shows, with the time left."""

    ticks: queue.Queue
    total_s: float
    threads: list[threading.Thread]

    def __len__(self) -> int:
        return max(1, int(self.total_s))

    def __iter__(self) -> Iterator[int]:
        shown, spent = 0, 0.0
        while any(thread.is_alive() for thread in self.threads) or not self.ticks.empty():
            with suppress(queue.Empty):
                spent += self.ticks.get(timeout=0.2)
            while shown < min(int(spent), len(self)):
                shown += 1
                yield shown


def devices(wanted: str) -> list[str]:
    """Return the ids of ``wanted``: one, several with commas, auto, or all of this machine."""
    if wanted == "all":
        return machine.devices()
    return [str(machine.device(name)) for name in wanted.split(",")]


def _check(p: SweepParams) -> None:
    sweeps = spaces.load_sweeps()
    if p.grid and p.grid not in sweeps.grids:
        raise InputError(f"no grid {p.grid!r}; there are: {choices(sweeps.grids)} (add yours to params/sweeps.yaml)")
    for op in p.ops:
        families.family(op)
        if not p.grid and op not in sweeps.spaces:
            raise InputError(f"no space for {op!r}; there are: {choices(sweeps.spaces)} (add yours to params/sweeps.yaml)")
    if p.dtype not in spaces.DTYPES:
        raise InputError(f"no element type {p.dtype!r}; there are: {choices(spaces.DTYPES)}")
    if not p.budget_s and not p.count and not p.grid:
        raise InputError("a sampled sweep needs a budget_s or a count: it would never end")


def _folder(p: SweepParams) -> Path:
    """Return the folder of this sweep: one that was interrupted is gone on with, a finished one is left alone.

    Raises InputError when a folder of the given name holds another sweep.
    """
    identity = {name: getattr(p, name) for name in _IDENTITY}
    stem = p.name or f"{p.grid or p.op.replace(',', '-')}_{p.latency_type}_{p.cache}_{store.digest(identity)}"
    finished = (lambda name: (paths.SWEEPS / name / "sweep.parquet").exists()) if not p.name else (lambda _: False)
    folder = paths.SWEEPS / store.fresh_name(stem, finished)
    plan = folder / "plan.json"
    if plan.exists():
        other = store.read_json(plan)
        differing = [name for name in _IDENTITY if other.get(name) != identity[name]]
        if differing:
            raise InputError(f"{folder} holds another sweep, with " + ", ".join(f"{n} = {other.get(n)!r}" for n in differing)
                             + "; give this one another name")
    elif folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty and has no plan.json: it is no sweep of this project; give another name")
    else:
        store.write_json(identity, plan)
    return folder


def measure_sweep(p: SweepParams, progress: Progress = lambda items, _: items, chosen: Sequence[Config] = ()) -> Path:
    """Measure one sweep on the asked devices, all at once, and derive its table; return its folder in ``data/sweeps/``.

    ``chosen`` configurations are measured instead of drawn ones; such a sweep needs a name.
    The same parameters again go on with a sweep that was stopped. Raises InputError for wrong parameters, and when no
    device could measure anything; what others measured is kept.
    """
    _check(p)
    wanted, folder = devices(p.device), _folder(p)
    ticks, stop, drives, failures, identities = queue.Queue(), threading.Event(), {}, {}, {}
    started = store.utc_now()

    def lead(device: str) -> None:
        try:
            drives[device] = _Drive(device, p, folder, ticks, stop, chosen)
            identities[device] = drives[device].run()
        except (InputError, OSError) as error:
            failures[device] = error

    threads = [threading.Thread(target=lead, args=(device,), daemon=True) for device in wanted]
    for thread in threads:
        thread.start()
    total_s = (p.budget_s or p.count * p.rounds * p.visit_ms * 2e-3) * len(wanted)
    try:
        for _ in progress(_Seconds(ticks, total_s, threads), "sweep, s"):
            pass
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if not identities:
        raise InputError("; ".join(str(error) for error in failures.values()))
    facts = {"started_utc": started, "notebook": "03_sweep", "parameters": p.model_dump(), "devices": identities,
             "failures": {device: str(error) for device, error in failures.items()},
             "invalid": {device: drive.invalid for device, drive in drives.items()}}
    aggregate.derive(folder, facts)
    return folder


def sweep(p: SweepParams, progress: Progress = lambda items, _: items) -> aggregate.Sweep:
    """Measure a sweep, or replay one from the reference data, as ``source`` says."""
    return aggregate.replay(p) if p.source == "replay" else aggregate.read(measure_sweep(p, progress))
