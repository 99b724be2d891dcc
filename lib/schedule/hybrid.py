"""The hybrid policy: estimate times, assign jobs to devices, start them, restart overdue ones.

1. Estimate. Predictions are believed as far as they come true (``estimates``).
2. Assign. A linear programme says which device type each job is for (Lenstra, Shmoys and Tardos,
   1990); it is rounded, and moves and swaps of jobs shorten the makespan (``assignment``).
3. Start. While predictions are exact, every device runs the jobs assigned to it. Otherwise jobs are
   bound late: an idle device takes the longest job assigned to its type, or a job of another type
   if that is no loss. Jobs are assigned again as others finish.
4. Restart. Once no job waits, a running job moves to an idle device where it would end much
   earlier.

Other objectives change the order of starts (completion times, deadlines), or what is minimised
beside the makespan (energy, price).
"""

from dataclasses import dataclass, field

import numpy as np

from lib.errors import InputError
from lib.schedule import energy, estimates
from lib.schedule.assignment import ROUNDS, assign
from lib.schedule.baselines import MATCHED, affinity, aging, allox, edf
from lib.schedule.estimates import Estimate
from lib.schedule.state import Action, Predict, Restart, Running, Starts, State, Wait

OBJECTIVES = ("makespan", "mean_jct", "p99_jct", "deadline", "energy", "price")
MARGIN = 1.5  # standard deviations by which a job ends before the makespan where it is not fastest
AGAIN = 0.05  # finished jobs, as a share of the waiting, after which jobs are assigned again
PAYS = 0.8  # of the time that a running job has left: a restart must take less
OVERDUE = 1.01  # times its estimate that a job has worked
STILL = 0.3  # of the time that an overdue job has worked: it is expected to take as much still


@dataclass
class Memory:
    """What ``hybrid`` remembers between decisions, above all the last assignment."""

    late: bool = False  # jobs are bound late, since predictions were not exact
    device_of: np.ndarray = field(default_factory=lambda: np.empty(0, int))  # (jobs), -1: none
    present: np.ndarray = field(default_factory=lambda: np.empty(0, int))  # devices at that time
    finished: int = 0  # jobs that had finished
    end_s: float = 0.0  # expected makespan
    moved: set[tuple[int, int]] = field(default_factory=set)  # restarted jobs, types they left


def hybrid(state: State, predict: Predict, objective: str = "makespan") -> list[Action]:
    """Start waiting jobs in pursuit of an objective; restart running jobs where that pays.

    Raises InputError where the objective needs watts or prices that are missing, and for energy or
    price where jobs need several devices.
    """
    if objective in ("energy", "price") and (state.jobs.gang > 1).any():
        raise InputError(f"the objective {objective} is not pursued where jobs need several "
                         "devices at once")
    memory = state.memory.setdefault("hybrid", Memory())
    estimate = estimates.estimate(state, predict)
    memory.late |= not estimate.exact
    if not len(state.waiting) and objective not in ("energy", "price"):
        return restarts(state, estimate, memory)
    if objective in ("makespan", "energy", "price"):
        starts = assigned_starts(state, estimate, memory, objective)
    else:
        starts = ordered_starts(state, estimate, objective)
    return [*starts, *look_again(state, estimate, starts)]


def ordered_starts(state: State, estimate: Estimate, objective: str) -> list[Action]:
    """Start jobs in the order that a deadline, or the p99 or mean of completion times, asks for."""
    predict = Predict(estimate.seconds - state.setup_s, estimate.sigma)
    if objective == "deadline":
        return edf(state, predict)
    if objective == "p99_jct":
        return aging(state, predict)
    at_once = not state.expected and np.ptp(state.jobs.arrival_s) == 0
    if at_once and len(state.jobs) <= MATCHED and (state.jobs.gang == 1).all():
        return allox(state, predict)
    return affinity(state, predict)


def assigned_starts(state: State, estimate: Estimate, memory: Memory,
                    objective: str) -> list[Action]:
    """Start on each idle device the longest job assigned to it, or bound late to its type."""
    starts, jobs = Starts(state), state.waiting
    if not len(jobs) or not len(state.free):
        return starts
    update_assignment(state, estimate, memory, objective)
    late = memory.late and objective == "makespan"
    seconds, device_of = estimate.seconds[jobs], memory.device_of[jobs]
    type_of, waits = np.where(device_of < 0, -1, state.type_of[device_of]), np.ones(len(jobs), bool)
    for kind in np.argsort(state.fleet.cpu, kind="stable"):  # jobs on GPUs get host cores first
        for device in list(starts.idle(kind)):
            rows = np.flatnonzero(waits & (type_of == kind if late else device_of == device))
            if late and not len(rows):
                rows = other_jobs(seconds, waits, kind, memory.end_s - state.now_s)
            if not len(rows):
                continue
            row = rows[seconds[rows, kind].argmax()]
            if not starts.fits(jobs[row], kind):
                starts.free_cores = 0.0  # what is left is kept for this job
                break
            waits[row] = False
            starts.start(jobs[row], [device])
    return starts


def other_jobs(seconds: np.ndarray, waits: np.ndarray, kind: int, left_s: float) -> np.ndarray:
    """Return the waiting job that loses least here, within ``left_s`` or if fastest; or nothing."""
    here = seconds[:, kind]
    elsewhere = np.delete(seconds, kind, axis=1).min(axis=1, initial=np.inf)
    rows = np.flatnonzero(waits & np.isfinite(here) & ((here <= left_s) | (here <= elsewhere)))
    return rows[np.argsort(here[rows] / elsewhere[rows], kind="stable")[:1]]


def update_assignment(state: State, estimate: Estimate, memory: Memory, objective: str) -> None:
    """Assign the waiting jobs to devices, if there are new ones or enough new estimates."""
    present = np.union1d(state.free, [ran.device for ran in state.running]).astype(int)
    counts = np.bincount(state.type_of[present], minlength=len(state.counts))
    times = np.where(counts > 0, estimate.seconds[state.waiting], np.inf)
    runs = np.isfinite(times).any(axis=1)
    jobs, times = state.waiting[runs], times[runs]
    new = np.full(len(state.jobs) - len(memory.device_of), -1)
    memory.device_of = np.append(memory.device_of, new)
    changed = (memory.device_of[jobs] < 0).any() or not np.array_equal(present, memory.present)
    finished = len(state.finished.job)
    learned = memory.late and finished - memory.finished >= max(1, AGAIN * len(jobs))
    if not len(jobs) or not (changed or learned):
        return
    ready_s = np.zeros(len(state.fleet))
    for ran in state.running:
        ready_s[ran.device] = left_s(state, estimate, ran)
    cost_s, rounds = None, None if memory.late else ROUNDS
    if objective != "makespan":
        cost_s = energy.objective_cost_s(state, jobs, times, objective)
        rounds = 0 if memory.late and len(memory.present) else ROUNDS  # assigned again: in less time
    margin = np.exp(MARGIN * estimate.sigma)
    rows, least_s = assign(times, state.type_of[present], ready_s[present], cost_s, margin, rounds)
    memory.device_of[jobs], memory.present = present[rows], present
    memory.finished, memory.end_s = finished, state.now_s + least_s


def left_s(state: State, estimate: Estimate, ran: Running) -> float:
    """Return the seconds until a job is expected to end; the longer it is overdue, the more."""
    worked_s, kind = state.worked_s(ran), state.type_of[ran.device]
    whole_s = estimate.seconds[ran.job, kind] - state.setup_s[kind]
    if worked_s > OVERDUE * whole_s:
        return max(estimate.sigma, STILL) * worked_s
    return max(whole_s - worked_s, (OVERDUE - 1.0) * whole_s)


def restarts(state: State, estimate: Estimate, memory: Memory) -> list[Action]:
    """Restart running jobs on idle devices of another type where they would end much earlier."""
    actions, idle, seconds = [], Starts(state), estimate.seconds
    running = [ran for ran in state.running if state.jobs.gang[ran.job] == 1]
    for ran in sorted(running, key=lambda ran: -left_s(state, estimate, ran)):
        here = state.type_of[ran.device]
        kinds = [kind for kind in range(len(state.counts)) if kind != here and idle.idle(kind)
                 and (ran.job, kind) not in memory.moved and idle.fits(ran.job, kind)]
        kind = min(kinds, key=lambda kind: seconds[ran.job, kind], default=here)
        if kind != here and seconds[ran.job, kind] < PAYS * left_s(state, estimate, ran):
            idle.free_cores -= state.cores[ran.job, kind]
            memory.moved.add((ran.job, here))
            actions.append(Restart(ran.job, idle.idle(kind).pop(0)))
    return actions or look_again(state, estimate, actions)


def look_again(state: State, estimate: Estimate, starts: list[Action]) -> list[Action]:
    """Wait, if all jobs run and a device stays idle, until the next job is overdue."""
    if len(starts) < len(state.waiting) or len(starts) >= len(state.free):
        return []
    started = [Running(start.job, start.device, state.now_s, 1) for start in starts]
    ends_s = [left_s(state, estimate, ran) for ran in [*state.running, *started]]
    next_s = max(state.now_s + min(ends_s, default=np.inf), np.nextafter(state.now_s, np.inf))
    return [Wait("a running job may be overdue", next_s)]
