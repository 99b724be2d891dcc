"""The runner, the report and the command line: strict, red where something failed, silent about nothing."""

import errno
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest

from lib import __main__ as cli
from lib import paths, store
from lib.config import definitions, notebooks
from lib.errors import InputError
from lib.report import page, runner, style

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def jobs(**more):
    values = {"full": False, "names": [], "workloads": ["W1", "W5"], "devices": ["cpu"], "extra": {}, **more}
    return runner.plan(**values)


def test_the_plan_runs_over_workloads_and_devices():
    stems = [job.stem for job in jobs(devices=["cpu", "cuda:0"], names=["01", "02", "04"])]
    assert stems == ["01_machine_cpu", "01_machine_cuda-0", "02_profile_W1_cpu", "02_profile_W1_cuda-0",
                     "02_profile_W5_cpu", "02_profile_W5_cuda-0", "04_complexity"]
    assert {job.notebook for job in jobs()} == set(notebooks.NOTEBOOKS), "without names, all"
    quick, full = jobs(names=["02"])[-1], jobs(names=["02"], full=True)[-1]
    assert full.values["iters"] > quick.values["iters"]
    assert quick.command.startswith("papermill notebooks/02_profile.ipynb out.ipynb -p workload W5 -p device cpu")
    assert [job.notebook for job in jobs(names=["02"])] == ["02_profile"] * 2


@pytest.mark.parametrize(("more", "words"), [
    ({"names": ["99"]}, "no notebook '99' in params/report.yaml; there are: 01_machine, 02_profile"),
    ({"workloads": ["W9"]}, "no workload 'W9'"),
    ({"extra": {"sauce": "1"}}, "no chosen notebook has the parameter sauce"),
    ({"extra": {"iters": "many"}}, "iters = 'many'"),
])
def test_a_plan_that_cannot_be_run_is_refused(more, words):
    with pytest.raises(InputError, match=words):
        jobs(**more)


def test_text_that_looks_like_a_number_stays_text():
    job = runner.Job("02_profile", "x", {"label": "12e5678", "iters": 3, "seed": 7, "workload": "W1", "profile": True})
    assert job.arguments == ["-r", "label", "12e5678", "-p", "iters", "3", "-p", "seed", "7", "-p", "workload", "W1",
                             "-p", "profile", "True"]


@pytest.fixture
def two(home, monkeypatch):
    """Give a plan of two notebooks, one of which fails in its second cell."""
    folder = home / "notebooks"
    folder.mkdir()
    good, bad = (nbformat.v4.new_notebook() for _ in range(2))
    parameters = nbformat.v4.new_code_cell("source: str = 'measure'  # how", metadata={"tags": ["parameters"]})
    good.cells = [nbformat.v4.new_markdown_cell("# Good\n\n## Part"), parameters, nbformat.v4.new_code_cell("print('fine')")]
    bad.cells = [nbformat.v4.new_markdown_cell("# Bad"), parameters, nbformat.v4.new_code_cell("print('before')"),
                 nbformat.v4.new_code_cell("raise ValueError('it broke <here>')")]
    for name, notebook in (("01_machine", good), ("02_profile", bad)):
        notebook.metadata["kernelspec"] = KERNEL
        nbformat.write(notebook, folder / f"{name}.ipynb")
    monkeypatch.setattr(paths, "NOTEBOOKS", folder)
    plan = definitions.load_report_plan()
    both = plan.model_copy(update={"sections": plan.sections[:2]})
    monkeypatch.setattr(definitions, "load_report_plan", lambda: both)


@pytest.mark.slow
def test_a_failing_notebook_fails_the_run_and_is_red_in_the_report(two):
    failing = runner.run([runner.Job("01_machine", "01_machine"), runner.Job("02_profile", "02_profile")], paths.EXECUTED)
    assert [outcome.status for outcome in failing] == ["ok", "failed"]
    assert failing[1].error == "ValueError: it broke <here>"
    built = page.assemble(paths.EXECUTED)
    text = built.html.decode()
    assert built.problems == ["02_profile: ValueError: it broke <here>"]
    assert '<p class="failed">02_profile: ValueError: it broke &lt;here&gt;</p>' in text
    assert "before" in text, "what ran before the failure is shown"
    assert "fine" in text
    assert cli.main(["report"]) == 1


@pytest.mark.slow
def test_a_dead_kernel_is_named(home, monkeypatch):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import os; os.kill(os.getpid(), 9)")])
    (home / "notebooks").mkdir()
    notebook.metadata["kernelspec"] = KERNEL
    nbformat.write(notebook, home / "notebooks" / "01_machine.ipynb")
    monkeypatch.setattr(paths, "NOTEBOOKS", home / "notebooks")
    outcome = runner.execute(runner.Job("01_machine", "01_machine"), paths.EXECUTED)
    assert (outcome.status, outcome.error) == ("failed", "the kernel died: out of memory?")


def outcome(stem, **more):
    return runner.Outcome(**{"notebook": "01_machine", "stem": stem, "command": "papermill x", "values": {}, "status": "ok",
                             "error": "", "seconds": 1.0, "finished_utc": "now", **more})


def executed(folder, stem, **numbers):
    """Write an executed notebook that recorded ``numbers`` (name=(value, tolerance))."""
    recorded = {name: {"value": value, "unit": "", "tolerance": tolerance} for name, (value, tolerance) in numbers.items()}
    cell = nbformat.v4.new_code_cell("", outputs=[nbformat.v4.new_output("display_data", {runner.KEYS_MIME: recorded})])
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / f"{stem}.ipynb")
    return outcome(stem)


def test_a_notebook_that_never_ran_is_red_too(two):
    runner._merge([executed(paths.EXECUTED, "01_machine")], paths.EXECUTED)
    built = page.assemble(paths.EXECUTED)
    assert built.problems == ["02_profile: has not been run"]
    assert "This notebook has not been run" in built.html.decode()


@pytest.mark.slow
def test_a_second_run_replaces_its_entry_alone(two):
    before = outcome("02_profile", notebook="02_profile", status="failed", error="it broke")
    runner._merge([executed(paths.EXECUTED, "01_machine"), before], paths.EXECUTED)
    (paths.NOTEBOOKS / "02_profile.ipynb").write_text((paths.NOTEBOOKS / "01_machine.ipynb").read_text())
    runner.run([runner.Job("02_profile", "02_profile")], paths.EXECUTED)
    entries = [(entry.stem, entry.status) for entry in runner.manifest(paths.EXECUTED)]
    assert entries == [("01_machine", "ok"), ("02_profile", "ok")]


def test_numbers_that_move_are_named(home, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE", home / "reference")
    before = executed(home / "a", "s", rows=(10.0, 0.0), error=(5.0, 0.1), gone=(1.0, 0.0), time=(3.0, None))
    runner.accept(home / "a", [before])
    assert runner.moved(home / "a", [before]) == []
    after = executed(home / "b", "s", rows=(11.0, 0.0), error=(5.4, 0.1), new=(2.0, 0.0), time=(99.0, None))
    assert runner.moved(home / "b", [after]) == [
        "s: 'gone' is no longer recorded", "s: 'new' is new (2); accept it with --accept",
        "s: 'rows' moved from 10 to 11 (tolerance 0.0%)"]
    nothing = executed(home / "c", "s", rows=(float("nan"), 0.0), error=(5.0, 0.1), gone=(1.0, 0.0))
    assert runner.moved(home / "c", [nothing]) == ["s: 'rows' moved from 10 to nan (tolerance 0.0%)"]
    failed = outcome("s", status="failed", error="it broke")
    assert runner.moved(home / "c", [failed]) == ["s: it broke"]


@pytest.mark.parametrize(("arguments", "words"), [
    (["run", "99"], "no notebook '99'"),
    (["run", "--workloads", "W1,W77"], "no workload 'W77'; there are: W1"),
    (["run", "02", "-p", "precision", "fp8"], "precision = 'fp8'"),
    (["run", "02", "--devices", "cpu", "-p", "nope", "1"], "no chosen notebook has the parameter nope"),
    (["run", "01", "--devices", "gpu"], "device 'gpu' is not here"),
    (["import", "bundle", "nowhere.zip"], "nowhere.zip is missing"),
    (["bundle"], "nothing to pack"),
    (["report"], "nothing has been run yet"),
    (["report", "--executed", "nowhere"], "nothing has been run yet: no manifest in nowhere"),
    (["run", "02", "--devices", "cpu,xpu"], "device 'xpu' is not here; this machine has: cpu"),
    (["run", "02", "--source", "replay", "--devices", "xpu"], "the reference has no device xpu; it has: cpu (or all)"),
    (["run", "02", "--devices", "auto,cpu"], "devices 'auto,cpu': cpu is there twice"),
    (["run", "02", "-p", "workload", "W9"], "no workload 'W9'; there are: W1"),
    (["run", "02", "-p", "device", "../x"], "device = '../x'"), (["run", "03", "-p", "name", ".."], "name = '..'"),
])
def test_the_command_line_refuses_wrong_input_in_one_line(home, capsys, arguments, words):
    assert cli.main(arguments) == 2
    shown = capsys.readouterr().err.strip()
    assert shown.startswith("error: ")
    assert words in shown
    assert "\n" not in shown


@pytest.mark.parametrize(("arguments", "words"), [
    (["run", "--devices", "cpu,cpu"], "'cpu,cpu' is no list of names"), (["run", "--devices", ""], "'' is no list of names"),
    (["run", "--workloads", "W1,,W2"], "'W1,,W2' is no list of names"), (["run", "--workloads", "W1,W1"], "each there once"),
    (["run", "--report", "--check"], "not allowed with"), (["report", "--out", "there.html"], "there.html exists already"),
    (["report", "--figure", "there.html"], "there.html exists already"), (["report", "--out", "."], "is a folder"),
    (["report", "--out", "no/x.html"], "there is no folder")])
def test_options_that_cannot_be_are_refused_in_one_line(home, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(home)
    (home / "there.html").write_text("theirs")
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    shown = capsys.readouterr().err.strip()
    assert (ended.value.code, shown.startswith("error: "), len(shown.splitlines())) == (2, True, 1)
    assert words in shown
    assert [path.name for path in home.iterdir()] == ["there.html"]


def test_a_report_goes_to_new_files_or_replaces_its_own(home, capsysbinary, monkeypatch):
    runner._merge([executed(paths.EXECUTED, "01_machine")], paths.EXECUTED)
    for _ in range(2):
        assert cli.main(["report"]) == 1, "the other notebooks have not been run"
    assert sorted(path.name for path in paths.REPORT.iterdir()) == ["executed", "index.html", "summary.svg"]
    assert cli.main(["report", "--out", str(home / "a.html"), "--figure", str(home / "a.svg")]) == 1
    assert [(home / f"a.{kind}").read_bytes()[:5] for kind in ("html", "svg")] == [b"<!DOC", b"<?xml"]
    capsysbinary.readouterr()
    assert cli.main(["report", "--out", "/dev/null"]) == 1
    assert capsysbinary.readouterr().out == b"", "what goes to a stream is not named after it"
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("lib.files.os.replace", lambda *_: (_ for _ in ()).throw(full))
    before = (paths.REPORT / "index.html").read_bytes()
    assert cli.main(["report"]) == 2
    assert "cannot be written (No space left on device)" in capsysbinary.readouterr().err.decode().splitlines()[-1]
    assert (paths.REPORT / "index.html").read_bytes() == before
    assert sorted(path.name for path in paths.REPORT.iterdir()) == ["executed", "index.html", "summary.svg"], "nothing half"


def test_a_full_disk_ends_a_run_in_one_line(two, monkeypatch, capsys):
    def full(*_, **__):
        raise InputError("manifest.json: cannot be written (No space left on device)")

    monkeypatch.setattr(runner, "execute", lambda job, *_: outcome(job.stem, notebook=job.notebook))
    monkeypatch.setattr(store, "write_json", full)
    assert cli.main(["run", "01", "--devices", "cpu"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last == "error: manifest.json: cannot be written (No space left on device)"


def test_gpus_are_measured_side_by_side_and_the_cpu_before_them(home, monkeypatch):
    together, begun, lock = threading.Barrier(2), [], threading.Lock()

    def execute(job, *_):
        with lock:
            begun.append(job.stem)
        if "cuda" in job.stem:
            together.wait(timeout=30)  # neither ends before the other one has begun
        return outcome(job.stem, notebook=job.notebook)

    monkeypatch.setattr(runner, "execute", execute)
    planned = jobs(names=["01", "02"], workloads=["W1"], devices=["cuda:0", "cpu", "cuda:1"])
    done = runner.run(planned, paths.EXECUTED)
    assert [one.stem for one in done] == [job.stem for job in planned]
    assert [begun[0], begun[3]] == ["01_machine_cpu", "02_profile_W1_cpu"]
    assert {one.stem for one in runner.manifest(paths.EXECUTED)} == {job.stem for job in planned}


def test_help_and_import_are_light():
    program = "import sys, lib, lib.__main__; print(sorted({'torch', 'pandas', 'matplotlib', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=paths.ROOT)
    assert done.stdout.strip() == "[]"


def test_dry_run_prints_lines_that_papermill_takes(capsys):
    assert cli.main(["run", "02", "--workloads", "W1", "--devices", "cpu", "--dry-run"]) == 0
    line = capsys.readouterr().out.strip()
    assert line == "papermill notebooks/02_profile.ipynb out.ipynb -p workload W1 -p device cpu -p iters 20 -p source measure"


@pytest.fixture
def cluster(tmp_path):
    """Return how a task of a template runs in a checkout of which the interpreter only notes how it is called."""
    python = tmp_path / ".venv" / "bin" / "python"

    def run(template, **environment):
        script = paths.PARAMS / f"slurm_{template}.sbatch"
        subprocess.run(["bash", "-n", str(script)], check=True)
        done = subprocess.run(["bash", str(script), *environment.pop("words", ())], capture_output=True, text=True, check=False,
                              env={"PATH": "/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path), **environment})
        return done.returncode, [line.split(" ", 1) for line in done.stdout.splitlines()]

    assert run("profiles", SLURM_ARRAY_TASK_ID="3") == (127, []), "a folder without .venv is no checkout"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nshift 2\necho "$LIB_OUTPUT $*"\n')
    python.chmod(0o755)
    return run


def test_the_slurm_templates_give_each_task_its_part_and_a_folder(cluster, tmp_path):
    status, [[folder, line]] = cluster("profiles", SLURM_ARRAY_TASK_ID="3", words=["--dry-run"])
    assert (status, folder) == (0, str(tmp_path / "slurm" / "profiles-3"))
    options = command_line(line)
    assert (options.names, options.workloads, options.devices) == (["02_profile"], ["W3"], ["auto"])
    status, [[folder, line]] = cluster("sweep", SLURM_ARRAY_TASK_ID="3", DEVICES="all", words=["-p", "rounds", "3"])
    assert (status, folder) == (0, str(tmp_path / "slurm" / "sweep-3"))
    options = command_line(line)
    p = notebooks.check("03_sweep", {"device": options.device, **dict(options.parameter)})
    assert (p.device, p.grid, p.shard, p.budget_s, p.rounds, p.name) == ("all", "original_linear", "3/8", 0, 3, "shard")
    outside = subprocess.run(["bash", str(paths.PARAMS / "slurm_sweep.sbatch")], capture_output=True, text=True, check=False,
                             env={"PATH": "/usr/bin:/bin"})
    assert "submit from the root" in outside.stderr


def test_the_slurm_template_collects_what_there_is(cluster, tmp_path):
    assert cluster("collect") == (0, [])
    for name in ("sweep-0/data/sweeps/shard", "sweep-1/data/sweeps/shard", "profiles-1/data/runs", "merged/data/sweeps"):
        (tmp_path / "slurm" / name).mkdir(parents=True)
    status, [merge, *bundles] = cluster("collect", NAME="linear")
    assert (status, merge[0]) == (0, str(tmp_path / "slurm" / "merged"))
    options = command_line(merge[1])
    assert ([str(path) for path in options.folders], options.name) == (
        [str(tmp_path / f"slurm/sweep-{n}/data/sweeps/shard") for n in range(2)], "linear")
    assert bundles == [[str(tmp_path / "slurm" / name), f"bundle --out {tmp_path / 'slurm' / name}.zip"]
                       for name in ("profiles-1", "merged")]


def test_slurm_tasks_write_where_a_user_wants_it_and_are_collected_there_again(cluster, tmp_path):
    scratch = tmp_path / "scratch"
    assert cluster("sweep", SLURM_ARRAY_TASK_ID="3", LIB_OUTPUT=str(scratch))[1][0][0] == str(scratch / "slurm" / "sweep-3")
    _, [[folder, _]] = cluster("profiles", SLURM_ARRAY_TASK_ID="2", LIB_OUTPUT=str(scratch))
    assert folder == str(scratch / "slurm" / "profiles-2")
    for name in ("sweep-3/data/sweeps/shard", "merged/data/sweeps/sweep"):
        (scratch / "slurm" / name).mkdir(parents=True)
    (scratch / "slurm" / "merged.zip").touch()
    status, [merge, bundled] = cluster("collect", LIB_OUTPUT=str(scratch))
    assert (status, merge[0], bundled[0]) == (0, str(scratch / "slurm" / "merged"), str(scratch / "slurm" / "merged"))
    assert not (scratch / "slurm" / "merged.zip").exists() and not (scratch / "slurm/merged/data/sweeps/sweep").exists()


def command_line(words):
    """Return how ``python -m lib`` reads a line."""
    from lib.cli.main import _parser

    return _parser().parse_args(words.split())


def test_every_parameter_set_of_the_report_is_valid():
    for section in definitions.load_report_plan().sections:
        assert set(section.quick) <= set(notebooks.notebook_model(section.notebook).model_fields)


def test_a_sentence_without_its_number_is_not_shown():
    lookup = page._lookup({"05_roofline": {"cpu largest share": {"value": "not measured", "unit": ""},
                                           "cpu points": {"value": 3.0, "unit": "points"}}})
    line = f"- **The roofline**: the best attains {lookup(' largest share')} of it. There are {lookup(' points')}."
    assert page._measured(line) == ("- **The roofline**: There are 3 points. "
                                    "*Some numbers are missing: nothing usable was measured.*")
    plain = "- A line. Another, not measured on this machine."
    assert page._measured(plain) == plain


def test_runs_at_once_lose_no_entry_of_the_manifest(tmp_path):
    """Each merges one outcome; with a pause between reading and writing, all but the last would be lost without the lock."""
    outcomes = [runner.Outcome(notebook="04_complexity", stem=f"04_{number}", command="c", values={}, error="", status="ok",
                               seconds=1.0, finished_utc="2026-01-01T00:00:00+00:00") for number in range(8)]
    read = runner.manifest

    def slow(folder):
        entries = read(folder)
        time.sleep(0.05)
        return entries

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(8) as pool:
        patch.setattr(runner, "manifest", slow)
        list(pool.map(lambda outcome: runner._merge([outcome], tmp_path), outcomes))
    assert sorted(entry.stem for entry in read(tmp_path)) == [outcome.stem for outcome in outcomes]


@pytest.mark.parametrize(("low", "high", "labels"), [
    (120, 1200, ["200", "500", "1,000"]), (0.03, 0.4, ["0.05", "0.1", "0.2"]), (1, 900, ["10^{0}", "10^{1}", "10^{2}"])])
def test_short_logarithmic_axes_have_plain_numbers_that_do_not_overlap(low, high, labels):
    style.use_style()
    figure, ((axis,),) = style.axes(1)
    axis.plot([low, high], [low, high])
    axis.set(xscale="log", xlim=(low, high))
    style.png(figure)
    every = axis.get_xticklabels(which="both")
    shown = [label for label in every if label.get_text() and low <= label.get_position()[0] <= high]
    assert [text for label in shown for text in labels if text in label.get_text()] == labels and len(shown) == len(labels)


def test_an_axis_with_labels_of_its_own_keeps_them():
    style.use_style()
    figure, ((axis,),) = style.axes(1)
    axis.plot([1, 8], [1, 8])
    axis.set(xscale="log", xticks=[1, 4, 8], xticklabels=["one", "four", "eight"])
    style.png(figure)
    assert [label.get_text() for label in axis.get_xticklabels()] == ["one", "four", "eight"]
