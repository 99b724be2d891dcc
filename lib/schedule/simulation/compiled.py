"""The simulator, compiled, for policies of NAMES: the schedule of ``events.simulate``, of 10^6 jobs in a second or a few.

Contention and limits of the host's cores are not among what it plays; ``events.simulate`` does.
"""

from math import fsum

import numpy as np
import pandas as pd

from lib.errors import InputError, choices
from lib.schedule.problem import Problem
from lib.schedule.simulation import compiled_loop
from lib.schedule.simulation.events import Faults, Outcome, table

_IN_LINE = ("first-come", "fastest", "cpu-only", "gpu-only")
_BY_KEY = ("shortest-first", "affinity")
_BOUND = ("earliest-finish", "longest-first")
NAMES = (*_IN_LINE, *_BY_KEY, *_BOUND)


def covers(problem: Problem, name: str) -> bool:
    """Return whether a policy on a problem can be simulated here."""
    return name in NAMES and np.isinf(problem.fleet.host_cores)


def simulate(problem: Problem, name: str, faults: Faults | None = None) -> Outcome:
    """Run a policy of NAMES as ``events.simulate`` does, with the same schedule; no decision is timed.

    Raises InputError for another policy and where the host's cores are limited.
    """
    if name not in NAMES:
        raise InputError(f"the policy {name!r} is not compiled; these are: {choices(NAMES)}")
    if not covers(problem, name):
        raise InputError(f"the compiled simulator knows no limit of the host's cores, here {problem.fleet.host_cores:g}; "
                         "events.simulate does")
    faults = faults or Faults()
    given = _given(problem, name)
    now = _at_start(given)
    log = _play(given, now, faults)
    *columns, status = (column[:now.count[compiled_loop.ENDED]] for column in log[:6])
    schedule = table(problem, *columns, pd.array(compiled_loop.STATUS, dtype="str").take(status))
    return Outcome(schedule, np.zeros(0), problem)


def _play(given: compiled_loop.Given, now: compiled_loop.Now, faults: Faults) -> compiled_loop.Log:
    """Play until all has happened; return the log, of which the first ENDED rows are written."""
    jobs, devices = len(given.order), len(given.type_of)
    draw, room = np.random.default_rng(faults.seed), jobs + devices
    log = compiled_loop.Log(*(np.empty(room, dtype) for dtype in (np.int64, np.int64, float, float, np.int64, np.int8)),
                            line=np.empty(jobs + room, np.int64))  # a row may bring a job back into the line
    while not compiled_loop.play(given, now, log, float(faults.chance), int(faults.attempts), draw):
        log = compiled_loop.Log(*(np.concatenate([column, np.empty_like(column)]) for column in log))
    return log


def _given(problem: Problem, name: str) -> compiled_loop.Given:
    """Return what the loop needs of a problem for a policy: copies of one layout and type, for which it is compiled once."""
    predicted, arrival = np.array(problem.feasible_s, float, order="C"), np.array(problem.jobs.arrival_s, float)
    way, seconds = compiled_loop.IN_LINE, predicted
    key, turn, rank, ranked = np.zeros((0, 0)), np.zeros(0), *np.zeros((2, 0, 0), np.int32)
    if name in _BY_KEY:
        way, key = compiled_loop.BY_KEY, _keys(name, predicted)
        rank, ranked = _ranks(key, predicted)
    elif name in _BOUND:
        way, seconds = compiled_loop.BOUND, predicted + problem.fleet.setup_s
        turn = -_means(predicted) if name == "longest-first" else turn
    else:
        seconds = np.where(_wanted(problem, name, predicted), predicted, np.inf)
    order = np.lexsort((turn, arrival)) if len(turn) else np.argsort(arrival, kind="stable")
    work = np.ascontiguousarray(problem.fleet.setup_s + problem.actual_s)
    return compiled_loop.Given(way, order, arrival[order], np.array(problem.fleet.type_of, np.int64), work, seconds, key, rank,
                               ranked, turn)


def _wanted(problem: Problem, name: str, predicted: np.ndarray) -> np.ndarray:
    """Return (jobs, types) or (types): to which types a policy that starts jobs as they come restricts itself."""
    types = np.arange(predicted.shape[1])
    if name == "first-come":
        return types >= 0
    if name == "fastest":
        return predicted.argmin(axis=1)[:, None] == types
    own_types = np.array([problem.fleet.is_cpu(device_type) for device_type in types]) == (name == "cpu-only")
    return own_types | ~((predicted < np.inf) & own_types).any(axis=1)[:, None]


def _keys(name: str, predicted: np.ndarray) -> np.ndarray:
    """Return (jobs, types) what the policy starts the smallest of first, as ``policies`` computes it."""
    least = predicted.min(axis=1)[:, None]
    with np.errstate(over="ignore", under="ignore"):
        return np.repeat(least, predicted.shape[1], axis=1) if name == "shortest-first" else predicted * predicted / least


def _ranks(key: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (types, jobs) the rank of each job by (key, time, number), and the job of each rank."""
    rank, ranked = np.zeros((2, *key.T.shape), np.int32)
    for device_type in range(key.shape[1]):
        jobs = np.flatnonzero(predicted[:, device_type] < np.inf)
        own = key[jobs, device_type]
        order = np.argsort(own)  # where two are equal their order is the processor's: then they are ordered by rule
        if (own[order][1:] == own[order][:-1]).any():
            order = np.lexsort((predicted[jobs, device_type], own))
        ranked[device_type, :len(jobs)] = jobs[order]
        rank[device_type, jobs[order]] = np.arange(len(jobs))
    return rank, ranked


def _means(predicted: np.ndarray) -> np.ndarray:
    """Return the mean of each job's finite times as ``statistics.fmean`` does: of the exact sum, rounded once.

    The error of each addition is known exactly (Knuth's two-sum); where the errors' own sum is not exact, ``fsum`` sums them.
    """
    finite = np.isfinite(predicted)
    times = np.where(finite, predicted, 0.0)
    total, error, inexact = times[:, 0], np.zeros(len(predicted)), np.zeros(len(predicted), bool)
    for column in times.T[1:]:
        total, lost = _two_sum(total, column)
        error, lost = _two_sum(error, lost)
        inexact |= lost != 0
    total = total + error
    total[inexact] = [fsum(row) for row in times[inexact]]
    return total / finite.sum(axis=1)


def _two_sum(one: np.ndarray, two: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounded sum and what it lacks of the exact one (Knuth, TAOCP 2, 4.2.2)."""
    total = one + two
    second = total - one
    return total, (one - (total - second)) + (two - second)


def _at_start(given: compiled_loop.Given) -> compiled_loop.Now:
    """Return the state before anything arrived, with room for what the policy's way to choose keeps."""
    jobs, types, devices = len(given.order), given.work_s.shape[1], len(given.type_of)
    counts = np.bincount(given.type_of, minlength=types)
    by_type = [np.flatnonzero(given.type_of == device_type) for device_type in range(types)]
    free, leaf, most = np.zeros((types, counts.max()), np.int64), np.zeros(devices + 1, np.int64), _leaves(counts.max())
    for device_type, own in enumerate(by_type):
        free[device_type, :len(own)] = own[::-1]
        leaf[own] = most + np.arange(len(own))
    bound_jobs, bound = (jobs, devices) if given.way == compiled_loop.BOUND else (0, 0)
    return compiled_loop.Now(
        count=np.zeros(compiled_loop.COUNTED, np.int64),
        waits=np.zeros(jobs, bool), tried=np.zeros(jobs, np.int64),
        runs=np.zeros(devices, np.int64), since_s=np.zeros(devices), fails=np.zeros(devices, bool),
        due_s=np.full(devices + 1, np.inf), started=np.zeros(devices + 1, np.int64),
        ends=_tree(np.arange(devices), devices, _leaves(devices)),
        free=free, idle=counts, head=np.zeros(types, np.int64),
        ready=np.stack([_empty(jobs if given.way == compiled_loop.BY_KEY else 1)] * types),
        news=np.zeros(bound_jobs, np.int64), queue=np.full((bound, 2), -1), after=np.zeros(bound_jobs, np.int64),
        load_s=np.zeros(bound), pending=_empty(devices),
        end_s=np.append(np.full(devices, given.arrival_s[0]), np.inf), leaf=leaf,
        soonest=np.stack([_tree(own, devices, most) for own in by_type]))


def _empty(most: int) -> np.ndarray:
    """Return a set of none of the numbers below ``most``."""
    words = 1
    while 64 * (words - (words - 1) // 64) < most:
        words = 64 * words + 1
    return np.zeros(words, np.uint64)


def _leaves(count: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << (int(count) - 1).bit_length()


def _tree(members: np.ndarray, nobody: int, leaves: int) -> np.ndarray:
    """Return a tree of devices that are all equal: the first wins everywhere."""
    tree = np.full(2 * leaves, nobody)
    tree[leaves:leaves + len(members)] = members
    while leaves > 1:
        tree[leaves // 2:leaves] = tree[leaves:2 * leaves:2]
        leaves //= 2
    return tree
