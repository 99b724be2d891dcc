"""A plan for jobs that are known: which device each should run on, by list scheduling, rounding, and annealing.

Compiled (numba). It ends after a number of steps, never of seconds, and takes its logarithms from ``portable`` (no fastmath, no
fused products), so that the same seed and steps give the same plan on any machine.
"""

from math import frexp

import numpy as np
from numba import njit

from lib.errors import InputError
from lib.schedule import bounds, portable
from lib.schedule.compilation import compiled

_POWER = 5  # squarings: the norm over the devices' loads is the 2^5 = 32nd, which is nearly their maximum
_LARGE, _LEAST = 1e30, 1e-300
_LOST = 1e-6  # of the largest that a running sum was: below, it is summed anew
_MARGIN = 2.0  # standard deviations of a device's load
_HOT, _COLD = 3e-3, 1e-6  # of the makespan, the temperatures between which is annealed
_HOTTEST, _FEW = 0.03, 10.0  # where jobs are few, each is a large part of the makespan, and so is each step up
_MOST_ROUNDED = 20_000  # jobs: beyond, list scheduling is near enough to start from, and the linear programme takes seconds


@compiled()
def _lpt(times, order, type_of, ready, types):
    """Give each job, in the given order, to the device on which it ends first; return devices and loads."""
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


@compiled()
def _power(x):
    for _ in range(_POWER):
        x *= x
    return x


_log_of_ratio = njit(portable.log_of_ratio)


@compiled()
def _log(value):
    """Return the logarithm of a positive number, as ``portable.log_one`` does."""
    mantissa, exponent = frexp(value)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    return _log_of_ratio((mantissa - 1.0) / (mantissa + 1.0), float(exponent))


@compiled()
def _log1p(value):
    """Return the logarithm of 1 + value, near 0 without the rounding of that sum."""
    return _log_of_ratio(value / (2.0 + value), 0.0) if -0.25 < value < 0.25 else _log(1.0 + value)


@compiled()
def _random(seed):
    """Return the next state of a xorshift generator (Marsaglia, 2003)."""
    seed ^= (seed << np.uint64(13)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    seed ^= seed >> np.uint64(7)
    seed ^= (seed << np.uint64(17)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    return seed


@compiled()
def _proposed(times, extra, type_of, assign, load, square, job, other, two):
    """Return loads and sums of squares of both devices, and the change of ``extra``.

    That is if ``job`` goes to ``two`` and ``other`` (or none: -1) comes instead.
    """
    one = assign[job]
    type_one, type_two = type_of[one], type_of[two]
    leaves, comes = times[job, type_one], times[job, type_two]
    load_one, load_two = load[one] - leaves, load[two] + comes
    square_one, square_two = square[one] - leaves * leaves, square[two] + comes * comes
    change = extra[job, type_two] - extra[job, type_one]
    if other >= 0:
        comes, leaves = times[other, type_one], times[other, type_two]
        load_one += comes
        load_two -= leaves
        square_one += comes * comes
        square_two -= leaves * leaves
        change += extra[other, type_one] - extra[other, type_two]
    return load_one, load_two, max(0.0, square_one), max(0.0, square_two), change


@compiled()
def _loads(times, type_of, ready, assign):
    load = ready.copy()
    for job in range(len(assign)):
        load[assign[job]] += times[job, type_of[assign[job]]]
    return load


@compiled()
def _drawn(state, assign, devices):
    """Draw a move or a swap; return the generator's state, the job, the other job or -1, and the device to go to."""
    state = _random(state)
    job = np.int64(state >> np.uint64(33)) % len(assign)
    state = _random(state)
    draw = np.int64(state >> np.uint64(33))
    if draw % 2:
        other = draw // 2 % len(assign)
        return state, job, other, assign[other]
    return state, job, np.int64(-1), draw // 2 % devices


@compiled()
def _exponential(state):
    """Return an exponential variate: -log of a uniform one within (0, 1]."""
    return -_log((float(state >> np.uint64(11)) + 1.0) / 9007199254740993.0)


@compiled()
def _anneal(times, extra, type_of, ready, squares, risk, assign, scale, weight, steps, hot, cooling, seed):
    """Anneal moves and swaps of ``weight`` x (norm of the loads / scale) + ``extra`` (jobs, types); return the best of all.

    A load counts with ``risk`` times the root of the sum of its squared times: how far it may be off.
    """
    devices = len(type_of)
    load, square = _loads(times, type_of, ready, assign), _loads(times * times, type_of, squares, assign)
    power = _power((load + risk * np.sqrt(square)) / scale)
    total, best, look = power.sum(), assign.copy(), 0
    most = total
    cost, best_cost = 0.0, weight * (load + risk * np.sqrt(square)).max() / scale
    state = np.uint64(seed * 2654435769 + 88172645463325252)
    temperature, exponent = hot, weight / (1 << _POWER)
    level = load.max() / scale  # of the makespan: what a relative change of the norm is worth
    for step in range(steps):
        temperature *= cooling
        state, job, other, two = _drawn(state, assign, devices)
        one = assign[job]
        if one == two:
            continue
        load_one, load_two, square_one, square_two, change = _proposed(times, extra, type_of, assign, load, square, job,
                                                                       other, two)
        if load_one > _LARGE or load_two > _LARGE:
            continue
        power_one = _power((load_one + risk * np.sqrt(square_one)) / scale)
        power_two = _power((load_two + risk * np.sqrt(square_two)) / scale)
        added = power_one + power_two - power[one] - power[two]
        delta = change + exponent * level * _log1p(max(-0.999999, added / max(total, _LEAST)))
        if delta > 0:
            state = _random(state)
            if delta > temperature * _exponential(state):
                continue
        assign[job] = two
        if other >= 0:
            assign[other] = one
        load[one], load[two], power[one], power[two] = load_one, load_two, power_one, power_two
        square[one], square[two] = square_one, square_two
        total, most, cost = total + added, max(most, total + added), cost + change
        if step >= look or total < _LOST * most:  # anew: a running sum gathers errors, the more when most of it is gone
            look, total = step + devices, power.sum()
            most = total
            level = (load + risk * np.sqrt(square)).max() / scale
            now = weight * level + cost
            if now < best_cost:
                best_cost = now
                best[:] = assign
    if weight * (load + risk * np.sqrt(square)).max() / scale + cost < best_cost:
        best[:] = assign
    return best


def list_plan(times: np.ndarray, type_of: np.ndarray, ready_s: np.ndarray) -> np.ndarray:
    """Return the device of each job when each, the longest on average first, goes where it ends first."""
    finite = np.where(np.isfinite(times), times, np.nan)
    order = np.argsort(-np.nanmean(finite, axis=1), kind="stable")
    return _lpt(_bounded(times), order, type_of, ready_s.astype(float), times.shape[1])[0]


def _bounded(times: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(times), times, 1e3 * _LARGE)


def _rounded(times: np.ndarray, type_of: np.ndarray, ready_s: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Give each job to the type that has most of it in the LP relaxation, and there to devices, the longest first."""
    chosen = share.argmax(axis=1)
    only = np.full(times.shape, 1e3 * _LARGE)
    only[np.arange(len(times)), chosen] = times[np.arange(len(times)), chosen]
    order = np.argsort(-times[np.arange(len(times)), chosen], kind="stable")
    return _lpt(only, order, type_of, ready_s.astype(float), times.shape[1])[0]


def loads(times: np.ndarray, type_of: np.ndarray, ready_s: np.ndarray, assign: np.ndarray) -> np.ndarray:
    """Return when each device is done with its jobs."""
    return _loads(times, type_of, ready_s.astype(float), assign)


def plan(times: np.ndarray, type_of: np.ndarray, ready_s: np.ndarray, steps: int, seed: int = 0,
         extra: np.ndarray | None = None, start: np.ndarray | None = None, weight: float = 1.0,
         sigma: float = 0.0, running_s: np.ndarray | None = None) -> np.ndarray:
    """Return the device of each job for a small ``weight`` x makespan / first makespan + ``extra`` (jobs, types).

    ``times`` (jobs, types) in s, inf where a job cannot run; ``ready_s`` (devices) says when each is free. The search takes
    ``steps`` steps. ``start`` is a plan to improve instead of new ones. With times known to ``sigma`` (log), a
    device counts with a margin for its long jobs; ``running_s`` is how long what runs there takes in all. Raises InputError
    where a job has no device.
    """
    if not np.isfinite(times).any(axis=1).all():
        raise InputError("a job has no device that can run it")
    counts = np.bincount(type_of, minlength=times.shape[1])
    if start is None:
        starts = [list_plan(times, type_of, ready_s)]
        if len(times) <= _MOST_ROUNDED:
            solved = bounds.relaxation(times, counts, np.bincount(type_of, ready_s, minlength=times.shape[1]))
            starts.append(_rounded(times, type_of, ready_s, solved.share))
        start = min(starts, key=lambda one: loads(times, type_of, ready_s, one).max())
    scale = float(loads(times, type_of, ready_s, start).max())
    hot = max(_HOT, min(_HOTTEST, _FEW / len(times) ** 2))
    cooling = portable.exp_one(portable.log_one(_COLD / hot) / steps)
    costs = np.zeros(times.shape) if extra is None else np.where(np.isfinite(times), extra, 0.0)
    squares = np.zeros(len(type_of)) if running_s is None else running_s.astype(float) ** 2
    return _anneal(_bounded(times), costs, type_of, ready_s.astype(float), squares, _MARGIN * sigma, start.astype(np.int64),
                   scale, weight, steps, hot, cooling, seed)
