"""Workers: what they answer, how their death is told, and that nothing of them is left."""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from multiprocessing import forkserver

import psutil
import pytest

from lib.errors import InputError, death
from lib.measure.worker import Service, Worker, WorkerLostError, call
from tests import refusal, refused, until

pytestmark = pytest.mark.slow


@contextmanager
def squares(start):
    """Serve squares; some requests are troubles."""
    if start == "refused":
        raise InputError("no such start")

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
    with refused("no such start"):
        Service(squares, "refused").ready()


@pytest.mark.parametrize("request_, words, hung", [
    ("kill", r"the worker was killed \(signal 9\): out of memory\?", False), ("exit", "the worker ended with status 3", False),
    ("hang", "no answer within 0.2 s", True)])
def test_the_death_of_a_worker_has_a_reason(request_, words, hung):
    service = Service(squares, 1)
    pid = service.ready()["pid"]
    with pytest.raises(WorkerLostError, match=words) as lost:
        service.ask(request_, timeout_s=0.2 if hung else 30)
    assert lost.value.hung == hung
    assert not psutil.pid_exists(pid)
    assert death(-signal.SIGSEGV) == "was killed (signal 11)", "only 9 is for want of memory"


def seen():
    return {"imported": "colorsys" in sys.modules, "parent": os.getppid(), "ours": os.environ.get("OURS")}


def test_a_call_has_its_own_environment_and_with_modules_imported_its_process_is_of_one_server(monkeypatch):
    monkeypatch.setenv("OURS", "ours")
    assert call(seen, environment={"OURS": "theirs"}) == {"imported": False, "parent": os.getpid(), "ours": "theirs"}
    assert os.environ["OURS"] == "ours"
    forkserver._forkserver._stop()  # one of another test has imported other modules
    monkeypatch.setenv("OURS", "first")
    first = call(seen, imported=("colorsys",))
    monkeypatch.setenv("OURS", "second")
    second = call(seen, imported=("colorsys",))
    assert first["imported"] and first["parent"] != os.getpid()
    assert first["ours"] == "first" and second == {**first, "ours": "second"}
    with pytest.raises(WorkerLostError, match="signal 9"):
        call(kill_this, imported=("colorsys",))
    forkserver._forkserver._stop()


def _leading(path, imported):
    Worker(_busy_as_a_network, path, imported=imported)
    time.sleep(60)


def _busy_as_a_network(_pipe, path):
    """Work as a user's network is run, which cannot end the process."""
    from lib.work import user_code

    with user_code.running("the network does not run"):
        path.write_text(f"{os.getpid()}\n")
        while True:
            sum(range(10_000))


@pytest.mark.parametrize("how, imported", [(signal.SIGKILL, ()), (signal.SIGTERM, ("numpy",))])
def test_a_worker_at_work_ends_with_whoever_leads_it(tmp_path, how, imported):
    path = tmp_path / "pid"
    leader = multiprocessing.get_context("spawn").Process(target=_leading, args=(path, imported))
    leader.start()
    until(lambda: path.exists() and path.read_text().endswith("\n"), 60)
    worker = psutil.Process(int(path.read_text()))
    os.kill(leader.pid, how)
    leader.join(30)
    until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, 10)


def test_no_folder_for_temporary_files_is_one_line_and_no_worker(home, monkeypatch):
    jobs = home / "jobs.csv"
    jobs.write_text("job_id,workload_id,steps\na,W1,1\n")
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", None)
        patch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(home / "nowhere")])
        line = refusal("run-jobs", jobs, "--slots", "2")
    assert line.endswith("name a folder that can be written in TMPDIR\n")
