"""Simulated runs: the backend of the event loop whose clock jumps from event to event."""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.schedule.loop import Arrived, Ended, Event, Loop, Row
from lib.schedule.problem import Problem
from lib.schedule.state import Policy


class Faults(NamedTuple):
    """The chance that an attempt fails somewhere on its way, and how often a job is tried."""

    chance: float = 0.0
    attempts: int = 3
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """The ``schedule`` of a problem, a row per attempt and device, and seconds of decisions."""

    schedule: pd.DataFrame
    problem: Problem
    decide_s: np.ndarray  # empty: not timed

    @property
    def attempts_done(self) -> pd.DataFrame:
        """Return the attempts that ended well, one row per device."""
        return self.schedule[self.schedule["status"] == "done"]

    @property
    def done(self) -> pd.DataFrame:
        """Return the attempts that ended well, one per job."""
        return self.attempts_done.drop_duplicates("job")


class SimulatedBackend:
    """Attempts take the actual times of a problem; some fail on their way."""

    def __init__(self, problem: Problem, faults: Faults):
        self.problem, self.now_s, self.expected = problem, 0.0, len(problem.jobs)
        self._faults, self._draw = faults, np.random.default_rng(faults.seed)
        self._running: dict[int, tuple[int, bool]] = {}  # attempt -> its job, and whether it will fail
        self._failures = [0] * len(problem.jobs)
        self._numbers = count()  # events of one moment happen in the order in which they became known
        arrival_s = problem.jobs.arrival_s.tolist()
        self._arrivals = deque(sorted(zip(arrival_s, range(len(arrival_s)), strict=True)))
        self._ends: list[tuple[float, int, int]] = []  # a heap of time, number, attempt

    def start(self, attempt: int, job: int, devices: tuple[int, ...]) -> None:
        """Let an attempt end after the job's actual time, or fail before."""
        fleet, fails = self.problem.fleet, self._draw.random() < self._faults.chance
        device_type = fleet.type_of[devices[0]]
        seconds = float(fleet.setup_s[device_type] + self.problem.actual_s[job, device_type])
        if fails:
            seconds *= self._draw.random()
        self._running[attempt] = job, fails
        heapq.heappush(self._ends, (self.now_s + seconds, next(self._numbers), attempt))

    def stop(self, attempt: int) -> None:
        """Forget an attempt."""
        del self._running[attempt]

    def events(self, until_s: float) -> list[Event] | None:
        """Jump to the next moment at which something happens, or to ``until_s``."""
        while self._ends and self._ends[0][2] not in self._running:
            heapq.heappop(self._ends)  # of an attempt that was stopped
        known_s = [events[0][0] for events in (self._arrivals, self._ends) if events]
        next_s = min([until_s, *known_s])
        if next_s == np.inf:
            return None
        self.now_s, happened = next_s, []
        while self._arrivals and self._arrivals[0][0] == next_s:
            happened.append(Arrived(self._arrivals.popleft()[1]))
        self.expected = len(self._arrivals)
        while self._ends and self._ends[0][0] == next_s:
            attempt = heapq.heappop(self._ends)[2]
            if attempt in self._running:
                happened.append(Ended(attempt, self._status(*self._running.pop(attempt))))
        return happened

    def _status(self, job: int, fails: bool) -> str:
        if not fails:
            return "done"
        self._failures[job] += 1
        return "retried" if self._failures[job] < self._faults.attempts else "failed"


def table(problem: Problem, rows: Sequence[Row]) -> pd.DataFrame:
    """Return attempts as the schedule of an Outcome: jobs and devices by number and by name."""
    attempts = pd.DataFrame(rows, columns=Row._fields)
    ids = pd.array(list(problem.jobs.ids), dtype="str")
    names = pd.array(list(problem.fleet.names), dtype="str")
    return attempts.assign(job_id=ids.take(attempts["job"]),
                           device=names.take(attempts["device_index"]))


def simulate(problem: Problem, policy: Policy, faults: Faults | None = None) -> Outcome:
    """Run a policy, which sees the predictions, in simulated time; jobs take their actual times.

    Raises PolicyError when the policy wants what cannot be done, or leaves jobs waiting for ever.
    """
    loop = Loop(policy, SimulatedBackend(problem, faults or Faults()))
    loop.run()
    return Outcome(table(problem, loop.rows), problem, np.array(loop.decide_s))
