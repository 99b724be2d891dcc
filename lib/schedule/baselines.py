"""The baselines of the literature, as small functions of the state and the predictions.

MCT, MET: Maheswaran and others, "Dynamic matching and scheduling of independent tasks", HCW 1999 (StarPU's dmda is MCT).
LPT: Graham, 1969, here with the job's mean time over types, as HEFT ranks tasks (Topcuoglu and others, 2002). AlloX: Le and
others, EuroSys 2020. Seconds of waiting jobs are arrays (waiting, types), inf where a job cannot run.
"""

import numpy as np

from lib.schedule import bounds
from lib.schedule.state import Action, Policy, Predict, Starts, State

AGING = 2.0  # of the key of affinity, in the seconds that a job has waited
MATCHED = 1500  # waiting jobs that are matched at once, the shortest first: the matching's table grows with their square


def greedy(state: State, seconds: np.ndarray, key: np.ndarray) -> list[Action]:
    """Start waiting jobs on idle devices: always the pair of job and type with the smallest key, of equal keys the shortest."""
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
        row, device_type = divmod(int(np.where(key == least, seconds, np.inf).argmin()), key.shape[1])
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
    due_s = np.minimum(state.jobs.deadline_s[state.waiting, None], np.finfo(float).max)  # inf: no deadline
    return greedy(state, predict.table[state.waiting], due_s)


def affinity_key(seconds: np.ndarray) -> np.ndarray:
    """Return time x (time / shortest time): small for jobs that are short here, and shorter here than elsewhere."""
    return seconds * (seconds / seconds.min(axis=1, keepdims=True))


def affinity(state: State, predict: Predict) -> list[Action]:
    """Start short jobs first, on the types where they are fastest."""
    seconds = predict.table[state.waiting]
    return greedy(state, seconds, affinity_key(seconds))


def aging(state: State, predict: Predict) -> list[Action]:
    """Like ``affinity``, but a job that has waited long goes first: no job waits for ever."""
    seconds = predict.table[state.waiting]
    return greedy(state, seconds, state.jobs.arrival_s[state.waiting, None] + AGING * affinity_key(seconds))


def met(state: State, predict: Predict) -> list[Action]:
    """Minimum execution time: each job on its fastest type, first come first served."""
    seconds = predict.table[state.waiting]
    fastest = seconds == seconds.min(axis=1, keepdims=True)
    return greedy(state, np.where(fastest, seconds, np.inf), np.arange(len(seconds))[:, None])


def _only(state: State, predict: Predict, preferred: np.ndarray) -> list[Action]:
    """Serve first come first on the preferred types; a job that cannot run there may run on the others."""
    seconds = predict.table[state.waiting]
    there = np.isfinite(seconds[:, preferred]).any(axis=1)[:, None]
    return greedy(state, np.where(there & ~preferred, np.inf, seconds), np.arange(len(seconds))[:, None])


def cpu_only(state: State, predict: Predict) -> list[Action]:
    """Jobs on CPUs, but for those that can run on no CPU."""
    return _only(state, predict, state.fleet.cpu)


def gpu_only(state: State, predict: Predict) -> list[Action]:
    """Jobs on devices that are no CPU, but for those that can run on CPUs alone."""
    return _only(state, predict, ~state.fleet.cpu)


def _bound(state: State, predict: Predict, order: np.ndarray, name: str) -> list[Action]:
    """Bind new jobs, in this order, to the device where each ends first; start on each idle device the first job bound to it.

    The devices of bound jobs are kept in ``state.memory[name]`` (jobs), -1 for a job that is not bound.
    """
    device_of = state.memory.get(name, np.empty(0, int))
    device_of = state.memory[name] = np.append(device_of, np.full(len(state.jobs) - len(device_of), -1))
    lost = np.setdiff1d(np.arange(len(state.fleet)), [*state.free, *(ran.device for ran in state.running)])
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
    order = np.argsort(-predict.mean_s[state.waiting], kind="stable")
    return _bound(state, predict, state.waiting[order], "lpt")


def allox(state: State, predict: Predict) -> list[Action]:
    """Start jobs by the matching of jobs to places in queues that has the least sum of completion times (AlloX).

    It is solved again when jobs arrive. ``state.memory["allox"]`` keeps each job's type and place from the end.
    """
    plan = state.memory.get("allox", {})
    matched = [job for job in state.waiting.tolist() if plan.get(job)]
    if len(state.waiting) and not matched or any(job not in plan for job in state.waiting.tolist()):
        plan = state.memory["allox"] = _matched(state, predict)
        matched = [job for job in state.waiting.tolist() if plan.get(job)]
    starts = Starts(state)
    for job in sorted(matched, key=lambda job: (-plan[job][1], plan[job][2], job)):
        device_type = plan[job][0]
        if starts.idle(device_type) and starts.fits(job, device_type):
            starts.start(job, starts.idle(device_type)[:1])
    return starts


def _matched(state: State, predict: Predict) -> dict[int, tuple[int, int, float] | None]:
    """Return the type, the place from the end and the seconds of each waiting job; None for those that are not matched yet."""
    times = predict.table[state.waiting] + state.setup_s
    shortest = np.argsort(times.min(axis=1), kind="stable")[:MATCHED]
    _, types, places = bounds.matching(times[shortest], state.counts)
    seconds = times[shortest, types]
    plan: dict[int, tuple[int, int, float] | None] = dict.fromkeys(state.waiting.tolist())
    plan |= dict(zip(state.waiting[shortest].tolist(), zip(types.tolist(), places.tolist(), seconds.tolist(), strict=True),
                     strict=True))
    return plan


BASELINES: dict[str, Policy] = {
    "cpu-only": cpu_only, "gpu-only": gpu_only, "fcfs": fcfs, "met": met, "mct": mct, "lpt": lpt, "spt": spt,
    "affinity": affinity, "allox": allox, "edf": edf, "aging": aging}
