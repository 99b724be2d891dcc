"""The event loop in arrays, compiled (numba): what ``compiled`` prepares, it plays.

Every choice and every tie falls as in ``simulate`` with ``policies``; comments name what that hangs on. All that is compiled is
in this file: numba's cache sees only the file of what is called from outside change.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numba.cpython.unsafe.numbers import trailing_zeros

from lib.schedule.compilation import compiled

IN_LINE, BY_KEY, BOUND = 0, 1, 2  # how a policy chooses: in order of arrival, the smallest key first, a queue a device
STATUS = ("done", "retried", "failed")
_DONE, _RETRIED, _FAILED = range(3)
# What is counted: jobs that arrived; that came to wait, in all and at this instant; that wait; attempts started and ended.
ARRIVED, CAME, NEW, WAITING, STARTED, ENDED, COUNTED = range(7)
_ONE = np.uint64(1)

# Nothing is allocated here: without counted references the loop is 5 to 12 times as fast. A call that is not inlined would pass
# every array of ``given`` and ``now``, which takes longer than what most of these do.
_inner = njit(_nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


class Given(NamedTuple):
    """What does not change; times in s, (jobs, types). What a way to choose has no use for is empty."""

    way: int
    order: np.ndarray  # (jobs) as they arrive, and those of one instant as they are bound
    arrival_s: np.ndarray  # of those
    type_of: np.ndarray  # (devices)
    work_s: np.ndarray  # what an attempt takes with set-up
    predicted_s: np.ndarray  # predicted, bound: with set-up; inf where the policy puts no job
    key: np.ndarray  # by key: what is started first
    rank: np.ndarray  # by key (types, jobs): of a job by (key, time, number)
    ranked: np.ndarray  # by key (types, jobs): the job of a rank
    turn: np.ndarray  # bound (jobs): which is bound first of those of an instant; empty: as they come


class Now(NamedTuple):
    """Where things stand.

    A tree has its root at 1, the children of ``n`` at ``2 n`` and ``2 n + 1``, its leaves last. A set of numbers is a tree of
    64-bit words: the root at 0, below bit ``b`` of word ``w`` word ``64 w + 1 + b``; the last level's bits are the numbers.
    """

    count: np.ndarray  # ARRIVED and so on
    waits: np.ndarray  # (jobs) whether it does
    tried: np.ndarray  # (jobs) attempts
    runs: np.ndarray  # (devices) which job
    since_s: np.ndarray  # (devices)
    fails: np.ndarray  # (devices)
    due_s: np.ndarray  # (devices + 1) when what runs ends, inf: nothing runs; the last is none
    started: np.ndarray  # (devices + 1) as what number it started
    ends: np.ndarray  # (tree) which device is due first
    free: np.ndarray  # (types, devices) a stack: the device freed last is taken first
    idle: np.ndarray  # (types) how many are on it
    head: np.ndarray  # (types) in line: where the line was read to
    ready: np.ndarray  # (types, set) by key: the ranks that wait
    news: np.ndarray  # (jobs) bound: that came to wait at this instant
    queue: np.ndarray  # (devices, 2) bound: first and last job, -1: none
    after: np.ndarray  # (jobs) bound: the next of its queue, -1: none
    load_s: np.ndarray  # (devices) bound: how long its queue is expected to take
    pending: np.ndarray  # (set) bound: free devices to which jobs are bound
    end_s: np.ndarray  # (devices + 1) bound: when it is expected to be done; the last is none
    leaf: np.ndarray  # (devices + 1) bound: its position in the tree of its type; the last is none
    soonest: np.ndarray  # (types, tree) bound: which device is expected to be done first


class Log(NamedTuple):
    """What happened, a row an attempt, in the order of their ends; and the ``line`` of jobs as they came to wait."""

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
    """Put a number into a set. A bit says whether the word below it holds any, so that the least is found on one way down."""
    word, bit = (len(words) - 1) // 64 + member // 64, member % 64
    while True:
        before = words[word]
        words[word] = before | _ONE << np.uint64(bit)
        if before or not word:
            return
        word, bit = (word - 1) // 64, (word - 1) % 64


@_inner
def _drop(words, member):
    word, bit = (len(words) - 1) // 64 + member // 64, member % 64
    while True:
        words[word] &= ~(_ONE << np.uint64(bit))
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
    """Let the device with the smallest (key, second) win each node above a leaf whose key changed."""
    won = device = tree[leaf]
    while leaf > 1:
        other = tree[leaf ^ 1]
        if key[other] < key[won] or (key[other] == key[won] and second[other] < second[won]):
            won = other
        leaf //= 2
        if won == tree[leaf] and won != device:
            return  # what is above is as it was
        tree[leaf] = won


# ------------------------------------------------------------------------------------------ attempts


@_inner
def _wait(given, now, log, job):
    """Let a job wait."""
    if given.way == IN_LINE:
        log.line[now.count[CAME]] = job
    elif given.way == BY_KEY:
        for device_type in range(len(now.idle)):
            if given.predicted_s[job, device_type] < np.inf:
                _put(now.ready[device_type], given.rank[device_type, job])
    else:
        now.news[now.count[NEW]] = job
    now.count[NEW] += 1
    now.count[CAME] += 1
    now.count[WAITING] += 1
    now.waits[job] = True


@_inner
def _due(now, device, at_s):
    now.due_s[device] = at_s
    _win(now.ends, len(now.ends) // 2 + device, now.due_s, now.started)


@_inner
def _start(given, now, chance, draw, at_s, job, device):
    work = given.work_s[job, given.type_of[device]]
    now.waits[job] = False
    now.tried[job] += 1
    now.count[WAITING] -= 1
    now.count[STARTED] += 1
    now.runs[device], now.since_s[device], now.started[device] = job, at_s, now.count[STARTED]
    now.fails[device] = chance > 0 and draw.random() < chance
    if now.fails[device]:
        work *= draw.random()
    _due(now, device, at_s + work)


@_inner
def _end(given, now, log, attempts, at_s, device):
    """End what runs on a device, note it, free the device; a job that failed may wait again."""
    job, row, status = now.runs[device], now.count[ENDED], _DONE
    if now.fails[device]:
        status = _RETRIED if now.tried[job] < attempts else _FAILED
    log.job[row], log.device[row], log.start_s[row], log.end_s[row] = job, device, now.since_s[device], at_s
    log.attempt[row], log.status[row] = now.tried[job], status
    now.count[ENDED] += 1
    _due(now, device, np.inf)
    if given.way == BOUND:
        _expect(given, now, device, at_s + now.load_s[device])
        if now.queue[device, 0] >= 0:
            _put(now.pending, device)
    else:
        device_type = given.type_of[device]
        now.free[device_type, now.idle[device_type]] = device
        now.idle[device_type] += 1
    if status == _RETRIED:
        _wait(given, now, log, job)


# ------------------------------------------------------------------------------------------ started from one pool


@_inner
def _first(given, now, log, device_type):
    """Return the first waiting job for a type, -1: none; those before it, which do not wait, are forgotten for good.

    A job that is tried again waits under its former position too, where that was not come to meanwhile: as in ``policies``.
    """
    if given.way == IN_LINE:
        head, came = now.head[device_type], now.count[CAME]
        while head < came and not (now.waits[log.line[head]] and given.predicted_s[log.line[head], device_type] < np.inf):
            head += 1
        now.head[device_type] = head
        return log.line[head] if head < came else -1
    ranks = now.ready[device_type]
    while ranks[0]:
        rank = _least(ranks)
        job = given.ranked[device_type, rank]
        if now.waits[job]:
            return job
        _drop(ranks, rank)
    return -1


@_inner
def _greedy(given, now, log, chance, draw, at_s):
    """Start waiting jobs on free devices, always the pair with the smallest (key, time, job, type)."""
    while True:
        best, chosen = (np.inf, np.inf, 0), -1
        for device_type in range(len(now.idle)):
            job = _first(given, now, log, device_type) if now.idle[device_type] else -1
            if job >= 0:
                key = float(now.head[device_type]) if given.way == IN_LINE else given.key[job, device_type]
                candidate = (key, given.predicted_s[job, device_type], job)
                if chosen < 0 or candidate < best:
                    best, chosen = candidate, device_type
        if chosen < 0:
            return
        now.idle[chosen] -= 1
        _start(given, now, chance, draw, at_s, best[2], now.free[chosen, now.idle[chosen]])


# ------------------------------------------------------------------------------------------ bound to a device


@_inner
def _expect(given, now, device, end_s):
    now.end_s[device] = end_s
    _win(now.soonest[given.type_of[device]], now.leaf[device], now.end_s, now.leaf)


@_inner
def _bind(given, now, at_s, job):
    """Give a job to the device on which it ends first, of equal ones to that of the first type, and there to the first."""
    best, chosen = np.inf, np.int64(-1)
    for device_type in range(len(now.idle)):
        if given.predicted_s[job, device_type] < np.inf:
            device = now.soonest[device_type, 1]
            end_s = max(now.end_s[device], at_s) + given.predicted_s[job, device_type]
            if chosen < 0 or end_s < best:
                best, chosen = end_s, device
    if now.queue[chosen, 0] < 0:
        now.queue[chosen, 0] = job
    else:
        now.after[now.queue[chosen, 1]] = job
    now.queue[chosen, 1], now.after[job] = job, -1
    now.load_s[chosen] += given.predicted_s[job, given.type_of[chosen]]
    _expect(given, now, chosen, best)
    if now.due_s[chosen] == np.inf:
        _put(now.pending, chosen)


@_inner
def _sort(jobs, turn, arrived):
    """Insert those tried again into those that arrived, which are in order; of equal ones the former go last."""
    for last in range(arrived, len(jobs)):
        job, position = jobs[last], last
        while position and turn[jobs[position - 1]] > turn[job]:
            jobs[position] = jobs[position - 1]
            position -= 1
        jobs[position] = job


@_inner
def _bound(given, now, chance, draw, at_s, arrived):
    """Bind the jobs that are new; start what the free devices hold, the first of the fleet first.

    Between decisions the queue of a free device is empty: to look at are those freed and those to which jobs are bound.
    """
    new = now.news[:now.count[NEW]]
    if len(given.turn):
        _sort(new, given.turn, arrived)
    for job in new:
        _bind(given, now, at_s, job)
    while now.pending[0]:
        device = _least(now.pending)
        _drop(now.pending, device)
        job = now.queue[device, 0]
        after = now.queue[device, 0] = now.after[job]
        now.load_s[device] = now.load_s[device] - given.predicted_s[job, given.type_of[device]] if after >= 0 else 0.0
        _start(given, now, chance, draw, at_s, job, device)


# ------------------------------------------------------------------------------------------ events


@compiled(_nrt=False)
def play(given, now, log, chance, attempts, draw):
    """Let all events happen; return whether that is done, or else the log needs more room to go on.

    All of one instant happen before one decision: arrivals in their order, then ends in the order of their starts.
    """
    jobs, devices = len(given.order), len(given.type_of)
    while now.count[ARRIVED] < jobs or now.due_s[now.ends[1]] < np.inf:
        if now.count[ENDED] + devices > len(log.job):
            return False
        at_s = now.due_s[now.ends[1]]
        if now.count[ARRIVED] < jobs:
            at_s = min(at_s, given.arrival_s[now.count[ARRIVED]])
        now.count[NEW] = 0
        while now.count[ARRIVED] < jobs and given.arrival_s[now.count[ARRIVED]] == at_s:
            _wait(given, now, log, given.order[now.count[ARRIVED]])
            now.count[ARRIVED] += 1
        arrived = now.count[NEW]
        while now.due_s[now.ends[1]] == at_s:
            _end(given, now, log, attempts, at_s, now.ends[1])
        if given.way == BOUND:
            _bound(given, now, chance, draw, at_s, arrived)
        else:
            _greedy(given, now, log, chance, draw, at_s)
    return True
