"""A mixed queue on two CPU slots, one slowed by a set factor: how long it takes, beside its plan and first come first served.

Jobs sleep, so that a busy machine changes little. What its test, in a time of its own, and its benchmark, for real, share.
"""

from dataclasses import dataclass

import numpy as np

from lib.schedule.policies import registry
from lib.schedule.runtime.journal import Spec
from lib.schedule.runtime.service import Service
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot

FACTOR = 3.0
SLOTS = (Slot("cpu-fast[0]"), Slot("cpu-slow[0]"))


def seconds_on(spec, device_type):
    return spec.arguments["seconds"] * (FACTOR if device_type.startswith("cpu-slow") else 1.0)


def doze(job, seconds):
    """Sleep as long as a job takes on this slot."""
    from tests.light import sleep

    return sleep(job, seconds_on(Spec("", "", {"seconds": seconds}), job.device))


def jobs_of(count, mean_s, seed):
    """Return jobs of which a few are long: log-normal, so that it matters which of them the slow slot gets, and when."""
    draw = np.random.default_rng(seed).lognormal(0.0, 0.8, count)
    return [Spec(f"j{number}", "tests.placed:doze", {"seconds": float(seconds)})
            for number, seconds in enumerate(draw / draw.mean() * mean_s)]


@dataclass(frozen=True)
class Placed:
    """Seconds from the first start to the last end, as planned and as they were."""

    planned_s: float
    actual_s: float

    @property
    def ratio(self):
        return self.actual_s / self.planned_s


def run(folder, specs, policy, later=(), spawn=ProcessWorker):
    """Run jobs; add those of ``later`` as soon as a third of the first ones have ended. The plan is the last one made."""
    with Service(folder, registry.policy(policy), seconds_on, Limits(), spawn) as service:
        for slot in SLOTS:
            service.add_slot(slot)
        todo, plans = [specs, later] if later else [specs], []

        def until():
            ready = all(slot.ready for slot in service.slots)
            if todo and ready and (not plans or len(specs) - service.left >= len(specs) / 3):
                for spec in todo.pop(0):
                    service.submit(spec)
                plans.append(service.plan())
            return not (todo or service.left)

        service.run(until)
        attempts, ends = service.journal.attempts(), service.journal.results()
    assert set(ends["status"]) == {"done"} and len(ends) == len(specs) + len(later)
    first = attempts["start_s"].min()
    return Placed(plans[-1]["end_s"].max() - min(first, plans[-1]["start_s"].min()), ends["end_s"].max() - first)
