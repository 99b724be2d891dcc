"""Budgeted, resumable sweeps: one worker process a device, interleaved rounds in random order, nothing measured is lost."""

import glob
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lib import locks, paths, store
from lib.config import base
from lib.config.notebooks import SweepParams
from lib.errors import InputError, choices, entry, is_broken_device, one_line
from lib.measure import machine
from lib.measure.operators import aggregate, shards
from lib.measure.operators.device_sweep import DeviceSweep
from lib.measure.operators.points import Points
from lib.measure.operators.raw_files import entered_configs, measured_on, raw_folder
from lib.measure.worker import WorkerLostError
from lib.progress import track
from lib.work import dtypes
from lib.work.graph import families, spaces

_IDENTITY = ("op", "grid", "count", "rounds", "visit_ms", "latency_type", "cache", "dtype", "shard", "seed", "threads")
_IN_WORDS = InputError | WorkerLostError | OSError  # one line each
_TICK_S = 0.2  # of the progress bar


def _check(p: SweepParams) -> None:
    sweeps = spaces.load_sweeps()
    advice = " (add yours to params/sweeps.yaml)"
    if p.grid:
        entry(sweeps.grids, p.grid, "grid", advice=advice)
    for op in p.ops:
        families.family(op)
        if not p.grid:
            entry(sweeps.spaces, op, "space for", advice=advice)
    entry(dtypes.NAMES, p.dtype, "element type")
    if p.budget_s or p.count:
        return
    if not p.grid:
        raise InputError("a sampled sweep needs a budget_s or a count: it would never end")
    if reason := spaces.too_large(sweeps.grids[p.grid], p.shard_pair):
        raise InputError(f"grid {p.grid}: {reason}")


def _folder(p: SweepParams) -> Path:
    """Return the folder of this sweep: an interrupted one is resumed, a finished one left as it is.

    Raises InputError when a folder of the given name holds another sweep.
    """
    identity = {name: getattr(p, name) for name in _IDENTITY}
    stem = p.name or f"{p.grid or p.op.replace(',', '-')}_{p.latency_type}_{p.cache}_{store.digest(identity)}"
    with locks.writer(paths.SWEEPS / stem, locks.PATIENCE_S):  # sweeps that start at once agree on the folder and its plan
        folder = paths.SWEEPS / (p.name or store.fresh_name(
            stem, lambda name: (paths.SWEEPS / name / "sweep.parquet").exists()))
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


def measure_sweep(p: SweepParams, chosen: Sequence[spaces.Config] = ()) -> Path:
    """Measure one sweep on the wanted devices, all at once, and derive its table; return its folder in ``data/sweeps/``.

    ``chosen`` configurations are measured instead of drawn ones; such a sweep needs a name.
    The same parameters again go on with a sweep that was stopped, or wait for one that is being measured. Raises InputError
    for wrong parameters, and when no device could measure anything; what others measured is kept.
    """
    _check(p)
    devices, folder = machine.several(p.device), _folder(p)
    # From before a worker takes a device until the table is derived: the same sweep in another process then goes on with it.
    with locks.writers((raw_folder(folder, device) for device in devices), locks.PATIENCE_S):
        started, leader = store.utc_now(), _Leader(p, folder, chosen)
        for together in ([name for name in devices if name == "cpu"], [name for name in devices if name != "cpu"]):
            leader.measure(together)
        leader.derive(started)
        if len(leader.reasons) == len(devices):
            raise InputError("; ".join(leader.reasons.values()))
    return folder


class _Leader:
    """Leads devices that measure side by side, each in a thread of its own; those of one kind share the points."""

    def __init__(self, p: SweepParams, folder: Path, chosen: Sequence[spaces.Config]):
        self._p, self._folder, self._chosen = p, folder, chosen
        self._stop = threading.Event()
        self._sweeps: dict[str, DeviceSweep] = {}
        self._points: dict[str, Points] = {}
        self._failures: dict[str, Exception] = {}

    def measure(self, devices: list[str]) -> None:
        """Lead some devices until all have ended, and again where one was lost and the others had no work left by then."""
        with ExitStack() as workers:
            ready = self._start(devices, workers)
            kinds = {}
            for device in ready:
                kinds.setdefault(machine.kind(device), []).append(device)
            for alike in kinds.values():
                rooms = {device: self._sweeps[device].room for device in alike}
                self._points |= dict.fromkeys(alike, Points(self._p, rooms, self._chosen, self._entered(alike)))
            self._run(ready)
            again = [device for device in ready if device not in self._failures and self._points[device].returned]
            again = self._start(again, workers)
            for device in again:
                self._points[device].rooms[device] = self._sweeps[device].room  # others may have taken some meanwhile
            self._run(again)

    def _start(self, devices: list[str], workers: ExitStack) -> list[str]:
        """Start the workers of devices, all at once, which end with ``workers``; return those that are ready."""
        starting = {}
        for device in devices:
            with self._failing(device):
                starting[device] = DeviceSweep(device, self._p, self._folder, self._stop)
                workers.callback(starting[device].visitor.shut_down)
        spaces.config("linear", {"gemm_m": 1, "gemm_k": 1, "gemm_n": 1}).ops()  # loads capture (2 s), before anything is timed
        for device, started in starting.items():
            with self._failing(device):
                started.ready()
                self._sweeps[device] = started
        return [device for device in devices if device not in self._failures]

    @contextmanager
    def _failing(self, device: str) -> Iterator[None]:
        """Note why a device fails; whatever it is, it is raised where the sweep was started."""
        try:
            yield
        except Exception as error:
            self._failures[device] = error

    def _entered(self, alike: list[str]) -> set[str]:
        """Return what cards of a kind have, also those that are there no more, by what their files were measured on."""
        here = {raw_folder(self._folder, device).name for device in machine.devices()}
        card = machine.own_hardware(alike[0])
        removed = [path.parent for path in sorted(self._folder.glob("cuda-*/configs.csv")) if path.parent.name not in here]
        return set().union(*(entered_configs(raw_folder(self._folder, device)) for device in alike),
                           *(entered_configs(folder, visited=True) for folder in removed
                             if card.items() <= measured_on(folder).items()))

    def _run(self, devices: list[str]) -> None:
        if not devices:
            return
        p, sweeps = self._p, [self._sweeps[device] for device in devices]
        total_s = (p.budget_s or p.count * (p.rounds * p.visit_ms * 2e-3 + p.energy_s)) * len(devices)
        with ThreadPoolExecutor(len(devices)) as pool:
            runs = {device: pool.submit(self._sweeps[device].run, self._points[device]) for device in devices}
            try:
                for second in track(range(max(1, int(total_s))), f"sweep of {choices(devices)}, s"):
                    while sum(sweep.visited_s for sweep in sweeps) <= second and wait(runs.values(), _TICK_S).not_done:
                        pass
                wait(runs.values())
            finally:
                self._stop.set()
        self._stop.clear()
        self._failures |= {device: error for device, run in runs.items() if (error := run.exception())}

    @property
    def reasons(self) -> dict[str, str]:
        """Return why devices could not measure, or not to the end."""
        failed = {device: str(error) if isinstance(error, _IN_WORDS) else one_line(error)
                  for device, error in self._failures.items()}
        return {device: sweep.failure for device, sweep in self._sweeps.items() if sweep.failure} | failed

    def derive(self, started_utc: str) -> None:
        """Derive the table from all devices that were measured in this folder, also by other processes meanwhile.

        Raises, when that is done, an error that is none of input, and InputError for a grid that was not walked to its end.
        """
        identities = {device: sweep.identity for device, sweep in self._sweeps.items() if sweep.files.configs}
        if identities:
            with locks.writer(self._folder / "sweep.parquet", locks.PATIENCE_S):
                meta = self._folder / "sweep.meta.json"
                earlier = store.read_json(meta)["devices"] if meta.exists() else {}
                aggregate.derive(self._folder, {
                    "started_utc": started_utc, "notebook": "03_sweep", "parameters": self._p.model_dump(),
                    "devices": earlier | identities, "failures": self.reasons,
                    "invalid": {device: self._points[device].invalid for device in self._sweeps}})
        for error in self._failures.values():
            if not (isinstance(error, _IN_WORDS) or is_broken_device(error)):
                raise error
        if cut := next((points.cut for points in self._points.values() if points.cut), ""):
            raise InputError(f"{cut}; what was measured is in {self._folder}")


def sweep(p: SweepParams) -> aggregate.Sweep:
    """Measure a sweep, merge one from its shards, or replay one from the reference data, as ``source`` and ``merge`` say."""
    if p.source == "replay":
        return aggregate.replay(p)
    if p.merge:
        folders = [Path(path) for path in sorted(glob.glob(p.merge))]
        if not folders:
            raise InputError(f"03_sweep: merge = {p.merge!r} is no folder of a shard, and no pattern of such folders")
        return aggregate.read(shards.merge(folders, p.name or "merged"))
    return aggregate.read(measure_sweep(p))
