"""``make gpu``: steps that fail, are cut short or wait, a second call, the packages that are there, the bundle."""

import re
import shlex
import signal
import time
from types import SimpleNamespace

import torch

from lib import command_list, paths
from lib.cli import gpu, main
from lib.cli.options import assignments
from lib.config import definitions
from lib.config.base import build, load
from lib.config.notebooks import ProfileParams, SweepParams
from lib.finetune.config import TrainConfig
from lib.measure import machine
from lib.measure.training import matrix
from lib.work.graph import spaces
from tests import output_of, refused

MARKED = re.compile(r"mark\.cuda\b")


def python(code):
    return f"timeit -n 1 -r 1 {shlex.quote(code)}"


def step(command, minutes=1.0, needs=()):
    """Return a step that may also name the tests' own values, which the schema of a plan refuses."""
    return definitions.Step.model_construct(command=command, minutes=minutes, needs=needs)


def walk(folder, plan, left_s=600.0, **values):
    return command_list.Walk(plan, folder, values).run(time.monotonic() + left_s)


def test_a_failed_step_stops_no_other_and_the_next_call_runs_only_what_is_not_done(tmp_path):
    plan = {"bad": step(python("1 / 0")), "good": step(python("open('{file}', 'a').write('x')"))}
    for _ in range(2):
        left = walk(tmp_path, plan, file=tmp_path / "file")
        assert set(left) == {"bad"}
        assert re.fullmatch(rf"failed: it ended with status 1 \(see {tmp_path}/bad\.log\)", left["bad"])
    assert (tmp_path / "file").read_text() == "x"


def test_what_does_not_fit_waits_and_a_timed_step_goes_on_with_the_time_of_all_calls(tmp_path):
    timed = python("open('{file}', 'a').write('{seconds} {total}\\n')")
    plan = {"timed": step(timed, 2.0), "long": step(python("1 / 0"), 20.0)}
    answers = [walk(tmp_path, plan, left_s=left_s, file=tmp_path / "file") for left_s in (50, 20, 600)]
    assert [answer.get("timed") for answer in answers] == ["to be continued", "no time left in this call", None]
    assert {answer["long"] for answer in answers} == {"no time left in this call"}
    (first, all_first), (second, all_second) = (map(int, line.split()) for line in (tmp_path / "file").read_text().splitlines())
    assert first == all_first and first + second == all_second, "seconds of this call, and of all calls"
    assert 45 <= first <= 50 and 70 <= second <= 75


def test_a_step_that_overruns_its_time_is_ended_and_leaves_time_for_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(command_list, "_LATE_S", 0.5)
    monkeypatch.setattr(command_list, "_LEAST_S", 0.1)
    wait = python("import time; time.sleep(300)")
    plan = {"timed": step(wait + " {seconds}", 0.02), "untimed": step(wait, 0.02), "next": step(python("1"))}
    begin = time.monotonic()
    assert walk(tmp_path, plan) == {"untimed": f"ended after 2 s (see {tmp_path}/untimed.log)"}
    assert time.monotonic() < begin + 30


def test_a_step_is_interrupted_when_its_file_is_there_and_ended_when_it_takes_too_long(home):
    begin, log = time.monotonic(), home / "log"
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as under nohup
    (paths.DATA / "deep").mkdir(parents=True)
    wait = f"import time; open('{paths.DATA}/deep/new.pt', 'w'); time.sleep(300)"
    try:
        assert command_list.call(shlex.split(python(wait)), log, 60, "deep/*.pt") == ""
        assert command_list.call(shlex.split(python("import time; time.sleep(300)")), log, 0.3) == "ended after 0 s"
    finally:
        signal.signal(signal.SIGINT, usual)
    assert time.monotonic() < begin + 120, "of 300 s"
    assert log.read_text().count("KeyboardInterrupt") == 2


def test_packages_that_are_missing_are_named_at_once_with_their_versions(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.metadata.distributions", lambda: [SimpleNamespace(metadata={"Name": "ruamel_yaml"})])
    seaborn, papermill = (re.search(rf"^{name}==\S+", (paths.ROOT / "requirements.txt").read_text(), re.MULTILINE)[0]
                          for name in ("seaborn", "papermill"))
    with refused(f"lacks seaborn, papermill; install: pip install {re.escape(seaborn)} {re.escape(papermill)}$"):
        command_list.require(["ruamel.yaml", "seaborn", "papermill"])
    assert walk(tmp_path, {"part": step(python("1 / 0"), needs=("kornia",))}) == {"part": "left out: this Python lacks kornia"}


def test_the_plan_needs_what_is_pinned_and_tests_every_file_with_tests_for_a_card():
    plan = definitions.load_gpu_plan()
    assert command_list.absent([*plan.needs, *(need for step in plan.steps.values() for need in step.needs)]) == []
    files = {f"tests/{path.name}" for path in (paths.ROOT / "tests").glob("test_*.py") if MARKED.search(path.read_text())}
    commands = " ".join(step.command for step in plan.steps.values())
    assert {word for word in shlex.split(commands) if word.startswith("tests/")} == files


def test_the_first_steps_show_what_only_a_card_can_within_four_minutes(monkeypatch):
    """Each command is parsed and its parameters are checked, as the verb would on a machine with a card."""
    monkeypatch.setattr(machine, "device", torch.device)
    steps = definitions.load_gpu_plan().steps
    first = list(steps)[:list(steps).index("networks")]
    assert sum(steps[name].minutes for name in first) <= 4
    words = {name: shlex.split(steps[name].command.format(device="cuda:0", cards=1, slots=1, seconds=30, total=30))
             for name in steps}
    options = {name: main._parser().parse_args(line[1:]) for name, line in words.items() if line[0] == "lib"}
    given = {name: assignments(getattr(chosen, "parameter", None) or []) for name, chosen in options.items()}
    profiles, switches = (build(ProfileParams, given[name], name) for name in ("profiles", "profile_switches"))
    assert options["profiles"].workloads == ["all"] and options["profile_switches"].workloads == ["W5"]
    assert switches.precision == "amp" and switches.cudnn_benchmark and switches.nvtx and profiles.precision == "fp32"
    sweep = build(SweepParams, {**given["convolutions"], "device": "cuda:0"}, "convolutions")
    assert sweep.latency_type == "both" and sweep.grid in spaces.load_sweeps().grids and sweep.budget_s == 30
    cells = matrix.cells(definitions.load_matrix(), "cuda:0", options["matrix"].cells, given["matrix"])
    assert [cell.workload.model for cell in cells] == ["resnet50", "vgg16", "mobilenet_v2"], "one of each model"
    short = load(TrainConfig, options["finetune"].config)
    assert short.num_workers and options["finetune"].device == "cuda:0"
    assert all(options[name].device == "cuda:0" for name in ("finetune_cut", "finetune_resumed"))


def test_a_command_with_a_name_that_nothing_fills_in_is_refused_in_one_line(tmp_path):
    plan = tmp_path / "gpu.yaml"
    for wrong in ("{devices}", "{device", "{seconds:g}"):
        plan.write_text(f"{{needs: [], steps: {{bad: {{command: 'lib machine {wrong}', minutes: 1}}}}}}")
        with refused(r"gpu.yaml: .*command.*\(device\|cards\|slots\|seconds\|total\)"):
            definitions.load_gpu_plan(plan)


def test_a_call_that_measured_nothing_says_so_and_what_is_left(home, monkeypatch):
    plan = definitions.GpuPlan(needs=(), steps={"bad": step(python("1 / 0"))})
    monkeypatch.setattr(definitions, "load_gpu_plan", lambda: plan)
    printed = output_of("gpu", "--device", "cpu", status=1)
    assert "not done: bad: failed: it ended with status 1" in printed
    assert "bundle.zip: would not replay: nothing to pack" in printed


def test_a_bundle_of_the_first_steps_is_packed_and_says_what_a_replay_lacks(tmp_path, monkeypatch):
    def imported(words, log, most_s, output):
        assert words[:3] == ["lib", "import", "bundle"], "nothing is replayed"
        (output / "data/imported/box").mkdir(parents=True)
        return ""

    monkeypatch.setattr(gpu, "pack", lambda target, with_host_name: target.touch())
    monkeypatch.setattr(command_list, "call", imported)
    bundle, failure = gpu._packed(tmp_path, "cuda:0", {"ceilings": "no time", "agent": "failed"})
    assert bundle.is_file() and failure == "a replay needs what these steps measure in a later call: ceilings"
    assert not (tmp_path / "check").exists()
