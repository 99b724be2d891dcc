"""The raw files of a sweep on one device: configurations as they are entered, visits and energy loops as they end."""

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lib import store
from lib.config.base import mapping
from lib.errors import InputError, choices
from lib.tables import columns
from lib.work.graph import spaces
from lib.work.graph.ops import Op
from lib.work.graph.spaces import Config

_MEASURED_ON = "measured_on.json"


def raw_folder(sweep: Path, device: str) -> Path:
    """Return where a sweep keeps the raw files of a device."""
    return sweep / device.replace(":", "-")


def measured_on(sweep: Path, device: str) -> dict[str, Any]:
    """Return the hardware, software and threads of what a device has in a sweep's folder; empty where that is not known."""
    path = raw_folder(sweep, device) / _MEASURED_ON
    return mapping(store.read_json(path), path) if path.exists() else {}


def entered_configs(sweep: Path, device: str, visited: bool = False) -> set[str]:
    """Return the configurations that a device has in a sweep's folder; only those that it visited where it is there no more."""
    folder = raw_folder(sweep, device)
    if not (folder / "configs.csv").exists():
        return set()
    entered = store.read(folder / "configs.csv", "configs")
    keys = set(entered.loc[entered["status"] == "ok", "config"])
    return keys & set(store.read(folder / "repeats.csv", "repeats")["config"]) if visited else keys


@dataclass
class RawFiles:
    """The measurements of one device so far, on disk (``configs.csv``, ``repeats.csv``, ``energies.csv``) and in memory.

    The files are locked from before they are read until ``close``, so that memory and disk agree.
    """

    folder: Path
    device: str
    configs: dict[str, tuple[Config, tuple[Op, ...]]] = field(default_factory=dict)
    visits: set[tuple[str, int]] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # the reason of each
    skipped: set[str] = field(default_factory=set)
    measured: set[str] = field(default_factory=set)  # whose energy is there
    spent_s: float = 0.0

    def __post_init__(self):
        with ExitStack() as opened:
            self._configs, self._repeats, self._energies = (
                self._appender(opened, name) for name in ("configs", "repeats", "energies"))
            self._read()
            self._opened = opened.pop_all()

    def _appender(self, opened: ExitStack, table: str) -> store.Appender:
        appender = store.Appender(self.folder / f"{table}.csv", table, resume=True)
        opened.callback(appender.close)
        return appender

    def _read(self) -> None:
        entered = store.read(self.folder / "configs.csv", "configs")
        done, loops = (store.read(self.folder / f"{name}.csv", name) for name in ("repeats", "energies"))
        foreign = set(done["config"]) - set(entered["config"])
        if foreign:
            raise InputError(f"{self.folder}/repeats.csv holds configurations that configs.csv does not: "
                             f"{choices(sorted(foreign)[:3])}; the folder is no sweep of this project")
        self.skipped = set(entered.loc[entered["status"] == "skipped", "config"])
        self.visits = set(zip(done["config"], done["round"], strict=True))
        failed = done[done["status"] != "ok"]
        self.failed = dict(zip(failed["config"], failed["reason"], strict=True))
        self.measured = set(loops.loc[loops["energy_j"].notna(), "config"])
        self.spent_s = float(done["visit_s"].sum() + loops["loop_s"].sum())  # by earlier calls
        for row in entered[entered["status"] == "ok"].to_dict("records"):
            config = Config(row["op"], tuple(json.loads(row["parameters"]).items()), row["dtype"], row["pass"],
                            row["latency_type"], row["cache"])
            self.configs[row["config"]] = (config, config.ops(self.device))

    def claim(self, facts: dict[str, Any]) -> None:
        """Write down the hardware, software and threads of what is measured into these files.

        Raises InputError where visits are in them that were made on another card, processor, or with other software.
        """
        path = self.folder / _MEASURED_ON
        before = mapping(store.read_json(path), path) if self.visits and path.exists() else facts
        differing = [f"{name} was {before.get(name)!r} and is {facts.get(name)!r}" for name in sorted({*before, *facts})
                     if before.get(name) != facts.get(name)]
        if differing:
            raise InputError(f"{self.folder} cannot be gone on with, {self.device} is another one now: {choices(differing)}; "
                             "give this sweep another name")
        store.write_json(facts, path)

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
            self.failed[key] = result["reason"]

    def add_energy(self, key: str, result: dict[str, Any]) -> None:
        """Write down one energy loop."""
        row = {"config": key, **result}
        self._energies.append([row[name] for name in columns("energies")])
        if np.isfinite(result["energy_j"]):
            self.measured.add(key)

    @property
    def promising(self) -> set[str]:
        """Return the configurations of which no visit failed."""
        return self.configs.keys() - self.failed.keys()

    def close(self) -> None:
        """Close the files."""
        self._opened.close()
