"""Whole networks: what is captured of them, their memory, their composition; and networks measured whole."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock

from lib.measure.networks import allocator, end_to_end
from lib.predict.networks import allocations, composition, fitting
from lib.predict.networks.work import Work
from lib.work.graph import capture
from tests import in_both_modes, real_pass, refused

of_glibc = pytest.mark.skipif(not allocator.is_glibc(), reason="another allocator than glibc's")


def chain(*layers, shape=(2, 3, 64, 64)):
    return capture.capture(nn.Sequential(*layers), shape)


@in_both_modes
@pytest.mark.parametrize("build", [
    lambda: nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.Conv2d(32, 32, 3, groups=32)),
    lambda: nn.Sequential(nn.Conv2d(16, 48, 3), nn.Conv2d(48, 48, 3, groups=16), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(48 * 30 * 30, 10)),
    lambda: nn.Sequential(nn.Conv2d(16, 32, 1), BasicBlock(32, 32))], ids=["depthwise", "groups", "held"])
def test_the_peak_is_what_the_allocator_hands_out(build, mode):
    """Against the profiler's record of every allocation of a real pass."""
    model = build().train(mode == "train")
    call = partial(real_pass, model, mode, torch.randn(2, 16, 64, 64))
    call()
    model.zero_grad(set_to_none=True)
    measured_mb = end_to_end.tensor_peak_mb(call, torch.device("cpu"))
    predicted_mb = Work.of(capture.capture(build(), (2, 16, 64, 64), mode), mode, 2).peak_bytes / 1e6
    assert 0.98 * measured_mb <= predicted_mb <= 1.35 * measured_mb, "never under; over where oneDNN spares itself a copy"


@of_glibc
def test_blocks_that_are_always_mapped_come_fresh_in_each_pass():
    big = chain(nn.Conv2d(3, 64, 1), nn.Conv2d(64, 64, 1), shape=(16, 3, 128, 128))  # 64 MiB each: beyond every threshold
    small = chain(nn.Conv2d(3, 8, 1), shape=(1, 3, 16, 16))
    fresh = [allocations.Plan.from_graph(graph).fresh_bytes() for graph in (big, small)]
    assert fresh[0] == pytest.approx(5 * 64 * 2**20, rel=0.05)  # two outputs, and three in blocks beside them
    assert fresh[1] == 0


@of_glibc
@pytest.mark.parametrize("blocks, fresh", [(2, 0), (3, 3)])
def test_a_heap_of_more_than_twice_its_largest_block_is_returned_after_a_pass(blocks, fresh):
    size, numbers = 12 * 2**20, range(blocks)
    made = tuple(((number, size),) for number in numbers)
    plan = allocations.Plan((((), ()),) * blocks, made, ((),) * (blocks - 1) + (tuple(numbers),))
    assert plan.fresh_bytes() == fresh * size == (plan.peak_bytes() if fresh else 0)


FACTORS = {"conv": 1.2, "conv_1x1": 0.8, "gemm": 1.1, "elements": 0.7}


def networks_of(count=24, heaps=("kept", "default")):
    """Return networks whose operators run among others by FACTORS, with 0.2 ms per MB of fresh memory."""
    draw, rows = np.random.default_rng(0), []
    for number in range(count):
        parts = {f"{kind}_ms": draw.lognormal(2, 1) for kind in composition.OPERATOR_KINDS}
        parts["fresh_mb"] = draw.uniform(0, 300)
        sum_ms = sum(0.9 * FACTORS.get(kind, 1.0) * parts[f"{kind}_ms"] for kind in composition.OPERATOR_KINDS)
        for heap in heaps:
            fresh_ms = 0.2 * parts["fresh_mb"] * (heap == "default")
            rows.append({"network": f"net{number}", "family": f"family{number % 8}", "memory": heap, **parts,
                         "latency_ms": (sum_ms + fresh_ms) * np.exp(draw.normal(0, 0.01))})
    return pd.DataFrame(rows)


def test_efficiencies_are_learned_through_the_sums_of_networks():
    rows = networks_of()
    learned = fitting.fit(rows)
    common = learned.compositions["kept"].rates["sum_ms"]
    for kind in composition.OPERATOR_KINDS:
        assert common * learned.efficiencies[kind] == pytest.approx(0.9 * FACTORS.get(kind, 1.0), rel=0.1), kind
    rates = learned.compositions["default"].rates
    assert rates["fresh_mb"] == pytest.approx(0.2, rel=0.15)
    assert learned.compositions["kept"].rates["fresh_mb"] == 0.0


def test_what_few_networks_do_not_tell_stays_as_it_is():
    """Kinds that no network has keep the efficiency of all; a heap that was not measured costs what is usual."""
    rows = networks_of(6, heaps=("kept",))
    learned = fitting.fit(rows.assign(attention_ms=0.0))
    assert learned.efficiencies["attention"] == pytest.approx(1.0)
    assert learned.compositions["default"].rates["fresh_mb"] == pytest.approx(0.3)
    assert learned.compositions["default"].half == learned.compositions["kept"].half
    assert {heap: one.interval_of for heap, one in learned.compositions.items()} == {"kept": "", "default": "kept"}
    assert learned.compositions["kept"].scores and not learned.compositions["default"].scores
    with refused("four networks or more"):
        fitting.fit(rows[:3])
