"""The verb ``run-jobs``: what jobs should take, their run here or on a cluster, and its record."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import update

from lib import files, paths, store
from lib.config.definitions import workload
from lib.errors import InputError, choices, is_no_space
from lib.progress import say, track
from lib.schedule import bounds, expected, risk
from lib.schedule.loop import Loop
from lib.schedule.policies import policy_for
from lib.schedule.problem import Jobs, Problem
from lib.schedule.run import jobs_file, record
from lib.schedule.run.backend import USUAL_LIMIT, QueueBackend, TimeLimit, Workers
from lib.schedule.run.database import leadership, open_engine
from lib.schedule.run.jobs_file import NOTEBOOK, PROBES, QUEUE, WORKLOAD
from lib.schedule.run.probes import Probes, probe
from lib.schedule.run.processes import ProcessWorkers
from lib.schedule.run.queue import Queue, QueueJob
from lib.schedule.run.record import RunRecord
from lib.schedule.run.slots import check_fits, fleet_of, slots_here
from lib.schedule.simulate import Outcome, simulate
from lib.schedule.state import Policy

_MAY_CHANGE = ("arrival_s", "deadline_s", "memory_mb", "cpu_cores")  # of a job, before a resume


@dataclass(frozen=True)
class PreparedJobs:
    """Jobs, how long they should take (in ``problem``), the workers that will run them, notes."""

    rows: list[QueueJob]
    problem: Problem
    workers: Workers
    policy: Policy
    policy_name: str = ""
    notes: Sequence[str] = ()


def prepare(rows: list[QueueJob], jobs: Jobs, out: Path, policy: str, objective: str,
            workers: Workers) -> PreparedJobs:
    """Expect how long the jobs of a file take (``jobs_file.read``); probe workloads on the workers.

    Raises InputError for a wrong policy or objective, and for a job that cannot run there.
    """
    chosen = policy_for(policy, objective)
    fleet = fleet_of(workers.slots)
    able = check_fits(jobs, fleet)
    workloads = [(row.job_class, row.devices) for row in rows if row.task == WORKLOAD]
    probes = probe(workloads, workers, files.folder(out) / PROBES) if workloads else {}
    earlier = expected.earlier_notebooks()
    known = [[_expect(row, name, probes, earlier) for name in fleet.types] for row in rows]
    seconds = np.where(able, [[cell.seconds for cell in line] for line in known], np.inf)
    for job in np.flatnonzero(np.isinf(seconds).all(axis=1)):
        reasons = choices(dict.fromkeys(cell.source for cell in known[job]))
        raise InputError(f"no slot can run job {rows[job].job_id!r}: {reasons}; the same call "
                         "again probes anew what failed")
    notes = [text for text in probes.values() if isinstance(text, str)]
    for row, line in zip(rows, known, strict=True):
        notes += [f"{row.job_id} on {name}: {cell.seconds:g} s is {cell.source}"
                  for name, cell in zip(fleet.types, line, strict=True) if "guess" in cell.source]
    problem = Problem(jobs, fleet, seconds, seconds)
    return PreparedJobs(rows, problem, workers, chosen, policy, notes)


def _expect(row: QueueJob, device_type: str, probes: Probes,
            earlier: expected.EarlierRuns) -> expected.Expected:
    arguments = row.arguments
    if row.task == NOTEBOOK:
        budget = expected.budget(arguments["path"], arguments["parameters"])
        return expected.expected_s(device_type, (lambda _: budget, earlier.of(arguments["path"])))
    times = probes.get(f"{row.job_class}/{row.devices}/{device_type}", "there are too few devices")
    if isinstance(times, str):
        return expected.Expected(np.inf, times)
    return expected.Expected(times["setup_s"] + times["step_s"] * arguments["steps"], "a probe")


def run(prepared: PreparedJobs, out: Path) -> RunRecord:
    """Run prepared jobs; ``out`` holds the queue and the record. The same call again resumes.

    If all jobs have ended before, nothing runs, and that run's record is returned as ``earlier``.
    Each job ends once, but its other effects happen at least once: one that is killed before its
    end is noted runs again. Raises InputError for a damaged record, other jobs, or a full disk.
    """
    from lib.measure import machine

    before = record.read(out) if (out / record.FILE).exists() else None
    simulated = simulate(prepared.problem, prepared.policy)
    in_time = _in_time(simulated)
    attempts, ends, notes = execute(prepared, out)
    if before and len(before.schedule) == len(attempts) and len(before.ends) == len(ends):
        return replace(before, earlier=True)
    _keep_durations(prepared, attempts, out)
    facts = {"policy": prepared.policy_name, "bound_s": bounds.makespan_bound(prepared.problem),
             "notes": [*prepared.notes, *notes], "machine": machine.name(),
             "written_utc": store.utc_now(), "in_time": in_time}
    classes = {row.job_id: row.job_class for row in prepared.rows}
    new = RunRecord(attempts, simulated.schedule, ends, classes, facts)
    record.write(new, out)
    return new


def execute(prepared: PreparedJobs, out: Path,
            time_limit: TimeLimit = USUAL_LIMIT) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Run jobs, or those of them that have not ended; return attempts, ends, and notes."""
    jobs, types = prepared.problem.jobs.ids, prepared.problem.fleet.types
    seconds = pd.DataFrame(prepared.problem.feasible_s, jobs, types)

    def expected_s(row: QueueJob, device_type: str) -> float:
        # a node that joins later is taken to be as fast as others of its kind
        kind = [name for name in types if name.partition("@")[0] == device_type.partition("@")[0]]
        names = [device_type] if device_type in types else kind
        return min(seconds.loc[row.job_id, names], default=np.inf)

    def show(row: QueueJob, device_type: str, status: str, spent_s: float, reason: str) -> None:
        if status in ("done", "failed"):
            next(bar, None)
        else:
            say(f"{row.job_id} on {device_type} was {status} after {spent_s:,.1f} s: {reason}")

    engine = open_engine(out / QUEUE)
    with leadership(engine), closing(Queue(engine)) as queue:
        known = queue.jobs()
        if not known:
            queue.submit(prepared.rows)
        elif list(map(_call, known)) != list(map(_call, prepared.rows)):
            raise InputError(f"{out / QUEUE} is the queue of other jobs; name another folder with "
                             "--output")
        else:
            with queue.writing() as session:
                session.execute(update(QueueJob), [
                    {"number": old.number, **{name: getattr(new, name) for name in _MAY_CHANGE}}
                    for old, new in zip(known, prepared.rows, strict=True)])
        queue.recover(is_no_space)
        ended, earlier = len(queue.ends()), queue.attempts()[["start_s", "end_s"]]
        begin_s = time.monotonic() - (earlier.max().max() if len(earlier) else 0.0)
        bar = iter(track(range(len(jobs) - ended), "jobs"))
        Loop(prepared.policy, QueueBackend(
            queue, prepared.workers, expected_s, lambda: time.monotonic() - begin_s,
            time_limit=time_limit, on_end=show)).run()
        attempts, notes = queue.attempts(), []
        if 0 < ended < len(jobs):
            notes.append(f"resumed: {ended} of {len(jobs)} jobs had ended in an earlier call")
        for row in attempts[~attempts["status"].isin(("done", "failed"))].itertuples():
            notes.append(f"{row.job_id} on {row.device} was {row.status} after "
                         f"{row.end_s - row.start_s:,.1f} s: {row.reason}")
        return attempts, queue.ends(), notes


def _call(row: QueueJob) -> tuple[Any, ...]:
    return row.job_id, row.task, row.arguments, row.devices


def _in_time(simulated: Outcome) -> dict[str, float]:
    """Say how likely each job keeps its deadline, and return it.

    Times are taken to be as far off as those of the committed runs were.
    """
    jobs = simulated.problem.jobs
    if not np.isfinite(jobs.deadline_s).any():
        return {}
    sigma, common = record.pooled(record.errors_by_run(record.committed()).values())
    sigmas = np.full(simulated.problem.predicted_s.shape, sigma)
    in_time = risk.assess(simulated, sigmas, common=common).in_time
    chances = {job: float(chance) for job, chance in zip(jobs.ids, in_time, strict=True)
               if chance >= 0}
    say("in time: " + ", ".join(f"{job} with {chance:.0%}" for job, chance in chances.items()))
    return chances


def _keep_durations(prepared: PreparedJobs, attempts: pd.DataFrame, out: Path) -> None:
    notebooks = {row.job_id: row.job_class for row in prepared.rows if row.task == NOTEBOOK}
    types = {slot.name: slot.device_type for slot in prepared.workers.slots}
    done = attempts[(attempts["status"] == "done") & attempts["job_id"].isin(notebooks)
                    & attempts["device"].isin(types)]  # not on slots of an earlier call
    if len(done):
        expected.keep_notebooks(pd.DataFrame({
            "run": str(out.resolve()), "job_id": done["job_id"],
            "notebook": done["job_id"].map(notebooks), "device_type": done["device"].map(types),
            "seconds": done["end_s"] - done["start_s"]}))


def run_trial(jobs: str, workloads: Sequence[str], count: int,
              job_s: float) -> tuple[RunRecord, Path]:
    """Run a file of jobs here, or without one ``count`` jobs of half to 1.5 times ``job_s``.

    Returns the record, and its new folder in data/schedule.
    """
    folder = paths.DATA / record.FOLDER
    out = folder / store.fresh_name("trial", lambda name: (folder / name).exists())
    names = [workload(name).id for name in workloads]
    with closing(ProcessWorkers(slots_here())) as workers:
        path = Path(jobs) if jobs else _write_trial(names, count, job_s, workers, out)
        rows, table = jobs_file.read(path, out)
        return run(prepare(rows, table, out, "hybrid", "makespan", workers), out), out


def _write_trial(names: Sequence[str], count: int, job_s: float, workers: Workers,
                 out: Path) -> Path:
    """Write ``jobs.csv``, in turn over workloads, with steps that follow from probes; return it."""
    probes = probe([(name, 1) for name in names], workers, files.folder(out) / PROBES)
    draw, rows = np.random.default_rng(0), []
    for number in range(count):
        name = names[number % len(names)]
        times = probes[f"{name}/1/{workers.slots[0].device_type}"]
        if isinstance(times, str):
            raise InputError(times)
        left_s = draw.uniform(0.5, 1.5) * job_s - times["setup_s"]
        rows.append({"job_id": f"{name}-{number}", "workload_id": name,
                     "steps": max(1, round(left_s / times["step_s"]))})
    return files.create(out / "jobs.csv", pd.DataFrame(rows).to_csv(index=False).encode())
