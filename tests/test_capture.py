"""What capture, counts and rebuild say of operators, against torch itself and against hand counts."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lib.errors import InputError
from lib.work import models, networks
from lib.work.building import fakes
from lib.work.graph import capture, counts, families, ops, rebuild, shapes
from lib.work.graph.ops import Op, TensorSpec

CPU = torch.device("cpu")
CLASSIFIERS = ["resnet18", "mobilenet_v3_small", "shufflenet_v2_x1_0", "densenet121", "googlenet", "vit_b_16", "swin_v2_t",
               "convnext_tiny", "efficientnet_b0", "regnet_y_400mf", "maxvit_t", "alexnet", "squeezenet1_1", "mnasnet1_0"]


def captured(name, mode="infer", batch=1, **options):
    result = networks.network(name, batch)
    return capture.capture(fakes.build(result.build), result.shape, mode, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "macs", "parameters"), [
    ("resnet50", 4_089_184_256, 25_557_032), ("vgg16", 15_470_264_320, 138_357_544),
    ("mobilenet_v2", 300_774_272, 3_504_872), ("vit_b_16", 17_563_828_224, 86_567_656)])
def test_multiply_adds_are_the_hand_counts(name, macs, parameters):
    graph = captured(name)
    assert sum(counts.matrix_flops(op) for op in graph.ops) == 2 * macs
    assert graph.parameters == parameters


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_every_operator_of_a_classifier_is_counted_covered_and_rebuilt(name, mode):
    graph = captured(name, mode, optimizer="adam" if mode == "train" else "")
    assert graph.output == (1, 1000)
    kinds = {op.name: op for op in graph.ops}
    for op in kinds.values():
        assert counts.is_counted(op), op.name
        assert families.describe(op) is not None, op.name
        rebuild.runnable([op], CPU)()


@pytest.mark.slow
def test_capture_neither_runs_nor_allocates_nor_changes_the_network():
    model = fakes.build(lambda: models.build("vit_h_14", 3, 1000, 2, 224))  # 2.5 GB of weights, never touched
    before = {name: id(value) for name, value in model.named_parameters()}
    import psutil

    held = psutil.Process().memory_info().rss
    capture.capture(model, (1, 3, 224, 224), "train", "sgd")
    assert psutil.Process().memory_info().rss - held < 500e6
    assert {name: id(value) for name, value in model.named_parameters()} == before
    assert model.training
    assert all(value.grad is None for value in model.parameters())


@pytest.mark.parametrize("name", ["W1", "W6"])
def test_captured_operators_are_the_ones_that_run(name):
    result = networks.network(name, 2)
    model = result.build()
    graph = capture.capture(model, result.shape, "train")

    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    real = copy.deepcopy(model).train()
    inputs = torch.randn(result.shape)
    with Names() as mode:
        capture.default_loss(real(inputs)).backward()
    work = [name for name in mode.seen if not name.startswith(("prim", "profiler", "aten._local_scalar"))]
    assert [op.name for op in graph.ops] == work


@pytest.mark.slow
@pytest.mark.parametrize("name", ["W1", "W7", "resnet18", "mobilenet_v2", "densenet121", "convnext_tiny", "vit_b_16"])
def test_matrix_flops_are_those_of_torchs_counter(name):
    result = networks.network(name, 2)
    graph = capture.capture(fakes.build(result.build), result.shape, "train")
    model, inputs = result.build().to("meta"), torch.empty(result.shape, device="meta")
    with FlopCounterMode(display=False) as counter:
        output = capture.first_tensor(model(inputs))
    assert sum(counts.matrix_flops(op) for op in graph.ops if op.phase == "forward") == counter.get_total_flops()
    if name in ("mobilenet_v2", "convnext_tiny", "vit_b_16"):
        return  # torch takes the backward of a grouped convolution for a dense one, attention's without new scores
    with counter:
        capture.default_loss(output).backward()
    assert sum(counts.matrix_flops(op) for op in graph.ops if op.phase == "backward") == counter.get_total_flops()


def test_three_dimensional_network_by_hand():
    graph = captured("cnn3d", batch=1)
    by_hand = [28**3 * 16 * 1 * 27, 14**3 * 32 * 16 * 27, 7**3 * 64 * 32 * 27, 64 * 128, 128 * 1000]
    assert sum(counts.matrix_flops(op) for op in graph.ops) == 2 * sum(by_hand)


def test_modules_and_phases():
    graph = captured("resnet18", "train", optimizer="sgd")
    convolutions = [op for op in graph.ops if op.short == "convolution"]
    backward = [op for op in graph.ops if op.short == "convolution_backward"]
    assert {op.module for op in convolutions} == {op.module for op in backward}
    assert "layer1.0.conv1" in {op.module for op in convolutions}
    assert {op.phase for op in graph.ops} == set(ops.PHASES)
    assert [op.args[10][0] for op in backward].count(False) == 1  # the images want no gradient
    assert {spec.kind for op in convolutions for spec in op.tensors} == {"input", "parameter", "activation"}


def test_batch_layout_and_dtype_reach_the_operators():
    graph = captured("resnet18", batch=4, channels_last=True, dtype="bfloat16")
    first = next(op for op in graph.ops if op.short == "convolution")
    assert first.args[0].shape[0] == 4
    assert shapes.layout(first.args[0]) == "channels_last"
    assert first.args[0].dtype == first.args[1].dtype == "bfloat16"


def test_wrong_questions_are_told_in_a_line():
    model = models.build("resnet18", 3, 1000)
    with pytest.raises(InputError, match="does not run on an input of shape"):
        capture.capture(model, (1, 4, 224, 224))
    with pytest.raises(InputError, match="no mode 'fly'"):
        capture.capture(model, (1, 3, 224, 224), "fly")
    for name, told in (("resnet5000", "no model 'resnet5000'"), ("nowhere:Net", "cannot import 'nowhere'"),
                       ("torch.nn:Nothing", "no class or function 'Nothing'"), ("torch.nn:Linear", "without arguments"),
                       ("time:time", "not a torch.nn.Module")):
        with pytest.raises(InputError, match=told):
            networks.network(name).build()
    with pytest.raises(InputError, match="input shape '3x'"):
        networks.network("resnet18", input_shape="3x")


def test_a_users_own_class(tmp_path, monkeypatch):
    (tmp_path / "mynet.py").write_text("from torch import nn\nclass Net(nn.Sequential):\n    def __init__(self):\n"
                                       "        super().__init__(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(2))\n")
    monkeypatch.chdir(tmp_path)
    result = networks.network("mynet:Net", 2, "3x8x8")
    assert result.shape == (2, 3, 8, 8)
    assert isinstance(result.build(), nn.Sequential)


SPEC = TensorSpec((2, 3, 4), (12, 4, 1))


def test_compulsory_bytes():
    def one(name, args, outputs=()):
        return Op(name, args, outputs=outputs)

    assert counts.compulsory_bytes(one("aten.view.default", (SPEC, (24,)), (SPEC,))) == 0
    assert counts.compulsory_bytes(one("aten.add.Tensor", (SPEC, SPEC), (SPEC,))) == 3 * 96
    same = TensorSpec((2, 3, 4), (12, 4, 1), storage=1)
    assert counts.compulsory_bytes(one("aten.mul.Tensor", (same, same), (SPEC,))) == 2 * 96
    assert counts.compulsory_bytes(one("aten.zero_.default", (SPEC,), (SPEC,))) == 96
    expanded = TensorSpec((2, 3, 4), (0, 4, 1))
    assert counts.compulsory_bytes(one("aten.add.Tensor", (SPEC, expanded), (SPEC,))) == 2 * 96 + 48


def test_a_strided_convolution_reads_only_what_its_windows_touch():
    whole = families.make("conv2d", {"batch": 1, "in_channels": 2, "out_channels": 4, "height": 8, "width": 8, "kernel_h": 1,
                                      "kernel_w": 1, "stride_h": 2, "stride_w": 2})
    assert counts.bytes_read(whole[0]) == 4 * (2 * 4 * 4 + 4 * 2)
    assert counts._axis_read(size=10, out=3, kernel=2, stride=4, padding=0, dilation=1) == 6
    assert counts._axis_read(size=10, out=8, kernel=2, stride=1, padding=0, dilation=2) == 10


def test_repeated_calls_stay_finite_and_normal():
    for name, args in (("aten.mul_.Tensor", (SPEC, SPEC)), ("aten.mul_.Tensor", (SPEC, 0.9)),
                       ("aten.add_.Tensor", (SPEC, SPEC)), ("aten.addcdiv_.default", (SPEC, SPEC, SPEC))):
        (target, *rest), named = rebuild.arguments(Op(name, args), CPU)
        function = Op(name, args).overload
        for _ in range(2000):
            function(target, *rest, **named)
        values = target.abs()
        assert values.isfinite().all()
        assert not ((values > 0) & (values < 1e-38)).any(), "denormals are a hundred times slower"


def test_unknown_operators_are_not_zero():
    strange = Op("aten.linalg_svd.default", (SPEC,), outputs=(SPEC,))
    assert not counts.is_counted(strange)
    assert math.isnan(counts.flops(strange))
    assert families.describe(strange) is None
