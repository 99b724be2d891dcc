"""Users' networks: whatever their code does ends in an answer or in one line that names it, its file and line."""

import json
import re
import sys
import warnings

import numpy as np
import pytest
import torch

from lib.cli.main import main
from lib.measure.networks import end_to_end
from lib.measure.networks.case import Case
from lib.predict.advice import advise
from lib.predict.advice.query import Query
from lib.predict.analytic import complexity, cross_check
from lib.predict.networks import work
from lib.work import models, networks, user_code
from lib.work.graph import capture
from tests import refused

pytestmark = pytest.mark.slow

ZOO = '''
import os, random, sys, warnings
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
class NoSuper(Fine):
    def __init__(self):
        self.layer = nn.Conv2d(3, 4, 3)
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
class Lacks(Fine):
    def forward(self, x): return self.missing(x)
class Unspeakable(Exception):
    def __str__(self): raise ValueError
class FailsOddly(Fine):
    def forward(self, x): raise Unspeakable
class Leaves(Fine):
    def forward(self, x): os._exit(0)
class Forks(Fine):
    def forward(self, x): os.fork()
class Warns(Fine):
    def forward(self, x):
        warnings.simplefilter("error")
        warnings.warn("old")
class GivesNone(Fine):
    def forward(self, x): self.layer(x)
class GivesDictionary(Fine):
    def forward(self, x): return {"shape": self.layer(x).shape}
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
        os.write(1, b"by the descriptor ")
        os.system("echo by a child")
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
class Empty(PartlyEmpty):
    def forward(self, x): return x[:0].relu()
class InLibrary(Fine):
    def forward(self, x):
        import torchvision
        return torchvision.ops.nms(x[0, 0], x[0, 0, 0], 0.5)
class NotOne: pass
def made(): return Fine()
def nothing(): return None
def with_width(width): return Fine()
def scripted(): return torch.jit.script(Fine())
def inside(): return nn.Sequential(torch.jit.script(Fine()))
instance = Fine()
number = 7
'''
BROKEN = {"importfails": "import absent_module", "raising": "x = 1\nraise OSError('no')", "exiting": "import sys\nsys.exit(3)",
          "unreadable": "class A(:\n    pass", "odd": "def __getattr__(name):\n    raise RuntimeError(f'odd {name}')",
          "sets": "import sys, warnings, torch\ntorch.set_default_dtype(torch.float64)\ntorch.set_grad_enabled(False)\n"
                  "torch.set_default_device('meta')\ntorch.set_num_threads(1)\nwarnings.simplefilter('error')\n"
                  "sys.stdout = sys.stderr = None\nclass Net(torch.nn.Linear):\n"
                  "    def __init__(self):\n        super().__init__(8, 8)\n"}


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
zoo:BuildFails       model 'zoo:BuildFails' cannot be built: KeyError: 'width' (zoo.py, line 15)
zoo:BuildExits       model 'zoo:BuildExits' cannot be built: it ends the program, by sys.exit(0) (zoo.py, line 18)
zoo:NoSuper          cannot be built: AttributeError: cannot assign module before Module.__init__() call (zoo.py, line 21)
zoo:Fails            model 'zoo:Fails' does not run on an input of shape (1, 3, 8, 8): KeyError: 'depth' (zoo.py, line 27)
zoo:Exits            it ends the program, by sys.exit(0) (zoo.py, line 29)
zoo:Recurses         RecursionError: maximum recursion depth exceeded (zoo.py, line 31)
zoo:Lacks            AttributeError: 'Lacks' object has no attribute 'missing' (zoo.py, line 33)
zoo:FailsOddly       (1, 3, 8, 8): Unspeakable without a message (zoo.py, line 37)
zoo:Leaves           it calls os._exit, which a network cannot (zoo.py, line 39)
zoo:Forks            it calls os.fork, which a network cannot (zoo.py, line 41)
zoo:Warns            UserWarning: old (zoo.py, line 45)
zoo:GivesNone        (1, 3, 8, 8): it returns a NoneType without a tensor, where a tensor
zoo:GivesDictionary  it returns a dict without a tensor
zoo:Same             model 'zoo:Same' computes nothing of an input of shape (1, 3, 8, 8)
zoo:OnlyViews        computes nothing of an input
zoo:Empty            computes nothing of an input
zoo:InLibrary        (zoo.py, line 83)
zoo:NotOne           model 'zoo:NotOne' is a class, but not a torch.nn.Module
zoo:nothing          model 'zoo:nothing' gives a NoneType, not a torch.nn.Module
zoo:with_width       must be buildable without arguments: missing a required argument: 'width'
zoo:scripted         model 'zoo:scripted' holds TorchScript, which hides its operators; give the class that was scripted
zoo:inside           holds TorchScript
zoo:instance         model 'zoo:instance' is a network that is built already; name its class
zoo:number           zoo.py) has no class or function 'number'
importfails:X        No module named 'absent_module' (importfails.py, line 1); modules are looked for in this folder
raising:X            model 'raising:X': cannot import 'raising': OSError: no (raising.py, line 2)
exiting:X            cannot import 'exiting': it ends the program, by sys.exit(3) (exiting.py, line 2)
unreadable:A         cannot import 'unreadable': SyntaxError: invalid syntax (unreadable.py, line 1)
odd:X                cannot import 'odd': odd X (odd.py, line 2)
nowhere:Net          cannot import 'nowhere': ModuleNotFoundError: No module named 'nowhere'
os:system            model 'os:system' is a built-in function, but not a torch.nn.Module
subprocess:Popen     is a class, but not a torch.nn.Module
""".strip().splitlines()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, words", [
    *(line.split(maxsplit=1) for line in FAILURES),
    *((name, f"model {name!r} names no class of yours; the form is module:Class, such as mynet:Net")
      for name in (":X", "../x:Y", "a:b:c", "x:Y()", "x\n:Y"))], ids=repr)
def test_a_failure_of_users_code_is_one_line(name, words, zoo):
    with refused(re.escape(words)):
        work.captured(networks.network(name, 1, "3x8x8"), "infer")


def test_a_network_too_large_for_memory_is_counted_and_not_run(zoo):
    item = work.captured(networks.network("zoo:Huge", 1, "3x8x8"), "infer")
    assert item.weight_bytes > 4e13
    with refused(r"cannot be built: .*\(zoo.py, line 25\); it takes more memory than this machine has"):
        networks.network("zoo:Huge").build()


@pytest.mark.parametrize("call", [lambda name: complexity.analyse(name, 1, "3x8x8"), cross_check.compare,
                                  lambda name: advise.advise(Query(name, 1, "3x8x8"), ["cpu"])])
def test_every_question_about_a_network_takes_the_same_door(call, zoo):
    with refused(r"model 'zoo:Exits' does not run .* it ends the program"):
        call("zoo:Exits")


def test_ctrl_c_stays_what_it_is(zoo):
    with pytest.raises(KeyboardInterrupt), user_code.running("it"):
        raise KeyboardInterrupt


def _settings():
    return [torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_device(),
            sys.stdout, sys.stderr, warnings.filters[:]]


def test_what_users_code_sets_for_the_process_is_put_back(zoo):
    before = _settings()
    model = networks.network("sets:Net", 1, "3x8x8").build()
    assert model.weight.dtype == torch.float32 and model.weight.device.type == "cpu"
    assert _settings() == before


@pytest.mark.parametrize("name, mode", [("zoo:made", "infer"), ("zoo:GivesNested", "train"), ("zoo:Random", "infer"),
                                            ("zoo:Random", "train"), ("zoo:PartlyEmpty", "train")])
def test_what_can_be_answered_is(name, mode, zoo):
    answer = advise.advise(Query(name, 1, "3x8x8", mode), ["cpu", "t4"])
    assert (answer.table["low_ms"] > 0).all() and np.isfinite(answer.table["high_ms"]).all() and len(answer.crossovers)


@pytest.mark.parametrize("shape, words", [
    ("5x224x224", "model 'resnet18' takes 2D inputs of 3 channels, not 5x224x224; give 3x224x224"),
    ("3x8", "not 3x8; give 3x8x224"), ("512:int64", "not 512:int64; give 3x224x224"),
    *[(shape, f"input shape {shape!r} is none; give channels and sizes such as 3x224x224") for shape in (
        "3x0x224", "3x", "3x２24x224", "3x1e2x3", "3x8x8\n", "3x99999999999x8")]])
def test_an_input_that_a_network_cannot_take_is_refused(shape, words):
    with refused(re.escape(words)):
        networks.network("resnet18", 1, shape).build()


def test_a_workloads_first_layer_is_fitted_to_its_dataset_still():
    with refused("model 'cnn3d' takes 3D inputs of 2 channels, not 2x16x16; give 2x16x16x28"):
        networks.network("cnn3d", 1, "2x16x16")
    assert models.build("resnet18", 1, 10).conv1.in_channels == 1
    assert networks.network("simple_cnn", 1, "5x28x28").build().features[0].in_channels == 5
    with refused("batch size -1 is negative; give 1 or more"):
        networks.network("resnet18", -1)


def test_a_shape_beyond_any_memory_is_one_line(zoo):
    with refused("does not run on an input of shape .*overflowed"):
        capture.of_network(networks.network("zoo:Fine", 1, "3x999999999x999999999"))


def test_what_a_network_prints_goes_to_stderr_and_breaks_no_json(zoo, capfd):
    question = "advise zoo:{} --input-size 3x8x8 --device cpu --json --no-ceilings"
    assert main(question.format("Prints").split()) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)[0]["device"] == "cpu"
    assert [words in err for words in ("built", "by Python", "by the descriptor", "by a child")] == [True] * 4
    assert main(question.format("Exits").split()) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and "it ends the program, by sys.exit(0) (zoo.py, line 29)" in err


def test_a_measured_network_that_exits_is_a_reason(zoo, capfd, monkeypatch):
    monkeypatch.setenv("LIB_LOCKS", str(zoo))
    cases = [Case(f"zoo:{name}", "infer", 1, "3x8x8") for name in ("Exits", "Prints")]
    results, _ = end_to_end._measure(cases, "cpu", end_to_end.Conditions(0.001))
    assert results[0].reason == "model 'zoo:Exits' does not run: it ends the program, by sys.exit(0) (zoo.py, line 29)"
    assert results[1].reason == "" and len(results[1].samples_ms) >= end_to_end.LEAST
    assert capfd.readouterr().out == ""
