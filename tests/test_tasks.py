"""Tasks of workers: a workload for a number of steps, which resumes from its last state, and its probe."""

import shutil
from math import isnan

import pytest
import torch

from lib.schedule.run import tasks
from lib.work import distributed, weights
from tests import nightly, python, refused

pytestmark = pytest.mark.slow


class StoppedError(Exception):
    """Stops a task, as the handler of a signal does."""


def test_the_module_is_imported_without_torch():
    python("-c", "import lib.schedule.run.tasks, lib.finetune.task, sys; assert 'torch' not in sys.modules")


@pytest.mark.parametrize("devices", [["cpu"], nightly(["cpu", "cpu"])])
def test_a_workload_that_is_stopped_ends_with_the_weights_of_one_that_is_not(home, monkeypatch, devices):
    whole = tasks.workload("W1", 6, str(home / "whole"), devices, 1)
    assert whole["steps"] == whole["trained"] == 6 and whole["seconds"] > 0 and 0 < whole["loss"] < 3
    save = distributed.save_state

    def save_and_stop(*arguments):
        save(*arguments)
        if arguments[-1]["steps"] == 4:
            raise StoppedError

    with monkeypatch.context() as patched, pytest.raises(StoppedError):
        patched.setattr(tasks, "_SAVE_S", 0.0)
        patched.setattr(distributed, "save_state", save_and_stop)
        tasks.workload("W1", 6, str(home / "cut"), ["cpu"], 1)
    for copy in ("ended", "torn"):
        shutil.copytree(home / "cut", home / copy)
    resumed = tasks.workload("W1", 6, str(home / "cut"), ["cpu"], 1)
    assert resumed["trained"] == 2 and not distributed.states(home / "cut")
    expected, found = (weights.load(home / name / "weights.pt") for name in ("whole", "cut"))
    for name, value in expected.items():
        if len(devices) == 1:
            assert torch.equal(found[name], value), name
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)  # two processes add in another order
    ended = tasks.workload("W1", 4, str(home / "ended"), ["cpu"], 1)
    assert ended["trained"] == 0 and isnan(ended["loss"])
    (model,) = (home / "torn").glob("state-*/*model*")
    model.write_bytes(model.read_bytes()[:100])
    with refused("torn/state-00000004 is no state of this run"):
        tasks.workload("W1", 6, str(home / "torn"), ["cpu"], 1)


def test_a_probe_times_a_step_and_the_set_up(home):
    times = tasks.probe("W1", 0.2, ["cpu"], 1)
    assert 1e-4 < times["step_s"] < 5 and 1e-4 < times["setup_s"] < 60
    with refused("no workload 'W99'"):
        tasks.probe("W99", 0.2, ["cpu"], 1)


def test_what_a_process_of_several_refuses_is_refused_and_one_that_ends_is_an_error():
    with refused("not on cpu with 2 threads"):
        distributed.torchrun("tests.light:refuse_here", {}, ["cpu", "cpu"], 2)
    with pytest.raises(RuntimeError, match="training on 2 devices ended with status 1"):
        distributed.torchrun("tests.light:end_here", {}, ["cpu", "cpu"], 1)


def test_processes_see_their_gpus_alone(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    found = distributed.torchrun("tests.light:where", {}, ["cuda:1", "cuda:3"], 2)
    assert found["card"] == "5,7" and found["devices"] == ["cuda:0"] and found["threads"] == [2, "2"]
