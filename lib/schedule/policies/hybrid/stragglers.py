"""Running jobs that may be stragglers: those expected to end last, and those that have run longest."""

from bisect import insort
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf, nextafter

from lib.schedule.policies.hybrid.estimator import Estimator
from lib.schedule.state import Action, Restart, Running, Start, State, Wait, refining

_PAYS = 0.8  # of what is left of a running job, that a restart elsewhere may take
_LOOK = 4  # running jobs that are looked at
_DRIFT = 0.01  # sum of the changes of estimates, in log time, below which nothing is looked at again
_STALE = 0.05  # share of the running jobs that are news since the order was made, and it is made anew

_Entry = tuple[float, int, float]  # (key, device, start): the smallest first


class _Front:
    """The few smallest of entries that come and go: ``front`` is in order, the rest lies in a heap."""

    def __init__(self, entries: list[_Entry]):
        heapify(entries)
        self._heap = entries
        self.front: list[_Entry] = []

    def __len__(self) -> int:
        return len(self.front) + len(self._heap)

    def push(self, entry: _Entry) -> None:
        """Take in an entry."""
        if self.front and entry < self.front[-1]:
            insort(self.front, entry)
            entry = self.front.pop() if len(self.front) > _LOOK else None
        if entry is not None:
            heappush(self._heap, entry)

    def first(self, valid: Callable[[_Entry], bool]) -> list[_Entry]:
        """Return the first few that are valid; others that are met are dropped."""
        if not all(map(valid, self.front)):
            self.front = list(filter(valid, self.front))
        while len(self.front) < _LOOK and self._heap:
            entry = heappop(self._heap)
            if valid(entry):
                self.front.append(entry)
        return self.front


class Stragglers:
    """Running jobs in two orders: what is left of one is what was estimated less what passed, or a share of what passed.

    Both orders stay as time passes, so that whatever has most left is at the front of one of them. They are those of the
    estimates at the time when a job started; once these have changed, and so many jobs ended, they are made anew.
    """

    def __init__(self, state: State, estimator: Estimator):
        self._last: tuple | None = None
        self._look_s = 0.0
        self._left_types: dict[int, set[int]] = {}  # where a job was stopped, it does not go back
        self._order(state, estimator)

    def _order(self, state: State, estimator: Estimator) -> None:
        devices = list(state.running)
        self._ends = _Front([self._by_end(state, estimator, device) for device in devices])
        self._starts = _Front([self._by_start(state, device) for device in devices])
        self._drift, self._news = estimator.drift, 0

    def _by_end(self, state: State, estimator: Estimator, device: int) -> _Entry:
        ran, device_type = state.running[device], state.type_of[device]
        return -(ran.start_s + state.setup_s[device_type] + estimator.seconds(ran.job, device_type)), device, ran.start_s

    def _by_start(self, state: State, device: int) -> _Entry:
        start = state.running[device].start_s
        return start + state.setup_s[state.type_of[device]], device, start

    def update(self, state: State, estimator: Estimator) -> None:
        """Take in what started since the last call."""
        running = state.running
        for device in state.started:
            if device in running:
                self._ends.push(self._by_end(state, estimator, device))
                self._starts.push(self._by_start(state, device))
        self._news += len(state.finished)
        count = len(running)
        drifted = estimator.drift - self._drift > _DRIFT and self._news > _STALE * count
        if drifted or len(self._ends) + len(self._starts) > 8 * count + 256:
            with refining(state):
                self._order(state, estimator)

    def restarts(self, state: State, estimator: Estimator) -> list[Action]:
        """Restart running jobs on free devices where they would end much earlier than where they are.

        Nothing is looked at again while what is first, the free types and the estimates are the same and nothing is overdue.
        """
        idle = [device_type for device_type, free in enumerate(state.free) if free]
        if not idle or not state.running:
            return []
        running = state.running

        def valid(entry: _Entry) -> bool:
            ran = running.get(entry[1])
            return ran is not None and ran.start_s == entry[2]

        ends = self._ends.first(valid)
        starts = self._starts.first(valid) if estimator.sigma > 0 else []
        devices = {entry[1] for entry in ends} | {entry[1] for entry in starts}
        last = self._last
        if last and last[0] == devices and last[1] == idle and estimator.drift - last[2] <= _DRIFT and state.now_s < last[3]:
            return last[4]
        late = sorted(((_left_s(state, estimator, running[device]), running[device]) for device in devices),
                      key=lambda one: -one[0])
        actions, until_s = self._chosen(state, estimator, late[:_LOOK], idle)
        moved = bool(actions)
        if until_s < inf:
            self._look_s = until_s
            actions.append(Wait("a running job may become a straggler", until_s))
        self._last = None if moved or state.free_cores < inf else (devices, idle, estimator.drift, until_s, actions)
        return actions

    def _chosen(self, state: State, estimator: Estimator, late: list[tuple[float, Running]],
                idle: list[int]) -> tuple[list[Action], float]:
        """Return what to restart on another type, and when to look again (inf: at the next event)."""
        actions, taken, look_s, cores = [], set(), inf, state.free_cores
        for left_s, ran in late:
            here = state.type_of[ran.device]
            for there_s, there in sorted((estimator.seconds(ran.job, one) + state.setup_s[one], one) for one in idle):
                device = next((device for device in state.idle(there) if device not in taken), None)
                if device is None or there == here or there in self._left_types.get(ran.job, ()) or there_s == inf or \
                        state.cores(ran.job, there) > cores:
                    continue
                if there_s < _PAYS * left_s:
                    taken.add(device)
                    cores -= state.cores(ran.job, there)
                    self._left_types.setdefault(ran.job, set()).add(here)
                    actions.append(Restart(ran.job, device))
                    again_s = there_s
                else:  # when it will be so overdue that moving it pays
                    passed_s = state.now_s - ran.start_s - state.setup_s[here]
                    again_s = max(there_s / (_PAYS * max(estimator.sigma, 1e-9)) - passed_s, 0.01 * there_s)
                look_s = min(look_s, again_s)
                break
        until_s = max(state.now_s + look_s, nextafter(state.now_s, inf))  # what is left may be less than a bit of the clock
        return actions, until_s if estimator.sigma > 0 else inf

    def look_again(self, state: State, estimator: Estimator, actions: list[Action]) -> list[Action]:
        """Wait until the first job should have ended, if all jobs run and devices are left to move one to."""
        starts = [action for action in actions if isinstance(action, Start)]
        if estimator.sigma <= 0 or len(starts) < len(state.waiting) or len(starts) >= sum(map(len, state.free)):
            return []
        if self._look_s <= state.now_s:  # the last look is over: of all that runs
            left_s = (_left_s(state, estimator, ran) for ran in state.running.values())
            self._look_s = state.now_s + min(left_s, default=inf)
        first_s = min(estimator.seconds(job, state.type_of[device]) for job, device in starts)
        self._look_s = max(min(self._look_s, state.now_s + first_s), nextafter(state.now_s, inf))  # less than a bit is left
        return [Wait("a job that was started may become a straggler", self._look_s)]


def _left_s(state: State, estimator: Estimator, ran: Running) -> float:
    device_type = state.type_of[ran.device]
    return estimator.left_s(ran.job, device_type, state.now_s - ran.start_s - state.setup_s[device_type])
