"""Every notebook executed once, in quick mode on the reference data; what it wrote, what it shows, what must reproduce."""

import re
import shutil

import pytest

from lib import executed_notebooks, files, paths, report
from lib.config import definitions, notebooks
from tests import called, python

pytestmark = pytest.mark.slow

REPLAYED = paths.REPORT / "replayed"


@pytest.fixture(scope="module")
def checked():
    """Run the reproducibility check once; its executed notebooks serve the other tests."""
    shutil.rmtree(REPLAYED, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        run = report.run  # one replay at a time: the other cores are those of other tests
        patch.setattr(report, "run", lambda jobs, folder, output, parallel: run(jobs, folder, output))
        return called("run", "--check")


@pytest.fixture(scope="module")
def outcomes(checked):
    result = report.manifest(REPLAYED / "executed")
    assert result, checked
    return result


def test_the_key_numbers_reproduce(checked):
    status, printed, _ = checked
    assert status == 0 and re.sub(r"\d+", "#", printed) == "reproduced: the key numbers of # replayed notebooks did not move\n"


def test_every_notebook_and_workload_was_replayed_shows_figures_and_no_nan(outcomes):
    assert {outcome.notebook for outcome in outcomes} == set(notebooks.NOTEBOOKS)
    assert {outcome.values.get("workload") for outcome in outcomes} >= set(definitions.workloads())
    for outcome in outcomes:
        assert outcome.status == "ok", outcome.stem
        path = REPLAYED / "executed" / f"{outcome.stem}.ipynb"
        for output in executed_notebooks.outputs(path):
            assert output.get("name") != "stderr", (outcome.stem, output["text"])
            assert not re.search(r"\bnan\b", "".join(output.get("data", {}).get("text/markdown", ""))), outcome.stem
        numbers = report.keys(REPLAYED / "executed", outcome.stem)
        assert outcome.notebook == report.SUMMARY or sum(item["tolerance"] is not None for item in numbers.values()) >= 3
        assert list((REPLAYED / "figures" / outcome.notebook).glob("*.svg")), outcome.stem


@pytest.fixture(scope="module")
def page(outcomes):
    html, problems = report.page(REPLAYED / "executed")
    assert problems == []
    return files.replace(REPLAYED / "index.html", html.encode())


def test_the_report_is_whole_and_needs_no_network(page, outcomes):
    text = page.read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', text), "something is loaded from elsewhere"
    assert "<script" not in text
    for outcome in outcomes:
        assert outcome.command.replace("&", "&amp;") in text
    anchors = set(re.findall(r'id="([^"]+)"', text))
    links = re.findall(r'href="#([^"]+)"', text)
    assert len(links) >= len(notebooks.NOTEBOOKS)
    assert set(links) <= anchors
    assert text.index('id="00_summary"') < text.index('id="01_machine"')
    for part in ("Objectives and hypotheses", "Run matrix", "Environment", "Limitations", "REPLAY", "@media print"):
        assert part in text


def papermill(folder, *words, **how):
    return python("-m", "papermill", "--no-progress-bar", *words, LIB_OUTPUT=str(folder), **how)


def test_measuring_in_the_notebooks_folder_gives_the_notebook_and_the_csv(tmp_path):
    """From other folders runs of jobs do so (test_execute, test_campaign)."""
    papermill(tmp_path, "02_profile.ipynb", tmp_path / "out.ipynb", *"-p workload W6 -p iters 5 -p device cpu".split(),
              cwd=paths.NOTEBOOKS)
    assert (tmp_path / "data/profiles/run_W6_organmnist3d_cnn3d_cpu_train.csv").is_file()
    shown = list(executed_notebooks.outputs(tmp_path / "out.ipynb"))
    printed = "".join("".join(output.get("text", "")) for output in shown)
    seconds, rate = re.search(r"^MEASURED_SEC=([\d.]+) IMGS_PER_SEC=([\d.]+)$", printed, re.M).groups()
    assert float(seconds) * float(rate) == pytest.approx(5 * 4, rel=0.01)


def test_wrong_input_is_one_line_and_a_failed_run(tmp_path):
    """What else is refused is tested in test_params, without a kernel."""
    papermill(tmp_path, paths.NOTEBOOKS / "02_profile.ipynb", tmp_path / "out.ipynb", "-p", "devise", "cpu", cwd=tmp_path,
              status=1)
    (error,) = [output for output in executed_notebooks.outputs(tmp_path / "out.ipynb") if output["output_type"] == "error"]
    assert error["ename"] == "InputError" and error["evalue"].startswith("02_profile: unknown name 'devise' (known: ")
    assert len(error["traceback"]) == 1 and not (tmp_path / "data/runs").exists()
