"""The compiled simulator, for the policies of NAMES: the schedules of ``events.simulate``, of 10^6 jobs in a few seconds.

It knows neither contention nor limits of the host's cores.
"""

from math import fsum

import numpy as np
import pandas as pd

from lib.errors import InputError, choices
from lib.schedule.problem import Problem
from lib.schedule.simulation import compiled_loop
from lib.schedule.simulation.compiled_loop import BOUND, BY_KEY, IN_LINE
from lib.schedule.simulation.events import Faults, Outcome, table

_KINDS = {"first-come": IN_LINE, "fastest": IN_LINE, "cpu-only": IN_LINE, "gpu-only": IN_LINE, "shortest-first": BY_KEY,
          "affinity": BY_KEY, "earliest-finish": BOUND, "longest-first": BOUND}
NAMES = tuple(_KINDS)


def covers(problem: Problem, name: str) -> bool:
    """Return whether a policy on a problem can be simulated here."""
    return name in NAMES and np.isinf(problem.fleet.host_cores)


def simulate(problem: Problem, name: str, faults: Faults | None = None) -> Outcome:
    """Run a policy of NAMES; the schedule is that of ``events.simulate``, no decision is timed.

    Raises InputError for another policy and where the host's cores are limited.
    """
    if name not in NAMES:
        raise InputError(f"the policy {name!r} is not compiled; these are: {choices(NAMES)}")
    if not covers(problem, name):
        raise InputError(f"the compiled simulator knows no limit of the host's cores, here {problem.fleet.host_cores:g}; "
                         "events.simulate does")
    faults = faults or Faults()
    setup = _setup(problem, name)
    state, draw = _at_start(setup), np.random.default_rng(faults.seed)
    jobs, room = len(setup.order), len(setup.order) + len(setup.type_of)
    log = compiled_loop.Log(*(np.empty(room, dtype) for dtype in (np.int64, np.int64, float, float, np.int64, np.int8)),
                            line=np.empty(jobs + room, np.int64))  # an attempt may bring a job back into the line
    while not compiled_loop.run_events(setup, state, log, float(faults.chance), int(faults.attempts), draw):
        log = compiled_loop.Log(*(np.concatenate([column, np.empty_like(column)]) for column in log))
    *columns, status = (column[:state.count[compiled_loop.ENDED]] for column in log[:6])
    return Outcome(table(problem, *columns, pd.array(compiled_loop.STATUS, dtype="str").take(status)), problem)


def _setup(problem: Problem, name: str) -> compiled_loop.Setup:
    """Return the columns that the loop needs for a policy: copies of one layout and type, so that it is compiled once."""
    kind, arrival = _KINDS[name], np.array(problem.jobs.arrival_s, float)
    predicted = np.array(problem.feasible_s, float, order="C")
    seconds, key, turn, rank, ranked = predicted, np.zeros((0, 0)), np.zeros(0), *np.zeros((2, 0, 0), np.int32)
    if kind == IN_LINE:
        seconds = np.where(_allowed(problem, name, predicted), predicted, np.inf)
    elif kind == BY_KEY:
        key = _keys(name, predicted)
        rank, ranked = _ranks(key, predicted)
    else:
        seconds = predicted + problem.fleet.setup_s
        if name == "longest-first":
            turn = -_means(predicted)
    order = np.lexsort((turn, arrival)) if len(turn) else np.argsort(arrival, kind="stable")
    work = np.ascontiguousarray(problem.fleet.setup_s + problem.actual_s)
    return compiled_loop.Setup(kind, order, arrival[order], np.array(problem.fleet.type_of, np.int64), work, seconds, key, rank,
                               ranked, turn)


def _allowed(problem: Problem, name: str, predicted: np.ndarray) -> np.ndarray:
    """Return (jobs, types), or what is broadcast to it: the types to which the policy restricts itself."""
    if name == "first-come":
        return np.array(True)
    if name == "fastest":
        return predicted.argmin(axis=1)[:, None] == np.arange(predicted.shape[1])
    preferred = problem.fleet.cpu == (name == "cpu-only")
    return preferred | ~((predicted < np.inf) & preferred).any(axis=1)[:, None]


def _keys(name: str, predicted: np.ndarray) -> np.ndarray:
    least = predicted.min(axis=1)[:, None]
    with np.errstate(over="ignore", under="ignore"):
        return np.repeat(least, predicted.shape[1], axis=1) if name == "shortest-first" else predicted * predicted / least


def _ranks(key: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (types, jobs) the rank of each job by (key, time, number), and the job of each rank."""
    rank, ranked = np.zeros((2, *key.T.shape), np.int32)
    for device_type, seconds in enumerate(predicted.T):
        jobs = np.flatnonzero(seconds < np.inf)
        order = jobs[np.lexsort((seconds[jobs], key[jobs, device_type]))]
        ranked[device_type, :len(jobs)] = order
        rank[device_type, order] = np.arange(len(jobs))
    return rank, ranked


def _means(predicted: np.ndarray) -> np.ndarray:
    """Return the mean of each job's finite times as ``statistics.fmean`` does: of the exact sum, rounded once.

    The error of each addition is known exactly; where the errors' own sum is not exact, ``fsum`` adds the times.
    """
    finite = np.isfinite(predicted)
    times = np.where(finite, predicted, 0.0)
    total, error, inexact = times[:, 0], np.zeros(len(times)), np.zeros(len(times), bool)
    for column in times.T[1:]:
        total, lost = _two_sum(total, column)
        error, lost = _two_sum(error, lost)
        inexact |= lost != 0
    total = total + error
    total[inexact] = [fsum(row) for row in times[inexact]]
    return total / finite.sum(axis=1)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounded sum and its error (Knuth, TAOCP 2, 4.2.2)."""
    total = a + b
    rounded = total - a
    return total, (a - (total - rounded)) + (b - rounded)


def _at_start(setup: compiled_loop.Setup) -> compiled_loop.State:
    """Return the state before any job arrived, with room for what the kind of policy needs."""
    jobs, types, devices = len(setup.order), setup.work_s.shape[1], len(setup.type_of)
    counts = np.bincount(setup.type_of, minlength=types)
    by_type = [np.flatnonzero(setup.type_of == device_type) for device_type in range(types)]
    free, leaf, leaves = np.zeros((types, counts.max()), np.int64), np.zeros(devices + 1, np.int64), _leaves(counts.max())
    for device_type, members in enumerate(by_type):
        free[device_type, :len(members)] = members[::-1]
        leaf[members] = leaves + np.arange(len(members))
    bound_jobs, bound = (jobs, devices) if setup.kind == BOUND else (0, 0)
    return compiled_loop.State(
        count=np.zeros(compiled_loop.COUNTERS, np.int64),
        waits=np.zeros(jobs, bool), tried=np.zeros(jobs, np.int64),
        runs=np.zeros(devices, np.int64), since_s=np.zeros(devices), fails=np.zeros(devices, bool),
        due_s=np.full(devices + 1, np.inf), started=np.zeros(devices + 1, np.int64),
        ends=_tree(np.arange(devices), devices, _leaves(devices)),
        free=free, idle=counts, head=np.zeros(types, np.int64),
        ready=np.stack([_empty_set(jobs if setup.kind == BY_KEY else 1)] * types),
        news=np.zeros(bound_jobs, np.int64), queue=np.full((bound, 2), -1), after=np.zeros(bound_jobs, np.int64),
        load_s=np.zeros(bound), pending=_empty_set(devices),
        end_s=np.append(np.full(devices, setup.arrival_s[0]), np.inf), leaf=leaf,
        soonest=np.stack([_tree(members, devices, leaves) for members in by_type]))


def _empty_set(most: int) -> np.ndarray:
    """Return the empty set of numbers below ``most``."""
    words = 1
    while 64 * (words - (words - 1) // 64) < most:
        words = 64 * words + 1
    return np.zeros(words, np.uint64)


def _leaves(count: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << (int(count) - 1).bit_length()


def _tree(members: np.ndarray, nobody: int, leaves: int) -> np.ndarray:
    """Return a tree of equal devices, in which the first wins."""
    tree = np.full(2 * leaves, nobody)
    tree[leaves:leaves + len(members)] = members
    while leaves > 1:
        tree[leaves // 2:leaves] = tree[leaves:2 * leaves:2]
        leaves //= 2
    return tree
