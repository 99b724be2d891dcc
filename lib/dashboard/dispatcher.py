"""The dispatcher: the queue of ``lib.schedule`` over the database's runs and the agents' slots.

The queue's journal knows where runs were placed and how they ended; the database knows which runs people want. Every step
between them can be repeated, and is repeated at each start: a server killed at any moment loses no run and runs none twice.
"""

import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pandas as pd
from sqlalchemy import select

from lib import paths
from lib.dashboard import database as db
from lib.dashboard.agents.fleet import AgentSlot, Fleet
from lib.dashboard.database_engine import Database, served
from lib.dashboard.predictions import Predictions
from lib.dashboard.run_records import RunRecords, note
from lib.errors import InputError
from lib.schedule.policies import registry
from lib.schedule.runtime.journal import TOGETHER, Spec, UnwritableError
from lib.schedule.runtime.service import Service
from lib.schedule.runtime.workers import Limits, device_type_of
from lib.schedule.state import Policy

_STATES = {"done": db.FINISHED, "failed": db.FAILED, "cancelled": db.CANCELLED}
_SOON_S, _AGAIN_S = 0.5, 5.0
_LEAST_S = 1e-3  # of a deadline that has passed
_WORKER_SILENT = 2.0  # a worker may be silent so much longer than its agent, whose silence is another matter
_QUEUE = select(db.Run).join(db.Job)


def spec_of(run: db.Run) -> Spec:
    """Return a run as a task of a worker (``lib.finetune.task``, or a notebook)."""
    config, folder = run.config.config_json, paths.DATA / run.folder
    if run.config.kind == "notebook":
        out = folder / Path(config["notebook"]).name
        return Spec(run.id, "lib.schedule.runtime.tasks:notebook",
                    {"path": config["notebook"], "parameters": config["parameters"], "out": str(out)})
    return Spec(run.id, "lib.finetune.task:finetune", {"config": config, "folder": str(folder)}, config.get("devices", 1))


class Dispatcher:
    """Places runs on agents, and observes the queue. ``router`` has the endpoints of agents."""

    def __init__(self, database: Database, folder: Path, limits: Limits | None = None, policy: Policy | None = None,
                 spec_of: Callable[[db.Run], Spec] = spec_of):
        self._database, self._folder, self._spec_of = database, folder, spec_of
        self._limits, self._policy = limits or Limits(), policy or registry.policy_for("hybrid")
        self._predictions = Predictions()
        self._records = RunRecords(database, self.cancel)
        self._fleet = Fleet(database, self._limits, self._records)
        self.router = self._fleet.router()
        self._begun: dict[str, tuple[str, float]] = {}  # runs at their first attempt: the slot, and when
        self._over, self._unadvised = threading.Event(), threading.Event()
        self._submitted: SimpleQueue[str] = SimpleQueue()
        self._service: Service | None = None
        self._threads: list[threading.Thread] = []

    # ------------------------------------------------------------------------------------------ what the dashboard calls

    def start(self) -> None:
        """Begin to serve the queue, once. Raises InputError where another server does, and errors of the database."""
        if self._threads:
            return
        # no run is ever too late: its predicted time may be a guess
        limits = replace(self._limits, silent_s=_WORKER_SILENT * self._limits.silent_s, overrun_factor=math.inf)
        with contextlib.ExitStack() as opened:
            opened.enter_context(served(self._database))
            self._service = opened.enter_context(Service(self._folder, self._policy, self._predictions.seconds, limits,
                                                         self._fleet.spawn, self))
            self._reconcile()
            self._opened = opened.pop_all()
        self._records.start()
        agents = partial(self._fleet.run, self._over.is_set, self._join, self._service.remove_slot)
        self._threads = [threading.Thread(target=target, daemon=True)
                         for target in (self._lead, self._submit_all, self._advise_all, agents)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End; running jobs stay in the journal, and the next server retries them."""
        self._over.set()
        self._fleet.changed()
        self._unadvised.set()
        self._submitted.put("")
        self._threads[-1].join()
        self._fleet.close()  # from now on; the next server waits until they have noticed
        for thread in self._threads:
            thread.join()
        self._records.close()
        self._opened.close()

    def submit(self, run_id: str) -> None:
        """Take a queued run; a run that was taken before stays."""
        self._submitted.put(run_id)

    def cancel(self, run_id: str) -> bool:
        """End a run; False where it is unknown or has ended."""
        return self._service.cancel(run_id)

    def has_ended(self, run_id: str) -> bool:
        """Return whether a run has ended by the journal, which knows a moment before the database."""
        return run_id in set(self._service.journal.results()["job_id"])

    def reorder(self, run_id: str, priority: int) -> bool:
        """Give a run another priority; False where it is unknown or has ended."""
        return self._service.reorder(run_id, priority)

    def plan(self) -> pd.DataFrame:
        """Return job_id, device, start_s, end_s (from now), status, reason and in_time of running and planned jobs.

        A run that reports its progress ends as that says. A run that takes longer than predicted has no end, and runs planned
        behind it have no times.
        """
        plan = self._from(self._service.now(), self._service.plan(self._predictions.spread, self._records.remaining_s))
        sources = [self._predictions.source(row.job_id, device_type_of(row.device)) if row.status == "planned" else ""
                   for row in plan.itertuples()]
        return plan.assign(reason=plan["reason"] + sources)

    def attempts(self, past_s: float) -> pd.DataFrame:
        """Return job_id, device, start_s, end_s (from now), status and reason of attempts that ended in the last seconds."""
        table = self._from(self._service.now(), self._service.journal.attempts())
        return table[table["end_s"] > -past_s]

    @staticmethod
    def _from(now_s: float, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table with its times counted from ``now_s``, before it was made: nothing planned lies in the past."""
        return table.assign(start_s=table["start_s"] - now_s, end_s=table["end_s"] - now_s)

    # ------------------------------------------------------------------------------------------ journal and database

    def _lead(self) -> None:
        """Run the queue until the end, again after any error."""
        while not self._over.is_set():
            try:
                self._service.run(self._over.is_set)
            except Exception as error:  # the journal has what there was
                note(f"the queue stopped, and goes on in {_AGAIN_S:g} s", error)
                self._over.wait(_AGAIN_S)

    def _reconcile(self) -> None:
        """Make journal and database agree after the last server has ended."""
        ends = self._service.journal.results().set_index("job_id").to_dict("index")
        with self._database.reading() as session:
            runs = session.scalars(_QUEUE.where(db.Run.state.in_((db.QUEUED, db.RUNNING))).order_by(db.Run.created_at)).all()
            expected = session.scalars(select(db.Agent.name).where(db.Agent.connected)).all()
            self._predictions.recall(session, self._service.journal.attempts())
        self._fleet.expect(expected, self._limits.silent_s)
        with self._database.writing() as session:
            for run in runs:
                if end := ends.get(run.id):
                    if end["attempt"]:
                        db.transition(session, run.id, db.RUNNING, attempt=end["attempt"])
                    db.transition(session, run.id, _STATES[end["status"]], end["reason"], **_best(end["result"]))
                elif run.state == db.RUNNING:
                    db.transition(session, run.id, db.QUEUED, "the server was restarted")
        for run in runs:
            if run.id not in ends:
                self._predictions.add(run)
                self._submitted.put(run.id)

    def _submit_all(self) -> None:
        """Submit waiting runs to the queue, each once it was predicted; try again after an error."""
        while run_id := self._submitted.get():
            last = ""
            while not self._over.is_set():
                try:
                    with contextlib.suppress(db.ConflictError, db.NotFoundError):  # it has ended, or is gone, meanwhile
                        self._submit(run_id)
                    break
                except Exception as error:  # a disk that is full, a database that is away: the run waits until it is over
                    last = note(f"run {run_id} is not in the queue yet, and tried again", error, last)
                    self._over.wait(_SOON_S)

    def _submit(self, run_id: str) -> None:
        if not (run := self._read(run_id)):
            return
        self._predictions.add(run)
        self._predictions.advise(run_id)
        try:
            self._service.submit(self._spec_of(run), priority=run.job.priority, deadline_s=_left_s(run.job))
        except UnwritableError:
            raise
        except InputError as error:
            with self._database.writing() as session:
                db.transition(session, run_id, db.FAILED, str(error))
            self._predictions.drop(run_id)
            return
        now = self._read(run_id)  # what was changed before the queue knew it
        if now is None:
            self._service.cancel(run_id)
        elif now.job.priority != run.job.priority:
            self._service.reorder(run_id, now.job.priority)

    def _advise_all(self) -> None:
        """Predict the waiting runs again each time another processor has joined."""
        while self._unadvised.wait() and not self._over.is_set():
            self._unadvised.clear()
            for run_id in self._predictions.waiting():
                if not self._over.is_set():
                    self._predictions.advise(run_id)
            self._service.predict_anew()

    def _read(self, run_id: str) -> db.Run | None:
        with self._database.reading() as session:
            return session.scalar(_QUEUE.where(db.Run.id == run_id, db.Run.state.not_in(db.ENDS)))

    def _join(self, slot: AgentSlot) -> None:
        if self._predictions.place(device_type_of(slot.slot.name), slot):
            self._unadvised.set()
        self._service.add_slot(slot.slot)

    # ------------------------------------------------------------------------------------------ what the queue calls

    def started(self, job_id: str, attempt: int, slot: str, at_s: float) -> None:
        """Note that an attempt starts, on which device, and why there."""
        if attempt == 1:
            self._begun[job_id] = slot, at_s
        places = [self._fleet.slots.get(name) for name in slot.split(TOGETHER)]
        facts = {"agent_id": places[0].agent_id, "device": TOGETHER.join(place.device.name for place in places)} \
            if all(places) else {}
        self._records.state(job_id, db.RUNNING, attempt=attempt, **facts,
                            **self._predictions.placement(job_id, device_type_of(slot)))

    def ended(self, job_id: str, attempt: int, status: str, reason: str, result: Any, at_s: float) -> None:
        """Note the end of a run, and how long it took if its first attempt was done."""
        slot, start_s = self._begun.pop(job_id, ("", 0.0))
        if slot and status == "done":
            self._predictions.measure(job_id, device_type_of(slot), at_s - start_s)
        self._predictions.drop(job_id)
        self._records.state(job_id, _STATES[status], reason, **_best(result))

    def stopped(self, job_id: str, attempt: int, status: str, reason: str, at_s: float) -> None:
        """Note that an attempt ended, and the run waits again."""
        self._begun.pop(job_id, None)
        self._records.state(job_id, db.QUEUED, f"{status}: {reason}" if reason else status)


def _best(result: Any) -> dict[str, float]:
    """Return the best value of a run's result, as columns."""
    value = result.get("best_value") if isinstance(result, dict) else None
    return {"best_value": float(value)} if isinstance(value, int | float) else {}


def _left_s(job: db.Job) -> float:
    """Return the seconds until the deadline of a run, NaN without one."""
    if job.deadline_s is None:
        return math.nan
    return max(_LEAST_S, job.deadline_s - (db.now() - job.enqueued_at).total_seconds())
