"""Every notebook executed once, in quick mode on the reference data; what it wrote, what it shows, what must reproduce."""

import html
import json
import re
import shutil

import pytest

from lib import files, paths
from lib.config import definitions, notebooks
from lib.report import page as report
from lib.report import runner, summary
from tests import called, python
from tests.test_forged import opened

pytestmark = pytest.mark.slow

REPLAYED = paths.REPORT / "replayed"


@pytest.fixture(scope="module")
def checked():
    """Run the reproducibility check once; its executed notebooks serve the other tests."""
    shutil.rmtree(REPLAYED, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        run = runner.run  # one replay at a time: the other cores are those of other tests
        patch.setattr(runner, "run", lambda jobs, folder, output, parallel, cores: run(jobs, folder, output, 1, cores))
        return called("run", "--check")


@pytest.fixture(scope="module")
def outcomes(checked):
    result = runner.manifest(REPLAYED / "executed")
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
        for output in runner.outputs(path):
            assert output.get("name") != "stderr", (outcome.stem, output["text"])
            assert "image/png" not in output.get("data", {}), f"{outcome.stem}: a figure shows twice"
            assert not re.search(r"\bnan\b", "".join(output.get("data", {}).get("text/markdown", ""))), outcome.stem
        assert sum(item["tolerance"] is not None for item in runner.keys(path).values()) >= 3, outcome.stem
        assert list((REPLAYED / "figures" / outcome.notebook).glob("*.svg")), outcome.stem


@pytest.fixture(scope="module")
def page(outcomes):
    assembled = report.assemble(REPLAYED / "executed")
    assert assembled.problems == []
    return files.replace(REPLAYED / "index.html", assembled.html)


def test_the_report_is_whole_and_needs_no_network(page, outcomes):
    text = page.read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', text), "something is loaded from elsewhere"
    assert "<script" not in text
    for outcome in outcomes:
        assert outcome.command.replace("&", "&amp;") in text
    anchors = set(re.findall(r'id="([^"]+)"', text))
    links = re.findall(r'href="#([^"]+)"', text)
    assert len(links) > 15
    assert set(links) <= anchors
    ids = re.findall(r'id="(s\d[^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert "@media print" in text
    for part in ("Abstract", "Design and hypotheses", "Limitations", "Appendix"):
        assert part in text
    assert "REPLAY" in text


def test_the_committed_figure_is_that_of_the_replayed_notebooks(outcomes):
    """Where it is not: as the README says below that figure."""
    numbers = {outcome.stem: runner.keys(REPLAYED / "executed" / f"{outcome.stem}.ipynb") for outcome in outcomes}
    figure = (paths.ROOT / "figures/summary.svg").read_text(encoding="utf-8")
    texts = (html.unescape(re.search(r"<dc:description>(.*?)</dc:description>", figure, re.S).group(1)),
             summary.description(numbers))
    value = re.compile(r"(?<= )[\d,.]+\d(?=[,.])")
    assert value.sub("#", texts[0]) == value.sub("#", texts[1])
    drawn, replayed = ([float(number.replace(",", "")) for number in value.findall(text)] for text in texts)
    assert len(drawn) >= 20
    assert drawn == pytest.approx(replayed, rel=0.05)


PROBE = """
<script>window.addEventListener("load", () => {
  const broken = [...document.images].filter(i => !i.complete || !i.naturalWidth).length;
  const wide = document.documentElement.scrollWidth > innerWidth + 1;
  document.title = JSON.stringify({images: document.images.length, broken, wide, width: innerWidth});
});</script></body>"""


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1300, 500])
def test_the_report_in_a_browser(page, chromium, tmp_path, width):
    allowed, policies = re.subn("default-src ('|&#39;)none('|&#39;)", "default-src 'none'; script-src 'unsafe-inline'",
                                page.read_text())
    assert policies == 1
    seen = json.loads(html.unescape(opened(chromium, tmp_path, allowed.replace("</body>", PROBE), width, silent=True)))
    assert seen["images"] >= 15
    assert seen["broken"] == 0
    assert not seen["wide"], f"the page is wider than {seen['width']} px"


def papermill(folder, *words, **how):
    return python("-m", "papermill", "--no-progress-bar", *words, LIB_OUTPUT=str(folder), **how)


def test_measuring_in_the_notebooks_folder_gives_the_notebook_and_the_csv(tmp_path):
    """From other folders agents and runs of jobs do so (test_agents, test_campaign)."""
    papermill(tmp_path, "02_profile.ipynb", tmp_path / "out.ipynb", *"-p workload W6 -p iters 5 -p device cpu".split(),
              cwd=paths.NOTEBOOKS)
    assert (tmp_path / "data/profiles/run_W6_organmnist3d_cnn3d_cpu_train.csv").is_file()
    shown = list(runner.outputs(tmp_path / "out.ipynb"))
    assert not any("image/png" in output.get("data", {}) for output in shown), "a figure shows twice"
    printed = "".join("".join(output.get("text", "")) for output in shown)
    seconds, rate = re.search(r"^MEASURED_SEC=([\d.]+) IMGS_PER_SEC=([\d.]+)$", printed, re.M).groups()
    assert float(seconds) * float(rate) == pytest.approx(5 * 4, rel=0.01)


def test_wrong_input_is_one_line_and_a_failed_run(tmp_path):
    """What else is refused is tested in test_params, without a kernel."""
    papermill(tmp_path, paths.NOTEBOOKS / "02_profile.ipynb", tmp_path / "out.ipynb", "-p", "devise", "cpu", cwd=tmp_path,
              status=1)
    (error,) = [output for output in runner.outputs(tmp_path / "out.ipynb") if output["output_type"] == "error"]
    assert error["ename"] == "InputError" and error["evalue"].startswith("02_profile: unknown name 'devise' (known: ")
    assert len(error["traceback"]) == 1 and not (tmp_path / "data/runs").exists()
