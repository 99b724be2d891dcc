"""The event loop over arrays, compiled (numba): it runs what ``compiled`` prepares.

Every choice and every tie falls as in ``events.simulate``. All compiled code is in this file, because numba's cache notices
changes only in the file of the function that is called from outside.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numba.cpython.unsafe.numbers import trailing_zeros

from lib.schedule.portable import compiled

IN_LINE, BY_KEY, BOUND = range(3)  # how a policy chooses: in order of arrival, the smallest key first, a queue per device
STATUS = ("done", "retried", "failed")
_DONE, _RETRIED, _FAILED = range(3)
# Counters: jobs that arrived; that came to wait, in all and at this instant; that wait; attempts started and ended.
ARRIVED, CAME, NEW, WAITING, STARTED, ENDED, COUNTERS = range(7)
_BIT = np.uint64(1)

# Nothing is allocated here: without reference counts the loop is 5 to 12 times as fast. Functions are inlined, because a call
# would pass every array of ``setup`` and ``state``, which takes longer than most of these functions do.
_inner = njit(_nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


class Setup(NamedTuple):
    """Constants of a run; times in s, (jobs, types). Columns that the kind of policy does not use are empty."""

    kind: int
    order: np.ndarray  # (jobs) in order of arrival, those of one instant as they are bound
    arrival_s: np.ndarray  # (jobs) in that order
    type_of: np.ndarray  # (devices)
    work_s: np.ndarray  # of an attempt with set-up
    predicted_s: np.ndarray  # predicted, bound: with set-up; inf where the policy puts no job
    key: np.ndarray  # by key: the smallest starts first
    rank: np.ndarray  # by key (types, jobs): of a job by (key, time, number)
    ranked: np.ndarray  # by key (types, jobs): the job of a rank
    turn: np.ndarray  # bound (jobs): the smallest of an instant is bound first; empty: as they come


class State(NamedTuple):
    """The state of a run, changed in place.

    A tree of devices has its root at 1, the children of ``n`` at ``2 n`` and ``2 n + 1``, its leaves last. A set of numbers is
    a tree of 64-bit words: the root at 0, below bit ``b`` of word ``w`` word ``64 w + 1 + b``; the bits of the last level are
    the numbers.
    """

    count: np.ndarray  # by counter: ARRIVED and so on
    waits: np.ndarray  # (jobs)
    tried: np.ndarray  # (jobs) attempts
    runs: np.ndarray  # (devices) the job
    since_s: np.ndarray  # (devices)
    fails: np.ndarray  # (devices)
    due_s: np.ndarray  # (devices + 1) when the attempt ends, inf: nothing runs; the last stands for no device
    started: np.ndarray  # (devices + 1) number of the attempt, in order of starts
    ends: np.ndarray  # (tree) of the device that is due first
    free: np.ndarray  # (types, devices) a stack: the device freed last is taken first
    idle: np.ndarray  # (types) length of that stack
    head: np.ndarray  # (types) in line: how far the line was read
    ready: np.ndarray  # (types, set) by key: ranks of waiting jobs
    news: np.ndarray  # (jobs) bound: those that came to wait at this instant
    queue: np.ndarray  # (devices, 2) bound: first and last job, -1: none
    after: np.ndarray  # (jobs) bound: the next job of the queue, -1: none
    load_s: np.ndarray  # (devices) bound: expected seconds of the queue
    pending: np.ndarray  # (set) bound: free devices to which jobs are bound
    end_s: np.ndarray  # (devices + 1) bound: when the queue is expected to end; the last stands for no device
    leaf: np.ndarray  # (devices + 1) bound: position in the tree of the type
    soonest: np.ndarray  # (types, tree) bound: of the device whose queue is expected to end first


class Log(NamedTuple):
    """Ended attempts, in the order of their ends, and the ``line`` of jobs as they came to wait."""

    job: np.ndarray
    device: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    attempt: np.ndarray
    status: np.ndarray
    line: np.ndarray


# ------------------------------------------------------------------------------------------ sets and trees


@_inner
def _put(words, member):
    """Add a number to a set. A bit says whether the word below it holds any, so the least is found in one descent."""
    word, bit = (len(words) - 1) // 64 + member // 64, member % 64
    while True:
        before = words[word]
        words[word] = before | _BIT << np.uint64(bit)
        if before or not word:
            return
        word, bit = (word - 1) // 64, (word - 1) % 64


@_inner
def _drop(words, member):
    word, bit = (len(words) - 1) // 64 + member // 64, member % 64
    while True:
        words[word] &= ~(_BIT << np.uint64(bit))
        if words[word] or not word:
            return
        word, bit = (word - 1) // 64, (word - 1) % 64


@_inner
def _least(words):
    """Return the least number of a set, which is not empty."""
    word, last = 0, (len(words) - 1) // 64
    while word < last:
        word = 64 * word + 1 + trailing_zeros(words[word])
    return 64 * (word - last) + trailing_zeros(words[word])


@_inner
def _win(tree, leaf, key, second):
    """Update the nodes above a leaf whose key changed; the device with the smallest (key, second) wins each node."""
    won = device = tree[leaf]
    while leaf > 1:
        other = tree[leaf ^ 1]
        if key[other] < key[won] or (key[other] == key[won] and second[other] < second[won]):
            won = other
        leaf //= 2
        if won == tree[leaf] and won != device:
            return  # nothing changes above
        tree[leaf] = won


# ------------------------------------------------------------------------------------------ attempts


@_inner
def _wait(setup, state, log, job):
    if setup.kind == IN_LINE:
        log.line[state.count[CAME]] = job
    elif setup.kind == BY_KEY:
        for device_type in range(len(state.idle)):
            if setup.predicted_s[job, device_type] < np.inf:
                _put(state.ready[device_type], setup.rank[device_type, job])
    else:
        state.news[state.count[NEW]] = job
    state.count[NEW] += 1
    state.count[CAME] += 1
    state.count[WAITING] += 1
    state.waits[job] = True


@_inner
def _due(state, device, at_s):
    state.due_s[device] = at_s
    _win(state.ends, len(state.ends) // 2 + device, state.due_s, state.started)


@_inner
def _start(setup, state, chance, draw, at_s, job, device):
    work = setup.work_s[job, setup.type_of[device]]
    state.waits[job] = False
    state.tried[job] += 1
    state.count[WAITING] -= 1
    state.count[STARTED] += 1
    state.runs[device], state.since_s[device], state.started[device] = job, at_s, state.count[STARTED]
    state.fails[device] = chance > 0 and draw.random() < chance
    if state.fails[device]:
        work *= draw.random()
    _due(state, device, at_s + work)


@_inner
def _end(setup, state, log, attempts, at_s, device):
    """End and log the attempt on a device, and free it; a job that failed may wait again."""
    job, row, status = state.runs[device], state.count[ENDED], _DONE
    if state.fails[device]:
        status = _RETRIED if state.tried[job] < attempts else _FAILED
    log.job[row], log.device[row], log.start_s[row], log.end_s[row] = job, device, state.since_s[device], at_s
    log.attempt[row], log.status[row] = state.tried[job], status
    state.count[ENDED] += 1
    _due(state, device, np.inf)
    if setup.kind == BOUND:
        _expect(setup, state, device, at_s + state.load_s[device])
        if state.queue[device, 0] >= 0:
            _put(state.pending, device)
    else:
        device_type = setup.type_of[device]
        state.free[device_type, state.idle[device_type]] = device
        state.idle[device_type] += 1
    if status == _RETRIED:
        _wait(setup, state, log, job)


# ------------------------------------------------------------------------------------------ one pool of jobs


@_inner
def _first(setup, state, log, device_type):
    """Return the first waiting job for a type, -1: none; jobs before it, which do not wait, are dropped.

    A job that is tried again also waits at its former place in the line, if that was not reached meanwhile, as in ``greedy``.
    """
    if setup.kind == IN_LINE:
        head, came = state.head[device_type], state.count[CAME]
        while head < came and not (state.waits[log.line[head]] and setup.predicted_s[log.line[head], device_type] < np.inf):
            head += 1
        state.head[device_type] = head
        return log.line[head] if head < came else -1
    ranks = state.ready[device_type]
    while ranks[0]:
        rank = _least(ranks)
        job = setup.ranked[device_type, rank]
        if state.waits[job]:
            return job
        _drop(ranks, rank)
    return -1


@_inner
def _greedy(setup, state, log, chance, draw, at_s):
    """Start waiting jobs on free devices, always the pair with the smallest (key, time, job, type)."""
    while True:
        best, chosen = (np.inf, np.inf, 0), -1
        for device_type in range(len(state.idle)):
            job = _first(setup, state, log, device_type) if state.idle[device_type] else -1
            if job >= 0:
                key = float(state.head[device_type]) if setup.kind == IN_LINE else setup.key[job, device_type]
                candidate = (key, setup.predicted_s[job, device_type], job)
                if chosen < 0 or candidate < best:
                    best, chosen = candidate, device_type
        if chosen < 0:
            return
        state.idle[chosen] -= 1
        _start(setup, state, chance, draw, at_s, best[2], state.free[chosen, state.idle[chosen]])


# ------------------------------------------------------------------------------------------ a queue per device


@_inner
def _expect(setup, state, device, end_s):
    state.end_s[device] = end_s
    _win(state.soonest[setup.type_of[device]], state.leaf[device], state.end_s, state.leaf)


@_inner
def _bind(setup, state, at_s, job):
    """Put a job into the queue of the device on which it ends first; of equal devices that is the first of the first type."""
    best, chosen = np.inf, np.int64(-1)
    for device_type in range(len(state.idle)):
        if setup.predicted_s[job, device_type] < np.inf:
            device = state.soonest[device_type, 1]
            end_s = max(state.end_s[device], at_s) + setup.predicted_s[job, device_type]
            if chosen < 0 or end_s < best:
                best, chosen = end_s, device
    if state.queue[chosen, 0] < 0:
        state.queue[chosen, 0] = job
    else:
        state.after[state.queue[chosen, 1]] = job
    state.queue[chosen, 1], state.after[job] = job, -1
    state.load_s[chosen] += setup.predicted_s[job, setup.type_of[chosen]]
    _expect(setup, state, chosen, best)
    if state.due_s[chosen] == np.inf:
        _put(state.pending, chosen)


@_inner
def _sort(jobs, turn, arrived):
    """Insert jobs that are tried again into those that arrived, which are in order, and behind equal ones."""
    for last in range(arrived, len(jobs)):
        job, position = jobs[last], last
        while position and turn[jobs[position - 1]] > turn[job]:
            jobs[position] = jobs[position - 1]
            position -= 1
        jobs[position] = job


@_inner
def _bound(setup, state, chance, draw, at_s, arrived):
    """Bind the new jobs; start the first jobs of free devices, in the fleet's order.

    Between decisions the queue of a free device is empty, so only freed devices and those to which jobs are bound are visited.
    """
    new = state.news[:state.count[NEW]]
    if len(setup.turn):
        _sort(new, setup.turn, arrived)
    for job in new:
        _bind(setup, state, at_s, job)
    while state.pending[0]:
        device = _least(state.pending)
        _drop(state.pending, device)
        job = state.queue[device, 0]
        after = state.queue[device, 0] = state.after[job]
        state.load_s[device] = state.load_s[device] - setup.predicted_s[job, setup.type_of[device]] if after >= 0 else 0.0
        _start(setup, state, chance, draw, at_s, job, device)


# ------------------------------------------------------------------------------------------ events


@compiled(_nrt=False)
def run_events(setup, state, log, chance, attempts, draw):
    """Let all events happen; return False if the log needs more room first.

    All events of an instant come before one decision: arrivals in their order, then ends in the order of their starts.
    """
    jobs, devices = len(setup.order), len(setup.type_of)
    while state.count[ARRIVED] < jobs or state.due_s[state.ends[1]] < np.inf:
        if state.count[ENDED] + devices > len(log.job):
            return False
        at_s = state.due_s[state.ends[1]]
        if state.count[ARRIVED] < jobs:
            at_s = min(at_s, setup.arrival_s[state.count[ARRIVED]])
        state.count[NEW] = 0
        while state.count[ARRIVED] < jobs and setup.arrival_s[state.count[ARRIVED]] == at_s:
            _wait(setup, state, log, setup.order[state.count[ARRIVED]])
            state.count[ARRIVED] += 1
        arrived = state.count[NEW]
        while state.due_s[state.ends[1]] == at_s:
            _end(setup, state, log, attempts, at_s, state.ends[1])
        if setup.kind == BOUND:
            _bound(setup, state, chance, draw, at_s, arrived)
        else:
            _greedy(setup, state, log, chance, draw, at_s)
    return True
