"""A plan: a queue for each device, filled by a search, and corrected as jobs come late and devices run empty early."""

from collections.abc import Iterable
from itertools import islice

import numpy as np

from lib.schedule.policies.hybrid.estimator import Estimator
from lib.schedule.policies.queues import LazyHeap, Queues
from lib.schedule.state import Action, CoreBudget, State

_VICTIMS, _CANDIDATES = 3, 24  # queues, and jobs from the end of each, among which an idle device takes one


class Planner(Queues):
    """Queues filled from a plan; ``new`` and ``ended`` count the jobs that came and that ended since."""

    def __init__(self, state: State):
        super().__init__(state)
        self.new, self.ended = 0, 0

    def rebuild(self) -> None:
        """Build the heaps from ``end_s``; ``_latest`` has the devices with a queue, the one that ends last first."""
        super().rebuild()
        self._latest = LazyHeap((-self.end_s[device], device) for device, queue in enumerate(self.jobs) if queue)

    def expect(self, device: int, end_s: float) -> None:
        """Note when a device is expected to finish."""
        super().expect(device, end_s)
        if self.jobs[device]:  # the same entry may be there twice
            self._latest.push((-end_s, device))

    def fill(self, jobs: np.ndarray, seconds: np.ndarray, assigned: np.ndarray, end_s: np.ndarray) -> None:
        """Fill the queues with jobs that take ``seconds`` on the devices ``assigned``, the longest of each device first."""
        for queue in self.jobs:
            queue.clear()
        order = np.argsort(-seconds, kind="stable")
        for job, device in zip(jobs[order].tolist(), assigned[order].tolist(), strict=True):
            self.jobs[device].append(job)
        self.end_s, self.new, self.ended = end_s.tolist(), 0, 0
        self.rebuild()

    def append(self, state: State, estimator: Estimator, job: int) -> int:
        """Put a late job where it ends first, on an idle device rather than an overdue one; return the device."""
        seconds = estimator.with_setup(job)
        end_s, device_type, device = self.earliest(state, seconds)
        for idle in state.idle(device_type, 1):
            if not self.jobs[idle] and state.now_s + seconds[device_type] <= end_s:
                device = idle
        self.put(job, device, seconds[device_type], end_s)
        return device

    def starts(self, state: State, estimator: Estimator, devices: Iterable[int], steal: bool) -> list[Action]:
        """Start the first jobs of the queues of free devices; with ``steal`` a device without a queue takes another's job.

        Where one device of a type finds nothing to take, the others are not tried. Jobs that lack host cores are blocked.
        """
        budget, in_vain = CoreBudget(state), set()
        for device in devices:
            device_type, queue = state.type_of[device], self.jobs[device]
            if not queue and len(budget.started) < len(state.waiting) and steal and device_type not in in_vain and \
                    not self._steal(state, estimator, device, device_type):
                in_vain.add(device_type)
            if not queue:
                self.expect(device, state.now_s)
                continue
            if not budget.start(queue[0], device):
                self.blocked.add(device)
                budget.left = 0.0  # these cores are kept for this job
                continue
            queue.popleft()
        return budget.actions

    def _steal(self, state: State, estimator: Estimator, device: int, device_type: int) -> bool:
        """Take a job from a queue that is expected to end last, if it ends earlier here; return whether there was one."""
        ready_s = state.now_s + state.setup_s[device_type]
        victims = {}
        while len(victims) < _VICTIMS and (entry := self._latest.first(
                lambda last: self.jobs[last[1]] and last[0] == -self.end_s[last[1]])):
            victims[entry[1]] = self._latest.take()
        for entry in victims.values():
            self._latest.push(entry)
        for victim in victims:
            best, least = -1, self.end_s[victim] - ready_s
            for job in islice(reversed(self.jobs[victim]), _CANDIDATES):
                here = estimator.seconds(job, device_type)
                if here < least:
                    best, least = job, here
            if best >= 0:
                self.jobs[victim].remove(best)
                there = state.type_of[victim]
                self.expect(victim, self.end_s[victim] - estimator.seconds(best, there) - state.setup_s[there])
                self.put(best, device, least, ready_s + least)
                return True
        return False
