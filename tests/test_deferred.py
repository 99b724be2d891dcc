"""Torch's compiler is left aside where nothing compiles, and is there as ever where something does."""

import pytest

from tests import python

PROGRAM = """
import sys
from lib.work.building import deferred
deferred.defer_compiler()
deferred.defer_compiler()
import torch, torchvision
from lib.work import networks
from lib.work.graph import capture

def operators():
    return [op.name for op in capture.of_network(networks.network("W1", 2), "train").ops]

before = operators()
kept = [decorator(lambda x: x + 1) for decorator in (torch.compiler.disable, torch.compiler.disable(recursive=False))]
assert [function(torch.ones(1)).item() for function in kept] == [2.0] * 2
assert "torch._dynamo.eval_frame" not in sys.modules, "nothing has compiled"

assert torch.compile(lambda x: x.sin().cos(), backend="eager")(torch.zeros(2)).tolist() == [1.0, 1.0]
assert "torch._dynamo.eval_frame" in sys.modules and type(torch._dynamo) is type(sys)
assert operators() == before
"""


@pytest.mark.slow
def test_the_compiler_waits_until_something_compiles():
    python("-c", PROGRAM)


@pytest.mark.slow
def test_an_answer_of_the_command_line_does_not_load_it():
    done = python("-X", "importtime", "-m", "lib", "advise", "timm:resnet18", "--device", "t4")
    assert "t4" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"torch._dynamo.config", "torchvision", "timm"} <= loaded
    assert not loaded & {"torch._dynamo.eval_frame", "hypothesis", "sklearn", "scipy.stats"}
