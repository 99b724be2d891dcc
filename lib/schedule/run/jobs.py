"""The verb ``run-jobs``: a file of jobs, what each should take, its run here or on a cluster, and its record."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sqlalchemy as sa

from lib import files, paths, store
from lib.config.definitions import workload
from lib.config.notebooks import parsed
from lib.errors import InputError, choices, is_no_space
from lib.progress import say, track
from lib.schedule import bounds, expected, problem_files, risk
from lib.schedule.expected import Expected
from lib.schedule.loop import Loop
from lib.schedule.policies import registry
from lib.schedule.problem import Jobs, Problem
from lib.schedule.run import record as run_record
from lib.schedule.run.backend import QueueBackend, Workers
from lib.schedule.run.database import leadership, open_engine
from lib.schedule.run.processes import TaskEnd
from lib.schedule.run.queue import Queue, QueueJob
from lib.schedule.run.record import RunRecord
from lib.schedule.run.slots import check_fits, fleet_of
from lib.schedule.simulation.events import Outcome, simulate
from lib.schedule.state import Policy

TASKS = "lib.schedule.runtime.tasks"
QUEUE, PROBES = "queue.sqlite", "probes.json"  # in the folder of a run
_BEFORE = {PROBES, "jobs.csv", f".{QUEUE}.lock"}  # what may be there before the queue
_PROBE_S = 2.0


# ---------------------------------------------------------------------- the file of jobs


def read(path: Path, out: Path) -> tuple[list[QueueJob], Jobs]:
    """Read ``jobs.csv`` (table ``jobs``): each job is a workload with steps, or a notebook.

    Their outputs go into the folder ``out``. Raises InputError naming what is wrong.
    """
    table, rows, out = problem_files.read_jobs(path), [], out.resolve()
    for row in table.itertuples():
        if bool(row.workload_id) == bool(row.notebook):
            raise InputError(f"{path}: job {row.job_id!r} must have a workload_id or a notebook, one of "
                             "them")
        read_one = _notebook_job if row.notebook else _workload_job
        task, job_class, arguments = read_one(row, path, out / files.safe_name(row.job_id))
        if row.notebook:
            table.loc[row.Index, "notebook"] = job_class
        rows.append(QueueJob(
            job_id=row.job_id, task=f"{TASKS}:{task}", arguments=arguments, job_class=job_class,
            devices=row.devices, memory_mb=row.memory_mb, cpu_cores=row.cpu_cores,
            arrival_s=row.arrival_s, deadline_s=None if row.deadline_s == np.inf else row.deadline_s))
    return rows, problem_files.jobs_of(table)


def _workload_job(row: Any, path: Path, out: Path) -> tuple[str, str, dict[str, Any]]:
    if row.parameters:
        raise InputError(f"{path}: job {row.job_id!r} has parameters; only a notebook takes them")
    if pd.isna(row.steps):
        raise InputError(f"{path}: steps of {row.job_id!r} is empty: a workload needs a whole number, 1 "
                         "or more")
    name, folder = workload(row.workload_id).id, out.parent / "weights" / out.name
    return "workload", name, {"workload": name, "steps": int(row.steps), "folder": str(folder)}


def _notebook_job(row: Any, path: Path, out: Path) -> tuple[str, str, dict[str, Any]]:
    if row.devices > 1:
        raise InputError(f"{path}: job {row.job_id!r} is to run on several devices: a notebook runs on "
                         "one")
    name = _notebook(row.notebook, path, row.job_id)
    parameters = parsed(name, row.parameters, f"{path}: parameters of {row.job_id!r}")
    target = out.parent / "notebooks" / f"{out.name}.ipynb"
    return "notebook", name, {"path": name, "parameters": parameters, "out": str(target)}


def _notebook(text: str, path: Path, job_id: str) -> str:
    """Return the notebook of a job: a file in the folder of ``path``, or else in the repository.

    A path in the repository is relative to it. Raises InputError for one that lies in neither.
    """
    for folder in (path.parent.resolve(), paths.ROOT):
        try:
            notebook = (folder / text).resolve()
            inside = notebook.suffix == ".ipynb" and notebook.is_relative_to(folder)
            there = inside and notebook.is_file()
        except (OSError, RuntimeError):  # a name that no file can have, a circle of links
            there = False
        if there:
            in_repository = notebook.is_relative_to(paths.ROOT)
            return str(notebook.relative_to(paths.ROOT) if in_repository else notebook)
    raise InputError(f"{path}: the notebook of job {job_id!r}, {text!r}, is no .ipynb file in "
                     f"{path.parent.resolve()} or {paths.ROOT}, where it is looked for")


def folder_of(path: Path, out: Path | None = None) -> Path:
    """Return the folder of a run: ``out``, or ``data/schedule/<name of the file of jobs>``.

    Raises InputError if it holds anything but a run, and if the parent of ``out`` is missing.
    """
    folder = out or paths.DATA / run_record.FOLDER / path.stem
    if out and not out.absolute().parent.is_dir():
        raise InputError(f"{out}: there is no folder {out.absolute().parent}; make it first, or name "
                         "another")
    with files.writing(folder):
        names = sorted(entry.name for entry in folder.iterdir()) if os.path.lexists(folder) else []
        empty = QUEUE not in names or not (folder / QUEUE).stat().st_size
    foreign = [name for name in names if name not in _BEFORE | {QUEUE}]
    if empty and foreign:
        raise InputError(f"{folder} holds other things than a run, such as {choices(foreign[:3])}; name "
                         "a folder of its own")
    return folder


# ---------------------------------------------------------------------- what they should take


def probe(names: Sequence[tuple[str, int]], workers: Workers, path: Path) -> dict[str, Any]:
    """Time a step and the set-up of workloads, each on so many devices of each type; return them.

    All slots of a type are at work meanwhile, as they are in the run. ``path`` keeps the results: by
    ``workload/devices/type``, ``step_s`` and ``setup_s``, or a text that says why there are none; what
    failed is tried again by the next call.
    """
    known = store.read_json(path) if path.exists() else {}
    for device_type in dict.fromkeys(slot.device_type for slot in workers.slots):
        slots = [device for device, slot in enumerate(workers.slots) if slot.device_type == device_type]
        for devices in sorted({devices for _, devices in names}):
            missing = [name for name, count in dict.fromkeys(names) if count == devices
                       and "step_s" not in known.get(f"{name}/{devices}/{device_type}", "")]
            if len(slots) < devices:
                continue
            for name, result in _probe_together(missing, workers, slots, devices).items():
                known[f"{name}/{devices}/{device_type}"] = result
    store.write_json(known, path)
    return known


def _probe_together(names: list[str], workers: Workers, slots: list[int],
                    devices: int) -> dict[str, Any]:
    """Probe workloads on slots of one type, in turn until each was probed and all slots had work."""
    places = [tuple(slots[first:first + devices]) for first in range(0, len(slots) - devices + 1, devices)]
    waiting = [names[number % len(names)] for number in range(max(len(names), len(places)))] if names else []
    running, results = {}, {}
    for attempt in range(len(waiting)):
        if not places:
            places.append(_end_of_one(workers, running, results))
        name, place = waiting[attempt], places.pop()
        workers.start(attempt + 1, f"{TASKS}:probe", {"workload": name, "seconds": _PROBE_S}, place)
        running[attempt + 1] = name, place
    while running:
        _end_of_one(workers, running, results)
    return {name: _mean(name, results[name]) for name in names}


def _end_of_one(workers: Workers, running: dict[int, tuple[str, tuple[int, ...]]],
                results: dict[str, list[TaskEnd]]) -> tuple[int, ...]:
    """Wait for the end of a probe; return the slots on which it ran."""
    while True:
        for event in workers.poll(60.0):
            if isinstance(event, TaskEnd):
                name, place = running.pop(event.attempt)
                results.setdefault(name, []).append(event)
                return place


def _mean(name: str, ends: list[TaskEnd]) -> Any:
    done = [end.result for end in ends if end.status == "done"]
    if not done:
        return f"{name} could not be probed: {ends[0].reason}"
    return {key: float(np.mean([result[key] for result in done])) for key in ("step_s", "setup_s")}


def _expect(row: QueueJob, device_type: str, probes: dict[str, Any],
            earlier: expected.EarlierRuns) -> Expected:
    """Expect the seconds of a job on a device type."""
    arguments = row.arguments
    if "path" in arguments:
        budget = expected.budget(arguments["path"], arguments["parameters"])
        return expected.expected_s(device_type, (lambda _: budget, earlier.of(arguments["path"])))
    times = probes.get(f"{row.job_class}/{row.devices}/{device_type}", "there are too few devices")
    if isinstance(times, str):
        return Expected(np.inf, times)
    return Expected(times["setup_s"] + times["step_s"] * arguments["steps"], "a probe")


# ---------------------------------------------------------------------- the run


@dataclass(frozen=True)
class PreparedJobs:
    """Jobs with what they should take (jobs, types), the workers, and notes of guesses."""

    rows: list[QueueJob]
    problem: Problem
    workers: Workers
    policy: Policy
    policy_name: str
    notes: list[str]


def prepare(path: Path, out: Path, policy: str, objective: str,
            workers_of: Callable[[], Workers]) -> PreparedJobs:
    """Read a file of jobs, and probe its workloads where they will run.

    Raises InputError for a wrong file, policy or objective, or a job that cannot run there.
    """
    registry.policy_for(policy, objective)
    rows, jobs = read(path, out)
    workers = workers_of()
    try:
        fleet = fleet_of(workers.slots)
        able = check_fits(jobs, fleet)
        names = [(row.job_class, row.devices) for row in rows if "steps" in row.arguments]
        probes = probe(names, workers, files.folder(out) / PROBES)
        earlier = expected.earlier_notebooks()
        table = [[_expect(row, name, probes, earlier) for name in fleet.types] for row in rows]
        seconds = np.where(able, [[known.seconds for known in line] for line in table], np.inf)
        for job in np.flatnonzero(np.isinf(seconds).all(axis=1)):
            reasons = choices(dict.fromkeys(known.source for known in table[job]))
            raise InputError(f"no slot can run job {rows[job].job_id!r}: {reasons}; the same call again "
                             "probes anew what failed")
        notes = [f"{row.job_id} on {name}: {known.seconds:g} s is {known.source}"
                 for row, line in zip(rows, table, strict=True)
                 for name, known in zip(fleet.types, line, strict=True) if "guess" in known.source]
        notes += [text for text in probes.values() if isinstance(text, str)]
        problem = Problem(jobs, fleet, seconds, seconds)
        chosen = registry.policy_for(policy, objective, jobs.has_gangs)
        return PreparedJobs(rows, problem, workers, chosen, policy, notes)
    except BaseException:
        workers.close()
        raise


def run(prepared: PreparedJobs, out: Path) -> RunRecord:
    """Run prepared jobs; ``out`` holds the queue and the record. The same call again resumes the run.

    If all jobs have ended before, nothing runs, and the record of that run is returned as ``earlier``.
    Each job ends once, but its other effects happen at least once: one that is killed before its end is
    noted runs again. Raises InputError for a damaged record, another file of jobs, or a full disk.
    """
    from lib.measure import machine

    with closing(prepared.workers):
        before = run_record.read(out) if (out / run_record.FILE).exists() else None
        simulated = simulate(prepared.problem, prepared.policy)
        in_time = _in_time(simulated)
        queue, notes = execute(prepared, out)
        attempts, ends = queue.attempts(), queue.ends()
    queue.engine.dispose()
    if before and len(before.schedule) == len(attempts) and set(before.ends["job_id"]) == set(ends["job_id"]):
        return replace(before, earlier=True)
    _keep_durations(prepared, attempts, out)
    facts = {"policy": prepared.policy_name, "bound_s": bounds.makespan_bound(prepared.problem),
             "notes": [*prepared.notes, *notes, *prepared.workers.notes], "machine": machine.name(),
             "written_utc": store.utc_now(), "in_time": in_time}
    classes = {row.job_id: row.job_class for row in prepared.rows}
    record = RunRecord(attempts, simulated.schedule, ends, classes, facts)
    run_record.write(record, out)
    return record


def execute(prepared: PreparedJobs, out: Path) -> tuple[Queue, list[str]]:
    """Run jobs, or those that have not ended; return their queue, and a note of what had ended."""
    ids, types, seconds = (prepared.problem.jobs.ids, prepared.problem.fleet.types,
                           pd.DataFrame(prepared.problem.feasible_s, prepared.problem.jobs.ids,
                                        prepared.problem.fleet.types))
    engine = open_engine(str(sa.URL.create("sqlite", database=str(out.absolute() / QUEUE))))
    with leadership(engine):
        queue = Queue(engine)
        known = queue.jobs()
        if not known:
            queue.submit(prepared.rows)
        elif [_call(row) for row in known] != [_call(row) for row in prepared.rows]:
            raise InputError(f"{out / QUEUE} is the queue of other jobs; name another folder with --out")
        queue.recover(is_no_space)
        ended, last_s, begin_s = len(queue.ends()), queue.last_s(), time.monotonic()
        steps = iter(track(range(len(ids) - ended), "jobs"))

        def count(row: QueueJob, device_type: str, status: str, seconds: float) -> None:
            if status in ("done", "failed"):
                next(steps, None)
            else:
                say(f"attempt of {row.job_id} on {device_type} was {status} after {seconds:,.1f} s")

        backend = QueueBackend(
            queue, prepared.workers, lambda row, device_type: seconds.loc[row.job_id, device_type],
            lambda: last_s + time.monotonic() - begin_s, on_end=count)
        Loop(prepared.policy, backend).run()
    notes = [f"resumed: {ended} of {len(ids)} jobs had ended in an earlier call"]
    return queue, notes if 0 < ended < len(ids) else []


def _call(row: QueueJob) -> tuple[Any, ...]:
    return row.job_id, row.task, row.arguments, row.devices


def _in_time(simulated: Outcome) -> dict[str, float]:
    """Say how likely each job keeps its deadline, and return it.

    Times are as far off as those of the committed runs were.
    """
    jobs = simulated.problem.jobs
    if not np.isfinite(jobs.deadline_s).any():
        return {}
    sigma, common = run_record.spread()
    in_time = risk.assess(simulated, np.full(simulated.problem.predicted_s.shape, sigma),
                          common=common).in_time
    chances = {job: float(chance) for job, chance in zip(jobs.ids, in_time, strict=True) if chance >= 0}
    say("in time: " + ", ".join(f"{job} with {chance:.0%}" for job, chance in chances.items()))
    return chances


def _keep_durations(prepared: PreparedJobs, attempts: pd.DataFrame, out: Path) -> None:
    """Keep the durations of the notebooks that are done."""
    notebooks = {row.job_id: row.job_class for row in prepared.rows if "path" in row.arguments}
    types = {slot.name: slot.device_type for slot in prepared.workers.slots}
    done = attempts[(attempts["status"] == "done") & attempts["job_id"].isin(notebooks)]
    if len(done):
        expected.keep_notebooks(pd.DataFrame({
            "run": str(out.resolve()), "job_id": done["job_id"],
            "notebook": done["job_id"].map(notebooks), "device_type": done["device"].map(types),
            "seconds": done["end_s"] - done["start_s"]}))
