"""The runner: it leads the queue of the database, and places runs by the hybrid policy."""

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

import pandas as pd
from sqlalchemy import update

from lib.dashboard import inventory, plan
from lib.dashboard.database import Database
from lib.dashboard.predictions import Predictions
from lib.dashboard.tables import PREDICTING
from lib.errors import InputError, one_line
from lib.schedule.loop import Loop
from lib.schedule.policies import by_priority, policy_for
from lib.schedule.run import ray
from lib.schedule.run.backend import QueueBackend, QueueClosedError, TimeLimit, Workers
from lib.schedule.run.database import AWAY, leadership
from lib.schedule.run.processes import WARM_UP, ProcessWorkers
from lib.schedule.run.queue import DONE, OPEN, QUEUED, QueueAwayError, QueueJob
from lib.schedule.run.slots import Slot, slots_here

AGAIN_S, LOOK_S = 5.0, 0.5
LIMIT_S = 7 * 86_400.0  # a run is not too late: its predicted time may be a guess


def note(text: str, error: Exception) -> None:
    """Print an error that does not stop the server, in one line."""
    line = error if isinstance(error, InputError) else one_line(error)
    print(f"{text}: {line}", file=sys.stderr, flush=True)


class Runner:
    """Leads the queue in two threads: one predicts new runs, the other one places them.

    ``slots`` are those of this machine by default, with ``ray_address`` those of a Ray cluster.
    """

    def __init__(self, database: Database, ray_address: str = "", slots: Sequence[Slot] = (),
                 warm_up: str = WARM_UP):
        self._database, self._queue = database, database.queue
        self._ray_address, self._slots, self._warm_up = ray_address, slots, warm_up
        self._cluster, self._predictions = None, Predictions()
        self._backend: QueueBackend | None = None
        self._reserved, self._retried = set(), set()  # names of slots; ids of jobs
        self._over, self._threads = threading.Event(), []

    def start(self) -> None:
        """Begin to lead the queue, once.

        Raises InputError where another process leads it, and for a cluster that cannot be joined.
        """
        if self._threads:
            return
        with ExitStack() as opened:
            opened.enter_context(leadership(self._database.engine))
            if self._ray_address:
                self._cluster = opened.enter_context(ray.cluster(self._ray_address))
            elif not self._slots:
                self._slots = slots_here(by_model=False)
            for job in self._queue.jobs(QueueJob.status == DONE, QueueJob.attempt == 1):
                kind = inventory.device_type(job.device)
                self._predictions.learn(job, kind, job.end_s - job.start_s)
            self.refresh()  # a database that is away is an error here
            self._opened = opened.pop_all()
        self._threads = [threading.Thread(target=target, daemon=True)
                         for target in (self._lead, self._predict)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End; what runs is stopped, and the next server runs it again."""
        self._over.set()
        if self._backend:
            self._backend.close()
        self._threads[0].join()  # the other one may be in the middle of a prediction
        self._opened.close()

    def refresh(self) -> None:
        """Write the machines into the inventory, and read which cards are reserved."""
        slots = tuple(self._slots)  # those of a cluster grow
        self._predictions.know(slots)
        with self._database.writing() as session:
            inventory.save(session, slots)
            self._reserved = inventory.reserved(session)

    def plan(self) -> pd.DataFrame:
        """Return what runs and what is planned from now on (``lib.dashboard.plan``)."""
        jobs = self._queue.jobs(QueueJob.status.in_(OPEN))
        return plan.plan(jobs, tuple(self._slots), self._predictions, time.time())

    def _lead(self) -> None:
        """Place and run jobs until the end, with new workers after an error."""
        while not self._over.is_set():
            try:
                with closing(self._workers()) as workers:
                    self._serve(workers)
            except QueueClosedError:
                return
            except Exception as error:  # a full disk, a database that is away at the start
                note(f"the queue stopped, and goes on in {AGAIN_S:g} s", error)
                self._over.wait(AGAIN_S)

    def _workers(self) -> Workers:
        if self._cluster:
            workers = ray.RayWorkers(self._cluster, warm_up=self._warm_up)
            self._slots = workers.slots
            return workers
        return ProcessWorkers(self._slots, self._warm_up)

    def _serve(self, workers: Workers) -> None:
        self.refresh()
        self._queue.recover()
        with self._queue.writing() as session:  # their predictions are gone with the last server
            waiting = update(QueueJob).where(QueueJob.status == QUEUED)
            session.execute(waiting.values(status=PREDICTING))
        backend = QueueBackend(
            self._queue, workers, self._predictions.seconds, time.time, live=True,
            time_limit=TimeLimit(least_s=LIMIT_S), explain=self._predictions.placement,
            reserved=lambda: self._reserved, on_end=self._ended)
        self._backend, policy = backend, policy_for("hybrid")
        if self._over.is_set():
            backend.close()

        def decide(state, predict):
            return by_priority(state, predict, policy, backend.priorities())

        Loop(decide, backend).run()

    def _ended(self, job: QueueJob, device_type: str, status: str, seconds: float,
               reason: str) -> None:
        """Learn from a job that is done at its first attempt: later ones resume."""
        if status != DONE:
            self._retried.add(job.job_id)
        elif job.attempt == 0 and job.job_id not in self._retried:
            self._predictions.learn(job, device_type, seconds)

    def _predict(self) -> None:
        """Predict new jobs, and hand each to the queue."""
        while not self._over.wait(LOOK_S):
            try:
                new = self._queue.jobs(QueueJob.status == PREDICTING)
                for job in sorted(new, key=self._predictions.needs_advice):
                    if self._predictions.needs_advice(job):
                        self._predictions.advise(job)
                    with self._queue.writing() as session:
                        predicted = update(QueueJob).where(QueueJob.number == job.number,
                                                           QueueJob.status == PREDICTING)
                        session.execute(predicted.values(status=QUEUED))
            except (QueueAwayError, *AWAY):  # it comes back
                self._over.wait(AGAIN_S)
