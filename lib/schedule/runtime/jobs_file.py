"""A file of jobs carried out here or on a cluster: jobs.csv -> what to call, where it can run, how long it should take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import paths, store
from lib.config.definitions import workload
from lib.errors import InputError
from lib.schedule import bounds, problem_files
from lib.schedule.contention import Contention
from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.runtime import executor, interference, probe, run_record
from lib.schedule.runtime.journal import Spec
from lib.schedule.runtime.run_record import Record
from lib.schedule.runtime.workers import WARM, Hire, Limits, Process, Site, Slot, cores_here, kind_of
from lib.schedule.simulation.events import simulate
from lib.schedule.state import Policy


@dataclass(frozen=True)
class Campaign:
    """Jobs, slots and who is hired for them, the predicted seconds (jobs, types), the policy with its name.

    ``contention`` is what is known of how jobs slow each other down there.
    """

    specs: tuple[Spec, ...]
    jobs: Jobs
    slots: tuple[Slot, ...]
    fleet: Fleet
    predicted_s: np.ndarray
    policy: Policy
    name: str
    hire: Hire = Process
    contention: Contention | None = None

    @property
    def asked(self) -> Problem:
        """Return it as a problem whose predictions are exact."""
        return Problem(self.jobs, self.fleet, self.predicted_s, self.predicted_s)


def read(path: Path, out: Path) -> tuple[tuple[Spec, ...], Jobs]:
    """Read ``jobs.csv``: job_id, and workload_id with steps, or notebook; if given arrival_s, deadline_s, memory_mb, cpu_cores.

    Raises InputError naming the row that is wrong.
    """
    table = problem_files.read_jobs(path)
    specs = []
    for row in table.itertuples():
        if bool(row.workload_id) == bool(row.notebook):
            raise InputError(f"{path}: job {row.job_id!r} must have a workload_id or a notebook, one of them")
        if row.notebook:
            target = out / "notebooks" / f"{row.job_id}.ipynb"
            specs.append(Spec(row.job_id, "lib.schedule.runtime.tasks:notebook",
                              {"path": row.notebook, "parameters": {}, "out": str(target)}))
            continue
        if pd.isna(row.steps):
            raise InputError(f"{path}: steps of {row.job_id!r} is empty: a workload needs a whole number, 1 or more")
        specs.append(Spec(row.job_id, "lib.schedule.runtime.tasks:workload",
                          {"workload_id": workload(row.workload_id).id, "steps": int(row.steps)}))
    return tuple(specs), problem_files.jobs_of(table)


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
    """Return the slots as a fleet of types ``cpu`` and, each GPU being its own, ``cuda:0``, ...

    Beside GPUs, CPU slots of known cores give the host's cores, from which jobs on GPUs draw theirs.
    """
    kinds = [kind_of(slot.name) for slot in slots]
    types = tuple(dict.fromkeys(kinds))
    unknown, cores = np.full(len(types), np.nan), [slot.cores for slot in slots if slot.cores]
    plain = Fleet(tuple(slot.name for slot in slots), np.array([types.index(kind) for kind in kinds]), types, unknown, unknown,
                  unknown, unknown, np.zeros(len(types)), unknown)
    if not cores or len(types) == 1:
        return plain
    own = np.array([len(cores[0]) if kind == "cpu" else np.nan for kind in types])
    return replace(plain, cpu_cores=own, host_cores=float(sum(map(len, cores))))


def _known_contention(kinds: tuple[str, ...], site: Site) -> Contention | None:
    """Return what was measured on this machine of how jobs slow each other down; None if nothing was, or they run elsewhere."""
    from lib.measure import machine

    table = interference.newest(machine.ids()["hardware_id"]) if site.hire is Process else None
    return None if table is None else Contention.of_table(table, kinds, fleet_of(site.slots).types)


def prepare(path: Path, out: Path, name: str = "hybrid", objective: str = "makespan", count: int = 0,
            progress: Callable[[int], None] = lambda ended: None, where: Callable[[Jobs, int], Site] = here) -> Campaign:
    """Read a file of jobs, sample its workloads ``where`` they shall run, and return what can be run.

    Raises InputError for a wrong file, policy or objective, or a job that cannot run there, before anything is sampled.
    """
    policy, (specs, jobs) = registry.aimed(name, objective), read(path, out)
    site, kinds = where(jobs, count), kinds_of(specs)
    known, fleet = _known_contention(kinds, site), fleet_of(site.slots)
    workloads = [spec.arguments["workload_id"] for spec in specs if "workload_id" in spec.arguments]
    found = probe.take(workloads, site, fleet, out, Limits(), known is not None, progress)
    predicted_s = np.where(site.able, probe.predicted_s(specs, found, fleet), np.inf)
    return Campaign(specs, jobs, site.slots, fleet, predicted_s, policy, name, site.hire, known)


def trial(workloads: Sequence[str], count: int, job_s: float, out: Path, seed: int = 0,
          progress: Callable[[int], None] = lambda ended: None) -> Path:
    """Write ``jobs.csv`` of ``count`` jobs, in turn over workloads, each of half to 1.5 times ``job_s`` seconds; return it.

    How many steps that takes is sampled first; ``prepare`` finds the samples in ``out``. Raises InputError for a workload
    that cannot be run here.
    """
    site, names = here(Jobs.plain(count)), [workload(workloads[number % len(workloads)]).id for number in range(count)]
    known, fleet = _known_contention(tuple(dict.fromkeys(names)), site), fleet_of(site.slots)
    found = probe.take(names, site, fleet, out, Limits(), known is not None, progress)
    long_s, rows = np.random.default_rng(seed).uniform(0.5, 1.5, count) * job_s, []
    for number, name in enumerate(names):
        if (name, fleet.types[0]) not in found:
            raise InputError(f"{name} could not be sampled on {fleet.types[0]}; its reason is in {out}")
        held = found[name, fleet.types[0]]
        steps = max(1, round((long_s[number] - held["setup_s"]) / held["step_s"]))
        rows.append({"job_id": f"{name}-{number}", "workload_id": name, "steps": steps})
    path = out / "jobs.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def run(campaign: Campaign, out: Path, limits: Limits | None = None,
        progress: Callable[[int], None] = lambda ended: None) -> Record:
    """Carry out a campaign; ``out`` holds its record (``record.write``). Again, it goes on where it was.

    What is foreseen includes contention where that was measured.
    """
    from lib.measure import machine

    asked, known = campaign.asked, campaign.contention
    foreseen = simulate(asked, campaign.policy, contention=known, known=known).schedule
    attempts, ends, notes = executor.execute(
        campaign.specs, campaign.jobs, campaign.fleet, campaign.slots, campaign.predicted_s, campaign.policy, out, limits,
        campaign.hire, progress, known)
    facts = {"policy": campaign.name, "bound_s": bounds.makespan_bound(asked), "notes": notes, "contention": known is not None,
             "machine": machine.name(), "written_utc": store.utc_now()}
    found = Record(attempts[attempts["status"] != "running"], foreseen, ends,
                   {spec.job_id: kind_of_job(spec) for spec in campaign.specs}, facts)
    run_record.write(found, out)
    return found


def kind_of_job(spec: Spec) -> str:
    """Return by what jobs are alike: their workload, or their notebook."""
    return spec.arguments.get("workload_id") or spec.arguments["path"]


def kinds_of(specs: Sequence[Spec]) -> tuple[str, ...]:
    """Return the kinds in the order in which the jobs number them."""
    return tuple(dict.fromkeys(kind_of_job(spec) for spec in specs))


def default_folder(path: Path) -> Path:
    """Return where the record of a file of jobs lies."""
    return paths.DATA / run_record.FOLDER / path.stem
