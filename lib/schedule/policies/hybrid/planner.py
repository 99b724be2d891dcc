"""A plan: a queue for each device, filled by a search, and corrected as jobs come late and devices run empty early."""

import heapq
from collections.abc import Iterable
from itertools import islice
from math import inf

import numpy as np

from lib.schedule.policies.colocation import Colocation
from lib.schedule.policies.hybrid.estimator import Estimator
from lib.schedule.policies.queues import Queues
from lib.schedule.state import Action, Start, State

_VICTIMS, _LOOK = 3, 24  # queues, and jobs from the end of each, that are looked at for one to take away


class Planner(Queues):
    """Queues, the one that ends last of which is found in a heap; how much there is that no search has seen yet.

    ``size``, ``new`` and ``ended``: jobs of the last plan, that came since, and that ended since; ``blocked``: whether a job
    waits for cores of the host.
    """

    def __init__(self, state: State):
        self._last: list[tuple[float, int]] = []
        super().__init__(state)
        self.size, self.new, self.ended, self.blocked = 0, 0, 0, False
        self._colocation = Colocation(state)

    def rebuild(self) -> None:
        """Make the heaps from ``end_s`` as it is."""
        super().rebuild()
        self._last = [(-end, device) for device, end in enumerate(self.end_s) if self.of[device]]
        heapq.heapify(self._last)

    def expect(self, device: int, end_s: float) -> None:
        """Note when a device will be done."""
        super().expect(device, end_s)
        if self.of[device]:
            heapq.heappush(self._last, (-end_s, device))

    def fill(self, jobs: np.ndarray, own_s: np.ndarray, assigned: np.ndarray, end_s: np.ndarray) -> None:
        """Fill the queues with jobs that take ``own_s`` on the devices ``assigned``, the longest of each device first."""
        for queue in self.of:
            queue.clear()
        order = np.argsort(-own_s, kind="stable")
        for job, device in zip(jobs[order].tolist(), assigned[order].tolist(), strict=True):
            self.of[device].append(job)
        self.load_s = np.bincount(assigned, own_s, minlength=len(self.of)).tolist()
        self.end_s, self.size, self.new, self.ended = end_s.tolist(), len(jobs), 0, 0
        self.rebuild()

    def assignment(self) -> dict[int, int]:
        """Return the device of each queued job."""
        return {job: device for device, queue in enumerate(self.of) for job in queue}

    def append(self, state: State, estimator: Estimator, job: int) -> int:
        """Put a job that came late where it ends first, on an idle device rather than one that is overdue; return where."""
        seconds = estimator.with_setup(job)
        end, device_type, device = self.best(state, seconds)
        idle = next(state.idle(device_type), None) if state.free[device_type] else None
        if idle is not None and not self.of[idle] and state.now_s + seconds[device_type] <= end:
            device = idle
        self.put(job, device, seconds[device_type], end)
        return device

    def starts(self, state: State, estimator: Estimator, devices: Iterable[int], steal: bool) -> list[Action]:
        """Start the first jobs of the queues of free devices; one without a queue takes a job from another's.

        Where one of a type got nothing, the others would not either. What lacks cores of the host is tried again.
        """
        actions: list[Action] = []
        cores, left, vain = state.free_cores, len(state.waiting), set()
        for device in devices:
            device_type, queue = state.type_of[device], self.of[device]
            if not queue and left and steal and device_type not in vain and \
                    not self._steal(state, estimator, device, device_type):
                vain.add(device_type)
            if not queue:
                self.expect(device, state.now_s)
                continue
            number = self._colocation.pick(state, queue, device_type)
            if number:
                job = queue[number]
                del queue[number]
                queue.appendleft(job)
            if cores != inf:
                need = state.cores(queue[0], device_type)
                if need > cores + 1e-9:
                    self.blocked, cores = True, 0.0  # kept for this one
                    continue
                cores -= need
            left -= 1
            actions.append(Start(self.pop(device, 0.0), device))
        return actions

    def _steal(self, state: State, estimator: Estimator, device: int, device_type: int) -> bool:
        """Take a job from a queue that is expected to end last, if it ends earlier here; return whether there was one."""
        ready = state.now_s + state.setup_s[device_type]
        for victim in self._ending_last(_VICTIMS):
            best, least = -1, self.end_s[victim] - ready
            for job in islice(reversed(self.of[victim]), _LOOK):
                here = estimator.seconds(job, device_type)
                if here < least:
                    best, least = job, here
            if best >= 0:
                self.of[victim].remove(best)
                there = state.type_of[victim]
                self.expect(victim, self.end_s[victim] - estimator.seconds(best, there) - state.setup_s[there])
                self.put(best, device, least, ready + least)
                return True
        return False

    def _ending_last(self, count: int) -> list[int]:
        """Return the devices with a queue that are expected to be done last, the last first."""
        last: list[tuple[float, int]] = []
        while self._last and len(last) < count:
            entry = heapq.heappop(self._last)
            if self.of[entry[1]] and -entry[0] == self.end_s[entry[1]] and (not last or entry != last[-1]):
                last.append(entry)
        for entry in last:
            heapq.heappush(self._last, entry)
        return [device for _, device in last]
