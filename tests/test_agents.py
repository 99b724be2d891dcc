"""Agents over a real server on this host: every job ends once, whatever is killed; logs have no holes and no doubles."""

import os
import random
import signal
import sys
import threading
import time
import types
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import paths
from lib.cli import main
from lib.dashboard import agent, agent_devices, agent_workers
from lib.dashboard.agent_messages import API_VERSION, Mailbox
from lib.dashboard.agent_workers import Agents
from lib.errors import InputError
from lib.schedule.policies import registry
from lib.schedule.problem import Jobs
from lib.schedule.runtime import executor, local_site
from lib.schedule.runtime.journal import Spec
from lib.schedule.runtime.workers import Limits
from tests.agents import TOKEN, served, start

LIMITS = Limits(beat_s=0.1, silent_s=3, ready_s=60, grace_s=0.5, late=20, least_s=60, attempts=3)


class Here:
    """Agents by name, and what was told of them."""

    def __init__(self):
        self.registrations, self.gone = {}, []

    def joined(self, agent):
        self.registrations[agent.name] = agent
        return agent.name

    def left(self, agent_id, reason):
        self.gone.append((agent_id, reason))

    def slots(self, count, within_s=30):
        """Return the slots of the agents that there are, once there are so many."""
        end = time.monotonic() + within_s
        while len(slots := [slot for one in list(self.registrations.values()) for slot in agent_workers.slots_of(one)]) < count:
            assert time.monotonic() < end
            time.sleep(0.02)
        return slots


def check_token(authorization: str = Header("")):
    if authorization != f"Bearer {TOKEN}":
        raise HTTPException(401, "a token is needed")


class Site:
    """A server of agents whose answers can be withheld, and agents that are processes."""

    def __init__(self):
        self.here, self.silent, self.processes = Here(), False, []
        self.agents, self.app = Agents(self.here, LIMITS), FastAPI()
        self.app.include_router(agent_workers.router(self.agents), prefix="/api/v1",
                                dependencies=[Depends(check_token), Depends(self._answer)])

    def _answer(self):
        if self.silent:
            raise HTTPException(500, "no answer")

    def start(self, *words):
        self.processes.append(start(self.url, *words))
        return self.processes[-1]

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
    with served(one.app) as one.url:
        yield one
    for process in one.processes:
        process.kill()
        process.communicate()


def run(specs, slots, spawn, folder):
    jobs = Jobs(**{**Jobs.plain(len(specs)).__dict__, "ids": tuple(spec.job_id for spec in specs)})
    return executor.execute(specs, jobs, local_site.fleet_of(tuple(slots)), slots, np.full((len(specs), 1), 0.05),
                            registry.policy("first-come"), folder, LIMITS, spawn)


def sleeping(count, seconds=0.01):
    return [Spec(f"j{number}", "tests.light:sleep", {"seconds": seconds, "value": number}) for number in range(count)]


@pytest.mark.slow
def test_an_agent_runs_jobs_by_lease_and_leaves(site, tmp_path):
    process = site.start("lab", 2)
    specs = [*sleeping(10), Spec("no", "tests.light:refuse", {}), Spec("starved", "tests.light:starve", {})]
    attempts, ends, notes = run(specs, site.here.slots(2), site.agents.spawn, tmp_path)
    ends = ends.set_index("job_id")
    assert len(ends) == 12 and not notes
    assert set(ends.loc[[spec.job_id for spec in specs[:10]], "status"]) == {"done"}
    assert "agents run no task 'tests.light:refuse'" in ends.loc["no", "reason"]
    assert "out of memory" in ends.loc["starved", "reason"]
    assert set(attempts["device"]) == {"lab/cpu[0]", "lab/cpu[1]"}
    process.send_signal(signal.SIGINT)
    process.wait(10)
    assert site.here.gone == [("lab", "the agent left")]


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_lines_are_numbered_whole_and_in_order_and_a_stop_is_heeded(site):
    site.start("lab")
    slot, = site.here.slots(1)
    with site.worker(slot, "tests.light:chatter", {"count": 3000}) as worker:
        messages = collect(worker, "done")
        lines = [message[2]["log"] for message in messages if message[0] == "report"]
        assert lines == [[number + 1, str(number)] for number in range(2999)] + [[3000, "ééé"]]
        assert messages[-1] == ("done", "t", {"value": 3000}) and {message[1] for message in messages} == {"t"}
        worker.send("run", "large", "tests.light:weigh", {"size": 300_000})
        assert "what the task returns" in collect(worker, "failed")[-1][2]
        begin = time.monotonic()
        worker.send("run", "long", "tests.light:sleep", {"seconds": 60})
        worker.send("stop", "long")
        assert collect(worker, "stopped")[-1] == ("stopped", "long") and time.monotonic() - begin < 2


@pytest.mark.slow
def test_an_agent_that_hears_nothing_ends_its_workers_before_anybody_else_may_run_their_jobs(site, tmp_path):
    site.start("lab")
    slot, = site.here.slots(1)
    with site.worker(slot, "tests.light:chatter", {"count": 10**6, "path": str(tmp_path / "pid"), "pause_s": 0.01}) as worker:
        collect(worker, "report")
        pid, site.silent, begin = int((tmp_path / "pid").read_text()), True, time.monotonic()
        assert is_running(pid)
        while is_running(pid):
            assert time.monotonic() - begin < LIMITS.silent_s
            time.sleep(0.02)
        assert time.monotonic() - begin > LIMITS.silent_s / 2 - 1.1  # the last call may have waited a second
        assert not site.here.gone
    assert time.monotonic() - begin >= LIMITS.silent_s - 1.1
    site.agents.expire()
    assert site.here.gone == [("lab", f"no sign of life for {LIMITS.silent_s:g} s")]
    site.here.registrations.clear()
    site.silent = False
    slot, = site.here.slots(1)  # it joins again by itself
    with site.worker(slot, "tests.light:sleep", {}) as worker:
        collect(worker, "done")


@pytest.mark.slow
def test_a_killed_agents_place_is_taken_when_its_workers_must_be_gone(site, tmp_path):
    first = site.start("lab")
    slot, = site.here.slots(1)
    with site.worker(slot, "tests.light:chatter", {"count": 10**6, "path": str(tmp_path / "pid"), "pause_s": 0.01}) as worker:
        collect(worker, "report")
        first.kill()
        begin = time.monotonic()
        site.start("lab")
        while not site.here.gone:
            assert time.monotonic() - begin < 3 * LIMITS.silent_s
            time.sleep(0.02)
        assert time.monotonic() - begin > LIMITS.silent_s / 2
        died = collect(worker, "died")
        lines = [message[2]["log"] for message in died if message[0] == "report"]
        assert [number for number, _ in lines] == list(range(lines[0][0], lines[0][0] + len(lines)))
        assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_kills_lose_no_job_and_double_none(site, tmp_path):
    """Agents are killed at random moments while jobs run, and begin anew."""
    draw, names, over = random.Random(0), ["a", "b"], []

    def kill():
        while not over:
            time.sleep(draw.uniform(0.3, 1.0))
            one = draw.randrange(2)
            running[one].kill()
            running[one] = site.start(names[one])

    running = [site.start(name) for name in names]
    slots = site.here.slots(2)
    killer = threading.Thread(target=kill)
    killer.start()

    def spawn(slot, limits):
        while True:
            site.agents.expire()
            try:
                return site.agents.spawn(slot, limits)
            except executor.SlotLost:
                time.sleep(0.05)

    specs = [Spec(f"j{number}", "tests.light:marked", {"path": str(tmp_path / f"j{number}"), "value": number, "fault": "slow"})
             for number in range(12)]
    attempts, ends, _ = run(specs, slots, spawn, tmp_path / "run")
    over.append(True)
    killer.join()
    assert sorted(ends["job_id"]) == sorted(spec.job_id for spec in specs)
    assert (attempts["status"] == "done").sum() == (ends["status"] == "done").sum()


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
    assert "is no address" in refusal("http://a b", capsys, *words)


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
    assert [(card.index, card.uuid, card.compute_capability) for card in agent_devices.gpus()] == [
        (0, "GPU-aaaa", "9.0"), (1, "GPU-bbbb", "8.0")]
    for mask, uuids in (("1", ["GPU-bbbb"]), ("1,0", ["GPU-bbbb", "GPU-aaaa"]), ("GPU-aa", ["GPU-aaaa"]), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        assert [card.uuid for card in agent_devices.gpus()] == uuids
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(agent_devices, "slots_here", lambda count: (*local_site.slots_here(count), executor.Slot("cuda:0")))
    pairs = agent_devices.devices_here(1)
    assert [(slot.name, device.model, device.cores) for slot, device in pairs][-1] == ("cuda:0", "NVIDIA L4", 0)
    load = agent_devices.Meter([pairs[-1][1].gpu]).load()
    assert load.gpus[0].utilisation_percent == 51 and load.memory_mb > load.memory_used_mb > 0


def test_a_machine_without_a_driver_has_no_gpus():
    assert agent_devices.gpus() == [] or os.path.exists("/dev/nvidiactl")
