"""A scheduling problem: jobs, devices, and how long each job takes on each device type, as predicted and in truth."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lib.errors import InputError, choices

PER_TYPE = ("memory_mb", "cpu_cores", "idle_w", "busy_w", "setup_s", "price_per_hour")


@dataclass(frozen=True)
class Jobs:
    """Jobs as aligned columns; ``job_class`` says which are alike (the same workload), -1 where nothing is known."""

    ids: tuple[str, ...]
    arrival_s: np.ndarray
    deadline_s: np.ndarray  # inf: none
    memory_mb: np.ndarray
    cpu_cores: np.ndarray
    job_class: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def plain(cls, count: int, arrival_s: np.ndarray | None = None, job_class: np.ndarray | None = None) -> "Jobs":
        """Return ``count`` jobs that need no memory and no cores, all there at 0 s unless ``arrival_s`` says otherwise."""
        nothing = np.zeros(count)
        return cls(tuple(map(str, range(count))), nothing if arrival_s is None else np.asarray(arrival_s, float),
                   np.full(count, np.inf), nothing, nothing,
                   np.full(count, -1) if job_class is None else np.asarray(job_class, int))


def is_cpu(device_type: str) -> bool:
    """Return whether a device type is a CPU: its name starts with ``cpu``, in small letters or capitals."""
    return device_type.lower().startswith("cpu")


@dataclass(frozen=True)
class Fleet:
    """Devices of several types; ``type_of`` (devices) is the number of each one's type. PER_TYPE: (types), NaN where not known.

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

    def is_cpu(self, device_type: int) -> bool:
        """Return whether a type is a CPU."""
        return is_cpu(self.types[device_type])

    def subset(self, devices: Sequence[int]) -> tuple["Fleet", np.ndarray]:
        """Return the fleet of some of the devices, and which of the types these are of."""
        types, type_of = np.unique(self.type_of[devices], return_inverse=True)
        numbers = {name: getattr(self, name)[types] for name in PER_TYPE}
        return replace(self, names=tuple(self.names[device] for device in devices), type_of=type_of,
                       types=tuple(self.types[device_type] for device_type in types), **numbers), types

    @classmethod
    def of(cls, counts: dict[str, int], **numbers: Sequence[float]) -> "Fleet":
        """Return a fleet of ``{type: count}``; ``numbers`` are per type, in that order."""
        types, type_of = tuple(counts), np.repeat(np.arange(len(counts)), list(counts.values()))
        names = tuple(f"{name}[{number}]" if count > 1 else name for name, count in counts.items() for number in range(count))
        columns = {name: np.asarray(numbers.get(name, np.full(len(types), 0.0 if name == "setup_s" else np.nan)), float)
                   for name in PER_TYPE}
        return cls(names, type_of, types, **columns)


@dataclass(frozen=True)
class JobEnergy:
    """What each job takes on a device of each type: ``joules`` (jobs, types), without set-up; NaN: not known.

    ``sources`` (jobs) says how it is known: measured, modelled or assumed.
    """

    joules: np.ndarray
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """Jobs to schedule on a fleet. Times are in seconds, (jobs, types); inf: cannot run there.

    ``sigma`` is the spread of the predictions in log time, 0 where they are taken for exact. Without ``energy`` jobs take the
    watts of their devices.
    """

    jobs: Jobs
    fleet: Fleet
    predicted_s: np.ndarray
    actual_s: np.ndarray
    sigma: float = 0.0
    energy: JobEnergy | None = None

    def __post_init__(self):
        _check(self)

    @property
    def feasible_s(self) -> np.ndarray:
        """Return the predicted seconds (jobs, types), inf wherever a job cannot run: what policies see."""
        return np.where(feasible(self), self.predicted_s, np.inf)

    def with_predictions(self, predicted_s: np.ndarray, sigma: float = 0.0) -> "Problem":
        """Return the same problem with other predictions."""
        return replace(self, predicted_s=predicted_s, sigma=sigma)


def able(jobs: Jobs, fleet: Fleet) -> np.ndarray:
    """Return (jobs, types): whether a job fits the memory of a type, and its cores and a device exist."""
    memory = np.where(np.isnan(fleet.memory_mb), np.inf, fleet.memory_mb)
    cpu = np.array([fleet.is_cpu(device_type) for device_type in range(len(fleet.types))], bool)
    fits = jobs.memory_mb[:, None] <= memory[None]
    cores = np.where(cpu[None], np.nan_to_num(fleet.cpu_cores)[None], jobs.cpu_cores[:, None]) <= fleet.host_cores
    return fits & cores & (fleet.counts > 0)[None]


def feasible(problem: Problem) -> np.ndarray:
    """Return (jobs, types): whether a job has both times there, and is able to run there."""
    return np.isfinite(problem.predicted_s) & np.isfinite(problem.actual_s) & able(problem.jobs, problem.fleet)


def _check(problem: Problem) -> None:
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
    _check_times(problem)
    if problem.energy is not None and (problem.energy.joules.shape, len(problem.energy.sources)) != (
            (len(jobs), len(fleet.types)), len(jobs)):
        raise InputError(f"energy is {problem.energy.joules.shape}, there are {len(jobs)} jobs and {len(fleet.types)} device "
                         "types")
    for what, column in (("arrival_s", jobs.arrival_s), ("memory_mb", jobs.memory_mb), ("cpu_cores", jobs.cpu_cores)):
        if not (np.isfinite(column) & (column >= 0)).all():
            job = int(np.argmin(np.isfinite(column) & (column >= 0)))
            raise InputError(f"{what} of job {jobs.ids[job]!r} is {column[job]}: it is a number, 0 or more")


def _check_lengths(jobs: Jobs, fleet: Fleet) -> None:
    """Refuse columns that are not aligned: a compiled loop would read beyond them."""
    for name in ("arrival_s", "deadline_s", "memory_mb", "cpu_cores", "job_class"):
        if len(getattr(jobs, name)) != len(jobs):
            raise InputError(f"{name} holds {len(getattr(jobs, name))} values, there are {len(jobs)} jobs")
    if len(fleet.type_of) != len(fleet) or not ((fleet.type_of >= 0) & (fleet.type_of < len(fleet.types))).all():
        raise InputError(f"type_of gives each of the {len(fleet)} devices the number of its type, 0 to {len(fleet.types) - 1}")


def _check_times(problem: Problem) -> None:
    """Refuse times that are no positive seconds, and jobs that no device can run."""
    jobs, fleet = problem.jobs, problem.fleet
    for what, table in (("predicted", problem.predicted_s), ("actual", problem.actual_s)):
        if table.shape != (len(jobs), len(fleet.types)):
            raise InputError(f"{what} times are {table.shape}, there are {len(jobs)} jobs and {len(fleet.types)} device types")
        bad = np.isnan(table) | (table <= 0)
        if bad.any():
            job, on = map(int, np.argwhere(bad)[0])
            raise InputError(f"the {what} time of job {jobs.ids[job]!r} on {fleet.types[on]!r} is {table[job, on]}: it is a "
                             "positive number of seconds, or empty where the job cannot run")
    able = feasible(problem).any(axis=1)
    if not able.all():
        job = int(np.argmin(able))
        timed = [name for name, time in zip(fleet.types, problem.actual_s[job], strict=True) if np.isfinite(time)]
        raise InputError(f"no device can run job {jobs.ids[job]!r}: it has a time on {choices(timed) or 'none'} and needs "
                         f"{jobs.memory_mb[job]:,.0f} MB and {jobs.cpu_cores[job]:g} cores")
