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
    most_devices: np.ndarray | None = None  # where their number is to be chosen; None: it is not
    user: np.ndarray | None = None  # number of its user; None: all of one
    weight: np.ndarray | None = None  # of its user beside the others; None: all alike
    memory_high_mb: np.ndarray | None = None  # high ends of the 90 % ranges of memory; None: memory is known

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def gang(self) -> np.ndarray:
        """Return how many devices each job needs at once."""
        return np.ones(len(self), int) if self.devices is None else self.devices.astype(int)

    @cached_property
    def users(self) -> np.ndarray:
        """Return the number of each job's user."""
        return np.zeros(len(self), int) if self.user is None else self.user.astype(int)

    @cached_property
    def user_weights(self) -> np.ndarray:
        """Return the weight of each user: the largest of its jobs."""
        weights = np.zeros(self.users.max(initial=-1) + 1)
        np.maximum.at(weights, self.users, 1.0 if self.weight is None else self.weight)
        return weights

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
class Offers:
    """The numbers of devices that moldable jobs can run on: ``counts`` (jobs, offers), and the seconds (jobs, offers, types).

    The seconds are inf where a job cannot run, and where it takes no less time than on fewer devices.
    """

    counts: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray, seconds: np.ndarray) -> "Offers":
        """Return offers, without those that a smaller one of the same job makes pointless."""
        order = np.argsort(counts, axis=1, kind="stable")
        counts, seconds = np.take_along_axis(counts, order, 1), np.take_along_axis(seconds, order[:, :, None], 1)
        before = np.minimum.accumulate(seconds, axis=1)
        pointless = np.zeros(seconds.shape, bool)
        pointless[:, 1:] = seconds[:, 1:] >= before[:, :-1]
        return cls(counts, np.where(pointless, np.inf, seconds))


@dataclass(frozen=True)
class Problem:
    """Jobs to schedule on a fleet. Times are in seconds, (jobs, types); inf: cannot run there.

    ``sigma`` is the spread of the predictions in log time, 0 for exact ones. Without ``energy`` jobs take the watts of
    their devices. With ``offers`` jobs are moldable, and ``jobs.devices`` and the times are those of the offers chosen.
    Raises InputError for what cannot be scheduled, naming the first job or column that is wrong.
    """

    jobs: Jobs
    fleet: Fleet
    predicted_s: np.ndarray
    actual_s: np.ndarray
    sigma: float = 0.0
    energy: JobEnergy | None = None
    offers: Offers | None = None

    def __post_init__(self):
        _check(self)

    @property
    def feasible_s(self) -> np.ndarray:
        """Return the predicted seconds (jobs, types), inf wherever a job cannot run: what policies see."""
        return np.where(feasible(self), self.predicted_s, np.inf)

    @property
    def offered_s(self) -> np.ndarray:
        """Return the seconds (jobs, offers, types) that moldable jobs offer, inf where there are too few devices."""
        return np.where(self.offers.counts[:, :, None] <= self.fleet.counts, self.offers.seconds, np.inf)

    def with_offers(self, chosen: np.ndarray) -> "Problem":
        """Return the problem with the chosen offer of each job (its number)."""
        jobs = np.arange(len(self.jobs))
        seconds = self.offers.seconds[jobs, chosen]
        return replace(self, jobs=replace(self.jobs, devices=self.offers.counts[jobs, chosen]), predicted_s=seconds,
                       actual_s=seconds)

    def with_predictions(self, predicted_s: np.ndarray, sigma: float = 0.0) -> "Problem":
        """Return the same problem with other predictions."""
        return replace(self, predicted_s=predicted_s, sigma=sigma)


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
    for user in np.flatnonzero(~(jobs.user_weights > 0)):
        raise InputError(f"the weight of the user of job {jobs.ids[int((jobs.users == user).argmax())]!r} is "
                         f"{jobs.user_weights[user]:g}: it is above 0")
    high_mb = jobs.memory_mb if jobs.memory_high_mb is None else jobs.memory_high_mb
    for job in np.flatnonzero(~(high_mb >= jobs.memory_mb)):
        raise InputError(f"memory_high_mb of job {jobs.ids[job]!r} is {high_mb[job]:g}: it is at least its memory_mb, "
                         f"{jobs.memory_mb[job]:g}")
    for name in ("arrival_s", "memory_mb", "cpu_cores"):
        for job in np.flatnonzero(~(columns[name] >= 0) | np.isinf(columns[name])):
            raise InputError(f"{name} of job {jobs.ids[job]!r} is {columns[name][job]}: it is a number, 0 or more")
