"""Agents over a real server on this host: every job ends once, whatever is killed; logs have no holes and no doubles."""

import os
import re
import signal
import subprocess
import sys
import time
import types
from contextlib import contextmanager
from multiprocessing import Pipe

import numpy as np
import psutil
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from lib import paths
from lib.cli import main
from lib.dashboard import advice, predictions
from lib.dashboard import database as db
from lib.dashboard.agents import agent, client, devices, workers
from lib.dashboard.agents.fleet import _set as set_columns
from lib.dashboard.agents.messages import API_VERSION, Device, Mailbox
from lib.dashboard.agents.workers import Agents
from lib.dashboard.app import Settings, create_app
from lib.dashboard.dispatcher import Dispatcher
from lib.dashboard.engine import Database
from lib.dashboard.run_records import RunRecords
from lib.errors import InputError
from lib.schedule.policies import registry
from lib.schedule.runtime import local_site
from lib.schedule.runtime.engine.slots import attempt_of
from lib.schedule.runtime.journal import Journal, Spec, UnwritableError
from lib.schedule.runtime.service import Service
from lib.schedule.runtime.workers import Slot
from tests import killed, killed_queue
from tests.agents import TOKEN, add_runs, dispatcher_in, light_slots, limits, serving, start

LIMITS = limits(2.0)


class Here:
    """What observes agents: it takes each by its name."""

    busy, wrote = False, True

    def __init__(self):
        self.reports = []

    def joined(self, agent):
        return agent.name

    def changed(self):
        pass

    def is_busy(self):
        return self.busy

    def reported(self, token, content):
        self.reports.append((token, content))
        return len(self.reports)

    def written(self):
        return len(self.reports) if self.wrote else 0

    def wait(self, count):
        """Return how many reports there are, once they are more."""
        end = time.monotonic() + 30
        while len(self.reports) <= count:
            assert time.monotonic() < end
            time.sleep(0.01)
        return len(self.reports)

    def lines(self, token="t"):
        return [content["log"] for name, content in self.reports if name == token]


def check_token(authorization: str = Header("")):
    if authorization != f"Bearer {TOKEN}":
        raise HTTPException(401, "a token is needed")


class Site:
    """A server of agents whose answers can be withheld, and agents that are processes."""

    def __init__(self):
        self.here, self.silent, self.processes, self.calls = Here(), False, [], 0
        self.agents, self.app = Agents(self.here, LIMITS), FastAPI()
        self.app.include_router(workers.router(self.agents), prefix="/api/v1",
                                dependencies=[Depends(check_token), Depends(self._answer)])

    def _answer(self):
        self.calls += 1
        if self.silent:
            raise HTTPException(500, "no answer")

    def later(self, calls=3):
        """Return once agents have called so many times more: what the first of these calls answered has arrived."""
        end, last = time.monotonic() + 30, self.calls + calls
        while self.calls < last:
            assert time.monotonic() < end
            time.sleep(0.01)

    def start(self, *words):
        self.processes.append(start("agent", self.url, *words))
        return self.processes[-1]

    def slots(self, count=1):
        """Return the slots of the agents that are connected, once there are so many."""
        end = time.monotonic() + 30
        while len(slots := self.agents.slots()) != count:
            assert time.monotonic() < end
            self.agents.expire()
            time.sleep(0.02)
        return [slot.slot for slot in slots.values()]

    @contextmanager
    def worker(self, slot, call, arguments):
        """Give a worker on a slot that runs a task, as attempt ``t``."""
        worker = self.agents.spawn(slot, LIMITS)
        collect(worker, "ready")
        worker.send("run", "t", call, arguments)
        yield worker
        worker.shut_down()


def collect(worker, last, within_s=30):
    """Return a worker's messages up to one of a name; heartbeats left out."""
    messages, end = [], time.monotonic() + within_s
    while not any(message[0] == last for message in messages):
        assert time.monotonic() < end, messages
        worker.pipe.poll(0.1)
        messages += [message for message in worker.messages() if message[0] != "heartbeat"]
    return messages


@pytest.fixture
def site():
    one = Site()
    with serving(one.app) as one.url:
        yield one
    for process in one.processes:
        process.kill()
        print(process.communicate()[1])


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_lines_are_numbered_whole_and_in_order_and_a_stop_is_heeded(site):
    process = site.start("lab", 1)
    slot, = site.slots()
    with site.worker(slot, "tests.light:chatter", {"count": 3000}) as worker:
        assert collect(worker, "done") == [("done", "t", {"value": 3000})]
        assert site.here.lines() == [[number + 1, str(number)] for number in range(2999)] + [[3000, "ééé"]]
        worker.send("run", "large", "tests.light:weigh", {"size": 300_000})
        failure, = collect(worker, "failed")  # its report is left out
        assert "what it returns cannot be sent: 300,0" in failure[2]
        begin = time.monotonic()
        worker.send("run", "long", "tests.light:sleep", {"seconds": 60})
        worker.send("stop", "long")
        assert collect(worker, "stopped")[-1] == ("stopped", "long") and time.monotonic() - begin < 30
        site.here.busy = True  # what it says now waits, and nothing is lost
        worker.send("run", "more", "tests.light:chatter", {"count": 100})
        time.sleep(0.5)
        assert not site.here.lines("more")
        site.here.busy = False
        collect(worker, "done")
        assert [number for number, _ in site.here.lines("more")] == list(range(1, 101))
    process.send_signal(signal.SIGTERM)
    process.wait(10)
    site.slots(0)


@pytest.mark.slow
def test_an_agent_that_hears_nothing_ends_its_workers_before_anybody_else_may_run_their_jobs(site, tmp_path):
    site.start("lab", 1)
    slot, = site.slots()
    with site.worker(slot, "tests.light:chatter", {"count": 10**6, "path": str(tmp_path / "pid"), "pause_s": 0.01}):
        site.here.wait(0)
        pid, site.silent, begin = int((tmp_path / "pid").read_text()), True, time.monotonic()
        assert is_running(pid)
        while is_running(pid):
            assert time.monotonic() - begin < LIMITS.silent_s
            time.sleep(0.02)
        assert time.monotonic() - begin > LIMITS.silent_s / 4  # the last call may have waited
        assert site.agents.slots()
    assert time.monotonic() - begin >= LIMITS.silent_s / 2  # so long it took to be sure that it has ended
    site.slots(0)
    site.silent = False
    slot, = site.slots()  # it joins again by itself
    with site.worker(slot, "tests.light:sleep", {}) as worker:
        collect(worker, "done")


@pytest.mark.slow
def test_a_killed_agents_place_is_taken_when_its_workers_must_be_gone(site, tmp_path):
    first = site.start("lab", 1)
    slot, = site.slots()
    with site.worker(slot, "tests.light:chatter", {"count": 10**6, "path": str(tmp_path / "pid"), "pause_s": 0.01}):
        site.here.wait(0)
        before = site.agents.slots()
        first.kill()
        begin = time.monotonic()
        site.start("lab", 1)
        while site.agents.slots() in (before, {}):
            assert time.monotonic() - begin < 4 * LIMITS.silent_s
            time.sleep(0.02)
        assert time.monotonic() - begin > LIMITS.silent_s / 2
        lines = [number for number, _ in site.here.lines()]
        assert lines == list(range(1, len(lines) + 1))
        assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0, 3])  # before it looked, and while it waits for its server
def test_an_agent_ends_with_the_process_that_started_it_and_when_told_though_its_server_is_silent(site, home, after_s):
    site.silent = True
    (home / "token").write_text(TOKEN)
    words = [sys.executable, "-m", "lib", "agent", "--server", site.url, "--token-file", str(home / "token"), "--slots", "1"]
    starter = (f"import os, subprocess, time; agent = subprocess.Popen({words!r} + ['--parent', str(os.getpid())]); "
               "print(agent.pid, flush=True); time.sleep(60)")
    parent = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True, cwd=paths.ROOT)
    child = int(parent.stdout.readline())
    time.sleep(after_s)
    parent.kill()
    site.processes.append(parent)
    end = time.monotonic() + 20
    while is_running(child):
        assert time.monotonic() < end
        time.sleep(0.05)
    site.silent = False
    process = site.start("lab", 1)
    site.slots()
    site.silent = True
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) != 0


@pytest.mark.slow
def test_lines_that_no_server_wrote_down_come_to_the_next_one(tmp_path):
    """The first server has them, but not its database, and is gone before that is back."""
    database, first = dispatcher_in(tmp_path)
    first._records._written = lambda batch: False
    ids, port = add_runs(database, [("tests.light:chatter", {"count": 1000, "pause_s": 0.01})]), killed_queue.free_port()
    with serving(create_app(Settings(database, TOKEN), first), port) as url:
        process = start("agent", url, "lab", 1)
        end = time.monotonic() + 30
        while first._records._noted < 50:
            assert time.monotonic() < end
            time.sleep(0.01)
    noted, board = first._records._noted - 3, types.SimpleNamespace(database=database)  # it was started and stopped
    assert not lines_of(board, ids[0])
    with serving(create_app(Settings(database, TOKEN), dispatcher_in(tmp_path)[1]), port):
        end = time.monotonic() + 30
        while len(lines := [n for attempt, n, _ in lines_of(board, ids[0]) if attempt == 1]) < noted:
            assert time.monotonic() < end, (len(lines), noted)
            time.sleep(0.05)
        assert lines == list(range(1, len(lines) + 1))
    process.kill()
    print(process.communicate()[1])


@pytest.mark.slow
def test_reports_are_kept_until_they_are_written_down_and_given_to_the_next_session(site):
    site.here.wrote = False  # from the first line on: what was written down once is not kept
    site.start("lab", 1)
    slot, = site.slots()
    with site.worker(slot, "tests.light:chatter", {"count": 100}) as worker:
        collect(worker, "done")
        _begin_anew(site)
        end = time.monotonic() + 30
        while len(site.here.lines()) < 200 and time.monotonic() < end:
            time.sleep(0.01)
        site.here.wrote = True
        site.later()
        given = [number for number, _ in site.here.lines()]
        assert len(given) >= 200 and given == len(given) // 100 * [*range(1, 101)], "whole, once a session"
        _begin_anew(site)
        site.later()
        assert [number for number, _ in site.here.lines()] == given, "what is written down is not given again"


def _begin_anew(site):
    """Forget all sessions, as a server that was started again, and wait for the agent's next one."""
    site.later()
    site.agents._sessions.clear()
    site.slots()


def refusal(url, capsys, *words):
    """Return what the verb ``agent`` prints when it ends with status 2."""
    assert main.main(["agent", "--server", url, *words]) == 2
    line, = capsys.readouterr().err.splitlines()
    return line


def test_a_wrong_token_version_or_server_is_one_line_and_status_2(site, home, capsys, monkeypatch):
    token = home / "token"
    token.write_text("another")
    words = ("--token-file", str(token))
    assert "no token for the server" in refusal(site.url, capsys)
    assert "refuses this agent's token" in refusal(site.url, capsys, *words)
    token.write_text(f"{TOKEN}\n")
    monkeypatch.setattr(agent, "API_VERSION", API_VERSION - 1)
    assert f"speaks version {API_VERSION - 1} of the agents' protocol" in refusal(site.url, capsys, *words)
    assert "is no dashboard" in refusal(f"{site.url}/elsewhere", capsys, *words)
    assert "is no address" in refusal("localhost:8000", capsys, *words)
    assert "is no address" in refusal("http://", capsys, *words)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=40))
def test_messages_arrive_once_and_in_order_whatever_calls_are_lost_or_come_twice(calls):
    sender, receiver, arrived, posted, last = Mailbox(), Mailbox(), [], 0, []
    for count, is_lost, answer_is_lost in [*calls, (0, False, False)]:
        for _ in range(count):
            sender.post(posted)
            posted += 1
        batch = sender.outgoing()
        for messages in ([] if is_lost else [batch, last]):
            arrived += receiver.take(tuple(messages))
        last = batch
        if not (is_lost or answer_is_lost):
            sender.acknowledge(receiver.received)
    assert arrived == [(number,) for number in range(posted)] and not sender


def test_an_agent_runs_the_tasks_of_its_list_alone_in_its_folders(home):
    (paths.DATA / "training").mkdir(parents=True)
    (paths.DATA / "out").symlink_to("/")
    finetune, notebook = (agent.ALLOWED[name] for name in ("lib.finetune.task:finetune", "lib.schedule.runtime.tasks:notebook"))
    finetune({"config": {}, "folder": str(paths.DATA / "training" / "run")})
    notebook({"path": "notebooks/02_profile.ipynb", "parameters": {}, "out": str(paths.DATA / "runs" / "x.ipynb")})
    for check, arguments in ((finetune, {"folder": "/etc"}), (finetune, {}), (finetune, {"folder": "training/run"}),
                             (finetune, {"folder": str(paths.DATA / ".." / "x")}),
                             (finetune, {"folder": str(paths.DATA / "out")}),
                             (notebook, {"path": "/etc/passwd", "out": str(paths.DATA / "x")}),
                             (notebook, {"path": "notebooks/../lib/x.ipynb", "out": str(paths.DATA / "x")}),
                             (notebook, {"path": "notebooks/02_profile.ipynb", "out": "/tmp/x.ipynb"})):
        with pytest.raises(InputError, match="outside of which an agent runs nothing"):
            check(arguments)


class Nvml:
    """Two cards, as NVIDIA's library has them."""

    NVMLError = OSError
    uuids = ("GPU-aaaa", "GPU-bbbb")

    def __getattr__(self, name):
        return {"nvmlInit": lambda: None, "nvmlDeviceGetCount": lambda: 2, "nvmlDeviceGetHandleByIndex": lambda index: index,
                "nvmlDeviceGetHandleByUUID": self.uuids.index, "nvmlDeviceGetUUID": lambda index: self.uuids[index],
                "nvmlDeviceGetName": lambda index: ("NVIDIA H200", "NVIDIA L4")[index],
                "nvmlDeviceGetCudaComputeCapability": lambda index: (9 - index, 0),
                "nvmlDeviceGetMemoryInfo": lambda index: types.SimpleNamespace(total=(141 - index) * 1e9, used=1e9),
                "nvmlDeviceGetUtilizationRates": lambda index: types.SimpleNamespace(gpu=50 + index)}[name]


def test_gpus_are_those_that_may_be_used_as_the_driver_knows_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [(card.index, card.uuid, card.compute_capability) for card in devices.gpus()] == [
        (0, "GPU-aaaa", "9.0"), (1, "GPU-bbbb", "8.0")]
    for mask, uuids in (("1", ["GPU-bbbb"]), ("1,0", ["GPU-bbbb", "GPU-aaaa"]), ("GPU-aa", ["GPU-aaaa"]), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        assert [card.uuid for card in devices.gpus()] == uuids
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(devices, "slots_here", lambda count: (*local_site.slots_here(count), Slot("cuda:0")))
    pairs = devices.devices_here(1)
    assert [(slot.name, device.model, device.cores) for slot, device in pairs][-1] == ("cuda:0", "NVIDIA L4", 0)
    assert pairs[-1][0].card == "GPU-bbbb"
    load = devices.Meter([pairs[-1][1].gpu]).load()
    assert load.gpus[0].utilisation_percent == 51 and load.memory_mb > load.memory_used_mb > 0


def test_a_card_that_is_lost_takes_no_other_with_it(monkeypatch):
    class Lost(Nvml):
        def __getattr__(self, name):
            if name == "nvmlDeviceGetMemoryInfo":
                return lambda index: super(Lost, self).__getattr__(name)(index) if index else lost()
            return super().__getattr__(name)

    def lost():
        raise Nvml.NVMLError("GPU is lost")

    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cards = devices.gpus()
    monkeypatch.setitem(sys.modules, "pynvml", Lost())
    assert [card.uuid for card in devices.gpus()] == ["GPU-bbbb"]
    assert [gpu.uuid for gpu in devices.Meter(cards).load().gpus] == ["GPU-bbbb"]
    monkeypatch.setattr(devices, "slots_here", lambda count: (*local_site.slots_here(count), Slot("cuda:0"), Slot("cuda:1")))
    assert [(slot.name, slot.card) for slot, _ in devices.devices_here(1)][1:] == [("cuda:1", "GPU-bbbb")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb,GPU-aa")
    assert [(slot.name, slot.card) for slot, _ in devices.devices_here(1)][1:] == [("cuda:0", "GPU-bbbb")]


def test_slots_that_have_fewer_threads_than_cores_say_so():
    slots = (Slot("cpu[0-3]", (0, 1, 2, 3), 1), Slot("cpu[4-5]", (4, 5), 2), Slot("cuda:0"))
    assert devices.narrowed([(slot, None) for slot in slots]) == (
        "cpu[0-3] has 1 of 4 threads: others held the other cores; begin anew when they are free")
    assert devices.narrowed([(slot, None) for slot in slots[1:]]) == ""


def test_a_machine_without_a_driver_has_no_gpus():
    assert devices.gpus() == [] or os.path.exists("/dev/nvidiactl")


@pytest.fixture
def board(tmp_path):
    """Give a dashboard of light runs, whose agents are processes."""
    database, dispatcher = dispatcher_in(tmp_path)
    one = types.SimpleNamespace(database=database, dispatcher=dispatcher, processes=[])
    with serving(create_app(Settings(database, TOKEN), dispatcher)) as one.url:
        yield one
    for process in one.processes:
        process.kill()
        print(process.communicate()[1])


def add(board, calls, **values):
    ids = add_runs(board.database, calls, **values)
    for run_id in ids:
        board.dispatcher.submit(types.SimpleNamespace(id=run_id))
    return ids


def wait_for(board, ids, states=db.ENDS, within_s=60):
    """Return runs by id, once each is in one of the states."""
    end = time.monotonic() + within_s
    while True:
        with board.database.reading() as session:
            runs = {run_id: session.get(db.Run, run_id) for run_id in ids}
            if all(run.state in states for run in runs.values()):
                return runs
        assert time.monotonic() < end, [(run.state, run.reason) for run in runs.values()]
        time.sleep(0.05)


def lines_of(board, run_id):
    with board.database.reading() as session:
        rows = session.scalars(select(db.RunLog).where(db.RunLog.run_id == run_id).order_by(db.RunLog.id))
        return [(row.attempt, row.n, row.line) for row in rows]


def agents_of(board, ready=lambda agent: True, count=1):
    """Return the agents by name, once there are so many and each is ready."""
    end = time.monotonic() + 30
    while True:
        with board.database.reading() as session:
            agents = session.scalars(select(db.Agent).order_by(db.Agent.name)).all()
        if len(agents) == count and all(map(ready, agents)):
            return agents
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_runs_of_the_database_are_placed_streamed_cancelled_and_ended(board):
    board.processes.append(start("agent", board.url, "lab", 2))
    ids = add(board, [("tests.light:chatter", {"count": 50}), ("tests.light:starve", {}), ("tests.light:refuse", {}),
                      ("tests.light:measured", {"steps": 3}), ("tests.light:sleep", {"seconds": 60}),
                      ("tests.light:hang", {})])
    wait_for(board, ids[4:5], (db.RUNNING,))
    begin = time.monotonic()
    assert board.dispatcher.cancel(ids[4])
    wait_for(board, ids[4:5])
    assert time.monotonic() - begin < 30
    wait_for(board, ids[5:], (db.RUNNING,))
    assert board.dispatcher.cancel(ids[5])  # it heeds nothing, and is killed
    runs = list(wait_for(board, ids).values())
    assert [run.state for run in runs] == [db.FINISHED, db.FAILED, db.FAILED, db.FINISHED, db.CANCELLED, db.CANCELLED]
    assert "out of memory" in runs[1].reason and "agents run no task" in runs[2].reason
    assert lines_of(board, ids[0]) == [*((1, number + 1, str(number)) for number in range(49)), (1, 50, "ééé")]
    assert (runs[3].step, runs[3].epoch, runs[3].epochs, runs[3].best_value) == (2, 0, 1, 0.5)
    with board.database.reading() as session:
        values = session.execute(select(db.RunMetric.step, db.RunMetric.key, db.RunMetric.value)
                                 .where(db.RunMetric.run_id == ids[3]).order_by(db.RunMetric.id)).all()
    assert values == [(0, "loss", 1.0), (1, "loss", 0.5), (2, "loss", None)]
    lab = agents_of(board, lambda agent: agent.load)[0]
    assert lab.connected and lab.load["memory_mb"] > 0 and [slot["name"] for slot in lab.slots] == ["cpu[0]", "cpu[1]"]
    assert runs[0].agent_id == lab.id and runs[0].device.startswith("cpu[")
    assert runs[0].predicted_s == 600 and "predicted 600 s on lab/cpu (a guess" in runs[0].placement
    assert not board.dispatcher.cancel(ids[0]) and not board.dispatcher.cancel("nobody")


@pytest.mark.slow
def test_a_run_may_be_bound_to_an_agent_and_learns_from_earlier_ones(board):
    for name in ("a", "b"):
        board.processes.append(start("agent", board.url, name, 1))
    second = agents_of(board, count=2)[1].id
    ids = add(board, [("tests.light:sleep", {"seconds": 0.2})] * 4, only_agent_id=second)
    assert {run.agent_id for run in wait_for(board, ids).values()} == {second}
    again = add(board, [("tests.light:sleep", {"seconds": 0.2})] * 1, only_agent_id=second)
    run = wait_for(board, again)[again[0]]
    assert 0.1 < run.predicted_s < 60 and "by 1 earlier runs of this configuration" in run.placement


class Starting:
    """A worker that is never ready."""

    def __init__(self, slot, limits):
        self.pipe, self._other = Pipe(duplex=False)

    def messages(self):
        return []

    def send(self, *message):
        raise AssertionError(message)

    def shut_down(self):
        self.pipe.close()


def test_a_plan_counts_from_now_and_the_journal_knows_who_has_ended(tmp_path, monkeypatch):
    database, dispatcher = dispatcher_in(tmp_path)
    done, waits = add_runs(database, [("tests.light:sleep", {})] * 2)
    with Service(tmp_path / "queue", registry.policy("first-come"), lambda spec, device: 1.0, LIMITS, killed.Inline) as service:
        service.submit(Spec(done, "tests.light:sleep", {}))
        service.add_slot(Slot("lab/cpu[0]"))
        service.run(lambda: len(service.ends()) == 1)
    monkeypatch.setattr(Journal, "last_s", lambda journal: 1000.0)  # its clock goes on where it was
    dispatcher._agents.spawn = Starting
    dispatcher._predictions.place("lab/cpu", predictions.Place("lab", "lab", light_slots(1)[0][1]))
    dispatcher.start()
    try:
        assert dispatcher.has_ended(done) and not dispatcher.has_ended(waits) and not dispatcher.has_ended("nobody")
        dispatcher._service.add_slot(Slot("lab/cpu[0]"))
        end = time.monotonic() + 10
        while (planned := dispatcher.plan())["device"].tolist() != ["lab/cpu[0]"]:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert planned["job_id"].tolist() == [waits]
        assert abs(planned["start_s"][0]) < 1 and abs(planned["end_s"][0] - 600) < 1
    finally:
        dispatcher.close()


def test_a_run_waits_until_a_disk_has_space_again(tmp_path, monkeypatch, capsys):
    database, dispatcher = dispatcher_in(tmp_path)
    first, second = add_runs(database, [("tests.light:sleep", {})] * 2)
    monkeypatch.setattr("lib.dashboard.dispatcher._SOON_S", 0.01)
    submit, tries = Journal.submit, []

    def refused(journal, job):
        tries.append(job.spec.job_id)
        if len(tries) <= 3:
            raise UnwritableError("run.sqlite: cannot be written (database or disk is full)")
        if len(tries) == 5:
            raise db.ConflictError("the run is cancelled")
        return submit(journal, job)

    monkeypatch.setattr(Journal, "submit", refused)
    dispatcher.start()
    try:
        end = time.monotonic() + 10
        while len(tries) < 5:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert tries == [first] * 4 + [second]
        assert capsys.readouterr().err.count(f"run {first} is not in the queue yet") == 1
        assert all(thread.is_alive() for thread in dispatcher._threads)
        assert wait_for(types.SimpleNamespace(database=database), [first], (db.QUEUED,))
    finally:
        dispatcher.close()


def test_runs_that_wait_are_advised_when_a_processor_joins(tmp_path, monkeypatch):
    database, dispatcher = dispatcher_in(tmp_path)
    (run_id,) = add_runs(database, [("tests.light:sleep", {})])
    with database.writing() as session:
        session.get(db.Run, run_id).config.kind = "finetune"
    limits_s = []
    monkeypatch.setattr(predictions.worker, "call",
                        lambda *_, timeout_s, **__: limits_s.append(timeout_s) or {"light": (42.0, "x")})
    dispatcher._agents.spawn = Starting
    slot = workers.AgentSlot(Slot("lab/cpu[0]"), "lab", "lab", "key", light_slots(1)[0][1])
    dispatcher.start()
    try:
        end = time.monotonic() + 10
        while not dispatcher.reorder(run_id, 0):
            assert time.monotonic() < end
        dispatcher._agents.slots = lambda: {"lab/cpu[0]": slot}
        dispatcher.changed()
        while not np.allclose((planned := dispatcher.plan())["end_s"] - planned["start_s"], 42) or planned.empty:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert limits_s == [60]
        assert dispatcher.cancel(run_id)
        while dispatcher._predictions.waiting() or dispatcher._predictions._advised:
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        dispatcher._agents.slots = dict
        dispatcher.close()


def test_a_database_has_one_server(tmp_path):
    database, dispatcher = dispatcher_in(tmp_path)
    other = Dispatcher(Database(f"sqlite:///{tmp_path}/dashboard.db"), tmp_path / "another queue")
    dispatcher.start()
    try:
        with pytest.raises(InputError, match="dashboard.db is being written by another process"):
            other.start()
    finally:
        dispatcher.close()
    other.start()
    other.close()


def test_the_token_leaves_the_environment_of_an_agent(tmp_path, monkeypatch):
    monkeypatch.setenv("DASHBOARD_TOKEN", TOKEN)
    assert client.read_token(None) == TOKEN
    assert "DASHBOARD_TOKEN" not in os.environ


def test_a_message_is_measured_as_it_is_sent_and_one_too_large_is_refused_to_the_queue():
    letters = "\u0416" * 49_000
    Mailbox().post(1, "run", "t", "tests.light:sleep", {"labels": [letters]})  # 98 kB, in ASCII 294 kB
    session = types.SimpleNamespace(workers={}, mailbox=Mailbox())
    session.post = session.mailbox.post
    worker = workers.AgentWorker(session, 1, "cpu[0]")
    worker.send("run", "t", "tests.light:sleep", {"labels": [3 * letters]})
    ((what, token, reason),) = worker.messages()
    assert (what, token) == ("refused", "t") and "it cannot be sent to an agent: 294," in reason


def test_a_report_names_the_attempt_that_it_is_of(tmp_path):
    dispatcher = dispatcher_in(tmp_path)[1]
    assert attempt_of("a#b#12") == ("a#b", 12)
    assert dispatcher.reported("a#1", {"log": [1, "x"], "metrics": {}}) == 2 and dispatcher.written() == 0
    for token in ("a", "a#", "a#x", "a#-1", "a#1234567890"):
        with pytest.raises(InputError, match="is no attempt of a job"):
            dispatcher.reported(token, {"log": [1, "x"]})


def test_only_columns_are_set():
    row = db.Agent()
    with pytest.raises(TypeError, match="agents has no by_hand"):
        set_columns(row, host="lab", by_hand=False)
    set_columns(row, host="lab", manual=False)
    assert (row.host, row.manual) == ("lab", False)


def test_a_database_that_is_away_for_a_while_gets_everything_later(tmp_path):
    database, dispatcher = dispatcher_in(tmp_path)
    ids = add_runs(database, [("tests.light:sleep", {})])
    gone, tries, ended = [True], [], []

    class Away:
        @contextmanager
        def writing(self):
            tries.append(gone[0])
            if gone[0]:
                raise OperationalError("BEGIN", {}, Exception("database is locked"))
            with database.writing() as session:
                yield session

    def until(condition):
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)

    def unwanted(run_id):
        ended.append(run_id)
        raise UnwritableError("run.sqlite: cannot be written (database or disk is full)")

    records = RunRecords(Away(), lambda run_id, slot: {"device": slot}, lambda *_: None, unwanted)
    records.start()
    records.started("nobody", 1, "lab/cpu", 0.0)
    until(lambda: tries)  # what comes now is another batch
    records.started(ids[0], 1, "lab/cpu", 0.0)
    for number in range(5):
        records.reported(ids[0], 1, {"log": [number + 1, "x"], "metrics": {"step": number}})
    records.reported(ids[0], 0, {"metrics": {"step": 9}})  # late, of an attempt that is over
    records.ended(ids[0], 1, "done", "", {"best_value": 0.9}, 1.0)
    before = len(tries)
    until(lambda: len(tries) > before)
    gone[0] = False
    until(lambda: not all(tries))
    records.close()
    board = types.SimpleNamespace(database=database)
    run = wait_for(board, ids)[ids[0]]
    assert (run.state, run.best_value, run.device, run.step) == (db.FINISHED, 0.9, "lab/cpu", 4)
    assert len(lines_of(board, ids[0])) == 5 and records.written == 14
    assert ended == ["nobody"]


def test_journal_and_database_are_brought_together_at_each_start(tmp_path):
    """Ends that the database missed, runs that the journal missed or lost, and one that was cancelled in the database alone."""
    database, dispatcher = dispatcher_in(tmp_path)
    ended, failed, lost, new, cancelled = add_runs(database, [("tests.light:sleep", {}), ("tests.light:fail", {}),
                                                              *[("tests.light:sleep", {})] * 3])
    specs = {run_id: Spec(run_id, f"tests.light:{call}", {}) for run_id, call in (
        (ended, "sleep"), (failed, "fail"), (lost, "sleep"), (cancelled, "sleep"))}
    with Service(tmp_path / "queue", registry.policy("first-come"), lambda spec, device: 1.0, LIMITS, killed.Inline) as service:
        for run_id in (ended, failed):
            service.submit(specs[run_id])
        service.add_slot(Slot("lab/cpu[0]"))
        service.run(lambda: len(service.ends()) == 2)
        for run_id in (lost, cancelled):
            service.submit(specs[run_id])
    with database.writing() as session:
        db.transition(session, lost, db.RUNNING)
        db.transition(session, cancelled, db.CANCELLED)
    dispatcher.start()
    try:
        board = types.SimpleNamespace(database=database)
        runs = wait_for(board, [ended, failed])
        assert runs[ended].state == db.FINISHED and runs[ended].attempt == 1
        assert runs[failed].state == db.FAILED and "this job is wrong" in runs[failed].reason
        runs = wait_for(board, [lost, new], (db.QUEUED,))
        assert runs[lost].reason == "the server was restarted"
        end = time.monotonic() + 30
        while not dispatcher.reorder(new, 1):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert dispatcher.reorder(lost, 1) and not dispatcher.reorder(ended, 1)
    finally:
        dispatcher.close()


@pytest.mark.slow
def test_kills_of_agents_and_server_lose_no_run_and_end_none_twice(tmp_path):
    """A dashboard and two agents, each killed at random moments and started again, until all runs have ended."""
    summary = killed_queue.run(tmp_path, runs=10, agents=2, kills=3, seed=0, silent_s=1.5, every_s=(0.3, 0.8))
    assert summary["wrong"] == [] and summary["ended"] == 10 and len(summary["killed"]) == 2


def test_fine_tunes_that_took_longer_than_advised_correct_the_others_there(monkeypatch):
    """Measured over advised, the median on the same processor and threads; a configuration's own runs come first."""
    monkeypatch.setattr(predictions.worker, "call", lambda *_, **__: {"chip": (10.0, "as advised")})
    known = predictions.Predictions()
    for name, threads in (("a/cpu", 1), ("b/cpu", 2)):
        device = Device(name="cpu[0]", threads=threads, cores=threads, memory_mb=1000, model="chip")
        known.place(name, predictions.Place(name, name, device))
    for run_id in ("first", "second"):
        config = types.SimpleNamespace(kind="finetune", config_json={}, config_hash=run_id)
        known.add(types.SimpleNamespace(id=run_id, config=config, only_agent_id=None, gpu_indices=[]))
        known.advise(run_id)
    assert known.placement("second", "a/cpu")["predicted_s"] == 10
    known.measure("first", "a/cpu", 25.0)
    assert known.placement("second", "a/cpu")["predicted_s"] == 25
    assert "2.5 times as long by 1 other fine-tunes there" in known.placement("second", "a/cpu")["placement"]
    assert known.placement("second", "b/cpu")["predicted_s"] == 10, "other threads"
    known.measure("second", "a/cpu", 40.0)
    assert known.placement("second", "a/cpu")["predicted_s"] == 40


@pytest.mark.slow
def test_a_fine_tune_is_predicted_by_its_steps_and_evaluations_whatever_its_network_is_called(tmp_path):
    from transformers import ViTConfig

    tiny = ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=28,
                     patch_size=14)
    tiny.save_pretrained(tmp_path / "tiny")
    usual = {"root": "synthetic:pathmnist", "loss_name": "cross_entropy", "epochs": 3, "batch_size": 64,
             "load_pretrained": True, "autocast_dtype": "torch.float32", "max_datapoints_per_class": 100}
    processors = [("cpu", "any"), ("cuda", "NVIDIA H200"), ("cuda", "none")]
    for name in (str(tmp_path / "tiny"), "simple_cnn"):
        advised = advice.advise({**usual, "model_flavour": name}, processors)
        assert set(advised) == {"any", "NVIDIA H200"}
        for seconds, words in advised.values():
            steps, step_ms, batches, batch_ms = re.match(
                r"([\d,]+) steps of (.+) ms, ([\d,]+) evaluated batches of (.+) ms, ", words).groups()
            assert int(steps) == 3 * -(-900 // 64), "nine classes of 100 each"
            assert int(batches) > 3 and 0 < float(batch_ms) < float(step_ms)
            assert seconds == pytest.approx((int(steps) * float(step_ms) + int(batches) * float(batch_ms)) / 1e3, rel=0.01)
    with pytest.raises(InputError, match="no dataset"):
        advice.advise({**usual, "root": "synthetic:none", "model_flavour": "simple_cnn"}, processors)
