"""A scheduling problem: jobs, devices, and how long each job is said to take, and really takes, on each type of device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib.errors import InputError, choices

_JOB_COLUMNS = ("job_id", "workload_id", "notebook", "steps", "arrival_s", "deadline_s", "memory_mb", "cpu_cores")
_DEVICE_NUMBERS = ("memory_mb", "cpu_cores", "idle_w", "busy_w", "setup_s", "price_per_hour")
MOST_DEVICES = 1_000_000


@dataclass(frozen=True)
class Jobs:
    """Jobs as aligned columns; ``kind`` says which are alike (the same workload), -1 where nothing is known."""

    ids: tuple[str, ...]
    arrival_s: np.ndarray
    deadline_s: np.ndarray  # inf: none
    memory_mb: np.ndarray
    cpu_cores: np.ndarray
    kind: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def plain(cls, count: int, arrival_s: np.ndarray | None = None, kind: np.ndarray | None = None) -> "Jobs":
        """Return ``count`` jobs that need no memory and no cores, all there at 0 s unless ``arrival_s`` says otherwise."""
        nothing = np.zeros(count)
        return cls(tuple(map(str, range(count))), nothing if arrival_s is None else np.asarray(arrival_s, float),
                   np.full(count, np.inf), nothing, nothing, np.full(count, -1) if kind is None else np.asarray(kind, int))


@dataclass(frozen=True)
class Fleet:
    """Devices of several types. Numbers are per type; NaN where not known.

    ``host_cores`` are those that jobs on other devices than the CPU draw from, as they run, in competition with CPU slots.
    """

    names: tuple[str, ...]
    type_of: np.ndarray
    types: tuple[str, ...]
    memory_mb: np.ndarray
    cpu_cores: np.ndarray
    idle_w: np.ndarray
    busy_w: np.ndarray
    setup_s: np.ndarray
    price_per_hour: np.ndarray
    host_cores: float = np.inf

    def __len__(self) -> int:
        return len(self.names)

    @property
    def counts(self) -> np.ndarray:
        """Return the number of devices of each type."""
        return np.bincount(self.type_of, minlength=len(self.types))

    def is_cpu(self, place: int) -> bool:
        """Return whether a type is a CPU (its name starts with ``cpu``)."""
        return self.types[place].startswith("cpu")

    def among(self, devices: Sequence[int]) -> tuple["Fleet", np.ndarray]:
        """Return the fleet of some of the devices, and which of the types these are of."""
        types, type_of = np.unique(self.type_of[devices], return_inverse=True)
        numbers = {name: getattr(self, name)[types] for name in _DEVICE_NUMBERS}
        return replace(self, names=tuple(self.names[device] for device in devices), type_of=type_of,
                       types=tuple(self.types[place] for place in types), **numbers), types

    @classmethod
    def of(cls, counts: dict[str, int], **numbers: Sequence[float]) -> "Fleet":
        """Return a fleet of ``{type: count}``; ``numbers`` are per type, in that order."""
        types, places = tuple(counts), np.repeat(np.arange(len(counts)), list(counts.values()))
        names = tuple(f"{name}[{number}]" if count > 1 else name for name, count in counts.items() for number in range(count))
        columns = {name: np.asarray(numbers.get(name, np.full(len(types), 0.0 if name == "setup_s" else np.nan)), float)
                   for name in _DEVICE_NUMBERS}
        return cls(names, places, types, **columns)


@dataclass(frozen=True)
class Problem:
    """What a policy is asked about. Times are in seconds, (jobs, types); inf: cannot run there.

    ``sigma`` is the spread of the predictions in log time, 0 where they are said to be exact.
    """

    jobs: Jobs
    fleet: Fleet
    predicted_s: np.ndarray
    actual_s: np.ndarray
    sigma: float = 0.0

    def __post_init__(self):
        check(self)

    @property
    def told_s(self) -> np.ndarray:
        """Return the predicted seconds (jobs, types), inf wherever a job cannot run: what a policy is told."""
        return np.where(feasible(self), self.predicted_s, np.inf)

    def said(self, predicted_s: np.ndarray, sigma: float = 0.0) -> "Problem":
        """Return the same problem with other predictions."""
        return replace(self, predicted_s=predicted_s, sigma=sigma)


def check(problem: Problem) -> None:
    """Refuse what cannot be scheduled; InputError names the first job or device that is wrong."""
    jobs, fleet = problem.jobs, problem.fleet
    if not len(fleet):
        raise InputError("there is no device: devices need a count of at least 1")
    if not len(jobs):
        raise InputError("there is no job")
    _check_lengths(jobs, fleet)
    if len(set(jobs.ids)) < len(jobs):
        seen: set[str] = set()
        raise InputError(f"job {next(name for name in jobs.ids if name in seen or seen.add(name))!r} is there twice")
    for what, table in (("predicted", problem.predicted_s), ("actual", problem.actual_s)):
        if table.shape != (len(jobs), len(fleet.types)):
            raise InputError(f"{what} times are {table.shape}, there are {len(jobs)} jobs and {len(fleet.types)} device types")
        bad = np.isnan(table) | (table <= 0)
        if bad.any():
            job, place = map(int, np.argwhere(bad)[0])
            raise InputError(f"the {what} time of job {jobs.ids[job]!r} on {fleet.types[place]!r} is {table[job, place]}: "
                             "it is a positive number of seconds, or empty where the job cannot run")
    able = feasible(problem)
    if not able.any(axis=1).all():
        job = int(np.argmin(able.any(axis=1)))
        timed = [name for name, time in zip(fleet.types, problem.actual_s[job], strict=True) if np.isfinite(time)]
        raise InputError(f"no device can run job {jobs.ids[job]!r}: it has a time on {choices(timed) or 'none'} and needs "
                         f"{jobs.memory_mb[job]:,.0f} MB and {jobs.cpu_cores[job]:g} cores")
    for what, column in (("arrival_s", jobs.arrival_s), ("memory_mb", jobs.memory_mb), ("cpu_cores", jobs.cpu_cores)):
        if not (np.isfinite(column) & (column >= 0)).all():
            job = int(np.argmin(np.isfinite(column) & (column >= 0)))
            raise InputError(f"{what} of job {jobs.ids[job]!r} is {column[job]}: it is a number, 0 or more")


def _check_lengths(jobs: Jobs, fleet: Fleet) -> None:
    """Refuse columns that are not aligned: a compiled loop would read beyond them."""
    for name in ("arrival_s", "deadline_s", "memory_mb", "cpu_cores", "kind"):
        if len(getattr(jobs, name)) != len(jobs):
            raise InputError(f"{name} holds {len(getattr(jobs, name))} values, there are {len(jobs)} jobs")
    if len(fleet.type_of) != len(fleet) or not ((fleet.type_of >= 0) & (fleet.type_of < len(fleet.types))).all():
        raise InputError(f"type_of gives each of the {len(fleet)} devices the number of its type, 0 to {len(fleet.types) - 1}")


def feasible(problem: Problem) -> np.ndarray:
    """Return (jobs, types): whether a job has both times there, fits the memory, and its cores exist."""
    fleet, jobs = problem.fleet, problem.jobs
    memory = np.where(np.isnan(fleet.memory_mb), np.inf, fleet.memory_mb)
    cpu = np.array([fleet.is_cpu(place) for place in range(len(fleet.types))])
    fits = jobs.memory_mb[:, None] <= memory[None]
    cores = np.where(cpu[None], np.nan_to_num(fleet.cpu_cores)[None], jobs.cpu_cores[:, None]) <= fleet.host_cores
    return np.isfinite(problem.predicted_s) & np.isfinite(problem.actual_s) & fits & cores & (fleet.counts > 0)[None]


# ------------------------------------------------------------------------------------------------------ files


def _table(path: Path, needed: Sequence[str], allowed: Sequence[str] | None = None) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, dtype={"job_id": str, "device": str, "type": str, "workload_id": str, "notebook": str},
                            skipinitialspace=True)
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} is not a readable CSV: {error}") from None
    table.columns = [str(name).strip() for name in table.columns]
    missing = [name for name in needed if name not in table]
    unknown = [name for name in table if allowed is not None and name not in allowed]
    if missing or unknown:
        raise InputError(f"{path}: missing columns [{choices(missing)}], unknown [{choices(unknown)}]; it takes: "
                         f"{choices(allowed or [*needed, 'a column a device type'])}")
    if not len(table):
        raise InputError(f"{path} has no row")
    return table


def _numbers(table: pd.DataFrame, name: str, path: Path, empty: float, key: str) -> np.ndarray:
    """Return a column of numbers, ``empty`` where there is none; InputError names the row."""
    if name not in table:
        return np.full(len(table), empty)
    values = pd.to_numeric(table[name], errors="coerce")
    wrong = values.isna() & table[name].notna() | np.isinf(values) | (values < 0)
    if wrong.any():
        raise InputError(f"{path}: {name} of {table.loc[wrong, key].iloc[0]!r} is {table.loc[wrong, name].iloc[0]!r}: it is a "
                         "finite number, 0 or more, or empty")
    return values.fillna(empty).to_numpy(float)


def read_fleet(path: Path) -> Fleet:
    """Read ``devices.csv``: device, type; if given count, memory_mb, cpu_cores, idle_w, busy_w, setup_s, price_per_hour.

    A row is a group of equal devices; numbers hold for each device of the group. Groups of one type must agree in them.
    CPU types (``cpu...``) give the host's cores: count x cpu_cores.
    """
    table = _table(path, ("device", "type"), ("device", "type", "count", *_DEVICE_NUMBERS))
    if table["device"].duplicated().any():
        raise InputError(f"{path}: device {table.loc[table['device'].duplicated(), 'device'].iloc[0]!r} is there twice")
    if table[["device", "type"]].isna().to_numpy().any():
        raise InputError(f"{path}: a row has no device or no type")
    counts = _numbers(table, "count", path, 1, "device")
    if (counts != np.round(counts)).any() or counts.sum() > MOST_DEVICES:
        raise InputError(f"{path}: count is a whole number, at most {MOST_DEVICES:,} in all")
    types = tuple(dict.fromkeys(table["type"]))
    columns = {name: _numbers(table, name, path, 0.0 if name == "setup_s" else np.nan, "device") for name in _DEVICE_NUMBERS}
    per_type = {}
    for name, values in columns.items():
        groups = pd.Series(values).groupby(table["type"].to_numpy(), sort=False)
        differing = groups.nunique(dropna=False) - 1
        if differing.any():
            raise InputError(f"{path}: devices of type {differing.idxmax()!r} differ in {name}; what differs is another type")
        per_type[name] = groups.first().to_numpy(float)
    names, places = [], []
    for device, kind, count in zip(table["device"], table["type"], counts.astype(int), strict=True):
        names += [f"{device}[{number}]" for number in range(count)] if count > 1 else [device] * count
        places += [types.index(kind)] * count
    cpu = [number for number, kind in enumerate(types) if kind.startswith("cpu")]
    held = pd.Series(counts).groupby(table["type"].to_numpy(), sort=False).sum().to_numpy()
    own = held[cpu] * per_type["cpu_cores"][cpu]
    host = float(own.sum()) if len(own) and np.isfinite(own).all() else np.inf
    return Fleet(tuple(names), np.array(places, int), types, **per_type, host_cores=host)


def _times(path: Path, fleet: Fleet) -> tuple[list[str], np.ndarray]:
    table = _table(path, ("job_id", *fleet.types))
    for name in fleet.types:
        texts = table[name].astype(str).str.strip().str.lower()
        if texts.isin(("inf", "-inf", "infinity")).any():
            raise InputError(f"{path}: a time on {name!r} is infinite; leave it empty where a job cannot run")
    columns = [_numbers(table, name, path, np.inf, "job_id") for name in fleet.types]
    return table["job_id"].astype(str).tolist(), np.column_stack(columns)


def read(times: Path, devices: Path, jobs: Path | None = None, actual: Path | None = None) -> Problem:
    """Read a problem: ``times.csv`` (``job_id``, a column a device type), ``devices.csv``, if given jobs and real times.

    Raises InputError, in one line that names the file, for what is wrong in it.
    """
    fleet = read_fleet(devices)
    ids, predicted = _times(times, fleet)
    real = predicted
    if actual is not None:
        known, found = _times(actual, fleet)
        lacking = [name for name in ids if name not in set(known)]
        if lacking:
            raise InputError(f"{actual} lacks jobs of {times}: {choices(lacking[:5])}")
        order = {name: place for place, name in enumerate(known)}
        real = found[[order[name] for name in ids]]
    facts = _job_facts(jobs, ids, times)
    return Problem(facts, fleet, predicted, real)


def _job_facts(path: Path | None, ids: list[str], times: Path) -> Jobs:
    if path is None:
        return replace(Jobs.plain(len(ids)), ids=tuple(ids))
    table = job_table(path)
    lacking = sorted(set(ids) ^ set(table["job_id"]))
    if lacking:
        raise InputError(f"{path} and {times} do not name the same jobs: {choices(lacking[:5])}")
    return jobs_of(table.set_index("job_id", drop=False).loc[ids], path)


def job_table(path: Path) -> pd.DataFrame:
    """Read ``jobs.csv`` as it is; InputError for unknown columns and ids that are there twice."""
    table = _table(path, ("job_id",), _JOB_COLUMNS)
    if table["job_id"].duplicated().any():
        raise InputError(f"{path}: job {table.loc[table['job_id'].duplicated(), 'job_id'].iloc[0]!r} is there twice")
    return table


def jobs_of(table: pd.DataFrame, path: Path) -> Jobs:
    """Return the jobs of a table that ``job_table`` read; InputError names a number that is none."""
    columns = {name: _numbers(table, name, path, empty, "job_id")
               for name, empty in (("arrival_s", 0.0), ("deadline_s", np.inf), ("memory_mb", 0.0), ("cpu_cores", 0.0))}
    labels = table.get("workload_id", pd.Series(index=table.index, dtype=object)).fillna(
        table.get("notebook", pd.Series(index=table.index, dtype=object)))
    return Jobs(tuple(table["job_id"]), **columns, kind=pd.factorize(labels)[0])
