"""The baselines of the literature, as small functions of the state and the predictions.

MCT, MET: Maheswaran and others, HCW 1999. LPT: Graham, 1969, here with the job's mean time over
types, as HEFT ranks tasks (Topcuoglu and others, 2002). AlloX: Le and others, EuroSys 2020.
Seconds of waiting jobs are arrays (waiting, types), inf where a job cannot run.
"""

import numpy as np

from lib.schedule import bounds
from lib.schedule.state import Action, Policy, Predict, Starts, State

AGING = 2.0  # of the key of affinity, in the seconds that a job has waited
MATCHED = 1500  # waiting jobs, the shortest, that are matched at once


def greedy(state: State, seconds: np.ndarray, key: np.ndarray) -> list[Action]:
    """Start the pair of waiting job and type with the smallest key, of equal keys the shortest."""
    starts = Starts(state)
    cores = state.cores[state.waiting] * state.jobs.gang[state.waiting, None]
    key = np.where(np.isfinite(seconds), key, np.inf)
    while True:
        for device_type in range(key.shape[1]):
            if not starts.idle(device_type):
                key[:, device_type] = np.inf
        key[~starts.enough(cores)] = np.inf
        least = key.min(initial=np.inf)
        if least == np.inf:
            return starts
        cell = int(np.where(key == least, seconds, np.inf).argmin())
        row, device_type = divmod(cell, key.shape[1])
        starts.start(state.waiting[row], starts.idle(device_type)[:1])
        key[row] = np.inf


def fcfs(state: State, predict: Predict) -> list[Action]:
    """First come, first served, each job where it is fastest."""
    return greedy(state, predict.table[state.waiting], np.arange(len(state.waiting))[:, None])


def spt(state: State, predict: Predict) -> list[Action]:
    """Shortest processing time first, by the time on the job's fastest type."""
    seconds = predict.table[state.waiting]
    return greedy(state, seconds, seconds.min(axis=1, keepdims=True))


def edf(state: State, predict: Predict) -> list[Action]:
    """Earliest deadline first."""
    due_s = state.jobs.deadline_s[state.waiting, None]
    return greedy(state, predict.table[state.waiting], np.minimum(due_s, np.finfo(float).max))


def affinity_key(seconds: np.ndarray) -> np.ndarray:
    """Return time x (time / shortest time): small for short jobs that are fast here."""
    return seconds * (seconds / seconds.min(axis=1, keepdims=True))


def affinity(state: State, predict: Predict) -> list[Action]:
    """Start short jobs first, on the types where they are fastest."""
    seconds = predict.table[state.waiting]
    return greedy(state, seconds, affinity_key(seconds))


def aging(state: State, predict: Predict) -> list[Action]:
    """Like ``affinity``, but a job that has waited long goes first: no job waits for ever."""
    seconds = predict.table[state.waiting]
    arrival_s = state.jobs.arrival_s[state.waiting, None]
    return greedy(state, seconds, arrival_s + AGING * affinity_key(seconds))


def met(state: State, predict: Predict) -> list[Action]:
    """Minimum execution time: each job on its fastest type, first come first served."""
    seconds = predict.table[state.waiting]
    fastest = seconds == seconds.min(axis=1, keepdims=True)
    return greedy(state, np.where(fastest, seconds, np.inf), np.arange(len(seconds))[:, None])


def _only(state: State, predict: Predict, preferred: np.ndarray) -> list[Action]:
    """Serve first come first on the preferred types; a job that cannot run there may run on the others."""
    seconds = predict.table[state.waiting]
    there = np.isfinite(seconds[:, preferred]).any(axis=1)[:, None]
    seconds = np.where(there & ~preferred, np.inf, seconds)
    return greedy(state, seconds, np.arange(len(seconds))[:, None])


def cpu_only(state: State, predict: Predict) -> list[Action]:
    """Jobs on CPUs, but for those that can run on no CPU."""
    return _only(state, predict, state.fleet.cpu)


def gpu_only(state: State, predict: Predict) -> list[Action]:
    """Jobs on devices that are no CPU, but for those that can run on CPUs alone."""
    return _only(state, predict, ~state.fleet.cpu)


def _bound(state: State, predict: Predict, order: np.ndarray, name: str) -> list[Action]:
    """Bind new jobs, in this order, to the device where each ends first; start bound jobs.

    ``state.memory[name]`` (jobs) keeps the devices of bound jobs, -1 for a job that is not bound.
    """
    device_of = state.memory.get(name, np.empty(0, int))
    unbound = np.full(len(state.jobs) - len(device_of), -1)
    device_of = state.memory[name] = np.append(device_of, unbound)
    present = [*state.free, *(ran.device for ran in state.running)]
    lost = np.setdiff1d(np.arange(len(state.fleet)), present)
    device_of[np.isin(device_of, lost)] = -1
    new = order[device_of[order] < 0]
    if len(new):
        bound = order[device_of[order] >= 0]
        seconds = predict.table + state.setup_s
        ends_s = state.ready_s(predict)
        np.add.at(ends_s, device_of[bound], seconds[bound, state.type_of[device_of[bound]]])
        ends_s[lost] = np.inf
        for job in new:
            job_ends_s = ends_s + seconds[job, state.type_of]
            device = int(np.argmin(job_ends_s))
            if np.isfinite(job_ends_s[device]):
                device_of[job], ends_s[device] = device, job_ends_s[device]
    starts, bound_to = Starts(state), device_of[order]
    for device in state.free:
        mine = order[bound_to == device]
        if len(mine) and starts.fits(mine[0], state.type_of[device]):
            starts.start(mine[0], [device])
    return starts


def mct(state: State, predict: Predict) -> list[Action]:
    """Minimum completion time: each job, as it arrives, to the device where it ends first."""
    return _bound(state, predict, state.waiting, "mct")


def lpt(state: State, predict: Predict) -> list[Action]:
    """Longest processing time first, by the mean over the types, each where it ends first."""
    seconds = np.ma.masked_invalid(predict.table[state.waiting])
    order = np.argsort(-seconds.mean(axis=1).data, kind="stable")
    return _bound(state, predict, state.waiting[order], "lpt")


def allox(state: State, predict: Predict) -> list[Action]:
    """Start jobs by the matching to places in queues with the least sum of completion times.

    It is solved again when jobs arrive. ``state.memory["allox"]`` keeps each job's place from the
    end (negative), seconds and type.
    """
    plan, jobs = state.memory.get("allox", {}), state.waiting.tolist()
    if any(job not in plan for job in jobs) or (jobs and not any(plan[job] for job in jobs)):
        plan = state.memory["allox"] = _matched(state, predict)
    starts = Starts(state)
    matched = [job for job in jobs if plan[job]]
    for job in sorted(matched, key=lambda job: (plan[job][:2], job)):
        device_type = plan[job][2]
        if starts.idle(device_type) and starts.fits(job, device_type):
            starts.start(job, starts.idle(device_type)[:1])
    return starts


def _matched(state: State, predict: Predict) -> dict[int, tuple[int, float, int] | None]:
    times = predict.table[state.waiting] + state.setup_s
    shortest = np.argsort(times.min(axis=1), kind="stable")[:MATCHED]
    _, types, places = bounds.matching(times[shortest], state.counts)
    plan = dict.fromkeys(state.waiting.tolist())  # None: not matched yet
    for row, device_type, place in zip(shortest, types, places, strict=True):
        seconds = times[row, device_type]
        plan[int(state.waiting[row])] = -int(place), float(seconds), int(device_type)
    return plan


BASELINES: dict[str, Policy] = {
    "cpu-only": cpu_only, "gpu-only": gpu_only, "fcfs": fcfs, "met": met, "mct": mct, "lpt": lpt,
    "spt": spt, "affinity": affinity, "allox": allox, "edf": edf, "aging": aging}
