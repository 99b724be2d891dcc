"""Runs a fixed list of jobs for real: one worker per device or CPU slot, and a journal from which a killed run resumes."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import locks
from lib.errors import InputError, choices, is_no_space
from lib.progress import track
from lib.schedule.contention import Contention
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.runtime.engine.engine import TICK_S, Engine
from lib.schedule.runtime.journal import Entry, Journal, Spec
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, Spawn
from lib.schedule.state import Policy

JOURNAL = "run.sqlite"


@dataclass(frozen=True)
class PreparedJobs:
    """Jobs, slots and how their workers are spawned, predicted seconds (jobs, types), and the policy with its ``name``.

    ``contention`` is how jobs slow each other down there, if known; ``notes`` say what could not be probed.
    """

    specs: Sequence[Spec]
    jobs: Jobs
    slots: Sequence[Slot]
    fleet: Fleet
    predicted_s: np.ndarray
    policy: Policy
    name: str = ""
    spawn: Spawn = ProcessWorker
    contention: Contention | None = None
    notes: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem:
        """Return the jobs as a problem whose predictions are exact."""
        return Problem(self.jobs, self.fleet, self.predicted_s, self.predicted_s)


def execute(prepared: PreparedJobs, folder: Path, limits: Limits | None = None,
            again: Callable[[str], bool] = is_no_space) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Run jobs as their policy says; return the attempts, the ends with results, and notes of what went wrong.

    ``folder`` holds the journal; the same jobs again resume a run that was stopped or killed. Every job ends once in it: done,
    or failed with a reason. A failure for whose reason ``again`` holds is tried again by the next call. A job's other effects
    happen at least once: a job that is killed between its effect and its entry runs again. Raises InputError when another
    process runs it, the journal is of other jobs, a disk is full, or a job can run nowhere.
    """
    specs, jobs, fleet, path = prepared.specs, prepared.jobs, prepared.fleet, folder / JOURNAL
    rows = dict(zip((spec.job_id for spec in specs), prepared.problem.feasible_s.tolist(), strict=True))
    device = {slot.name: number for number, slot in enumerate(prepared.slots)}

    def site_of(present: tuple[Slot, ...]) -> tuple[Fleet, Contention | None]:
        part, types = fleet.subset([device[slot.name] for slot in present])
        return part, prepared.contention and prepared.contention.subset(types)

    with locks.writer(path), closing(Journal(path, specs, again)) as journal:
        engine = Engine(journal, prepared.policy, lambda spec, name: rows[spec.job_id][fleet.types.index(name)], site_of,
                        limits or Limits(), prepared.spawn, tick_s=TICK_S)
        ended = journal.ended()
        for job in np.argsort(jobs.arrival_s, kind="stable").tolist():
            if specs[job].job_id not in ended:
                engine.add(Entry.from_jobs(specs[job], jobs, job))
        for slot in prepared.slots:
            engine.join(slot)
        engine.run(_until_empty(engine))
        return journal.attempts(), journal.results(), list(engine.slots.notes)


def _until_empty(engine: Engine) -> Callable[[], bool]:
    """Return whether every job has ended, as a function; it raises InputError where no slot is left for some."""
    total = engine.left
    progress, seen = iter(track(range(total), "jobs")), 0

    def empty() -> bool:
        nonlocal seen
        for _ in range(total - engine.left - seen):
            next(progress)
        seen, left = total - engine.left, engine.left
        stranded = engine.stranded if len(engine.slots) else [*engine.waiting.values(), *engine.upcoming]
        if left and left == len(stranded):
            names = choices(entry.job_id for entry in stranded[:3])
            raise InputError(f"no slot is left for {left} jobs, such as {names}; the same call again resumes where this one "
                             f"ended ({'; '.join(list(engine.slots.notes)[-3:])})")
        return not left

    return empty
