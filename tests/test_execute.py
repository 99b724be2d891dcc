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

import numpy as np
import pytest

from lib import locks, paths, tables
from lib.errors import InputError
from lib.schedule.policies import registry
from lib.schedule.problem import Fleet, Jobs
from lib.schedule.runtime import executor, jobs_file, local_site
from lib.schedule.runtime.journal import Journal, Spec
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, SlotLost
from lib.schedule.state import Restart, Start, Wait
from tests import faults, killed

# Patient, as busy machines are slow.
LIMITS = Limits(beat_s=0.05, silent_s=30, ready_s=120, grace_s=0.3, late=5, least_s=30, attempts=3)
SLOTS = [Slot("cpu[0]"), Slot("cpu[1]")]
FLEET = Fleet.of({"cpu": 2})


def sleeping(count, seconds=0.01):
    return [Spec(f"j{number}", "tests.light:sleep", {"seconds": seconds, "value": number}) for number in range(count)]


def run(specs, folder, name="first-come", predicted=0.02, arrival=None, limits=LIMITS, spawn=ProcessWorker):
    times = np.full((len(specs), 1), predicted) if np.isscalar(predicted) else predicted
    jobs = Jobs.plain(len(specs), arrival)
    jobs = Jobs(**{**jobs.__dict__, "ids": tuple(spec.job_id for spec in specs)})
    return executor.execute(specs, jobs, FLEET, SLOTS, times, registry.policy(name), folder, limits, spawn)


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


def test_all_jobs_end_and_workers_stay_light(tmp_path):
    specs = sleeping(20)
    attempts, ends, notes = run(specs, tmp_path)
    check(attempts, ends, specs)
    assert set(ends["status"]) == {"done"} and not notes
    assert {result["value"] for result in ends["result"]} == set(range(20))
    assert not any(result["torch"] for result in ends["result"])
    assert set(attempts["device"]) == {"cpu[0]", "cpu[1]"}


def test_arrivals_are_waited_for(tmp_path):
    specs = sleeping(3)
    attempts, ends, _ = run(specs, tmp_path, arrival=np.array([0.0, 0.3, 0.6]))
    check(attempts, ends, specs)
    starts = attempts.set_index("job_id")["start_s"]
    assert starts["j1"] >= 0.3 and starts["j2"] >= 0.6


@pytest.mark.slow
def test_faults_lose_nothing():
    """Every kind of fault, mixed by seed; LIB_FAULT_SEEDS says how many seeds (a thousand take nine minutes)."""
    count = int(os.environ.get("LIB_FAULT_SEEDS", "50"))
    words = [sys.executable, "-m", "tests.faults", "0", str(count)]
    ran = subprocess.run(words, cwd=paths.ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout, ran.stderr
    result = json.loads(ran.stdout)
    assert result["wrong"] == [] and result["seeds"] == count and ran.returncode == 0
    if count >= 50:
        assert set(result["thrown"]) == {f"{fault} once" for fault in faults.ONCE} | set(faults.ALWAYS)
        for reason in ("signal 9", "no sign of life", "not done after", "out of memory", "ended with status", "as JSON"):
            assert any(reason in text for text in result["attempts"]), reason


def test_a_job_that_always_fails_ends_with_its_reason(tmp_path):
    specs = [Spec("bad", "tests.light:fail", {}), Spec("deadly", "tests.light:kill", {}), Spec("nowhere", "tests.light:no", {}),
             Spec("odd", "tests.light:odd", {}), Spec("refused", "tests.light:refuse", {}),
             Spec("held", "tests.light:wait_in_vain", {}), *sleeping(2)]
    attempts, ends, _ = run(specs, tmp_path)
    check(attempts, ends, specs)
    ends = ends.set_index("job_id")
    assert "this job is wrong" in ends.loc["bad", "reason"] and "signal 9" in ends.loc["deadly", "reason"]
    assert "no function" in ends.loc["nowhere", "reason"]
    assert "cannot be written as JSON" in ends.loc["odd", "reason"]
    assert ends.loc["j0", "status"] == "done" and (attempts["job_id"] == "bad").sum() == 3
    assert (attempts["job_id"] == "held").sum() == 3
    for name, reason in (("refused", "this input is wrong"), ("nowhere", "no function 'tests.light:no'")):  # and would again be
        assert (attempts["job_id"] == name).sum() == 1 and ends.loc[name, "reason"].startswith(reason)


def test_workers_that_cannot_start_are_told_and_not_tried_for_ever(tmp_path):
    specs, slots = sleeping(2), [Slot("cpu[0]", warm_up="tests.light:no")]
    jobs = Jobs(**{**Jobs.plain(2).__dict__, "ids": ("j0", "j1")})
    with pytest.raises(InputError, match="3 workers in a row could not start"):
        executor.execute(specs, jobs, Fleet.of({"cpu": 1}), slots, np.ones((2, 1)), registry.policy("first-come"), tmp_path,
                        LIMITS)
    attempts, ends, _ = run(specs, tmp_path)
    check(attempts, ends, specs)  # what could not begin goes on when it can


def _mover(state, predict):
    """Start the one job on the first slot, and after a moment anew on the second."""
    moment = Wait("a moment", state.now_s + 0.05)
    if state.waiting:
        return [Start(0, 0), moment] if len(state.free[0]) == 2 else [moment]
    overdue = 0 in state.running and state.now_s > state.running[0].start_s + 0.2
    return [Restart(0, 1)] if overdue else [moment]


@pytest.mark.parametrize("call", ["sleep", "hang"])
def test_a_running_job_is_moved(tmp_path, call):
    """One that heeds the request stops; one that does not loses its worker. Either runs anew elsewhere, and ends once."""
    faulty = {"path": str(tmp_path / "seen"), "fault": "hang", "value": 7}
    specs = [Spec("job", "tests.light:sleep", {"seconds": 0.6, "value": 7}) if call == "sleep" else
             Spec("job", "tests.light:once", faulty)]
    jobs = Jobs(**{**Jobs.plain(1).__dict__, "ids": ("job",)})
    attempts, ends, _ = executor.execute(specs, jobs, FLEET, SLOTS, np.ones((1, 1)), _mover, tmp_path / "run", LIMITS)
    assert attempts["status"].tolist() == ["moved", "done"] and attempts["device"].tolist() == ["cpu[0]", "cpu[1]"]
    assert ends["result"].iloc[0]["value"] == 7


def test_a_moved_job_waits_for_cores_that_went_to_another(tmp_path):
    """While the first job is being stopped, the second takes the host's only core."""
    fleet = Fleet(**{**Fleet.of({"cpu": 1, "gpu": 2}).__dict__, "host_cores": 1.0})
    jobs = Jobs(**{**Jobs.plain(2).__dict__, "ids": ("j0", "j1"), "cpu_cores": np.ones(2)})

    class Calls:
        count = 0

    def policy(state, predict):
        memory = state.recall(Calls, Calls)
        if memory.count == 0 and len(state.waiting) == 2 and all(state.free) and len(state.free[1]) == 2:
            memory.count = 1
            return [Start(0, 0), Wait("a moment", state.now_s + 0.05)]
        if memory.count == 1 and state.running:
            memory.count = 2
            return [Restart(0, 1), Start(1, 2)]
        ready = memory.count == 2 and state.free_cores and 1 in state.free[1]
        return [Start(job, 1) for job in state.waiting if ready]

    slots = [Slot("cpu"), Slot("gpu[0]"), Slot("gpu[1]")]
    attempts, _, _ = executor.execute(sleeping(2, 0.4), jobs, fleet, slots, np.ones((2, 2)), policy, tmp_path, LIMITS)
    result = attempts.set_index(["job_id", "attempt"])
    assert result["status"].to_dict() == {("j0", 1): "moved", ("j1", 1): "done", ("j0", 2): "done"}
    assert result.loc[("j0", 2), "start_s"] >= result.loc[("j1", 1), "end_s"]


def test_a_policy_that_leaves_jobs_for_ever_is_told(tmp_path):
    jobs = Jobs(**{**Jobs.plain(1).__dict__, "ids": ("j0",)})
    with pytest.raises(InputError, match="left 1 jobs waiting for ever, such as j0"):
        executor.execute(sleeping(1), jobs, FLEET, SLOTS, np.ones((1, 1)), lambda state, predict: [], tmp_path, LIMITS)


def _run_and_die(folder, after):
    done = [0]

    def die():
        done[0] += 1
        if done[0] > after:  # those before are in the journal
            os.kill(os.getpid(), signal.SIGKILL)

    run(sleeping(12, 0.05), folder, spawn=calling_back(ProcessWorker, die))


@pytest.mark.slow
def test_a_killed_leader_goes_on(tmp_path):
    """The leader is killed twice while jobs run; the third run ends the rest, and no job ends twice."""
    context = multiprocessing.get_context("spawn")
    for after in (3, 3):
        leader = context.Process(target=_run_and_die, args=(tmp_path, after))
        leader.start()
        leader.join(120)
        assert leader.exitcode == -signal.SIGKILL
    journal = Journal(tmp_path / "run.sqlite", sleeping(12, 0.05))
    before = journal.ended()
    journal.close()
    assert 6 <= len(before) < 12
    attempts, ends, _ = run(sleeping(12, 0.05), tmp_path)
    assert sorted(ends["job_id"]) == sorted(spec.job_id for spec in sleeping(12))
    assert (attempts["status"] == "done").sum() == 12 and (attempts["status"] == "lost").any()
    assert len(tables.validate(attempts[tables.columns("schedule")], "schedule", "the record")) == len(attempts)


@pytest.mark.slow
def test_orphaned_workers_end(tmp_path):
    script = ("import sys; sys.path.insert(0, '.')\nif __name__ == '__main__':\n"
              "    from tests.test_execute import run, sleeping\n    from pathlib import Path\n"
              f"    run(sleeping(2, 60), Path({str(tmp_path)!r}), predicted=60.0)\n")
    path = tmp_path / "lead.py"
    path.write_text(script)
    leader = subprocess.Popen([sys.executable, str(path)], cwd=paths.ROOT)
    children, end = [], time.monotonic() + 120
    while len(children) < 2 and time.monotonic() < end:
        time.sleep(0.2)
        children = subprocess.run(["pgrep", "-P", str(leader.pid), "-f", "spawn_main"], capture_output=True,
                                  text=True, check=False).stdout.split()
    assert len(children) == 2
    leader.kill()
    leader.wait()
    end = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{child}") for child in children) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


@pytest.mark.slow
def test_a_run_cut_short_at_any_moment_of_its_start_resumes():
    """Killed at 24 moments of its first 50 ms, or refused space; benchmarks/faults.py does the same a thousand times."""
    summary = killed.in_a_process("tests.killed", 24)
    assert summary["wrong"] == [] and sum(summary["reached"].values()) == 24 + len(killed.SIZES)
    assert summary["reached"]["empty journal"] > 5


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
    journal = Journal(path, sleeping(2))
    journal.start("j0", "cpu", 0.0)
    assert {one.stat().st_mode & 0o777 for one in tmp_path.glob("run.sqlite*")} == {0o600}
    assert {one.name for one in tmp_path.iterdir()} >= {"run.sqlite", "run.sqlite-wal", "run.sqlite-shm"}
    journal.close()
    with locks.writer(path), pytest.raises(InputError, match="being written by another process"):
        run(sleeping(2), tmp_path)


def test_records_are_guarded(tmp_path):
    run(sleeping(2), tmp_path)
    with pytest.raises(InputError, match="other jobs"):
        run(sleeping(3), tmp_path)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(InputError, match="damaged"):
        run(sleeping(2), tmp_path / "torn")


def test_jobs_that_can_run_nowhere_are_refused_before_any_worker_starts(tmp_path):
    for predicted, word in ((np.inf, "no device can run job 'j0'"), (np.nan, "the predicted time of job 'j0' on 'cpu' is nan")):
        with pytest.raises(InputError, match=word):
            run(sleeping(2), tmp_path / word[:8], predicted=predicted)


class Puppet:
    """A worker without a process: jobs take no time. Where a slot may be lost, its worker is gone with its second job."""

    lost, counts = (), {}

    def __init__(self, slot, limits):
        if slot.name in self.lost and self.counts.get(slot.name, 0) >= 2:
            raise SlotLost("its node is gone")
        self.name, self.outbox = slot.name, [("ready", 0)]

    def messages(self):
        messages, self.outbox = self.outbox, []
        return messages

    def send(self, *message):
        if message[0] == "run":
            self.counts[self.name] = self.counts.get(self.name, 0) + 1
            gone = self.name in self.lost and self.counts[self.name] == 2
            self.outbox.append(("died", "no sign of it") if gone else ("done", message[1], None))

    def shut_down(self):
        pass


def puppets(monkeypatch, folder, lost, name="first-come", picky=False):
    """Run 12 jobs on two CPU slots and a GPU, of which some are lost; a ``picky`` last job runs on the GPU alone."""
    monkeypatch.setattr(Puppet, "lost", lost)
    monkeypatch.setattr(Puppet, "counts", {})
    monkeypatch.setattr(executor, "TICK_S", 0.002)
    specs, slots = sleeping(12), [Slot("cpu[0]"), Slot("cpu[1]"), Slot("gpu[0]")]
    jobs = Jobs(**{**Jobs.plain(12).__dict__, "ids": tuple(spec.job_id for spec in specs)})
    times = np.linspace(1.0, 2.0, 24).reshape(12, 2)
    times[-1, 0] = np.inf if picky else times[-1, 0]
    return (*executor.execute(specs, jobs, local_site.fleet_of(slots), slots, times, registry.policy(name), folder, LIMITS,
                             Puppet), specs)


@pytest.mark.parametrize("name", list(registry.POLICIES))
@pytest.mark.parametrize("lost", [("cpu[1]",), ("gpu[0]",), ("cpu[0]", "gpu[0]"), ("cpu[0]", "cpu[1]")])
def test_slots_that_are_lost_are_given_up_and_the_others_go_on(tmp_path, monkeypatch, name, lost):
    attempts, ends, notes, specs = puppets(monkeypatch, tmp_path, lost, name)
    check(attempts, ends, specs)
    assert set(ends["status"]) == {"done"}
    for slot in lost:
        ran = attempts[attempts["device"] == slot]["status"].tolist()
        assert ran in (["done", "retried"], ["done"], [])  # one that the policy left alone was not lost
        assert (ran == ["done", "retried"]) == any(note == f"{slot} is given up: its node is gone" for note in notes)


def test_jobs_for_which_no_slot_is_left_are_told_and_go_on_when_there_is_one(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"no slot is left for 1 jobs, such as j11; .*gpu\[0\] is given up: its node is gone"):
        puppets(monkeypatch, tmp_path / "one", ("gpu[0]",), "earliest-finish", picky=True)
    with pytest.raises(InputError, match=r"no slot is left for \d+ jobs"):
        puppets(monkeypatch, tmp_path / "all", ("cpu[0]", "cpu[1]", "gpu[0]"))
    for folder, ended in (("one", 11), ("all", 3)):
        journal = Journal(tmp_path / folder / "run.sqlite", sleeping(12))
        assert len(journal.ended()) == ended
        journal.close()
        attempts, ends, _, specs = puppets(monkeypatch, tmp_path / folder, ())
        check(attempts, ends, specs)
        assert set(ends["status"]) == {"done"}


def test_a_journal_of_another_version_or_one_that_is_gone_is_an_error(tmp_path):
    specs, path = sleeping(2), tmp_path / "run.sqlite"
    journal = Journal(path, specs)
    attempt = journal.start("j0", "cpu", 0.0)
    path.unlink()
    for note in (lambda: journal.start("j1", "cpu", 0.0), lambda: journal.end("j0", attempt, 1.0, "done")):
        with pytest.raises(InputError, match="was removed while the run went on"):
            note()
    journal.close()
    Journal(path, specs).close()
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("UPDATE facts SET value = '7' WHERE name = 'version'")
    with pytest.raises(InputError, match="is a journal of version 7, this is version 2"):
        Journal(path, specs)


def test_an_empty_journal_beside_a_record_begins_nothing_anew(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "run.sqlite").touch()
    assert jobs_file.folder_of(tmp_path / "jobs.csv", folder) == folder, "killed at birth: no journal yet"
    (folder / "ran.json").write_text("{}")
    with pytest.raises(InputError, match="is empty, although a run has ended there"):
        jobs_file.folder_of(tmp_path / "jobs.csv", folder)
