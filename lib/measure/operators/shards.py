"""Shards of one sweep, measured apart, such as by the tasks of a cluster, become the table of one sweep."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lib import files, locks, paths, store
from lib.config import base
from lib.errors import InputError, choices
from lib.measure.operators import aggregate

_FILES = ("plan.json", "sweep.parquet", "sweep.meta.json")


def merge(folders: Sequence[Path], name: str) -> Path:
    """Join the shards of a sweep into ``data/sweeps/<name>``; return that folder.

    The table has exactly the rows of the shards; their raw files lie beside it. Raises InputError,
    and writes nothing, for shards that are missing or doubled, or that belong to different sweeps,
    machines or software.
    """
    for folder, part in [(folder, part) for folder in folders for part in _FILES]:
        if not (folder / part).is_file():
            raise InputError(f"{folder} has no {part}: it is no sweep that has ended; "
                             "measure it again by the same line")
    plans = [base.mapping(store.read_json(folder / "plan.json"), folder) for folder in folders]
    facts = [base.mapping(store.read_json(folder / "sweep.meta.json"), folder) for folder in folders]
    tables = [store.read(folder / "sweep.parquet", "sweep") for folder in folders]
    _check_plans(folders, plans)
    table = pd.concat(tables, ignore_index=True)
    if table.duplicated(["device", "config"]).any():
        raise InputError("shards overlap: a configuration is in two of them")
    for column in ("hardware_id", "software_id"):
        owners = {key: folder for folder, part in zip(folders, tables, strict=True) for key in part[column]}
        if len(owners) > 1:
            raise InputError(f"not merged, for their {column} differs: "
                             + choices(f"{key} in {folder}" for key, folder in owners.items()))
    failures = {f"{device} of {folder}": reason for folder, fact in zip(folders, facts, strict=True)
                for device, reason in fact.get("failures", {}).items()}
    joined = {"notebook": "03_sweep", "parameters": facts[0].get("parameters", {}), "failures": failures,
              "started_utc": min(str(fact.get("started_utc", "")) for fact in facts),
              "devices": {device: identity for fact in facts for device, identity in fact["devices"].items()}}
    target = paths.SWEEPS / name
    with locks.writer(target), files.writing(target):
        if target.exists():
            raise InputError(f"{target} exists already; give another name")
        with tempfile.TemporaryDirectory(dir=paths.SWEEPS, prefix=".merging-") as scratch:
            new = Path(scratch) / name
            for folder, plan in zip(folders, plans, strict=True):
                for raw in sorted(path.parent for path in folder.glob("*/repeats.csv")):
                    shutil.copytree(raw, new / f"{raw.name}.{plan['shard'].replace('/', '-of-')}")
            store.write_json({**plans[0], "shard": "all"}, new / "plan.json")
            aggregate.write(table, new, joined)
            new.rename(target)
    return target


def _check_plans(folders: Sequence[Path], plans: Sequence[store.Facts]) -> None:
    """Raise InputError unless these are all shards of one sweep, each once."""
    shards = [str(plan.get("shard")) for plan in plans]
    of = shards[0].partition("/")[2]
    for folder, plan, shard in zip(folders, plans, shards, strict=True):
        differing = [key for key in sorted({*plans[0], *plan} - {"shard"}) if plans[0].get(key) != plan.get(key)]
        if differing:
            raise InputError(f"{folders[0]} and {folder} are of different sweeps: they differ in {choices(differing)}")
        if shard.partition("/")[2] != of or not of.isdecimal() or shards.count(shard) > 1:
            raise InputError(f"shards overlap: {folder} is {shard}, among {choices(shards)}")
    if absent := {f"{number}/{of}" for number in range(int(of))} - set(shards):
        raise InputError(f"shards {choices(sorted(absent))} are missing; measure them, or name their folders too")
