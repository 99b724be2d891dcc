"""Which device runs which job: a linear programme, rounded, then moves and swaps of jobs."""

import numpy as np

from lib.schedule import bounds

ROUNDS, _ROUNDS_TIMES_JOBS = 100, 12_000  # most rounds of a search
_GAIN = 1e-9  # relative gain that a move or a swap must have
_DISTURBED = 4  # pairs of jobs that change places before the next round


def assign(times: np.ndarray, type_of: np.ndarray, ready_s: np.ndarray, cost_s: np.ndarray | None,
           margin: float, rounds: int | None) -> tuple[np.ndarray, float]:
    """Assign jobs to devices so that the makespan, or the sum of makespan and costs, is short.

    Returns the device of each job, and a lower bound of the makespan in s.

    Args:
        times: seconds (jobs, types) with set-up, inf where a job cannot run.
        type_of: type of each device.
        ready_s: when each device is free, s.
        cost_s: what a job adds on each type (jobs, types) to the sum; None: the makespan alone.
        margin: factor on the time of a job where it is not fastest; so long it must fit.
        rounds: improve the rounded assignment by moves and swaps, and so often again after a
            disturbance; None: leave it as it is rounded.
    """
    counts = np.bincount(type_of, minlength=times.shape[1])
    busy_s = np.bincount(type_of, ready_s, minlength=times.shape[1])
    if cost_s is None:
        fastest = times == times.min(axis=1, keepdims=True)
        ends_s = np.where(fastest, times, times * margin)
        relaxed = bounds.lst(times, counts, busy_s, ends_s=ends_s)
    else:
        relaxed = bounds.relaxation(times, counts, busy_s, cost_s=cost_s)
    device_of = rounded(times, relaxed.share, type_of, ready_s)
    if rounds is not None:
        rounds = min(rounds, _ROUNDS_TIMES_JOBS // len(times))
        exchanges = Exchanges(times, type_of, ready_s, cost_s)
        device_of = exchanges.search(device_of, relaxed.makespan_s, rounds)
    return device_of, relaxed.makespan_s


def rounded(times: np.ndarray, share: np.ndarray, type_of: np.ndarray,
            ready_s: np.ndarray) -> np.ndarray:
    """Return devices of the type with most of each job's share: the longest first, to the earliest."""
    types = share.argmax(axis=1)
    seconds = times[np.arange(len(times)), types]
    ends_s, device_of = ready_s.copy(), np.zeros(len(times), int)
    for job in np.argsort(-seconds, kind="stable"):
        devices = np.flatnonzero(type_of == types[job])
        device = device_of[job] = devices[ends_s[devices].argmin()]
        ends_s[device] += seconds[job]
    return device_of


class Exchanges:
    """Moves and swaps of jobs between devices that shorten the makespan, or its sum with costs.

    A move is a swap with one of the jobs of no length that follow the real ones, one per device.
    """

    def __init__(self, times: np.ndarray, type_of: np.ndarray, ready_s: np.ndarray,
                 cost_s: np.ndarray | None):
        self.ready_s, self.count, devices = ready_s, len(times), len(type_of)
        nothing = np.zeros((devices, devices))
        self.seconds = np.vstack([times[:, type_of], nothing])  # (jobs, devices)
        self.cost_s = None if cost_s is None else np.vstack([cost_s[:, type_of], nothing])

    def search(self, device_of: np.ndarray, least_s: float, rounds: int) -> np.ndarray:
        """Return the best of some improved assignments, each from the best one so far, disturbed.

        The search ends early when the makespan is ``least_s``.
        """
        draw, best = np.random.default_rng(0), self.improved(device_of)
        best_s = self.value_s(best)
        for _ in range(rounds):
            if best_s <= least_s * (1 + bounds.PROVEN):
                break
            changed = best.copy()
            for pair in draw.integers(len(best), size=(_DISTURBED, 2)):
                if np.isfinite(self.seconds[pair, changed[pair[::-1]]]).all():
                    changed[pair] = changed[pair[::-1]]
            changed = self.improved(changed)
            value_s = self.value_s(changed)
            if value_s <= best_s:
                best, best_s = changed, value_s
        return best

    def value_s(self, device_of: np.ndarray) -> float:
        """Return the makespan plus the costs."""
        cost_s = 0.0 if self.cost_s is None else self.cost_s[np.arange(self.count), device_of].sum()
        return float(self._ends_s(device_of).max() + cost_s)

    def improved(self, device_of: np.ndarray) -> np.ndarray:
        """Return the assignment after the best exchanges, one after another, until none gains.

        Without costs only jobs of the device that ends last are exchanged.
        """
        device_of = device_of.copy()
        while True:
            ends_s = self._ends_s(device_of)
            last = ends_s.argmax()
            jobs = np.arange(self.count)
            moved = np.flatnonzero(device_of == last) if self.cost_s is None else jobs
            swaps, moves = np.split(self._exchanged_s(device_of, ends_s, moved), [self.count], 1)
            best_move, best_swap = moves.min(initial=np.inf), swaps.min(initial=np.inf)
            if min(best_move, best_swap) >= ends_s[last] * (1 - _GAIN):
                return device_of
            if best_move <= best_swap:
                row, device = np.unravel_index(moves.argmin(), moves.shape)
            else:
                row, other = np.unravel_index(swaps.argmin(), swaps.shape)
                device, device_of[other] = device_of[other], device_of[moved[row]]
            device_of[moved[row]] = device

    def _ends_s(self, device_of: np.ndarray) -> np.ndarray:
        seconds = self.seconds[np.arange(self.count), device_of]
        return self.ready_s + np.bincount(device_of, seconds, minlength=len(self.ready_s))

    def _exchanged_s(self, device_of: np.ndarray, ends_s: np.ndarray,
                     moved: np.ndarray) -> np.ndarray:
        """Return the later end of both devices (moved, jobs) after each swap, plus costs."""
        here, there = device_of[moved], np.append(device_of, np.arange(len(ends_s)))
        jobs = np.arange(len(there))
        without_s = ends_s[there] - self.seconds[jobs, there]
        value_s = np.maximum(without_s[moved, None] + self.seconds[:, here].T,
                             without_s + self.seconds[np.ix_(moved, there)])
        if self.cost_s is not None:
            ended_s = np.append(ends_s, [0.0, 0.0])
            rest = np.argsort(-ended_s, kind="stable")[:3]  # the last device that is not exchanged
            not_first, not_second = ((here[:, None] != device) & (there != device)
                                     for device in rest[:2])
            rest_s = np.where(not_first, ended_s[rest[0]],
                              np.where(not_second, ended_s[rest[1]], ended_s[rest[2]]))
            cost_s = self.cost_s[jobs, there]
            value_s = np.maximum(value_s, rest_s) + (self.cost_s[:, here].T - cost_s)
            value_s += self.cost_s[np.ix_(moved, there)] - cost_s[moved, None]
        value_s[here[:, None] == there] = np.inf
        return value_s
