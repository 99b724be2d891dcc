"""A file of jobs, run here or on a cluster: jobs.csv -> what to call, where it can run, how long it should take; its record."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import files, paths, store
from lib.config.definitions import workload
from lib.config.notebooks import parsed
from lib.errors import InputError, choices
from lib.schedule import bounds, problem_files
from lib.schedule.contention import Contention
from lib.schedule.durations import Durations
from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.runtime import executor, interference, probe, run_record
from lib.schedule.runtime.journal import Spec
from lib.schedule.runtime.local_site import fleet_of, local_site
from lib.schedule.runtime.run_record import RunRecord
from lib.schedule.runtime.workers import Limits, ProcessWorker, Site, Slot, Spawn, device_type_of
from lib.schedule.simulation.events import simulate
from lib.schedule.state import Policy

_TASKS = "lib.schedule.runtime.tasks"
_BEFORE = re.compile(rf"probe-.*|jobs\.csv|\.{executor.JOURNAL}\.lock")  # what lies in a run's folder before its journal


@dataclass(frozen=True)
class PreparedJobs:
    """Jobs, slots and how their workers are spawned, the predicted seconds (jobs, types), the policy with its name.

    ``contention`` is what is known of how jobs slow each other down there, ``notes`` say what could not be probed.
    """

    specs: tuple[Spec, ...]
    jobs: Jobs
    slots: tuple[Slot, ...]
    fleet: Fleet
    predicted_s: np.ndarray
    policy: Policy
    name: str
    spawn: Spawn = ProcessWorker
    contention: Contention | None = None
    notes: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem:
        """Return them as a problem whose predictions are exact."""
        return Problem(self.jobs, self.fleet, self.predicted_s, self.predicted_s)


def read(path: Path, out: Path) -> tuple[tuple[Spec, ...], Jobs]:
    """Read ``jobs.csv`` (table ``jobs``); a job has a workload_id with steps, or a notebook (``notebook_of``).

    Raises InputError naming the row that is wrong.
    """
    table, specs = problem_files.read_jobs(path), []
    for row in table.itertuples():
        if bool(row.workload_id) == bool(row.notebook):
            raise InputError(f"{path}: job {row.job_id!r} must have a workload_id or a notebook, one of them")
        if row.notebook:
            notebook = table.loc[row.Index, "notebook"] = notebook_of(row.notebook, path, row.job_id)
            target = out.resolve() / "notebooks" / f"{files.safe_name(row.job_id)}.ipynb"
            given = parsed(notebook, row.parameters, f"{path}: parameters of {row.job_id!r}")
            specs.append(Spec(row.job_id, f"{_TASKS}:notebook", {"path": notebook, "parameters": given, "out": str(target)}))
            continue
        if row.parameters:
            raise InputError(f"{path}: job {row.job_id!r} has parameters; only a notebook takes them")
        if pd.isna(row.steps):
            raise InputError(f"{path}: steps of {row.job_id!r} is empty: a workload needs a whole number, 1 or more")
        weights = out.resolve() / "weights" / files.safe_name(row.job_id)
        specs.append(Spec(row.job_id, f"{_TASKS}:workload",
                          {"workload_id": workload(row.workload_id).id, "steps": int(row.steps), "folder": str(weights)}))
    return tuple(specs), problem_files.jobs_of(table)


def notebook_of(text: str, path: Path, job_id: str) -> str:
    """Return the notebook that a job executes: a file in the folder of its file of jobs ``path``, or in the repository.

    It is looked for in this order, and given relative to the repository where it lies in there. Raises InputError for one that
    lies in neither.
    """
    for folder in (path.parent.resolve(), paths.ROOT):
        try:
            notebook = (folder / text).resolve()
            there = notebook.suffix == ".ipynb" and notebook.is_relative_to(folder) and notebook.is_file()
        except (OSError, RuntimeError):  # a name that no file can have, a circle of links
            there = False
        if there:
            return str(notebook.relative_to(paths.ROOT) if notebook.is_relative_to(paths.ROOT) else notebook)
    raise InputError(f"{path}: the notebook of job {job_id!r}, {text!r}, is no .ipynb file in {path.parent.resolve()} or "
                     f"{paths.ROOT}, where it is looked for")


def job_class_of(spec: Spec) -> str:
    """Return by what jobs are alike: their workload, or their notebook."""
    return spec.arguments.get("workload_id") or spec.arguments["path"]


def _known_contention(classes: Sequence[str], site: Site) -> Contention | None:
    """Return what was measured on this machine of how jobs slow each other down; None if nothing was, or they run elsewhere.

    ``classes`` are in the order in which the jobs number them.
    """
    from lib.measure import machine

    table = interference.newest(machine.ids()["hardware_id"]) if site.spawn is ProcessWorker else None
    return None if table is None else Contention.of_table(table, classes, fleet_of(site.slots).types)


def prepare(path: Path, out: Path, name: str = "hybrid", objective: str = "makespan", count: int = 0,
            site_of: Callable[[Jobs, int], Site] = local_site) -> PreparedJobs:
    """Read a file of jobs, probe its workloads on the site where they shall run, and return what can be run.

    Raises InputError for a wrong file, policy or objective, or a job that cannot run there, before anything is probed.
    """
    policy, (specs, jobs) = registry.aimed(name, objective), read(path, out)
    site = site_of(jobs, count)
    known, fleet = _known_contention(tuple(dict.fromkeys(map(job_class_of, specs))), site), fleet_of(site.slots)
    workloads = [spec.arguments["workload_id"] for spec in specs if "workload_id" in spec.arguments]
    probes = probe.probe(workloads, site, fleet, out, Limits(), known is not None)
    durations = Durations()
    notes = [f"{spec.job_id} on {name}: {seconds:g} s is {source}" for spec in specs if "path" in spec.arguments
             for name in fleet.types for seconds, source in [probe.of_notebook(spec, durations, name)] if "guess" in source]
    return PreparedJobs(specs, jobs, site.slots, fleet, probe.predicted_s(specs, probes, site, fleet, durations), policy, name,
                        site.spawn, known, (*probes.notes(), *notes))


def write_trial(workloads: Sequence[str], count: int, job_s: float, out: Path, seed: int = 0) -> Path:
    """Write ``jobs.csv`` of ``count`` jobs, in turn over workloads, each of half to 1.5 times ``job_s`` seconds; return it.

    How many steps that takes is probed first; ``prepare`` finds the probes in ``out``. Raises InputError for a workload that
    cannot be run here.
    """
    site, names = local_site(Jobs.plain(count)), [workload(workloads[number % len(workloads)]).id for number in range(count)]
    known, fleet = _known_contention(tuple(dict.fromkeys(names)), site), fleet_of(site.slots)
    probes = probe.probe(names, site, fleet, out, Limits(), known is not None)
    long_s, rows = np.random.default_rng(seed).uniform(0.5, 1.5, count) * job_s, []
    for number, name in enumerate(names):
        if (name, fleet.types[0]) not in probes.times:
            raise InputError(choices(probes.notes(name)))
        times = probes.times[name, fleet.types[0]]
        steps = max(1, round((long_s[number] - times["setup_s"]) / times["step_s"]))
        rows.append({"job_id": f"{name}-{number}", "workload_id": name, "steps": steps})
    return files.create(out / "jobs.csv", pd.DataFrame(rows).to_csv(index=False).encode())


def run(prepared: PreparedJobs, out: Path, limits: Limits | None = None) -> RunRecord:
    """Run prepared jobs; ``out`` holds journal and record. The same again resumes where it was.

    Each job ends once, but what it does besides happens at least once (``executor.execute``). The simulation beforehand
    includes contention where that was measured.
    """
    from lib.measure import machine

    problem, known = prepared.problem, prepared.contention
    simulated = simulate(problem, prepared.policy, contention=known, known=known).schedule
    attempts, ends, notes = executor.execute(
        prepared.specs, prepared.jobs, prepared.fleet, prepared.slots, prepared.predicted_s, prepared.policy, out, limits,
        prepared.spawn, known)
    _learn(prepared, attempts, out)
    facts = {"policy": prepared.name, "bound_s": bounds.makespan_bound(problem), "notes": [*prepared.notes, *notes],
             "contention": known is not None, "machine": machine.name(), "written_utc": store.utc_now()}
    record = RunRecord(attempts[attempts["status"] != "running"], simulated, ends,
                       {spec.job_id: job_class_of(spec) for spec in prepared.specs}, facts)
    run_record.write(record, out)
    return record


def _learn(prepared: PreparedJobs, attempts: pd.DataFrame, out: Path) -> None:
    """Keep how long the notebooks took that are done."""
    notebooks = {spec.job_id: spec.arguments["path"] for spec in prepared.specs if "path" in spec.arguments}
    done = attempts[(attempts["status"] == "done") & attempts["job_id"].isin(notebooks)]
    if len(done):
        Durations().learn(pd.DataFrame({
            "run": str(out.resolve()), "job_id": done["job_id"], "notebook": done["job_id"].map(notebooks),
            "device_type": done["device"].map(device_type_of), "seconds": done["end_s"] - done["start_s"]}))


def folder_of(path: Path, out: Path | None = None) -> Path:
    """Return the folder of a run: ``out`` or, by default, ``data/schedule/<name of the file of jobs>``.

    Raises InputError where it holds anything but a run (the file of jobs may lie in it as jobs.csv), and where the folder that
    ``out`` shall be in is missing.
    """
    folder = out or paths.DATA / run_record.FOLDER / path.stem
    if out and not out.absolute().parent.is_dir():
        raise InputError(f"{out}: there is no folder {out.absolute().parent}; make it first, or name another")
    with files.writing(folder):
        others = [] if not os.path.lexists(folder) or (folder / executor.JOURNAL).exists() else sorted(
            entry.name for entry in folder.iterdir() if not _BEFORE.fullmatch(entry.name))
    journal = folder / executor.JOURNAL
    if journal.is_file() and not journal.stat().st_size and run_record.is_there(folder):
        raise InputError(f"{journal} is empty, although a run has ended there: it is damaged; name another folder")
    if others:
        raise InputError(f"{folder} holds other things than a run, such as {choices(others[:3])}; name a folder of its own")
    return folder
