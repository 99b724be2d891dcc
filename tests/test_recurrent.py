"""Recurrent layers on CUDA: one call of cuDNN for all layers and steps, FLOPs and bytes by hand."""

import pytest
import torch
from torch import nn

from lib.predict import registry
from lib.predict.networks import stand_ins
from lib.predict.networks.work import Work
from lib.work.building import fakes
from lib.work.graph import capture, counts, rebuild, recurrent
from tests import in_both_modes, real_pass

LAYERS = [(nn.LSTM, {}, 4, 15), (nn.GRU, {}, 3, 12), (nn.RNN, {}, 1, 1),
          (nn.RNN, {"nonlinearity": "relu"}, 1, 1)]
layers = pytest.mark.parametrize("kind, options, gates, cell", LAYERS)


class Last(nn.Module):
    """The output of a recurrent layer's last step, and a linear layer."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 4)

    def forward(self, data):
        return self.head(self.layer(data)[0][:, -1])


class Packed(nn.Module):
    """Three sequences of 7, 3 and 1 steps."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, data):
        packed = nn.utils.rnn.pack_padded_sequence(data, torch.tensor([3, 7, 1]), batch_first=True,
                                                   enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


def cudnn(graph):
    return [op for op in graph.ops if op.short in recurrent.CUDNN]


@layers
@in_both_modes
def test_a_layer_is_one_operator_on_cuda(kind, options, gates, cell, mode):
    """Two layers, both directions, 3 sequences of 7 steps, 6 inputs, 10 hidden elements."""
    layer = kind(6, 10, num_layers=2, bidirectional=True, batch_first=True, **options)
    graph = capture.capture(Last(layer, 20), (3, 7, 6), mode, device="cuda:0")
    first_layer, second_layer = gates * (6 + 10) * 10, gates * (20 + 10) * 10
    macs = 7 * 3 * 2 * (first_layer + second_layer)
    forward, *backward = cudnn(graph)
    assert [op.short for op in backward] == ["_cudnn_rnn_backward"] * (mode == "train")
    assert counts.matrix_flops(forward) == 2 * macs
    assert counts.flops(forward) == 2 * macs + cell * 7 * 3 * 2 * 2 * 10
    name = options.get("nonlinearity", "tanh")
    mode_name = f"rnn_{name}" if kind is nn.RNN else kind.__name__.lower()
    for op in (forward, *backward):
        assert recurrent.sizes(op) == (mode_name, 6, 10, 2, 2, 7, 3, 21)
    states = 2 if kind is nn.LSTM else 1
    weights = 2 * (first_layer + second_layer) + 2 * 2 * 2 * gates * 10
    elements = 3 * 7 * 6 + weights + 3 * 7 * 20 + 2 * states * 4 * 3 * 10
    assert counts.compulsory_bytes(forward) == 4 * elements
    if backward:
        assert counts.matrix_flops(backward[0]) == 2 * 2 * macs
        assert sum(spec.elements for spec in backward[0].outputs) == weights
    assert len([op for op in graph.ops if counts.is_work(op)]) < 20
    assert all(map(counts.is_counted, graph.ops))


@layers
def test_a_capture_for_the_cpu_has_the_same_products_and_no_cudnn(kind, options, gates, cell):
    layer = kind(6, 10, num_layers=2, **options)
    of_cpu = capture.capture(layer, (7, 3, 6))
    assert not cudnn(of_cpu)
    of_cuda, again = (capture.capture(layer, (7, 3, 6), device=device) for device in ("cuda:0", "cpu"))
    assert again.ops == of_cpu.ops
    products = [sum(map(counts.matrix_flops, graph.ops)) for graph in (of_cpu, of_cuda)]
    assert products == [2 * 7 * 3 * gates * 10 * (16 + 20)] * 2
    assert of_cpu.output == of_cuda.output == (7, 3, 10)


def test_projections_frozen_weights_and_missing_biases():
    layer = nn.LSTM(6, 10, proj_size=5, bias=False)
    graph = capture.capture(layer, (7, 3, 6), device="cuda:0")
    assert counts.matrix_flops(*cudnn(graph)) == 2 * 7 * 3 * (4 * 10 * (6 + 5) + 10 * 5)
    assert graph.output == (7, 3, 5)
    frozen = nn.GRU(6, 10).requires_grad_(False)
    model = nn.Sequential(nn.Linear(4, 6), frozen)
    model.append(type("First", (nn.Module,), {"forward": lambda self, both: both[0]})())
    forward, backward = cudnn(capture.capture(model, (7, 3, 4), "train", device="cuda:0"))
    assert counts.matrix_flops(forward) == counts.matrix_flops(backward)
    assert [spec.shape for spec in backward.outputs] == [(7, 3, 6)]


@layers
@in_both_modes
def test_packed_sequences_count_their_own_steps(kind, options, gates, cell, mode):
    graph = capture.capture(Packed(kind(4, 6, **options)), (3, 8, 4), mode, device="cuda:0")
    forward = cudnn(graph)[0]
    assert counts.matrix_flops(forward) == 2 * 11 * gates * 6 * (4 + 6)
    assert recurrent.sizes(forward)[-3:] == (7, 3, 11)
    assert graph.output == (3, 7, 6)


@in_both_modes
def test_autocast_computes_in_16_bits(mode):
    model = Last(nn.GRU(6, 10, batch_first=True), 10)
    graph = capture.capture(model, (3, 7, 6), mode, device="cuda:0", autocast="bfloat16")
    assert {op.dtype for op in cudnn(graph)} == {"bfloat16"}


@in_both_modes
def test_a_long_sequence_is_predicted_for_a_gpu_as_one_row(mode):
    model = Last(nn.GRU(128, 256, num_layers=6, batch_first=True), 256)
    graph = capture.capture(model, (10, 512, 128), mode, device="cuda:0")
    (family, params), *_ = map(stand_ins.stand_in, cudnn(graph))
    assert family == "bmm"
    assert (params["batch"], params["gemm_m"]) == (512, 10)
    item = Work.of(graph, mode, 10, "cuda")
    assert len(item.table) < 40
    assert any(words.startswith("_cudnn_rnn (as bmm)") for words in item.not_modelled)
    estimate = registry.predictor("t4", "fp32").estimate(item)
    assert 0 < estimate.predicted_ms < float("inf")


@layers
def test_a_call_that_is_run_gets_the_weights_buffer_and_what_its_forward_keeps(
        kind, options, gates, cell, monkeypatch):
    """On fake tensors: cuDNN's own function that lays out the weights needs a GPU."""
    flattened = []

    def flatten(weights, stride, *sizes):
        flattened.append((len(weights), stride, *sizes))
        return weights[0].new_empty(sum(weight.numel() for weight in weights))

    def fake(spec, device, fill, high):
        return torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype))

    monkeypatch.setattr(torch.ops.aten, "_cudnn_rnn_flatten_weight", flatten)
    layer = kind(6, 10, num_layers=2, dropout=0.5, batch_first=True, **options)
    graph = capture.capture(Last(layer, 10), (3, 7, 6), "train", device="cuda:0")
    for op in cudnn(graph):
        with fakes.active():
            given, named = rebuild.arguments(op, torch.device("cpu"), fake)
            made = op.overload(*given, **named)
        assert given[3].numel() == gates * 10 * (6 + 10 + 10 + 10 + 4)
        mode = recurrent.MODES.index(recurrent.sizes(op).mode)
        assert flattened.pop() == (8, 4, 6, mode, 10, 0, 2, True, False)
        assert [value for value in given if isinstance(value, float)] == [0.0], "no dropout"
        results = made[3] if op.is_backward else made[:1]
        expected = given[1] if op.is_backward else [torch.empty(3, 7, 10)]
        assert [tensor.shape for tensor in results] == [tensor.shape for tensor in expected]


@pytest.mark.cuda
@layers
@in_both_modes
def test_a_gpu_runs_what_is_captured(kind, options, gates, cell, mode):
    model = Last(kind(6, 10, batch_first=True, **options), 10)
    graph = capture.capture(model, (3, 7, 6), mode, device="cuda:0")
    with capture.Recorder() as recorder:
        real_pass(model.to("cuda:0").train(mode == "train"), mode, torch.randn(3, 7, 6, device="cuda:0"))
    for op, real in zip(cudnn(graph), cudnn(recorder), strict=True):
        assert recurrent.sizes(op) == recurrent.sizes(real)
        assert [spec.shape for spec in op.outputs[:3]] == [spec.shape for spec in real.outputs[:3]]
    rebuild.runnable(cudnn(graph), torch.device("cuda:0"))()
    torch.cuda.synchronize()
