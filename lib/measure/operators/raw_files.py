"""The raw files of a sweep on one device: configurations as they are entered, visits and energy loops as they end."""

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from lib import store
from lib.config.base import mapping
from lib.errors import InputError, choices
from lib.tables import columns
from lib.work.graph import spaces
from lib.work.graph.ops import Ops

_TABLES = ("configs", "repeats", "energies")
_MEASURED_ON = "measured_on.json"


def raw_folder(sweep: Path, device: str) -> Path:
    """Return where a sweep keeps the raw files of a device."""
    return sweep / device.replace(":", "-")


def measured_on(folder: Path) -> store.Facts:
    """Return the hardware, software and threads of what is in a raw folder; empty where that is not known."""
    path = folder / _MEASURED_ON
    return mapping(store.read_json(path), path) if path.exists() else {}


def entered_configs(folder: Path, visited: bool = False) -> set[str]:
    """Return the configurations in a raw folder, or only those that were ``visited``."""
    if not (folder / "configs.csv").exists():
        return set()
    entered = store.read(folder / "configs.csv", "configs")
    keys = set(entered.loc[entered["status"] == "ok", "config"])
    return keys & set(store.read(folder / "repeats.csv", "repeats")["config"]) if visited else keys


class RawFiles:
    """The measurements of one device so far, on disk (a CSV of each of _TABLES) and in memory.

    ``configs`` are points by key, ``failed`` reasons by key, ``measured`` keys whose energy is there; ``spent_s`` is what
    earlier calls took. The files are locked from before they are read until ``close``, so that memory and disk agree.
    """

    def __init__(self, folder: Path, device: str):
        self.folder, self.device = folder, device
        with ExitStack() as opened:
            self._files = {}
            for table in _TABLES:
                self._files[table] = store.Appender(folder / f"{table}.csv", table, resume=True)
                opened.callback(self._files[table].close)
            self._read()
            self.close = opened.pop_all().close

    def _read(self) -> None:
        entered, done, loops = (store.read(self.folder / f"{table}.csv", table) for table in _TABLES)
        if foreign := set(done["config"]) - set(entered["config"]):
            raise InputError(f"{self.folder}/repeats.csv holds configurations that configs.csv does not: "
                             f"{choices(sorted(foreign)[:3])}; the folder is no sweep of this project")
        failed = done[done["status"] != "ok"]
        self.skipped = set(entered.loc[entered["status"] == "skipped", "config"])
        self.visits = set(zip(done["config"], done["round"], strict=True))
        self.failed = dict(zip(failed["config"], failed["reason"], strict=True))
        self.measured = set(loops.loc[loops["energy_j"].notna(), "config"])
        self.spent_s = float(done["visit_s"].sum() + loops["loop_s"].sum())
        self.configs: dict[str, spaces.Point] = {}
        for row in entered[entered["status"] == "ok"].to_dict("records"):
            config = spaces.Config(row["op"], tuple(json.loads(row["parameters"]).items()), row["dtype"], row["pass"],
                            row["latency_type"], row["cache"])
            self.configs[row["config"]] = (config, config.ops(self.device))

    def claim(self, facts: store.Facts) -> None:
        """Write down the hardware, software and threads of what is measured into these files.

        Raises InputError where visits are in them that were made on another card, processor, or with other software.
        """
        known = self.visits and (self.folder / _MEASURED_ON).exists()
        before = measured_on(self.folder) if known else facts
        differing = [f"{name} was {before.get(name)!r} and is {facts.get(name)!r}" for name in sorted({*before, *facts})
                     if before.get(name) != facts.get(name)]
        if differing:
            raise InputError(f"{self.folder} cannot be gone on with, {self.device} is another one now: {choices(differing)}; "
                             "give this sweep another name")
        store.write_json(facts, self.folder / _MEASURED_ON)

    def _append(self, table: str, row: store.Facts) -> None:
        self._files[table].append([row[name] for name in columns(table)])

    def enter(self, config: spaces.Config, ops: Ops, skipped: str = "") -> None:
        """Write down a configuration before it is measured, or why it is ``skipped``."""
        flops, moved = spaces.work(ops)
        self._append("configs", {
            "config": config.key, "parameters": json.dumps(dict(config.parameters)), "pass": config.passes, "flops": flops,
            "bytes": moved, "footprint_mb": spaces.footprint(ops) / 1e6, "status": "skipped" if skipped else "ok",
            "reason": skipped, **{name: getattr(config, name) for name in ("op", "dtype", "latency_type", "cache")}})
        if skipped:
            self.skipped.add(config.key)
        else:
            self.configs[config.key] = (config, ops)

    def add(self, key: str, number: int, result: store.Facts) -> None:
        """Write down one visit."""
        self._append("repeats", {"config": key, "round": number, **result})
        self.visits.add((key, number))
        if result["status"] != "ok":
            self.failed[key] = result["reason"]

    def add_energy(self, key: str, result: store.Facts) -> None:
        """Write down one energy loop."""
        self._append("energies", {"config": key, **result})
        if np.isfinite(result["energy_j"]):
            self.measured.add(key)

    @property
    def promising(self) -> set[str]:
        """Return the configurations of which no visit failed."""
        return self.configs.keys() - self.failed.keys()
