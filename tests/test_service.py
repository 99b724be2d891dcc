"""The queue as a service: jobs and slots come and go while it runs; nothing is lost, nothing ends twice, whatever dies."""

import math
import os
import random
import re
import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.errors import InputError
from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs, Problem
from lib.schedule.runtime import executor
from lib.schedule.runtime.engine import engine
from lib.schedule.runtime.engine import plan as plans
from lib.schedule.runtime.engine.plan import with_priorities
from lib.schedule.runtime.journal import Journal, Spec
from lib.schedule.runtime.output import Output
from lib.schedule.runtime.workers import Limits, Slot, SlotLost, device_type_of, logged
from lib.schedule.simulation.events import simulate
from lib.schedule.state import Restart, Start
from tests import killed, nightly, placed, refused, served
from tests.agents import until
from tests.test_execute import LIMITS

pytestmark = pytest.mark.slow

def light(name, seconds=0.0, **more):
    return Spec(name, "tests.light:sleep", {"seconds": seconds, **more})


opened = partial(served.opened, limits=LIMITS)


def run(service):
    """Run a service until no job is left, or that takes too long."""
    end = time.monotonic() + 30
    service.run(lambda: not service.left or time.monotonic() > end)


class Watched:
    """An observer that keeps what it sees: (what, job, attempt, slot or status)."""

    def __init__(self):
        self.seen, self.reports = [], []

    def reported(self, *report):
        self.reports.append(report)

    def __getattr__(self, what):
        return lambda *told: self.seen.append((what, *told[:3]))


@contextmanager
def running(service):
    """Run a service in a thread."""
    over = threading.Event()
    thread = threading.Thread(target=service.run, args=(over.is_set,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ends_of(service):
    return service.journal.results().set_index("job_id")["status"].to_dict()


def test_jobs_are_submitted_planned_cancelled_and_reported_while_it_runs(tmp_path):
    watched = Watched()
    with opened(tmp_path, watched, "hybrid", lambda spec, device: 60.0, logged) as service, running(service):
        assert service.submit(light("a")) and not service.submit(light("a"))
        assert service.submit(Spec("reports", "tests.light:weigh", {"size": 3}))
        until(lambda: not service.left)
        assert service.submit(light("long", 60)) and service.submit(light("never"))
        until(lambda: ("started", "long", 1, "cpu[0]") in watched.seen)
        plan, start_s = service.plan().set_index("job_id"), service.journal.attempts()["start_s"].iloc[-1]
        assert plan["status"].to_dict() == {"long": "running", "never": "planned"} and set(plan["attempt"]) == {1}
        assert plan["start_s"].tolist() == pytest.approx([start_s, start_s + 60])
        assert plan["end_s"]["long"] == pytest.approx(start_s + 60)
        plan = service.plan(left_s=lambda job_id: 500.0).set_index("job_id")  # as its progress says
        assert plan["end_s"]["long"] == plan["start_s"]["never"] == pytest.approx(service.now() + 500, abs=5)
        assert plan["start_s"]["long"] == start_s and plan["reason"]["long"] == "end by its progress; predicted 60 s here"
        with service.lock:
            view = service.snapshot(planning=True)
        view.state.now_s += 100  # later than predicted, without a word about its progress
        view.state.jobs.deadline_s[:] = 1e6
        plan = plans.plan(view, service.policy, lambda *_: 0.0, lambda job_id: math.nan).set_index("job_id")
        assert plan["start_s"]["long"] == start_s and plan[["start_s", "end_s"]].isna().sum().sum() == 3
        assert plan["in_time"].isna().all(), "no chance to keep a deadline is known without an end"
        assert plan["reason"].tolist() == ["takes longer than predicted; predicted 60 s here",
                                           "after a run whose end is unknown; predicted 60 s here"]
        with service.lock:
            view = service.snapshot(planning=True)
        moves = iter([[Restart(view.numbers["long"], 0)]])
        plan = plans.plan(view, lambda *seen: next(moves, None) or service.policy(*seen), lambda *_: 0.0, lambda job_id: 500.0)
        plan = plan[plan["job_id"] == "long"]  # a job that moves still runs, and is planned anew
        assert plan["status"].tolist() == ["running", "planned"] and plan["attempt"].tolist() == [1, 2]
        assert plan["end_s"].iloc[0] == plan["start_s"].iloc[1] == pytest.approx(service.now(), abs=5)
        assert [service.cancel(name) for name in ("never", "long", "a", "no")] == [True, True, False, False]
        until(lambda: not service.left)
        assert not service.reorder("long", 1)
        assert ends_of(service) == {"a": "done", "reports": "done", "long": "cancelled", "never": "cancelled"}
        assert service.journal.attempts()["job_id"].tolist() == ["a", "reports", "long"]
    assert watched.reports == [("reports", 1, {"metrics": {"text": "xxx"}})]
    assert watched.seen[-2:] == [("ended", "never", 0, "cancelled"), ("ended", "long", 1, "cancelled")]


class Fickle(killed.Inline):
    """A worker of which a job takes some looks at its messages; it may die, fail or ignore that it shall stop."""

    draw, lost, token, looks = random.Random(0), 0.0, "", 0

    def __init__(self, slot, limits):
        if self.draw.random() < self.lost:
            raise SlotLost("it is gone")
        super().__init__(slot, limits)

    def send(self, *message):
        if message[0] == "run":
            self.token, self.looks = message[1], self.draw.randint(0, 2)
        elif message == ("stop", self.token) and self.draw.random() < 0.8:
            self.outbox.append(("stopped", self.token))
            self.token = ""

    def messages(self):
        self.looks -= 1
        if self.token and self.looks < 0:
            end = self.draw.choices(["done", "failed", "died", "refused"], [8, 1, 1, 0.2])[0]
            self.outbox.append((end, "it is dead") if end == "died" else (end, self.token, "a reason"))
            self.token = ""
        return super().messages()


JOB_IDS = st.sampled_from([f"j{number}" for number in range(7)])
CALLS = st.one_of(st.tuples(st.sampled_from(["submit", "submit", "reorder"]), JOB_IDS, st.integers(-1, 1)),
                  st.tuples(st.just("cancel"), JOB_IDS),
                  st.tuples(st.sampled_from(["add_slot", "remove_slot"]), st.sampled_from(["cpu[0]", "cpu[1]", "gpu[0]"])),
                  st.just(("now",)))


def called(service, what, *words):
    """Return what a call returns."""
    if what == "submit":
        return service.submit(light(words[0]), priority=words[1])
    return getattr(service, what)(*[Slot(*words)] if what == "add_slot" else words)


@given(calls=st.lists(CALLS, min_size=15, max_size=40), seed=st.integers(0, 10**6),
       policy=st.sampled_from(list(registry.POLICIES)))
def test_every_job_ends_once_and_none_starts_after_its_cancel(tmp_path_factory, calls, policy, seed):
    """Under random calls, workers that die, fail and are deaf, slots that are lost; midway the service is opened anew."""
    folder, watched = tmp_path_factory.mktemp("queue"), Watched()
    Fickle.draw, Fickle.lost = random.Random(seed), 0.1
    submitted = {words[0] for what, *words in calls if what == "submit"}
    for part, last in ((calls[:len(calls) // 2], False), (calls[len(calls) // 2:], True)):
        todo = list(part)
        with opened(folder, watched, policy, spawn=Fickle, slots=(), limits=Limits(grace_s=0.001, attempts=3)) as service:

            def over(service=service, todo=todo, last=last):
                if todo:
                    what, *words = todo.pop(0)
                    if called(service, what, *words) and what == "cancel":
                        watched.seen.append(("cancelled", *words))
                    return False
                if last:
                    Fickle.lost = 0.0
                    for name in {"cpu[0]", "gpu[0]"} - service.slots.by_name.keys():
                        service.add_slot(Slot(name))
                return not last or not service.left

            service.run(over)
            ends, attempts = service.journal.results(), service.journal.attempts()
    assert sorted(ends["job_id"]) == sorted(submitted)
    check_stories(watched.seen, submitted)
    assert not (attempts["status"] == "running").any()
    for _, numbers in attempts.groupby("job_id")["attempt"]:
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


def check_stories(seen, submitted):
    """Each job: attempts one after the other, one end, none started after its cancel."""
    for name in submitted:
        told = [row for row in seen if row[1] == name]
        story = " ".join(f"{what} {rest[0]} {rest[1]}" for what, _, *rest in told if rest)
        assert re.fullmatch(r"(started (\d+) \S+ stopped \2 \S+ )*(started (\d+) \S+ ended \4 \S+|ended 0 (cancelled|failed))",
                            story), story
        kinds = [what for what, *_ in told]
        assert "cancelled" not in kinds or "started" not in kinds[kinds.index("cancelled"):]


SECONDS = st.sampled_from([(1.0, 5.0), (2.0, np.inf), (np.inf, 1.0), (5.0, 2.0), (2.0, 2.0)])


@given(jobs=st.lists(st.tuples(SECONDS, st.integers(0, 2), st.sampled_from([0.0, 1.0, 3.0])), min_size=4, max_size=12),
       policy=st.sampled_from(list(registry.POLICIES)))
def test_no_job_starts_where_one_of_higher_priority_waits(jobs, policy):
    """Whatever the policy: on each device type the jobs that start are of the highest priority that waits for it."""
    times, priority, arrival = map(np.array, zip(*jobs, strict=True))
    obeys = with_priorities(registry.policy(policy), priority.__getitem__)

    def checked(state, predict):
        actions, waiting = obeys(state, predict), set(state.waiting)
        for action in actions:
            if isinstance(action, Start):
                device_type = state.type_of[action.device]
                rivals = [priority[job] for job in waiting if predict(job, device_type) < np.inf]
                assert priority[action.job] == max(rivals)
        return actions

    problem = Problem(Jobs.plain(len(jobs), arrival), Fleet.from_counts({"cpu": 2, "gpu": 1}), times, times)
    assert len(simulate(problem, checked).done) == len(jobs)


def test_a_job_that_is_cancelled_while_the_policy_decides_never_starts(tmp_path):
    def policy(state, predict):
        actions = registry.policy("first-come")(state, predict)
        service.cancel("a")
        return actions

    watched = Watched()
    with opened(tmp_path, watched, policy) as service:
        service.submit(light("a"))
        service.submit(light("b"))
        run(service)
    assert [row for row in watched.seen if row[1] == "a"] == [("ended", "a", 0, "cancelled")]


@pytest.mark.parametrize("kills", [9, nightly(100)])
def test_a_service_killed_at_any_moment_goes_on(kills):
    """Killed at moments or statements; ``python -m tests.served 1000 1`` does it a thousand times."""
    summary = killed.in_a_process("tests.served", kills)
    assert summary["wrong"] == [] and sum(summary["reached"].values()) == kills
    assert len(summary["reached"]) > min(kills // 3, 6), "killed in many places"


def test_what_is_wrong_is_refused_in_one_line_and_harms_nothing(tmp_path):
    def predicted_s(spec, device):
        if spec.arguments.get("value") == "unknown":
            raise InputError("no such model")
        return float(spec.arguments.get("value") or 1.0)

    with opened(tmp_path, policy="hybrid", predicted_s=predicted_s, slots=()) as service:
        service.submit(light("known"))
        for spec, more, word in [
                (light(""), {}, "the name of a job"), (light("x", value={1}), {}, "cannot be written as JSON"),
                (light("x"), {"cpu_cores": math.nan}, "cpu_cores of job 'x' is nan"),
                (light("x"), {"priority": 1.5}, "priority of job 'x' is 1.5"),
                (light("known", 5), {}, "was submitted before, to do something else")]:
            with refused(word):
                service.submit(spec, **more)
        for value in ("unknown", "nan"):
            service.submit(light(f"bad {value}", value=value))
        service.submit(light("huge"), memory_mb=1e9)
        service.add_slot(Slot("cpu[0]", memory_mb=1000.0))
        service.run(lambda: service.left == 1)
        ends = service.journal.results().set_index("job_id")
        assert set(ends.index) == {"known", "bad unknown", "bad nan"}  # the huge one waits for a slot that can run it
        assert ends.loc["bad unknown", "reason"] == "no such model" and "is nan: it is above 0" in ends.loc["bad nan", "reason"]
        assert service.plan()["reason"].tolist() == ["no slot that is there can run it: it needs 1,000,000,000 MB"]
        service.add_slot(Slot("big[0]"))
        run(service)
    with refused("is the journal of an open list of jobs"):
        Journal(tmp_path / executor.JOURNAL, [light("known")])
    Journal(tmp_path / "fixed.sqlite", [light("known")]).close()
    with refused("is the journal of a fixed list of jobs"):
        Journal(tmp_path / "fixed.sqlite")


def test_a_plan_says_what_runs_what_comes_and_why_and_is_made_anew_when_wanted(tmp_path):
    times = {"cpu": {"a": 4.0, "b": 9.0, "c": 2.0}, "gpu": {"a": 1.0, "b": 3.0, "c": math.inf}}
    with opened(tmp_path, None, "earliest-finish", lambda spec, device: times[device][spec.job_id], slots=()) as service:
        assert service.plan().empty
        for name, deadline_s in {"a": 1000.0, "b": 4.0, "c": math.nan}.items():
            service.submit(light(name), deadline_s=deadline_s)
        assert service.plan()["status"].tolist() == ["waiting"] * 3
        service.add_slot(Slot("cpu[0]"))
        service.add_slot(Slot("gpu[0]"))
        plan = service.plan(lambda spec, device: 0.3).set_index("job_id").loc[list("abc")]
        times["cpu"]["c"] = 7.0
        service.predict_anew()
        anew = service.plan().set_index("job_id").loc["c"]
        assert anew["end_s"] - anew["start_s"] == pytest.approx(7.0) and service.left == 3
    assert plan["device"].tolist() == ["gpu[0]", "gpu[0]", "cpu[0]"] and set(plan["status"]) == {"planned"}
    assert plan["reason"]["a"] == "predicted 1 s here, 4 s on cpu[0]"
    assert plan["reason"]["c"] == "predicted 2 s here, it cannot run on gpu[0]"
    assert plan["start_s"]["b"] == pytest.approx(plan["end_s"]["a"])
    assert plan["in_time"]["a"] == 1 and 0.3 < plan["in_time"]["b"] < 0.7 and np.isnan(plan["in_time"]["c"])


class Dozer(killed.Inline):
    """A worker in a time that only the engine's waiting moves."""

    clock_s, end_s = 0.0, math.inf

    def __init__(self, slot, limits):
        super().__init__(slot, limits)
        self.type = device_type_of(slot.name)

    def send(self, *message):
        if message[0] == "run":
            self.token, seconds = message[1], placed.seconds_on(Spec("", "", message[3]), self.type)
            self.end_s = Dozer.clock_s + seconds

    def messages(self):
        if self.end_s <= Dozer.clock_s:
            self.outbox.append(("done", self.token, None))
            self.end_s = math.inf
        return super().messages()


@pytest.mark.parametrize("seed", [0, *(nightly(seed) for seed in (1, 2))])
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


FULL = InputError("the disk is full")
THREE = ["j0", "j1", "j2"]


def fails_once(call):
    return Mock(wraps=call, side_effect=chain([FULL], repeat(DEFAULT)))


@pytest.mark.parametrize("entry", ["end", "stop", "start", "observer"])
def test_a_run_that_was_refused_to_write_goes_on_when_it_is_run_again(tmp_path, entry):
    """Once, as on a full disk, when an end is noted, when what runs then is noted as lost, and when an observer is told."""
    watched = Mock()
    with opened(tmp_path, watched) as service:
        for name in THREE:
            service.submit(light(name))
        if entry == "observer":
            watched.ended = fails_once(print)
        else:
            for name in {"end", entry}:
                setattr(service.journal, name, fails_once(getattr(service.journal, name)))
        for _ in range(1 + (entry == "start")):
            with refused("the disk is full"):
                run(service)
        run(service)
        assert ends_of(service) == dict.fromkeys(THREE, "done")
        assert "running" not in set(service.journal.attempts()["status"])
    assert sorted(call.args[0] for call in watched.ended.call_args_list) == THREE


def test_a_job_that_failed_on_a_full_disk_has_ended_for_good(tmp_path):
    with opened(tmp_path) as service:
        service.submit(light("a"))
        service.settle()
        with service.lock:
            service._end(service.waiting["a"], "failed", "No space left on device")
    with opened(tmp_path) as service:
        assert service.left == 0 and ends_of(service) == {"a": "failed"}


@given(body=st.text("a\0\né", max_size=30), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_any_text_is_lines_however_it_comes(body, cuts):
    output, stream, ready = Output(), body.encode(), []
    writes = os.dup(output.theirs.fileno())
    output.started()
    output.begin("t#1")
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in zip(places, places[1:], strict=False):
        os.write(writes, stream[start:end])
        ready += output.merged([])
    os.close(writes)
    ready += output.merged([("done", "t#1", None)])
    output.pipe.close()
    lines = body.removesuffix("\n").split("\n") if body else []
    assert ready == [*(("report", "t#1", {"log": [n, line]}) for n, line in enumerate(lines, 1)), ("done", "t#1", None)]


def test_a_worker_sees_its_card_alone_and_what_it_prints_are_numbered_lines(tmp_path, monkeypatch):
    """The variable is there before anything is imported; lines come in order, all before the end, also the last without \\n."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    watched = Watched()
    with opened(tmp_path, watched, spawn=logged, slots=("cuda:1",)) as service:
        for name, arguments in (("card", {}), ("shout", {"lines": 3000}), ("print_and_die", {})):
            service.submit(Spec(name, f"tests.light:{name}", arguments))
        run(service)
        ends = service.journal.results().set_index("job_id")
        assert ends.loc["card", "result"] == {"card": "GPU-b", "device": "cuda:0", "torch": False}
        assert service.journal.attempts()["device"].unique().tolist() == ["cuda:1"]
    lines = [(*report[:2], *report[2]["log"]) for report in watched.reports]
    said = [*(f"line {number}" for number in range(3000)), "100 %", "from below", "x" * 8192, "x" * 8, "no newline"]
    assert [line for line in lines if line[0] == "shout"] == [("shout", 1, n, line) for n, line in enumerate(said, 1)]
    assert [line for line in lines if line[1] == 2] == [("print_and_die", 2, 1, "last words"),
                                                        ("print_and_die", 2, 2, "unfinished")]
