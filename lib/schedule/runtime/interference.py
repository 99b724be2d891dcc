"""Measures how jobs slow each other down on this machine: each workload alone, and beside every other."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.progress import track
from lib.schedule.contention import ALONE
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, Spawn, device_type_of
from lib.tables import columns

FOLDER = "contention"
_CALL = "lib.schedule.runtime.tasks:paced"
_LEAST_S, _STEPS = 0.6, 4.5  # how long a pair is watched: so many steps of the slower one
_AHEAD_S = 0.02
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class _Side:
    """One side of a pair: a slot and the workload that it trains."""

    slot: Slot
    workload_id: str

    @property
    def name(self) -> tuple[str, str]:
        """Return the workload and the device type of the slot."""
        return self.workload_id, device_type_of(self.slot.name)


class _Workers:
    """A worker a slot, which train something for some time, all at once."""

    def __init__(self, slots: Sequence[Slot], spawn: Spawn):
        self._workers = {slot.name: spawn(slot, Limits()) for slot in slots}
        self._messages: dict[str, list[tuple[Any, ...]]] = {name: [] for name in self._workers}
        for name in self._workers:
            self._wait_for(name, "ready")

    def _wait_for(self, name: str, wanted: str, patience_s: float = _PATIENCE_S) -> tuple[Any, ...]:
        worker, until = self._workers[name], time.monotonic() + patience_s
        while time.monotonic() < until:
            self._messages[name] += worker.messages()
            while self._messages[name]:
                message = self._messages[name].pop(0)
                if message[0] in ("failed", "died"):
                    raise InputError(f"the slot {name} could not measure: {message[-1]}")
                if message[0] == wanted:
                    return message
            pipe = getattr(worker, "pipe", None)
            wait([pipe], 0.05) if isinstance(pipe, Connection) else time.sleep(0.005)
        raise InputError(f"the slot {name} did not answer within {patience_s:g} s")

    def step_s(self, sides: Sequence[_Side], seconds: float) -> list[float]:
        """Return the seconds of a step of each side, all at work in the same time."""
        at_s = time.monotonic() + _AHEAD_S
        for side in sides:
            self._workers[side.slot.name].send("run", "pair", _CALL, {"workload_id": side.workload_id, "seconds": seconds,
                                                                      "at_s": at_s})
        return [self._wait_for(side.slot.name, "done")[2]["step_s"] for side in sides]

    def shut_down(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.send("end")
            worker.shut_down()


@contextmanager
def _started(slots: Sequence[Slot], spawn: Spawn) -> Iterator[_Workers]:
    workers = _Workers(slots, spawn)
    try:
        yield workers
    finally:
        workers.shut_down()


def _measured_slots(slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots that are measured: the first two of the CPU, and the first of every other type."""
    first = {device_type_of(slot.name): slot for slot in reversed(slots)}
    cpus = [slot for slot in slots if device_type_of(slot.name) == "cpu"][:2]
    measured = [*cpus, *(slot for device_type, slot in first.items() if device_type != "cpu")]
    if len(measured) < 2:
        raise InputError(f"contention needs two slots; there is {choices(slot.name for slot in slots) or 'none'}")
    return measured


def measure(slots: Sequence[Slot], workloads: Sequence[str], rounds: int = 3, spawn: Spawn = ProcessWorker) -> pd.DataFrame:
    """Return the table ``contention``: a row a workload, a type of slot, and what ran beside it.

    Every case is visited once a round, in random order; a slowdown is the median over rounds of a step's time over that
    alone, in the same round. Workers live through all of it. Raises InputError for fewer than two slots, no round, no workload.
    """
    if rounds < 1 or not workloads:
        raise InputError(f"contention needs a round and a workload at least, not {rounds} rounds of {len(workloads)} workloads")
    measured = _measured_slots(slots)
    sides = [_Side(slot, name) for slot in measured for name in workloads]
    with _started(measured, spawn) as workers:
        once = {side: workers.step_s([side], 1e-3)[0] for side in track(sides, "set-up")}
        cases = [(side,) for side in sides] + [(a, b) for a, b in itertools.combinations(sides, 2) if a.slot != b.slot]
        draw, rows = np.random.default_rng(0), []
        for number in range(rounds):
            for visit in track(draw.permutation(len(cases)).tolist(), f"round {number + 1}"):
                case = cases[visit]
                seconds = max(_LEAST_S, _STEPS * max(once[side] for side in case))
                for side, step_s in zip(case, workers.step_s(case, seconds), strict=True):
                    other = next((one for one in case if one != side), None)
                    rows.append((number, *side.name, *(other.name if other else ALONE), step_s))
    return _summary(pd.DataFrame(rows, columns=["round", "workload_id", "device_type", "beside", "beside_type", "step_s"]))


def _summary(visits: pd.DataFrame) -> pd.DataFrame:
    from lib.measure import machine

    key = ["workload_id", "device_type"]
    alone = visits[visits["beside"] == ALONE[0]].groupby([*key, "round"])["step_s"].median().rename("alone_s")
    joined = visits.join(alone, on=[*key, "round"])
    joined["slowdown"] = joined["step_s"] / joined["alone_s"]
    groups = joined.groupby([*key, "beside", "beside_type"], sort=True)
    table = groups.agg(step_ms=("step_s", lambda values: 1e3 * values.median()), slowdown=("slowdown", "median"),
                       slowdown_low=("slowdown", "min"), slowdown_high=("slowdown", "max"), n=("step_s", "size")).reset_index()
    ids = machine.ids()
    return table.assign(hardware_id=ids["hardware_id"], software_id=ids["software_id"])[columns("contention")]


def text(table: pd.DataFrame) -> str:
    """Return how much each workload is slowed down, and by which most, a line each."""
    beside, lines = table[table["beside"] != ALONE[0]], []
    alone = table[table["beside"] == ALONE[0]].set_index(["workload_id", "device_type"])["step_ms"]
    for (name, device_type), part in beside.groupby(["workload_id", "device_type"]):
        worst = part.loc[part["slowdown"].idxmax()]
        lines.append(f"{name} on {device_type}: {alone[name, device_type]:,.1f} ms a step alone, "
                     f"{part['slowdown'].median():.2f} times as long beside another, {worst['slowdown']:.2f} beside "
                     f"{worst['beside']}")
    return "\n".join(lines)


def write(table: pd.DataFrame, folder: Path = paths.DATA / FOLDER) -> Path:
    """Write a measured table beside earlier ones; return its file."""
    name = store.fresh_name("contention", lambda name: (folder / f"{name}.csv").exists())
    path = store.write(table, folder / f"{name}.csv", "contention")
    store.write_meta(path, "contention")
    return path


def read(path: Path) -> pd.DataFrame:
    """Read a measured table back; InputError for a case that is there twice, or lacks its time alone, and for a time of 0."""
    table = store.read(path, "contention")
    case, key = ["workload_id", "device_type", "beside", "beside_type"], ["workload_id", "device_type"]
    doubled, alone = table[table.duplicated(case)], table[table["beside"] == ALONE[0]]
    lacking = set(table[key].itertuples(index=False, name=None)) - set(alone[key].itertuples(index=False, name=None))
    if len(doubled):
        raise InputError(f"{path}: {choices(doubled[case].iloc[0])} is there twice; each case has one row")
    if lacking:
        raise InputError(f"{path}: {choices(min(lacking))} has no row of what it takes beside {ALONE[0]}")
    if not (table[["step_ms", "slowdown"]] > 0).all(axis=None):
        raise InputError(f"{path}: a step_ms or a slowdown is 0; both are above it")
    return table


def newest(hardware_id: str, folder: Path = paths.DATA / FOLDER) -> pd.DataFrame | None:
    """Return the newest table that was measured on this hardware, None if there is none."""
    for path in sorted(folder.glob("*.csv"), key=lambda path: (len(path.stem), path.stem), reverse=True):
        table = read(path)
        if set(table["hardware_id"]) == {hardware_id}:
            return table
    return None
