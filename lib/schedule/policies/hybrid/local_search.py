"""A plan for jobs whose times are known: the device of each job, by list scheduling, rounding and annealing.

Compiled (numba). The search ends after a number of steps, not of seconds, and takes its logarithms from ``portable`` (no
fastmath, no fused products), so the same steps give the same plan on any machine.
"""

from math import frexp

import numpy as np
from numba import njit

from lib.schedule import bounds, portable
from lib.schedule.portable import compiled

_SEED = 88172645463325252  # of the generator of all searches
_POWER = 5  # squarings: the 2^5 = 32nd norm of the devices' loads is nearly their maximum
_LARGE, _LEAST = 1e30, 1e-300
_LOST = 1e-6  # of the largest value of a running sum: below, it is summed again
_MARGIN = 2.0  # standard deviations of a device's load
_HOT, _COLD = 3e-3, 1e-6  # first and last temperature, as shares of the makespan
_HOTTEST, _FEW = 0.03, 10.0  # few jobs start hotter, as each is a large part of the makespan
_MOST_ROUNDED = 20_000  # jobs: beyond, the linear programme takes seconds, and list scheduling is a good start


@compiled
def _lpt(times, order, type_of, ready, types):
    """Assign each job, in the given order, to the device on which it ends first; return devices and loads."""
    load = ready.copy()
    assign = np.empty(len(times), np.int64)
    heaps = np.empty((types, len(load)), np.int64)
    sizes = np.zeros(types, np.int64)
    for device in np.argsort(load):
        device_type = type_of[device]
        heaps[device_type, sizes[device_type]] = device
        sizes[device_type] += 1
    for job in order:
        best, end = -1, np.inf
        for device_type in range(types):
            if sizes[device_type] and load[heaps[device_type, 0]] + times[job, device_type] < end:
                best, end = device_type, load[heaps[device_type, 0]] + times[job, device_type]
        device = heaps[best, 0]
        assign[job] = device
        load[device] = end
        node, size = 0, sizes[best]
        while True:  # sift down
            child = 2 * node + 1
            if child >= size:
                break
            if child + 1 < size and load[heaps[best, child + 1]] < load[heaps[best, child]]:
                child += 1
            if load[heaps[best, child]] >= load[device]:
                break
            heaps[best, node] = heaps[best, child]
            node = child
        heaps[best, node] = device
    return assign, load


@compiled
def _power(x):
    for _ in range(_POWER):
        x *= x
    return x


_log_of_ratio = njit(portable.log_of_ratio)


@compiled
def _log(value):
    """Return the logarithm of a positive number, as ``portable.log_one`` does."""
    mantissa, exponent = frexp(value)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    return _log_of_ratio((mantissa - 1.0) / (mantissa + 1.0), float(exponent))


@compiled
def _log1p(value):
    """Return the logarithm of 1 + value, near 0 without the rounding of that sum."""
    return _log_of_ratio(value / (2.0 + value), 0.0) if -0.25 < value < 0.25 else _log(1.0 + value)


@compiled
def _random(seed):
    """Return the next state of a xorshift generator (Marsaglia, 2003)."""
    seed ^= seed << np.uint64(13)
    seed ^= seed >> np.uint64(7)
    seed ^= seed << np.uint64(17)
    return seed


@compiled
def _proposed(times, extra, type_of, assign, load, square, job, partner, there):
    """Return loads and sums of squares of two devices, and the change of ``extra``, after a move or a swap.

    ``job`` goes to the device ``there``; ``partner`` (-1: no job) comes from there.
    """
    here = assign[job]
    type_here, type_there = type_of[here], type_of[there]
    leaves, comes = times[job, type_here], times[job, type_there]
    load_here, load_there = load[here] - leaves, load[there] + comes
    square_here, square_there = square[here] - leaves * leaves, square[there] + comes * comes
    change = extra[job, type_there] - extra[job, type_here]
    if partner >= 0:
        comes, leaves = times[partner, type_here], times[partner, type_there]
        load_here += comes
        load_there -= leaves
        square_here += comes * comes
        square_there -= leaves * leaves
        change += extra[partner, type_here] - extra[partner, type_there]
    return load_here, load_there, max(0.0, square_here), max(0.0, square_there), change


@compiled
def loads(times, type_of, ready, assign):
    """Return when each device, free at ``ready``, finishes the jobs that ``assign`` gives it."""
    load = ready.copy()
    for job in range(len(assign)):
        load[assign[job]] += times[job, type_of[assign[job]]]
    return load


@compiled
def _drawn(state, assign, devices):
    """Draw a move or a swap; return the generator's state, the job, its partner or -1, and the device to go to."""
    state = _random(state)
    job = np.int64(state >> np.uint64(33)) % len(assign)
    state = _random(state)
    draw = np.int64(state >> np.uint64(33))
    if draw % 2:
        partner = draw // 2 % len(assign)
        return state, job, partner, assign[partner]
    return state, job, np.int64(-1), draw // 2 % devices


@compiled
def _exponential(state):
    """Return an exponential variate: -log of a uniform variate within (0, 1]."""
    return -_log((float(state >> np.uint64(11)) + 1.0) / 9007199254740993.0)


@compiled
def _anneal(times, extra, type_of, ready, squares, risk, assign, scale, weight, steps, hot, cooling):
    """Anneal ``weight`` x (norm of the loads / scale) + ``extra`` (jobs, types) by moves and swaps; return the best plan.

    A load counts with a margin: ``risk`` times the root of the sum of its squared times.
    """
    devices = len(type_of)
    load, square = loads(times, type_of, ready, assign), loads(times * times, type_of, squares, assign)
    power = _power((load + risk * np.sqrt(square)) / scale)
    total, best, next_sum = power.sum(), assign.copy(), 0
    most = total
    cost, best_cost = 0.0, weight * (load + risk * np.sqrt(square)).max() / scale
    state = np.uint64(_SEED)
    temperature, exponent = hot, weight / (1 << _POWER)
    level = load.max() / scale  # of the makespan: what a relative change of the norm is worth
    for step in range(steps):
        temperature *= cooling
        state, job, partner, there = _drawn(state, assign, devices)
        here = assign[job]
        if here == there:
            continue
        load_here, load_there, square_here, square_there, change = _proposed(times, extra, type_of, assign, load, square, job,
                                                                             partner, there)
        if load_here > _LARGE or load_there > _LARGE:
            continue
        power_here = _power((load_here + risk * np.sqrt(square_here)) / scale)
        power_there = _power((load_there + risk * np.sqrt(square_there)) / scale)
        added = power_here + power_there - power[here] - power[there]
        delta = change + exponent * level * _log1p(max(-0.999999, added / max(total, _LEAST)))
        if delta > 0:
            state = _random(state)
            if delta > temperature * _exponential(state):
                continue
        assign[job] = there
        if partner >= 0:
            assign[partner] = here
        load[here], load[there], power[here], power[there] = load_here, load_there, power_here, power_there
        square[here], square[there] = square_here, square_there
        total, most, cost = total + added, max(most, total + added), cost + change
        if step >= next_sum or total < _LOST * most:  # a running sum gathers errors
            next_sum, total = step + devices, power.sum()
            most = total
            level = (load + risk * np.sqrt(square)).max() / scale
            now = weight * level + cost
            if now < best_cost:
                best_cost = now
                best[:] = assign
    if weight * (load + risk * np.sqrt(square)).max() / scale + cost < best_cost:
        best[:] = assign
    return best


def _list_plan(times: np.ndarray, type_of: np.ndarray, ready_s: np.ndarray, share: np.ndarray | None = None) -> np.ndarray:
    """Return the device of each job if each, the longest on average first, goes where it ends first.

    With ``share`` (jobs, types), that of the LP relaxation, each job goes to the type that has most of it.
    """
    if share is not None:
        times = np.where(np.arange(times.shape[1]) == share.argmax(axis=1)[:, None], times, np.inf)
    order = np.argsort(-np.nanmean(np.where(np.isfinite(times), times, np.nan), axis=1), kind="stable")
    return _lpt(_bounded(times), order, type_of, ready_s, times.shape[1])[0]


def _bounded(times: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(times), times, 1e3 * _LARGE)


def plan(times: np.ndarray, type_of: np.ndarray, ready_s: np.ndarray, steps: int,
         extra: np.ndarray | float = 0.0, start: np.ndarray | None = None, weight: float = 1.0,
         sigma: float = 0.0, running_s: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the device of each job that makes ``weight`` x makespan / first makespan + ``extra`` (jobs, types) small.

    ``times`` (jobs, types) in s, inf where a job cannot run; each can run somewhere. ``ready_s`` (devices): when each is free.
    ``start`` is a plan to improve instead of new plans. With times known to ``sigma`` (log), a device has a margin for its long
    jobs, among them the job that runs, which takes ``running_s`` in all.
    """
    counts = np.bincount(type_of, minlength=times.shape[1])
    if start is None:
        starts = [_list_plan(times, type_of, ready_s)]
        if len(times) <= _MOST_ROUNDED:
            solved = bounds.relaxation(times, counts, np.bincount(type_of, ready_s, minlength=times.shape[1]))
            starts.append(_list_plan(times, type_of, ready_s, solved.share))
        start = min(starts, key=lambda start: loads(times, type_of, ready_s, start).max())
    scale = float(loads(times, type_of, ready_s, start).max())
    hot = max(_HOT, min(_HOTTEST, _FEW / len(times) ** 2))
    cooling = portable.exp_one(portable.log_one(_COLD / hot) / steps)
    costs, squares = np.zeros(times.shape) + extra, np.zeros(len(type_of)) + running_s**2
    return _anneal(_bounded(times), costs, type_of, ready_s, squares, _MARGIN * sigma, start.astype(np.int64),
                   scale, weight, steps, hot, cooling)
