"""The runner, the report and the command line: strict, red where something failed, silent about nothing."""

import errno
import re
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from nbformat import v4

from lib import files, paths, progress
from lib.cli.main import _parser
from lib.config import definitions, notebooks
from lib.report import page, plots, runner, style
from lib.work.graph import spaces
from tests import called, output_of, python, refusal


def jobs(**more):
    return runner.plan(**{"full": False, "names": [], "workloads": ["W1", "W5"], "devices": ["cpu"], "extra": {}, **more})


def test_the_plan_runs_over_workloads_and_devices():
    stems = [job.stem for job in jobs(devices=["cpu", "cuda:0"], names=["01", "02", "04"])]
    assert stems == ["01_machine_cpu", "01_machine_cuda-0", "02_profile_W1_cpu", "02_profile_W1_cuda-0",
                     "02_profile_W5_cpu", "02_profile_W5_cuda-0", "04_complexity"]
    for full in (False, True):
        assert {job.notebook for job in jobs(full=full)} == set(notebooks.NOTEBOOKS), "without names, all"
    line = "papermill notebooks/02_profile.ipynb out.ipynb -p workload W1 -p device cpu -p iters 20 -p source measure\n"
    assert output_of("run", "02", "--workloads", "W1", "--devices", "cpu", "--dry-run") == line


def test_text_that_looks_like_a_number_stays_text():
    job = runner.Job("02_profile", "x", {"label": "12e5678", "iters": 3, "workload": "W1"})
    assert job.arguments == ["-r", "label", "12e5678", "-p", "iters", "3", "-p", "workload", "W1"]


def outcome(stem, **more):
    return runner.Outcome(**{"notebook": "01_machine", "stem": stem, "command": "papermill x", "values": {}, "status": "ok",
                             "error": "", "seconds": 1.0, "finished_utc": "now", **more})


def executed(folder, stem, *cells, **numbers):
    """Write an executed notebook of cells that recorded ``numbers`` (name=(value, tolerance))."""
    recorded = {name: {"value": value, "unit": "", "tolerance": tolerance} for name, (value, tolerance) in numbers.items()}
    cell = v4.new_code_cell("", outputs=[v4.new_output("display_data", {runner.KEYS_MIME: recorded})])
    nbformat.write(v4.new_notebook(cells=[*cells, cell]), files.folder(folder) / f"{stem}.ipynb")
    return outcome(stem)


@pytest.mark.slow
def test_notebooks_that_failed_or_never_ran_are_red_in_the_report(home, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", home)
    first, *others = [section.notebook for section in definitions.load_report_plan().sections]
    cells = [v4.new_code_cell(code) for code in ("print('before')", "raise ValueError('it broke <here>')")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(v4.new_notebook(cells=cells, metadata=kernel), home / f"{first}.ipynb")
    (failed,) = runner.run([runner.Job(first, first)], paths.EXECUTED)
    assert failed.status == "failed" and failed.error == "ValueError: it broke <here>"
    built = page.assemble(paths.EXECUTED)
    text = built.html.decode()
    assert built.problems == [f"{first}: {failed.error}", *(f"{name}: has not been run" for name in others)]
    assert f'<p class="failed">{first}: ValueError: it broke &lt;here&gt;</p>' in text
    assert "before" in text, "what ran before the failure is shown"
    assert text.count("This notebook has not been run") == len(others)


def test_the_page_answers_first_and_folds_the_rest(home):
    def code(text, tags=(), **data):
        output = v4.new_output("display_data", {kind.replace("_", "/"): value for kind, value in data.items()})
        return v4.new_code_cell(text, metadata={"tags": list(tags)}, outputs=[output])

    table = style.table_html(pd.DataFrame({"row": range(30)}), "Thirty rows.")
    runs = {"W1_cpu throughput": 4321.0, "W1_cpu verdict": "stable", "W2_cpu throughput": 77.0, "W2_cpu verdict": "unusable"}
    cells = [v4.new_markdown_cell("# Title\n\nThe question.\n\nThe method."),
             v4.new_markdown_cell("## The ceilings"), code("", text_html=table),
             code("", text_markdown="A finding."),
             v4.new_markdown_cell("## Inventory"), code("", text_markdown="A detail."),
             code("", ["front"], text_markdown="- The answer."), v4.new_markdown_cell("## What we learned"),
             code("", text_markdown="- A finding.")]
    numbers = {name: (value, None) for name, value in runs.items()}
    runner._merge([executed(paths.EXECUTED, "01_machine_cpu", *cells, **numbers)], paths.EXECUTED)
    soup = BeautifulSoup(page.assemble(paths.EXECUTED).html, "html.parser")
    folded = {line.get_text(): line.parent.extract().get_text() for line in soup.find_all("summary")}
    assert "The method." in folded["Method"] and "A detail." in folded["Inventory"] and "29" in folded["Thirty rows. (30 rows)"]
    first, section = soup.find(id="abstract").get_text(), soup.find(id="s1").get_text()
    assert "The answer." in first and "4,321" in first and "1 of 2 training runs are unusable" in first and "77" not in first
    assert "The question." in section and "The ceilings" in section and section.count("A finding.") == 1
    assert section.index("What we learned") < section.index("The ceilings")


def test_what_goes_on_is_said_in_a_terminal_and_nowhere_else(capsys, monkeypatch):
    for name in ("CI", "LIB_BATCH"):
        monkeypatch.delenv(name, raising=False)
    for is_terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda answer=is_terminal: answer, raising=False)
        with progress.doing("loading"):
            pass
        assert capsys.readouterr() == ("", "loading ...\r\033[K" * is_terminal)


def test_numbers_that_move_are_named(home, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE", home / "reference")
    before = executed(home / "a", "s", rows=(10.0, 0.0), error=(5.0, 0.1), gone=(1.0, 0.0), time=(3.0, None))
    runner.accept(home / "a", [before])
    assert runner.moved(home / "a", [before]) == []
    after = executed(home / "b", "s", rows=(11.0, 0.0), error=(5.4, 0.1), new=(2.0, 0.0), time=(99.0, None))
    assert runner.moved(home / "b", [after]) == [
        "s: 'gone' is no longer recorded", "s: 'new' is new (2); accept it with --accept",
        "s: 'rows' moved from 10 to 11 (tolerance 0.0%)"]
    assert runner.moved(home / "c", [outcome("s", status="failed", error="it broke")]) == ["s: it broke"]


REFUSED = """
run 99                                 no notebook '99' in params/report.yaml; there are: 01_machine, 02_profile
run --workloads W1,W77                 no workload 'W77'; there are: W1
run 02 -p precision fp8                precision = 'fp8'
run 02 --devices cpu -p nope 1         no chosen notebook has the parameter nope
run 02 --devices cpu,xpu               device 'xpu' is not here; this machine has: cpu
run 02 --source replay --devices xpu   the reference has no device xpu; it has: cpu (or all)
run 03 -p name ..                      name = '..'
run --workloads W1,,W2                 'W1,,W2' is no list of names
run --report --check                   not allowed with
run --devices cpu,cpu                  argument --devices:
import bundle nowhere.zip              nowhere.zip is missing
bundle                                 nothing to pack
report --executed nowhere              nothing has been run yet: no manifest in nowhere
report --figure there.html             there.html exists already
report --out .                         is a folder
matrix --repeats 0                     argument --repeats:
matrix --cells ,                       argument --cells:
networks --case-s inf                  argument --case-s:
networks --name ../x                   argument --name:
networks --networks W6,W6              argument --networks:
run-jobs j.csv --slots 0               --slots: '0'
"""


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_the_command_line_refuses_wrong_input_in_one_line(home, monkeypatch, case):
    monkeypatch.chdir(home)
    (home / "there.html").write_text("theirs")
    line, words = re.split(" {2,}", case)
    assert words in refusal(*line.split())
    assert [path.name for path in home.iterdir()] == ["there.html"]


@pytest.mark.slow
def test_a_report_goes_to_new_files_or_replaces_its_own(home, monkeypatch):
    def names():
        return sorted(path.name for path in paths.REPORT.iterdir())

    runner._merge([executed(paths.EXECUTED, "01_machine")], paths.EXECUTED)
    for _ in range(2):
        output_of("report", status=1)  # the other notebooks have not been run
    assert names() == ["executed", "index.html", "summary.svg"]
    output_of("report", "--out", home / "a.html", "--figure", home / "a.svg", status=1)
    assert [(home / f"a.{kind}").read_bytes()[:5] for kind in ("html", "svg")] == [b"<!DOC", b"<?xml"]
    before = (paths.REPORT / "index.html").read_bytes()
    monkeypatch.setattr("lib.files.os.replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    assert "cannot be written (No space left on device)" in called("report")[2].splitlines()[-1]
    assert (paths.REPORT / "index.html").read_bytes() == before
    assert names() == ["executed", "index.html", "summary.svg"], "nothing half"


def test_one_process_at_a_time_runs_a_notebook_and_builds_its_page(home, monkeypatch):
    """Two at once would write one executed notebook, and a page of one would lack what the other was running again."""
    monkeypatch.setattr(runner, "run", lambda jobs, *_, **__: [outcome(job.stem) for job in jobs])

    def second(executed, *_):
        (line,) = python("-m", "lib", "run", "01", "--devices", "cpu", "--report", status=2).stderr.splitlines()
        assert "01_machine_cpu.ipynb is being written by another process" in line
        return []

    monkeypatch.setattr("lib.cli.report._written", Mock(side_effect=second))
    output_of("run", "01", "--devices", "cpu", "--report")


def test_gpus_are_measured_side_by_side_and_the_cpu_before_them(home, monkeypatch):
    together, shares = threading.Barrier(2), {}

    def execute(job, _, __, threads):
        shares[job.stem] = threads
        if "cuda" in job.stem:
            together.wait(timeout=30)  # neither ends before the other one has begun
        return outcome(job.stem, notebook=job.notebook)

    monkeypatch.setattr(runner, "execute", execute)
    planned = jobs(names=["01", "02"], workloads=["W1"], devices=["cuda:0", "cpu", "cuda:1"])
    stems = [job.stem for job in planned]
    failed = {"status": "failed", "error": "it broke"}
    runner._merge([outcome("04_complexity", notebook="04_complexity", **failed), outcome("01_machine_cpu", **failed)],
                  paths.EXECUTED)
    assert [one.stem for one in runner.run(planned, paths.EXECUTED, cores=7)] == stems
    begun = list(shares)
    assert shares == {stem: 4 if "cuda" in stem else 0 for stem in stems}, "cards share the cores"
    assert [begun[0], begun[3]] == ["01_machine_cpu", "02_profile_W1_cpu"]
    entries = [(entry.stem, entry.status) for entry in runner.manifest(paths.EXECUTED)]
    assert entries == [*((stem, "ok") for stem in sorted(stems)), ("04_complexity", "failed")], "a second run replaces its own"


def test_help_and_import_are_light():
    program = "import sys, lib, lib.__main__; print(sorted({'torch', 'pandas', 'matplotlib', 'pydantic'} & set(sys.modules)))"
    assert python("-c", program).stdout.strip() == "[]"


@pytest.fixture
def cluster(tmp_path):
    """Return how a task of a template calls the interpreter: LIB_OUTPUT, and a line that the program takes."""
    python = tmp_path / ".venv/bin/python"

    def run(template, *words, **environment):
        script = str(paths.PARAMS / f"slurm_{template}.sbatch")
        done = subprocess.run(["bash", script, *words], capture_output=True, text=True, check=True,
                              env={"PATH": "/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path), **environment})
        calls = [line.split(" ", 1) for line in done.stdout.splitlines()]
        assert all(_parser().parse_args(line.split()) for _, line in calls)
        return calls

    with pytest.raises(subprocess.CalledProcessError, match="status 127"):  # a folder without .venv is no checkout
        run("profiles", SLURM_ARRAY_TASK_ID="3")
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nshift 2\necho "$LIB_OUTPUT $*"\n')
    python.chmod(0o755)
    return run


@pytest.mark.parametrize("scratch", ["", "scratch"])
def test_the_slurm_templates_give_each_task_its_part_and_a_folder_and_collect_what_there_is(cluster, tmp_path, scratch):
    slurm, where = tmp_path / scratch / "slurm", {"LIB_OUTPUT": str(tmp_path / scratch)} if scratch else {}
    assert cluster("profiles", "--dry-run", SLURM_ARRAY_TASK_ID="3", **where) == [
        [f"{slurm}/profiles-3", "run 02_profile --full --workloads W3 --devices auto --dry-run"]]
    [[folder, line]] = cluster("sweep", "-p", "rounds", "3", SLURM_ARRAY_TASK_ID="3", DEVICES="all", **where)
    options = _parser().parse_args(line.split())
    p = notebooks.check("03_sweep", {"device": options.device, **dict(options.parameter)})
    assert folder == f"{slurm}/sweep-3" and p.device == "all" and p.grid == "original_convolution" and p.shard == "3/100"
    assert p.budget_s == 0 and p.rounds == 3 and p.name == "shard"
    assert spaces.too_large(spaces.load_sweeps().grids[p.grid], p.shard_pair) == "", "a task walks all of its shard"
    assert cluster("collect", **where) == []
    shards, earlier = [f"{slurm}/sweep-{number}/data/sweeps/shard" for number in range(2)], slurm / "merged/data/sweeps/linear"
    for folder in (*shards, slurm / "profiles-1/data/runs", earlier):
        Path(folder).mkdir(parents=True)
    (slurm / "merged.zip").touch()
    assert cluster("collect", NAME="linear", **where) == [
        [f"{slurm}/merged", f"sweeps merge {shards[0]} {shards[1]} --name linear"],
        *([f"{slurm}/{name}", f"bundle --out {slurm}/{name}.zip"] for name in ("profiles-1", "merged"))]
    assert not earlier.exists() and not (slurm / "merged.zip").exists()


def test_a_sentence_without_its_number_is_not_shown():
    lookup = page._lookup({"05_roofline": {"cpu largest share": {"value": "not measured", "unit": ""},
                                           "cpu points": {"value": 3.0, "unit": "points"}}})
    line = f"- **The roofline**: the best attains {lookup(' largest share')} of it. There are {lookup(' points')}."
    assert page._measured(line) == ("- **The roofline**: There are 3 points. "
                                    "*Some numbers are missing: nothing usable was measured.*")


def test_runs_at_once_lose_no_entry_of_the_manifest(tmp_path, monkeypatch):
    """Each merges one outcome; with a pause between reading and writing, all but the last would be lost without the lock."""
    read, outcomes = runner.manifest, [outcome(f"01_{number}") for number in range(4)]

    def slow(folder):
        entries = read(folder)
        time.sleep(0.05)
        return entries

    monkeypatch.setattr(runner, "manifest", slow)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: runner._merge([one], tmp_path), outcomes))
    assert read(tmp_path) == outcomes


def test_short_logarithmic_axes_have_plain_numbers_that_do_not_overlap():
    style.use_style()
    figure, (axis,) = plots.axes()
    axis.plot([120, 1200], [1, 2])
    axis.set(xscale="log", xlim=(120, 1200))
    style.png(figure)
    shown = [label.get_text() for label in axis.get_xticklabels(which="both") if 120 <= label.get_position()[0] <= 1200]
    assert [text for text in shown if text] == ["200", "500", "1,000"]
