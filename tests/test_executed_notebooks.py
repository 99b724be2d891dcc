"""Execution of notebooks by papermill: one line for a failure, the executed notebook kept, nothing left running."""

import json
import signal
import subprocess
import sys
from functools import partial

import nbformat
import psutil
import pytest

from lib import paths
from lib.executed_notebooks import ExecutionError, execute
from lib.schedule.run import tasks
from tests import nightly, notebook, refused, until


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a notebook of one parameter and one more cell."""
    return partial(notebook, tmp_path / "source.ipynb", "steps: int = 1  # how many")


def printed(path):
    cells = nbformat.read(path, as_version=4).cells
    return "".join(output.text for cell in cells for output in cell.get("outputs", []) if output.output_type == "stream")


@pytest.mark.slow
def test_a_job_executes_a_notebook(written, tmp_path):
    out = tmp_path / "a {folder}/a.ipynb"
    path = str(written("import os; print('before', steps + 1, os.getcwd())"))
    assert tasks.notebook(path, {"steps": 41}, str(out), ["cpu"], 1) == {"notebook": str(out)}
    assert printed(out) == f"before 42 {out.parent}\n"
    with refused(r"source.ipynb has no parameter epochs; there are: steps"):
        tasks.notebook(path, {"epochs": 1}, str(out), ["cpu"], 1)
    with refused(r"source.ipynb would be replaced by its own execution"):
        tasks.notebook(path, {}, path, ["cpu"], 1)
    with refused("is to run on 2 devices; a notebook runs on one"):
        tasks.notebook(path, {}, str(out), ["cpu", "cpu"], 1)


@pytest.mark.slow
@pytest.mark.parametrize("code, words", [
    ("print('before')\nraise ValueError('it broke,\\nbadly')", "ValueError: it broke, badly"),
    ("print('before', flush=True)\nimport os, time\ntime.sleep(0.5)\nos.kill(os.getpid(), 9)",
     "the kernel died: out of memory?")])
def test_a_failure_is_one_line(written, tmp_path, code, words):
    with pytest.raises(ExecutionError) as caught:
        execute(written(code), tmp_path / "{out}.ipynb", {}, tmp_path)
    assert str(caught.value) == words
    assert printed(tmp_path / "{out}.ipynb") == "before\n", "what ran before the failure is kept"


@pytest.mark.slow
@pytest.mark.parametrize("metadata, told", [
    ({"kernelspec": {"name": "gone", "display_name": "Gone"}}, "No such kernel named gone"), (None, "source.ipynb")])
def test_a_file_that_cannot_run_fails_in_one_line(written, tmp_path, metadata, told):
    path = written("1")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metadata": metadata} if metadata else [1]))
    with pytest.raises(ExecutionError) as caught:
        execute(path, tmp_path / "out.ipynb", {}, tmp_path)
    assert "\n" not in str(caught.value)
    assert metadata is None or told in str(caught.value)
    with refused("nowhere.ipynb is missing"):
        execute(tmp_path / "nowhere.ipynb", tmp_path / "out.ipynb", {}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("with_signal", [signal.SIGKILL, nightly(signal.SIGINT), nightly(signal.SIGTERM)])
def test_a_notebook_ends_with_the_run_that_started_it(written, tmp_path, with_signal):
    pid = tmp_path / "pid"
    slow = written(f"import os\nopen({str(pid)!r}, 'w').write(f'{{os.getpid()}}\\n')\nwhile True: pass")
    program = ("import signal; signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it\n"
               "from pathlib import Path; from lib import paths, report\n"
               f"paths.NOTEBOOKS = Path({str(slow.parent)!r})\n"
               f"report.run([report.Job('source', 'first'), report.Job('source', 'second')], Path({str(tmp_path / 'out')!r}))")
    process = subprocess.Popen([sys.executable, "-c", program], cwd=paths.ROOT, stderr=subprocess.DEVNULL)
    try:
        until(lambda: pid.is_file() and pid.read_text().endswith("\n"), 60)
        started = psutil.Process(process.pid).children(recursive=True)
        assert int(pid.read_text()) in {child.pid for child in started}
        process.send_signal(with_signal)
        process.wait(timeout=20)
    finally:
        process.kill()
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in started), 10)


@pytest.mark.slow
def test_a_readers_plot_shows_after_setup(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")  # of the terminal that starts the run
    path = notebook(tmp_path / "source.ipynb", "import pandas as pd\nfrom lib import notebook",
                    "nb = notebook.setup('01_machine', {})", "pd.Series([1, 2]).plot();\nnb.save('own')",
                    "pd.Series([1, 2]).plot();")
    execute(path, tmp_path / "out.ipynb", {}, paths.ROOT, {"LIB_OUTPUT": str(tmp_path)})
    *_, saved, own = [cell.outputs for cell in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells]
    assert [sorted(output.data) for output in saved + own] == [["image/svg+xml", "text/plain"]] * 2
    assert sorted(path.name for path in (tmp_path / "figures/01_machine").iterdir()) == ["own.png", "own.svg"]
