"""Jobs that need several devices of one type at once (gangs), around a policy for other jobs.

EASY backfilling (Lifka, 1995): the gang that waits longest has a reservation, the moment at which
enough devices of one type are expected to be idle. Until then other jobs run on these devices only
if they are expected to end before: small jobs never starve a gang, and no gangs wait in a circle.
"""

from dataclasses import replace

import numpy as np

from lib.schedule.state import Action, Policy, Predict, Restart, Start, Starts, State

SLOWER = 2.0  # times its least time that a job may take where it fills in before a gang


def with_gangs(state: State, predict: Predict, policy: Policy) -> list[Action]:
    """Start gangs, then let ``policy`` start other jobs on what is left, then fill in before a gang that waits."""
    is_gang = state.jobs.gang[state.waiting] > 1
    if not (state.jobs.gang > 1).any():
        return policy(state, predict)
    starts, reserved = Starts(state), {}  # type -> devices of a gang that waits, and until when
    ready_s = state.now_s + state.ready_s(predict)
    present = [*state.free, *(ran.device for ran in state.running)]
    ready_s[np.setdiff1d(np.arange(len(ready_s)), present)] = np.inf
    for job in state.waiting[is_gang].tolist():
        begin_s, device_type, devices = _earliest(state, predict, job, ready_s)
        seconds = predict(job, device_type) + state.setup_s[device_type]
        are_idle = set(devices) <= set(starts.idle(device_type))
        waited_for, until_s = reserved.get(device_type, ([], np.inf))
        delays = bool(set(devices) & set(waited_for)) and begin_s + seconds > until_s
        if begin_s <= state.now_s and are_idle and not delays and starts.fits(job, device_type):
            starts.start(job, devices)
            ready_s[devices] += seconds
        elif device_type not in reserved and begin_s < np.inf:
            reserved[device_type] = devices, begin_s
    held = {device for start in starts for device in (start.device, *start.others)}
    held |= {device for devices, _ in reserved.values() for device in devices}
    others = replace(state, waiting=state.waiting[~is_gang], free_cores=starts.free_cores,
                     free=state.free[~np.isin(state.free, list(held))])
    actions = [action for action in policy(others, predict)
               if not (isinstance(action, Restart) and state.jobs.gang[action.job] > 1)]
    for action in actions:
        if isinstance(action, Start):
            starts.start(action.job, [action.device])
    started = {start.job for start in starts}
    waiting = np.array([job for job in others.waiting.tolist() if job not in started], int)
    for device_type, (devices, begin_s) in reserved.items():
        _fill_in(state, predict, starts, waiting, device_type, devices, begin_s)
    return [*starts, *(action for action in actions if not isinstance(action, Start))]


def _earliest(state: State, predict: Predict, job: int,
              ready_s: np.ndarray) -> tuple[float, int, list[int]]:
    """Return when a gang can begin where it ends first, the type, and the devices idle first."""
    count, options = int(state.jobs.gang[job]), []
    for device_type in range(len(state.counts)):
        seconds = predict(job, device_type) + state.setup_s[device_type]
        here = np.flatnonzero(state.type_of == device_type)
        if seconds < np.inf and len(here) >= count:
            devices = here[np.argsort(ready_s[here], kind="stable")][:count].tolist()
            begin_s = ready_s[devices[-1]]
            options.append((begin_s + seconds, begin_s, device_type, devices))
    _, begin_s, device_type, devices = min(options)
    return begin_s, device_type, devices


def _fill_in(state: State, predict: Predict, starts: Starts, waiting: np.ndarray, device_type: int,
             devices: list[int], until_s: float) -> None:
    """Start other jobs that end before a reservation on its idle devices, the longest first."""
    seconds = predict.table[waiting]
    here = seconds[:, device_type]
    fits = here + state.setup_s[device_type] <= until_s - state.now_s
    fits &= here <= SLOWER * seconds.min(axis=1, initial=np.inf)
    jobs = waiting[fits][np.argsort(-here[fits], kind="stable")].tolist()
    for device in devices:
        if device not in starts.idle(device_type):
            continue
        already = {start.job for start in starts}
        job = next((job for job in jobs if job not in already and starts.fits(job, device_type)), None)
        if job is not None:
            starts.start(job, [device])
