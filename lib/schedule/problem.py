"""A scheduling problem: jobs, devices, and each job's predicted and actual times on each type."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lib.errors import InputError, choices

PER_JOB = ("arrival_s", "deadline_s", "memory_mb", "cpu_cores")
PER_TYPE = ("memory_mb", "cpu_cores", "idle_w", "busy_w", "setup_s", "price_per_hour")


@dataclass(frozen=True)
class Jobs:
    """Jobs as aligned columns; jobs of one ``job_class`` are the same workload, -1 if unknown.

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

    @classmethod
    def plain(cls, count: int, arrival_s: np.ndarray | None = None,
              job_class: np.ndarray | None = None) -> "Jobs":
        """Return jobs without needs; by default they are all there at 0 s, of unknown class."""
        nothing = np.zeros(count)
        return cls(tuple(map(str, range(count))),
                   nothing if arrival_s is None else np.asarray(arrival_s, float),
                   np.full(count, np.inf), nothing, nothing,
                   np.full(count, -1) if job_class is None else np.asarray(job_class, int))


@dataclass(frozen=True)
class Fleet:
    """Devices of several types; ``type_of`` (devices) is the number of a device's type.

    PER_TYPE: (types), NaN if unknown. ``host_cores`` are shared by CPU slots and by jobs on other
    devices, as they run.
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

    @cached_property
    def cpu(self) -> np.ndarray:
        """Return whether each type is a CPU: its name starts with ``cpu`` or ``CPU``."""
        return np.array([name.lower().startswith("cpu") for name in self.types], bool)

    @classmethod
    def from_counts(cls, counts: dict[str, int], **numbers: Sequence[float]) -> "Fleet":
        """Return a fleet of ``{type: count}``; ``numbers`` are per type, in that order."""
        type_of = np.repeat(np.arange(len(counts)), list(counts.values()))
        columns = {name: np.full(len(counts), np.nan) for name in PER_TYPE}
        columns["setup_s"] = np.zeros(len(counts))
        columns |= {name: np.asarray(values, float) for name, values in numbers.items()}
        return cls(device_names(counts.items()), type_of, tuple(counts), **columns)


def device_names(groups: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return the names of devices of ``(name, count)``: name, or name[0], name[1] and so on."""
    return tuple(f"{name}[{number}]" if count > 1 else name
                 for name, count in groups for number in range(count))


class JobEnergy(NamedTuple):
    """Joules of each job on each type (jobs, types), without set-up; NaN if unknown.

    ``sources`` (jobs): measured, modelled or assumed.
    """

    joules: np.ndarray
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """Jobs to schedule on a fleet. Times are in seconds, (jobs, types); inf: cannot run there.

    ``sigma`` is the spread of the predictions in log time, 0 for exact ones. Without ``energy``
    jobs take the watts of their devices. Raises InputError naming what cannot be scheduled.
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
    def feasible(self) -> np.ndarray:
        """Return (jobs, types): whether a job has both times there, and is able to run there."""
        has_times = np.isfinite(self.predicted_s) & np.isfinite(self.actual_s)
        return has_times & able(self.jobs, self.fleet)

    @cached_property
    def feasible_s(self) -> np.ndarray:
        """Return the predicted seconds, inf wherever a job cannot run: what policies see."""
        return np.where(self.feasible, self.predicted_s, np.inf)

    @cached_property
    def cores(self) -> np.ndarray:
        """Return the host cores (jobs, types) that a job takes on each device while it runs."""
        return cores_taken(self.jobs, self.fleet)


def cores_taken(jobs: Jobs, fleet: Fleet) -> np.ndarray:
    """Return the host cores of jobs: on a CPU those of the slot, else what the job asks for."""
    return np.where(fleet.cpu, np.nan_to_num(fleet.cpu_cores), jobs.cpu_cores[:, None])


def able(jobs: Jobs, fleet: Fleet) -> np.ndarray:
    """Return (jobs, types): whether there are memory, host cores and devices enough for a job."""
    gang = jobs.gang[:, None]
    memory_mb = np.where(np.isnan(fleet.memory_mb), np.inf, fleet.memory_mb)
    return ((jobs.memory_mb[:, None] <= memory_mb) & (fleet.counts >= gang)
            & (cores_taken(jobs, fleet) * gang <= fleet.host_cores))


def _check(problem: Problem) -> None:
    jobs, fleet, energy = problem.jobs, problem.fleet, problem.energy
    count, width = len(jobs), len(fleet.types)
    if not (len(fleet) and count):
        missing = "job" if len(fleet) else "device: devices need a count of at least 1"
        raise InputError(f"there is no {missing}")
    times = {"predicted": problem.predicted_s, "actual": problem.actual_s}
    columns = {name: getattr(jobs, name) for name in (*PER_JOB, "job_class", "gang")}
    energies = {"energy": energy.joules} if energy else {}
    for name, values in {**columns, **times, **energies}.items():
        if np.shape(values) != ((count,) if name in columns else (count, width)):
            raise InputError(f"{name} is {np.shape(values)}, there are {count} jobs and {width} "
                             "device types")
    if len(set(jobs.ids)) < count:
        name = next(name for name in jobs.ids if jobs.ids.count(name) > 1)
        raise InputError(f"job {name!r} is there twice")
    for name, table in times.items():
        for job, kind in np.argwhere(~(table > 0)):
            raise InputError(f"the {name} time of job {jobs.ids[job]!r} on {fleet.types[kind]!r} is "
                             f"{table[job, kind]}: it is a positive number of seconds, or empty "
                             "where it cannot run")
    for job in np.flatnonzero(~problem.feasible.any(axis=1)):
        timed = choices(np.array(fleet.types)[np.isfinite(problem.actual_s[job])]) or "none"
        at_once = f" on {jobs.gang[job]} devices at once" if jobs.gang[job] > 1 else ""
        raise InputError(f"no device can run job {jobs.ids[job]!r}: it has a time on {timed} and "
                         f"needs {jobs.memory_mb[job]:,.0f} MB and {jobs.cpu_cores[job]:g} cores"
                         f"{at_once}")
