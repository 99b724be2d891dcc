"""The compiled simulator (numba), for policies that are ``Greedy`` or ``Bind``: the schedules of ``events.simulate``.

Every choice and every tie falls as there. It knows no limits of the host's cores.
"""

from collections import namedtuple
from heapq import heappop, heappush

import numpy as np
import pandas as pd
from numba import njit

from lib.errors import InputError, choices
from lib.schedule.policies.baselines import BASELINES, Bind
from lib.schedule.policies.greedy import Greedy
from lib.schedule.portable import compiled
from lib.schedule.problem import Problem
from lib.schedule.simulation.events import Faults, Outcome, table

NAMES = tuple(name for name, policy in BASELINES.items() if isinstance(policy, Greedy | Bind))
_STATUS = ("done", "retried", "failed")
_DONE, _RETRIED, _FAILED = 0.0, 1.0, 2.0


# A problem and the state of its run, changed in place, times in s. *Bound*: of policies that bind jobs to devices.
_Run = namedtuple("_Run", [
    "type_of",  # (devices)
    "work_s", "predicted_s",  # (jobs, types) with set-up; predicted: with it if bound, inf where the policy puts no job
    "key",  # (jobs, types) the smallest starts first; empty: as they arrive
    "turn",  # (jobs) bound: the smallest of an instant first; empty: as they arrive
    "chance", "draw",  # that an attempt fails
    "came", "started",  # (1) how many jobs came to wait, how many attempts started
    "waits", "tried",  # (jobs) since how many came, 0: does not wait; attempts
    "runs", "since_s", "fails",  # (devices) the job, -1: none; since when, and whether the attempt fails
    "taken", "load_s", "end_s"])  # (devices) bound: jobs of the queue that started, its expected seconds, its expected end


def covers(problem: Problem, name: str) -> bool:
    """Return whether a policy on a problem can be simulated here."""
    return name in NAMES and np.isinf(problem.fleet.host_cores) and not problem.jobs.has_gangs


def simulate(problem: Problem, name: str, faults: Faults | None = None) -> Outcome:
    """Run a policy of NAMES; the schedule is that of ``events.simulate``, no decision is timed.

    Raises InputError for another policy and where the host's cores are limited.
    """
    if not covers(problem, name):
        raise InputError(f"the compiled simulator knows {choices(NAMES)}, without a limit of the host's cores and "
                         f"without gangs: not {name!r}, with {problem.fleet.host_cores:g} cores")
    faults, policy, fleet = faults or Faults(), BASELINES[name], problem.fleet
    jobs, devices, predicted_s = len(problem.jobs), len(fleet), problem.feasible_s
    key, turn, numbers, arrival_s = np.zeros((0, 0)), np.zeros(0), np.arange(jobs), np.array(problem.jobs.arrival_s, float)
    if isinstance(policy, Greedy):
        keys, predicted_s = policy.tables(fleet, numbers, predicted_s)
        key = key if keys is None else np.array(keys, order="C")
    else:
        turn = policy.turn(numbers, predicted_s) if policy.turn else turn
        predicted_s = predicted_s + fleet.setup_s
    run = _Run(
        np.array(fleet.type_of, np.int64), np.ascontiguousarray(fleet.setup_s + problem.actual_s),
        np.array(predicted_s, order="C"), key, turn, float(faults.chance), np.random.default_rng(faults.seed),
        *np.zeros((2, 1), np.int64), waits=np.zeros(jobs, np.int64), tried=np.zeros(jobs, np.int64), runs=np.full(devices, -1),
        since_s=np.zeros(devices), fails=np.zeros(devices, bool),
        taken=np.zeros(devices, np.int64), load_s=np.zeros(devices), end_s=np.full(devices, arrival_s.min()))
    order = np.argsort(arrival_s, kind="stable")
    job, device, start_s, end_s, attempt, status = run_events(run, isinstance(policy, Bind), order, arrival_s, faults.attempts)
    return Outcome(table(problem, (job.astype(int), device.astype(int), start_s, end_s, attempt.astype(int),
                                   pd.array(_STATUS, dtype="str").take(status.astype(int)))), problem)


@njit
def _start(run, ends, at_s, job, device):
    work_s = run.work_s[job, run.type_of[device]]
    run.waits[job] = 0
    run.tried[job] += 1
    run.runs[device], run.since_s[device] = job, at_s
    run.fails[device] = run.draw.random() < run.chance
    if run.fails[device]:
        work_s *= run.draw.random()
    run.started[0] += 1
    heappush(ends, (at_s + work_s, run.started[0], device))


@njit
def _is_valid(run, entry):
    key, _, job = entry
    return run.waits[job] > 0 if run.key.size else run.waits[job] == key  # a job that failed comes again, as another


@njit
def _greedy(run, ends, ready, free, at_s, new):
    """Start waiting jobs on free devices, always the pair with the smallest (key, time, job, type).

    Of ``free`` devices the one freed last is taken first.
    """
    for job in new:
        run.came[0] += 1
        run.waits[job] = run.came[0]
        for device_type, heap in enumerate(ready):
            if run.predicted_s[job, device_type] < np.inf:
                key = run.key[job, device_type] if run.key.size else float(run.came[0])
                heappush(heap, (key, run.predicted_s[job, device_type], job))
    while True:
        best, chosen = (np.inf, np.inf, 0), -1
        for device_type, heap in enumerate(ready):
            if free[device_type]:
                while heap and not _is_valid(run, heap[0]):
                    heappop(heap)
                if heap and (chosen < 0 or heap[0] < best):
                    best, chosen = heap[0], device_type
        if chosen < 0:
            return
        _start(run, ends, at_s, best[2], free[chosen].pop())


@njit
def _expect(run, soonest, device, end_s):
    run.end_s[device] = end_s
    heappush(soonest[run.type_of[device]], (end_s, 0.0, device))


@njit
def _bind(run, ends, soonest, queues, pending, at_s, new):
    """Put each job into the queue of the device on which it ends first; start the first jobs of free devices, in order."""
    jobs = np.array(new)
    for job in jobs[np.argsort(run.turn[jobs], kind="mergesort")] if run.turn.size else jobs:
        best, chosen = np.inf, -1
        for device_type, heap in enumerate(soonest):
            if run.predicted_s[job, device_type] < np.inf:
                while heap[0][0] != run.end_s[heap[0][2]]:
                    heappop(heap)
                end_s = max(heap[0][0], at_s) + run.predicted_s[job, device_type]
                if chosen < 0 or end_s < best:
                    best, chosen = end_s, heap[0][2]
        queues[chosen].append(job)
        run.load_s[chosen] += run.predicted_s[job, run.type_of[chosen]]
        _expect(run, soonest, chosen, best)
        heappush(pending, chosen)
    while pending:
        device = heappop(pending)
        queue, number = queues[device], run.taken[device]
        if number < len(queue) and run.runs[device] < 0:
            job = queue[number]
            run.taken[device] += 1
            left = number + 1 < len(queue)
            run.load_s[device] = run.load_s[device] - run.predicted_s[job, run.type_of[device]] if left else 0.0
            _start(run, ends, at_s, job, device)


@compiled
def run_events(run, bound, order, arrival_s, attempts):
    """Let all events happen; return job, device, start, end, attempt and status of each attempt, in the order of their ends.

    All events of an instant come before one decision: arrivals in their order, then ends in the order of their starts.
    """
    jobs, arrived, log = len(order), 0, [(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)][1:]
    types = range(run.work_s.shape[1])
    free = [list(np.flatnonzero(run.type_of == device_type)[::-1]) for device_type in types]
    heaps = [[(run.end_s[device], 0.0, device) for device in free[device_type][::-1]] for device_type in types]
    ends, new, pending, queues = [(0.0, 0, 0)][1:], [0][1:], [0][1:], [[0][1:] for _ in run.runs]
    if not bound:
        for heap in heaps:
            heap.clear()
    while arrived < jobs or ends:
        at_s = min(arrival_s[order[arrived]] if arrived < jobs else np.inf, ends[0][0] if ends else np.inf)
        new.clear()
        while arrived < jobs and arrival_s[order[arrived]] == at_s:
            new.append(order[arrived])
            arrived += 1
        while ends and ends[0][0] == at_s:
            device = heappop(ends)[2]
            job = run.runs[device]
            run.runs[device], status = -1, _DONE
            if run.fails[device]:
                status = _RETRIED if run.tried[job] < attempts else _FAILED
            log.append((float(job), float(device), run.since_s[device], at_s, float(run.tried[job]), status))
            if bound:
                _expect(run, heaps, device, at_s + run.load_s[device])
                heappush(pending, device)
            else:
                free[run.type_of[device]].append(device)
            if status == _RETRIED:
                new.append(job)
        if bound:
            _bind(run, ends, heaps, queues, pending, at_s, new)
        else:
            _greedy(run, ends, heaps, free, at_s, new)
    return np.array(log).T
