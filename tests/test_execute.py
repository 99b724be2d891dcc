"""Real runs with light jobs: nothing is lost, no job ends twice, whatever is killed; a killed run goes on."""

import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import psutil
import pytest

from lib import locks, paths, tables
from lib.schedule.policies import registry
from lib.schedule.problem import Jobs
from lib.schedule.runtime import executor, jobs_file, local_site
from lib.schedule.runtime.engine import engine
from lib.schedule.runtime.executor import PreparedJobs
from lib.schedule.runtime.journal import Journal, Spec
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, SlotLost
from lib.schedule.state import Restart, Start, Wait
from tests import faults, killed, refused

# Patient, as busy machines are slow.
LIMITS = Limits(beat_s=0.05, silent_s=30, ready_s=120, grace_s=0.3, late=5, least_s=30, attempts=3)
SLOTS = (Slot("cpu[0]"), Slot("cpu[1]"))


def sleeping(count, seconds=0.01):
    return [Spec(f"j{number}", "tests.light:sleep", {"seconds": seconds, "value": number}) for number in range(count)]


def run(specs, folder, policy="first-come", predicted=0.02, slots=SLOTS, limits=LIMITS, spawn=ProcessWorker,
        **columns):
    """Run jobs for real; a policy is a name or a function, ``predicted`` a number or seconds (jobs, types)."""
    jobs = replace(Jobs.plain(len(specs)), ids=tuple(spec.job_id for spec in specs), **columns)
    times = np.broadcast_to(predicted, (len(specs), len(local_site.fleet_of(slots).types)))
    policy = registry.policy(policy) if isinstance(policy, str) else policy
    return executor.execute(PreparedJobs(specs, jobs, slots, times, policy, spawn=spawn), folder, limits)


def calling_back(spawn, callback):
    """Return a spawn whose workers call back whenever a task is done."""
    def spawned(slot, limits):
        worker = spawn(slot, limits)
        receive = worker.messages

        def messages():
            received = receive()
            for message in received:
                if message[0] == "done":
                    callback()
            return received

        worker.messages = messages
        return worker

    return spawned


def check(attempts, ends, specs):
    assert sorted(ends["job_id"]) == sorted(spec.job_id for spec in specs)  # each ends exactly once
    done = attempts[attempts["status"] == "done"]
    assert not done["job_id"].duplicated().any()
    for _, rows in attempts.dropna(subset=["end_s"]).sort_values("start_s").groupby("device"):
        assert (rows["start_s"].to_numpy()[1:] >= rows["end_s"].to_numpy()[:-1] - 1e-6).all()


@pytest.mark.slow
def test_all_jobs_end_none_before_it_arrived_and_workers_stay_light(tmp_path):
    specs, arrival = sleeping(20), np.append(np.zeros(18), [0.3, 0.6])
    attempts, ends, notes = run(specs, tmp_path, arrival_s=arrival)
    check(attempts, ends, specs)
    assert set(ends["status"]) == {"done"} and not notes
    assert {(result["value"], result["torch"]) for result in ends["result"]} == {(number, False) for number in range(20)}
    assert set(attempts["device"]) == {"cpu[0]", "cpu[1]"}
    starts = attempts.set_index("job_id")["start_s"]
    assert starts["j18"] >= 0.3 and starts["j19"] >= 0.6


@pytest.mark.slow
@pytest.mark.parametrize(("first", "count"), [(57, 7), pytest.param(0, 200, marks=pytest.mark.nightly)])
def test_faults_lose_nothing(first, count):
    """Every kind of fault, mixed by seed; ``python -m tests.faults 0 1000`` takes nine minutes."""
    ran = subprocess.run([sys.executable, "-m", "tests.faults", str(first), str(count)], cwd=paths.ROOT, capture_output=True,
                         text=True, check=False)
    assert ran.stdout, ran.stderr
    result = json.loads(ran.stdout)
    assert result["wrong"] == [] and result["seeds"] == count and ran.returncode == 0
    assert set(result["thrown"]) == {f"{fault} once" for fault in faults.ONCE} | set(faults.ALWAYS)
    rare = ("no sign of life", "ended with status") if count > 50 else ()  # of a few seeds another reason may come first
    for reason in ("signal 9", "not done after", "out of memory", "as JSON", *rare):
        assert any(reason in text for text in result["attempts"]), reason


@pytest.mark.slow
def test_a_job_that_always_fails_ends_with_its_reason(tmp_path):
    tasks = {"bad": ("fail", 3, "this job is wrong"), "deadly": ("kill", 3, "signal 9"),
             "gone": ("leave", 3, "ended with status"), "odd": ("odd", 3, "cannot be written as JSON"),
             "held": ("wait_in_vain", 3, "another process is at it"), "nowhere": ("no", 1, "no function 'tests.light:no'"),
             "refused": ("refuse", 1, "this input is wrong")}
    specs = [*(Spec(name, f"tests.light:{task}", {}) for name, (task, _, _) in tasks.items()), *sleeping(2)]
    attempts, ends, _ = run(specs, tmp_path)
    check(attempts, ends, specs)
    ends = ends.set_index("job_id")
    assert ends.loc[["j0", "j1"], "status"].tolist() == ["done", "done"]
    for name, (_, tries, reason) in tasks.items():
        assert (attempts["job_id"] == name).sum() == tries and reason in ends.loc[name, "reason"]
        assert tries > 1 or ends.loc[name, "reason"].startswith(reason)  # and would be again


@pytest.mark.slow
def test_workers_that_cannot_start_are_told_and_not_tried_for_ever(tmp_path):
    specs = sleeping(2)
    with refused("3 workers in a row could not start"):
        run(specs, tmp_path, slots=(Slot("cpu[0]", warm_up="tests.light:no"),))
    attempts, ends, _ = run(specs, tmp_path)
    check(attempts, ends, specs)  # what could not begin goes on when it can


def mover(state, predict, begun=lambda: True):
    """Start the one job on the first slot, and a moment later, when it has begun, anew on the second."""
    moment = Wait("a moment", state.now_s + 0.05)
    if state.waiting:
        return [Start(0, 0), moment] if len(state.free[0]) == 2 else [moment]
    overdue = 0 in state.running and state.now_s > state.running[0].start_s + 0.2 and begun()
    return [Restart(0, 1)] if overdue else [moment]


@pytest.mark.parametrize("call", ["sleep", "once"])
@pytest.mark.slow
def test_a_running_job_is_moved(tmp_path, call):
    """One that heeds the request stops; one that does not loses its worker. Either runs anew elsewhere, and ends once."""
    seen = tmp_path / "seen"
    arguments, policy = {"sleep": ({"seconds": 0.6}, mover),
                         "once": ({"path": str(seen), "fault": "hang"}, partial(mover, begun=seen.exists))}[call]
    attempts, ends, _ = run([Spec("job", f"tests.light:{call}", {**arguments, "value": 7})], tmp_path / "run", policy, 1.0)
    assert attempts["status"].tolist() == ["moved", "done"] and attempts["device"].tolist() == ["cpu[0]", "cpu[1]"]
    assert ends["result"].iloc[0]["value"] == 7


@pytest.mark.slow
def test_a_moved_job_waits_for_cores_that_went_to_another(tmp_path):
    """While the first job is being stopped, the second takes the host's cores."""
    def policy(state, predict):
        done = state.recall(list, list)
        if not done and len(state.waiting) == 2 and all(state.free) and len(state.free[1]) == 2:
            done.append("started")
            return [Start(0, 0), Wait("a moment", state.now_s + 0.05)]
        if done == ["started"] and state.running:
            done.append("moved")
            return [Restart(0, 1), Start(1, 2)]
        ready = len(done) == 2 and state.free_cores and 1 in state.free[1]
        return [Start(job, 1) for job in state.waiting if ready]

    slots = (Slot("cpu2", (0,)), Slot("gpu[0]"), Slot("gpu[1]"), Slot("cpu", (0,)))  # two cores; cpu2 takes none
    attempts, _, _ = run(sleeping(2, 0.4), tmp_path, policy, 1.0, slots, cpu_cores=np.full(2, 2.0))
    result = attempts.set_index(["job_id", "attempt"])
    assert result["status"].to_dict() == {("j0", 1): "moved", ("j1", 1): "done", ("j0", 2): "done"}
    assert result.loc[("j0", 2), "start_s"] >= result.loc[("j1", 1), "end_s"]


def test_a_policy_that_leaves_jobs_for_ever_is_told(tmp_path):
    with refused("left 1 jobs waiting for ever, such as j0"):
        run(sleeping(1), tmp_path, lambda state, predict: [])


def _run_and_die(folder, after):
    done = []

    def die():
        done.append(0)
        if len(done) > after:  # those before are in the journal
            os.kill(os.getpid(), signal.SIGKILL)

    run(sleeping(12, 0.05), folder, spawn=calling_back(ProcessWorker, die))


@pytest.mark.slow
def test_a_killed_leader_goes_on(tmp_path):
    """The leader is killed twice while jobs run; the third run ends the rest, and no job ends twice."""
    context = multiprocessing.get_context("spawn")
    for _ in range(2):
        leader = context.Process(target=_run_and_die, args=(tmp_path, 3))
        leader.start()
        leader.join(120)
        assert leader.exitcode == -signal.SIGKILL
    specs = sleeping(12, 0.05)
    with closing(Journal(tmp_path / "run.sqlite", specs)) as journal:
        assert 6 <= len(journal.ended()) < 12
    attempts, ends, _ = run(specs, tmp_path)
    assert sorted(ends["job_id"]) == sorted(spec.job_id for spec in specs)
    assert (attempts["status"] == "done").sum() == 12 and (attempts["status"] == "lost").any()
    assert len(tables.validate(attempts[tables.columns("schedule")], "schedule", "the record")) == len(attempts)


@pytest.mark.slow
def test_orphaned_workers_end(tmp_path):
    context = multiprocessing.get_context("spawn")
    leader = context.Process(target=run, args=(sleeping(2, 60), tmp_path, "first-come", 60.0))
    leader.start()
    workers, end = [], time.monotonic() + 120
    while len(workers) < 2 and time.monotonic() < end:
        time.sleep(0.05)
        workers = [child for child in psutil.Process(leader.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    assert len(workers) == 2
    leader.kill()
    leader.join()
    assert not psutil.wait_procs(workers, timeout=60)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [12, pytest.param(120, marks=pytest.mark.nightly)])
def test_a_run_cut_short_at_any_moment_of_its_start_resumes(kills):
    """Killed at moments of its first 50 ms, or refused space; benchmarks/faults.py does the same a thousand times."""
    summary = killed.in_a_process("tests.killed", kills)
    assert summary["wrong"] == [] and sum(summary["reached"].values()) == kills + len(killed.SIZES)
    assert summary["reached"]["empty journal"] > 2


def test_what_failed_for_want_of_space_is_tried_by_the_next_call(tmp_path):
    specs = [Spec("full", "tests.light:full", {"until": str(tmp_path / "space")}), Spec("bad", "tests.light:fail", {})]
    attempts, ends, _ = run(specs, tmp_path / "run", spawn=killed.Inline)
    assert set(ends["status"]) == {"failed"} and len(attempts) == 6
    assert "No space left on device" in ends.set_index("job_id").loc["full", "reason"]
    (tmp_path / "space").touch()
    attempts, ends, _ = run(specs, tmp_path / "run", spawn=killed.Inline)
    check(attempts, ends, specs)
    assert ends.set_index("job_id")["status"].to_dict() == {"bad": "failed", "full": "done"}
    assert attempts[attempts["job_id"] == "full"]["status"].tolist() == ["lost"] * 3 + ["done"]
    assert (attempts["job_id"] == "bad").sum() == 3


def test_a_journal_is_read_by_its_owner_alone_and_written_by_one_process(tmp_path):
    path = tmp_path / "run.sqlite"
    Journal(path, sleeping(2)).close()
    path.chmod(0o644)  # as it was made before
    with closing(Journal(path, sleeping(2))) as journal:
        journal.start("j0", "cpu", 0.0)
        modes = {one.name: one.stat().st_mode & 0o777 for one in tmp_path.glob("run.sqlite*")}
    assert modes == dict.fromkeys(("run.sqlite", "run.sqlite-wal", "run.sqlite-shm"), 0o600)
    with locks.writer(path), refused("being written by another process"):
        run(sleeping(2), tmp_path)


def test_records_of_other_jobs_damaged_ones_and_jobs_that_can_run_nowhere_are_refused(tmp_path):
    run(sleeping(2), tmp_path / "ran", spawn=killed.Inline)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.sqlite").write_bytes(b"not a database" * 100)
    for count, folder, predicted, words in (
            (3, "ran", 1.0, "other jobs"), (2, "torn", 1.0, "damaged"), (2, "new", np.inf, "no device can run job 'j0'"),
            (2, "new", np.nan, "the predicted time of job 'j0' on 'cpu' is nan")):
        with refused(words):
            run(sleeping(count), tmp_path / folder, predicted=predicted)


class Puppet(killed.Inline):
    """A worker whose jobs take no time. Where a slot may be lost, its worker is gone with its second job."""

    lost, counts = (), {}

    def __init__(self, slot, limits):
        if slot.name in self.lost and self.counts.get(slot.name, 0) >= 2:
            raise SlotLost("its node is gone")
        super().__init__(slot, limits)
        self.name = slot.name

    def send(self, *message):
        if message[0] == "run":
            self.counts[self.name] = self.counts.get(self.name, 0) + 1
            gone = self.name in self.lost and self.counts[self.name] == 2
            self.outbox.append(("died", "no sign of it") if gone else ("done", message[1], None))


@pytest.fixture
def puppets(monkeypatch):
    """Run 12 jobs on two CPU slots and a GPU, of which some are lost; a ``picky`` last job runs on the GPU alone."""
    def ran(folder, lost, name="first-come", picky=False):
        monkeypatch.setattr(Puppet, "lost", lost)
        monkeypatch.setattr(Puppet, "counts", {})
        times = np.linspace(1.0, 2.0, 24).reshape(12, 2)
        times[-1, 0] = np.inf if picky else times[-1, 0]
        attempts, ends, notes = run(sleeping(12), folder, name, times, (*SLOTS, Slot("gpu[0]")), spawn=Puppet)
        check(attempts, ends, sleeping(12))
        assert set(ends["status"]) == {"done"}
        return attempts, notes

    monkeypatch.setattr(engine, "TICK_S", 0.002)
    return ran


@pytest.mark.parametrize("name", list(registry.POLICIES))
@pytest.mark.parametrize("lost", [("cpu[1]",), ("gpu[0]",), ("cpu[0]", "gpu[0]"), ("cpu[0]", "cpu[1]")])
@pytest.mark.slow
def test_slots_that_are_lost_are_given_up_and_the_others_go_on(tmp_path, puppets, name, lost):
    attempts, notes = puppets(tmp_path, lost, name)
    for slot in lost:
        ran = attempts[attempts["device"] == slot]["status"].tolist()
        assert ran in (["done", "retried"], ["done"], [])  # one that the policy left alone was not lost
        assert (ran == ["done", "retried"]) == (f"{slot} is given up: its node is gone" in notes)


@pytest.mark.parametrize(("lost", "options", "ended", "words"), [
    (("gpu[0]",), {"name": "earliest-finish", "picky": True}, 11,
     r"no slot is left for 1 jobs, such as j11; .*gpu\[0\] is given up: its node is gone"),
    (("cpu[0]", "cpu[1]", "gpu[0]"), {}, 3, r"no slot is left for 9 jobs")])
def test_jobs_for_which_no_slot_is_left_are_told_and_go_on_when_there_is_one(tmp_path, puppets, lost, options, ended, words):
    with refused(words):
        puppets(tmp_path, lost, **options)
    with closing(Journal(tmp_path / "run.sqlite", sleeping(12))) as journal:
        assert len(journal.ended()) == ended
    puppets(tmp_path, ())


def test_a_journal_of_another_version_or_one_that_is_gone_is_an_error(tmp_path):
    specs, path = sleeping(2), tmp_path / "run.sqlite"
    with closing(Journal(path, specs)) as journal:
        attempt = journal.start("j0", "cpu", 0.0)
        path.unlink()
        for note in (lambda: journal.start("j1", "cpu", 0.0), lambda: journal.end("j0", attempt, 1.0, "done")):
            with refused("was removed while the run went on"):
                note()
    Journal(path, specs).close()
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("UPDATE facts SET value = '7' WHERE name = 'version'")
    with refused("is a journal of version 7, this is version 2"):
        Journal(path, specs)


def test_an_empty_journal_beside_a_record_begins_nothing_anew(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "run.sqlite").touch()
    assert jobs_file.folder_of(tmp_path / "jobs.csv", folder) == folder, "killed at birth: no journal yet"
    (folder / "ran.json").write_text("{}")
    with refused("is empty, although a run has ended there"):
        jobs_file.folder_of(tmp_path / "jobs.csv", folder)
