"""What capture, counts and rebuild say of operators, against torch itself and against hand counts."""

from dataclasses import replace

import psutil
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lib.work import models, networks
from lib.work.building import fake_mode, fakes
from lib.work.graph import capture, counts, families, rebuild
from lib.work.graph.ops import Op, TensorSpec
from tests import in_both_modes, nightly, real_pass

QUICK = ["cnn3d", "resnet18", "mobilenet_v3_small", "squeezenet1_1", "convnext_tiny", "swin_v2_t", "tests.test_capture:Rest"]
OTHERS = ["alexnet", "efficientnet_b0", "vit_b_16", "shufflenet_v2_x1_0", "densenet121", "googlenet", "regnet_y_400mf",
          "maxvit_t"]


class Rest(nn.Sequential):
    """Operators that of the networks here only the others have."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3), nn.AvgPool2d(64), nn.SiLU(), nn.Tanh(), nn.Flatten(), nn.Linear(72, 1000))


def captured(name, mode="infer", batch=1, **options):
    result = networks.network(name, batch)
    return capture.capture(fakes.build(result.build), result.shape, mode, **options)


def ran(net, mode):
    """Return the names of the operators of a real run."""
    names = []

    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    model, (placed, named) = net.build().train(mode == "train"), net.made("cpu")
    with Names():
        real_pass(model, mode, *placed, **named)
    return [name for name in names if not name.startswith(("prim", "profiler", "aten._local_scalar"))]


class Tables(nn.Module):
    """Tensors as plain attributes, large and small, in a list, of one storage, and of a buffer's; one is kept by each pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(100, 100)
        self.register_buffer("scale", torch.ones(100))
        self.table, self.several, self.same = torch.randn(100, 100), [torch.ones(7)], self.scale[:50]

    def forward(self, x):
        self.kept = self.layer(x) @ self.table
        return self.kept * self.scale


@pytest.mark.parametrize("built", [fakes.build, lambda kind: kind()])
def test_tensors_in_plain_attributes_take_memory_once_a_storage(built):
    graph = capture.capture(built(Tables), (2, 100))
    assert graph.parameter_bytes == 4 * 100 * 101 and graph.buffer_bytes == 4 * (100 + 100 * 100 + 7)
    assert [spec.kind for op in graph.ops if op.short == "mm" for spec in op.tensors] == ["activation", "buffer"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *(nightly(name) for name in OTHERS)])
@in_both_modes
def test_every_operator_of_a_classifier_is_counted_as_by_torch_covered_and_rebuilt(name, mode):
    """Of the backward of a grouped convolution torch counts a dense one, of attention's none of the new scores."""
    net = networks.network(name, 2)
    graph = captured(name, mode, 2, optimizer="adam" if (name, mode) == ("alexnet", "train") else "")
    assert graph.output == (2, 1000)
    for op in {op.name: op for op in graph.ops}.values():
        assert counts.is_counted(op), op.name
        assert families.describe(op) is not None, op.name
        rebuild.runnable([op], torch.device("cpu"))()
    if mode == "infer":
        return
    flops = {phase: sum(counts.matrix_flops(op) for op in graph.ops if op.phase == phase) for phase in ("forward", "backward")}
    model, counter = net.build().to("meta"), FlopCounterMode(display=False)
    with counter:
        output = capture.first_tensor(model(torch.empty(net.shape, device="meta")))
    assert flops["forward"] == counter.get_total_flops()
    if not any(op.short == "convolution" and op.args[8] > 1 or "dot_product" in op.name for op in graph.ops):
        with counter:
            capture.default_loss(output).backward()
        assert flops["backward"] == counter.get_total_flops()


@pytest.mark.slow
def test_capture_neither_runs_nor_allocates_nor_changes_the_network():
    model = fakes.build(lambda: models.build("vit_h_14", 3, 1000, 2, 224))  # 2.5 GB of weights, never touched
    before, memory = list(map(id, model.parameters())), psutil.Process().memory_info().rss
    capture.capture(model, (1, 3, 224, 224), "train", "sgd")
    assert psutil.Process().memory_info().rss - memory < 500e6
    assert list(map(id, model.parameters())) == before
    assert model.training and all(value.grad is None for value in model.parameters())


@pytest.mark.parametrize("name, shape, mode", [
    ("simple_cnn", "1x28x28", "train"), ("timm:vit_tiny_patch16_224", "", "infer")])
def test_what_is_captured_again_from_known_results_is_what_torch_derives(name, shape, mode, monkeypatch):
    net = networks.network(name, 2, shape)
    first, again = capture.of_network(net, mode), capture.of_network(net, mode)
    monkeypatch.setattr(fake_mode.CachingFakeMode, "_key", lambda *_: None)
    assert first == again == capture.of_network(net, mode)


SPEC = TensorSpec((2, 3, 4), (12, 4, 1))


@pytest.mark.parametrize("name, args, moved", [
    ("aten.view.default", (SPEC, (24,)), 0), ("aten.add.Tensor", (SPEC, SPEC), 3 * 96),
    ("aten.mul.Tensor", (replace(SPEC, storage=1), replace(SPEC, storage=1)), 2 * 96), ("aten.zero_.default", (SPEC,), 96),
    ("aten.add.Tensor", (SPEC, replace(SPEC, stride=(0, 4, 1))), 2 * 96 + 48)])
def test_compulsory_bytes(name, args, moved):
    assert counts.compulsory_bytes(Op(name, args, outputs=(SPEC,))) == moved


def test_a_strided_convolution_reads_only_what_its_windows_touch():
    (op,) = capture.capture(nn.Conv2d(2, 4, 1, 2, bias=False), (1, 2, 8, 8)).ops
    assert counts.bytes_read(op) == 4 * (2 * 4 * 4 + 4 * 2)


@pytest.mark.parametrize("name, more", [("mul_.Tensor", [SPEC]), ("mul_.Tensor", [0.9]),
                                            ("addcdiv_.default", [SPEC, SPEC])])
def test_repeated_calls_stay_finite_and_normal(name, more):
    op = Op(f"aten.{name}", (SPEC, *more))
    (target, *rest), named = rebuild.arguments(op, torch.device("cpu"))
    for _ in range(2000):
        op.overload(target, *rest, **named)
    values = target.abs()
    assert values.isfinite().all() and not values[values > 0].lt(1e-38).any(), "denormals are a hundred times slower"
