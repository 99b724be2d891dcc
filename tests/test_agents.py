"""Agents over a real server on this host: every job ends once, whatever is killed; logs have no holes and no doubles."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd
import psutil
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from lib import locks, paths
from lib.dashboard import advice, predictions, run_records
from lib.dashboard import database as db
from lib.dashboard.agents import agent, devices, fleet
from lib.dashboard.agents.messages import API_VERSION, Device, Mailbox
from lib.dashboard.app import create_app
from lib.dashboard.dispatcher import _left_s as left_s
from lib.dashboard.operations import Operations
from lib.dashboard.run_records import RunRecords
from lib.schedule.runtime import local_site
from lib.schedule.runtime.engine.slots import attempt_of
from lib.schedule.runtime.journal import Journal, Spec, UnwritableError
from lib.schedule.runtime.workers import Slot, card_of
from tests import fake_gpus, killed_queue, nightly, refusal, refused, served
from tests.agents import TOKEN, add_runs, dispatcher_in, free_port, joined, limits, serving, start, until

pytestmark = pytest.mark.slow

LIMITS = limits(6.0)
SLEEP = ("tests.light:sleep", {})


@pytest.fixture
def clock(monkeypatch):
    """Give the clock of agents and of their server; what is added to ``by_s`` has passed."""
    moved = SimpleNamespace(by_s=0.0, sleep=time.sleep, monotonic=lambda: time.monotonic() + moved.by_s)
    for module in (agent, fleet):
        monkeypatch.setattr(module, "time", moved)
    monkeypatch.setattr(agent, "_LONGEST_PAUSE_S", 0.2)
    return moved


@pytest.fixture
def launch():
    """Give what starts agents in processes of their own, which end with the test."""
    processes = []
    yield lambda *words: processes.append(start("agent", *words)) or processes[-1]
    for process in processes:
        process.kill()
        print(process.communicate()[1])


class Here:
    """Run records that are only remembered."""

    def __init__(self):
        self.reports, self.busy = [], False

    def is_full(self):
        return self.busy

    def reported(self, token, content):
        self.reports.append((token, content))
        return self.written

    @property
    def written(self):
        return len(self.reports)

    def lines(self, token="t"):
        return [content["log"] for name, content in self.reports if name == token]


class Site:
    """A server of agents whose answers can be withheld."""

    def __init__(self):
        self.here, self.silent, self.calls = Here(), False, 0
        self.agents, self.app = fleet.Fleet(None, LIMITS, self.here), FastAPI()
        self.agents._save = lambda registration: registration.name
        self.app.include_router(self.agents.router(), prefix="/api/v1", dependencies=[Depends(self._answer)])

    def _answer(self, authorization: str = Header("")):
        self.calls += 1
        if self.silent or authorization != f"Bearer {TOKEN}":
            raise HTTPException(500 if self.silent else 401, "no answer")

    def later(self, calls=3):
        """Return once agents have called so many times more: what the first of these calls answered has arrived."""
        last = self.calls + calls
        until(lambda: self.calls >= last)

    def slots(self, count=1):
        """Return the slots of the agents that are connected, once there are so many."""
        until(lambda: self.agents.expire() or len(self.agents.connected()) == count)
        return [slot.slot for slot in self.agents.connected().values()]

    @contextmanager
    def worker(self, slot, call, arguments):
        """Give a worker on a slot that runs a task, as attempt ``t``."""
        worker = self.agents.spawn(slot, LIMITS)
        collect(worker, "ready")
        worker.send("run", "t", call, arguments)
        yield worker
        worker.shut_down()


def collect(worker, last):
    """Return a worker's messages up to one of a name; heartbeats left out."""
    messages = []

    def has_come():
        messages.extend(message for message in worker.messages() if message[0] != "heartbeat")
        return any(message[0] == last for message in messages)

    until(has_come)
    return messages


@pytest.fixture
def site(clock):
    one = Site()
    with serving(one.app) as one.url:
        yield one


@pytest.fixture
def slot(site):
    """Give the slot of an agent that has joined the site."""
    with joined(site.url):
        yield site.slots()[0]


@pytest.mark.parametrize("device", [nightly("cpu"),
                                    pytest.param("cuda:0", marks=pytest.mark.cuda)])
def test_an_agent_runs_a_notebook_on_the_device_of_its_slot(home, device):
    site, token = Site(), home / "token"
    token.write_text(TOKEN)
    out = paths.DATA / "out"
    arguments = {"path": "notebooks/01_machine.ipynb", "parameters": {"budget_s": 5}, "out": str(out)}
    words = [sys.executable, "-m", "lib", "agent", "--token-file", str(token), "--slots", "1", "--server"]
    with serving(site.app) as url, subprocess.Popen([*words, url], cwd=paths.ROOT) as process:
        try:
            slots = until(lambda: [one.slot for one in site.agents.connected().values() if device in one.slot.name])
            with site.worker(slots[0], "lib.schedule.runtime.tasks:notebook", arguments) as worker:
                until((paths.CEILINGS / f"ceilings_{device.replace(':', '-')}.csv").is_file, 90)
                collect(worker, "done")
        finally:
            process.kill()


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_lines_are_numbered_whole_and_in_order_and_a_stop_is_heeded(site, slot):
    with site.worker(slot, "tests.light:chatter", {"count": 3000}) as worker:
        assert collect(worker, "done") == [("done", "t", {"value": 3000})]
        assert site.here.lines() == [[number + 1, str(number)] for number in range(2999)] + [[3000, "ééé"]]
        worker.send("run", "large", "tests.light:weigh", {"size": 300_000})
        failure, = collect(worker, "failed")  # its report is left out
        assert "what it returns cannot be sent: 300,0" in failure[2]
        worker.send("run", "long", "tests.light:sleep", {"seconds": 60})
        worker.send("stop", "long")
        assert collect(worker, "stopped")[-1] == ("stopped", "long")
        site.here.busy = True  # what it says now waits, and nothing is lost
        worker.send("run", "more", "tests.light:chatter", {"count": 100})
        time.sleep(0.5)
        assert not site.here.lines("more")
        site.here.busy = False
        collect(worker, "done")
        assert [number for number, _ in site.here.lines("more")] == list(range(1, 101))


def test_an_agent_that_hears_nothing_ends_its_workers_before_anybody_else_may_run_their_jobs(site, slot, clock, tmp_path):
    arguments = {"count": 10**6, "path": str(tmp_path / "pid"), "pause_s": 0.01}
    with site.worker(slot, "tests.light:chatter", arguments) as worker:
        until(lambda: site.here.reports)
        pid, site.silent = int((tmp_path / "pid").read_text()), True
        clock.by_s += 0.3 * LIMITS.silent_s
        site.later(2)
        assert is_running(pid)
        clock.by_s += 0.2 * LIMITS.silent_s
        until(lambda: not is_running(pid))
        assert site.agents.connected()
        ending = threading.Thread(target=worker.shut_down)
        ending.start()
        ending.join(0.2)
        assert ending.is_alive(), "nobody can be sure that it has ended"
        clock.by_s += 0.5 * LIMITS.silent_s
        ending.join()
    site.slots(0)
    site.silent = False
    slot, = site.slots()  # it joins again by itself
    with site.worker(slot, *SLEEP) as worker:
        collect(worker, "done")


def test_an_agent_ends_when_told_though_its_server_is_silent_and_with_the_process_that_started_it(site, home, launch):
    (home / "token").write_text(TOKEN)
    words = [sys.executable, "-m", "lib", "agent", "--server", site.url, "--token-file", str(home / "token"), "--slots", "1"]
    starter = (f"import os, subprocess, time; agent = subprocess.Popen({words!r} + ['--parent', str(os.getpid())]); "
               "print(agent.pid, flush=True); time.sleep(60)")
    told, told_in_silence = launch(site.url, "told"), launch(site.url, "told-in-silence")
    site.slots(2)
    until(lambda: all(session.load for session in site.agents._open()))
    told.send_signal(signal.SIGTERM)
    told.wait(10)
    assert len(site.agents.connected()) == 1  # it said so
    site.silent = True
    told_in_silence.send_signal(signal.SIGTERM)
    assert told_in_silence.wait(10) != 0
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True, cwd=paths.ROOT) as parent:
        child, calls = int(parent.stdout.readline()), site.calls
        until(lambda: site.calls > calls, 120)  # it has imported what it needs
        parent.kill()
    until(lambda: not is_running(child))


def test_what_no_server_wrote_down_comes_to_the_next_one_and_no_run_ends_twice(tmp_path, clock):
    """The first server has lines, but not its database, and is gone before that is back."""
    database, first = dispatcher_in(tmp_path)
    first._records._written = lambda batch: False
    (run_id,), port = add_runs(database, [trailing(tmp_path)]), free_port()
    with joined(f"http://127.0.0.1:{port}"):
        with serving(create_app(Operations(database, first), TOKEN), port):
            until(lambda: first._records._noted >= 5)
        noted = first._records._noted - 2  # it was started and stopped
        assert not lines_of(database, run_id)
        with serving(create_app(Operations(database, dispatcher_in(tmp_path)[1]), TOKEN), port):
            wait_for(database, [run_id])
            until(lambda: len([n for attempt, n, _ in lines_of(database, run_id) if attempt == 1]) >= noted)
    assert killed_queue.wrong_in(database, [run_id], [tmp_path / "trail"]) == ([], 2)


def trailing(folder):
    return "tests.light:trail", {"path": str(folder / "trail"), "seconds": 0.5}


def test_a_wrong_token_version_or_server_is_one_line_and_status_2(site, home, capsys, monkeypatch):
    token = home / "token"
    token.write_text("another")

    def refusal_of(url, *words):
        return refusal("agent", "--server", url, *words)

    words = ("--token-file", token)
    assert "no token for the server" in refusal_of(site.url)
    assert "refuses this agent's token" in refusal_of(site.url, *words)
    token.write_text(f"{TOKEN}\n")
    with monkeypatch.context() as patch:
        patch.setattr(agent, "paths", SimpleNamespace(DATA=home / "other"))
        advice = f"the same path, and start the agent with LIB_OUTPUT={home}"
        assert refusal_of(site.url, *words).endswith(f"{advice}\n") and not site.agents.connected()
    agent._check_data(str(paths.DATA))
    assert f"{paths.DATA} here is not the server's: mount that one there" in capsys.readouterr().err
    monkeypatch.setattr(agent, "API_VERSION", API_VERSION - 1)
    assert f"speaks version {API_VERSION - 1} of the agents' protocol" in refusal_of(site.url, *words)
    other = Request(f"{site.url}/api/v1/agents/register", b'{"api_version": 0, "field": "of another version"}',
                    {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"})
    with pytest.raises(HTTPError, match="409"):
        urlopen(other)
    assert "is no dashboard" in refusal_of(f"{site.url}/elsewhere", *words)
    assert "is no address" in refusal_of("localhost:8000", *words)
    monkeypatch.setenv("DASHBOARD_TOKEN", TOKEN)
    assert agent.read_token(None) == TOKEN and "DASHBOARD_TOKEN" not in os.environ, "no job gets it"


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), st.integers(0, 3)), max_size=40))
def test_messages_arrive_once_and_in_order_whatever_calls_are_lost_or_come_twice(calls):
    """And are kept until the other side has dealt with them, which may be later than their arrival."""
    sender, receiver, arrived, posted, done, last = Mailbox(), Mailbox(), [], 0, 0, []
    for count, is_lost, answer_is_lost, late in [*calls, (0, False, False, 0)]:
        for _ in range(count):
            sender.post(posted)
            posted += 1
        batch = sender.outgoing()
        for messages in ([] if is_lost else [batch, last]):
            arrived += receiver.take(tuple(messages))
        last = batch
        if not (is_lost or answer_is_lost):
            done = max(done, receiver.received - late)
            sender.acknowledge(receiver.received, done)
        assert [number for (number,) in sender.unfinished()] == list(range(done, posted))
    assert arrived == [(number,) for number in range(posted)] and not sender


def test_an_agent_runs_the_tasks_of_its_list_alone_in_its_folders(home):
    data = paths.DATA
    data.mkdir()
    (data / "out").symlink_to("/")
    finetune, notebook = (agent.ALLOWED[name] for name in ("lib.finetune.task:finetune", "lib.schedule.runtime.tasks:notebook"))
    finetune({"config": {}, "folder": str(data / "training/run")})
    inside = {"path": "notebooks/02_profile.ipynb", "parameters": {}, "out": str(data / "runs/x.ipynb")}
    notebook(inside)
    outside = [(finetune, {"folder": folder}) for folder in ("/etc", None, str(data / "../x"), str(data / "out"))]
    outside += [(notebook, {**inside, **values}) for values in (
        {"path": "/etc/passwd"}, {"path": "notebooks/../lib/x.ipynb"}, {"out": "/tmp/x.ipynb"})]
    for check, arguments in outside:
        with refused("outside of which an agent runs nothing"):
            check(arguments)


# --- cards
@pytest.fixture
def cards(monkeypatch, tmp_path):
    """Give what puts two cards into this machine, perhaps the first lost, and shows this process those of a mask."""
    monkeypatch.setenv("LIB_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv(locks.MASK, raising=False)

    def put(lost, mask):
        box = fake_gpus.Box(tmp_path)
        box.change(0, lost=lost)
        box.change(1, share=0.5)
        monkeypatch.setenv(fake_gpus.FILE, str(box.path))
        monkeypatch.setitem(sys.modules, "pynvml", fake_gpus.Nvml())
        if mask:
            monkeypatch.setenv(locks.MASK, mask)

    return put


@pytest.mark.parametrize("lost, mask, listed", [
    (False, "1,0", [("cuda:0", "GPU-1000", 1), ("cuda:1", "GPU-0000", 0)]), (True, "", [("cuda:1", "GPU-1000", 1)]),
    (True, "GPU-1,GPU-0", [("cuda:0", "GPU-1000", 1)])])
def test_a_slot_has_the_card_of_its_number_and_a_card_that_is_lost_takes_no_other_with_it(
        cards, monkeypatch, lost, mask, listed):
    cards(lost, mask)
    cuda = [Slot(f"cuda:{number}") for number in range(len((mask or "0,1").split(",")))]
    monkeypatch.setattr(devices, "slots_here", lambda count: (*local_site.slots_here(count), *cuda))
    pairs = devices.devices_here(1)[1:]
    assert [(slot.name, slot.card, device.gpu.index) for slot, device in pairs] == listed
    load = devices.load([device.gpu for _, device in pairs])
    assert [load[f"gpu_{number}_utilisation_percent"] for number in range(len(pairs))] == [50 * index for *_, index in listed]
    assert load["memory_mb"] > load["memory_used_mb"] > 0


@pytest.mark.parametrize("lost, mask, device, card, lock", [
    (False, "0, 2", "cuda:1", "2", "cuda-2"), (False, "2", "cpu", "", "cpu"),
    (False, "MIG-GPU-aa/1/0", "cuda:0", "MIG-GPU-aa/1/0", "cuda-MIG-GPU-aa-1-0"),
    (False, "1", "cuda:0", "1", "cuda-GPU-1000"), (True, "GPU-1", "cuda:0", "GPU-1", "cuda-GPU-1000")])
def test_a_card_has_one_lock_whatever_a_process_calls_it(cards, tmp_path, lost, mask, device, card, lock):
    """``cuda:0`` of a process that is shown its card alone is another than that of one that is shown all."""
    cards(lost, mask)
    assert card_of(Slot(device), os.environ) == card
    with locks.device(device):
        assert [path.name for path in (tmp_path / "locks").iterdir()] == [f"measuring-{lock}.lock"]


# --- the dashboard's queue
@pytest.fixture
def board(tmp_path, clock):
    """Give a dashboard of light runs."""
    database, dispatcher = dispatcher_in(tmp_path, LIMITS.silent_s)
    with serving(create_app(Operations(database, dispatcher), TOKEN)) as url:
        yield SimpleNamespace(database=database, dispatcher=dispatcher, url=url)


def add(board, calls, **values):
    ids = add_runs(board.database, calls, **values)
    for run_id in ids:
        board.dispatcher.submit(run_id)
    return ids


def rows(database, statement):
    with database.reading() as session:
        return session.execute(statement).all()


def wait_for(database, ids, states=db.ENDS):
    """Return runs once each is in one of the states."""
    def runs():
        found = {run.id: run for (run,) in rows(database, select(db.Run))}
        return all(found[run_id].state in states for run_id in ids) and [found[run_id] for run_id in ids]

    return until(runs, 60)


def lines_of(database, run_id):
    return [(row.attempt, row.n, row.line) for row in database.rows_after(db.RunLog, run_id, 0, 10_000)]


def test_runs_of_the_database_are_placed_streamed_cancelled_and_ended(board):
    """On the one agent to which they are bound; runs learn from earlier ones."""
    chatter, database = ("tests.light:chatter", {"count": 50}), board.database

    def agents():
        loads = [agent for (agent,) in rows(database, select(db.Agent).order_by(db.Agent.name)) if agent.load]
        return len(loads) == 2 and loads

    with joined(board.url, count=2), joined(board.url, "other"):
        lab, _ = until(agents)
        ids = add(board, [chatter, ("tests.light:starve", {}), ("tests.light:refuse", {}),
                          ("tests.light:measured", {"steps": 3}), ("tests.light:sleep", {"seconds": 60}),
                          ("tests.light:hang", {})], only_agent_id=lab.id)
        for run_id in ids[4:]:  # the last one heeds nothing, and is killed
            wait_for(database, [run_id], (db.RUNNING,))
            assert board.dispatcher.cancel(run_id)
        runs = wait_for(database, ids)
        again, = wait_for(database, add(board, [chatter]))
    assert [run.state for run in runs] == [db.FINISHED, db.FAILED, db.FAILED, db.FINISHED, db.CANCELLED, db.CANCELLED]
    assert {run.agent_id for run in runs} == {lab.id} and runs[0].device.startswith("cpu[")
    assert "out of memory" in runs[1].reason and "agents run no task" in runs[2].reason
    assert lines_of(database, ids[0]) == [*((1, number + 1, str(number)) for number in range(49)), (1, 50, "ééé")]
    assert runs[3].step == 2 and runs[3].epoch == 0 and runs[3].epochs == 1 and runs[3].best_value == 0.5
    assert rows(database, select(db.RunMetric.value).order_by(db.RunMetric.id)) == [(1.0,), (0.5,), (None,)]
    assert lab.connected and lab.load["memory_mb"] > 0 and [slot["name"] for slot in lab.slots] == ["cpu[0]", "cpu[1]"]
    assert runs[0].predicted_s == 600 and "predicted 600 s on lab/cpu (a guess" in runs[0].placement
    assert again.predicted_s < 60 and "by 1 earlier run of this configuration" in again.placement
    assert not board.dispatcher.cancel("nobody")


def test_a_gang_is_placed_on_slots_of_one_agent_and_survives_a_killed_member(board, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "DATA", tmp_path)  # outside of which an agent lets no gang meet
    with joined(board.url, count=2):
        dies = {"path": str(tmp_path / "gang"), "fault": "kill"}
        gang, = wait_for(board.database, add(board, [("tests.light:gang", dies, 2)]))
        monkeypatch.setattr(paths, "DATA", tmp_path / "elsewhere")
        refused_run, = wait_for(board.database, add(board, [("tests.light:gang", {"path": str(tmp_path / "other")}, 2)]))
    assert gang.state == db.FINISHED and gang.attempt == 2 and set(gang.device.split(" + ")) == {"cpu[0]", "cpu[1]"}
    assert refused_run.state == db.FAILED and "is no absolute path in" in refused_run.reason


def test_a_killed_agents_place_and_run_are_taken_when_its_workers_must_be_gone(board, launch, clock, capsys, tmp_path):
    first = launch(board.url, "lab")
    (run_id,) = add(board, [trailing(tmp_path)])
    trail = tmp_path / "trail"
    _, _, pid = json.loads(until(lambda: trail.exists() and trail.read_text()))
    before = board.dispatcher._fleet.connected()
    first.kill()
    with joined(board.url):
        until(lambda: not is_running(pid), LIMITS.silent_s)
        until(lambda: "another one takes its place when that was silent for 6 s" in capsys.readouterr().err)
        assert board.dispatcher._fleet.connected() == before
        clock.by_s += LIMITS.silent_s
        assert wait_for(board.database, [run_id])[0].attempt == 2
    assert killed_queue.wrong_in(board.database, [run_id], [trail]) == ([], 2)


@pytest.mark.nightly
def test_kills_of_agents_and_server_lose_no_run_and_end_none_twice(tmp_path):
    """A dashboard and two agents, each killed at random moments and started again, until all runs have ended."""
    summary = killed_queue.run(tmp_path, runs=10, agents=2, kills=3, silent_s=1.5, every_s=(0.3, 0.8))
    assert summary["wrong"] == [] and summary["ended"] == 10 and len(summary["killed"]) == 2


def test_a_run_waits_until_a_disk_has_space_again(tmp_path, monkeypatch, capsys):
    database, dispatcher = dispatcher_in(tmp_path)
    first, second = add_runs(database, [SLEEP] * 2)
    monkeypatch.setattr("lib.dashboard.dispatcher._SOON_S", 0.01)
    tries, full = [], UnwritableError("run.sqlite: cannot be written (database or disk is full)")
    outcomes = iter([full, full, full, True, db.ConflictError("the run is cancelled")])

    def submit(journal, job):
        tries.append(job.spec.job_id)
        if isinstance(outcome := next(outcomes), Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(Journal, "submit", submit)
    with closing(dispatcher):
        dispatcher.start()
        until(lambda: len(tries) >= 5)
        assert tries == [first] * 4 + [second]
        assert capsys.readouterr().err.count(f"run {first} is not in the queue yet") == 1
        assert all(thread.is_alive() for thread in dispatcher._threads)


def test_a_database_that_is_away_for_a_while_gets_everything_later(tmp_path, monkeypatch):
    database, _ = dispatcher_in(tmp_path)
    run_id, = add_runs(database, [SLEEP])
    writing, gone, tries = database.writing, [True], []

    def away():
        tries.append(gone[0])
        if gone[0]:
            raise OperationalError("BEGIN", {}, Exception("database is locked"))
        return writing()

    monkeypatch.setattr(database, "writing", away)
    unwanted = Mock(side_effect=UnwritableError("run.sqlite: cannot be written (database or disk is full)"))
    records = RunRecords(database, unwanted)
    records.start()
    records.state("nobody", db.RUNNING)
    until(lambda: tries)  # what comes now is another batch
    records.state(run_id, db.RUNNING, attempt=1, device="lab/cpu")
    for number in range(5):
        records.reported(f"{run_id}#1", {"log": [number + 1, "x"], "metrics": {"step": number}})
    records.reported(f"{run_id}#0", {"metrics": {"step": 9}})  # late, of an attempt that is over
    records.state(run_id, db.FINISHED, best_value=0.9)
    gone[0] = False
    until(lambda: not all(tries))
    records.close()
    run, = wait_for(database, [run_id])
    assert run.state == db.FINISHED and run.best_value == 0.9 and run.device == "lab/cpu" and run.step == 4
    assert len(lines_of(database, run_id)) == 5 and records.written == 14
    unwanted.assert_called_once_with("nobody")


@pytest.mark.parametrize("mode, best", [("max", 0.75), ("min", 0.25)])
def test_the_best_value_so_far_is_known_while_a_run_goes_on(tmp_path, mode, best):
    database, _ = dispatcher_in(tmp_path)
    run_id, = add_runs(database, [SLEEP], monitor_metric="val_x", monitor_mode=mode)
    records = RunRecords(database, Mock())
    records.start()
    records.state(run_id, db.RUNNING, attempt=1)
    for step, value in enumerate((0.5, 0.75, None, 0.25, 0.5)):
        records.reported(f"{run_id}#1", {"metrics": {"step": step, "val_x": value, "loss": 9.0}})
    records.close()
    with database.reading() as session:
        assert db.get(session, db.Run, run_id).best_value == best


def test_the_end_of_a_run_follows_its_progress_in_this_attempt_and_is_never_past(tmp_path, monkeypatch):
    database, dispatcher = dispatcher_in(tmp_path)
    now_s = iter([0.0, 10.0, 30.0, 35.0, 35.0, 40.0])  # two reports, two plans of two runs, a report of the next attempt
    monkeypatch.setattr(run_records, "time", Mock(monotonic=lambda: next(now_s)))
    plan = pd.DataFrame({"job_id": ["silent", "halfway", "next"], "device": "a/cpu", "start_s": [0.0, 0.0, np.nan],
                         "status": ["running", "running", "planned"], "reason": "large"})
    dispatcher._service = Mock(plan=lambda spread, left_s: plan.assign(end_s=30.4 + plan["job_id"].map(left_s)),
                               now=lambda: 30.4)
    dispatcher._predictions = Mock(source=lambda job_id, device_type: f" ({job_id} on {device_type})")
    for share in (0.25, 0.5):
        dispatcher._records.reported("halfway#1", {"metrics": {"step": 1, "progress": share}})
    rows = dispatcher.plan()
    assert rows["end_s"].fillna(-1).tolist() == [-1, 0.0, -1]
    assert rows["reason"].tolist() == ["large", "large", "large (next on a/cpu)"]
    dispatcher._records.state("halfway", db.QUEUED)
    dispatcher._records.reported("halfway#2", {"metrics": {"progress": 0.5}})
    assert dispatcher.plan()["end_s"].isna().sum() == 3  # one report is no rate


def test_a_token_that_is_no_attempt_of_a_job_is_refused():
    assert attempt_of("a#b#12") == ("a#b", 12)
    for token in ("a", "a#", "a#x", "a#-1", "a#1234567890"):
        with refused("is no attempt of a job"):
            attempt_of(token)


def test_fine_tunes_that_took_longer_than_advised_correct_the_others_there(monkeypatch):
    monkeypatch.setattr(predictions.worker, "call", lambda *_, **__: {"chip": (10.0, "as advised")})
    known, device = predictions.Predictions(), Device(name="cpu[0]", threads=1, cores=1, memory_mb=1000, model="chip")
    known.place("a/cpu", SimpleNamespace(agent_id="a", device=device))
    for run_id in ("first", "second"):
        config = SimpleNamespace(kind="finetune", config_json={}, config_hash=run_id)
        known.add(SimpleNamespace(id=run_id, config=config, only_agent_id=None, gpu_indices=[]))
        known.advise(run_id)
    for seconds in (20, 25):  # the first: with the assumed time to start
        assert known.placement("second", "a/cpu")["predicted_s"] == seconds
        known.measure("first", "a/cpu", 25.0)
    spreads = []
    for seconds in (25.0, 25.0, 50.0):  # two runs and three more
        spreads.append(known.spread(Spec("first", "", {}), "a/cpu"))
        known.measure("first", "a/cpu", seconds)
    assert spreads == [0.15, 0.15, 0.05] and known.spread(Spec("first", "", {}), "a/cpu") == pytest.approx(0.31, abs=0.01)


def test_a_deadline_counts_from_when_the_run_was_queued():
    job = SimpleNamespace(deadline_s=60.0, enqueued_at=db.now() - timedelta(seconds=20))
    assert left_s(job) == pytest.approx(40, abs=5)
    assert math.isnan(left_s(SimpleNamespace(deadline_s=None)))
    assert 0 < left_s(SimpleNamespace(deadline_s=1.0, enqueued_at=job.enqueued_at)) < 0.01


def test_a_fine_tune_is_predicted_by_its_steps_and_evaluations(home):
    config = {"root": "synthetic:breastmnist", "model_flavour": "simple_cnn", "loss_name": "cross_entropy", "epochs": 3,
              "load_pretrained": False, "batch_size": 16, "autocast_dtype": "fp32", "max_datapoints_per_class": 24}
    (seconds, words), = advice.advise(config, [("cpu", "any"), ("cuda", "none")]).values()
    numbers = re.match(r"(\d+) steps of (.+) ms, (\d+) evaluated batches of (.+) ms, ", words).groups()
    steps, step_ms, batches, batch_ms = map(float, numbers)
    assert steps == 3 * 3 and batches == 3 * 3 + 3, "48 samples of each split"
    assert seconds == pytest.approx((steps * step_ms + batches * batch_ms) / 1e3, rel=0.01)
    assert advice.advise(config | {"autocast_dtype": "bf16"}, [("cpu", "any")]) == {}, "no CPU's training was measured in bf16"


def test_journal_and_database_are_brought_together_at_each_start(tmp_path):
    """Ends that the database missed, runs that the journal missed or lost, and one that was cancelled in the database alone."""
    database, dispatcher = dispatcher_in(tmp_path)
    calls = [SLEEP, ("tests.light:fail", {}), *[SLEEP] * 3]
    ended, failed, lost, new, cancelled = ids = add_runs(database, calls)
    with served.opened(tmp_path / "queue", slots=("lab/cpu[0]",), limits=LIMITS) as service:
        for number in (0, 1):
            service.submit(Spec(ids[number], *calls[number]))
        service.run(lambda: len(service.journal.results()) == 2)
        for run_id in (lost, cancelled):
            service.submit(Spec(run_id, *SLEEP))
    with database.writing() as session:
        db.transition(session, lost, db.RUNNING)
        db.transition(session, cancelled, db.CANCELLED)
    with closing(dispatcher):
        dispatcher.start()
        runs = wait_for(database, [ended, failed])
        assert [(run.state, run.attempt) for run in runs] == [(db.FINISHED, 1), (db.FAILED, 3)]
        assert "this job is wrong" in runs[1].reason
        assert [dispatcher.has_ended(run_id) for run_id in (ended, lost, "nobody")] == [True, False, False]
        assert wait_for(database, [lost, new], (db.QUEUED,))[0].reason == "the server was restarted"
        until(lambda: dispatcher.reorder(new, 1))
        assert dispatcher.reorder(lost, 1) and not dispatcher.reorder(ended, 1)
