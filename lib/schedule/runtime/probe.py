"""Short samples of workloads on slots, and the predicted times of jobs that follow from them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs
from lib.schedule.runtime import executor
from lib.schedule.runtime.journal import Spec
from lib.schedule.runtime.workers import Limits, Site

SAMPLE_S = 0.8
_GUESS_S = 10.0
_NOTEBOOK_S = 60.0  # a notebook in quick mode ends within a minute

Samples = dict[tuple[str, str], dict[str, float]]  # (workload, type of slot) -> setup_s, step_s


def take(workloads: Sequence[str], site: Site, fleet: Fleet, folder: Path, limits: Limits, alone: bool,
         progress: Callable[[int], None] = lambda ended: None) -> Samples:
    """Return the set-up and the step, in s, of each workload on each type of slot.

    ``alone``: one slot at a time, as contention is known and comes on top; otherwise all slots of a type are at work at once,
    as they will be. Samples are kept in ``folder``; what failed is left out.
    """
    wanted = list(dict.fromkeys(workloads))
    found: Samples = {}
    for place, kind in enumerate(fleet.types if wanted else ()):
        mine = [number for number, of in enumerate(fleet.type_of) if of == place][: 1 if alone else None]
        asks = [Spec(name, "lib.schedule.runtime.tasks:sample", {"workload_id": name, "seconds": SAMPLE_S}) for name in wanted]
        jobs = replace(Jobs.plain(len(asks)), ids=tuple(wanted))
        part = Fleet.of({kind: len(mine)})
        slots = [site.slots[number] for number in mine]
        own = folder / f"{site.samples}-{kind.replace(':', '-')}-{slots[0].threads}{'-alone' if alone else ''}"
        _, ends, _ = executor.execute(asks, jobs, part, slots, np.full((len(asks), 1), _GUESS_S),
                                      registry.policy("first-come"), own, limits, site.hire, progress)
        found |= {(row.job_id, kind): row.result for row in ends.itertuples() if row.status == "done"}
    return found


def predicted_s(specs: Sequence[Spec], samples: Samples, fleet: Fleet) -> np.ndarray:
    """Return predicted seconds (jobs, types); a workload that could not be sampled on a type cannot run there (inf)."""
    table = np.full((len(specs), len(fleet.types)), np.inf)
    for number, spec in enumerate(specs):
        for place, kind in enumerate(fleet.types):
            if "workload_id" not in spec.arguments:
                table[number, place] = _NOTEBOOK_S
            elif held := samples.get((spec.arguments["workload_id"], kind)):
                table[number, place] = held["setup_s"] + held["step_s"] * spec.arguments["steps"]
    return table
