"""The queue as a service: jobs and slots come and go while it runs; nothing is lost, nothing ends twice, whatever dies."""

import math
import os
import random
import re
import sys
import threading
import time
import weakref
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lib import locks
from lib.errors import InputError
from lib.measure.energy import meters
from lib.schedule.policies import registry
from lib.schedule.runtime import executor
from lib.schedule.runtime.engine import engine
from lib.schedule.runtime.engine.priorities import ranked
from lib.schedule.runtime.journal import Journal, Spec
from lib.schedule.runtime.output import Output
from lib.schedule.runtime.service import Service
from lib.schedule.runtime.worker_process import ActorWorker
from lib.schedule.runtime.workers import Limits, Slot, SlotLost, card_of, device_type_of, logged
from lib.schedule.state import Start
from tests import killed, placed

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


class Fickle:
    """A worker without a process: a job takes some looks at its messages; it may die, fail or ignore that it shall stop."""

    draw = random.Random(0)
    lost = 0.0

    def __init__(self, slot, limits):
        if self.draw.random() < self.lost:
            raise SlotLost("it is gone")
        self.outbox, self.token, self.looks = [("ready", 0)], "", 0

    def send(self, *message):
        if message[0] == "run":
            self.token, self.looks = message[1], self.draw.randint(0, 2)
        elif message[0] == "stop" and message[1] == self.token and self.draw.random() < 0.8:
            self.outbox.append(("stopped", self.token))
            self.token = ""

    def messages(self):
        self.looks -= 1
        if self.token and self.looks < 0:
            end = self.draw.choices(["done", "failed", "died", "refused"], [8, 1, 1, 0.2])[0]
            self.outbox.append((end, "it is dead") if end == "died" else (end, self.token, "a reason"))
            self.token = ""
        messages, self.outbox = self.outbox, []
        return messages

    def shut_down(self):
        self.token = ""


JOB_IDS = [f"j{number}" for number in range(7)]
CALLS = st.one_of(st.tuples(st.just("submit"), st.sampled_from(JOB_IDS), st.integers(-1, 1)),
                  st.tuples(st.just("cancel"), st.sampled_from(JOB_IDS), st.none()),
                  st.tuples(st.just("reorder"), st.sampled_from(JOB_IDS), st.integers(-1, 1)),
                  st.tuples(st.sampled_from(["add", "remove"]), st.sampled_from(["cpu[0]", "cpu[1]", "gpu[0]"]), st.none()),
                  st.tuples(st.just("look"), st.none(), st.none()))


def called(service, watched, call):
    """Make a call; return what it makes impossible from here on."""
    what, name, value = call
    if what == "submit":
        service.submit(light(name), priority=value)
    elif what == "cancel" and service.cancel(name):
        watched.seen.append(("cancelled", name))
    elif what == "reorder":
        service.reorder(name, value)
    elif what == "add":
        service.add_slot(Slot(name))
    elif what == "remove":
        service.remove_slot(name)


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(CALLS, max_size=40), policy=st.sampled_from(["first-come", "hybrid", "earliest-finish", "matching"]),
       seed=st.integers(0, 10**6))
def test_every_job_ends_once_and_none_starts_after_its_cancel(tmp_path_factory, calls, policy, seed):
    """Under random calls, workers that die, fail and are deaf, slots that are lost; midway the service is opened anew."""
    folder, watched = tmp_path_factory.mktemp("queue"), Watched()
    Fickle.draw, Fickle.lost = random.Random(seed), 0.1
    limits = Limits(grace_s=0.001, attempts=3)
    submitted = {name for what, name, _ in calls if what == "submit"}
    for part, last in ((calls[:len(calls) // 2], False), (calls[len(calls) // 2:], True)):
        todo = list(part)
        with Service(folder, registry.policy(policy), lambda spec, device: 1.0, limits, Fickle, watched) as service:
            service._engine._tick_s = 0.001

            def until(service=service, todo=todo, last=last):
                if todo:
                    called(service, watched, todo.pop(0))
                    return False
                if last:
                    Fickle.lost = 0.0
                    for name in ("cpu[0]", "gpu[0]"):
                        if name not in service._engine.slots.of:
                            service.add_slot(Slot(name))
                return not last or not service.left

            service.run(until)
            ends, attempts = service.ends(), service.attempts()
    assert sorted(ends["job_id"]) == sorted(submitted)
    check_story(watched.seen, submitted)
    assert not (attempts["status"] == "running").any()
    assert attempts.groupby("job_id")["attempt"].apply(list).map(lambda numbers: sorted(numbers) == list(
        range(1, len(numbers) + 1))).all()


def check_story(seen, submitted):
    """Each job: attempts one after the other, one end, none started after its cancel."""
    for name in submitted:
        story = [row for row in seen if row[1] == name]
        assert [row[0] for row in story].count("ended") == 1
        runs, cancelled = None, False
        for row in story:
            if row[0] == "cancelled":
                cancelled = True
            elif row[0] == "started":
                assert runs is None and not cancelled
                runs = row[2]
            else:
                never = row[0] == "ended" and row[2] == 0 and row[3] in ("cancelled", "failed")
                assert runs == row[2] or (never and runs is None)
                runs = None
        assert [row for row in story if row[0] != "cancelled"][-1][0] == "ended"


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_job_starts_where_one_of_higher_priority_waits(data):
    """Whatever the policy: on each device type the jobs that start are of the highest priority that waits for it."""
    from lib.schedule.problem import Fleet, Jobs, Problem
    from lib.schedule.simulation.events import simulate

    count = data.draw(st.integers(1, 12))
    times = np.array(data.draw(st.lists(st.lists(st.sampled_from([1.0, 2.0, 5.0, np.inf]), min_size=2, max_size=2).filter(
        lambda row: min(row) < np.inf), min_size=count, max_size=count)))
    priority = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    arrival = np.array(data.draw(st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=count, max_size=count)))
    obeys = ranked(registry.policy(data.draw(st.sampled_from(list(registry.POLICIES)))), priority.__getitem__)

    def checked(state, predict):
        actions, waiting = obeys(state, predict), set(state.waiting)
        for action in actions:
            if isinstance(action, Start):
                device_type = state.type_of[action.device]
                rivals = [priority[job] for job in waiting if predict(job, device_type) < np.inf]
                assert priority[action.job] == max(rivals)
        return actions

    schedule = simulate(Problem(Jobs.plain(count, arrival), Fleet.of({"cpu": 2, "gpu": 1}), times, times), checked).done
    assert len(schedule) == count


def test_a_job_that_is_cancelled_while_the_policy_decides_never_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(Fickle, "lost", 0.0)

    def policy(state, predict):
        actions = registry.policy("first-come")(state, predict)
        service.cancel("a")
        return actions

    watched = Watched()
    with Service(tmp_path, policy, lambda spec, device: 0.1, LIMITS, Fickle, watched) as service:
        service.submit(light("a"))
        service.submit(light("b"))
        service.add_slot(Slot("cpu[0]"))
        service.run(lambda: not service.left)
    assert ("ended", "a", 0, "cancelled") in watched.seen and not any(row[:2] == ("started", "a") for row in watched.seen)


def test_jobs_of_higher_priority_overtake(tmp_path, monkeypatch):
    watched = Watched()
    with Service(tmp_path, registry.policy("first-come"), lambda spec, device: 0.1, LIMITS, Fickle, watched) as service:
        monkeypatch.setattr(Fickle, "draw", random.Random(1))
        monkeypatch.setattr(Fickle, "lost", 0.0)
        service._engine._tick_s = 0.001
        for number in range(6):
            service.submit(light(f"j{number}"), priority=number % 3)
        service.reorder("j0", 9)
        service.add_slot(Slot("cpu[0]"))
        service.run(lambda: not service.left)
    first = list(dict.fromkeys(row[1] for row in watched.seen if row[0] == "started"))
    assert first == ["j0", "j2", "j5", "j1", "j4", "j3"]


@pytest.mark.slow
def test_a_service_killed_at_any_moment_goes_on():
    """Killed at 30 moments or statements; ``python -m tests.served 1000 1`` does it a thousand times."""
    summary = killed.in_a_process("tests.served", 30)
    assert summary["wrong"] == [] and sum(summary["reached"].values()) == 30 and len(summary["reached"]) > 6


@pytest.mark.slow
def test_worker_processes_are_killed_and_slots_leave_while_jobs_run(tmp_path):
    draw, watched = random.Random(0), Watched()
    names = [f"j{number}" for number in range(16)]
    with Service(tmp_path / "queue", registry.policy("first-come"), lambda spec, device: 0.1, LIMITS, logged,
                 watched) as service:
        service.add_slot(Slot("cpu[0]"))
        service.add_slot(Slot("cpu[1]"))
        for name in names:
            service.submit(Spec(name, "tests.light:marked", {"path": str(tmp_path / name), "value": name, "fault": "slow"}))
        with running(service) as wait_for:
            for round_number in range(4):
                wait_for(lambda: any(slot.runs for slot in service._engine.slots))
                slot = draw.choice([slot for slot in service._engine.slots if slot.worker] or [None])
                if slot and round_number % 2:
                    slot.worker.process._process.kill()
                elif slot:
                    service.remove_slot(slot.name)
                    service.add_slot(Slot(slot.name))
                time.sleep(0.3)
            service.submit(Spec("deaf", "tests.light:deaf", {"seconds": 60}), priority=1)
            wait_for(lambda: any(row[:2] == ("started", "deaf") for row in watched.seen))
            service.cancel("deaf")
            wait_for(empty(service))
        assert ends_of(service) == {**dict.fromkeys(names, "done"), "deaf": "cancelled"}
        attempts = service.attempts()
    assert set(attempts["status"]) >= {"done", "lost", "cancelled"}
    check_story(watched.seen, {*names, "deaf"})
    assert Counter(row[3] for row in watched.seen if row[0] == "ended") == {"done": 16, "cancelled": 1}


def test_what_is_wrong_is_refused_in_one_line_and_harms_nothing(tmp_path):
    def predicted_s(spec, device):
        if spec.arguments.get("value") == "unknown":
            raise InputError("no such model")
        return float(spec.arguments.get("value") or 1.0)

    with Service(tmp_path, registry.policy("hybrid"), predicted_s, LIMITS, Fickle) as service:
        for spec, more, word in [
                (light(""), {}, "the name of a job"), (light("\ud800"), {}, "cannot be written"),
                (Spec("x", "tests.light:sleep", {"value": {1}}), {}, "cannot be written as JSON"),
                (light("x"), {"memory_mb": -1}, "memory_mb of job 'x' is -1"),
                (light("x"), {"cpu_cores": math.nan}, "cpu_cores of job 'x' is nan"),
                (light("x"), {"deadline_s": 0.0}, "deadline_s"), (light("x"), {"priority": 1.5}, "priority of job 'x' is 1.5"),
                (light("x"), {"priority": 10**7}, "priority")]:
            with pytest.raises(InputError, match=word) as caught:
                service.submit(spec, **more)
            assert "\n" not in str(caught.value)
        service.submit(light("known"))
        with pytest.raises(InputError, match="was submitted before, to do something else"):
            service.submit(light("known", 5))
        with pytest.raises(InputError, match="being written by another process"):
            Service(tmp_path, registry.policy("hybrid"), predicted_s)
        for value in ("unknown", "nan", "-1"):
            service.submit(light(f"bad {value}", value=value))
        service.submit(light("huge"), memory_mb=1e9)
        service._engine._tick_s = 0.001
        service.add_slot(Slot("cpu[0]", memory_mb=1000.0))
        Fickle.draw, Fickle.lost = random.Random(1), 0.0
        service.run(lambda: service.left == 1)
        ends = service.ends().set_index("job_id")
        assert set(ends.index) == {"known", "bad unknown", "bad nan", "bad -1"}  # the huge one waits for a slot that can run it
        assert ends.loc["bad unknown", "reason"] == "no such model" and "is nan: it is above 0" in ends.loc["bad nan", "reason"]
        assert service.plan()["reason"].tolist() == ["no slot that is there can run it: it needs 1,000,000,000 MB"]
        service.add_slot(Slot("big[0]"))
        service.run(lambda: not service.left)
    with pytest.raises(InputError, match="is the journal of an open list of jobs"):
        Journal(tmp_path / executor.JOURNAL, [light("known")])
    Journal(tmp_path / "fixed.sqlite", [light("known")]).close()
    with pytest.raises(InputError, match="is the journal of a fixed list of jobs"):
        Journal(tmp_path / "fixed.sqlite")


def test_a_plan_says_what_runs_what_comes_and_why(tmp_path):
    times = {"cpu": {"a": 4.0, "b": 9.0, "c": 2.0}, "gpu": {"a": 1.0, "b": 3.0, "c": math.inf}}
    with Service(tmp_path, registry.policy("earliest-finish"), lambda spec, device: times[device][spec.job_id], LIMITS,
                 Fickle) as service:
        assert service.plan().empty
        for name in "abc":
            service.submit(light(name))
        assert service.plan()["status"].tolist() == ["waiting"] * 3
        service.add_slot(Slot("cpu[0]"))
        service.add_slot(Slot("gpu[0]"))
        plan = service.plan().set_index("job_id")
    assert plan["device"].to_dict() == {"a": "gpu[0]", "b": "gpu[0]", "c": "cpu[0]"} and set(plan["status"]) == {"planned"}
    assert plan.loc["a", "reason"] == "predicted 1 s here, 4 s on cpu[0]"
    assert plan.loc["c", "reason"] == "predicted 2 s here, it cannot run on gpu[0]"
    assert plan.loc["b", "start_s"] == pytest.approx(plan.loc["a", "end_s"])


def test_a_plan_goes_on_from_what_runs(tmp_path):
    with Service(tmp_path, registry.policy("first-come"), lambda spec, device: 60.0, LIMITS, logged) as service:
        service.add_slot(Slot("cpu[0]"))
        service.submit(light("runs", 60))
        with running(service) as wait_for:
            wait_for(lambda: any(slot.runs for slot in service._engine.slots))
            service.submit(light("waits"))
            plan = service.plan().set_index("job_id")
            assert plan["status"].to_dict() == {"runs": "running", "waits": "planned"}
            start = service.attempts()["start_s"].iloc[0]
            assert plan.loc["runs", "start_s"] == start and plan.loc["runs", "end_s"] == pytest.approx(start + 60)
            assert plan.loc["waits", "start_s"] == pytest.approx(start + 60) and plan.loc["waits", "attempt"] == 1


class Dozer:
    """A worker without a process, in a time that only the engine's waiting moves."""

    clock_s = 0.0

    def __init__(self, slot, limits):
        self.type, self.outbox, self.ends = device_type_of(slot.name), [("ready", 0)], {}

    def send(self, *message):
        if message[0] == "run":
            self.ends[message[1]] = Dozer.clock_s + placed.seconds_on(Spec("", "", message[3]), self.type)

    def messages(self):
        ended = [token for token, end_s in self.ends.items() if end_s <= Dozer.clock_s]
        messages, self.outbox = [*self.outbox, *(("done", token, self.ends.pop(token)) for token in ended)], []
        return messages

    def shut_down(self):
        pass


@pytest.mark.parametrize("seed", range(3))
def test_a_mixed_queue_ends_as_planned_and_sooner_than_first_come_first_served(tmp_path, monkeypatch, seed):
    """benchmarks/queue_placement.py does the same with worker processes, in real time."""
    def pass_by(pipes, pause):
        Dozer.clock_s += min(0.005, max(0.0, pause))
        return []

    monkeypatch.setattr(Dozer, "clock_s", 0.0)
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: Dozer.clock_s))
    monkeypatch.setattr(engine, "wait", pass_by)
    specs = placed.jobs_of(24, 1.0, seed)
    hybrid = placed.run(tmp_path / "hybrid", specs, "hybrid", spawn=Dozer)
    first = placed.run(tmp_path / "first", specs, "first-come", spawn=Dozer)
    late = placed.run(tmp_path / "late", specs[:16], "hybrid", specs[16:], Dozer)
    assert hybrid.ratio <= 1.1 and first.ratio <= 1.1 and late.ratio <= 1.05
    assert hybrid.actual_s < first.actual_s


def within(service, patience_s=10.0):
    """Return what ends a run when no job is left, or when it takes too long."""
    end = time.monotonic() + patience_s
    return lambda: not service.left or time.monotonic() > end


@contextmanager
def steady(folder, observer=None, predicted_s=lambda spec, device: 1.0):
    """Open a service with one slot, whose workers do every job at once."""
    Dozer.clock_s = math.inf
    with Service(folder, registry.policy("first-come"), predicted_s, Limits(late=math.inf), Dozer, observer) as service:
        service._engine._tick_s = 0.001
        service.add_slot(Slot("cpu[0]"))
        yield service


@pytest.fixture
def at_once(monkeypatch):
    """Let every job of ``steady`` take no time."""
    monkeypatch.setattr(Dozer, "clock_s", math.inf)
    monkeypatch.setattr(placed, "seconds_on", lambda spec, device: 0.0)


def refused_once(note):
    """Return a note of the journal that is refused once."""
    refusals = [InputError("the disk is full")]

    def noted(*arguments):
        if refusals:
            raise refusals.pop()
        return note(*arguments)

    return noted


@pytest.mark.parametrize("refused", ["end", "stop", "start"])
def test_a_run_that_the_journal_refused_goes_on_when_it_is_run_again(tmp_path, monkeypatch, at_once, refused):
    """Once, as on a full disk, when an end is noted, and when what runs then is noted as lost."""
    watched = Watched()
    with steady(tmp_path, watched) as service:
        for number in range(3):
            service.submit(light(f"j{number}"))
        for name in {"end", refused}:
            monkeypatch.setattr(service._journal, name, refused_once(getattr(service._journal, name)))
        for _ in range(1 + (refused == "start")):
            with pytest.raises(InputError, match="the disk is full"):
                service.run(within(service))
        assert service.left == 3
        service.run(within(service))
        assert ends_of(service) == dict.fromkeys(["j0", "j1", "j2"], "done")
        assert Counter(service.attempts()["status"])["running"] == 0
    assert Counter(row[1] for row in watched.seen if row[0] == "ended") == {"j0": 1, "j1": 1, "j2": 1}


def test_a_cancel_and_a_leaving_slot_that_the_journal_refused_are_made_by_the_next_run(tmp_path, monkeypatch):
    with Service(tmp_path, registry.policy("first-come"), lambda spec, device: 1.0, Limits(late=math.inf), Dozer) as service:
        service._engine._tick_s = 0.001
        service.add_slot(Slot("cpu[0]"))
        monkeypatch.setattr(Dozer, "clock_s", 0.0)
        monkeypatch.setattr(placed, "seconds_on", lambda spec, device: 1.0)
        service.submit(light("runs"))
        service.submit(light("waits"))
        noted = {name: getattr(service._journal, name) for name in ("end", "stop")}

        def refuse(*_):
            raise InputError("the disk is full")

        def until():
            if any(slot.runs for slot in service._engine.slots):
                for name in noted:
                    monkeypatch.setattr(service._journal, name, refuse)
                service.remove_slot("cpu[0]")
                service.cancel("waits")
            return False

        with pytest.raises(InputError, match="the disk is full"):
            service.run(until)
        for name, note in noted.items():
            monkeypatch.setattr(service._journal, name, note)
        assert service.left == 1 and not len(service._engine.slots) and ends_of(service) == {"waits": "cancelled"}
        service.add_slot(Slot("cpu[0]"))
        Dozer.clock_s = math.inf
        service.run(within(service))
        assert ends_of(service) == {"waits": "cancelled", "runs": "done"}


def test_an_observer_that_fails_loses_no_job_and_ends_none_twice(tmp_path, at_once):
    class Wrong(Watched):
        def ended(self, *seen):
            super().ended(*seen)
            if len(self.seen) < 3:
                raise RuntimeError("no database")

    watched = Wrong()
    with steady(tmp_path, watched) as service:
        for number in range(3):
            service.submit(light(f"j{number}"))
        with pytest.raises(RuntimeError, match="no database"):
            service.run(within(service))
        service.run(within(service))
        assert service.left == 0
    assert Counter(row[1] for row in watched.seen if row[0] == "ended") == {"j0": 1, "j1": 1, "j2": 1}


@pytest.mark.parametrize("what", ["cancel", "reorder"])
def test_a_call_between_the_entry_of_a_submit_and_its_news_comes_after_it(tmp_path, monkeypatch, at_once, what):
    calls = []
    with steady(tmp_path) as service:
        noted = service._journal.submit

        def submit(entry):
            new = noted(entry)
            calls.append(threading.Thread(target=getattr(service, what), args=("a", 5)[:1 + (what == "reorder")]))
            calls[0].start()
            calls[0].join(0.05)
            return new

        monkeypatch.setattr(service._journal, "submit", submit)
        service.submit(light("a"))
        calls[0].join()
        if what == "reorder":
            assert service.left == 1 and service._engine.waiting["a"].priority == 5
        service.run(within(service, 2.0))
        assert ends_of(service) == {"a": "cancelled" if what == "cancel" else "done"}


def test_a_job_that_failed_on_a_full_disk_has_ended_for_good(tmp_path, at_once):
    with steady(tmp_path) as service:
        service.submit(light("a"))
        service.left  # noqa: B018 - the engine has it now
        with service._engine.lock:
            service._engine._end(service._engine.waiting["a"], 0, "failed", "No space left on device")
    with steady(tmp_path) as service:
        assert service.left == 0 and ends_of(service) == {"a": "failed"}


def test_a_plan_ends_nothing_and_times_are_predicted_anew_when_wanted(tmp_path, at_once):
    known, watched = {}, Watched()

    def predicted_s(spec, device):
        if spec.job_id not in known:
            raise InputError("no such model")
        return known[spec.job_id]

    with steady(tmp_path, watched, predicted_s) as service:
        service.submit(light("a"))
        service.submit(light("b"))
        known["a"] = 3.0
        for _ in range(2):
            plan = service.plan().set_index("job_id")
            assert plan["status"].to_dict() == {"a": "planned", "b": "waiting"} and not watched.seen
        known.update(a=7.0, b=2.0)
        service.predict_anew()
        begin, plan, end = service.now(), service.plan(), service.now()
        assert (plan["end_s"] - plan["start_s"]).tolist() == pytest.approx([7.0, 2.0])
        assert begin <= plan["start_s"].min() <= end
        del known["b"]
        service.predict_anew()
        service.plan()
        service.run(within(service))
        assert ends_of(service) == {"a": "done", "b": "failed"}
    assert [row for row in watched.seen if row[1] == "b"] == [("ended", "b", 0, "failed")]


def test_a_task_that_fails_leaves_no_memory_of_a_card_behind(monkeypatch):
    held, freed = [], []

    class Weights:
        """Something that only a collection frees."""

        def __init__(self):
            self.own = self

    def hold(job):
        weights = Weights()
        held.append(weakref.ref(weights))
        raise RuntimeError("out of memory")

    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: freed.append(held[-1]() is None))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr("tests.light.fail", hold)
    monkeypatch.setattr("lib.schedule.runtime.worker_process.is_out_of_memory", lambda error: True)
    worker = ActorWorker()
    for message in (("run", "a#1", "tests.light:fail", {}), ("end",)):
        worker.put(message)
    worker.run("cpu", (), 1, 60.0)
    assert ("failed", "a#1", "out of memory") in worker.take() and freed == [True]


# ---------------------------------------------------------------------------------------------- cards and lines


PARTS = st.lists(st.sampled_from(["\0", "begin", "begin ", "end ", "en", "a", "\n", "b\0c", "end t#1"]), max_size=12)


@settings(max_examples=150, deadline=None)
@given(parts=PARTS, cuts=st.lists(st.integers(0, 60), max_size=8))
def test_any_text_is_lines_however_it_comes(parts, cuts):
    """Also with NULs, of which only a whole mark of the worker is none of the text."""
    body = "".join(parts)
    stream = f"\0begin t#1\n{body}\0end t#1\n".encode()
    assume(len(re.findall(rb"\0(?:begin|end) [^\0\n]*\n", stream)) == 2)
    output, ready = Output(), []
    output.started()
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    inlet = os.pipe()
    try:
        os.dup2(inlet[0], output.pipe.fileno())
        os.set_blocking(output.pipe.fileno(), False)
        for start, end in zip(places, places[1:], strict=False):
            os.write(inlet[1], stream[start:end])
            ready += output.merged([("done", "t#1", None)] if end == len(stream) else [])
    finally:
        for end in inlet:
            os.close(end)
        output.close()
    lines = body.removesuffix("\n").split("\n") if body else []
    assert ready == [*(("report", "t#1", {"log": [n, line]}) for n, line in enumerate(lines, 1)), ("done", "t#1", None)]


@pytest.mark.parametrize(("slot", "mask", "card"), [
    (Slot("cuda:1"), None, "1"), (Slot("cuda:0"), "3", "3"), (Slot("cuda:1"), "2,0", "0"), (Slot("cpu[0-1]"), "2", ""),
    (Slot("cuda:1"), "GPU-aa, GPU-bb", "GPU-bb"), (Slot("cuda:0"), "MIG-GPU-aa/1/0", "MIG-GPU-aa/1/0"),
    (Slot("node:cuda[0]", card="GPU-cc"), "0", "GPU-cc"), (Slot("cuda[node/0]"), None, "")])
def test_a_slot_of_a_gpu_has_the_card_that_this_process_calls_so(slot, mask, card):
    assert card_of(slot, {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}) == card


@pytest.mark.parametrize("mask", ["", "0", "-1", "0,-1,1"])
def test_a_card_that_is_masked_is_lost(mask):
    with pytest.raises(SlotLost, match="there is no cuda:1: CUDA_VISIBLE_DEVICES is"):
        card_of(Slot("cuda:1"), {"CUDA_VISIBLE_DEVICES": mask})


def test_a_card_has_one_lock_and_one_meter_whatever_a_process_calls_it(monkeypatch, tmp_path):
    """``cuda:0`` of a process that is shown its card alone is another than that of one that is shown all."""
    monkeypatch.setenv("LIB_LOCKS", str(tmp_path))
    handles = []
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(
        NVMLError=RuntimeError, NVML_FI_DEV_POWER_INSTANT=1, NVML_SUCCESS=0, nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 0,
        nvmlDeviceGetHandleByIndex=handles.append, nvmlDeviceGetHandleByUUID=handles.append,
        nvmlDeviceGetFieldValues=lambda *_: [SimpleNamespace(nvmlReturn=1)], nvmlDeviceGetPowerUsage=lambda _: 1000,
        nvmlDeviceGetTotalEnergyConsumption=lambda _: 1000))
    names = []
    for mask, name in ((None, "cuda:1"), ("1", "cuda:0"), ("0,1", "cuda:1"), ("MIG-GPU-aa/1/0", "cuda:0"), (None, "cpu")):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if mask:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        with locks.device(name):
            names.append({path.name for path in tmp_path.iterdir()})
        if name != "cpu":
            meters.Nvml(int(name[-1]))
    assert names[0] == names[1] == names[2] == {"measuring-cuda-1.lock"}
    assert names[3] - names[2] == {"measuring-cuda-MIG-GPU-aa-1-0.lock"} and names[4] - names[3] == {"measuring-cpu.lock"}
    assert handles == [1, 1, 1, "MIG-GPU-aa/1/0"]


@pytest.mark.parametrize("mask", ["1", "GPU-bbbb", "GPU-bb"])
def test_a_card_by_index_or_uuid_has_one_lock(monkeypatch, tmp_path, mask):
    uuids = ["GPU-aaaa", "GPU-bbbb"]
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(
        NVMLError=RuntimeError, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=int,
        nvmlDeviceGetUUID=uuids.__getitem__))
    monkeypatch.setenv("LIB_LOCKS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    with locks.device("cuda:0"):
        assert [path.name for path in tmp_path.iterdir()] == ["measuring-cuda-GPU-bbbb.lock"]


def test_a_card_keeps_its_lock_when_another_one_is_lost(monkeypatch, tmp_path):
    def handle(index):
        if not index:
            raise RuntimeError("GPU is lost")
        return index

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(
        NVMLError=RuntimeError, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetUUID=["GPU-aaaa", "GPU-bbbb"].__getitem__))
    monkeypatch.setenv("LIB_LOCKS", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with locks.device("cuda:1"):
        assert [path.name for path in tmp_path.iterdir()] == ["measuring-cuda-GPU-bbbb.lock"]


def test_a_worker_sees_its_card_alone_and_what_it_prints_are_numbered_lines(tmp_path, monkeypatch):
    """The variable is there before anything is imported; lines come in order, all before the end, also the last without \\n."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    watched = Watched()
    with Service(tmp_path, registry.policy("first-come"), lambda spec, device: 0.1, LIMITS, logged, watched) as service:
        service.add_slot(Slot("cuda:1"))
        service.submit(Spec("env", "tests.light:card", {}))
        service.submit(Spec("prints", "tests.light:shout", {"lines": 3000}))
        service.submit(Spec("dies", "tests.light:print_and_die", {}))
        service.run(lambda: not service.left)
        ends = service.ends().set_index("job_id")
        assert ends.loc["env", "result"] == {"card": "GPU-b", "device": "cuda:0", "torch": False}
        assert service.attempts()["device"].unique().tolist() == ["cuda:1"]
    lines = [content["log"] for name, _, content in watched.reports if name == "prints"]
    assert lines == [[n + 1, f"line {n}"] for n in range(3000)] + [[3001, "100 %"], [3002, "from below"], [3003, "x" * 8192],
                                                                    [3004, "x" * 8], [3005, "no newline"]]
    assert [content["log"] for name, attempt, content in watched.reports if name == "dies" and attempt == 2] == [
        [1, "last words"], [2, "unfinished"]]
