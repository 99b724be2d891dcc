"""Budgeted, resumable sweeps: one worker process a device, interleaved rounds in random order, nothing measured is lost."""

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import locks, paths, store
from lib.config import base
from lib.config.notebooks import SweepParams
from lib.errors import InputError, choices, is_broken_device, one_line
from lib.measure import machine
from lib.measure.operators import aggregate
from lib.measure.operators.device_sweep import DeviceSweep
from lib.measure.operators.points import Points
from lib.measure.operators.raw_files import entered_configs, measured_on, raw_folder
from lib.measure.worker import WorkerLostError
from lib.progress import track
from lib.work import dtypes
from lib.work.graph import families, spaces
from lib.work.graph.spaces import Config

_IDENTITY = ("op", "grid", "count", "rounds", "visit_ms", "latency_type", "cache", "dtype", "shard", "seed", "threads")
_IN_WORDS = InputError | WorkerLostError | OSError  # one line each


@dataclass(frozen=True)
class _Seconds:
    """The visits of all devices as they end, counted in seconds: what a progress bar shows, with the time left.

    ``ticks`` gives the seconds of each visit, and None when a device has ended.
    """

    ticks: queue.Queue
    total_s: float
    devices: int

    def __len__(self) -> int:
        return max(1, int(self.total_s))

    def __iter__(self) -> Iterator[int]:
        shown, spent, ended = 0, 0.0, 0
        while ended < self.devices:
            tick = self.ticks.get()
            ended, spent = ended + (tick is None), spent + (tick or 0.0)
            while shown < min(int(spent), len(self)):
                shown += 1
                yield shown


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
    if p.grid and not p.budget_s and not p.count and (reason := spaces.too_large(sweeps.grids[p.grid], p.shard_pair)):
        raise InputError(f"grid {p.grid}: {reason}")
    if not p.budget_s and not p.count and not p.grid:
        raise InputError("a sampled sweep needs a budget_s or a count: it would never end")


def _folder(p: SweepParams) -> Path:
    """Return the folder of this sweep: an interrupted one is resumed, a finished one left as it is.

    Raises InputError when a folder of the given name holds another sweep.
    """
    identity = {name: getattr(p, name) for name in _IDENTITY}
    stem = p.name or f"{p.grid or p.op.replace(',', '-')}_{p.latency_type}_{p.cache}_{store.digest(identity)}"
    finished = (lambda name: (paths.SWEEPS / name / "sweep.parquet").exists()) if not p.name else (lambda _: False)
    with locks.writer(paths.SWEEPS / stem, locks.PATIENCE_S):  # sweeps that start at once agree on the folder and its plan
        folder = paths.SWEEPS / store.fresh_name(stem, finished)
        plan = folder / "plan.json"
        if not plan.exists():
            if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
                raise InputError(f"{folder} is not empty and has no plan.json: it is no sweep of this project; give another "
                                 "name")
            store.write_json(identity, plan)
    other = base.mapping(store.read_json(plan), plan)
    differing = [name for name in _IDENTITY if other.get(name) != identity[name]]
    if differing:
        raise InputError(f"{folder} holds another sweep, with " + ", ".join(f"{n} = {other.get(n)!r}" for n in differing)
                         + "; give this one another name")
    return folder


def measure_sweep(p: SweepParams, chosen: Sequence[Config] = ()) -> Path:
    """Measure one sweep on the wanted devices, all at once, and derive its table; return its folder in ``data/sweeps/``.

    ``chosen`` configurations are measured instead of drawn ones; such a sweep needs a name.
    The same parameters again go on with a sweep that was stopped, or wait for one that is being measured. Raises InputError
    for wrong parameters, and when no device could measure anything; what others measured is kept.
    """
    _check(p)
    devices, folder = machine.several(p.device), _folder(p)
    # From before a worker takes a device until the table is derived: the same sweep in another process then goes on with it.
    with locks.writers((raw_folder(folder, device) for device in devices), locks.PATIENCE_S):
        return _measured(p, devices, folder, chosen)


def _measured(p: SweepParams, devices: list[str], folder: Path, chosen: Sequence[Config]) -> Path:
    started, together = store.utc_now(), _Together(p, folder, chosen)
    for phase in ([name for name in devices if name == "cpu"], [name for name in devices if name != "cpu"]):
        together.run(phase)
    drives, failures = together.drives, together.failures
    unexpected = [error for error in failures.values() if not (isinstance(error, _IN_WORDS) or is_broken_device(error))]
    reasons = {device: str(error) if isinstance(error, _IN_WORDS) else one_line(error) for device, error in failures.items()}
    reasons |= {device: drive.failure for device, drive in drives.items() if drive.failure and device not in reasons}
    identities = {device: drive.identity for device, drive in drives.items() if drive.files.configs}
    if identities:
        _derive(folder, {
            "started_utc": started, "notebook": "03_sweep", "parameters": p.model_dump(), "devices": identities,
            "failures": reasons, "invalid": {device: drive.points.invalid for device, drive in drives.items()}})
    if unexpected:
        raise unexpected[0]  # what the others measured is kept by now
    if cut := next((drive.points.cut for drive in drives.values() if drive.points.cut), ""):
        raise InputError(f"{cut}; what was measured is in {folder}")
    if len(reasons) == len(devices):
        raise InputError("; ".join(reasons.values()))
    return folder


class _Together:
    """Leads devices that measure side by side, each in a thread of its own; those of one kind share the points."""

    def __init__(self, p: SweepParams, folder: Path, chosen: Sequence[Config]):
        self._p, self._folder, self._chosen = p, folder, chosen
        self.drives: dict[str, DeviceSweep] = {}
        self.failures: dict[str, Exception] = {}

    def _points(self, devices: list[str]) -> dict[str, Points]:
        """Return the points of each device, one object a kind; what a card of a kind has measured is not drawn for it again.

        So it is where that card is there no more, by what its files were measured on.
        """
        kinds = {device: machine.kind(device) for device in devices}
        here = {raw_folder(self._folder, device).name for device in machine.devices()}
        removed = [path.parent.name for path in sorted(self._folder.glob("cuda-*/configs.csv")) if path.parent.name not in here]
        shared = {}
        for kind in dict.fromkeys(kinds.values()):
            alike = [device for device in devices if kinds[device] == kind]
            card = machine.own_hardware(alike[0])
            alike_removed = [name for name in removed if card.items() <= measured_on(self._folder, name).items()]
            keys = set().union(*(entered_configs(self._folder, device) for device in alike),
                               *(entered_configs(self._folder, name, visited=True) for name in alike_removed))
            shared[kind] = Points(self._p, self._chosen, keys, alike[0])
        return {device: shared[kind] for device, kind in kinds.items()}

    def run(self, devices: list[str]) -> None:
        """Lead some devices until all have ended, and again where one was lost and the others had no work left by then."""
        points = self._points(devices)
        self._lead(devices, points)
        others = [device for device in devices if device not in self.failures and points[device].left]
        if others:
            self._lead(others, points)

    def _lead(self, devices: list[str], points: dict[str, Points]) -> None:
        ticks, stop = queue.Queue(), threading.Event()

        def lead(device: str) -> None:
            try:
                self.drives[device] = DeviceSweep(device, self._p, self._folder, ticks, stop, points[device])
                self.drives[device].run()
            except Exception as error:  # whatever it is, it is raised where the sweep was started
                self.failures[device] = error
                points[device].leave(device)
            finally:
                ticks.put(None)

        threads = [threading.Thread(target=lead, args=(device,), daemon=True) for device in devices]
        for thread in threads:
            thread.start()
        p = self._p
        total_s = (p.budget_s or p.count * (p.rounds * p.visit_ms * 2e-3 + p.energy_s)) * len(devices)
        try:
            for _ in track(_Seconds(ticks, total_s, len(devices)), f"sweep of {choices(devices)}, s"):
                pass
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _derive(folder: Path, facts: dict[str, Any]) -> None:
    """Derive the table from all devices that were measured in this folder, also by other processes meanwhile."""
    with locks.writer(folder / "sweep.parquet", locks.PATIENCE_S):
        meta = folder / "sweep.meta.json"
        earlier = store.read_json(meta)["devices"] if meta.exists() else {}
        aggregate.derive(folder, {**facts, "devices": {**earlier, **facts["devices"]}})


def sweep(p: SweepParams) -> aggregate.Sweep:
    """Measure a sweep, or replay one from the reference data, as ``source`` says."""
    return aggregate.replay(p) if p.source == "replay" else aggregate.read(measure_sweep(p))
