"""Workers: what they answer, how their death is told, and that nothing of them is left."""

import multiprocessing
import os
import signal
import time
from contextlib import contextmanager

import psutil
import pytest

from lib.measure.worker import Service, WorkerLostError
from tests import until

pytestmark = pytest.mark.slow


@contextmanager
def squares(start):
    """Serve squares; some requests are troubles."""
    def respond(request):
        if request == "kill":
            kill_this()
        if request == "exit":
            os._exit(3)
        if request == "hang":
            time.sleep(60)
        return request**2

    yield {"start": start, "pid": os.getpid()}, respond


def kill_this():
    os.kill(os.getpid(), signal.SIGKILL)


def test_requests_are_answered_in_order_and_errors_raised_here():
    service = Service(squares, 7)
    pid = service.ready()["pid"]
    assert pid != os.getpid()
    assert [service.ask(number) for number in (2, 3, 4)] == [4, 9, 16]
    with pytest.raises(TypeError):
        service.ask("a word")
    assert not psutil.pid_exists(pid), "an error ends it"


@pytest.mark.parametrize("request_, timeout_s, words", [
    ("kill", 30, r"the worker was killed \(signal 9\): out of memory\?"),
    ("exit", 30, "the worker ended with status 3"), ("hang", 0.2, "no answer within 0.2 s")])
def test_the_death_of_a_worker_has_a_reason(request_, timeout_s, words):
    service = Service(squares, 1)
    pid = service.ready()["pid"]
    with pytest.raises(WorkerLostError, match=words):
        service.ask(request_, timeout_s)
    assert not psutil.pid_exists(pid)


def _leading(path):
    Service(_busy_as_a_network, path)
    time.sleep(60)


def _busy_as_a_network(path):
    """Work as a user's network is run, which cannot end the process."""
    from lib.work import user_code

    with user_code.running("the network does not run"):
        path.write_text(f"{os.getpid()}\n")
        while True:
            sum(range(10_000))


def test_a_worker_at_work_ends_with_whoever_leads_it(tmp_path):
    path = tmp_path / "pid"
    leader = multiprocessing.get_context("spawn").Process(target=_leading, args=(path,))
    leader.start()
    until(lambda: path.exists() and path.read_text().endswith("\n"), 60)
    worker = psutil.Process(int(path.read_text()))
    leader.kill()
    leader.join(30)
    until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, 10)
