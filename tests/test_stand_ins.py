"""Operators without a family of their own: their FLOPs by hand and by torch's counter, and what answers for them."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from lib.predict import registry
from lib.predict.networks import stand_ins
from lib.predict.networks.work import Work
from lib.work.graph import capture, counts, families
from tests import in_both_modes

pytestmark = pytest.mark.slow


class Called(nn.Module):
    """A function as a network, with a weight, so that it can be trained."""

    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.function(x * self.weight)


LAYERS = [
    (lambda: nn.Conv1d(8, 16, 5, 2, 1, groups=4), (2, 8, 50)), (lambda: nn.ConvTranspose1d(8, 6, 4, 2, 1), (2, 8, 20)),
    (lambda: nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=4), (2, 8, 9, 9)),
    (lambda: nn.ConvTranspose3d(4, 6, 3, 2), (2, 4, 5, 6, 7))]


@pytest.mark.parametrize("layer, shape", LAYERS)
@in_both_modes
def test_a_convolution_has_the_flops_of_torchs_counter_and_stands_for_one_of_as_many(layer, shape, mode):
    first = layer()
    model = nn.Sequential(first, nn.ReLU(), type(first)(first.out_channels, 4, 1))
    graph = capture.capture(model, shape, mode)
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(shape))
    assert sum(counts.matrix_flops(op) for op in graph.ops if op.phase == "forward") == counter.get_total_flops()
    for op in graph.ops:
        if op.short.startswith("convolution"):
            passes = "backward" if op.short.endswith("backward") else "forward"
            made = [one for one in families.make(*stand_ins.stand_in(op), passes=passes) if one.short.startswith("convolution")]
            assert sum(map(counts.matrix_flops, made)) == counts.matrix_flops(op)
            assert sum(map(counts.compulsory_bytes, made)) == pytest.approx(counts.compulsory_bytes(op), rel=0.35)


def rows(model, shape, mode="infer"):
    return Work.of(capture.capture(model, shape, mode), mode, shape[0])


@pytest.mark.parametrize("mode, flops", [("infer", [7 * 720]), ("train", [7 * 720, 13 * 720])])
def test_group_norm_counts_by_its_flops_and_bytes(mode, flops):
    item = rows(nn.Sequential(nn.Conv2d(3, 12, 1), nn.GroupNorm(4, 12)), (2, 3, 6, 5), mode)
    norms = item.table[~item.table["covered"].astype(bool)]
    assert norms[["op", "inner", "flops"]].to_numpy().tolist() == [["elementwise", 720, one] for one in flops]
    assert (norms["bytes"] >= 2 * 4 * 720).all()
    assert "native_group_norm (as elementwise)" in item.not_modelled


@pytest.mark.parametrize("kind, gates", [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
@in_both_modes
def test_a_recurrent_layer_has_the_products_of_each_step(kind, gates, mode):
    macs = 7 * 3 * 2 * (10 * (6 + 10) + 10 * (20 + 10))  # steps, samples, directions, two layers
    graph = capture.capture(kind(6, 10, num_layers=2, bidirectional=True, batch_first=True), (3, 7, 6), mode)
    assert sum(counts.matrix_flops(op) for op in graph.ops if op.phase == "forward") == 2 * gates * macs
    assert all(map(counts.is_counted, graph.ops))
    assert Work.of(graph, mode, 3).flops >= 2 * gates * macs


def test_grouped_products_count_each_row_once():
    def grouped(x):
        weights = x.new_zeros(4, 16, 32, dtype=torch.bfloat16)
        return torch._grouped_mm(x.bfloat16(), weights, offs=torch.tensor([2, 4, 6, 8], dtype=torch.int32))

    (op,) = [op for op in capture.capture(Called(grouped), (8, 16)).ops if op.short == "_grouped_mm"]
    assert counts.matrix_flops(op) == 2 * 8 * 16 * 32
    assert stand_ins.stand_in(op)[0] == "elementwise" and stand_ins.least_flops(op) == counts.matrix_flops(op)


@pytest.mark.parametrize("function, each", [
    (F.mish, 6), (F.glu, 2), (nn.Upsample(scale_factor=2, mode="bilinear"), 32), (nn.ReflectionPad2d(1), 0),
    (lambda x: x.flatten(1) @ x.new_ones(3 * 64), 2), (lambda x: F.max_pool1d(x.flatten(2), 4), 1),
    (lambda x: x.flatten(2).transpose(1, 2).sort(1)[0], 6), (lambda x: torch.empty_like(x).exponential_() + x, 2),
    (lambda x: torch.fft.fft(x.to(torch.complex64)).real, 5 * 3),
    (lambda x: torch.mm(torch.complex(x, x).flatten(1), x.new_ones(192, 3, dtype=torch.complex64)).real, 8 * 3)])
def test_flops_of_an_element(function, each):
    """Beside the product with the network's one weight, so many for each of the 384 elements of the input."""
    ops = capture.capture(Called(function), (2, 3, 8, 8)).ops
    assert sum(map(counts.flops, ops)) == (1 + each) * 384
    assert all(map(counts.is_counted, capture.capture(Called(function), (2, 3, 8, 8), "train").ops))


def test_flops_that_nobody_knows_are_one_an_element_at_least():
    item = rows(Called(torch.linalg.matrix_exp), (2, 3, 64, 64))
    assert item.table.loc[~item.table["covered"], ["flops", "op"]].to_numpy().tolist() == [[2 * 3 * 64 * 64, "elementwise"]]
    assert item.uncounted == ("linalg_matrix_exp",) and item.not_modelled == ("linalg_matrix_exp (as elementwise)",)


@pytest.mark.parametrize("device", ["cpu", "t4"])
@in_both_modes
def test_what_stands_in_is_predicted_and_out_of_range(device, mode):
    others = (nn.GroupNorm(2, 8), nn.Upsample(scale_factor=2, mode="bilinear"), nn.LeakyReLU())
    for layer, shape in (*LAYERS, *((partial(nn.Sequential, nn.Conv2d(8, 8, 1), other), (4, 8, 16, 16)) for other in others)):
        item = rows(layer(), shape, mode)
        estimate = registry.predictor(device, "fp32").estimate(item)
        assert np.isfinite(estimate.high_ms) and estimate.predicted_ms > 0
        assert estimate.operators["out_of_range"][~item.table["covered"]].all()
