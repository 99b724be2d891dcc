"""``make gpu``: steps run in order within the time of a call; a second call resumes."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch

from lib import paths
from lib.cli import main
from lib.config import definitions
from lib.config.base import build, load
from lib.config.notebooks import ProfileParams, SweepParams
from lib.finetune.config import TrainConfig
from lib.measure import machine
from lib.measure.training import matrix
from lib.work.graph import spaces

SCRIPT = paths.PARAMS / "gpu.sh"
STEPS = re.findall(r"(?m)^ *step (\w+) (\d+)", SCRIPT.read_text())
# Stands for Python: writes down its commands; those that have the word fail, or wait.
FAKE = """#!/bin/bash
case "$*" in
    *lib.measure*) echo "cuda:0 2"; exit ;;
    -c*) shift 2; for name in "$@"; do [[ " $LACKING " != *" $name "* ]] || echo "$name"; done; exit ;;
esac
shift
echo "$*" >>"$SEEN"
[[ -z "$FAILING" || "$*" != *"$FAILING"* ]] || exit 1
if [[ -n "$WAITING" && "$*" == *"$WAITING"* ]]; then
    exec {python} -c "import pathlib, time; pathlib.Path('$NEW').touch(); time.sleep(300)"
fi
[[ "$*" != *"data unpack"* ]] || mkdir -p "$LIB_OUTPUT/data/imported/box"
"""

SHORTER = """#!/bin/bash
[ "$3" -gt 599 ] || set -- "$1" "$2" "$LIMIT" "${@:4}"
exec /usr/bin/timeout "$@"
"""


@pytest.fixture
def call(tmp_path):
    """Return a function that calls the script: exit status, lines of output, commands that were run."""
    python, seen = tmp_path / "python", tmp_path / "seen"
    python.write_text(FAKE.replace("{python}", sys.executable))
    python.chmod(0o755)

    def run(**variables):
        seen.write_text("")
        environment = {"PY": python, "SEEN": seen, "LIB_OUTPUT": tmp_path, "NEW": tmp_path / "new",
                       "BUDGET_MIN": 600, **variables}
        texts = {name: str(value) for name, value in environment.items()}
        done = subprocess.run(["bash", SCRIPT], capture_output=True, text=True, check=False,
                              env=os.environ | texts)
        output = (done.stdout + done.stderr).splitlines()
        return done.returncode, output, seen.read_text().splitlines()

    return run


def test_steps_run_in_order_and_a_second_call_only_packs(call, tmp_path):
    status, lines, commands = call()
    assert status == 0 and lines == [*(f"{name}: done" for name, _ in STEPS),
                                     f"{tmp_path}/data/gpu/bundle.zip: replays as a reference"]
    assert len(commands) == len(STEPS) + 3
    assert commands[-1] == "lib run 01 02 03 05 --source replay --devices cuda -p reference box"
    status, lines, commands = call()
    assert status == 0 and len(lines) == 1 and len(commands) == 3


def test_a_failed_step_stops_no_other_and_the_next_call_repeats_it_alone(call, tmp_path):
    status, lines, _ = call(FAILING="lib measure matrix")
    log = f"{tmp_path}/data/gpu/matrix.log"
    assert status == 1 and f"matrix: failed with status 1 (see {log})" in lines and lines[-1] == "not done: matrix"
    assert sum(line.endswith(": done") for line in lines) == len(STEPS) - 1
    status, _, commands = call()
    assert status == 0 and commands[0].startswith("lib measure matrix") and len(commands) == 4


def test_what_does_not_fit_waits_and_a_timed_step_goes_on(call):
    status, lines, commands = call(BUDGET_MIN=4)  # 150 s of steps
    assert status == 1 and lines[0] == "profiles: done" and "networks: to be continued" in lines
    assert "card_tests: no time left in this call" in lines
    assert any("bundle.zip: replays" in line for line in lines)
    (first,) = (int(line.split()[-1]) for line in commands if "--name gpu --budget-s" in line)
    _, lines, commands = call()
    (second,) = (int(line.split()[-1]) for line in commands if "--name gpu --budget-s" in line)
    assert 140 <= first <= 150 and first + second == 240 and "networks: done" in lines
    assert not [line for line in commands if "lib run 02" in line]


def test_a_step_without_its_packages_is_left_out(call):
    status, lines, _ = call(LACKING="kornia timm")
    assert status == 1 and "finetune: left out: this Python lacks kornia" in lines
    assert lines[-1].startswith("not done: finetune networks networks_energy")
    status, lines, commands = call(LACKING="pyarrow papermill")
    assert status == 2 and commands == [] and re.search("lacks pyarrow papermill; install", lines[0])
    assert call(BUDGET_MIN="soon")[:2] == (2, ["error: BUDGET_MIN=soon is no whole number of minutes"])


@pytest.mark.slow
def test_a_step_is_interrupted_by_its_file_and_ended_when_it_takes_too_long(call, tmp_path):
    new = tmp_path / "data/training/run/gpu/checkpoints/state-1"
    new.parent.mkdir(parents=True)
    (tmp_path / "timeout").write_text(SHORTER)
    (tmp_path / "timeout").chmod(0o755)
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as under nohup
    begin = time.monotonic()
    try:
        _, lines, _ = call(WAITING="lib finetune --config params/gpu_finetune.yaml --device cuda:0",
                           NEW=new, PATH=f"{tmp_path}:{os.environ['PATH']}", LIMIT=5)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert "finetune_cut: done" in lines
    assert "KeyboardInterrupt" in (tmp_path / "data/gpu/finetune_cut.log").read_text()
    assert any(line.startswith("finetune_resumed: ended after ") for line in lines)
    assert time.monotonic() < begin + 120, "of 300 s"


@pytest.mark.slow
def test_the_script_tests_every_file_with_tests_for_a_card_and_wants_a_card(tmp_path):
    files = {f"tests/{path.name}" for path in (paths.ROOT / "tests").glob("test_*.py")
             if re.search(r"mark\.cuda\b", path.read_text())}
    assert set(re.findall(r"tests/\w+\.py", SCRIPT.read_text())) == files
    done = subprocess.run(["bash", SCRIPT], capture_output=True, text=True, check=False,
                          env=os.environ | {"PY": sys.executable, "DEVICE": "cuda:7",
                                            "LIB_OUTPUT": str(tmp_path)})
    assert done.returncode == 2 and "device 'cuda:7' is not here" in done.stderr, done.stderr


def test_the_first_steps_show_what_only_a_card_can_within_four_minutes(call, monkeypatch):
    """Each command is parsed and its parameters are checked, as on a machine with a card."""
    monkeypatch.setattr(machine, "device", torch.device)
    names = [name for name, _ in STEPS]
    assert sum(int(seconds) for _, seconds in STEPS[:names.index("networks")]) <= 240
    words = {name: shlex.split(line) for name, line in zip(names, call()[2], strict=False)}
    options = {name: main._parser().parse_args(line[1:]) for name, line in words.items()
               if line[0] == "lib"}
    given = {name: dict(getattr(chosen, "parameters", []))
             for name, chosen in options.items()}
    profiles = build(ProfileParams, given["profiles"], "profiles")
    switches = build(ProfileParams, given["profile_switches"], "profile_switches")
    assert options["profiles"].workloads == ["all"] and profiles.precision == "fp32"
    assert options["profile_switches"].workloads == ["W5"] and switches.precision == "amp"
    assert switches.cudnn_benchmark and switches.nvtx
    sweep = build(SweepParams, given["convolutions"], "convolutions")
    assert options["convolutions"].devices == ["cuda:0"]
    assert sweep.latency_type == "both" and sweep.budget_s == 30
    assert sweep.grid in spaces.load_sweeps().grids
    plan = definitions.load_matrix()
    cells = matrix.cells(plan, "cuda:0", options["matrix"].cells, given["matrix"])
    assert [cell.workload.model for cell in cells] == ["resnet50", "vgg16", "mobilenet_v2"]
    short = load(TrainConfig, options["finetune"].config)
    assert short.num_workers and options["finetune"].device == "cuda:0"
    assert all(options[name].device == "cuda:0" for name in ("finetune_cut", "finetune_resumed"))
