"""What no schedule can beat: for the makespan a linear programme, for the mean completion time a matching."""

from dataclasses import dataclass

import numpy as np

from lib.errors import InputError
from lib.schedule.problem import Problem, feasible

_MOST_MATCHED = 3000  # jobs: the matching's table grows with their square


def able_times(problem: Problem, predicted: bool = False) -> np.ndarray:
    """Return the times (jobs, types), with set-up, inf where a job cannot run."""
    table = problem.predicted_s if predicted else problem.actual_s
    return np.where(feasible(problem), table + problem.fleet.setup_s[None], np.inf)


@dataclass(frozen=True)
class Fluid:
    """The optimum when jobs may be cut: the makespan in s, and which share of each job runs on each type (jobs, types)."""

    makespan_s: float
    share: np.ndarray


def fluid(times: np.ndarray, counts: np.ndarray, busy_s: np.ndarray | None = None) -> Fluid:
    """Return the least makespan of jobs that may be cut into pieces over equal devices of each type (HiGHS).

    ``busy_s`` (types) is the time for which the devices of a type are taken already, in all. No schedule is shorter, nor
    shorter than the longest job on its fastest type. Raises InputError where a job has no device.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    jobs, types = np.nonzero(np.isfinite(times))
    if len(np.unique(jobs)) < len(times):
        raise InputError("a job has no device that can run it")
    cells = np.arange(len(jobs))
    count, width = len(times), times.shape[1]
    longest = float(times.min(axis=1).max())  # the unit in which it is solved: the solver's tolerances are absolute
    busy = np.zeros(width) if busy_s is None else busy_s / longest
    whole = csr_matrix((np.ones(len(jobs)), (jobs, cells)), shape=(count, len(jobs) + 1))
    load = csr_matrix((np.append(times[jobs, types] / longest, -counts.astype(float)),
                       (np.append(types, np.arange(width)), np.append(cells, np.full(width, len(jobs))))),
                      shape=(width, len(jobs) + 1))
    found = linprog(np.append(np.zeros(len(jobs)), 1.0), A_ub=load, b_ub=-busy, A_eq=whole,
                    b_eq=np.ones(count), bounds=[(0, None)] * len(jobs) + [(1.0, None)], method="highs")
    if found.status != 0:
        raise InputError(f"no bound was found: {found.message}")
    share = np.zeros(times.shape)
    share[jobs, types] = found.x[:-1]
    return Fluid(float(found.x[-1]) * longest, share)


def makespan_bound(problem: Problem) -> float:
    """Return a lower bound of the makespan in s: cut jobs, the longest job, and for each arrival what comes after it."""
    times, arrival = able_times(problem), problem.jobs.arrival_s
    bound = float((arrival + times.min(axis=1)).max())
    starts = np.unique(arrival)
    for start in starts[:: max(1, len(starts) // 8)]:  # any start gives a bound; a few give a good one
        later = arrival >= start
        bound = max(bound, float(start) + fluid(times[later], problem.fleet.counts).makespan_s)
    return bound


def matching(times: np.ndarray, counts: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the least sum of completion times of jobs all there at once, each job's type, and its place from the end.

    A job that is k-th from the end of its device delays k jobs, itself included: cost k x time (Bruno, Coffman and Sethi,
    1974; AlloX, EuroSys 2020). Solved by SciPy's assignment. Raises InputError beyond MOST_MATCHED jobs.
    """
    from scipy.optimize import linear_sum_assignment

    count = len(times)
    if count > _MOST_MATCHED:
        raise InputError(f"a matching of {count} jobs is too large; at most {_MOST_MATCHED}")
    places = np.concatenate([np.repeat(np.arange(1, -(-count // devices) + 1), devices)[:count] if devices else np.zeros(0, int)
                             for devices in counts])
    types = np.concatenate([np.full(min(count, devices * -(-count // devices)) if devices else 0, kind)
                            for kind, devices in enumerate(counts)])
    far = np.where(np.isfinite(times), times, 1e6 * times[np.isfinite(times)].max())
    cost = far[:, types] * places[None]
    rows, columns = linear_sum_assignment(cost)
    order = columns[np.argsort(rows)]
    return float(cost[np.arange(count), order].sum()), types[order], places[order]
