"""Users' networks: whatever their code does ends in an answer or in one line that names it, its file and line."""

import json
import re
import sys

import numpy as np
import pytest

from lib.cli.main import main
from lib.measure.networks import end_to_end
from lib.predict.advice import advise
from lib.predict.analytic import complexity
from lib.predict.networks import work
from lib.work import models, networks, user_code
from lib.work.graph import capture
from lib.work.run_config import RunConfig
from tests import refused

pytestmark = pytest.mark.slow

ZOO = '''
import random, sys
import torch
from torch import nn

class Fine(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)
    def forward(self, x):
        return self.layer(x).flatten(1)

class BuildFails(Fine):
    def __init__(self):
        raise KeyError("width")
class BuildExits(Fine):
    def __init__(self):
        sys.exit(0)
class Huge(Fine):
    def __init__(self):
        super().__init__()
        self.more = nn.Linear(10**6, 10**7)
class Fails(Fine):
    def forward(self, x): raise KeyError("depth")
class Exits(Fine):
    def forward(self, x): sys.exit(0)
class Recurses(Fine):
    def forward(self, x): return self.forward(x)
class GivesNone(Fine):
    def forward(self, x): self.layer(x)
class GivesNested(Fine):
    def forward(self, x): return {"out": [self.layer(x)], "n": 1}
class Same(Fine):
    def forward(self, x): return x
class OnlyViews(Fine):
    def forward(self, x): return x.flatten(1).t()
class Prints(Fine):
    def __init__(self):
        super().__init__()
        print("built")
    def forward(self, x):
        print("by Python")
        return super().forward(x)
class Random(Fine):
    def __init__(self):
        super().__init__()
        self.more = nn.Conv2d(4, 4, 3, padding=1)
    def forward(self, x):
        x = self.layer(x)
        for _ in range(random.randint(1, 9)): x = self.more(x)
        return x
class PartlyEmpty(Fine):
    def __init__(self):
        super().__init__()
        self.none = nn.Linear(0, 4)
    def forward(self, x): return self.none(x[..., :0]).sum() + super().forward(x)
class InLibrary(Fine):
    def forward(self, x):
        import torchvision
        return torchvision.ops.nms(x[0, 0], x[0, 0, 0], 0.5)
class NotOne: pass
def made(): return Fine()
def nothing(): return None
def with_width(width): return Fine()
def scripted(): return torch.jit.script(Fine())
instance = Fine()
class Sets(Fine):
    def __init__(self):
        super().__init__()
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        torch.set_num_threads(torch.get_num_threads() + 1)
number = 7
'''
BROKEN = {"importfails": "import absent_module", "raising": "x = 1\nraise OSError('no')",
          "exiting": "import sys\nsys.exit(3)", "unreadable": "class A(:\n    pass"}


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """Put users' modules into the working directory."""
    for name, text in {"zoo": ZOO, **BROKEN}.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    complexity.analyse.cache_clear()
    return tmp_path


FAILURES = """
zoo:BuildFails   cannot be built: KeyError: 'width' (zoo.py, line 15)
zoo:BuildExits   cannot be built: it ends the program, by sys.exit(0) (zoo.py, line 18)
zoo:Fails        does not run on an input of shape (1, 3, 8, 8): KeyError: 'depth' (zoo.py, line 24)
zoo:Recurses     RecursionError: maximum recursion depth exceeded (zoo.py, line 28)
zoo:GivesNone    (1, 3, 8, 8): it returns a NoneType without a tensor, where a tensor
zoo:Same         model 'zoo:Same' computes nothing of an input of shape (1, 3, 8, 8)
zoo:OnlyViews    computes nothing of an input
zoo:InLibrary    (zoo.py, line 60)
zoo:instance     is a network that is built already; name its class, Fine, or a function
zoo:NotOne       zoo.py) has no class 'NotOne' of torch.nn.Module, nor a function
zoo:nothing      model 'zoo:nothing' gives a NoneType, not a torch.nn.Module
zoo:with_width   must be buildable without arguments: missing a required argument: 'width'
zoo:scripted     holds TorchScript, which hides its operators; give the class that was scripted
zoo:number       zoo.py) has no class 'number'
importfails:X    No module named 'absent_module' (importfails.py, line 1); modules are looked for
raising:X        model 'raising:X': cannot import 'raising': OSError: no (raising.py, line 2)
exiting:X        cannot import 'exiting': it ends the program, by sys.exit(3) (exiting.py, line 2)
unreadable:A     cannot import 'unreadable': SyntaxError: invalid syntax (unreadable.py, line 1)
nowhere:Net      cannot import 'nowhere': ModuleNotFoundError: No module named 'nowhere'
os:system        os.py) has no class 'system' of torch.nn.Module
""".strip().splitlines()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, words", [
    *(line.split(maxsplit=1) for line in FAILURES),
    *((name, f"model {name!r} names no class of yours; the form is module:Class, such as mynet:Net")
      for name in (":X", "../x:Y", "x:Y()"))], ids=repr)
def test_a_failure_of_users_code_is_one_line(name, words, zoo):
    with refused(re.escape(words)):
        work.captured(networks.network(name, 1, "3x8x8"), "infer")


def test_settings_of_the_process_are_put_back(zoo):
    before = [read() for read, _ in user_code._SETTINGS]
    networks.network("zoo:Sets").build()
    assert [read() for read, _ in user_code._SETTINGS] == before
    capture.of_network(networks.network("zoo:Sets", 1, "3x8x8"))
    assert [read() for read, _ in user_code._SETTINGS] == before


def test_a_network_too_large_for_memory_is_counted_and_not_run(zoo):
    item = work.captured(networks.network("zoo:Huge", 1, "3x8x8"), "infer")
    assert item.weight_bytes > 4e13
    with refused(r"cannot be built: .*; it takes more memory than this machine has"):
        networks.network("zoo:Huge").build()


@pytest.mark.parametrize("call", [lambda name: complexity.analyse(name, 1, "3x8x8"),
                                  lambda name: advise.advise(RunConfig(name, 1, "3x8x8"), ["cpu"])])
def test_every_question_about_a_network_takes_the_same_door(call, zoo):
    with refused(r"model 'zoo:Exits' does not run .* it ends the program"):
        call("zoo:Exits")


@pytest.mark.parametrize("name, mode", [("zoo:made", "infer"), ("zoo:GivesNested", "train"), ("zoo:Random", "infer"),
                                            ("zoo:Random", "train"), ("zoo:PartlyEmpty", "train")])
def test_what_can_be_answered_is(name, mode, zoo):
    answer = advise.advise(RunConfig(name, 1, "3x8x8", mode), ["cpu", "t4"])
    assert (answer.table["low_ms"] > 0).all() and np.isfinite(answer.table["high_ms"]).all()


@pytest.mark.parametrize("shape, words", [
    ("5x224x224", "model 'resnet18' takes 2D inputs of 3 channels, not 5x224x224; give 3x224x224"),
    ("3x8", "not 3x8; give 3x224x224"), ("512:int64", "not 512:int64; give 3x224x224"),
    *[(shape, f"input shape {shape!r} is none; give channels and sizes such as 3x224x224") for shape in (
        "3x0x224", "3x", "3x８x8", "3x99999999999x8")]])
def test_an_input_that_a_network_cannot_take_is_refused(shape, words):
    with refused(re.escape(words)):
        networks.network("resnet18", 1, shape).build()


def test_a_workloads_first_layer_is_fitted_to_its_dataset_still():
    with refused("model 'cnn3d' takes 3D inputs of 1 channels, not 2x16x16; give 1x28x28x28"):
        networks.network("cnn3d", 1, "2x16x16")
    assert models.build("resnet18", 1, 10).conv1.in_channels == 1
    assert networks.network("simple_cnn", 1, "5x28x28").build().features[0].in_channels == 5
    with refused("model 'simple_cnn' takes 2D inputs of 3 channels, not 28x28; give 3x224x224"):
        networks.network("simple_cnn", 1, "28x28")
    with refused("batch size -1 is negative; give 1 or more"):
        networks.network("resnet18", -1)


def test_what_a_network_prints_goes_to_stderr_and_breaks_no_json(zoo, capfd):
    question = "advise zoo:{} --input-size 3x8x8 --device cpu --json --no-ceilings"
    assert main(question.format("Prints").split()) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)[0]["device"] == "cpu"
    assert [words in err for words in ("built", "by Python")] == [True] * 2
    assert main(question.format("Exits").split()) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and "it ends the program, by sys.exit(0) (zoo.py, line " in err


def test_a_measured_network_that_exits_is_a_reason(zoo, capfd, monkeypatch):
    monkeypatch.setenv("LIB_LOCKS", str(zoo))
    cases = [RunConfig(f"zoo:{name}", 1, "3x8x8") for name in ("Exits", "Prints")]
    results, _ = end_to_end._measure(cases, "cpu", end_to_end.MeasureOptions(0.001))
    assert results[0].reason == "model 'zoo:Exits' does not run: it ends the program, by sys.exit(0) (zoo.py, line 26)"
    assert results[1].reason == "" and len(results[1].samples_ms) >= end_to_end.LEAST
    assert capfd.readouterr().out == ""
