"""Real runs with light jobs: nothing is lost, no job ends twice, whatever is killed; a killed run goes on."""

import multiprocessing
import os
import threading
import time
from contextlib import closing
from functools import partial

import numpy as np
import psutil
import pytest
from sqlalchemy import update

from lib import locks
from lib.schedule.loop import Loop
from lib.schedule.policies import by_priority, policy_for
from lib.schedule.run import backend, jobs, processes
from lib.schedule.run.backend import QueueBackend, QueueClosedError, TimeLimit
from lib.schedule.run.database import leadership, open_engine
from lib.schedule.run.processes import ProcessWorkers
from lib.schedule.run.queue import Queue, QueueJob
from lib.schedule.state import Restart, Start, Wait
from tests import killed, nightly, refused, until
from tests.killed import InlineWorkers, prepared, two_slots
from tests.postgres import postgres  # noqa: F401

LIMIT = TimeLimit(5.0, 10.0)  # a worker that replaces another one takes some of it to start


def job(name, task, devices=1, **arguments):
    return QueueJob(job_id=name, task=f"tests.light:{task}", arguments=arguments, devices=devices, job_class=task,
                    arrival_s=0.0, memory_mb=0.0, cpu_cores=0.0)


def sleeping(count, seconds=0.01):
    return [job(f"j{number}", "sleep", seconds=seconds, value=number) for number in range(count)]


def run(rows, folder, policy="fcfs", workers=None, limit=LIMIT, **columns):
    """Run jobs for real; a policy is a name or a function. Workers are closed afterwards."""
    with closing(workers or ProcessWorkers(two_slots(), warm_up="")) as workers:
        return jobs.execute(prepared(rows, workers, policy, **columns), folder, limit)


def inline(rows, folder, **options):
    return run(rows, folder, workers=InlineWorkers(two_slots()), **options)


def spawned():
    """Return the processes that this one has spawned."""
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


def check(attempts, ends, rows):
    assert sorted(ends["job_id"]) == sorted(row.job_id for row in rows)  # each ends exactly once
    done = attempts[attempts["status"] == "done"]
    assert not done[["job_id", "device"]].duplicated().any() and done.groupby("job_id")["attempt"].nunique().eq(1).all()
    for _, parts in attempts.dropna(subset=["end_s"]).sort_values("start_s").groupby("device"):
        assert (parts["start_s"].to_numpy()[1:] >= parts["end_s"].to_numpy()[:-1] - 1e-6).all()


ONCE = ("kill", "freeze", "hang", "starve", "fail", "leave")
ALWAYS = {"fail": (3, "ValueError: this job is wrong"), "kill": (3, "the worker was killed (signal 9)"),
          "starve": (3, "out of memory"), "wait_in_vain": (3, "another process is at it"), "odd": (3, "TypeError"),
          "refuse": (1, "this input is wrong"), "no": (1, "no function 'tests.light:no'")}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *map(nightly, range(1, 10))])
def test_faults_lose_nothing(tmp_path, seed):
    """Every kind of fault, once or always, in an order that the seed draws; no process is left, no worker imports torch."""
    rows = [*(job(fault, "marked", path=str(tmp_path / fault), value=fault, fault=fault) for fault in ONCE),
            *(job(f"always {fault}", fault) for fault in ALWAYS), *sleeping(4), job("nan", "nothing"),
            job("both", "where", devices=2), job("both fail", "fail", devices=2),
            job("both killed", "marked", path=str(tmp_path / "both"), fault="kill", devices=2)]
    order = np.random.default_rng(seed).permutation(len(rows))
    attempts, ends, notes = run([rows[place] for place in order], tmp_path / "run", ("fcfs", "mct", "hybrid")[seed % 3])
    check(attempts, ends, rows)
    assert not spawned()
    ends, stories = ends.set_index("job_id"), attempts.groupby("job_id")["status"].apply(" ".join)
    for fault in ONCE:
        assert ends["result"][fault] == {"value": fault} and (tmp_path / f"{fault}.done").read_text() == "done\n"
        assert stories[fault].endswith("done") and stories[fault].count("retried") == 1
    for fault, (tries, reason) in ALWAYS.items():
        end, story = ends.loc[f"always {fault}"], stories[f"always {fault}"]
        assert end["status"] == "failed" and reason in end["reason"] and story.count("retried") == tries - 1
    for fault in ("freeze", "hang"):
        reasons = attempts.loc[attempts["job_id"] == fault, "reason"]
        assert "not done after its time limit of 10 s" in reasons.iloc[0]
    assert ends["result"]["j1"] == {"value": 1, "torch": False} and ends["result"]["nan"] == {"value": None}
    both = ends["result"]["both"]
    assert both["devices"] == ["cpu", "cpu"] and stories["both"] == "done done"
    assert stories["both killed"] == "retried retried done done" and stories["both fail"] == "retried " * 4 + "failed failed"
    assert any(note.startswith("kill on cpu[") and "killed (signal 9)" in note for note in notes)


@pytest.mark.slow
def test_none_starts_before_it_arrived_and_a_policy_that_leaves_jobs_is_told(tmp_path):
    rows, arrival_s = sleeping(6), np.array([0, 0, 0, 0, 0.4, 0.8])
    for row, at_s in zip(rows, arrival_s.tolist(), strict=True):
        row.arrival_s = at_s
    attempts, ends, _ = run(rows, tmp_path, arrival_s=arrival_s)
    check(attempts, ends, rows)
    assert (attempts.set_index("job_id")["start_s"].reindex([row.job_id for row in rows]) >= arrival_s).all()
    with refused("left 1 jobs waiting for ever, such as j0"):
        inline(sleeping(1), tmp_path / "other", policy=lambda state, predict: [])


def mover(state, predict, begun):
    """Start the one job on the first slot, and when it has begun, anew on the second."""
    moment = Wait("a moment", state.now_s + 0.05)
    if len(state.waiting):
        return [Start(0, 0), moment]
    overdue = begun.exists() and state.running[0].device == 0 and state.now_s > state.running[0].start_s + 0.3
    return [Restart(0, 1)] if overdue else [moment]


@pytest.mark.slow
def test_a_running_job_is_moved_and_tidies_up(tmp_path, monkeypatch):
    """It is stopped where it ran before it starts elsewhere; a frozen one that does not stop is ended with its worker."""
    path = tmp_path / "lines"
    rows, policy = [job("job", "tidy", path=str(path), seconds=1.0)], partial(mover, begun=path)
    attempts, ends, _ = run(rows, tmp_path / "one", policy)
    assert attempts["status"].tolist() == ["moved", "done"] and attempts["device"].tolist() == ["cpu[0]", "cpu[1]"]
    lines = [line.split()[0] for line in path.read_text().splitlines()]
    assert lines == ["begins", "tidied", "begins", "tidied"] and ends["status"].tolist() == ["done"]
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    frozen = tmp_path / "frozen"
    attempts, ends, _ = run([job("job", "marked", path=str(frozen), fault="freeze")], tmp_path / "two",
                            partial(mover, begun=frozen), limit=TimeLimit())
    assert attempts["status"].tolist() == ["moved", "done"]


@pytest.mark.slow
def test_workers_that_cannot_start_are_told_and_not_tried_for_ever(tmp_path):
    with refused(r"no slot is left: 3 workers in a row could not start on cpu\[0\]: .*no function 'tests.light:no'"):
        ProcessWorkers(two_slots()[:1], warm_up="tests.light:no")
    assert not spawned()
    attempts, ends, _ = run(sleeping(2), tmp_path)
    check(attempts, ends, sleeping(2))  # what could not begin goes on when it can


# ------------------------------------------------------------------------------------------- kills and full disks


@pytest.mark.slow
def test_a_leader_that_is_killed_leaves_no_worker_and_its_run_goes_on(tmp_path):
    def rows():
        marked = [job(f"j{number}", "marked", path=str(tmp_path / str(number))) for number in range(3)]
        return [*marked, job("long", "trail", path=str(tmp_path / "long"), seconds=3)]

    leader = multiprocessing.get_context("spawn").Process(target=run, args=(rows(), tmp_path / "run"))
    leader.start()
    until((tmp_path / "long").exists, 120)
    with closing(Queue(open_engine(tmp_path / "run/queue.sqlite"))) as queue:
        until(lambda: len(queue.ends()) == 3)
    workers = psutil.Process(leader.pid).children(recursive=True)
    assert len([worker for worker in workers if "spawn_main" in " ".join(worker.cmdline())]) == 2
    leader.kill()
    leader.join()
    assert not psutil.wait_procs(workers, timeout=30)[1]
    attempts, ends, notes = run(rows(), tmp_path / "run")
    check(attempts, ends, rows())
    assert "resumed: 3 of 4 jobs had ended in an earlier call" in notes
    assert attempts.loc[attempts["job_id"] == "long", "status"].tolist() == ["lost", "done"]
    assert all((tmp_path / f"{number}.done").read_text() == "done\n" for number in range(3))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [8, nightly(120)])
def test_a_run_cut_short_at_any_statement_of_its_queue_resumes(kills):
    """Or at any moment, or refused space; benchmarks/faults.py does the same a thousand times."""
    summary = killed.in_a_process("tests.killed", kills)
    assert summary["wrong"] == [] and sum(summary["reached"].values()) == kills + len(killed.SIZES)
    assert summary["reached"]["empty queue"] >= 1


def test_what_failed_for_want_of_space_is_tried_by_the_next_call(tmp_path):
    def rows():
        return [job("full", "full", until=str(tmp_path / "space")), job("bad", "fail")]

    attempts, ends, _ = inline(rows(), tmp_path / "run")
    assert set(ends["status"]) == {"failed"} and len(attempts) == 6
    assert "No space left on device" in ends.set_index("job_id").loc["full", "reason"]
    (tmp_path / "space").touch()
    with closing(Queue(open_engine(tmp_path / "run/queue.sqlite"))) as queue:
        queue.recover(lambda reason: "No space" in reason)
        assert "No space" in queue.jobs(QueueJob.status == "queued")[0].reason
    later = rows()
    later[0].deadline_s, later[0].memory_mb = 60.0, 1.0
    attempts, ends, _ = inline(later, tmp_path / "run")
    assert ends.set_index("job_id")["status"].to_dict() == {"bad": "failed", "full": "done"} and len(attempts) == 7
    with closing(Queue(open_engine(tmp_path / "run/queue.sqlite"))) as queue:
        row = queue.jobs()[0]
        assert (row.deadline_s, row.memory_mb) == (60.0, 1.0), "a file of jobs may change so much"


def test_a_queue_is_read_by_its_owner_alone_and_led_by_one_process(tmp_path):
    path = tmp_path / "queue.sqlite"
    with closing(Queue(open_engine(path))) as queue:
        queue.submit(sleeping(2))
        path.chmod(0o644)
    with closing(Queue(open_engine(path))) as queue:
        assert queue.start(1, "cpu", 0.0) == 1 and queue.start(1, "cpu", 0.5) == 0
        assert queue.start(1, "cpu", 0.0) == 1, "its answer was lost, and it is asked again"
        assert {one.stat().st_mode & 0o777 for one in tmp_path.glob("queue.sqlite*")} == {0o600}
    with locks.writer(path), refused("being written by another process"):
        inline(sleeping(2), tmp_path)


def test_queues_of_other_jobs_damaged_ones_and_jobs_that_can_run_nowhere_are_refused(tmp_path):
    inline(sleeping(2), tmp_path / "ran")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/queue.sqlite").write_bytes(b"not a database" * 100)
    for count, folder, predicted, words in (
            (3, "ran", 1.0, "other jobs"), (2, "torn", 1.0, "damaged"), (2, "new", np.inf, "no device can run job 'j0'")):
        with refused(words):
            inline(sleeping(count), tmp_path / folder, predicted=predicted)
    (tmp_path / "ran/queue.sqlite").unlink()
    with closing(Queue(open_engine(tmp_path / "gone/queue.sqlite"))) as queue:
        (tmp_path / "gone/queue.sqlite").unlink()
        with refused("gone/queue.sqlite cannot be used .*the same call again resumes"):
            queue.submit(sleeping(1))


# ------------------------------------------------------------------------------------------- a queue that is open


class Served:
    """A live queue, led in a thread, on workers with processes of their own or without."""

    def __init__(self, url, workers, **options):
        self.engine = open_engine(url)
        self.queue = Queue(self.engine)
        self.queue.recover()
        self.workers = workers
        self.backend = QueueBackend(self.queue, workers, lambda row, device_type: 0.1, time.time, live=True, **options)
        self.thread = threading.Thread(target=self._lead)
        self.thread.start()

    def _lead(self):
        def policy(state, predict):
            return by_priority(state, predict, policy_for("fcfs"), self.backend.priorities())

        with leadership(self.engine) as self.backend.lead, pytest.raises(QueueClosedError):
            Loop(policy, self.backend).run()

    def until(self, condition, within_s=30):
        end = time.monotonic() + within_s
        while not condition():
            assert self.thread.is_alive() and time.monotonic() < end
            time.sleep(0.02)

    def statuses(self):
        return {row.job_id: row.status for row in self.queue.jobs()}

    def close(self):
        self.backend.close()
        self.thread.join()
        self.workers.close()
        self.queue.close()


@pytest.mark.slow
def test_jobs_come_are_cancelled_and_change_their_priority_while_a_queue_is_led(tmp_path):
    path, lines, reserved = tmp_path / "queue.sqlite", tmp_path / "lines", {"cpu[1]"}
    with closing(Served(path, ProcessWorkers(two_slots(), warm_up=""), reserved=lambda: reserved)) as served:
        queue = served.queue
        queue.submit([job("first", "tidy", path=str(lines), seconds=60.0)])
        served.until(lines.exists)
        queue.submit([job("unwanted", "sleep"), job("low", "sleep"), job("high", "sleep"), job("wide", "where", devices=3)])
        assert queue.cancel("unwanted") and not queue.cancel("nobody")
        with queue.writing() as session:
            session.execute(update(QueueJob).where(QueueJob.job_id == "high").values(priority=5))
        served.until(lambda: served.statuses()["wide"] == "failed")
        assert served.statuses()["low"] == "queued", "the second slot is reserved"
        assert queue.cancel("first")
        served.until(lambda: set(served.statuses().values()) <= {"done", "failed", "cancelled"})
        assert not queue.cancel("low")
        rows = {row.job_id: row for row in queue.jobs()}
        assert {name: row.status for name, row in rows.items()} == {
            "first": "cancelled", "unwanted": "cancelled", "low": "done", "high": "done", "wide": "failed"}
        assert lines.read_text().endswith("tidied\n") and rows["high"].start_s < rows["low"].start_s
        assert {row.device for row in rows.values()} == {"cpu[0]", ""}
        assert "no slot can run it; it needs 0 MB and 0 cores on each of 3 devices" in rows["wide"].reason
        reserved.clear()
        queue.submit([job("a", "sleep", seconds=0.5), job("b", "sleep", seconds=0.5)])
        served.until(lambda: served.statuses()["a"] == served.statuses()["b"] == "done")
        assert {row.device for row in queue.jobs(QueueJob.job_id.in_(("a", "b")))} == {"cpu[0]", "cpu[1]"}


@pytest.mark.slow
def test_a_postgresql_has_one_leader_and_one_that_was_away_goes_on(postgres, monkeypatch, capfd):  # noqa: F811
    """Ends that could not be written are, when it is back."""
    monkeypatch.setattr(backend, "_AGAIN_S", 0.1)
    with closing(Served(postgres.url, InlineWorkers(two_slots()))) as served:
        served.queue.submit(sleeping(3, 0.3))
        served.until(lambda: "running" in served.statuses().values() or "done" in served.statuses().values())
        def refuse_others():
            with refused("another process leads the queue of postgresql"), leadership(open_engine(postgres.url)):
                pass

        refuse_others()
        postgres.stop()
        time.sleep(1.0)
        postgres.start()
        served.until(lambda: set(served.statuses().values()) == {"done"})
        refuse_others()
        attempts = served.queue.attempts()
    assert attempts["status"].tolist() == ["done"] * 3
    assert os.linesep.join(capfd.readouterr().err.splitlines()).count("the queue waits for its database") >= 1


class Silent(InlineWorkers):
    """Workers whose tasks do not end."""

    def start(self, *_):
        pass

    def poll(self, timeout_s):
        time.sleep(timeout_s)
        return []


def test_a_job_is_tried_three_times_over_all_calls(tmp_path):
    """One on two slots that hangs, tried before by a leader that was killed in the second attempt."""
    with closing(Queue(open_engine(tmp_path / "queue.sqlite"))) as queue:
        queue.submit([job("both", "hang", devices=2)])
        queue.end(1, queue.start(1, "cpu[0] + cpu[1]", 0.0), 0.1, "retried", "it hung")
        queue.start(1, "cpu[0] + cpu[1]", 0.2)
    attempts, ends, _ = run([job("both", "hang", devices=2)], tmp_path, workers=Silent(two_slots()), limit=TimeLimit(1.0, 0.1))
    assert attempts["status"].tolist()[::2] == ["retried", "lost", "retried", "failed"] and len(attempts) == 8
    assert ends["reason"].tolist() == ["not done after its time limit of 0.1 s (attempt 3 of 3)"]
