"""Torch's compiler is left aside where nothing compiles, and is there as ever where something does."""

import subprocess
import sys

import pytest

from lib import paths

PROGRAM = """
import sys
from lib.work.building import deferred
deferred.defer_compiler()
deferred.defer_compiler()
import torch, torchvision
from lib.work import networks
from lib.work.graph import capture
before = [op.name for op in capture.of_network(networks.network("resnet18", 2), "train").ops]
assert "torch._dynamo.eval_frame" not in sys.modules, "nothing has compiled"
compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
assert "torch._dynamo.eval_frame" in sys.modules and not deferred._left_alone
assert torchvision.ops.roi_align.__globals__["is_compile_supported"]("cpu") == torch._dynamo.utils.is_compile_supported("cpu")
assert [op.name for op in capture.of_network(networks.network("resnet18", 2), "train").ops] == before
assert type(torch._dynamo) is type(sys) and torch._dynamo.disable.__module__ == "torch._dynamo.decorators"
"""


DECORATED = """
import sys
from lib.work.building import deferred
deferred.defer_compiler()
import torch

@{decorator}
def left_alone(x):
    return x + torch.compiler.is_compiling()

assert left_alone(torch.ones(1)).tolist() == [1.0] and "torch._dynamo.eval_frame" not in sys.modules
seen = []
def backend(graph, inputs):
    seen.append([node.name for node in graph.graph.nodes if node.op.startswith("call")])
    return graph.forward
out = torch.compile(lambda x: left_alone(x.sin()).cos(), backend=backend)(torch.zeros(2))
assert out.tolist() == [1.0, 1.0] and seen == [["sin"], ["cos"]], seen
"""


SUBMODULE = """
import sys
from lib.work.building import deferred
deferred.defer_compiler()
import torch, torchvision
from torch._dynamo import {name} as found
from torch._dynamo.{name} import {thing}
assert "torch._dynamo.eval_frame" in sys.modules and found is sys.modules["torch._dynamo.{name}"]
assert found.__spec__.origin.endswith("{name}.py") and torch.compile(torch.sin, backend="eager")(torch.zeros(1)) == 0
"""


def run(*words):
    return subprocess.run([sys.executable, *words], cwd=paths.ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_compiler_waits_until_something_compiles():
    done = run("-c", PROGRAM)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "thing"), [("device_interface", "CudaInterface"), ("utils", "counters"),
                                             ("trace_rules", "lookup")])
def test_a_part_of_the_compiler_brings_the_whole_of_it(name, thing):
    done = run("-c", SUBMODULE.format(name=name, thing=thing))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("decorator", ["torch.compiler.disable", "torch.compiler.disable()",
                                       "torch.compiler.disable(recursive=False)", "torch._dynamo.disable"])
def test_a_function_that_is_kept_from_the_compiler_stays_so(decorator):
    done = run("-c", DECORATED.format(decorator=decorator))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "timm:resnet18"])
def test_an_answer_of_the_command_line_does_not_load_it(name):
    done = run("-X", "importtime", "-m", "lib", "advise", name, "--device", "t4")
    assert done.returncode == 0 and "t4" in done.stdout
    assert "torch._dynamo.config" in done.stderr and "torch._dynamo.eval_frame" not in done.stderr
    for heavy in ("hypothesis", "pandera", "sklearn", "scipy.stats"):
        assert f"| {heavy}\n" not in done.stderr.replace(" ", "").replace("|", "| "), heavy
