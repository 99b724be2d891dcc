"""A scheduling problem read from CSV files: times, devices, and if there are any, jobs and actual times."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import input_tables
from lib.errors import InputError, choices
from lib.schedule.energy import SOURCES
from lib.schedule.problem import PER_TYPE, Fleet, JobEnergy, Jobs, Problem, is_cpu
from lib.tables import TABLES, Column

MOST_DEVICES = 1_000_000
_SHORTEST_S = 1e-9


def read(times: Path, devices: Path, jobs: Path | None = None, actual: Path | None = None,
         energy: Path | None = None) -> Problem:
    """Read a problem: ``times.csv`` (``job_id``, a column a device type), ``devices.csv``, if given jobs, actual times, energy.

    Raises InputError, in one line that names the file, for what is wrong in it.
    """
    fleet = read_fleet(devices)
    ids, predicted_s = _read_times(times, fleet)
    actual_s = predicted_s
    if actual is not None:
        in_table, table = _read_times(actual, fleet)
        actual_s = table[rows_of(ids, in_table, actual, times)]
    joules = None
    if energy is not None:
        in_table, own = read_energy(energy, fleet.types)
        rows = rows_of(ids, in_table, energy, times)
        joules = JobEnergy(own.joules[rows], tuple(own.sources[row] for row in rows))
    if jobs is None:
        return Problem(replace(Jobs.plain(len(ids)), ids=tuple(ids)), fleet, predicted_s, actual_s, energy=joules)
    table = read_jobs(jobs)
    lacking = sorted(set(ids) ^ set(table["job_id"]))
    if lacking:
        raise InputError(f"{jobs} and {times} do not name the same jobs: {choices(lacking[:5])}")
    own_jobs = jobs_of(table.set_index("job_id", drop=False).loc[ids])
    return Problem(own_jobs, fleet, predicted_s, actual_s, energy=joules)


def rows_of(ids: Sequence[str], known: Sequence[str], path: Path, other: Path | str) -> list[int]:
    """Return the row of each id among those of ``path``; InputError names those of ``other`` that it lacks."""
    row = {name: number for number, name in enumerate(known)}
    lacking = [name for name in ids if name not in row]
    if lacking:
        raise InputError(f"{path} lacks jobs of {other}: {choices(lacking[:5])}")
    return [row[name] for name in ids]


def read_energy(path: Path, types: Sequence[str]) -> tuple[list[str], JobEnergy]:
    """Read ``energy.csv``: ``job_id``, joules in a column a device type, and how they are known (``source``, or measured).

    Returns ids and energy, NaN where a cell is empty. Raises InputError naming the row that is wrong.
    """
    if "source" in types:
        raise InputError(f"{path}: source is the column that says how energy is known; no device type can have that name")
    joules = tuple(Column(name, "float", "joules on this device type; empty: not known", 0, empty=True) for name in types)
    source = Column("source", "text", "how the joules are known", of=SOURCES, default=SOURCES[0])
    table = input_tables.read(path, (TABLES["jobs"][0], *joules, source), others=True)
    sources = table["source"].where(table["source"] != "", SOURCES[0])
    wrong = ~sources.isin(SOURCES)
    if wrong.any():
        raise InputError(f"{path}: source of {table['job_id'][wrong].iloc[0]!r} is {sources[wrong].iloc[0]!r}: it is one of "
                         f"{choices(SOURCES)}")
    return table["job_id"].tolist(), JobEnergy(table[list(types)].to_numpy(float), tuple(sources))


def read_jobs(path: Path) -> pd.DataFrame:
    """Read ``jobs.csv`` (table ``jobs``); InputError names the row that is wrong."""
    return input_tables.read(path, TABLES["jobs"])


def jobs_of(table: pd.DataFrame) -> Jobs:
    """Return the jobs of a table ``jobs``: alike are those of one workload, or of one notebook."""
    columns = {name: table[name].to_numpy(float) for name in ("arrival_s", "deadline_s", "memory_mb", "cpu_cores")}
    alike = table["workload_id"].where(table["workload_id"] != "", table["notebook"])
    return Jobs(tuple(table["job_id"]), **columns, job_class=pd.factorize(alike.where(alike != ""))[0])


def read_fleet(path: Path) -> Fleet:
    """Read ``devices.csv`` (table ``devices``). A row is a group of equal devices; groups of one type must agree.

    CPU types (``cpu...``) give the host's cores: count x cpu_cores. Raises InputError.
    """
    table = input_tables.read(path, TABLES["devices"])
    if table["count"].sum() > MOST_DEVICES:
        raise InputError(f"{path}: count is at most {MOST_DEVICES:,} in all")
    swapped = table["idle_w"] > table["busy_w"]
    if swapped.any():
        row = table[swapped].iloc[0]
        raise InputError(f"{path}: {row['device']!r} draws {row['idle_w']:g} W when idle and {row['busy_w']:g} W at work; "
                         "idle_w is at most busy_w")
    groups = table.groupby("type", sort=False)
    for name in PER_TYPE:
        differing = groups[name].nunique(dropna=False) - 1
        if differing.any():
            raise InputError(f"{path}: devices of type {differing.idxmax()!r} differ in {name}; what differs is another type")
    types, counts = tuple(dict.fromkeys(table["type"])), groups["count"].sum().to_numpy()
    names = [name for device, count in zip(table["device"], table["count"], strict=True)
             for name in ([f"{device}[{number}]" for number in range(count)] if count > 1 else [device] * count)]
    doubled = [name for name, times in Counter(names).items() if times > 1]
    if doubled:
        raise InputError(f"{path}: two devices would be called {doubled[0]!r}; give the groups other names")
    type_of = np.repeat([types.index(device_type) for device_type in table["type"]], table["count"])
    columns = {name: groups[name].first().to_numpy(float) for name in PER_TYPE}
    cpu = [number for number, device_type in enumerate(types) if is_cpu(device_type)]
    own = counts[cpu] * columns["cpu_cores"][cpu]
    host_cores = float(own.sum()) if len(own) and np.isfinite(own).all() else np.inf
    return Fleet(tuple(names), type_of, types, **columns, host_cores=host_cores)


def _read_times(path: Path, fleet: Fleet) -> tuple[list[str], np.ndarray]:
    """Return the ids of a file of times, and the times (jobs, types), inf where there is none."""
    seconds = tuple(Column(name, "float", "seconds on this device type; empty: cannot run", _SHORTEST_S, empty=True)
                    for name in fleet.types)
    table = input_tables.read(path, (TABLES["jobs"][0], *seconds), others=True)
    return table["job_id"].tolist(), table[list(fleet.types)].fillna(np.inf).to_numpy(float)
