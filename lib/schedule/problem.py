"""A scheduling problem: jobs, devices, and the predicted and actual times of each job on each device type."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lib.errors import InputError, choices

PER_JOB = ("arrival_s", "deadline_s", "memory_mb", "cpu_cores")
PER_TYPE = ("memory_mb", "cpu_cores", "idle_w", "busy_w", "setup_s", "price_per_hour")


@dataclass(frozen=True)
class Jobs:
    """Jobs as aligned columns; jobs of one ``job_class`` are alike (the same workload), -1 if unknown.

    Memory and cores are those that a job needs on each of its devices.
    """

    ids: tuple[str, ...]
    arrival_s: np.ndarray
    deadline_s: np.ndarray  # inf: none
    memory_mb: np.ndarray
    cpu_cores: np.ndarray
    job_class: np.ndarray
    devices: np.ndarray | None = None  # of one type that a job needs at once; None: one each

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def gang(self) -> np.ndarray:
        """Return how many devices each job needs at once."""
        return np.ones(len(self), int) if self.devices is None else self.devices.astype(int)

    @cached_property
    def has_gangs(self) -> bool:
        """Return whether a job needs several devices at once."""
        return bool((self.gang > 1).any())

    @classmethod
    def plain(cls, count: int, arrival_s: np.ndarray | None = None, job_class: np.ndarray | None = None) -> "Jobs":
        """Return ``count`` jobs that need no memory and no cores and, by default, are all there at 0 s."""
        nothing = np.zeros(count)
        return cls(tuple(map(str, range(count))), nothing if arrival_s is None else np.asarray(arrival_s, float),
                   np.full(count, np.inf), nothing, nothing,
                   np.full(count, -1) if job_class is None else np.asarray(job_class, int))


@dataclass(frozen=True)
class Fleet:
    """Devices of several types; ``type_of`` (devices) is the number of a device's type. PER_TYPE: (types), NaN if unknown.

    ``host_cores`` are shared by CPU slots and by jobs on other devices, as they run.
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
        return self.by_type()

    def by_type(self, values: np.ndarray | None = None) -> np.ndarray:
        """Return the sum over the devices of each type: of values (devices), or of ones."""
        return np.bincount(self.type_of, values, minlength=len(self.types))

    @cached_property
    def cpu(self) -> np.ndarray:
        """Return whether each type is a CPU: its name starts with ``cpu``, in small letters or capitals."""
        return np.array([name.lower().startswith("cpu") for name in self.types], bool)

    @classmethod
    def from_counts(cls, counts: dict[str, int], **numbers: Sequence[float]) -> "Fleet":
        """Return a fleet of ``{type: count}``; ``numbers`` are per type, in that order."""
        types, type_of = tuple(counts), np.repeat(np.arange(len(counts)), list(counts.values()))
        columns = {name: np.asarray(numbers.get(name, np.full(len(types), 0.0 if name == "setup_s" else np.nan)), float)
                   for name in PER_TYPE}
        return cls(device_names(counts.items()), type_of, types, **columns)


def device_names(groups: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return the names of the devices of named groups with their counts; in a group of several, devices are numbered."""
    return tuple(f"{name}[{number}]" if count > 1 else name for name, count in groups for number in range(count))


class JobEnergy(NamedTuple):
    """Energy of each job on a device of each type: ``joules`` (jobs, types), without set-up; NaN if unknown.

    ``sources`` (jobs): measured, modelled or assumed.
    """

    joules: np.ndarray
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """Jobs to schedule on a fleet. Times are in seconds, (jobs, types); inf: cannot run there.

    ``sigma`` is the spread of the predictions in log time, 0 for exact ones. Without ``energy`` jobs take the watts of
    their devices. Raises InputError for what cannot be scheduled, naming the first job or column that is wrong.
    """

    jobs: Jobs
    fleet: Fleet
    predicted_s: np.ndarray
    actual_s: np.ndarray
    sigma: float = 0.0
    energy: JobEnergy | None = None

    def __post_init__(self):
        _check(self)

    @cached_property
    def feasible_s(self) -> np.ndarray:
        """Return the predicted seconds (jobs, types), inf wherever a job cannot run: what policies see."""
        return np.where(feasible(self), self.predicted_s, np.inf)

    @cached_property
    def cores(self) -> np.ndarray:
        """Return the host cores (jobs, types) that a job takes while it runs."""
        return cores_taken(self.jobs, self.fleet)

    def with_predictions(self, predicted_s: np.ndarray, sigma: float = 0.0) -> "Problem":
        """Return the same problem with other predictions."""
        return replace(self, predicted_s=predicted_s, sigma=sigma)

    def with_actual(self, actual_s: np.ndarray) -> "Problem":
        """Return the same problem with other actual times."""
        return replace(self, actual_s=actual_s)


def cores_taken(jobs: Jobs, fleet: Fleet) -> np.ndarray:
    """Return the host cores (jobs, types) that a job takes while it runs: on a CPU those of the slot, else what it asks for."""
    return np.where(fleet.cpu, np.nan_to_num(fleet.cpu_cores), jobs.cpu_cores[:, None])


def able(jobs: Jobs, fleet: Fleet) -> np.ndarray:
    """Return (jobs, types): whether a job fits the memory of a type, the host has its cores, and there are devices enough."""
    memory_mb = np.where(np.isnan(fleet.memory_mb), np.inf, fleet.memory_mb)
    fits = (jobs.memory_mb[:, None] <= memory_mb) & (cores_taken(jobs, fleet) * jobs.gang[:, None] <= fleet.host_cores)
    return fits & (fleet.counts >= jobs.gang[:, None])


def feasible(problem: Problem) -> np.ndarray:
    """Return (jobs, types): whether a job has both times there, and is able to run there."""
    return np.isfinite(problem.predicted_s) & np.isfinite(problem.actual_s) & able(problem.jobs, problem.fleet)


def _check(problem: Problem) -> None:
    jobs, fleet, energy = problem.jobs, problem.fleet, problem.energy
    count, width = len(jobs), len(fleet.types)
    if not (len(fleet) and count):
        raise InputError(f"there is no {'job' if len(fleet) else 'device: devices need a count of at least 1'}")
    columns = {name: getattr(jobs, name) for name in (*PER_JOB, "job_class", "gang")}
    tables = {"predicted times": problem.predicted_s, "actual times": problem.actual_s}
    if energy:
        columns["energy sources"], tables["energy"] = energy.sources, energy.joules
    for name, values in {**columns, **tables}.items():  # a compiled loop would read beyond columns that are not aligned
        if np.shape(values) != ((count, width) if name in tables else (count,)):
            raise InputError(f"{name} is {np.shape(values)}, there are {count} jobs and {width} device types")
    if len(fleet.type_of) != len(fleet) or not ((fleet.type_of >= 0) & (fleet.type_of < width)).all():
        raise InputError(f"type_of gives each of the {len(fleet)} devices the number of its type, 0 to {width - 1}")
    if len(set(jobs.ids)) < count:
        raise InputError(f"job {next(name for name in jobs.ids if jobs.ids.count(name) > 1)!r} is there twice")
    for name in ("predicted", "actual"):
        table = tables[f"{name} times"]
        for job, device_type in np.argwhere(~(table > 0)):
            raise InputError(f"the {name} time of job {jobs.ids[job]!r} on {fleet.types[device_type]!r} is "
                             f"{table[job, device_type]}: it is a positive number of seconds, or empty where it cannot run")
    for job in np.flatnonzero(~feasible(problem).any(axis=1)):
        timed = choices(np.array(fleet.types)[np.isfinite(problem.actual_s[job])])
        raise InputError(f"no device can run job {jobs.ids[job]!r}: it has a time on {timed or 'none'} and needs "
                         f"{jobs.memory_mb[job]:,.0f} MB and {jobs.cpu_cores[job]:g} cores"
                         + f" on {jobs.gang[job]} devices at once" * int(jobs.gang[job] > 1))
    for job in np.flatnonzero(~(jobs.gang >= 1)):
        raise InputError(f"devices of job {jobs.ids[job]!r} is {jobs.gang[job]}: it is a whole number, 1 or more")
    for name in ("arrival_s", "memory_mb", "cpu_cores"):
        for job in np.flatnonzero(~(columns[name] >= 0) | np.isinf(columns[name])):
            raise InputError(f"{name} of job {jobs.ids[job]!r} is {columns[name][job]}: it is a number, 0 or more")
