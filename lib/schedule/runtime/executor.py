"""Runs a fixed list of jobs for real: a worker a device or CPU slot, and a journal from which a killed run resumes."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd

from lib import locks
from lib.errors import InputError, choices, is_no_space
from lib.progress import track
from lib.schedule.contention import Contention
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.runtime.engine.engine import TICK_S, Engine
from lib.schedule.runtime.engine.view import Entry
from lib.schedule.runtime.journal import Journal, Spec
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, Spawn
from lib.schedule.state import Policy

JOURNAL = "run.sqlite"


def execute(specs: Sequence[Spec], jobs: Jobs, fleet: Fleet, slots: Sequence[Slot], predicted_s: np.ndarray, policy: Policy,
            folder: Path, limits: Limits | None = None, spawn: Spawn = ProcessWorker, contention: Contention | None = None,
            again: Callable[[str], bool] = is_no_space) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Run jobs on slots as a policy says; return the attempts, the ends with results, and notes of what went wrong.

    ``folder`` holds the journal; the same jobs again resume a run that was stopped or killed. Every job ends once in it: done,
    or failed with a reason, and is tried again when that is one for which ``again`` holds. What a job does besides happens at
    least once: one that is killed between its effect and its entry runs anew. The policy knows ``contention``. Raises
    InputError when another process is at it, the journal is of other jobs, a disk is full, or a job can run nowhere.
    """
    problem, path = Problem(jobs, fleet, predicted_s, predicted_s), folder / JOURNAL
    rows, columns = dict(zip((spec.job_id for spec in specs), problem.feasible_s.tolist(), strict=True)), fleet.types.index
    device = {slot.name: number for number, slot in enumerate(slots)}

    def fleet_of(there: tuple[Slot, ...]) -> Fleet:
        return fleet.subset([device[slot.name] for slot in there])[0]

    def contention_of(there: Fleet) -> Contention | None:
        return contention and contention.subset(np.array([columns(name) for name in there.types]))

    with locks.writer(path), closing(Journal(path, specs, again)) as journal:
        engine = Engine(journal, policy, lambda spec, name: rows[spec.job_id][columns(name)], fleet_of, limits or Limits(),
                        spawn, contention_of=contention_of, tick_s=TICK_S)
        ended = journal.ended()
        for job in np.argsort(jobs.arrival_s, kind="stable").tolist():
            if specs[job].job_id not in ended:
                engine.add(Entry.of(specs[job], jobs, job))
        for slot in slots:
            engine.join(slot)
        _run_until_empty(engine)
        return journal.attempts(), journal.results(), list(engine.slots.notes)


def _run_until_empty(engine: Engine) -> None:
    """Run until every job has ended; InputError where no slot is left for some."""
    total = engine.left
    progress, seen = iter(track(range(total), "jobs")), 0

    def empty() -> bool:
        nonlocal seen
        for _ in range(total - engine.left - seen):
            next(progress)
        seen, left = total - engine.left, engine.left
        stranded = [*engine.waiting.values(), *engine.upcoming] if not len(engine.slots) else engine.stranded
        if left and left == len(stranded):
            names = choices(entry.job_id for entry in stranded[:3])
            raise InputError(f"no slot is left for {left} jobs, such as {names}; the same call again resumes where this one "
                             f"ended ({'; '.join(list(engine.slots.notes)[-3:])})")
        return not left

    engine.run(empty)
