"""An event simulator: arrivals, failures, contention on the host, and predictions that are wrong."""

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.schedule.contention import Contention
from lib.schedule.problem import Problem, feasible
from lib.schedule.state import Finished, Policy, Predict, Restart, Start, State, Wait

_ARRIVE, _END, _WAKE = 0, 1, 2
ATTEMPTS = 3


class PolicyError(InputError):
    """A policy wants what cannot be done, or left jobs for ever."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong: the chance that an attempt fails somewhere on its way, and how often a job is tried."""

    chance: float = 0.0
    attempts: int = ATTEMPTS
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What happened: the ``schedule`` (a row an attempt), seconds of each decision (empty: not timed), and the problem.

    ``refine_s`` is the part of each decision in which the policy planned anew (``state.refining``).
    """

    schedule: pd.DataFrame
    decide_s: np.ndarray
    problem: Problem
    refine_s: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def plain_s(self) -> np.ndarray:
        """Return the seconds of each decision without planning anew."""
        return self.decide_s - self.refine_s if len(self.refine_s) else self.decide_s

    @property
    def done(self) -> pd.DataFrame:
        """Return the attempts that ended well, one a job."""
        return self.schedule[self.schedule["status"] == "done"]


@dataclass
class _Log:
    rows: list[tuple[int, int, float, float, int, str]] = field(default_factory=list)
    decide_s: list[float] = field(default_factory=list)
    refine_s: list[float] = field(default_factory=list)

    def outcome(self, problem: Problem) -> Outcome:
        """Return the log as tables."""
        columns = map(list, zip(*self.rows, strict=True)) if self.rows else ([],) * 6
        return Outcome(table(problem, *columns), np.array(self.decide_s), problem, np.array(self.refine_s))


def table(problem: Problem, job: Sequence[int], device: Sequence[int], start_s: Sequence[float], end_s: Sequence[float],
          attempt: Sequence[int], status: Sequence[str]) -> pd.DataFrame:
    """Return attempts as the schedule of an Outcome, jobs and devices by number and by name."""
    ids, names = (pd.array(list(texts), dtype="str") for texts in (problem.jobs.ids, problem.fleet.names))
    return pd.DataFrame({"job_id": ids.take(job), "device": names.take(device), "start_s": start_s, "end_s": end_s,
                         "attempt": attempt, "status": status, "job": job, "device_index": device})


class _Engine:
    """The events of one run; without contention an attempt's end is known when it starts."""

    def __init__(self, problem: Problem, policy: Policy, faults: Faults, contention: Contention | None,
                 known: Contention | None, state: State | None):
        self.problem, self.policy, self.faults, self.contention = problem, policy, faults, contention
        self.state = state or State.at_start(problem.jobs, problem.fleet)
        there = {*self.state.waiting, *(ran.job for ran in self.state.running.values())}
        self.state.expected = len(problem.jobs) - len(there)
        self.state.contention = known
        self.state.joules = problem.energy and problem.energy.joules
        self.predict = Predict(problem.feasible_s, problem.sigma)
        self.log, self.attempts, self.failures = _Log(), [0] * len(problem.jobs), [0] * len(problem.jobs)
        self._able, self._actual = feasible(problem), problem.actual_s.tolist()
        self._setup, self._type_of = problem.fleet.setup_s.tolist(), problem.fleet.type_of.tolist()
        self._draw = np.random.default_rng(faults.seed)
        order = [job for job in np.argsort(problem.jobs.arrival_s, kind="stable").tolist() if job not in there]
        self._events = [(float(problem.jobs.arrival_s[job]), number, _ARRIVE, int(job), 0) for number, job in enumerate(order)]
        self._number = len(self._events)
        self._version = [0] * len(problem.fleet)  # of what runs on a device: ends pushed for an earlier version no longer hold
        self._fails = [False] * len(problem.fleet)
        self._left: dict[int, float] = {}
        self._since = self.state.now_s
        if there:
            self._go_on()

    def _go_on(self) -> None:
        """Let what runs at the start end when it should, or at once where it is late; the policy decides first."""
        state = self.state
        self._push(state.now_s, _WAKE, 0, 0)
        for device, ran in state.running.items():
            self.attempts[ran.job] = ran.attempt
            work = self._setup[self._type_of[device]] + self._actual[ran.job][self._type_of[device]]
            left = max(0.0, ran.start_s + work - state.now_s)
            if self.contention:
                self._left[device] = left
            else:
                self._push(state.now_s + left, _END, device, self._version[device])

    def run(self) -> Outcome:
        """Let all events happen; return what happened."""
        state, events = self.state, self._events
        while events:
            now = events[0][0]
            self._advance(now)
            while events and events[0][0] == now:
                _, _, event, what, version = heapq.heappop(events)
                if event == _ARRIVE:
                    state.waiting[what] = None
                    state.arrived.append(what)
                    state.expected -= 1
                elif event == _END and version == self._version[what]:
                    self._end(what)
            if not state.waiting and not state.running and not events:
                break
            begin = time.perf_counter()
            actions = self.policy(state, self.predict)
            self.log.decide_s.append(time.perf_counter() - begin)
            self.log.refine_s.append(state.refined_s)
            state.refined_s = 0.0
            state.clear_news()
            self._apply(actions)
            if self.contention:
                self._reschedule()
        if state.waiting:
            names = ", ".join(self.problem.jobs.ids[job] for job in list(state.waiting)[:3])
            raise PolicyError(f"the policy left {len(state.waiting)} jobs waiting for ever, such as {names}")
        return self.log.outcome(self.problem)

    def _apply(self, actions: list) -> None:
        for action in actions:
            if isinstance(action, Wait):
                if action.until_s < np.inf:
                    if action.until_s <= self.state.now_s:
                        raise PolicyError(f"a policy wants to wait until {action.until_s} s, which is past")
                    self._push(action.until_s, _WAKE, 0, 0)
            elif isinstance(action, Restart):
                self._restart(action)
            else:
                self._start(action)

    def _push(self, at_s: float, event: int, what: int, version: int) -> None:
        heapq.heappush(self._events, (at_s, self._number, event, what, version))
        self._number += 1

    def _start(self, action: Start) -> None:
        job, device = action
        state, device_type = self.state, self._type_of[device]
        if job not in state.waiting or device not in state.free[device_type] or not self._able[job, device_type]:
            why = ("it is not waiting" if job not in state.waiting else
                   "it cannot run there" if not self._able[job, device_type] else "the device is not free")
            raise PolicyError(f"the policy started job {self.problem.jobs.ids[job]} on {self.problem.fleet.names[device]}: "
                              f"{why}")
        if state.cores(job, device_type) > state.free_cores + 1e-9:
            raise PolicyError(f"job {self.problem.jobs.ids[job]} on {self.problem.fleet.names[device]} needs "
                              f"{state.cores(job, device_type):g} cores of the host, {state.free_cores:g} are free")
        self.attempts[job] += 1
        state.start(job, device, self.attempts[job])
        self._version[device] += 1
        work = self._setup[device_type] + self._actual[job][device_type]
        fails = self.faults.chance > 0 and self._draw.random() < self.faults.chance
        self._fails[device] = fails
        work *= self._draw.random() if fails else 1.0
        if self.contention:
            self._left[device] = work
        else:
            self._push(state.now_s + work, _END, device, self._version[device])

    def _restart(self, action: Restart) -> None:
        job, target = action
        device = next((device for device, ran in self.state.running.items() if ran.job == job), None)
        if device is None:
            raise PolicyError(f"the policy restarted job {self.problem.jobs.ids[job]}, which does not run")
        ran = self.state.stop(device)
        self._version[device] += 1
        self._left.pop(device, None)
        self.log.rows.append((job, device, ran.start_s, self.state.now_s, ran.attempt, "moved"))
        self.state.waiting[job] = None
        self._start(Start(job, target))

    def _end(self, device: int) -> None:
        state, device_type = self.state, self._type_of[device]
        ran = state.stop(device)
        self._left.pop(device, None)
        if not self._fails[device]:
            state.finished.append(Finished(ran.job, device_type, state.now_s - ran.start_s))
            state.done += 1
            self.log.rows.append((ran.job, device, ran.start_s, state.now_s, ran.attempt, "done"))
            return
        self.failures[ran.job] += 1  # a job that was moved did not fail
        again = self.failures[ran.job] < self.faults.attempts
        self.log.rows.append((ran.job, device, ran.start_s, state.now_s, ran.attempt, "retried" if again else "failed"))
        if again:
            state.waiting[ran.job] = None
            state.arrived.append(ran.job)

    # ------------------------------------------------------------------------------------------ contention

    def _rates(self) -> dict[int, float]:
        """Return the speed of each running device."""
        running = self.state.running
        job_class = self.problem.jobs.job_class
        occupants = {device: (int(job_class[running[device].job]), self._type_of[device]) for device in self._left}
        wanted = sum(self.state.cores(running[device].job, device_type) for device, (_, device_type) in occupants.items())
        return self.contention.rates(occupants, wanted)

    def _advance(self, now: float) -> None:
        if self.contention and self._left:
            passed, rates = now - self._since, self._rates()
            for device in self._left:
                self._left[device] = max(0.0, self._left[device] - passed * rates[device])
        self._since = self.state.now_s = now

    def _reschedule(self) -> None:
        """Push anew when each running attempt ends, at the rates that hold from now on."""
        rates = self._rates()
        for device, left in self._left.items():
            self._version[device] += 1
            self._push(self.state.now_s + left / rates[device], _END, device, self._version[device])


def simulate(problem: Problem, policy: Policy, faults: Faults | None = None, contention: Contention | None = None,
             known: Contention | None = None, state: State | None = None) -> Outcome:
    """Run a policy on a problem in simulated time: it sees the predictions, the jobs take their actual times.

    Under ``contention`` the times are those of a job alone; ``known`` is what the policy knows of it. It goes on from
    ``state``, which it changes; by default from the start, when nothing has arrived.
    Raises PolicyError, an InputError, when the policy wants what cannot be done or leaves jobs for ever.
    """
    return _Engine(problem, policy, faults or Faults(), contention, known, state).run()
