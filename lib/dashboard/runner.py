"""The runner: it leads the queue of the database, and places runs by the hybrid policy."""

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

from sqlalchemy import update

from lib.dashboard import inventory
from lib.dashboard.database import Database
from lib.dashboard.predictions import Predictions
from lib.dashboard.tables import PREDICTING
from lib.errors import InputError, one_line
from lib.schedule.loop import Loop
from lib.schedule.policies import by_priority, policy_for
from lib.schedule.run import ray
from lib.schedule.run.backend import QueueBackend, QueueClosedError, TimeLimit, Workers
from lib.schedule.run.database import AWAY, QueueAwayError, leadership
from lib.schedule.run.processes import WARM_UP, ProcessWorkers
from lib.schedule.run.queue import DONE, QUEUED, QueueJob
from lib.schedule.run.slots import Slot, slots_here

AGAIN_S, LOOK_S = 5.0, 0.5
LIMIT_S = 7 * 86_400.0  # the least time limit: a predicted time may be a guess


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
            self._take_lead = opened.enter_context(leadership(self._database.engine))
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
        with self._database.writing() as session:
            inventory.save(session, slots)
            self._reserved = inventory.reserved(session)
        types = {slot.device_type for slot in slots}
        self._predictions.processors = {name: inventory.processor(name) for name in types}

    def _lead(self) -> None:
        """Place and run jobs until the end, with new workers after an error."""
        while not self._over.is_set():
            try:
                if self._cluster:
                    workers = ray.RayWorkers(self._cluster, warm_up=self._warm_up)
                    self._slots = workers.slots
                else:
                    workers = ProcessWorkers(self._slots, self._warm_up)
                with closing(workers):
                    self._serve(workers)
            except QueueClosedError:
                return
            except Exception as error:  # a full disk, a database that is away at the start
                self._wait_after("the queue", error)

    def _serve(self, workers: Workers) -> None:
        self._take_lead()
        self.refresh()
        self._queue.recover()
        self._predict_again()  # what was predicted is gone with the last server
        self._backend = backend = QueueBackend(
            self._queue, workers, self._predictions.seconds, time.time, live=True,
            time_limit=TimeLimit(least_s=LIMIT_S), explain=self._predictions.placement,
            reserved=lambda: self._reserved, on_end=self._ended, lead=self._take_lead)
        if self._over.is_set():
            backend.close()
        policy = policy_for("hybrid")
        Loop(lambda state, predict: by_priority(state, predict, policy, backend.priorities()),
             backend).run()

    def _ended(self, job: QueueJob, device_type: str, status: str, seconds: float,
               reason: str) -> None:
        """Learn from a job that is done at its first attempt: later ones resume."""
        if status != DONE:
            self._retried.add(job.job_id)
        elif job.attempt == 0 and job.job_id not in self._retried:
            self._predictions.learn(job, device_type, seconds)

    def _predict_again(self) -> None:
        with self._queue.writing() as session:
            waiting = update(QueueJob).where(QueueJob.status == QUEUED)
            session.execute(waiting.values(status=PREDICTING))

    def _predict(self) -> None:
        """Predict new jobs, and hand each to the queue; all that wait again if a node joined."""
        while not self._over.wait(LOOK_S):
            try:
                types = {slot.device_type for slot in tuple(self._slots)}
                if self._backend and types - self._predictions.processors.keys():
                    self._predict_again()
                    self.refresh()
                new = self._queue.jobs(QueueJob.status == PREDICTING)
                for job in sorted(new, key=lambda job: "config" in job.arguments):
                    self._predictions.advise(job)
                    predicted = update(QueueJob).where(QueueJob.number == job.number,
                                                       QueueJob.status == PREDICTING)
                    with self._queue.writing() as session:
                        session.execute(predicted.values(status=QUEUED))
            except (QueueAwayError, *AWAY):  # it comes back; the other thread says so
                self._over.wait(AGAIN_S)
            except Exception as error:  # such as a damaged database
                self._wait_after("the prediction of runs", error)

    def _wait_after(self, what: str, error: Exception) -> None:
        line = error if isinstance(error, InputError) else one_line(error)
        print(f"{what} stopped, and goes on in {AGAIN_S:g} s: {line}", file=sys.stderr, flush=True)
        self._over.wait(AGAIN_S)
