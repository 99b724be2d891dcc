"""The runner, the report and the command line: strict, red where something failed, silent about nothing."""

import re
import subprocess
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pytest
from nbformat import v4

from lib import files, paths, report, store
from lib.cli.main import _parser
from lib.config import definitions, notebooks
from lib.work.graph import spaces
from tests import output_of, python, refusal


def jobs(**more):
    return report.plan(**{"full": False, "names": [], "workloads": ["W1", "W5"], "devices": ["cpu"], "extra": {}, "usual": {},
                          **more})


def test_the_plan_runs_over_workloads_and_devices():
    stems = [job.stem for job in jobs(devices=["cpu", "cuda:0"], names=["01", "02", "04"])]
    assert stems == ["01_machine_cpu", "01_machine_cuda-0", "02_profile_W1_cpu", "02_profile_W1_cuda-0",
                     "02_profile_W5_cpu", "02_profile_W5_cuda-0", "04_complexity"]
    for full in (False, True):
        assert {job.notebook for job in jobs(full=full)} == set(notebooks.NOTEBOOKS), "without names, all"
    line = "papermill notebooks/02_profile.ipynb out.ipynb -p workload W1 -p device cpu -p iters 20 -p source measure\n"
    assert output_of("run", "02", "--workloads", "W1", "--devices", "cpu", "--dry-run") == line


def test_text_that_looks_like_a_number_stays_text():
    job = report.Job("02_profile", "x", {"label": "12e5678", "iters": 3, "workload": "W1", "profile": False})
    assert job.arguments == ["-r", "label", "12e5678", "-p", "iters", "3", "-p", "workload", "W1",
                             "-p", "profile", "False"]


def outcome(stem, **more):
    return report.Outcome(**{"notebook": "01_machine", "stem": stem, "command": "papermill x", "values": {}, "status": "ok",
                             "error": "", "seconds": 1.0, "finished_utc": "now", **more})


def executed(folder, stem, *cells, **numbers):
    """Write an executed notebook of cells that recorded ``numbers`` (name=(value, tolerance))."""
    recorded = {name: {"value": value, "unit": "", "tolerance": tolerance} for name, (value, tolerance) in numbers.items()}
    cell = v4.new_code_cell("", outputs=[v4.new_output("display_data", {report.KEYS_MIME: recorded})])
    nbformat.write(v4.new_notebook(cells=[*cells, cell]), files.folder(folder) / f"{stem}.ipynb")
    return outcome(stem)


@pytest.mark.slow
def test_notebooks_that_failed_or_never_ran_are_red_in_the_page(home, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", home)
    names = sorted(section.notebook for section in definitions.load_report_plan().sections)
    cells = [v4.new_markdown_cell("# Title"), v4.new_code_cell("print('before')"),
             v4.new_code_cell("raise ValueError('it broke <here>')")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(v4.new_notebook(cells=cells, metadata=kernel), home / "01_machine.ipynb")
    (failed,) = report.run([report.Job("01_machine", "01_machine")], paths.EXECUTED)
    assert failed.status == "failed" and failed.error == "ValueError: it broke <here>"
    html, problems = report.page(paths.EXECUTED)
    assert sorted(problems) == sorted([f"01_machine: {failed.error}",
                                       *(f"{name}: has not been run" for name in names if name != "01_machine")])
    assert '<p class="failed">01_machine: ValueError: it broke &lt;here&gt;</p>' in html
    assert "before" in html, "what ran before the failure is shown"


def test_the_page_shows_open_cells_folds_the_others_and_shows_each_run_once(home):
    def cell(text, *tags):
        return v4.new_code_cell("1", metadata={"tags": list(tags)},
                                outputs=[v4.new_output("display_data", {"text/markdown": text})])

    cells = [v4.new_markdown_cell("# Title\n\nThe question.", metadata={"tags": ["once"]}),
             v4.new_markdown_cell("## Inventory"), cell("A detail."), cell("The answer.", "open"),
             cell("Below all runs.", "last"), cell("An exercise.", "try")]
    for entry in (executed(paths.EXECUTED, "01_machine_cpu", *cells), executed(paths.EXECUTED, "02_W1", *cells),
                  executed(paths.EXECUTED, "02_W2", *cells)):
        values = {"workload": entry.stem[3:]} if entry.stem.startswith("02") else {}
        name = "02_profile" if values else "01_machine"
        report._keep(entry.model_copy(update={"notebook": name, "values": values}), paths.EXECUTED)
    html, _ = report.page(paths.EXECUTED)
    sections = {name: html.partition(f'<section id="{name}">')[2].partition("</section>")[0]
                for name in ("01_machine", "02_profile")}
    one, several = sections.values()
    assert re.search(r"<details><summary>Inventory</summary><div>.*A detail.*</details>\s*<div>.*The answer", one, re.S)
    assert "An exercise." not in html and one.count("The question.") == several.count("The question.") == 1
    assert re.findall(r"<details><summary>(W\d)", several) == ["W1", "W2"] and several.count("Below all runs.") == 1


def test_the_summary_runs_last_with_the_key_numbers_of_the_others(home, monkeypatch):
    begun = []

    def execute(job, folder, *_):
        begun.append((job.stem, (folder / "keys.json").is_file()))
        return executed(folder, job.stem, value=(1.0, 0.0)).model_copy(update={"notebook": job.notebook})

    monkeypatch.setattr(report, "_execute", execute)
    report.run(jobs(names=["00", "01", "02"]), paths.EXECUTED, parallel=2)
    assert begun[-1] == ("00_summary", True) and len(begun) == 4
    assert sorted(store.read_json(paths.EXECUTED / "keys.json")) == ["01_machine_cpu", "02_profile_W1_cpu", "02_profile_W5_cpu"]


def test_numbers_that_move_are_named(home, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE", home / "reference")
    before = executed(home / "a", "s", rows=(10.0, 0.0), error=(5.0, 0.1), gone=(1.0, 0.0), time=(3.0, None))
    report.accept(home / "a", [before])
    assert report.moved(home / "a", [before]) == []
    after = executed(home / "b", "s", rows=(11.0, 0.0), error=(5.4, 0.1), new=(2.0, 0.0), time=(99.0, None))
    assert report.moved(home / "b", [after]) == [
        "s: gone is no longer recorded", "s: new is new (2.0); accept it with --accept",
        "s: rows moved from 10.0 to 11.0 (tolerance 0.0%)"]
    assert report.moved(home / "c", [outcome("s", status="failed", error="it broke")]) == ["s: it broke"]


REFUSED = """
run 99                                 no notebook '99' in params/report.yaml; there are: 00_summary, 01_machine
run --workloads W1,W77                 no workload 'W77'; there are: W1
run 02 -p precision fp8                precision = 'fp8'
run 02 --devices cpu -p nope 1         no chosen notebook has the parameter nope
run 02 --devices cpu,xpu               device 'xpu' is not here; this machine has: cpu
run 02 --source replay --devices xpu   the reference has no device xpu; it has: cpu (or all)
run 03 -p name ..                      name = '..'
run --report --check                   not allowed with
run 01 --accept                        --accept goes with --check
run 01 --check --full                  --check compares the committed parameters
run --page                             nothing has been run yet: no manifest in
run 02 --page                          --page shows all that was executed before: leave out notebooks
run --page --accept                    leave out notebooks, -p, --accept and --dry-run
measure matrix --repeats 0             argument --repeats:
measure networks --energy-s inf        argument --energy-s:
"""


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_the_command_line_refuses_wrong_input_in_one_line(home, monkeypatch, case):
    monkeypatch.chdir(home)
    (home / "there.html").write_text("theirs")
    line, words = re.split(" {2,}", case)
    assert words in refusal(*line.split())
    assert [path.name for path in home.iterdir()] == ["there.html"]


def test_one_process_at_a_time_runs_a_notebook_and_builds_its_page(home, monkeypatch):
    """Two at once would write one executed notebook, and a page of one would lack what the other was running again."""
    monkeypatch.setattr(report, "run", lambda jobs, *_, **__: [outcome(job.stem) for job in jobs])

    def second(executed, *_):
        (line,) = python("-m", "lib", "run", "01", "--devices", "cpu", "--report", status=2).stderr.splitlines()
        assert "01_machine_cpu.ipynb is being written by another process" in line
        return False

    written = Mock(side_effect=second)
    monkeypatch.setattr("lib.cli.report._written", written)
    output_of("run", "01", "--devices", "cpu", "--report")
    written.assert_called_once()


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
        assert all(_parser().parse_args(line.split()) for _, line in calls if not line.startswith("merge "))
        return calls

    with pytest.raises(subprocess.CalledProcessError, match="status 127"):  # a folder without .venv is no checkout
        run("profiles", SLURM_ARRAY_TASK_ID="3")
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$1" = -m ] || set -- -c code merge "$3" "$4" "$5"\nshift 2\necho "$LIB_OUTPUT $*"\n')
    python.chmod(0o755)
    return run


@pytest.mark.parametrize("scratch", ["", "scratch"])
def test_the_slurm_templates_give_each_task_its_part_and_a_folder_and_collect_what_there_is(cluster, tmp_path, scratch):
    slurm, where = tmp_path / scratch / "slurm", {"LIB_OUTPUT": str(tmp_path / scratch)} if scratch else {}
    assert cluster("profiles", "--dry-run", SLURM_ARRAY_TASK_ID="3", **where) == [
        [f"{slurm}/profiles-3", "run 02_profile --full --workloads W3 --devices auto --dry-run"]]
    [[folder, line]] = cluster("sweep", "-p", "rounds", "3", SLURM_ARRAY_TASK_ID="3", DEVICES="all", **where)
    p = notebooks.check("03_sweep", dict(_parser().parse_args(line.split()).parameters))
    assert folder == f"{slurm}/sweep-3" and p.device == "all" and p.grid == "original_convolution" and p.shard == "3/100"
    assert p.budget_s == 0 and p.rounds == 3 and p.name == "shard"
    assert spaces.too_large(spaces.load_sweeps().grids[p.grid], p.shard_pair) == "", "a task walks all of its shard"
    [[_, line]] = cluster("sweep", SLURM_ARRAY_TASK_ID="3", DEVICES="cuda:0,cuda:1", **where)
    (job,) = jobs(names=["03"], extra=dict(_parser().parse_args(line.split()).parameters))
    assert outcome(job.stem).stem == "03_sweep_cuda-0-cuda-1", "a name of a file"
    assert cluster("collect", **where) == []
    shards, earlier = [f"{slurm}/sweep-{number}/data/sweeps/shard" for number in range(2)], slurm / "merged/data/sweeps/linear"
    for folder in (*shards, slurm / "profiles-1/data/runs", earlier):
        Path(folder).mkdir(parents=True)
    (slurm / "merged.zip").touch()
    assert cluster("collect", NAME="linear", **where) == [
        [f"{slurm}/merged", f"merge linear {shards[0]} {shards[1]}"],
        *([f"{slurm}/{name}", f"data pack {slurm}/{name}.zip"] for name in ("profiles-1", "merged"))]
    assert not earlier.exists() and not (slurm / "merged.zip").exists()
