"""The event loop in arrays, compiled (numba): what ``compiled`` prepares, it plays.

Every choice and every tie falls as in ``simulate`` with ``policies``; the comments name what that hangs on.
"""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numba import njit

IN_LINE, BY_KEY, BOUND = 0, 1, 2  # how a policy chooses: in order of arrival, the smallest key first, a queue a device
STATUS = ("done", "retried", "failed")
_DONE, _RETRIED, _FAILED = range(3)
_inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)  # called from compiled code alone: half the time to compile


class Given(NamedTuple):
    """What does not change; times in s, (jobs, types). What a way to choose has no use for has no rows.

    ``order`` holds the jobs as they arrive, ``arrival_s`` when; ``work_s`` is what an attempt takes with set-up, NaN where it
    cannot run; ``may`` says where the policy puts a job. ``key`` and ``rank`` (types, jobs) order the jobs of a type,
    ``ranked`` is the job of a rank. ``turn`` is the key by which jobs of one instant are bound, as ``order`` has them too.
    """

    way: int
    order: np.ndarray
    arrival_s: np.ndarray
    type_of: np.ndarray
    work_s: np.ndarray
    said_s: np.ndarray
    may: np.ndarray
    key: np.ndarray
    rank: np.ndarray
    ranked: np.ndarray
    turn: np.ndarray


class Now(NamedTuple):
    """Where things stand: of jobs, of devices, and of what a way to choose keeps."""

    waits: np.ndarray  # (jobs) as what number it came to wait, 0: it does not
    tried: np.ndarray  # (jobs) attempts
    runs: np.ndarray  # (devices) which job, or _FREE
    since_s: np.ndarray  # (devices)
    fails: np.ndarray  # (devices)
    free: np.ndarray  # (types, devices) a stack: the device freed last is taken first
    idle: np.ndarray  # (types) how many are on it
    count: np.ndarray  # as _CAME and so on say
    idle_s: np.ndarray  # when first no waiting job was started; NaN: never
    news: np.ndarray  # (jobs) that came to wait at this instant
    freed: np.ndarray  # (devices) at this instant
    head: np.ndarray  # (types) in line: where the line was read to
    look: np.ndarray  # (types) whether a decision still looks at a type
    ready: np.ndarray  # (types, tree) by key: whether a rank waits
    queue: np.ndarray  # (devices, 2) bound: first and last job, -1: none
    after: np.ndarray  # (jobs) bound: the next of the queue
    took: np.ndarray  # (devices) bound: the job taken from the queue since ``late_s``
    late_s: np.ndarray  # (devices) bound: freed since jobs were last bound; NaN: not
    late: np.ndarray  # (devices) bound: those
    end_s: np.ndarray  # (devices and one that never ends) bound: when it is expected to be done
    leaf: np.ndarray  # (devices) bound: its place in the tree
    soonest: np.ndarray  # (types, tree) bound: which device is done first


# What is counted: jobs that came to wait, and at this instant; attempts started; jobs that wait; devices freed at this instant,
# and since jobs were last bound. At the end, if they are not -1, a job and a device that do not go together.
_CAME, _NEW, _STARTED, _WAITING, _FREED, _LATE, _WRONG_JOB, _WRONG_DEVICE = range(8)
COUNTS = (0, 0, 0, 0, 0, 0, -1, -1)
_FREE, _ASKED = -1, -2  # what runs on a device: nothing, and a decision is to look at its queue


# ------------------------------------------------------------------------------------------ jobs by rank


@_inner
def _put(tree, rank):
    """Let a rank wait. A node says whether anything below it does, so the smallest is found on one way down."""
    node = len(tree) // 2 + rank
    while node and not tree[node]:
        tree[node] = True
        node //= 2


@_inner
def _drop(tree, rank):
    node = len(tree) // 2 + rank
    tree[node] = False
    while node > 1 and not tree[node ^ 1]:
        node //= 2
        tree[node] = False


@_inner
def _least(tree):
    node, leaves = 1, len(tree) // 2
    while node < leaves:
        node = 2 * node if tree[2 * node] else 2 * node + 1
    return node - leaves


# ------------------------------------------------------------------------------------------ started from one pool


@_inner
def _first(given, now, line, place):
    """Return the first waiting job for a type, -1: none. One that was met as it did not wait is never met again as such.

    A job that is tried again waits once more under what it was entered with before and was not met: as in ``policies``.
    """
    if given.way == IN_LINE:
        head = now.head[place]
        while head < len(line) and not (given.may[line[head], place] and now.waits[line[head]]):
            head += 1
        now.head[place] = head
        return line[head] if head < len(line) else -1
    tree = now.ready[place]
    while tree[1]:
        rank = _least(tree)
        job = given.ranked[place, rank]
        if now.waits[job]:
            return job
        _drop(tree, rank)
    return -1


@_inner
def _start(given, now, ends, chance, draw, at_s, job, device):
    """Start a job; False where it cannot run."""
    work = given.work_s[job, given.type_of[device]]
    if np.isnan(work):
        now.count[_WRONG_JOB], now.count[_WRONG_DEVICE] = job, device
        return False
    now.waits[job] = 0
    now.count[_WAITING] -= 1
    now.count[_STARTED] += 1
    now.tried[job] += 1
    now.runs[device], now.since_s[device] = job, at_s
    now.fails[device] = chance > 0 and draw.random() < chance
    if now.fails[device]:
        work *= draw.random()
    heappush(ends, (at_s + work, now.count[_STARTED], device))
    return True


@_inner
def _greedy(given, now, line, ends, chance, draw, at_s):
    """Start waiting jobs on free devices, always the pair with the smallest (key, time, job, type)."""
    types = len(now.idle)
    for job in now.news[:now.count[_NEW]]:
        if given.way == IN_LINE:
            line.append(job)
        else:
            for place in range(types):
                if given.may[job, place]:
                    _put(now.ready[place], given.rank[place, job])
    for place in range(types):
        now.look[place] = now.idle[place] > 0
    while True:
        best, chosen = (np.inf, np.inf, types), -1
        for place in range(types):
            job = _first(given, now, line, place) if now.look[place] else -1
            if job >= 0:
                key = float(now.head[place]) if given.way == IN_LINE else given.key[job, place]
                found = (key, given.said_s[job, place], job)
                if chosen < 0 or found < best:
                    best, chosen = found, place
        if chosen < 0:
            return True
        if not now.idle[chosen]:
            now.look[chosen] = False
            continue
        now.idle[chosen] -= 1
        if not _start(given, now, ends, chance, draw, at_s, best[2], now.free[chosen, now.idle[chosen]]):
            return False


# ------------------------------------------------------------------------------------------ bound to a device


@_inner
def _expect(now, place, device, end_s):
    """Note when a device will be done; of equal ones the first of the fleet is soonest."""
    now.end_s[device] = end_s
    tree, node = now.soonest[place], now.leaf[device] // 2
    while node:
        left, right = tree[2 * node], tree[2 * node + 1]
        tree[node] = right if now.end_s[right] < now.end_s[left] else left
        node //= 2


@_inner
def _catch_up(given, now):
    """Correct what is expected of the devices freed since jobs were last bound.

    Nothing asked in between; each is corrected to what it was when it was freed last, summed from the front of its queue.
    """
    for device in now.late[:now.count[_LATE]]:
        place, left_s = given.type_of[device], 0.0
        if now.took[device] >= 0:
            left_s += given.said_s[now.took[device], place]
        job = now.queue[device, 0]
        while job >= 0:
            left_s += given.said_s[job, place]
            job = now.after[job]
        _expect(now, place, device, now.late_s[device] + left_s)
        now.late_s[device] = np.nan
    now.count[_LATE] = 0


@_inner
def _bind(given, now, at_s, job):
    """Give a job to the device on which it ends first; of equal ones to that of the first type."""
    best, chosen = np.inf, -1
    for place in range(len(now.idle)):
        if given.may[job, place]:
            device = now.soonest[place, 1]
            end_s = max(now.end_s[device], at_s) + given.said_s[job, place]
            if chosen < 0 or end_s < best:
                best, chosen = end_s, device
    if now.queue[chosen, 0] < 0:
        now.queue[chosen, 0] = job
    else:
        now.after[now.queue[chosen, 1]] = job
    now.queue[chosen, 1] = job
    now.after[job] = -1
    _expect(now, given.type_of[chosen], chosen, best)
    if now.runs[chosen] == _FREE:
        _ask(now, chosen)


@_inner
def _ask(now, device):
    """Let the decision look at the queue of a free device."""
    now.runs[device] = _ASKED
    now.freed[now.count[_FREED]] = device
    now.count[_FREED] += 1


@_inner
def _sort(items, keys):
    """Sort by key, and of equal ones as they stand."""
    heap = [(0.0, 0, 0) for _ in range(0)]
    for place in range(len(items)):
        heappush(heap, (keys[place], place, items[place]))
    for place in range(len(items)):
        items[place] = heappop(heap)[2]


@_inner
def _bound(given, now, ends, chance, draw, at_s, again):
    """Bind the jobs that are new, ``again`` of them tried again; start what the free devices hold, the first of the fleet first.

    Between decisions the queue of a free device is empty: to look at are those freed and those to which jobs are bound.
    """
    for device in now.freed[:now.count[_FREED]]:
        now.runs[device] = _ASKED
        if np.isnan(now.late_s[device]):
            now.late[now.count[_LATE]] = device
            now.count[_LATE] += 1
        now.late_s[device], now.took[device] = at_s, -1
    new = now.news[:now.count[_NEW]]
    if len(new):
        _catch_up(given, now)
    if again and len(new) > 1 and len(given.turn):  # those that arrive are in order
        _sort(new, given.turn[new])
    for job in new:
        _bind(given, now, at_s, job)
    asked = now.freed[:now.count[_FREED]]
    if len(asked) > 1:
        _sort(asked, asked.astype(np.float64))
    for device in asked:
        job = now.queue[device, 0]
        now.runs[device] = _FREE
        if job >= 0:
            now.queue[device, 0], now.took[device] = now.after[job], job
            if not _start(given, now, ends, chance, draw, at_s, job, device):
                return False
    return True


# ------------------------------------------------------------------------------------------ events


@_inner
def _wait(now, job):
    """Let a job wait."""
    now.news[now.count[_NEW]] = job
    now.count[_NEW] += 1
    now.count[_CAME] += 1
    now.count[_WAITING] += 1
    now.waits[job] = now.count[_CAME]


@_inner
def _end(given, now, rows, attempts, at_s, device):
    """End what runs on a device, note it, free the device; a job that failed may wait again."""
    job, place, status = now.runs[device], given.type_of[device], _DONE
    if now.fails[device]:
        status = _RETRIED if now.tried[job] < attempts else _FAILED
    rows.append((job, device, now.since_s[device], at_s, now.tried[job], status))
    now.runs[device] = _FREE
    now.freed[now.count[_FREED]] = device
    now.count[_FREED] += 1
    if given.way != BOUND:
        now.free[place, now.idle[place]] = device
        now.idle[place] += 1
    if status == _RETRIED:
        _wait(now, job)


@njit(cache=True)
def play(given, now, chance, attempts, draw):
    """Let all events happen; return the columns job, device, start, end, attempt and status, a row an attempt.

    All of one instant happen before one decision: arrivals in their order, then ends in the order of their starts.
    """
    line = [0 for _ in range(0)]
    ends = [(0.0, 0, 0) for _ in range(0)]
    rows = [(0, 0, 0.0, 0.0, 0, 0) for _ in range(0)]
    arrived, jobs = 0, len(given.order)
    if given.way == BOUND:
        now.end_s[:-1] = given.arrival_s[0]
    while arrived < jobs or len(ends):
        at_s = given.arrival_s[arrived] if arrived < jobs else np.inf
        if len(ends) and ends[0][0] < at_s:
            at_s = ends[0][0]
        now.count[_NEW] = now.count[_FREED] = 0
        while arrived < jobs and given.arrival_s[arrived] == at_s:
            _wait(now, given.order[arrived])
            arrived += 1
        came = now.count[_NEW]
        while len(ends) and ends[0][0] == at_s:
            _end(given, now, rows, attempts, at_s, heappop(ends)[2])
        waiting, started = now.count[_WAITING], now.count[_STARTED]
        if given.way == BOUND:
            well = _bound(given, now, ends, chance, draw, at_s, now.count[_NEW] - came)
        else:
            well = _greedy(given, now, line, ends, chance, draw, at_s)
        if not well:
            break
        if waiting and now.count[_STARTED] == started and np.isnan(now.idle_s[0]):
            now.idle_s[0] = at_s
    return _columns(rows)


@_inner
def _columns(rows):
    count = len(rows)
    job, device, attempt = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    start_s, end_s, status = np.empty(count), np.empty(count), np.empty(count, np.int64)
    for row in range(count):
        job[row], device[row], start_s[row], end_s[row], attempt[row], status[row] = rows[row]
    return job, device, start_s, end_s, attempt, status
