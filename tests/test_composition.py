"""What the graph says of an operator's inputs and output, and the sum of operators against the network."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import operator_sum
from lib import paths
from lib.measure.networks import allocator
from lib.measure.networks.case import Case
from lib.work import networks
from lib.work.graph import capture

CPU = torch.device("cpu")


def chain(width=64, mode="infer"):
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 3, 3))
    return capture.capture(model, (1, 3, 32, 32), mode)


def test_storages_live_as_long_as_something_refers_to_them():
    graph = chain()
    born = {storage: number for number, new in enumerate(graph.made) for storage in new}
    died = {storage: number for number, dead in enumerate(graph.freed) for storage in dead}
    assert set(died) <= set(born)
    assert all(born[storage] <= died[storage] for storage in died)
    convolutions = [number for number, op in enumerate(graph.ops) if op.short == "convolution"]
    assert 64 * 32 * 32 * 4 in graph.made[convolutions[0]].values()


def test_gradients_of_weights_outlive_the_step():
    graph = chain(mode="train")
    weight_gradients = {op.outputs[1].storage for op in graph.ops if op.short == "convolution_backward"}
    assert weight_gradients
    assert not weight_gradients & {storage for dead in graph.freed for storage in dead}


MEMORY = """
import json
from statistics import median
import torch
from torch import nn
from benchmarks import heap
from lib.measure.networks import allocator
from lib.work.graph import capture, counts
def faults():
    begin = allocator.page_faults()
    for _ in range(5):
        torch.ones(12 << 20)  # 48 MiB
    return allocator.page_faults() - begin
default = faults()
with heap.retained():
    for _ in range(5):
        faults()
    kept = faults()
model = nn.Sequential(*[nn.Conv2d(64, 64, 1) for _ in range(6)])
oldest = []
for mode in ("infer", "train"):
    graph = capture.capture(model, (8, 64, 56, 56), mode)
    found = [distance for op, distance in zip(graph.ops, heap.reuse_distances(graph)) if op.short == "convolution"]
    oldest.append([min(found), median(found), sum(counts.compulsory_bytes(op) for op in graph.ops)])
print(json.dumps([default, kept, *oldest]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not allocator.known(), reason="written for glibc alone")
def test_kept_memory_has_no_page_faults_and_is_older_where_a_backward_pass_keeps_more():
    """In a fresh process: where memory lies depends on everything that a process did before."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, cwd=paths.ROOT)
    default, kept, (low, infer, _), (least, train, touched) = json.loads(done.stdout)
    assert kept < 100 < default
    assert min(low, least) >= 0
    assert infer < 2.5 * 8 * 64 * 56 * 56 * 4, "two or three blocks take turns"
    assert infer < train <= touched, "the same passes were repeated"  # most memory; a block may lie where none lay for long


@pytest.mark.slow
def test_operators_are_summed_in_every_state():
    cases, kinds = operator_sum.compose([Case("W1", "infer", 2), Case("W1", "train", 2)], CPU, rounds=1)
    assert list(cases["mode"]) == ["infer", "train"]
    for state in operator_sum.STATES:
        assert (cases[f"{state}_ms"] > 0).all()
        assert np.isfinite(cases[f"{state}_ratio"]).all()
    assert cases["operators"].tolist() == [len(capture.capture(networks.network("W1").build(), (2, 3, 28, 28), mode).ops)
                                           for mode in ("infer", "train")]
    assert (kinds["family"] != "").all()
    assert kinds["occurrences"].sum() == cases["operators"].sum()


def test_the_whole_time_of_a_classifier_is_covered():
    for mode in ("infer", "train"):
        result = operator_sum.coverage(Case("mobilenet_v3_small", mode, 2), CPU)
        assert result["covered_share"] >= 0.95
        assert result["operators_ms"] > 0
