"""Running jobs that may be stragglers: those expected to end last, and those that have run longest."""

from functools import partial
from math import inf, nextafter

from lib.schedule.policies.hybrid.estimator import Estimator
from lib.schedule.policies.queues import Entry, LazyHeap
from lib.schedule.state import Action, CoreBudget, Finished, Restart, Running, Start, State, Wait, refining

_PAYS = 0.8  # of a running job's time left, that a restart elsewhere may take
_OVERDUE = 2.0  # times its estimate, from which a running job tells that it is longer
_CANDIDATES = 4  # running jobs of each order that are considered
_DRIFT = 0.01  # sum of the changes of estimates, in log time, below which decisions are not made again
_STALE = 0.05  # share of the running jobs that ended since the orders were made, from which they are made again


def _runs(state: State, entry: Entry) -> bool:
    """Return whether what an entry (key, device, start) names still runs."""
    ran = state.running.get(entry[1])
    return ran is not None and ran.start_s == entry[2]


class Stragglers:
    """Running jobs in two orders, because the time left is the estimate less the time passed, or a share of the time passed.

    Both orders stay as time passes, so the job with the most time left is at the front of one of them. They follow from the
    estimates at a job's start; once these have changed, and enough jobs ended, the orders are made again.
    """

    def __init__(self, state: State, estimator: Estimator):
        self._last, self._next_s = None, 0.0
        self._left_types = {}  # by job: a stopped job does not go back
        self._order(state, estimator)

    def _order(self, state: State, estimator: Estimator) -> None:
        self._ends, self._starts, self._due = LazyHeap(), LazyHeap(), LazyHeap()
        self._push(state, estimator, state.running)
        self._drift, self._news = estimator.drift, 0

    def _push(self, state: State, estimator: Estimator, devices) -> None:
        """Add what runs on devices to both orders, and to those that may become overdue, as (key, device, start)."""
        for device in devices:
            if ran := state.running.get(device):
                begin_s = ran.start_s + state.setup_s[state.type_of[device]]
                seconds = estimator.seconds(ran.job, state.type_of[device])
                self._ends.push((-(begin_s + seconds), device, ran.start_s))
                self._due.push((max(begin_s + _OVERDUE * seconds, state.now_s), device, ran.start_s))
                self._starts.push((begin_s, device, ran.start_s))

    def update(self, state: State, estimator: Estimator) -> None:
        """Take in what started since the last call."""
        self._push(state, estimator, state.started)
        self._news += len(state.finished)
        count = len(state.running)
        drifted = estimator.drift - self._drift > _DRIFT and self._news > _STALE * count
        if drifted or len(self._ends) + len(self._starts) > 8 * count + 256:
            with refining(state):
                self._order(state, estimator)

    def overdue(self, state: State) -> list[Finished]:
        """Return jobs that have run for _OVERDUE times their estimate, and again each time that this has doubled."""
        late = []
        while (entry := self._due.first(partial(_runs, state))) and entry[0] <= state.now_s:
            _, device, start_s = self._due.take()
            ran, worked_s = state.running[device], state.worked_s(state.running[device])
            self._due.push((state.now_s + max(worked_s, 1e-9 + 1e-9 * state.now_s), device, start_s))
            if worked_s > 0:
                late.append(Finished(ran.job, state.type_of[device], worked_s))
        return late

    def restarts(self, state: State, estimator: Estimator) -> list[Action]:
        """Restart running jobs on free devices where they would end much earlier than where they are.

        The last answer holds while the candidates, the free types and the estimates are the same and nothing is overdue.
        """
        idle, running = [device_type for device_type, free in enumerate(state.free) if free], state.running
        if not idle or not running:
            return []

        devices = set()
        for order in (self._ends, self._starts) if estimator.sigma > 0 else (self._ends,):
            for entry in order.smallest(_CANDIDATES, partial(_runs, state)):
                order.push(entry)
                devices.add(entry[1])
        last = self._last
        if last and last[0] == (devices, idle) and estimator.drift - last[1] <= _DRIFT and state.now_s < last[2]:
            return last[3]
        late = sorted(((estimator.left_s(state, running[device]), running[device]) for device in devices),
                      key=lambda candidate: -candidate[0])
        actions, until_s = self._chosen(state, estimator, late[:_CANDIDATES], idle)
        moved = bool(actions)
        if until_s < inf:
            self._next_s = until_s
            actions.append(Wait("a running job may become a straggler", until_s))
        self._last = None if moved or state.free_cores < inf else ((devices, idle), estimator.drift, until_s, actions)
        return actions

    def _chosen(self, state: State, estimator: Estimator, late: list[tuple[float, Running]],
                idle: list[int]) -> tuple[list[Action], float]:
        """Return what to restart on another type, and when to decide again (inf: at the next event)."""
        actions, taken, wait_s, budget = [], set(), inf, CoreBudget(state)
        for left_s, ran in late:
            here = state.type_of[ran.device]
            for there_s, there in sorted((estimator.seconds(ran.job, device_type) + state.setup_s[device_type], device_type)
                                         for device_type in idle):
                device = next((device for device in state.idle(there, len(taken) + 1) if device not in taken), None)
                if device is None or there == here or there in self._left_types.get(ran.job, ()) or there_s == inf or \
                        not budget.has(ran.job, there):
                    continue
                if there_s < _PAYS * left_s:
                    taken.add(device)
                    budget.take(ran.job, there)
                    self._left_types.setdefault(ran.job, set()).add(here)
                    actions.append(Restart(ran.job, device))
                    again_s = there_s
                else:  # when it will be so overdue that moving it pays
                    again_s = max(there_s / (_PAYS * max(estimator.sigma, 1e-9)) - state.worked_s(ran), 0.01 * there_s)
                wait_s = min(wait_s, again_s)
                break
        until_s = max(state.now_s + wait_s, nextafter(state.now_s, inf))  # the wait may be less than a bit of the clock
        return actions, until_s if estimator.sigma > 0 else inf

    def look_again(self, state: State, estimator: Estimator, starts: list[Start]) -> list[Action]:
        """Wait until the first job should have ended, if devices are left to move one to, or to give one that waits."""
        if estimator.sigma <= 0 or len(starts) >= sum(map(len, state.free)):
            return []
        if len(starts) < len(state.waiting):
            first = self._due.first(partial(_runs, state))
            return [Wait("a running job may take longer than estimated", first[0])] if first and first[0] > state.now_s else []
        if self._next_s <= state.now_s:
            left_s = (estimator.left_s(state, ran) for ran in state.running.values())
            self._next_s = state.now_s + min(left_s, default=inf)
        first_s = min(estimator.seconds(start.job, state.type_of[start.device]) for start in starts)
        self._next_s = max(min(self._next_s, state.now_s + first_s), nextafter(state.now_s, inf))
        return [Wait("a job that was started may become a straggler", self._next_s)]

