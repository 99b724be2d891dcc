"""An event simulator: arrivals, failures, and predictions that are wrong."""

import heapq
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.schedule.problem import Problem
from lib.schedule.state import Policy, PolicyError, Predict, Restart, State, Wait

_ARRIVE, _END, _WAKE = 0, 1, 2
_ATTEMPT = ("job", "device_index", "start_s", "end_s", "attempt", "status")
ATTEMPTS = 3


class Faults(NamedTuple):
    """The chance that an attempt fails somewhere on its way, and how often a job is tried."""

    chance: float = 0.0
    attempts: int = ATTEMPTS
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """The ``schedule`` of a problem, one row per attempt and device, and the seconds of each decision (empty: not timed).

    ``refine_s`` is the part of each decision in which the policy planned again (``state.refining``).
    """

    schedule: pd.DataFrame
    problem: Problem
    decide_s: Sequence[float] = ()
    refine_s: Sequence[float] = ()

    @property
    def attempts_done(self) -> pd.DataFrame:
        """Return the attempts that ended well, a row a device."""
        return self.schedule[self.schedule["status"] == "done"]

    @property
    def done(self) -> pd.DataFrame:
        """Return the attempts that ended well, one per job."""
        return self.attempts_done.drop_duplicates("job")


def table(problem: Problem, columns: Iterable[Sequence]) -> pd.DataFrame:
    """Return attempts, given by the columns _ATTEMPT, as the schedule of an Outcome: jobs and devices by number and by name."""
    attempts = pd.DataFrame(dict(zip(_ATTEMPT, columns, strict=True)))
    ids, names = (pd.array(list(texts), dtype="str") for texts in (problem.jobs.ids, problem.fleet.names))
    return attempts.assign(job_id=ids.take(attempts["job"]), device=names.take(attempts["device_index"]))


class Simulation:
    """The events of one run."""

    def __init__(self, problem: Problem, policy: Policy, faults: Faults, state: State | None):
        jobs, devices = problem.jobs, len(problem.fleet)
        self.problem, self.policy, self.faults = problem, policy, faults
        self.state = state = state or State(jobs, problem.fleet)
        present = {*state.waiting, *(ran.job for ran in state.running.values())}
        state.expected = len(jobs) - len(present)
        state.joules = problem.energy and problem.energy.joules
        self.predict = Predict(problem.feasible_s, problem.sigma)
        self.rows = []  # of _ATTEMPT
        self.decide_s, self.refine_s = [], []
        self._attempts, self._failures = [0] * len(jobs), [0] * len(jobs)
        self._work_s = (problem.fleet.setup_s + problem.actual_s).tolist()
        self._draw = np.random.default_rng(faults.seed)
        order = [job for job in np.argsort(jobs.arrival_s, kind="stable").tolist() if job not in present]
        self._events = [(float(jobs.arrival_s[job]), number, _ARRIVE, job, 0) for number, job in enumerate(order)]
        self._numbers = count(len(order))
        self._version = [0] * devices  # of what runs on a device: ends pushed for an earlier version are outdated
        self._fails = [False] * devices
        self._others = {}  # further devices of a gang, by its first
        if present:  # the policy decides first; late jobs end at once
            self._push(state.now_s, _WAKE, 0)
            gangs = {}
            for device, ran in state.running.items():
                gangs.setdefault(ran.job, []).append(device)
            for device, *others in gangs.values():
                ran, self._others[device] = state.running[device], tuple(others)
                self._attempts[ran.job] = ran.attempt
                self._work(device, max(0.0, ran.start_s + self._work_s[ran.job][state.type_of[device]] - state.now_s))

    def run(self) -> Outcome:
        """Let all events happen; return the outcome."""
        state = self.state
        while self._events and self.step():
            pass
        if state.waiting:
            raise state.abandoned()
        schedule = table(self.problem, map(list, zip(*self.rows, strict=True)))
        return Outcome(schedule, self.problem, np.array(self.decide_s), np.array(self.refine_s))

    def step(self) -> bool:
        """Let all events of the next instant happen, then let the policy decide; return False if nothing is left to do."""
        state, events, now = self.state, self._events, self._events[0][0]
        state.now_s = now
        while events and events[0][0] == now:
            _, _, event, number, version = heapq.heappop(events)
            if event == _ARRIVE:
                state.arrive(number)
                state.expected -= 1
            elif event == _END and version == self._version[number]:
                self._end(number)
        if not state.waiting and not state.running and not events:
            return False
        self.decide()
        return True

    def decide(self) -> None:
        """Let the policy decide, and do what it says."""
        state, begin = self.state, time.perf_counter()
        actions = self.policy(state, self.predict)
        self.decide_s.append(time.perf_counter() - begin)
        self.refine_s.append(state.refined_s)
        state.refined_s = 0.0
        state.clear_news()
        for action in actions:
            if not isinstance(action, Wait):
                if isinstance(action, Restart):
                    self._stop(action.job)
                self._start(*action)
            elif action.until_s <= state.now_s:
                raise PolicyError(f"a policy wants to wait until {action.until_s} s, which is past")
            elif action.until_s < np.inf:
                self._push(action.until_s, _WAKE, 0)

    def _push(self, at_s: float, event: int, device: int) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), event, device, self._version[device]))

    def _work(self, device: int, seconds: float) -> None:
        """Let an attempt need ``seconds`` more."""
        self._push(self.state.now_s + seconds, _END, device)

    def _start(self, job: int, device: int, others: tuple[int, ...] = ()) -> None:
        devices = device, *others
        self.state.check_start(job, devices, self.predict)
        self._attempts[job] += 1
        self.state.start(job, devices, self._attempts[job])
        self._others[device] = others
        self._version[device] += 1
        fails = self._fails[device] = self._draw.random() < self.faults.chance
        self._work(device, self._work_s[job][self.state.type_of[device]] * (self._draw.random() if fails else 1.0))

    def _stop(self, job: int) -> None:
        """Stop a job that the policy moves."""
        device = next((device for device, ran in self.state.running.items() if ran.job == job), None)
        if device is None:
            raise PolicyError(f"the policy restarted job {self.problem.jobs.ids[job]}, which does not run")
        self._version[device] += 1
        self._log(device, "moved")
        self.state.waiting[job] = None

    def _log(self, device: int, status: str) -> None:
        """Free the devices of an attempt; log it, with a row a device."""
        for place in (device, *self._others.pop(device, ())):
            ran = self.state.stop(place)
            self.rows.append((ran.job, place, ran.start_s, self.state.now_s, ran.attempt, status))

    def _end(self, device: int) -> None:
        ran, state = self.state.running[device], self.state
        if not self._fails[device]:
            self._log(device, "done")
            state.finish(ran, state.now_s - ran.start_s)
            return
        self._failures[ran.job] += 1  # a job that was moved did not fail
        again = self._failures[ran.job] < self.faults.attempts
        self._log(device, "retried" if again else "failed")
        if again:
            state.arrive(ran.job)


def simulate(problem: Problem, policy: Policy, faults: Faults | None = None, state: State | None = None) -> Outcome:
    """Run a policy on a problem in simulated time: it sees the predictions, the jobs take their actual times.

    The run continues from ``state``, which it changes; by default nothing has arrived. Raises PolicyError when the policy wants
    what cannot be done or leaves jobs waiting for ever.
    """
    return Simulation(problem, policy, faults or Faults(), state).run()
