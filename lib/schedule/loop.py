"""The event loop: a policy decides, a backend runs. Simulations and real runs are this loop."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lib.errors import choices
from lib.schedule.state import SLACK, Finished, Policy, PolicyError, Predict, Restart, Running, State, Wait


class Arrived(NamedTuple):
    """A job now waits."""

    job: int


class Ended(NamedTuple):
    """An attempt is over: done, failed (given up), or retried or lost (the job waits again)."""

    attempt: int
    status: str


class Cancelled(NamedTuple):
    """A job is no longer wanted, whether it waits or runs."""

    job: int


class Lost(NamedTuple):
    """A device can run nothing for now."""

    device: int


class Back(NamedTuple):
    """A lost device can run jobs again."""

    device: int


Event = Arrived | Ended | Cancelled | Lost | Back


class Row(NamedTuple):
    """One device of one attempt that is over; ``attempt`` counts the attempts of the job."""

    job: int
    device_index: int
    start_s: float
    end_s: float
    attempt: int
    status: str


class _Attempt(NamedTuple):
    job: int
    devices: tuple[int, ...]
    start_s: float
    number: int


class Loop:
    """One run of a policy on a backend, with ``rows`` of attempts and seconds of decisions.

    A backend has a ``problem``, which may grow by jobs and devices, a clock ``now_s``, ``expected``
    (jobs still to arrive, if known), ``start(attempt, job, devices)``, ``stop(attempt)``, after
    which no event of that attempt follows, and ``events(until_s)``, which waits for events until
    then; None: nothing will ever happen again.
    """

    def __init__(self, policy: Policy, backend, on_row: Callable[[Row], None] = lambda row: None):
        self.policy, self.backend, self._on_row = policy, backend, on_row
        self.rows: list[Row] = []
        self.decide_s: list[float] = []
        self._waiting: dict[int, None] = {}  # a set in the order of arrival
        self._running: dict[int, _Attempt] = {}
        self._lost: set[int] = set()
        self._tries: dict[int, int] = {}
        self._finished = np.empty((0, 3))  # job, type, seconds; more rows than are used
        self._finished_count = self._attempts = 0
        self._memory: dict = {}

    def run(self) -> None:
        """Let events happen and the policy decide until nothing will happen any more.

        Raises PolicyError if jobs are left waiting, or the policy wants what cannot be done.
        """
        until_s = np.inf
        while (events := self.backend.events(until_s)) is not None:
            for event in events:
                self._handle(event)
            until_s = self._decide() if self._waiting or self._running else np.inf
        if self._waiting:
            ids = [self.backend.problem.jobs.ids[job] for job in list(self._waiting)[:3]]
            raise PolicyError(f"the policy left {len(self._waiting)} jobs waiting for ever, such "
                              f"as {choices(ids)}")

    def _handle(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._waiting[event.job] = None
        elif isinstance(event, Ended):
            attempt = self._end(event.attempt, event.status)
            if event.status == "done":
                self._learn(attempt)
            elif event.status in ("retried", "lost"):
                self._waiting[attempt.job] = None
        elif isinstance(event, Cancelled):
            self._waiting.pop(event.job, None)
            self._stop(event.job, "cancelled")
        elif isinstance(event, Lost):
            self._lost.add(event.device)
        else:
            self._lost.discard(event.device)

    def _end(self, number: int, status: str) -> _Attempt:
        attempt = self._running.pop(number)
        for device in attempt.devices:
            row = Row(attempt.job, device, attempt.start_s, self.backend.now_s, attempt.number,
                      status)
            self.rows.append(row)
            self._on_row(row)
        return attempt

    def _stop(self, job: int, status: str) -> bool:
        """Stop a job; return whether it ran."""
        for number, attempt in self._running.items():
            if attempt.job == job:
                self.backend.stop(number)
                self._end(number, status)
                return True
        return False

    def _learn(self, attempt: _Attempt) -> None:
        if self._finished_count == len(self._finished):
            more = np.empty((64 + self._finished_count, 3))
            self._finished = np.concatenate([self._finished, more])
        device_type = self.backend.problem.fleet.type_of[attempt.devices[0]]
        seconds = self.backend.now_s - attempt.start_s
        self._finished[self._finished_count] = attempt.job, device_type, seconds
        self._finished_count += 1

    def _state(self) -> State:
        """Return what the policy sees now."""
        problem, finished = self.backend.problem, self._finished[:self._finished_count]
        return State(
            jobs=problem.jobs, fleet=problem.fleet,
            waiting=np.fromiter(self._waiting, int, len(self._waiting)),
            free=np.setdiff1d(np.arange(len(problem.fleet)), list(self._busy())),
            cores=problem.cores, now_s=self.backend.now_s,
            running=[Running(attempt.job, device, attempt.start_s, attempt.number)
                     for attempt in self._running.values() for device in attempt.devices],
            finished=Finished(*finished[:, :2].T.astype(int), finished[:, 2]),
            free_cores=self._free_cores(), expected=self.backend.expected,
            joules=problem.energy and problem.energy.joules, memory=self._memory)

    def _decide(self) -> float:
        """Let the policy decide, and do what it says; return when it must decide again."""
        problem, state, until_s = self.backend.problem, self._state(), np.inf
        begin = time.perf_counter()
        actions = self.policy(state, Predict(problem.feasible_s, problem.sigma))
        self.decide_s.append(time.perf_counter() - begin)
        for action in actions:
            if isinstance(action, Wait):
                if action.until_s <= state.now_s:
                    raise PolicyError(f"the policy waits until {action.until_s} s, which is past")
                until_s = min(until_s, action.until_s)
            elif isinstance(action, Restart):
                if not self._stop(action.job, "moved"):
                    raise PolicyError(f"the policy restarted job {problem.jobs.ids[action.job]}, "
                                      "which does not run")
                self._waiting[action.job] = None
                self._start(action.job, (action.device,))
            else:
                self._start(action.job, (action.device, *action.others))
        return until_s

    def _start(self, job: int, devices: tuple[int, ...]) -> None:
        if obstacle := self._obstacle(job, devices):
            problem = self.backend.problem
            names = choices(problem.fleet.names[device] for device in devices)
            raise PolicyError(f"job {problem.jobs.ids[job]} cannot start on {names}: {obstacle}")
        del self._waiting[job]
        self._tries[job] = self._tries.get(job, 0) + 1
        self._attempts += 1
        attempt = _Attempt(job, devices, self.backend.now_s, self._tries[job])
        self._running[self._attempts] = attempt
        self.backend.start(self._attempts, job, devices)

    def _obstacle(self, job: int, devices: tuple[int, ...]) -> str:
        """Return why a job cannot start on devices now; empty if it can."""
        problem = self.backend.problem
        types = {int(problem.fleet.type_of[device]) for device in devices}
        device_type = min(types)
        if job not in self._waiting:
            return "it is not waiting"
        if len(set(devices)) != problem.jobs.gang[job]:
            return "it needs another number of devices at once"
        if len(types) > 1 or self._busy() & set(devices):
            return "not all are free, and of one type"
        if not problem.feasible[job, device_type]:
            return "it cannot run there"
        if problem.cores[job, device_type] * len(devices) > self._free_cores() + SLACK:
            return "too few cores of the host are free"
        return ""

    def _busy(self) -> set[int]:
        return self._lost.union(*(attempt.devices for attempt in self._running.values()))

    def _free_cores(self) -> float:
        problem, type_of = self.backend.problem, self.backend.problem.fleet.type_of
        if np.isinf(problem.fleet.host_cores):
            return np.inf
        return problem.fleet.host_cores - sum(
            problem.cores[attempt.job, type_of[attempt.devices[0]]] * len(attempt.devices)
            for attempt in self._running.values())
