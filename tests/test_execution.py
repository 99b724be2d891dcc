"""The one way in which notebooks are executed: strict parameters, one line for a failure, the executed notebook kept."""

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest

from lib import execution, paths
from lib.errors import InputError
from lib.execution import ExecutionError, execute_notebook
from lib.schedule.runtime import tasks
from lib.schedule.runtime.worker_process import Job

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a notebook of one parameter and one more cell."""
    def write(code):
        parameters = nbformat.v4.new_code_cell("steps: int = 1  # how many", metadata={"tags": ["parameters"]})
        notebook = nbformat.v4.new_notebook(cells=[parameters, nbformat.v4.new_code_cell(code)])
        notebook.metadata["kernelspec"] = KERNEL
        nbformat.write(notebook, tmp_path / "source.ipynb")
        return tmp_path / "source.ipynb"
    return write


def printed(path):
    cells = nbformat.read(path, as_version=4).cells
    return "".join(output.text for cell in cells for output in cell.get("outputs", []) if output.output_type == "stream")


def test_a_notebook_runs_with_its_parameters_where_it_was_asked_to(written, tmp_path):
    folder, out = tmp_path / "a folder", tmp_path / "made" / "out.ipynb"
    folder.mkdir()
    execute_notebook(written("import os; print(steps + 1, os.getcwd())"), out, {"steps": 41}, folder)
    assert printed(out).split(maxsplit=1) == ["42", f"{folder}\n"]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "words"), [
    ("print('before')\nraise ValueError('it broke,\\nbadly')", "ValueError: it broke, badly"),
    ("assert False", "AssertionError without a message, in cell [2]"),
    ("print('before', flush=True)\nimport os, time\ntime.sleep(0.5)\nos.kill(os.getpid(), 9)",
     "the kernel died: out of memory?")])
def test_a_failure_is_one_line(written, tmp_path, code, words):
    with pytest.raises(ExecutionError) as caught:
        execution._execute(written(code), tmp_path / "out.ipynb", {}, str(tmp_path))
    assert str(caught.value).replace("\n", " ") == words
    assert "before" not in code or printed(tmp_path / "out.ipynb") == "before\n", "what ran before the failure is kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.ipynb", "source.ipynb"], "and nothing else stays behind"


@pytest.mark.parametrize(("name", "message", "words"), [
    ("", "", "an error without a message, in cell [3]"), (None, None, "an error without a message, in cell [3]"),
    ("KeyboardInterrupt", " \n", "KeyboardInterrupt without a message, in cell [3]"), ("SystemExit", "3", "SystemExit: 3")])
def test_a_reason_is_never_empty(name, message, words):
    assert execution._reason(SimpleNamespace(ename=name, evalue=message, exec_count=3)) == words


def test_a_failure_comes_back_from_its_process(written, tmp_path):
    with pytest.raises(ExecutionError, match="^ValueError: it broke, badly$"):
        execute_notebook(written("raise ValueError('it broke,\\nbadly')"), tmp_path / "{out}.ipynb", {}, tmp_path)
    assert [path.name for path in tmp_path.glob("*out*")] == ["{out}.ipynb"]
    with pytest.raises(InputError, match=r"source.ipynb has no parameter epochs; there are: steps"):
        execute_notebook(written("1"), tmp_path / "out.ipynb", {"epochs": 1}, tmp_path)
    with pytest.raises(InputError, match=r"source.ipynb would be replaced by its own execution"):
        execute_notebook(written("1"), tmp_path / "source.ipynb", {}, tmp_path)


@pytest.mark.parametrize("answer", [("", -9, "the notebook's process was killed (signal 9): out of memory?: the last line"),
                                    ("", 7, "the notebook's process ended with status 7: the last line"), ("why", 1, "why"),
                                    ("E: \x1b[31ma\n\tb\u2028c", 1, r"E: \x1b[31ma b c"), ("x" * 9999, 1, "x" * 2000)])
def test_a_process_without_an_answer_still_has_a_reason(written, tmp_path, monkeypatch, answer):
    def child(request, environment, log):
        log.write("the first line\nthe last line\n")
        return answer[1], answer[0]

    monkeypatch.setattr(execution, "_child", child)
    with pytest.raises(ExecutionError) as caught:
        execute_notebook(written("1"), tmp_path / "out.ipynb", {}, tmp_path)
    assert str(caught.value) == answer[2]


@pytest.mark.parametrize(("change", "told"), [
    (lambda notebook: notebook.metadata.kernelspec.update(name="gone"), "'gone', which is not installed; there are: "),
    (lambda notebook: notebook.metadata.pop("kernelspec"), "source.ipynb names no kernel"),
    (None, "is no notebook"), ("missing", "source.ipynb is missing")])
def test_what_is_no_notebook_to_run_is_refused(written, tmp_path, change, told):
    path = written("1")
    if change is None:
        path.write_text("[1]")
    elif change == "missing":
        path.unlink()
    else:
        notebook = nbformat.read(path, as_version=4)
        change(notebook)
        nbformat.write(notebook, path)
    with pytest.raises(InputError, match=told):
        execute_notebook(path, tmp_path / "out.ipynb", {}, tmp_path) if change == "missing" else \
            execution._execute(path, tmp_path / "out.ipynb", {}, str(tmp_path))


def test_a_full_disk_leaves_nothing_half(written, tmp_path, monkeypatch):
    def full(_, path):
        Path(path).write_text('{"cells": [')
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("papermill.execute.write_ipynb", full)
    with pytest.raises(OSError, match="No space left"):
        execution._execute(written("1"), tmp_path / "out.ipynb", {}, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["source.ipynb"]


@pytest.mark.slow
@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_a_notebook_started_ends_with_its_run(written, tmp_path, with_signal):
    pids = tmp_path / "pids"
    slow = written("import os, subprocess\nchild = subprocess.Popen(['sleep', '300'])\n"
                   f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}\\n')\nwhile True: pass")
    program = ("import signal; signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it\n"
               "from pathlib import Path; from lib import paths; from lib.report import runner\n"
               f"paths.NOTEBOOKS = Path({str(slow.parent)!r})\n"
               f"runner.run([runner.Job('source', 'first'), runner.Job('source', 'second')], Path({str(tmp_path / 'out')!r}))")
    process = subprocess.Popen([sys.executable, "-c", program], cwd=paths.ROOT, stderr=subprocess.DEVNULL)
    try:
        until(lambda: pids.is_file() and pids.read_text().endswith("\n"), 60)
        started = psutil.Process(process.pid).children(recursive=True)
        assert {int(pid) for pid in pids.read_text().split()} < {child.pid for child in started}
        process.send_signal(with_signal)
        process.wait(timeout=20)
    finally:
        process.kill()
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in started), 5)


def until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def test_a_job_executes_a_notebook_as_the_report_does(written, tmp_path):
    out = tmp_path / "jobs" / "a.ipynb"
    assert tasks.notebook(Job("cpu", (), 1), str(written("print(steps)")), {"steps": 7}, str(out)) == {"notebook": str(out)}
    assert printed(out) == "7\n"
    with pytest.raises(InputError, match="has no parameter stepz"):
        tasks.notebook(Job("cpu", (), 1), str(written("1")), {"stepz": 7}, str(out))
