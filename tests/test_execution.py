"""The one way in which notebooks are executed: strict parameters, one line for a failure, the executed notebook kept."""

import errno
import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import nbformat
import psutil
import pytest

from lib import execution, paths
from lib.execution import ExecutionError, execute_notebook
from lib.schedule.runtime import tasks
from lib.schedule.runtime.worker_process import Job
from tests import nightly, notebook, refused
from tests.agents import until


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a notebook of one parameter and one more cell."""
    return partial(notebook, tmp_path / "source.ipynb", "steps: int = 1  # how many")


def printed(path):
    cells = nbformat.read(path, as_version=4).cells
    return "".join(output.text for cell in cells for output in cell.get("outputs", []) if output.output_type == "stream")


@pytest.mark.slow
def test_a_job_executes_a_notebook_as_the_report_does(written, tmp_path):
    out = tmp_path / "a {folder}/a.ipynb"
    job, path = Job("cpu", 1), str(written("import os; print('before', steps + 1, os.getcwd())"))
    assert tasks.notebook(job, path, {"steps": 41}, str(out)) == {"notebook": str(out)}
    assert printed(out) == f"before 42 {out.parent}\n"
    with refused(r"source.ipynb has no parameter epochs; there are: steps"):
        tasks.notebook(job, path, {"epochs": 1}, str(out))
    with refused(r"source.ipynb would be replaced by its own execution"):
        tasks.notebook(job, path, {}, path)


@pytest.mark.slow
@pytest.mark.parametrize("execute, code, words", [
    (execute_notebook, "print('before')\nraise ValueError('it broke,\\nbadly')", "ValueError: it broke, badly"),
    (execution._execute, "print('before')\nassert False", "AssertionError without a message, in cell [2]"),
    (execution._execute, "print('before', flush=True)\nimport os, time\ntime.sleep(0.5)\nos.kill(os.getpid(), 9)",
     "the kernel died: out of memory?")])
def test_a_failure_is_one_line(written, tmp_path, execute, code, words):
    with pytest.raises(ExecutionError) as caught:
        execute(written(code), tmp_path / "{out}.ipynb", {}, tmp_path)
    assert str(caught.value).replace("\n", " ") == words
    assert printed(tmp_path / "{out}.ipynb") == "before\n", "what ran before the failure is kept"
    assert {path.name for path in tmp_path.iterdir()} == {"{out}.ipynb", "source.ipynb"}, "and nothing else stays behind"


@pytest.mark.parametrize("metadata, told", [
    ({"kernelspec": {"name": "gone", "display_name": "Gone"}}, "'gone', which is not installed; there are: "),
    ({}, "source.ipynb names no kernel"), (None, "is no notebook"), ("missing", "source.ipynb is missing")])
def test_what_is_no_notebook_to_run_is_refused(written, tmp_path, metadata, told):
    path = written("1")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metadata": metadata} if metadata is not None else [1]))
    if metadata == "missing":
        path.unlink()
    with refused(told):
        (execution._execute if path.exists() else execute_notebook)(path, tmp_path / "out.ipynb", {}, tmp_path)


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_half(written, tmp_path, monkeypatch):
    def full(_, path):
        Path(path).write_text('{"cells": [')
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("papermill.execute.write_ipynb", full)
    with pytest.raises(OSError, match="No space left"):
        execution._execute(written("1"), tmp_path / "out.ipynb", {}, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["source.ipynb"]


@pytest.mark.slow
@pytest.mark.parametrize("with_signal", [
    signal.SIGKILL, signal.SIGINT, nightly(signal.SIGTERM)])
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


@pytest.mark.slow
def test_a_readers_plot_shows_after_setup_and_a_figure_of_the_notebook_shows_once(tmp_path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)
    path = notebook(tmp_path / "source.ipynb", "import pandas as pd", "from lib.report.notebook import setup",
                    "nb = setup('01_machine', {})", "nb.figure(pd.Series([1, 2]).plot().figure, 'line', 'A line.')",
                    "pd.Series([1, 2]).plot();")
    execute_notebook(path, tmp_path / "out.ipynb", {}, paths.ROOT, {"LIB_OUTPUT": str(tmp_path)})
    *_, figure, own = [cell.outputs for cell in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells]
    assert [set(output.data) for output in figure] == [{"text/html", "text/plain"}]
    assert [set(output.data) for output in own] == [{"image/png", "text/plain"}]
