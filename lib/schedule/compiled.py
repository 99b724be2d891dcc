"""The simulator for the policies that have a name and no options, compiled: the schedule of ``simulate``, in seconds for 10^6 jobs.

Contention and limits of the host's cores are not among what it plays; ``simulate`` does.
"""

from math import fsum

import numpy as np
import pandas as pd

from lib.errors import InputError, choices
from lib.schedule import loop
from lib.schedule.problem import Problem, feasible
from lib.schedule.policies import IDLE
from lib.schedule.simulate import Faults, Outcome, forgotten, misplaced, table

_IN_LINE = ("first-come", "fastest", "cpu-only", "gpu-only")
_BY_KEY = ("shortest-first", "affinity")
_BOUND = ("earliest-finish", "longest-first")
NAMES = (*_IN_LINE, *_BY_KEY, *_BOUND)


def covers(problem: Problem, name: str) -> bool:
    """Return whether a policy on a problem can be simulated here."""
    return name in NAMES and np.isinf(problem.fleet.host_cores)


def simulate(problem: Problem, name: str, faults: Faults | None = None) -> Outcome:
    """Run a policy of NAMES as ``simulate.simulate`` does, with the same schedule; no decision is timed.

    Raises InputError for another policy and where the host's cores are limited; PolicyError as the other does.
    """
    if name not in NAMES:
        raise InputError(f"the policy {name!r} is not compiled; these are: {choices(NAMES)}")
    if not covers(problem, name):
        raise InputError(f"the compiled simulator knows no limit of the host's cores, here {problem.fleet.host_cores:g}; "
                         "simulate.simulate does")
    faults = faults or Faults()
    given = _given(problem, name)
    now = _at_start(given)
    *columns, status = loop.play(given, now, float(faults.chance), int(faults.attempts), np.random.default_rng(faults.seed))
    _check(problem, now)
    waits = () if np.isnan(now.idle_s[0]) else ((float(now.idle_s[0]), IDLE),)
    schedule = table(problem, *columns, pd.array(loop.STATUS, dtype="str").take(status))
    return Outcome(schedule, np.zeros(0), problem, waits)


def _check(problem: Problem, now: loop.Now) -> None:
    job, device = now.count[-2:].tolist()  # the last of COUNTS
    if job >= 0:
        raise misplaced(problem, job, device)
    left = np.flatnonzero(now.waits)
    if len(left):
        raise forgotten(problem, left[np.argsort(now.waits[left])].tolist())


def _given(problem: Problem, name: str) -> loop.Given:
    """Return what the loop needs of a problem for a policy."""
    said = np.array(problem.predicted_s, float, order="C")  # copies: arrays of one layout, for which the loop is compiled once
    able, arrival, nothing = feasible(problem), np.array(problem.jobs.arrival_s, float), np.zeros((0, 0))
    seen = _seen(problem, said)
    may, key, ranks, turn = seen < np.inf, nothing, [nothing.astype(np.int32)] * 2, np.zeros(0)
    if name in _BY_KEY:
        key = _keys(name, seen)
        ranks = _ranks(key, said, may)
    elif name in _BOUND:
        may &= problem.fleet.counts > 0
        turn = -_means(said) if name == "longest-first" else turn
    else:
        may &= _wanted(problem, name, seen)
    order = np.lexsort((turn, arrival)) if len(turn) else np.argsort(arrival, kind="stable")
    way = loop.BY_KEY if name in _BY_KEY else loop.BOUND if name in _BOUND else loop.IN_LINE
    return loop.Given(way, order, arrival[order], np.array(problem.fleet.type_of, np.int64),
                      np.where(able, problem.fleet.setup_s + problem.actual_s, np.nan), said, may, key, *ranks, turn)


def _seen(problem: Problem, said: np.ndarray) -> np.ndarray:
    """Return the predicted times as the policies see them: inf where a job does not fit the memory."""
    if not problem.jobs.memory_mb.any():
        return said
    memory = np.where(np.isnan(problem.fleet.memory_mb), np.inf, problem.fleet.memory_mb)
    return np.where(problem.jobs.memory_mb[:, None] <= memory, said, np.inf)


def _wanted(problem: Problem, name: str, seen: np.ndarray) -> np.ndarray:
    """Return (jobs, types) or (types): to which types a policy that starts jobs as they come restricts itself."""
    types = np.arange(seen.shape[1])
    if name == "first-come":
        return types >= 0
    if name == "fastest":
        return seen.argmin(axis=1)[:, None] == types
    mine = np.array([problem.fleet.is_cpu(place) for place in types]) == (name == "cpu-only")
    return mine | ~((seen < np.inf) & mine).any(axis=1)[:, None]


def _keys(name: str, seen: np.ndarray) -> np.ndarray:
    """Return (jobs, types) what the policy starts the smallest of first, as ``policies`` computes it."""
    least = seen.min(axis=1)[:, None]
    with np.errstate(over="ignore", under="ignore"):
        return np.repeat(least, seen.shape[1], axis=1) if name == "shortest-first" else seen * seen / least


def _ranks(key: np.ndarray, time: np.ndarray, may: np.ndarray) -> list[np.ndarray]:
    """Return (types, jobs) the rank of each job by (key, time, number), and the job of each rank."""
    rank, ranked = np.zeros((2, *key.T.shape), np.int32)
    for place in range(key.shape[1]):
        jobs = np.flatnonzero(may[:, place])
        own = key[jobs, place]
        order = np.argsort(own)
        if (own[order][1:] == own[order][:-1]).any():
            order = np.lexsort((time[jobs, place], own))
        ranked[place, :len(jobs)] = jobs[order]
        rank[place, jobs[order]] = np.arange(len(jobs))
    return [rank, ranked]


def _means(said: np.ndarray) -> np.ndarray:
    """Return the mean of each job's finite times, rounded once as ``statistics.fmean`` does."""
    finite = np.isfinite(said)
    return np.fromiter(map(fsum, np.where(finite, said, 0.0).tolist()), float, len(said)) / finite.sum(axis=1)


def _at_start(given: loop.Given) -> loop.Now:
    """Return the state before anything arrived, with room for what the policy's way to choose keeps."""
    jobs, types, devices = len(given.order), given.work_s.shape[1], len(given.type_of)
    counts = np.bincount(given.type_of, minlength=types)
    free, idle = np.zeros((types, int(counts.max())), np.int64), counts.copy()
    leaf, ready, soonest = np.zeros(devices, np.int64), np.zeros((types, 0), bool), np.zeros((types, 0), np.int64)
    bound = given.way == loop.BOUND
    leaves = 1 << int(counts.max() - 1).bit_length()
    if given.way == loop.BY_KEY:
        ready = np.zeros((types, 2 << (jobs - 1).bit_length()), bool)
    if bound:
        soonest = np.full((types, 2 * leaves), devices)
    for place in range(types):
        mine = np.flatnonzero(given.type_of == place)
        free[place, :len(mine)] = mine[::-1]
        leaf[mine] = leaves + np.arange(len(mine))
        if bound:
            soonest[place, leaf[mine]] = mine
            for node in range(leaves - 1, 0, -1):  # none expects anything yet: the first of the fleet
                soonest[place, node] = soonest[place, 2 * node]
    own, held = (jobs, devices) if bound else (0, 0)
    return loop.Now(np.zeros(jobs, np.int64), np.zeros(jobs, np.int64), np.full(devices, -1), np.zeros(devices),
                    np.zeros(devices, bool), free, idle, np.array(loop.COUNTS), np.array([np.nan]),
                    np.zeros(jobs, np.int64), np.zeros(devices, np.int64), np.zeros(types, np.int64), np.zeros(types, bool),
                    ready, np.full((held, 2), -1), np.full(own, -1), np.full(held, -1), np.full(held, np.nan),
                    np.zeros(held, np.int64), np.append(np.zeros(held), np.inf), leaf, soonest)
