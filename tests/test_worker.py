"""Workers: what they answer, how their death is told, and that nothing of them is left."""

import multiprocessing
import os
import signal
import sys
import time
from contextlib import contextmanager

import psutil
import pytest

from lib.errors import InputError
from lib.measure.worker import Service, Worker, WorkerLostError, call
from lib.work import user_code


@contextmanager
def squares(start):
    """Serve squares; some requests are troubles."""
    if start == "refused":
        raise InputError("no such start")

    def respond(request):
        if request == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if request == "exit":
            os._exit(3)
        if request == "hang":
            time.sleep(60)
        return request**2

    yield {"start": start, "pid": os.getpid()}, respond


def test_requests_are_answered_in_order_and_errors_raised_here():
    service = Service(squares, 7)
    pid = service.ready()["pid"]
    assert pid != os.getpid()
    assert [service.ask(number) for number in (2, 3, 4)] == [4, 9, 16]
    with pytest.raises(TypeError):
        service.ask("a word")
    assert not psutil.pid_exists(pid), "an error ends it"
    with pytest.raises(InputError, match="no such start"):
        Service(squares, "refused").ready()


@pytest.mark.parametrize(("request_", "words", "hung"), [
    ("kill", r"the worker was killed \(signal 9\): out of memory\?", False), ("exit", "the worker ended with status 3", False),
    ("hang", "no answer within 0.2 s", True)])
def test_the_death_of_a_worker_has_a_reason(request_, words, hung):
    service = Service(squares, 1)
    pid = service.ready()["pid"]
    with pytest.raises(WorkerLostError, match=words) as lost:
        service.ask(request_, timeout_s=0.2 if hung else 30)
    assert lost.value.hung == hung
    assert not psutil.pid_exists(pid)


def chatter(pipe, count):
    for number in range(count):
        pipe.send(number)
    if pipe.recv() == "die":
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_speaks_while_it_runs_and_its_death_is_a_reason():
    worker = Worker(chatter, 3)
    heard = [worker.receive(30) for _ in range(3)]
    assert (heard, worker.messages()) == ([0, 1, 2], ([], ""))
    worker.send("die")
    assert worker.pipe.poll(30)
    received, death = worker.messages()
    assert (received, death) == ([], "the worker was killed (signal 9): out of memory?")
    worker.shut_down()
    worker.send("to nobody")


def look(name):
    return os.environ.get(name)


def test_a_call_has_its_own_environment_and_process(monkeypatch):
    monkeypatch.setenv("WORKER_SETTING", "ours")
    assert call(look, "WORKER_SETTING", environment={"WORKER_SETTING": "theirs"}) == "theirs"
    assert call(look, "WORKER_OTHER", environment={"WORKER_OTHER": "theirs"}) == "theirs"
    assert (os.environ["WORKER_SETTING"], os.environ.get("WORKER_OTHER")) == ("ours", None)
    with pytest.raises(TypeError):
        call(look)
    with pytest.raises(WorkerLostError, match="signal 9"):
        call(end)


def end():
    os.kill(os.getpid(), signal.SIGKILL)


def _leading(path, imported):
    Worker(_busy_as_a_network, str(path), imported=imported)
    time.sleep(60)


def _busy_as_a_network(pipe, path):
    """Work as a user's network is run, which cannot end the process."""
    with user_code.running("the network does not run"):
        _busy(pipe, path)


def _busy(_pipe, path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    while True:
        sum(range(10_000))


@pytest.mark.slow
@pytest.mark.parametrize(("how", "imported"), [(signal.SIGKILL, ()), (signal.SIGTERM, ()), (signal.SIGKILL, ("numpy",))])
def test_a_worker_at_work_ends_with_whoever_leads_it(tmp_path, how, imported):
    leader = multiprocessing.get_context("spawn").Process(target=_leading, args=(tmp_path / "pid", imported))
    leader.start()
    end = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(leader.pid, how)
    leader.join(30)
    worker = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 10
    while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "it works on for nobody"
        time.sleep(0.05)


def _seen(*names):
    return {"timm": "timm" in sys.modules, "parent": os.getppid(), **{name: os.environ.get(name) for name in names}}


def test_workers_that_find_modules_imported_have_this_environment_and_are_of_one_server(monkeypatch):
    monkeypatch.setenv("WORKER_SETTING", "first")
    first = call(_seen, "WORKER_SETTING", imported=("timm",))
    monkeypatch.setenv("WORKER_SETTING", "second")
    second = call(_seen, "WORKER_SETTING", imported=("timm",))
    assert (first["WORKER_SETTING"], second["WORKER_SETTING"]) == ("first", "second")
    assert first["timm"] and second["timm"] and first["parent"] == second["parent"] != os.getpid()
    with pytest.raises(WorkerLostError, match="signal 9"):
        call(end, imported=("timm",))
