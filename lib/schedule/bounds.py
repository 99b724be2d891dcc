"""Lower bounds of any schedule: makespan by linear programmes, mean completion time by matching."""

from typing import NamedTuple

import numpy as np

from lib.errors import InputError
from lib.schedule.problem import Problem

PROVEN = 1e-5  # relative: a makespan so near to its lower bound is the least
_TOLERANCE = 1e-7  # of the solver
_STARTS = 8  # arrivals from which the work that is left is bounded


def able_times(problem: Problem) -> np.ndarray:
    """Return the actual times (jobs, types), with set-up, inf where a job cannot run."""
    return np.where(problem.feasible, problem.actual_s + problem.fleet.setup_s, np.inf)


class Relaxation(NamedTuple):
    """The optimum of a linear programme in which jobs may be split over devices."""

    makespan_s: float
    share: np.ndarray  # of each job on each type (jobs, types)


def relaxation(times: np.ndarray, counts: np.ndarray, busy_s: np.ndarray | float = 0.0,
               work_s: np.ndarray | None = None, cost_s: np.ndarray | None = None) -> Relaxation:
    """Return the least makespan of jobs that may be split over the devices, by HiGHS.

    Raises InputError if a job has no device.

    Args:
        times: seconds (jobs, types), inf where a job cannot run.
        counts: devices of each type.
        busy_s: seconds for which the devices of each type are taken, summed over them.
        work_s: device-seconds (jobs, types) of jobs on several devices; None: the times.
        cost_s: what a job adds on each type (jobs, types) to the sum that is minimised.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    allowed = np.isfinite(times)
    if not allowed.any(axis=1).all():
        raise InputError("a job has no device that can run it")
    unit_s = float(times.min(axis=1).max())  # the solver's tolerances are absolute
    jobs, types = np.nonzero(allowed)
    cells, (count, width) = np.arange(len(jobs)), times.shape
    work = (times if work_s is None else work_s)[jobs, types] / unit_s
    cost = np.zeros(len(jobs)) if cost_s is None else cost_s[jobs, types] / unit_s
    # variables: the share of each job on each type where it can run, and the makespan in units
    whole = csr_matrix((np.ones(len(jobs)), (jobs, cells)), shape=(count, len(jobs) + 1))
    rows, columns = np.append(types, np.arange(width)), np.append(cells, np.full(width, len(jobs)))
    load = csr_matrix((np.append(work, -counts.astype(float)), (rows, columns)),
                      shape=(width, len(jobs) + 1))
    least = np.append(np.zeros(len(jobs)), 1.0)
    solved = linprog(np.append(cost, 1.0), A_ub=load, b_ub=np.zeros(width) - busy_s / unit_s,
                     A_eq=whole, b_eq=np.ones(count), method="highs",
                     bounds=np.column_stack([least, np.full(len(least), np.inf)]))
    if solved.status != 0:
        raise InputError(f"no bound was found: {solved.message}")
    share = np.zeros(times.shape)
    share[jobs, types] = solved.x[:-1]
    return Relaxation(float(solved.x[-1]) * unit_s, share)


def lst(times: np.ndarray, counts: np.ndarray, busy_s: np.ndarray | float = 0.0,
        work_s: np.ndarray | None = None, ends_s: np.ndarray | None = None) -> Relaxation:
    """Return the least makespan T of a relaxation in which no job goes where it would end after T.

    No schedule is shorter (Lenstra, Shmoys and Tardos, 1990), and no job is split much: most have
    one type. Between two possible ends the programme is the same, so a bisection over them finds T.
    The first four arguments are those of ``relaxation``; ``ends_s`` (jobs, types) is when a job
    would end if it were the first on a device, by default its time.
    """
    ends_s = times if ends_s is None else ends_s

    def within(limit_s: float) -> Relaxation:
        return relaxation(np.where(ends_s <= limit_s, times, np.inf), counts, busy_s, work_s)

    whole = relaxation(times, counts, busy_s, work_s)
    least_s = max(whole.makespan_s, float(ends_s.min(axis=1).max()))
    found = within(least_s)
    possible = np.unique(ends_s[(ends_s > least_s) & (ends_s <= found.makespan_s)])
    limits = np.append(least_s, possible)
    low, high = 0, len(possible)  # the last limit can be kept
    while low < high:
        middle = (low + high) // 2
        if within(limits[middle]).makespan_s < limits[middle + 1]:
            high = middle
        else:
            low = middle + 1
    if low:
        found = within(limits[low])
    return Relaxation(max(float(limits[low]), found.makespan_s), found.share)


def makespan_bound(problem: Problem) -> float:
    """Return a lower bound of the makespan in s: ``lst`` of the jobs from some arrival on."""
    arrival_s, gang, fleet = problem.jobs.arrival_s, problem.jobs.gang[:, None], problem.fleet
    times = able_times(problem)
    bound_s = float((arrival_s + times.min(axis=1)).max())
    starts = np.unique(arrival_s)
    for start_s in starts[::max(1, len(starts) // _STARTS)]:  # any gives a bound; a few a good one
        later = arrival_s >= start_s
        ends_s = times[later] + arrival_s[later, None] - start_s
        found = lst(times[later], fleet.counts, 0.0, times[later] * gang[later], ends_s)
        bound_s = max(bound_s, float(start_s) + found.makespan_s)
    return bound_s * (1 - _TOLERANCE)


def matching(times: np.ndarray, counts: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the least sum of completion times of jobs that arrive at once, and each job's place.

    That is its type and its place from the end. A job that is k-th from the end of its device
    delays k jobs, itself included: cost k x time (Bruno, Coffman and Sethi, 1974; AlloX, EuroSys
    2020). The table grows with the square of the jobs: for some thousands of them.
    """
    from scipy.optimize import linear_sum_assignment

    count = len(times)
    present = np.flatnonzero(counts)
    types = np.repeat(present, count)
    places = np.tile(np.arange(count), len(present)) // counts[types] + 1
    far = np.where(np.isfinite(times), times, 1e6 * times[np.isfinite(times)].max())
    cost = far[:, types] * places
    _, order = linear_sum_assignment(cost)
    return float(cost[np.arange(count), order].sum()), types[order], places[order]
