"""A scheduling problem read from CSV files: times, devices, and perhaps jobs, energy and so on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import input_tables
from lib.errors import InputError, choices
from lib.schedule.energy import SOURCES
from lib.schedule.problem import PER_JOB, PER_TYPE, Fleet, JobEnergy, Jobs, Problem, device_names
from lib.tables import TABLES
from lib.tables.column import Column, choice, number

_MOST_DEVICES = 1_000_000
_SHORTEST_S = 1e-9


def read(times: Path, devices: Path, jobs: Path | None = None, actual: Path | None = None,
         energy: Path | None = None) -> Problem:
    """Read a problem from ``times.csv`` (``job_id``, a column per device type) and other files.

    Raises InputError in one line that names the file.
    """
    fleet = read_fleet(devices)
    table = _read_times(times, fleet)
    ids, predicted_s = list(table.index), table.to_numpy(float)
    actual_s, columns = predicted_s, replace(Jobs.plain(len(ids)), ids=tuple(ids))
    if actual is not None:
        actual_s = _in_order(_read_times(actual, fleet), ids, actual, times).to_numpy(float)
    joules = None if energy is None else _read_energy(energy, fleet.types, ids, times)
    if jobs is not None:
        job_table = read_jobs(jobs)
        if unmatched := sorted(set(ids) ^ set(job_table["job_id"])):
            raise InputError(f"{jobs} and {times} do not name the same jobs: "
                             f"{choices(unmatched[:5])}")
        columns = jobs_of(job_table.set_index("job_id", drop=False).loc[ids])
    return Problem(columns, fleet, predicted_s, actual_s, energy=joules)


def read_high(path: Path, problem: Problem, source: Path) -> np.ndarray:
    """Read ``high.csv``, like ``times.csv``: high ends of 90 % ranges (jobs, types), inf if empty."""
    high_s, ids = _read_times(path, problem.fleet), list(problem.jobs.ids)
    return _in_order(high_s, ids, path, source).to_numpy(float)


def _in_order(table: pd.DataFrame, ids: list[str], path: Path, source: Path) -> pd.DataFrame:
    if missing := [name for name in ids if name not in table.index]:
        raise InputError(f"{path} lacks jobs of {source}: {choices(missing[:5])}")
    return table.loc[ids]


def _read_energy(path: Path, types: Sequence[str], ids: list[str], times: Path) -> JobEnergy:
    """Read joules per device type, NaN where a cell is empty, and how they are known."""
    if "source" in types:
        raise InputError(f"{path}: source is the column that says how energy is known; no device "
                         "type can have that name")
    source = choice("how the joules are known", *SOURCES, default=SOURCES[0])
    joules = number("joules on this device type; empty: not known", empty=True)
    table = _read_by_type(path, types, joules, {"source": source})
    rows = _in_order(table, ids, path, times)
    return JobEnergy(rows[list(types)].to_numpy(float), tuple(rows["source"]))


def read_jobs(path: Path) -> pd.DataFrame:
    """Read ``jobs.csv`` (table ``jobs``); InputError names the wrong row."""
    return input_tables.read(path, TABLES["jobs"]).fillna({"deadline_s": np.inf})


def jobs_of(table: pd.DataFrame) -> Jobs:
    """Return the jobs of a table ``jobs``; jobs of one workload or one notebook are of one class."""
    classes = table["workload_id"].where(table["workload_id"] != "", table["notebook"])
    columns = {name: table[name].to_numpy(float) for name in PER_JOB}
    return Jobs(tuple(table["job_id"]), **columns, devices=table["devices"].to_numpy(int),
                job_class=pd.factorize(classes.where(classes != ""))[0])


def read_fleet(path: Path) -> Fleet:
    """Read ``devices.csv`` (table ``devices``); a row is a group of equal devices.

    CPU types (``cpu...``) give the host's cores: count x cpu_cores. Raises InputError, also where
    groups of one type differ.
    """
    table = input_tables.read(path, TABLES["devices"])
    if table["count"].sum() > _MOST_DEVICES:
        raise InputError(f"{path}: count is at most {_MOST_DEVICES:,} in all")
    for row in table[table["idle_w"] > table["busy_w"]].itertuples():
        raise InputError(f"{path}: {row.device!r} draws {row.idle_w:g} W when idle and "
                         f"{row.busy_w:g} W at work; idle_w is at most busy_w")
    groups = table.groupby("type", sort=False)
    for name in PER_TYPE:
        values = groups[name].nunique(dropna=False)
        if (values > 1).any():
            raise InputError(f"{path}: devices of type {values.idxmax()!r} differ in {name}; what "
                             "differs is another type")
    names = device_names(zip(table["device"], table["count"], strict=True))
    for name in [name for name, times in Counter(names).items() if times > 1]:
        raise InputError(f"{path}: two devices would be called {name!r}; give the groups other "
                         "names")
    type_of, types = pd.factorize(table["type"])
    fleet = Fleet(names, np.repeat(type_of, table["count"]), tuple(types),
                  **{name: groups[name].first().to_numpy(float) for name in PER_TYPE})
    cpu_cores = (fleet.counts * fleet.cpu_cores)[fleet.cpu]
    if not len(cpu_cores) or np.isnan(cpu_cores).any():
        return fleet
    return replace(fleet, host_cores=float(cpu_cores.sum()))


def _read_times(path: Path, fleet: Fleet) -> pd.DataFrame:
    seconds = number("seconds on this device type; empty: cannot run", least=_SHORTEST_S, empty=True)
    table = _read_by_type(path, fleet.types, seconds, {})
    return table[list(fleet.types)].fillna(np.inf)


def _read_by_type(path: Path, types: Sequence[str], column: Column,
                  more: Mapping[str, Column]) -> pd.DataFrame:
    """Return by job a number per device type, NaN where a cell is empty, and ``more`` columns."""
    if "job_id" in types:
        raise InputError(f"{path}: 'job_id' is the column of ids; no device type can have that name")
    columns = {"job_id": TABLES["jobs"]["job_id"], **dict.fromkeys(types, column), **more}
    return input_tables.read(path, columns, others=True).set_index("job_id")
