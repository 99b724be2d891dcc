"""The queue as a service: jobs and slots come and go while it runs; nothing is lost, nothing ends twice, whatever dies."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import paths
from lib.errors import InputError
from lib.schedule.policies import registry
from lib.schedule.runtime import executor
from lib.schedule.runtime.engine.priorities import ranked
from lib.schedule.runtime.journal import Journal, Spec
from lib.schedule.runtime.service import Service
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, SlotLost, card_of, logged
from lib.schedule.state import Predict, Start


LIMITS = Limits(beat_s=0.05, silent_s=30, ready_s=120, grace_s=0.3, late=5, least_s=30, attempts=3)


def light(name, seconds=0.01, **more):
    return Spec(name, "tests.light:sleep", {"seconds": seconds, **more})


class Watched:
    """An observer that keeps what it sees."""

    def __init__(self):
        self.seen, self.reports = [], []

    def started(self, job_id, attempt, slot, at_s):
        self.seen.append(("started", job_id, attempt, slot))

    def ended(self, job_id, attempt, status, reason, result, at_s):
        self.seen.append(("ended", job_id, attempt, status))

    def stopped(self, job_id, attempt, status, reason, at_s):
        self.seen.append(("stopped", job_id, attempt, status))

    def reported(self, job_id, attempt, content):
        self.reports.append((job_id, attempt, content))


@contextmanager
def running(service):
    """Run a service in a thread; yield what waits until something holds."""
    over = threading.Event()
    thread = threading.Thread(target=service.run, args=(over.is_set,))
    thread.start()

    def wait_for(what, patience_s=60.0):
        end = time.monotonic() + patience_s
        while not what():
            assert time.monotonic() < end and thread.is_alive()
            time.sleep(0.002)

    try:
        yield wait_for
    finally:
        over.set()
        thread.join()


def empty(service):
    return lambda: not service.left


def ends_of(service):
    return service.ends().set_index("job_id")["status"].to_dict()


def test_jobs_are_submitted_cancelled_and_reported_while_it_runs(tmp_path):
    watched = Watched()
    with Service(tmp_path, registry.policy("hybrid"), lambda spec, device: 0.1, LIMITS, observer=watched) as service:
        service.add_slot(Slot("cpu[0]"))
        with running(service) as wait_for:
            assert service.submit(light("a")) and not service.submit(light("a"))
            assert service.submit(Spec("talks", "tests.light:talk", {"count": 3}))
            wait_for(empty(service))
            assert service.submit(light("long", 60)) and service.submit(light("never"))
            wait_for(lambda: ("started", "long", 1, "cpu[0]") in watched.seen)
            assert service.cancel("never") and service.cancel("long") and not service.cancel("a") and not service.cancel("no")
            begin = time.monotonic()
            wait_for(empty(service))
            assert time.monotonic() - begin < 5
            assert not service.cancel("long") and not service.reorder("long", 1)
        assert ends_of(service) == {"a": "done", "talks": "done", "long": "cancelled", "never": "cancelled"}
        assert set(service.attempts()["job_id"]) == {"a", "talks", "long"}
    assert watched.reports == [("talks", 1, {"metrics": {"step": step}}) for step in range(3)]
    assert [row for row in watched.seen if row[1] == "long"] == [("started", "long", 1, "cpu[0]"),
                                                                ("ended", "long", 1, "cancelled")]
