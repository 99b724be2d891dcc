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
from lib.work.building import deferred
deferred.defer_compiler()
import torch

@{decorator}
def left_alone(x):
    return x + torch.compiler.is_compiling()

seen = []
def backend(graph, inputs):
    seen.append([node.name for node in graph.graph.nodes if node.op.startswith("call")])
    return graph.forward
out = torch.compile(lambda x: left_alone(x.sin()).cos(), backend=backend)(torch.zeros(2))
assert out.tolist() == [1.0, 1.0] and seen == [["sin"], ["cos"]], seen
"""


def run(*words):
    return subprocess.run([sys.executable, *words], cwd=paths.ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_compiler_waits_until_something_compiles():
    done = run("-c", PROGRAM)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("decorator", ["torch.compiler.disable", "torch.compiler.disable()",
                                       "torch.compiler.disable(recursive=False)", "torch._dynamo.disable"])
def test_a_function_that_is_kept_from_the_compiler_stays_so(decorator):
    done = run("-c", DECORATED.format(decorator=decorator))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_answer_of_the_command_line_does_not_load_it():
    done = run("-X", "importtime", "-m", "lib", "advise", "resnet18", "--device", "t4")
    assert done.returncode == 0 and "t4" in done.stdout
    assert "torch._dynamo.config" in done.stderr and "torch._dynamo.eval_frame" not in done.stderr
    for heavy in ("hypothesis", "pandera", "sklearn", "scipy.stats"):
        assert f"| {heavy}\n" not in done.stderr.replace(" ", "").replace("|", "| "), heavy
