"""Real runs with light jobs: nothing is lost, no job ends twice, whatever is killed; a killed run goes on."""

import multiprocessing
import os
import re
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import psutil
import pytest

from lib import locks
from lib.schedule.policies import registry
from lib.schedule.problem import Jobs
from lib.schedule.runtime import executor, jobs_file, local_site
from lib.schedule.runtime.executor import PreparedJobs
from lib.schedule.runtime.journal import Journal, Spec
from lib.schedule.runtime.workers import Limits, ProcessWorker, Slot, SlotLost
from lib.schedule.state import Restart, Start, Wait
from tests import killed, nightly, refused, served

# Patient, as busy machines are slow.
LIMITS = Limits(beat_s=0.05, silent_s=30, ready_s=120, grace_s=0.3, overrun_factor=5, least_s=30, attempts=3)
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


def check(attempts, ends, specs):
    assert sorted(ends["job_id"]) == sorted(spec.job_id for spec in specs)  # each ends exactly once
    done = attempts[attempts["status"] == "done"]
    assert not done[["job_id", "device"]].duplicated().any() and done.groupby("job_id")["attempt"].nunique().eq(1).all()
    for _, rows in attempts.dropna(subset=["end_s"]).sort_values("start_s").groupby("device"):
        assert (rows["start_s"].to_numpy()[1:] >= rows["end_s"].to_numpy()[:-1] - 1e-6).all()


class Slow(killed.Inline):
    """A worker that is ready later, if it is that of the second slot."""

    def __init__(self, slot, limits):
        super().__init__(slot, limits)
        self.ready_s = time.monotonic() + 0.5 * slot.name.endswith("[1]")

    def messages(self):
        return super().messages() if time.monotonic() >= self.ready_s else []


@pytest.mark.parametrize("gather_s, most_s", [(15.0, 15.0), (0.1, 0.45)])
def test_a_run_starts_with_all_workers_that_are_there_in_time(tmp_path, monkeypatch, gather_s, most_s):
    monkeypatch.setattr(executor, "_GATHER_S", gather_s)
    attempts, ends, _ = run(sleeping(2), tmp_path, spawn=Slow)
    assert len(ends) == 2 and min(gather_s, 0.5) <= attempts["start_s"].min() < most_s
    assert set(attempts["device"]) == ({"cpu[0]", "cpu[1]"} if gather_s > 1 else {"cpu[0]"})


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


ONCE = ("kill", "freeze", "hang", "starve", "fail", "slow", "leave",
        *(["exhaust"] if os.path.exists("/proc/self/statm") else []))  # only Linux says how much memory a process holds
ALWAYS = {"fail": (3, "ValueError: this job is wrong"), "kill": (3, "the worker was killed (signal 9)"),
          "starve": (3, "out of memory"), "leave": (3, "ended with status"), "wait_in_vain": (3, "another process is at it"),
          "refuse": (1, "this input is wrong"), "no": (1, "no function 'tests.light:no'"), "odd": (3, "as JSON")}
POLICIES = ("first-come", "hybrid", "earliest-finish", "longest-first", "affinity", "matching")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *map(nightly, range(1, 25))])
def test_faults_lose_nothing(tmp_path, seed):
    """Every kind of fault, once or always, in an order and at times that the seed draws."""
    def spawn(slot, limits):
        workers.append(ProcessWorker(slot, limits))
        return workers[-1]

    workers, draw = [], np.random.default_rng(seed)
    specs = [*(Spec(fault, "tests.light:marked", {"path": str(tmp_path / fault), "value": fault, "fault": fault})
               for fault in ONCE), *(Spec(f"always {fault}", f"tests.light:{fault}", {}) for fault in ALWAYS)]
    attempts, ends, _ = run([specs[place] for place in draw.permutation(len(specs))], tmp_path / "run",
                            POLICIES[seed % len(POLICIES)], limits=replace(LIMITS, silent_s=2, least_s=4), spawn=spawn,
                            arrival_s=draw.choice([0.0, 0.1], len(specs)))
    check(attempts, ends, specs)
    assert None not in [worker.process._process.exitcode for worker in workers], "no process is left"
    ends, stories = ends.set_index("job_id"), attempts.groupby("job_id")["status"].apply(" ".join)
    assert stories.str.fullmatch("((retried|moved) )*(done|failed)").all() and (stories.str.count("retried") < 3).all()
    for fault in ONCE:
        assert ends["result"][fault] == {"value": fault} and (tmp_path / f"{fault}.done").read_text() == "done\n"
    for fault, (tries, reason) in ALWAYS.items():
        end = ends.loc[f"always {fault}"]
        assert end["status"] == "failed" and reason in end["reason"] and stories[f"always {fault}"].count(" ") == tries - 1
    for fault, reason in {"freeze": "no sign of life", "hang": "not done after"}.items():
        assert reason in attempts.loc[attempts["job_id"] == fault, "reason"].iloc[0]


@pytest.mark.slow
def test_workers_that_cannot_start_are_told_and_not_tried_for_ever(tmp_path):
    specs = sleeping(2)
    with refused("3 workers in a row could not start"):
        run(specs, tmp_path, slots=(Slot("cpu[0]", warm_up="tests.light:no"),))
    attempts, ends, _ = run(specs, tmp_path)
    check(attempts, ends, specs)  # what could not begin goes on when it can


def run_gangs(specs, folder, **options):
    devices = np.array([spec.devices for spec in specs])
    return run(specs, folder, registry.policy_for("hybrid", gangs=True), devices=devices, **options)


@pytest.mark.slow
def test_a_gang_runs_on_all_its_slots_or_on_none(tmp_path):
    """When a member dies, hangs or fails, all stop, and the job is tried again; its result is that of the first member."""
    faults = (None, "kill", "fail", "freeze", "hang")
    specs = [*(Spec(str(fault), "tests.light:gang", {"path": str(tmp_path / f"of {fault}"), "fault": fault}, 2)
               for fault in faults),
             *sleeping(1)]
    attempts, ends, _ = run_gangs(specs, tmp_path / "run", limits=replace(LIMITS, silent_s=2, least_s=4, overrun_factor=1))
    check(attempts, ends, specs)
    assert set(ends["status"]) == {"done"}
    assert [row.result for row in ends.itertuples() if row.job_id != "j0"] == [{"rank": 0, "count": 2}] * len(faults)
    for (name, _), rows in attempts[attempts["job_id"] != "j0"].groupby(["job_id", "attempt"]):
        assert sorted(rows["device"]) == ["cpu[0]", "cpu[1]"], name
        assert rows["start_s"].nunique() == rows["end_s"].nunique() == 1
    tries = attempts.groupby("job_id")["attempt"].max().to_dict()
    assert tries == {**dict.fromkeys(faults[1:], 2), "None": 1, "j0": 1}
    assert "the worker was killed (signal 9)" in attempts.set_index("job_id")["reason"]["kill"].iloc[0]
    assert not list((tmp_path / "run/gangs").iterdir())


@pytest.mark.slow
def test_a_gang_that_always_fails_ends_once_and_one_that_no_fleet_has_is_refused(tmp_path):
    specs = [Spec("bad", "tests.light:fail", {}, 2), Spec("wide", "tests.light:sleep", {}, 3)]
    with refused("no device can run job 'wide'.* on 3 devices at once"):
        run_gangs(specs, tmp_path / "run")
    attempts, ends, _ = run_gangs(specs[:1], tmp_path / "run")
    assert ends["status"].tolist() == ["failed"] and attempts["attempt"].max() == 3 and len(attempts) == 6
    assert re.fullmatch(r"(cpu\[[01]\]: ValueError: this job is wrong(; )?){1,2} \(attempt 3 of 3\)", ends["reason"].iloc[0])


@pytest.mark.slow
def test_a_slot_of_a_gang_that_is_removed_ends_the_attempt_while_others_are_placed(tmp_path):
    """The other member heeds nothing and is replaced after a moment, in which jobs start on the slots that are left."""
    gang = {"path": str(tmp_path / "gang"), "fault": "hang", "seconds": 0.3}
    specs, removed = [Spec("gang", "tests.light:gang", gang, 2), *sleeping(6, 0.2)], []
    with served.opened(tmp_path / "queue", policy=registry.policy_for("first-come"), spawn=ProcessWorker, limits=replace(
            LIMITS, grace_s=1.5), slots=("cpu[0]", "cpu[1]", "cpu[2]")) as queue:
        for spec in specs:
            queue.submit(spec)

        def over():
            running = queue.journal.attempts().query("job_id == 'gang' and status == 'running'")
            if not removed and (tmp_path / "gang.hang").exists() and len(running) == 2:
                removed.append(running["device"].iloc[0])
                queue.remove_slot(removed[0])
            return queue.left == 0

        queue.run(over)
        attempts, ends = queue.journal.attempts(), queue.journal.results()
    assert removed and set(ends["status"]) == {"done"} and sorted(ends["job_id"]) == sorted(spec.job_id for spec in specs)
    assert attempts.query("job_id == 'gang'")["status"].tolist() == ["lost", "lost", "done", "done"]


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


def test_a_policy_that_leaves_jobs_for_ever_is_told(tmp_path):
    with refused("left 1 jobs waiting for ever, such as j0"):
        run(sleeping(1), tmp_path, lambda state, predict: [])


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
@pytest.mark.parametrize("kills", [12, nightly(120)])
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
    (tmp_path / "torn/run.sqlite").write_bytes(b"not a database" * 100)
    for count, folder, predicted, words in (
            (3, "ran", 1.0, "other jobs"), (2, "torn", 1.0, "damaged"), (2, "new", np.inf, "no device can run job 'j0'"),
            (2, "new", np.nan, "the predicted time of job 'j0' on 'cpu' is nan")):
        with refused(words):
            run(sleeping(count), tmp_path / folder, predicted=predicted)


class Gone(killed.Inline):
    """A worker that dies with its first job; its slot is lost then."""

    died = False

    def __init__(self, slot, limits):
        if self.died:
            raise SlotLost("its node is gone")
        super().__init__(slot, limits)

    def send(self, *message):
        if message[0] == "run":
            Gone.died = True
            self.outbox.append(("died", "no sign of it"))


def test_jobs_for_which_no_slot_is_left_are_told_and_go_on_when_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(Gone, "died", False)
    with refused(r"no slot is left for 3 jobs, such as j1, j2, j0; .*cpu\[0\] is given up: its node is gone"):
        run(sleeping(3), tmp_path, slots=SLOTS[:1], spawn=Gone)
    attempts, ends, _ = run(sleeping(3), tmp_path, slots=SLOTS[:1], spawn=killed.Inline)
    check(attempts, ends, sleeping(3))
    assert set(ends["status"]) == {"done"}


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
