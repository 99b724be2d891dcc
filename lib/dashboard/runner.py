"""The runner places waiting runs on the devices of this machine by a policy, and notes their states.

The queue's journal knows where runs were placed and how they ended; the database knows which runs people
want. At each start both are brought together: a server killed at any moment loses no run and ends none twice.
"""

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pandas as pd
from sqlalchemy import select, update

from lib.dashboard import inventory, outputs
from lib.dashboard import tables as db
from lib.dashboard.database import UNAVAILABLE, Database
from lib.dashboard.inventory import Device
from lib.dashboard.predictions import Prediction, Predictions
from lib.errors import InputError, one_line
from lib.schedule.policies import registry
from lib.schedule.runtime.journal import Spec, UnwritableError
from lib.schedule.runtime.service import Service
from lib.schedule.runtime.workers import Limits, device_type_of, logged
from lib.schedule.state import Policy

STATES = {"done": db.FINISHED, "failed": db.FAILED, "cancelled": db.CANCELLED}
RETRY_S, PROGRESS_S = 0.5, 2.0


def spec_of(run: db.Run) -> Spec:
    """Return a run as a task of a worker: a fine-tune, or a notebook."""
    config, folder = run.config.config_json, outputs.folder_of(run)
    if run.config.kind == "notebook":
        arguments = {"path": config["notebook"], "parameters": config["parameters"],
                     "out": str(folder / Path(config["notebook"]).name)}
        return Spec(run.id, "lib.schedule.runtime.tasks:notebook", arguments)
    arguments = {"config": config, "folder": str(folder)}
    return Spec(run.id, "lib.finetune.task:finetune", arguments, config.get("devices", 1))


def note(text: str, error: Exception) -> None:
    """Print an error that does not stop the server, in one line."""
    line = error if isinstance(error, InputError) else one_line(error)
    print(f"{text}: {line}", file=sys.stderr, flush=True)


class Runner:
    """Places the runs of the queue on devices; ``devices`` are those of this machine by default."""

    def __init__(self, database: Database, folder: Path, limits: Limits | None = None,
                 policy: Policy | None = None, spec_of: Callable[[db.Run], Spec] = spec_of,
                 devices: Sequence[Device] = ()):
        self._database, self._folder, self._spec_of = database, folder, spec_of
        # no run is ever too late: its predicted time may be a guess
        self._limits = replace(limits or Limits(), overrun_factor=math.inf)
        self._policy = policy or registry.policy_for("hybrid")
        self._devices, self._agent_id = tuple(devices), ""
        self._predictions, self._runs = Predictions(), {}
        self._begun: dict[str, tuple[Device, float]] = {}  # runs at their first attempt
        self._changes, self._submitted = SimpleQueue(), SimpleQueue()  # states; ids of runs
        self._over, self._threads = threading.Event(), []
        self._service: Service | None = None

    # ------------------------------------------------------------------------------ what the dashboard calls

    def start(self) -> None:
        """Begin to serve the queue, once. Raises InputError where another server does."""
        if self._threads:
            return
        with contextlib.ExitStack() as opened:
            opened.enter_context(self._database.served())
            self._service = opened.enter_context(
                Service(self._folder, self._policy, self._seconds, self._limits, logged, self))
            self.refresh()
            self._reconcile()
            self._opened = opened.pop_all()
        self._threads = [threading.Thread(target=target, daemon=True) for target in
                         (self._lead, self._submit_all, self._write_states, self._write_progress)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End; running jobs stay in the journal, and the next server retries them."""
        self._over.set()
        self._submitted.put("")
        self._changes.put(None)
        for thread in self._threads:
            thread.join()
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

    def refresh(self) -> None:
        """Read the devices of this machine, write the inventory, and leave reserved cards alone."""
        self._devices = self._devices or tuple(inventory.devices_here())
        with self._database.writing() as session:
            agent = inventory.save(session, self._devices)
            self._agent_id = agent.id
            reserved = {gpu.index for gpu in agent.gpus if gpu.is_allocated}
        for device in self._devices:
            if device.gpu in reserved:
                self._service.remove_slot(device.slot.name)
            else:
                self._service.add_slot(device.slot)

    def plan(self) -> pd.DataFrame:
        """Return job_id, device, start_s, end_s (from now), status and reason of runs."""
        now_s = self._service.now()
        plan = self._service.plan()
        for row in plan.itertuples():
            if row.status == "planned":
                source = self._predict(row.job_id, device_type_of(row.device)).source
                plan.loc[row.Index, "reason"] += f" ({source})"
        return plan.assign(start_s=plan["start_s"] - now_s, end_s=plan["end_s"] - now_s)

    # ------------------------------------------------------------------------------ predictions

    def _device(self, device_type: str) -> Device | None:
        return next((device for device in self._devices if device.type == device_type), None)

    def _predict(self, run_id: str, device_type: str) -> Prediction:
        run, device = self._runs.get(run_id), self._device(device_type)
        if not run or not device or run.only_agent_id not in (None, self._agent_id):
            return Prediction(math.inf, "it may not run there")
        return self._predictions.of(run, device)

    def _seconds(self, spec: Spec, device_type: str) -> float:
        return self._predict(spec.job_id, device_type).seconds

    # ------------------------------------------------------------------------------ journal and database

    def _lead(self) -> None:
        """Run the queue until the end, again after any error."""
        while not self._over.is_set():
            try:
                self._service.run(self._over.is_set)
            except Exception as error:  # the journal has what there was
                note("the queue stopped, and goes on", error)
                self._over.wait(RETRY_S)

    def _reconcile(self) -> None:
        """Make journal and database agree after the last server has ended."""
        ends = self._service.journal.results().set_index("job_id").to_dict("index")
        with self._database.writing() as session:
            self._predictions.recall(session, self._agent_id, self._devices)
            alive = select(db.Run).join(db.Job).where(db.Run.state.in_((db.QUEUED, db.RUNNING)))
            for run in session.scalars(alive.order_by(db.Run.created_at)).all():
                run_id, state = run.id, run.state
                if end := ends.get(run_id):
                    if end["attempt"]:
                        db.transition(session, run_id, db.RUNNING, attempt=end["attempt"])
                    db.transition(session, run_id, STATES[end["status"]], end["reason"])
                    continue
                if state == db.RUNNING:
                    db.transition(session, run_id, db.QUEUED, "the server was restarted")
                self._submitted.put(run_id)

    def _submit_all(self) -> None:
        """Predict waiting runs and submit them to the queue; try again after an error."""
        while run_id := self._submitted.get():
            while not self._over.is_set():
                try:
                    self._submit(run_id)
                    break
                except Exception as error:  # a disk that is full, a database that is away
                    note(f"run {run_id} is not in the queue yet, and tried again", error)
                    self._over.wait(RETRY_S)

    def _submit(self, run_id: str) -> None:
        with self._database.reading() as session:
            run = session.get(db.Run, run_id)
        if run is None or run.state in db.ENDS:
            return
        self._runs[run_id] = run
        self._predictions.advise(run, self._devices)
        try:
            self._service.submit(self._spec_of(run), priority=run.job.priority)
        except UnwritableError:
            raise
        except InputError as error:
            self._changes.put((run_id, db.FAILED, str(error), {}))
            return
        with self._database.reading() as session:  # what was changed before the queue knew it
            changed = session.get(db.Run, run_id)
        if changed is None or changed.state in db.ENDS:
            self._service.cancel(run_id)
        elif changed.job.priority != run.job.priority:
            self._service.reorder(run_id, changed.job.priority)

    def _write_states(self) -> None:
        """Write new states into the database, in order, again until it takes them."""
        while change := self._changes.get():
            run_id, state, reason, facts = change
            while True:
                try:
                    with self._database.writing() as session:
                        db.transition(session, run_id, state, reason, **facts)
                    break
                except (db.ConflictError, db.NotFoundError):  # it has ended, or was deleted
                    self._service.cancel(run_id)
                    break
                except UNAVAILABLE as error:
                    note("the database is away, and tried again", error)
                    if self._over.wait(RETRY_S):
                        return  # the journal has the states; they are written at the next start

    def _write_progress(self) -> None:
        """Write epoch, step and best value of the runs that run."""
        while not self._over.wait(PROGRESS_S):
            with contextlib.suppress(*UNAVAILABLE):
                with self._database.reading() as session:
                    runs = session.scalars(select(db.Run).where(db.Run.state == db.RUNNING)).all()
                reached = {run.id: outputs.progress(run) for run in runs if run.job}
                with self._database.writing() as session:
                    for run_id, facts in reached.items():
                        if facts:
                            session.execute(update(db.Run).where(db.Run.id == run_id).values(facts))

    # ------------------------------------------------------------------------------ what the queue calls

    def started(self, job_id: str, attempt: int, slot: str, at_s: float) -> None:
        """Note that an attempt starts, on which device, and why there."""
        run, device = self._runs[job_id], self._device(device_type_of(slot))
        if attempt == 1:
            self._begun[job_id] = device, at_s
        facts = self._predictions.placement(run, device, self._devices)
        facts |= {"attempt": attempt, "agent_id": self._agent_id, "device": slot}
        self._changes.put((job_id, db.RUNNING, "", facts))

    def ended(self, job_id: str, attempt: int, status: str, reason: str, result: Any, at_s: float) -> None:
        """Note the end of a run, and how long it took if its first attempt was done."""
        run, (device, start_s) = self._runs.pop(job_id, None), self._begun.pop(job_id, (None, 0.0))
        if run and device and status == "done":
            self._predictions.measure(run, device, at_s - start_s)
        facts = outputs.progress(run) if run else {}
        self._changes.put((job_id, STATES[status], reason, facts))

    def stopped(self, job_id: str, attempt: int, status: str, reason: str, at_s: float) -> None:
        """Note that an attempt ended, and the run waits again."""
        self._begun.pop(job_id, None)
        self._changes.put((job_id, db.QUEUED, f"{status}: {reason}" if reason else status, {}))

    def reported(self, job_id: str, attempt: int, content: dict[str, Any]) -> None:
        """Append a printed line to the log of a run."""
        if "log" in content and (run := self._runs.get(job_id)):
            with (outputs.folder_of(run) / outputs.LOG).open("a", encoding="utf-8") as file:
                file.write(f"{content['log'][1]}\n")
