"""Shards of one sweep, measured apart, such as by the tasks of a cluster: checked, and merged to the table of one sweep."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from lib import files, locks, paths, store
from lib.config import base
from lib.errors import InputError, beginning, choices, entry
from lib.measure import machine
from lib.measure.operators import aggregate
from lib.measure.operators.points import timings
from lib.work.graph import spaces

_MOST_CHECKED = 5000  # points that are not there, of each of which it is found out whether it is valid (4 ms each)


@dataclass(frozen=True)
class Shard:
    """One measured shard: its folder, its plan, which of how many it is, its provenance and its table."""

    folder: Path
    plan: store.Facts
    pair: tuple[int, int]
    facts: store.Facts
    table: pd.DataFrame


def _read(folder: Path) -> Shard:
    """Read a shard; InputError where it is no sweep, not finished, or itself merged."""
    for name in ("plan.json", "sweep.parquet", "sweep.meta.json"):
        if not (folder / name).is_file():
            raise InputError(f"{folder} has no {name}: it is no sweep that has ended; measure it again by the same line")
    plan, facts = (base.mapping(store.read_json(folder / name), folder / name) for name in ("plan.json", "sweep.meta.json"))
    try:
        number, of = map(int, str(plan.get("shard", "")).split("/"))
    except ValueError:
        raise InputError(f"{folder} is no shard of a sweep: its plan says shard = {plan.get('shard')!r}") from None
    return Shard(folder, plan, (number, of), facts, store.read(folder / "sweep.parquet", "sweep"))


def _check(shards: Sequence[Shard]) -> None:
    """Raise InputError unless these are all shards of one sweep, each once, measured on equal machines with equal software."""
    first = shards[0]
    for shard in shards[1:]:
        names = sorted({*first.plan, *shard.plan} - {"shard"})
        differing = [name for name in names if first.plan.get(name) != shard.plan.get(name)]
        if differing:
            raise InputError(f"{first.folder} and {shard.folder} are of different sweeps: they differ in {choices(differing)}")
    for name in ("hardware_id", "software_id"):
        owners = {key: shard.folder for shard in shards for key in shard.table[name].unique()}
        if len(owners) > 1:
            raise InputError(f"not merged, for their {name} differs: " + choices(f"{key} in {folder}" for key, folder in
                                                                                 owners.items()))
    of, places = first.pair[1], {}
    for shard in shards:
        if shard.pair[1] != of:
            raise InputError(f"shards overlap: {first.folder} is one of {of}, {shard.folder} one of {shard.pair[1]}")
        if other := places.get(shard.pair[0]):
            raise InputError(f"shards overlap: {other} and {shard.folder} are both {shard.plan['shard']}")
        places[shard.pair[0]] = shard.folder
    if absent := [f"{number}/{of}" for number in range(of) if number not in places]:
        raise InputError(f"shards {choices(absent)} are missing; measure them, or name their folders too")


def _missing(shard: Shard) -> int:
    """Return how many valid points of its share of a grid a shard has not measured, on the kind of device that lacks most.

    Where more than _MOST_CHECKED are not there, those beyond are counted as valid. 0 for a sampled sweep, which ends anywhere.
    """
    plan = shard.plan
    if not plan.get("grid"):
        return 0
    with beginning(str(shard.folder)):
        grid = entry(spaces.load_sweeps().grids, plan["grid"], "grid", "here")
    points = {point.key: point for config in spaces.product(grid, plan["seed"], shard.pair)
              for point in (replace(config, **way) for way in timings(plan["latency_type"], plan["cache"]))}
    kinds = {}
    for device, part in shard.table.groupby("device"):
        identity = base.mapping(shard.facts.get("devices"), f"{shard.folder}/sweep.meta.json: devices").get(device)
        hardware = identity.get("hardware") if isinstance(identity, dict) else None
        if not isinstance(hardware, dict) or not isinstance(hardware.get("gpus"), list):
            raise InputError(f"{shard.folder}/sweep.meta.json lacks the hardware of {device}")
        kinds.setdefault(machine.kind(str(device), hardware), set()).update(part["config"])
    absent = max((points.keys() - keys for keys in kinds.values()), key=len, default=points.keys())
    return len(absent) - sum(not _valid(points[key]) for key in sorted(absent)[:_MOST_CHECKED])


def _valid(config: spaces.Config) -> bool:
    try:
        config.ops()
    except InputError:
        return False
    return True


def merge(folders: Sequence[Path], name: str) -> Path:
    """Merge the shards of a sweep into ``data/sweeps/<name>``; return that folder.

    The table has exactly the rows of the shards; their raw files lie beside it. Points that a shard misses are counted among
    the sweep's failures. Raises InputError, and writes nothing, for
    shards that overlap, are missing, or belong to different sweeps, machines or software.
    """
    shards = sorted((_read(folder) for folder in folders), key=lambda shard: shard.pair)
    _check(shards)
    table = pd.concat([shard.table for shard in shards], ignore_index=True)
    if (twice := table[table.duplicated(["device", "config"])]).size:
        raise InputError(f"shards overlap: {len(twice)} configurations are in two of them, such as {twice['config'].iloc[0]}")
    missing = {shard.plan["shard"]: count for shard in shards if (count := _missing(shard))}
    failures = {f"{device} of shard {shard.plan['shard']}": reason for shard in shards
                for device, reason in shard.facts.get("failures", {}).items()}
    facts = {"notebook": "03_sweep", "started_utc": min(str(shard.facts.get("started_utc", "")) for shard in shards),
             "parameters": shards[0].facts.get("parameters", {}),
             "devices": {device: identity for shard in shards for device, identity in shard.facts["devices"].items()},
             "failures": failures | {f"shard {shard}": f"shard {shard} misses {count} points: repeat the command that "
                                     "measured it"
                                     for shard, count in missing.items()}}
    target = paths.SWEEPS / name
    with locks.writer(target), files.writing(target):
        if target.exists():
            raise InputError(f"{target} exists already; give another name")
        with tempfile.TemporaryDirectory(dir=paths.SWEEPS, prefix=".merging-") as scratch:
            folder = Path(scratch) / name
            for shard in shards:
                for raw in sorted(path.parent for path in shard.folder.glob("*/repeats.csv")):
                    shutil.copytree(raw, folder / f"{raw.name}.{shard.pair[0]}-of-{shard.pair[1]}")
            store.write_json({**shards[0].plan, "shard": "all"}, folder / "plan.json")
            aggregate.write(table, folder, facts)
            folder.rename(target)
    return target
