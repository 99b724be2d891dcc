"""Measures how jobs slow each other down on this machine: each workload alone, and beside every other."""

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.progress import track
from lib.schedule.contention import ALONE
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, Spawn, Worker, device_type_of
from lib.tables import columns

FOLDER = "contention"
_CALL = "lib.schedule.runtime.tasks:paced"
_LEAST_S, _STEPS = 0.6, 4.5  # a case is measured for so long, and for so many steps of its slower side
_AHEAD_S = 0.02
_PATIENCE_S = 300.0
_KEY, _BESIDE = ["workload_id", "device_type"], ["beside", "beside_type"]


class _Side(NamedTuple):
    """One side of a case: a slot and the workload that it trains."""

    slot: str
    workload_id: str

    @property
    def name(self) -> tuple[str, str]:
        """Return the workload and the device type of the slot."""
        return self.workload_id, device_type_of(self.slot)


def _answer(name: str, worker: Worker, wanted: str) -> tuple:
    """Wait for a worker's next ``wanted`` message; it has no other to send then."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        for message in worker.messages():
            if message[0] in ("failed", "died"):
                raise InputError(f"the slot {name} could not measure: {message[-1]}")
            if message[0] == wanted:
                return message
        pipe = getattr(worker, "pipe", None)
        wait([pipe], 0.05) if isinstance(pipe, Connection) else time.sleep(0.005)
    raise InputError(f"the slot {name} did not answer within {_PATIENCE_S:g} s")


def _step_s(workers: dict[str, Worker], case: Sequence[_Side], seconds: float) -> list[float]:
    """Return the seconds of a step of each side, all of which run at the same time."""
    at_s = time.monotonic() + _AHEAD_S
    for slot, workload_id in case:
        workers[slot].send("run", "pair", _CALL, {"workload_id": workload_id, "seconds": seconds, "at_s": at_s})
    return [_answer(slot, workers[slot], "done")[2]["step_s"] for slot, _ in case]


@contextmanager
def _started(slots: Sequence[Slot], spawn: Spawn) -> Iterator[dict[str, Worker]]:
    workers = {slot.name: spawn(slot, Limits()) for slot in slots}
    try:
        for name, worker in workers.items():
            _answer(name, worker, "ready")
        yield workers
    finally:
        for worker in workers.values():
            worker.send("end")
            worker.shut_down()


def measure(slots: Sequence[Slot], workloads: Sequence[str], rounds: int = 3, spawn: Spawn = ProcessWorker) -> pd.DataFrame:
    """Return the table ``contention``: one row per workload, type of slot, and what ran beside it.

    Of ``slots`` the first two of the CPU are measured, and the first of every other type. Every case is visited once per round,
    in random order; a slowdown is the median over rounds of a step's time over that alone in the same round. Raises InputError
    for fewer than two slots, no round, no workload.
    """
    if rounds < 1 or not workloads:
        raise InputError(f"contention needs a round and a workload at least, not {rounds} rounds of {len(workloads)} workloads")
    by_type = defaultdict(list)
    for slot in slots:
        by_type[device_type_of(slot.name)].append(slot)
    measured = [*by_type.pop("cpu", [])[:2], *(first for first, *_ in by_type.values())]
    if len(measured) < 2:
        raise InputError(f"contention needs two slots; there is {choices(slot.name for slot in slots) or 'none'}")
    sides = [_Side(slot.name, workload_id) for slot in measured for workload_id in workloads]
    with _started(measured, spawn) as workers:
        once_s = {side: _step_s(workers, [side], 1e-3)[0] for side in track(sides, "set-up")}
        cases = [(side,) for side in sides] + [(a, b) for a, b in itertools.combinations(sides, 2) if a.slot != b.slot]
        draw, rows = np.random.default_rng(0), []
        for number in range(rounds):
            for visit in track(draw.permutation(len(cases)).tolist(), f"round {number + 1}"):
                case = cases[visit]
                steps_s = _step_s(workers, case, max(_LEAST_S, _STEPS * max(once_s[side] for side in case)))
                neighbours = [side.name for side in reversed(case)] if len(case) == 2 else [ALONE]
                rows += [(number, *side.name, *neighbour, step_s)
                         for side, neighbour, step_s in zip(case, neighbours, steps_s, strict=True)]
    return _summary(pd.DataFrame(rows, columns=["round", *_KEY, *_BESIDE, "step_s"]))


def _alone(table: pd.DataFrame) -> pd.Series:
    return table["beside"] == ALONE[0]


def _summary(visits: pd.DataFrame) -> pd.DataFrame:
    from lib.measure import machine

    alone_s = visits[_alone(visits)].groupby([*_KEY, "round"])["step_s"].median().rename("alone_s")
    joined = visits.join(alone_s, on=[*_KEY, "round"])
    joined["slowdown"] = joined["step_s"] / joined["alone_s"]
    table = joined.groupby([*_KEY, *_BESIDE], sort=True).agg(
        step_ms=("step_s", "median"), slowdown=("slowdown", "median"), slowdown_low=("slowdown", "min"),
        slowdown_high=("slowdown", "max"), n=("step_s", "size")).reset_index()
    return table.assign(step_ms=1e3 * table["step_ms"], **machine.ids())[columns("contention")]


def text(table: pd.DataFrame) -> str:
    """Return how much each workload is slowed down, and by which most, one line each."""
    lines, alone_ms = [], table[_alone(table)].set_index(_KEY)["step_ms"]
    for (name, device_type), part in table[~_alone(table)].groupby(_KEY):
        worst = part.loc[part["slowdown"].idxmax()]
        lines.append(f"{name} on {device_type}: {alone_ms[name, device_type]:,.1f} ms a step alone, "
                     f"{part['slowdown'].median():.2f} times as long beside another, {worst['slowdown']:.2f} beside "
                     f"{worst['beside']}")
    return "\n".join(lines)


def write(table: pd.DataFrame, folder: Path = paths.DATA / FOLDER) -> Path:
    """Write a measured table beside earlier ones; return its file."""
    path = store.write(table, store.fresh_file(folder, "contention"), "contention")
    store.write_meta(path, "contention")
    return path


def read(path: Path) -> pd.DataFrame:
    """Read a measured table; InputError for a doubled case, a case without its time alone, and a time of 0."""
    table = store.read(path, "contention")
    doubled = table[table.duplicated([*_KEY, *_BESIDE])]
    cases, alone = (set(part[_KEY].itertuples(index=False, name=None)) for part in (table, table[_alone(table)]))
    if len(doubled):
        raise InputError(f"{path}: {choices(doubled[[*_KEY, *_BESIDE]].iloc[0])} is there twice; each case has one row")
    if cases - alone:
        raise InputError(f"{path}: {choices(min(cases - alone))} has no row of what it takes beside {ALONE[0]}")
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
