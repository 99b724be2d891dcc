"""Resumable sweeps with a budget: one worker process per device, side by side; merged shards."""

import glob
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pandas as pd

from lib import files, locks, paths, store
from lib.config import base
from lib.config.notebooks import SweepParams
from lib.errors import InputError, choices, entry
from lib.measure import machine
from lib.measure.operators import aggregate
from lib.measure.operators.device_sweep import DeviceSweep
from lib.progress import track
from lib.work import dtypes
from lib.work.graph import families, spaces

_IDENTITY = ("op", "grid", "count", "rounds", "visit_ms", "latency_type", "cache", "dtype", "shard",
             "seed", "threads")


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


def _is_finished(folder: Path) -> bool:
    """Return whether a sweep has a table, and no device failed in it."""
    meta = folder / "sweep.meta.json"
    if not (meta.exists() and (folder / "sweep.parquet").exists()):
        return False
    return not base.mapping(store.read_json(meta), meta).get("failures")


def _folder(p: SweepParams) -> Path:
    """Return the folder of this sweep: an unfinished one is resumed, a finished one left as it is.

    Raises InputError when a folder of the given name holds another sweep.
    """
    identity = {name: getattr(p, name) for name in _IDENTITY}
    families_named = p.grid or p.op.replace(",", "-")
    stem = p.name or f"{families_named}_{p.latency_type}_{p.cache}_{store.digest(identity)}"
    with locks.writer(paths.SWEEPS / stem, locks.PATIENCE_S):  # of sweeps that start at once
        folder = paths.SWEEPS / (p.name or store.fresh_name(
            stem, lambda name: _is_finished(paths.SWEEPS / name)))
        plan = folder / "plan.json"
        if not plan.exists():
            if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
                raise InputError(f"{folder} is not empty and has no plan.json: it is no sweep of "
                                 "this project; give another name")
            store.write_json(identity, plan)
    other = base.mapping(store.read_json(plan), plan)
    differing = [f"{n} = {other.get(n)!r}" for n in _IDENTITY if other.get(n) != identity[n]]
    if differing:
        raise InputError(f"{folder} holds another sweep, with {choices(differing)}; "
                         "give this one another name")
    return folder


def measure_sweep(p: SweepParams, chosen: Sequence[spaces.Config] = ()) -> Path:
    """Measure one sweep on the wanted devices; return its folder in ``data/sweeps/``.

    The CPU is measured first and alone, then all GPUs at once, each in its own process; GPUs of one
    model each measure a share of the points. The same parameters again resume a sweep that was
    stopped or of which a device failed, or wait for one that is being measured.

    Args:
        p: the parameters of ``03_sweep``
        chosen: configurations to measure in place of drawn ones; such a sweep needs a name

    Raises InputError for wrong parameters, and when no device could measure anything.
    """
    _check(p)
    devices, folder = machine.several(p.device), _folder(p)
    with locks.writers((aggregate.device_folder(folder, name) for name in devices),
                       locks.PATIENCE_S):
        started_utc, ended = store.utc_now(), []
        for together in ([name for name in devices if name == "cpu"],
                         [name for name in devices if name != "cpu"]):
            ended += _side_by_side(p, folder, together, chosen)
        failures = {sweep.device: sweep.failure for sweep in ended if sweep.failure}
        measured = {sweep.device: sweep.identity for sweep in ended if sweep.identity and sweep.configs}
        if measured:
            _derive(p, folder, started_utc, measured, failures)
    for sweep in ended:
        if sweep.error:
            raise sweep.error
    if len(failures) == len(devices) or not measured:
        empty = f"no point to measure: shard {p.shard} of the grid {p.grid} is empty"
        raise InputError("; ".join(failures.values()) or empty)
    return folder


def _derive(p: SweepParams, folder: Path, started_utc: str, measured: dict[str, store.Facts],
            failures: dict[str, str]) -> None:
    """Derive the table, also of the devices that other calls measured in this folder."""
    with locks.writer(folder / "sweep.parquet", locks.PATIENCE_S):
        meta = folder / "sweep.meta.json"
        earlier = store.read_json(meta)["devices"] if meta.exists() else {}
        aggregate.derive(folder, {
            "started_utc": started_utc, "notebook": "03_sweep", "parameters": p.model_dump(),
            "devices": earlier | measured, "failures": failures})


def _side_by_side(p: SweepParams, folder: Path, devices: list[str],
                  chosen: Sequence[spaces.Config]) -> list[DeviceSweep]:
    """Measure on some devices at once; return their sweeps, which have ended."""
    if not devices:
        return []
    number, of = p.shard_pair
    stop, sweeps = threading.Event(), []
    try:
        for device in devices:
            alike = [name for name in devices if machine.kind(name) == machine.kind(device)]
            place, cards = alike.index(device), len(alike)
            count = max(1, (p.count + cards - 1 - place) // cards) if p.count else 0
            part = (number + of * place, of * cards)
            sweeps.append(DeviceSweep(device, p.model_copy(update={"count": count}), folder, stop, part,
                                      chosen))
        spaces.config("linear", {"gemm_m": 1, "gemm_k": 1, "gemm_n": 1}).ops()  # loads capture now
        for sweep in sweeps:
            sweep.ready()
        _run([sweep for sweep in sweeps if not sweep.failure], p, stop)
    finally:
        for sweep in sweeps:
            sweep.close()
    return sweeps


def _run(sweeps: list[DeviceSweep], p: SweepParams, stop: threading.Event) -> None:
    total_s = p.budget_s or p.count * (p.rounds * p.visit_ms * 2e-3 + p.energy_s) / max(1, len(sweeps))
    with ThreadPoolExecutor(max(1, len(sweeps))) as pool:
        runs = [pool.submit(sweep.run) for sweep in sweeps]
        try:
            for _ in track(range(max(1, int(total_s))), "sweep, s"):
                if not wait(runs, 1.0).not_done:
                    break
            wait(runs)
        finally:
            stop.set()


def merge(folders: Sequence[Path], name: str) -> Path:
    """Join the tables of all shards of a sweep in ``data/sweeps/<name>``; return that folder.

    What was merged there from the same shards is left as it is. Raises InputError for shards that
    are missing, doubled or unfinished, or of different sweeps, and for a folder of something else.
    """
    for folder in folders:
        if not (folder / "sweep.parquet").is_file():
            raise InputError(f"{folder} has no sweep.parquet: it is no sweep that has ended; measure "
                             "it again by the same line")
    plans = [base.mapping(store.read_json(folder / "plan.json"), folder) for folder in folders]
    facts = [base.mapping(store.read_json(folder / "sweep.meta.json"), folder) for folder in folders]
    differing = {key for plan in plans for key in plan.keys() - {"shard"} if plan[key] != plans[0].get(key)}
    if differing:
        raise InputError("the folders are of different sweeps: they differ in "
                         f"{choices(sorted(differing))}")
    shards, of = sorted(str(plan["shard"]) for plan in plans), str(plans[0]["shard"]).partition("/")[2]
    if shards != sorted(f"{number}/{of}" for number in range(int(of) if of.isdecimal() else 0)):
        raise InputError("all shards of one sweep are needed, each once; these are "
                         f"{choices(shards)}")
    tables = [store.read(folder / "sweep.parquet", "sweep") for folder in folders]
    table = pd.concat(tables, ignore_index=True)
    for column in ("hardware_id", "software_id"):
        if len(found := set(table[column])) > 1:
            raise InputError(f"not merged, for their {column} differs: {choices(sorted(found))}")
    failures = {f"{device} of {folder}": reason for folder, fact in zip(folders, facts, strict=True)
                for device, reason in fact["failures"].items()}
    devices = {device: identity for fact in facts for device, identity in fact["devices"].items()}
    merged = {"started_utc": min(fact["started_utc"] for fact in facts), "notebook": "03_sweep",
              "parameters": facts[0]["parameters"], "failures": failures, "devices": devices}
    target, plan = paths.SWEEPS / name, {**plans[0], "shard": "all"}
    if target.exists():
        if _holds(target / "plan.json", plan) and _holds(target / "sweep.meta.json", merged):
            return target
        raise InputError(f"{target} exists already; give another name (-p name)")
    unfinished = target.with_name(f".{target.name}")
    aggregate.write(table, unfinished, merged)
    store.write_json(plan, unfinished / "plan.json")
    with files.writing(target):
        os.replace(unfinished, target)
    return target


def _holds(path: Path, facts: store.Facts) -> bool:
    """Return whether a JSON file is there and has all of these facts."""
    if not path.exists():
        return False
    found = base.mapping(store.read_json(path), path)
    return all(found.get(name) == value for name, value in facts.items())


def sweep(p: SweepParams) -> aggregate.Sweep:
    """Measure a sweep, merge its shards, or replay one, as ``source`` and ``merge`` say."""
    if p.source == "replay":
        return aggregate.replay(p)
    if p.merge:
        folders = [Path(path) for path in sorted(glob.glob(p.merge))]
        if not folders:
            raise InputError(f"03_sweep: merge = {p.merge!r} is no folder of a shard, and no "
                             "pattern of such folders")
        return aggregate.read(merge(folders, p.name or "merged"))
    return aggregate.read(measure_sweep(p))
