"""The one way in which notebooks are executed: strict parameters, one line for a failure, the executed notebook kept."""

import nbformat
import pytest

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
    ("import os; os.kill(os.getpid(), 9)", "the kernel died: out of memory?")])
def test_a_failure_is_one_line(written, tmp_path, code, words):
    with pytest.raises(ExecutionError) as caught:
        execute_notebook(written(code), tmp_path / "out.ipynb", {}, tmp_path)
    assert str(caught.value) == words
    assert "before" not in code or printed(tmp_path / "out.ipynb") == "before\n", "what ran before the failure is kept"


def test_what_cannot_be_executed_is_refused(written, tmp_path):
    with pytest.raises(InputError, match=r"source.ipynb has no parameter epochs; there are: steps"):
        execute_notebook(written("1"), tmp_path / "out.ipynb", {"epochs": 1}, tmp_path)
    with pytest.raises(InputError, match=r"none.ipynb is missing"):
        execute_notebook(tmp_path / "none.ipynb", tmp_path / "out.ipynb", {}, tmp_path)


def test_a_job_executes_a_notebook_as_the_report_does(written, tmp_path):
    out = tmp_path / "jobs" / "a.ipynb"
    assert tasks.notebook(Job("cpu", (), 1), str(written("print(steps)")), {"steps": 7}, str(out)) == {"notebook": str(out)}
    assert printed(out) == "7\n"
    with pytest.raises(InputError, match="has no parameter stepz"):
        tasks.notebook(Job("cpu", (), 1), str(written("1")), {"stepz": 7}, str(out))
