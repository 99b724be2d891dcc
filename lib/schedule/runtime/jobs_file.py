"""A file of jobs, run here or on a cluster: what to call, where it can run, how long it should take, and the run's record."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import files, paths, store
from lib.config.definitions import workload
from lib.config.notebooks import parsed
from lib.errors import InputError, choices
from lib.progress import say
from lib.schedule import bounds, moldable, problem_files, risk
from lib.schedule.durations import Duration, Durations
from lib.schedule.policies import registry
from lib.schedule.problem import Jobs, Offers, Problem
from lib.schedule.runtime import executor, run_record
from lib.schedule.runtime.executor import PreparedJobs
from lib.schedule.runtime.journal import Spec
from lib.schedule.runtime.local_site import fleet_of, local_site
from lib.schedule.runtime.run_record import RunRecord
from lib.schedule.runtime.workers import Site, device_type_of
from lib.schedule.simulation.events import Outcome, simulate

_TASKS = "lib.schedule.runtime.tasks"
_PROBE_S = 2.0
_GUESS_S = 10.0
_BEFORE = re.compile(rf"probe-.*|jobs\.csv|\.{executor.JOURNAL}\.lock")  # what a run's folder holds before its journal


Probes = dict[tuple[str, int, str], dict[str, float] | str]
"""(workload, devices at once, device type) -> setup_s and step_s, or why there are none."""


def _probe(workloads: Sequence[tuple[str, int]], site: Site, folder: Path) -> Probes:
    """Return the set-up and the step, in s, of each workload on so many devices of each type, or why there are none.

    The workloads of one device type run at once, each on a slot of its own while there are slots. Results stay in ``folder``;
    a failed probe is tried again by the next call.
    """
    probes, fleet = {}, fleet_of(site.slots)
    for gang, (number, device_type) in product(sorted({devices for _, devices in workloads}), enumerate(fleet.types)):
        names = tuple(dict.fromkeys(name for name, devices in workloads if devices == gang))
        slots = tuple(site.slots[device] for device in np.flatnonzero(fleet.type_of == number))
        if len(slots) < gang:
            probes |= {(name, gang, device_type): f"{name} needs {gang} devices at once, and of {device_type} there are "
                                                  f"{len(slots)}" for name in names}
            continue
        together = f"-{gang}" if gang > 1 else ""
        part = folder / f"{site.probes}-{files.safe_name(device_type)}-{slots[0].threads}{together}"
        specs = [Spec(name, f"{_TASKS}:probe", {"workload_id": name, "seconds": _PROBE_S}, gang) for name in names]
        jobs = replace(Jobs.plain(len(names)), ids=names, devices=np.full(len(names), gang))
        prepared = PreparedJobs(specs, jobs, slots, np.full((len(names), 1), _GUESS_S), registry.policy_for("first-come"),
                                spawn=site.spawn)
        _, ends, _ = executor.execute(prepared, part, again=lambda _: True)
        probes |= {(row.job_id, gang, device_type): row.result if row.status == "done" else
                   f"{row.job_id} could not be probed on {device_type}: {row.reason}" for row in ends.itertuples()}
    return probes


def _predicted(specs: Sequence[Spec], probes: Probes, site: Site) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return predicted seconds (jobs, types), inf where a job cannot run or be probed, and notes of guesses and failed probes.

    Raises InputError, with the reasons, for a job whose workload could not be probed where it can run.
    """
    def duration(arguments: dict[str, Any], devices: int, device_type: str) -> Duration:
        if "path" in arguments:
            return durations.predicted(arguments["path"], arguments["parameters"], device_type)
        times = probes[arguments["workload_id"], devices, device_type]
        if isinstance(times, str):
            return Duration(np.inf, times)
        return Duration(times["setup_s"] + times["step_s"] * arguments["steps"], "a probe")

    types, durations = fleet_of(site.slots).types, Durations()
    rows = [[duration(spec.arguments, spec.devices, name) for name in types] for spec in specs]
    table = np.where(site.able, [[seconds for seconds, _ in row] for row in rows], np.inf)
    for job in np.flatnonzero(np.isinf(table).all(axis=1)):
        reasons = choices(source for seconds, source in rows[job] if seconds == np.inf)
        raise InputError(f"no slot can run job {specs[job].job_id!r}: {reasons}; the same call again probes anew what failed")
    guesses = [f"{spec.job_id} on {name}: {seconds:g} s is {source}" for spec, row in zip(specs, rows, strict=True)
               for name, (seconds, source) in zip(types, row, strict=True) if "guess" in source]
    return table, (*(probe for probe in probes.values() if isinstance(probe, str)), *guesses)


def read(path: Path, out: Path) -> tuple[tuple[Spec, ...], Jobs]:
    """Read ``jobs.csv`` (table ``jobs``); a job has a workload_id with steps, or a notebook (``_notebook``).

    Their outputs go into the folder ``out``. Raises InputError.
    """
    table, specs, out = problem_files.read_jobs(path), [], out.resolve()
    for row in table.itertuples():
        if bool(row.workload_id) == bool(row.notebook):
            raise InputError(f"{path}: job {row.job_id!r} must have a workload_id or a notebook, one of them")
        name = files.safe_name(row.job_id)
        if row.notebook:
            if max(row.devices, row.most_devices) > 1:
                raise InputError(f"{path}: job {row.job_id!r} is to run on several devices: a notebook runs on one")
            notebook = table.loc[row.Index, "notebook"] = _notebook(row.notebook, path, row.job_id)
            parameters = parsed(notebook, row.parameters, f"{path}: parameters of {row.job_id!r}")
            call, arguments = "notebook", {"path": notebook, "parameters": parameters,
                                           "out": str(out / "notebooks" / f"{name}.ipynb")}
        elif row.parameters:
            raise InputError(f"{path}: job {row.job_id!r} has parameters; only a notebook takes them")
        elif pd.isna(row.steps):
            raise InputError(f"{path}: steps of {row.job_id!r} is empty: a workload needs a whole number, 1 or more")
        else:
            call, arguments = "workload", {"workload_id": workload(row.workload_id).id, "steps": int(row.steps),
                                           "folder": str(out / "weights" / name)}
        specs.append(Spec(row.job_id, f"{_TASKS}:{call}", arguments, int(row.devices)))
    return tuple(specs), problem_files.jobs_of(table)


def _notebook(text: str, path: Path, job_id: str) -> str:
    """Return the notebook of a job: a file in the folder of the file of jobs ``path``, or else in the repository.

    A path in the repository is relative to it. Raises InputError for a notebook that lies in neither.
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


def _class_of(spec: Spec) -> str:
    return spec.arguments.get("workload_id") or spec.arguments["path"]


def prepare(path: Path, out: Path, name: str = "hybrid", objective: str = "makespan", count: int = 0,
            site_of: Callable[[Jobs, int], Site] = local_site) -> PreparedJobs:
    """Read a file of jobs, and probe its workloads on the site where they will run.

    Raises InputError for a wrong file, policy or objective, or a job that cannot run there, before anything is probed.
    """
    registry.policy_for(name, objective)
    specs, jobs = read(path, out)
    policy = registry.policy_for(name, objective, jobs.has_gangs or jobs.most_devices is not None)
    site = site_of(jobs, count)
    fleet = fleet_of(site.slots)
    for job in np.flatnonzero(~(site.able & (fleet.counts >= jobs.gang[:, None])).any(axis=1)):
        there = choices(f"{count} of {name}" for name, count in zip(fleet.types, fleet.counts, strict=True))
        raise InputError(f"job {jobs.ids[job]!r} needs {jobs.gang[job]} devices of one type at once; there are {there}")
    most = jobs.gang if jobs.most_devices is None else np.clip(jobs.most_devices, jobs.gang, fleet.counts.max())
    # of devices on which each job may run (jobs, numbers), the last repeated where another job has more
    numbers = np.minimum(jobs.gang[:, None] + np.arange((most - jobs.gang).max() + 1), most[:, None])
    variants = [_on(specs, column) for column in numbers.T]
    workloads = [(spec.arguments["workload_id"], spec.devices) for variant in variants for spec in variant
                 if "workload_id" in spec.arguments]
    probes = _probe(workloads, site, out)
    tables, notes = zip(*(_predicted(variant, probes, site) for variant in variants), strict=True)
    predicted_s = tables[0]
    if len(tables) > 1:
        problem = Problem(jobs, fleet, predicted_s, predicted_s, offers=Offers.of(numbers, np.stack(tables, axis=1)))
        chosen = moldable.place(problem, policy, objective).problem
        jobs, predicted_s = replace(chosen.jobs, most_devices=None), chosen.predicted_s
    return PreparedJobs(_on(specs, jobs.gang), jobs, site.slots, predicted_s, policy, name, site.spawn,
                        tuple(dict.fromkeys(note for part in notes for note in part)))


def _on(specs: Sequence[Spec], devices: np.ndarray) -> tuple[Spec, ...]:
    return tuple(replace(spec, devices=count) for spec, count in zip(specs, devices.tolist(), strict=True))


def write_trial(workloads: Sequence[str], count: int, job_s: float, out: Path) -> Path:
    """Write ``jobs.csv`` of ``count`` jobs, in turn over workloads, each of half to 1.5 times ``job_s`` seconds; return it.

    The number of steps follows from probes, which ``prepare`` finds in ``out``. Raises InputError for a workload that cannot
    run here.
    """
    names = [workload(workloads[number % len(workloads)]).id for number in range(count)]
    probes = _probe([(name, 1) for name in names], site := local_site(Jobs.plain(count)), out)
    device_type, long_s, rows = fleet_of(site.slots).types[0], np.random.default_rng(0).uniform(0.5, 1.5, count) * job_s, []
    for number, name in enumerate(names):
        times = probes[name, 1, device_type]
        if isinstance(times, str):
            raise InputError(times)
        steps = max(1, round((long_s[number] - times["setup_s"]) / times["step_s"]))
        rows.append({"job_id": f"{name}-{number}", "workload_id": name, "steps": steps})
    return files.create(out / "jobs.csv", pd.DataFrame(rows).to_csv(index=False).encode())


def run_trial(jobs: str, workloads: Sequence[str], count: int, job_s: float) -> tuple[RunRecord, Path]:
    """Run a file of jobs, or without one a trial (``write_trial``); return its record and its new folder in data/schedule."""
    folder = paths.DATA / run_record.FOLDER
    out = folder / store.fresh_name("trial", lambda name: (folder / name).exists())
    path = Path(jobs) if jobs else write_trial(workloads, count, job_s, out)
    return run(prepare(path, out), out), out


def run(prepared: PreparedJobs, out: Path) -> RunRecord:
    """Run prepared jobs; ``out`` holds journal and record. The same call again resumes the run.

    If all jobs have ended before, nothing runs, and the record of that run is returned as ``earlier``.
    Each job ends once, but its other effects happen at least once (``executor.execute``). Raises InputError, before anything
    runs, for a damaged record or one of an earlier version.
    """
    from lib.measure import machine

    earlier = run_record.read(out) if (out / run_record.FILE).exists() else None
    problem = prepared.problem
    simulated = simulate(problem, prepared.policy)
    in_time = _in_time(simulated)
    attempts, ends, notes = executor.execute(prepared, out)
    attempts = attempts[attempts["status"] != "running"]
    if earlier and len(earlier.schedule) == len(attempts) and set(earlier.ends["job_id"]) == set(ends["job_id"]):
        return replace(earlier, earlier=True)
    _learn(prepared, attempts, out)
    facts = {"policy": prepared.name, "bound_s": bounds.makespan_bound(problem), "notes": [*prepared.notes, *notes],
             "machine": machine.name(), "written_utc": store.utc_now(), "in_time": in_time}
    record = RunRecord(attempts, simulated.schedule, ends,
                       {spec.job_id: _class_of(spec) for spec in prepared.specs}, facts)
    run_record.write(record, out)
    return record


def _in_time(simulated: Outcome) -> dict[str, float]:
    """Say how likely each job keeps its deadline, and return it. Times are off as far as those of the committed runs were.

    Deadlines count from the start of the run, simulated times from when the workers are ready.
    """
    problem = simulated.problem
    if not np.isfinite(problem.jobs.deadline_s).any():
        return {}
    (sigma, common), due_s = run_record.spread(), problem.jobs.deadline_s - run_record.start_up_s()
    ready = replace(simulated, problem=replace(problem, jobs=replace(problem.jobs, deadline_s=due_s)))
    in_time = risk.assess(ready, np.full(problem.predicted_s.shape, sigma), common=common).in_time
    shares = {job: float(share) for job, share in zip(problem.jobs.ids, in_time, strict=True) if share >= 0}
    say("in time: " + ", ".join(f"{job} with {share:.0%}" for job, share in shares.items()))
    return shares


def _learn(prepared: PreparedJobs, attempts: pd.DataFrame, out: Path) -> None:
    """Keep the durations of the notebooks that are done."""
    notebooks = {spec.job_id: spec.arguments["path"] for spec in prepared.specs if "path" in spec.arguments}
    done = attempts[(attempts["status"] == "done") & attempts["job_id"].isin(notebooks)]
    if len(done):
        Durations().learn(pd.DataFrame({
            "run": str(out.resolve()), "job_id": done["job_id"], "notebook": done["job_id"].map(notebooks),
            "device_type": done["device"].map(device_type_of), "seconds": done["end_s"] - done["start_s"]}))


def folder_of(path: Path, out: Path | None = None) -> Path:
    """Return the folder of a run: ``out`` or, by default, ``data/schedule/<name of the file of jobs>``.

    Raises InputError if it holds anything but a run (and jobs.csv), and if the parent of ``out`` is missing.
    """
    folder = out or paths.DATA / run_record.FOLDER / path.stem
    if out and not out.absolute().parent.is_dir():
        raise InputError(f"{out}: there is no folder {out.absolute().parent}; make it first, or name another")
    journal = folder / executor.JOURNAL
    with files.writing(folder):
        foreign = [] if not os.path.lexists(folder) or journal.exists() else sorted(
            entry.name for entry in folder.iterdir() if not _BEFORE.fullmatch(entry.name))
    if journal.is_file() and not journal.stat().st_size and (folder / run_record.FILE).is_file():
        raise InputError(f"{journal} is empty, although a run has ended there: it is damaged; name another folder")
    if foreign:
        raise InputError(f"{folder} holds other things than a run, such as {choices(foreign[:3])}; name a folder of its own")
    return folder
