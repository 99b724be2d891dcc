"""A file of jobs carried out here or on a cluster: jobs.csv -> what to call, where it can run, how long it should take."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.params import workload
from lib.schedule import bounds, execute, policies, problem, trace
from lib.schedule.hand import WARM, Hire, Limits, Process, Site, Slot, cores_here
from lib.schedule.ledger import Spec
from lib.schedule.problem import Fleet, Jobs
from lib.schedule.simulate import simulate
from lib.schedule.state import Policy
from lib.tables import columns

_SAMPLE_S = 1.5
_NOTEBOOK_S = 60.0  # a notebook in quick mode ends within a minute


@dataclass(frozen=True)
class Campaign:
    """Jobs, slots and who is hired for them, the predicted seconds (jobs, types), and the policy with its name."""

    specs: tuple[Spec, ...]
    jobs: Jobs
    slots: tuple[Slot, ...]
    fleet: Fleet
    predicted_s: np.ndarray
    policy: Policy
    name: str
    hire: Hire = Process

    @property
    def asked(self) -> problem.Problem:
        """Return it as a problem whose predictions are exact."""
        return problem.Problem(self.jobs, self.fleet, self.predicted_s, self.predicted_s)


@dataclass(frozen=True)
class Ran:
    """What became of a campaign: attempts, ends, notes, and the makespan as simulated, as it was, and its bound, in s."""

    attempts: pd.DataFrame
    ends: pd.DataFrame
    notes: list[str]
    simulated_s: float
    makespan_s: float
    bound_s: float


def read(path: Path, out: Path) -> tuple[tuple[Spec, ...], Jobs]:
    """Read ``jobs.csv``: job_id, and workload_id with steps, or notebook; if given arrival_s, deadline_s, memory_mb, cpu_cores.

    Raises InputError naming the row that is wrong.
    """
    table = problem.job_table(path)
    specs = []
    for row in table.to_dict("records"):
        name, work, notebook = (row.get(column) for column in ("job_id", "workload_id", "notebook"))
        has_work, has_notebook = (isinstance(value, str) and bool(value.strip()) for value in (work, notebook))
        if has_work == has_notebook:
            raise InputError(f"{path}: job {name!r} must have a workload_id or a notebook, one of them")
        if has_notebook:
            specs.append(Spec(name, "lib.schedule.work:notebook", {"path": notebook, "parameters": {},
                                                                   "out": str(out / "notebooks" / f"{name}.ipynb")}))
            continue
        steps = row.get("steps")
        if pd.isna(steps) or steps != int(steps) or steps < 1:
            raise InputError(f"{path}: steps of {name!r} is {steps!r}: it is a whole number, 1 or more")
        specs.append(Spec(name, "lib.schedule.work:workload", {"workload_id": workload(work).id, "steps": int(steps)}))
    return tuple(specs), problem.jobs_of(table, path)


def slots_here(count: int = 0) -> tuple[Slot, ...]:
    """Return the slots of this machine's CPU, one a core (or ``count`` of equal size), and its GPUs.

    Raises InputError for more slots than cores.
    """
    cores = cores_here()
    count = count or len(cores)
    if not 1 <= count <= len(cores):
        raise InputError(f"{count} slots on {len(cores)} cores: it must be 1 to {len(cores)}")
    width = len(cores) // count
    from lib.measure import machine

    parts = [tuple(cores[number * width:(number + 1) * width]) for number in range(count)]
    found = [Slot(f"cpu[{'-'.join(str(core) for core in dict.fromkeys((part[0], part[-1])))}]", part, width, WARM)
             for part in parts]
    return (*found, *(Slot(name, warm=WARM) for name in machine.devices() if name.startswith("cuda")))


def here(jobs: Jobs, count: int = 0) -> Site:
    """Return the slots of this machine, on which every job is tried; InputError for more slots than cores."""
    slots = slots_here(count)
    return Site(slots, Process, np.ones((len(jobs), len(fleet_of(slots).types)), bool))


def fleet_of(slots: tuple[Slot, ...]) -> Fleet:
    """Return the slots as a fleet of types ``cpu`` and, each GPU being its own, ``cuda:0``, ..."""
    kinds = [slot.name.partition("[")[0] for slot in slots]
    types = tuple(dict.fromkeys(kinds))
    unknown = np.full(len(types), np.nan)
    return Fleet(tuple(slot.name for slot in slots), np.array([types.index(kind) for kind in kinds]), types, unknown, unknown,
                 unknown, unknown, np.zeros(len(types)), unknown)


def sampled(specs: tuple[Spec, ...], site: Site, fleet: Fleet, folder: Path, limits: Limits,
            progress: Callable[[int], None] = lambda ended: None) -> np.ndarray:
    """Return predicted seconds (jobs, types) from short samples of each workload on each type, all slots at work at once.

    Samples are kept in ``folder``. What failed to be sampled, or the site says is not able, cannot run there (inf).
    """
    wanted = list(dict.fromkeys(spec.arguments["workload_id"] for spec in specs if "workload_id" in spec.arguments))
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for place, kind in enumerate(fleet.types if wanted else ()):
        mine = tuple(slot for slot, of in zip(site.slots, fleet.type_of, strict=True) if of == place)
        asks = [Spec(name, "lib.schedule.work:sample", {"workload_id": name, "seconds": _SAMPLE_S}) for name in wanted]
        jobs = replace(Jobs.plain(len(asks)), ids=tuple(wanted))
        _, ends, _ = execute.execute(asks, jobs, fleet_of(mine), mine, np.full((len(asks), 1), 10.0),
                                     policies.policy("first-come"), folder / f"{site.samples}-{kind.replace(':', '-')}",
                                     limits, site.hire, progress)
        found |= {(row.job_id, kind): row.result for row in ends.itertuples() if row.status == "done"}
    table = np.full((len(specs), len(fleet.types)), np.inf)
    for number, spec in enumerate(specs):
        for place, kind in enumerate(fleet.types):
            if "workload_id" not in spec.arguments:
                table[number, place] = _NOTEBOOK_S
            elif held := found.get((spec.arguments["workload_id"], kind)):
                table[number, place] = held["setup_s"] + held["step_s"] * spec.arguments["steps"]
    return np.where(site.able, table, np.inf)


def prepare(path: Path, out: Path, name: str = "hybrid", objective: str = "makespan", count: int = 0,
            progress: Callable[[int], None] = lambda ended: None, where: Callable[[Jobs, int], Site] = here) -> Campaign:
    """Read a file of jobs, sample its workloads ``where`` they shall run, and return what can be run.

    Raises InputError for a wrong file, policy or objective, or a job that cannot run there, before anything is sampled.
    """
    policy, (specs, jobs) = policies.aimed(name, objective), read(path, out)
    site = where(jobs, count)
    fleet = fleet_of(site.slots)
    predicted_s = sampled(specs, site, fleet, out, Limits(), progress)
    return Campaign(specs, jobs, site.slots, fleet, predicted_s, policy, name, site.hire)


def run(campaign: Campaign, out: Path, limits: Limits | None = None,
        progress: Callable[[int], None] = lambda ended: None) -> Ran:
    """Carry out a campaign; ``out`` holds its record, ``schedule.csv`` and ``trace.json``. Again, it goes on where it was."""
    asked = campaign.asked
    simulated = simulate(asked, campaign.policy)
    attempts, ends, notes = execute.execute(campaign.specs, campaign.jobs, campaign.fleet, campaign.slots, campaign.predicted_s,
                                            campaign.policy, out, limits, campaign.hire, progress)
    shown = attempts[attempts["status"] != "running"]
    store.write(shown[columns("schedule")], out / "schedule.csv", "schedule", derived=True)
    trace.write(shown, out / "trace.json", campaign.name)
    first = float(campaign.jobs.arrival_s.min())
    makespan_s = float(ends["end_s"].max() - attempts["start_s"].min()) if len(ends) else np.nan  # workers were ready
    return Ran(attempts, ends, notes, float(simulated.schedule["end_s"].max()) - first, makespan_s,
               bounds.makespan_bound(asked))


def default_folder(path: Path) -> Path:
    """Return where the record of a file of jobs lies."""
    return paths.DATA / "schedule" / path.stem


def words(ran: Ran) -> str:
    """Say what became of a campaign."""
    counts = ran.ends["status"].value_counts()
    lines = [f"{counts.get('done', 0)} jobs done, {counts.get('failed', 0)} failed, in {ran.makespan_s:,.1f} s; simulated "
             f"beforehand: {ran.simulated_s:,.1f} s ({ran.makespan_s / ran.simulated_s - 1:+.1%}); no schedule ends before "
             f"{ran.bound_s:,.1f} s if predictions hold"]
    lines += [f"  {row.job_id}: {row.reason}" for row in ran.ends[ran.ends["status"] == "failed"].itertuples()]
    lines += [f"  {note}" for note in ran.notes]
    again = ran.attempts[~ran.attempts["status"].isin(("done", "failed"))]
    if len(again):
        which = choices(f"{row.job_id} on {row.device} ({row.status})" for row in again.itertuples())
        lines.append(f"  attempts that did not count: {which}")
    return "\n".join(lines)
