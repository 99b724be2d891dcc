"""Jobs that share the cores of one host: who gets cores first, and who waits for cores."""

from collections.abc import Callable, Iterable
from math import inf

import numpy as np

from lib.schedule import bounds
from lib.schedule.state import State


def gpus_first(state: State, items: Iterable[int], type_of: Callable[[int], int]) -> Iterable[int]:
    """Return devices or types in the order in which they get host cores: if these are limited, CPUs come last."""
    return items if state.free_cores == inf else sorted(items, key=lambda item: state.fleet.cpu[type_of(item)])


def blocked_s(state: State, jobs: np.ndarray, times: np.ndarray, ready_s: np.ndarray) -> np.ndarray:
    """Return for how long each device is expected to stand idle because other jobs take the cores that it needs.

    This follows from the LP relaxation with the host's cores; the last CPU slots are those that wait.
    """
    blocked = np.zeros(len(ready_s))
    fleet = state.fleet
    host = bounds.host_of(state.jobs, fleet, jobs)
    if host is None:
        return blocked
    relaxed = bounds.relaxation(times, fleet.counts, fleet.by_type(ready_s), host)
    spent = np.where(relaxed.share > 0, relaxed.share * np.where(np.isfinite(times), times, 0.0), 0.0)
    for device_type in np.flatnonzero(fleet.cpu & (fleet.cpu_cores > 0)):
        cores = fleet.cpu_cores[device_type]
        elsewhere = (spent * host.taken).sum() - spent[:, device_type].sum() * cores
        idle_s = fleet.counts[device_type] * relaxed.makespan_s - (host.cores * relaxed.makespan_s - elsewhere) / cores
        for device in np.flatnonzero(fleet.type_of == device_type)[::-1]:
            blocked[device] = min(max(0.0, idle_s), relaxed.makespan_s)
            idle_s -= blocked[device]
    return blocked
