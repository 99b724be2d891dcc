"""Lower bounds of any schedule: the makespan by an LP relaxation, the mean completion time by a matching."""

from typing import Any, NamedTuple

import numpy as np

from lib.errors import InputError
from lib.schedule.problem import Fleet, Jobs, Problem, cores_taken, feasible

_MOST_MATCHED = 3000  # jobs: the matching's table grows with their square
WHOLE = 5000  # jobs: up to so many enter the linear programme at once
_MOST_PLACED = 5000  # places of jobs on devices, up to which whole jobs are bounded
_TOLERANCE = 1e-6  # of the solver
_CUTS, _NEAR, _UNCLEAR, _EXACT = 100, 1e-5, 1e-3, 1e-9


def able_times(problem: Problem) -> np.ndarray:
    """Return the actual times (jobs, types), with set-up, inf where a job cannot run."""
    return np.where(feasible(problem), problem.actual_s + problem.fleet.setup_s, np.inf)


class Host(NamedTuple):
    """Host cores that all devices share: those that a running job takes on each type (jobs, types), and their number."""

    taken: np.ndarray
    cores: float


def host_of(jobs: Jobs, fleet: Fleet, chosen: np.ndarray | slice = slice(None)) -> Host | None:
    """Return the cores that all jobs, or the chosen ones, share on a fleet; None if they are not limited."""
    return None if np.isinf(fleet.host_cores) else Host(cores_taken(jobs, fleet)[chosen], fleet.host_cores)


class Relaxation(NamedTuple):
    """The optimum of the LP relaxation, in which jobs may be cut: the makespan in s, and each job's shares (jobs, types).

    ``price`` (types) is the growth of the makespan with a second of work on a type.
    """

    makespan_s: float
    share: np.ndarray
    price: np.ndarray


def relaxation(times: np.ndarray, counts: np.ndarray, busy_s: np.ndarray | float = 0.0, host: Host | None = None,
               work_s: np.ndarray | None = None) -> Relaxation:
    """Return the least makespan of jobs that may be cut into pieces over equal devices of each type (HiGHS).

    ``busy_s`` (types) is the time for which the devices of a type are already taken, in all; with ``host`` the jobs take on
    average no more cores than there are; ``work_s`` (jobs, types) are the device-seconds of jobs on several devices. No
    schedule is shorter than this makespan, which is at least that of the longest job on its fastest type. Of many jobs,
    most have a type that is clearly the cheapest at prices near the optimum's. Only the other jobs enter the programme,
    until no job is cheaper elsewhere at its prices, which proves the optimum (sifting; Bixby and others, 1992). Raises
    InputError if a job has no device.
    """
    if not np.isfinite(times).any(axis=1).all():
        raise InputError("a job has no device that can run it")
    longest_s = float(times.min(axis=1).max())
    times = times if work_s is None else work_s
    if len(times) <= WHOLE or host is not None:
        return _solved(times, counts, busy_s, longest_s, host)
    cost = _cost(times, _prices(times, counts, busy_s))
    cheapest, jobs = cost.argmin(axis=1), np.arange(len(times))
    least = cost[jobs, cheapest]
    cost[jobs, cheapest] = np.inf
    unclear = ~(cost.min(axis=1) > least * (1 + _UNCLEAR))
    while True:
        clear = ~unclear
        clear_s = np.bincount(cheapest[clear], times[jobs[clear], cheapest[clear]], minlength=times.shape[1])
        solved = _solved(times[unclear], counts, busy_s + clear_s, longest_s)
        cost = _cost(times, solved.price)
        wrong = clear & (cost[jobs, cheapest] > cost.min(axis=1) * (1 + _EXACT))
        if not wrong.any():
            share = np.zeros(times.shape)
            share[jobs[clear], cheapest[clear]] = 1.0
            share[unclear] = solved.share
            return Relaxation(solved.makespan_s, share, solved.price)
        unclear |= wrong


def _prices(times: np.ndarray, counts: np.ndarray, busy_s: np.ndarray | float) -> np.ndarray:
    """Return prices (types) near the optimum's, at which the least cost of all work is greatest (cutting planes; Kelley, 1960).

    At any prices, the work that each type gets bounds that cost from above; the next prices maximise these bounds.
    """
    from scipy.optimize import linprog

    rows, width = np.arange(len(times)), len(counts)
    price = (counts > 0) / counts.sum()
    best, most, cuts = price, -np.inf, []
    for _ in range(_CUTS):
        cheapest = (times * np.maximum(price, 1e-9 * price.max())).argmin(axis=1)
        cuts.append(np.bincount(cheapest, times[rows, cheapest], minlength=width) + busy_s)
        bound = float((cuts[-1] * price).sum())
        if bound > most:
            best, most = price, bound
        scale = max(float(np.max(cuts)), 1e-300)
        solved = linprog(np.append(np.zeros(width), -1.0), A_ub=np.column_stack([-np.array(cuts) / scale, np.ones(len(cuts))]),
                        b_ub=np.zeros(len(cuts)), A_eq=np.append(counts.astype(float), 0.0)[None], b_eq=[1.0],
                        bounds=[(0, None)] * width + [(None, None)], method="highs")
        if solved.status != 0 or -solved.fun * scale <= most * (1 + _NEAR):
            break
        price = (best + solved.x[:-1]) / 2  # full steps would oscillate
    return best


def _cost(times: np.ndarray, price: np.ndarray) -> np.ndarray:
    return np.multiply(times, price, out=np.full(times.shape, np.inf), where=np.isfinite(times))


def _programme(seconds: np.ndarray, counts: np.ndarray, busy_s: np.ndarray | float, least_s: float, host: Host | None = None,
               **options: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Solve for the least makespan, in ``least_s`` and at least one (HiGHS); return it with the cells (jobs, types) of jobs.

    Variables are the shares of jobs on types, and the makespan.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix, vstack

    jobs, types = np.nonzero(np.isfinite(seconds))
    cells, (count, width) = np.arange(len(jobs)), seconds.shape
    busy, relative = np.zeros(width) + busy_s / least_s, seconds[jobs, types] / least_s  # the solver's tolerances are absolute
    whole = csr_matrix((np.ones(len(jobs)), (jobs, cells)), shape=(count, len(jobs) + 1))
    load = csr_matrix((np.append(relative, -counts.astype(float)),
                       (np.append(types, np.arange(width)), np.append(cells, np.full(width, len(jobs))))),
                      shape=(width, len(jobs) + 1))
    if host is not None:
        load = vstack([load, csr_matrix(np.append(host.taken[jobs, types] * relative, -host.cores)[None])])
        busy = np.append(busy, 0.0)
    return linprog(np.append(np.zeros(len(jobs)), 1.0), A_ub=load, b_ub=-busy, A_eq=whole, b_eq=np.ones(count),
                   bounds=[(0, None)] * len(jobs) + [(1.0, None)], method="highs", **options), jobs, types


def _solved(times: np.ndarray, counts: np.ndarray, busy_s: np.ndarray | float, longest_s: float,
            host: Host | None = None) -> Relaxation:
    """Return the relaxation of jobs, all of which enter the programme; the makespan is at least ``longest_s``."""
    solved, jobs, types = _programme(times, counts, busy_s, longest_s, host)
    if solved.status != 0:
        raise InputError(f"no bound was found: {solved.message}")
    share = np.zeros(times.shape)
    share[jobs, types] = solved.x[:-1]
    return Relaxation(float(solved.x[-1]) * longest_s, share, np.maximum(-solved.ineqlin.marginals[:times.shape[1]], 0.0))


def makespan_bound(problem: Problem) -> float:
    """Return a lower bound of the makespan in s: the latest end of a single job, and cut jobs after some arrivals.

    It holds for every choice of the offers of moldable jobs.
    """
    arrival, fleet = problem.jobs.arrival_s, problem.fleet
    if problem.offers is None:
        times = able_times(problem)
        work_s = times * problem.jobs.gang[:, None]
    else:
        each = problem.offered_s + fleet.setup_s
        times, work_s = each.min(axis=1), (each * problem.offers.counts[:, :, None]).min(axis=1)
    bound = float((arrival + times.min(axis=1)).max())
    starts = np.unique(arrival)
    for start in starts[:: max(1, len(starts) // 8)]:  # any start gives a bound; a few starts give a good bound
        later = arrival >= start
        relaxed = relaxation(times[later], fleet.counts, 0.0, host_of(problem.jobs, fleet, later), work_s[later])
        bound = max(bound, float(start) + relaxed.makespan_s)
    return bound


def whole_jobs_bound(problem: Problem, seconds: float = 1.0) -> float:
    """Return a lower bound of the makespan in s of jobs that are not cut: each runs on one device, whenever it arrives.

    An integer programme over jobs and devices (HiGHS), stopped after ``seconds``; 0 where it has more than _MOST_PLACED
    variables or found no bound, and for gangs.
    """
    if problem.jobs.has_gangs or problem.offers is not None:
        return 0.0
    times = able_times(problem)[:, problem.fleet.type_of]  # jobs, devices
    longest_s, places = float(times.min(axis=1).max()), int(np.isfinite(times).sum())
    if places > _MOST_PLACED:
        return 0.0
    solved, _, _ = _programme(times, np.ones(times.shape[1]), 0.0, longest_s, integrality=np.append(np.ones(places), 0),
                              options={"time_limit": seconds, "mip_rel_gap": 0.0})
    return max(0.0, getattr(solved, "mip_dual_bound", None) or 0.0) * longest_s * (1 - _TOLERANCE)


def matching(times: np.ndarray, counts: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the least sum of completion times of jobs that arrive at once, each job's type, and its place from the end.

    A job that is k-th from the end of its device delays k jobs, itself included: cost k x time (Bruno, Coffman and Sethi,
    1974; AlloX, EuroSys 2020). Solved by SciPy's assignment. Raises InputError beyond MOST_MATCHED jobs.
    """
    from scipy.optimize import linear_sum_assignment

    count = len(times)
    if count > _MOST_MATCHED:
        raise InputError(f"a matching of {count} jobs is too large; at most {_MOST_MATCHED}")
    present = np.flatnonzero(counts)
    types = np.repeat(present, count)
    places = np.tile(np.arange(count), len(present)) // counts[types] + 1
    far = np.where(np.isfinite(times), times, 1e6 * times[np.isfinite(times)].max())
    cost = far[:, types] * places
    _, order = linear_sum_assignment(cost)
    return float(cost[np.arange(count), order].sum()), types[order], places[order]
