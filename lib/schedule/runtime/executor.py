"""Runs a fixed list of jobs for real: one worker per device or CPU slot, and a journal from which a killed run resumes."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from lib import locks
from lib.errors import InputError, choices, is_no_space
from lib.progress import say, track
from lib.schedule.problem import PER_JOB, Jobs, Problem
from lib.schedule.runtime.engine.engine import Engine, Observer
from lib.schedule.runtime.journal import Entry, Journal, Spec
from lib.schedule.runtime.local_site import fleet_of
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, Spawn
from lib.schedule.state import Policy

JOURNAL = "run.sqlite"
_GATHER_S = 15.0


@dataclass(frozen=True)
class PreparedJobs:
    """Jobs, slots and how their workers are spawned, predicted seconds (jobs, types), and the policy with its ``name``.

    ``notes`` say what could not be probed.
    """

    specs: Sequence[Spec]
    jobs: Jobs
    slots: Sequence[Slot]
    predicted_s: np.ndarray
    policy: Policy
    name: str = ""
    spawn: Spawn = ProcessWorker
    notes: tuple[str, ...] = ()

    @cached_property
    def problem(self) -> Problem:
        """Return the jobs as a problem whose predictions are exact."""
        return Problem(self.jobs, fleet_of(self.slots), self.predicted_s, self.predicted_s)


class _Progress(Observer):
    def __init__(self, total: int):
        self._steps = iter(track(range(total), "jobs"))

    def ended(self, *_: object) -> None:
        """Count a job."""
        next(self._steps)

    def stopped(self, job_id: str, attempt: int, status: str, reason: str, at_s: float) -> None:
        """Print why a job is tried again."""
        say(f"{at_s:,.1f} s: attempt {attempt} of {job_id} was {status}{f': {reason}' if reason else ''}")


def execute(prepared: PreparedJobs, folder: Path, limits: Limits | None = None,
            again: Callable[[str], bool] = is_no_space) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Run jobs as their policy says; return the attempts, the ends with results, and notes of what went wrong.

    ``folder`` holds the journal; the same jobs again resume a run that was stopped or killed. Every job ends once in it: done,
    or failed with a reason. A failure for whose reason ``again`` holds is tried again by the next call. A job's other effects
    happen at least once: a job that is killed between its effect and its entry runs again. Raises InputError when another
    process runs it, the journal is of other jobs, a disk is full, or a job can run nowhere.
    """
    problem, jobs, path = prepared.problem, prepared.jobs, folder / JOURNAL
    seconds = pd.DataFrame(problem.feasible_s, jobs.ids, problem.fleet.types)
    with locks.writer(path), closing(Journal(path, prepared.specs, again)) as journal:
        ended, order = journal.ended(), np.argsort(jobs.arrival_s, kind="stable").tolist()
        todo = [job for job in order if prepared.specs[job].job_id not in ended]
        engine = Engine(journal, prepared.policy, lambda spec, device_type: seconds.loc[spec.job_id, device_type], limits,
                        prepared.spawn, _Progress(len(todo)), _GATHER_S)
        for job in todo:
            engine.add(Entry(prepared.specs[job], *(getattr(jobs, name).item(job) for name in PER_JOB),
                             job_class=int(jobs.job_class[job]), user=int(jobs.users[job]),
                             weight=float(jobs.user_weights[jobs.users[job]])))
        for slot in prepared.slots:
            engine.add_slot(slot)
        engine.run(lambda: _is_empty(engine))
        resumed = [f"resumed: {len(ended)} of {len(jobs)} jobs had ended in an earlier call"] if ended and todo else []
        return journal.attempts(), journal.results(), [*resumed, *engine.slots.notes]


def _is_empty(engine: Engine) -> bool:
    """Return whether every job has ended. Raises InputError where no slot is left for some."""
    left, stranded = engine.left, engine.stranded if len(engine.slots) else [*engine.waiting.values(), *engine.upcoming]
    if left and left == len(stranded):
        names = choices(entry.job_id for entry in stranded[:3])
        raise InputError(f"no slot is left for {left} jobs, such as {names}; the same call again resumes where this one "
                         f"ended ({'; '.join(list(engine.slots.notes)[-3:])})")
    return not left
