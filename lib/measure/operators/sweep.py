"""Budgeted, resumable sweeps: one worker process a device, interleaved rounds in random order, nothing measured is lost."""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lib import paths, store
from lib.config.notebooks import SweepParams
from lib.errors import InputError, choices
from lib.measure import machine
from lib.measure.operators import aggregate
from lib.measure.operators.device_sweep import DeviceSweep
from lib.measure.worker import WorkerLostError
from lib.progress import track
from lib.work import dtypes
from lib.work.graph import families, spaces
from lib.work.graph.spaces import Config

_IDENTITY = ("op", "grid", "count", "rounds", "visit_ms", "latency_type", "cache", "dtype", "shard", "seed", "threads")


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
    if p.dtype not in dtypes.NAMES:
        raise InputError(f"no element type {p.dtype!r}; there are: {choices(dtypes.NAMES)}")
    if not p.budget_s and not p.count and not p.grid:
        raise InputError("a sampled sweep needs a budget_s or a count: it would never end")


def _folder(p: SweepParams) -> Path:
    """Return the folder of this sweep: an interrupted one is resumed, a finished one left as it is.

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


def measure_sweep(p: SweepParams, chosen: Sequence[Config] = ()) -> Path:
    """Measure one sweep on the wanted devices, all at once, and derive its table; return its folder in ``data/sweeps/``.

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
            drives[device] = DeviceSweep(device, p, folder, ticks, stop, chosen)
            identities[device] = drives[device].run()
        except (InputError, WorkerLostError, OSError) as error:
            failures[device] = error

    threads = [threading.Thread(target=lead, args=(device,), daemon=True) for device in wanted]
    for thread in threads:
        thread.start()
    total_s = (p.budget_s or p.count * p.rounds * p.visit_ms * 2e-3) * len(wanted)
    try:
        for _ in track(_Seconds(ticks, total_s, threads), "sweep, s"):
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


def sweep(p: SweepParams) -> aggregate.Sweep:
    """Measure a sweep, or replay one from the reference data, as ``source`` says."""
    return aggregate.replay(p) if p.source == "replay" else aggregate.read(measure_sweep(p))
