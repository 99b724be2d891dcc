"""Torch's compiler is left aside where nothing compiles, and is there as ever where something does."""


import pytest

from tests import python

PROGRAM = """
import multiprocessing, sys
from lib.work.building import deferred
deferred.defer_compiler()
deferred.defer_compiler()
import torch, torchvision
from lib.work import networks
from lib.work.graph import capture

def operators():
    return [op.name for op in capture.of_network(networks.network("W1", 2), "train").ops]

before = operators()
left_alone = [decorator(lambda x: x + torch.compiler.is_compiling()) for decorator in (
    torch.compiler.disable, torch.compiler.disable(), torch.compiler.disable(recursive=False), torch._dynamo.disable)]
assert [function(torch.ones(1)).item() for function in left_alone] == [1.0] * 4
assert "torch._dynamo.eval_frame" not in sys.modules, "nothing has compiled"

def a_part_brings_the_whole(name):
    if name == "device_interface":
        from torch._dynamo.device_interface import CudaInterface
        from torch._dynamo import device_interface as found
    elif name == "utils":
        from torch._dynamo.utils import counters
        from torch._dynamo import utils as found
    else:
        from torch._dynamo.trace_rules import lookup
        from torch._dynamo import trace_rules as found
    assert "torch._dynamo.eval_frame" in sys.modules and found is sys.modules["torch._dynamo." + name]
    assert found.__spec__.origin.endswith(name + ".py") and torch.compile(torch.sin, backend="eager")(torch.zeros(1)) == 0

children = [multiprocessing.get_context("fork").Process(target=a_part_brings_the_whole, args=(name,))
            for name in ("device_interface", "utils", "trace_rules")]
for child in children:
    child.start()
for child in children:
    child.join()
assert [child.exitcode for child in children] == [0] * 3

seen = []
def backend(graph, inputs):
    seen.append([node.name for node in graph.graph.nodes if node.op.startswith("call")])
    return graph.forward

for function in left_alone:
    assert torch.compile(lambda x: function(x.sin()).cos(), backend=backend)(torch.zeros(2)).tolist() == [1.0, 1.0]
    torch._dynamo.reset()  # it keeps what it made of this line
assert seen == [["sin"], ["cos"]] * 4, seen
assert "torch._dynamo.eval_frame" in sys.modules and not deferred._left_alone
assert torchvision.ops.roi_align.__globals__["is_compile_supported"]("cpu") == torch._dynamo.utils.is_compile_supported("cpu")
assert operators() == before
assert type(torch._dynamo) is type(sys) and torch._dynamo.disable.__module__ == "torch._dynamo.decorators"
"""


@pytest.mark.slow
def test_the_compiler_waits_until_something_compiles_and_leaves_alone_what_was_kept_from_it():
    python("-c", PROGRAM)


@pytest.mark.slow
def test_an_answer_of_the_command_line_does_not_load_it():
    done = python("-X", "importtime", "-m", "lib", "advise", "timm:resnet18", "--device", "t4")
    assert "t4" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"torch._dynamo.config", "torchvision", "timm"} <= loaded
    assert not loaded & {"torch._dynamo.eval_frame", "hypothesis", "sklearn", "scipy.stats"}
