"""Short probes of workloads on slots, and the predicted times of jobs that follow from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lib import files
from lib.errors import InputError, choices
from lib.schedule.durations import Duration, Durations
from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs
from lib.schedule.runtime import executor
from lib.schedule.runtime.journal import Spec
from lib.schedule.runtime.local_site import fleet_of
from lib.schedule.runtime.workers import Limits, Site

PROBE_S = 0.8
_GUESS_S = 10.0


@dataclass(frozen=True)
class Probes:
    """``times``: (workload, device type) -> setup_s, step_s; ``failed``: the same -> why it could not be probed there."""

    times: dict[tuple[str, str], dict[str, float]]
    failed: dict[tuple[str, str], str]

    def notes(self, workload_id: str = "") -> list[str]:
        """Return where a workload (empty: each) could not be probed, and why, a line each."""
        return [f"{name} could not be probed on {type_name}: {reason}" for (name, type_name), reason in self.failed.items()
                if workload_id in ("", name)]


def probe(workloads: Sequence[str], site: Site, fleet: Fleet, folder: Path, limits: Limits, alone: bool) -> Probes:
    """Return the set-up and the step, in s, of each workload on each device type, or why there are none.

    ``alone``: one slot at a time, as contention is known and comes on top; otherwise all slots of a type are at work at once,
    as they will be. Results stay in ``folder``; what failed is tried again by the next call.
    """
    names = list(dict.fromkeys(workloads))
    probes = Probes({}, {})
    for device_type, type_name in enumerate(fleet.types if names else ()):
        slots = [slot for slot, of in zip(site.slots, fleet.type_of, strict=True) if of == device_type][: 1 if alone else None]
        specs = [Spec(name, "lib.schedule.runtime.tasks:probe", {"workload_id": name, "seconds": PROBE_S}) for name in names]
        jobs = replace(Jobs.plain(len(specs)), ids=tuple(names))
        own = folder / f"{site.probes}-{files.safe_name(type_name)}-{slots[0].threads}{'-alone' if alone else ''}"
        guess_s = np.full((len(specs), 1), _GUESS_S)
        _, ends, _ = executor.execute(specs, jobs, fleet_of(tuple(slots)), slots, guess_s,
                                      registry.policy("first-come"), own, limits, site.spawn, again=lambda _: True)
        for row in ends.itertuples():
            if row.status == "done":
                probes.times[row.job_id, type_name] = row.result
            else:
                probes.failed[row.job_id, type_name] = row.reason
    return probes


def of_notebook(spec: Spec, durations: Durations, device_type: str) -> Duration:
    """Return how long the notebook of a job should take."""
    return durations.predicted(spec.arguments["path"], spec.arguments["parameters"], device_type)


def predicted_s(specs: Sequence[Spec], probes: Probes, site: Site, fleet: Fleet,
                durations: Durations | None = None) -> np.ndarray:
    """Return predicted seconds (jobs, types), inf where a job cannot run or its workload could not be probed.

    Raises InputError, with the reasons, for a job whose workload could not be probed where it can run.
    """
    durations = durations or Durations()
    table = np.full((len(specs), len(fleet.types)), np.inf)
    for job, spec in enumerate(specs):
        for device_type, type_name in enumerate(fleet.types):
            if "workload_id" not in spec.arguments:
                table[job, device_type] = of_notebook(spec, durations, type_name).seconds
            elif times := probes.times.get((spec.arguments["workload_id"], type_name)):
                table[job, device_type] = times["setup_s"] + times["step_s"] * spec.arguments["steps"]
    table = np.where(site.able, table, np.inf)
    for spec, row in zip(specs, table, strict=True):
        if np.isinf(row).all():
            why = choices(probes.notes(spec.arguments["workload_id"]))
            raise InputError(f"no slot can run job {spec.job_id!r}: {why}; the same call again probes anew what failed")
    return table
