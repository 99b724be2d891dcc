"""An element type of 16 bits is what autocast computes in: casts, types and bytes of a capture are those of torch.autocast."""


import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lib.predict.networks import work
from lib.work import networks
from lib.work.building import autocasts
from lib.work.graph import capture, counts
from lib.work.graph.recorder import Recorder
from lib.work.networks import Network
from tests import in_both_modes, real_pass
from tests.test_named_networks import SMALL, written


def signature(ops):
    """Return operators with the element types that they run in and give; views are no work, batch statistics no result."""
    return [(op.name, op.dtype, [spec.dtype for spec in op.outputs[:1]]) for op in ops if op.short not in counts.VIEWS]


def real_run(net, mode, dtype):
    """Return the operators of a real run under torch.autocast on this CPU."""
    model, (placed, named) = net.build().train(mode == "train"), net.made("cpu")
    with Recorder() as recorder:
        real_pass(model, mode, *placed, autocast=dtype, **named)
    return recorder.ops


@in_both_modes
@pytest.mark.parametrize("name", ["resnet18", "timm:vit_tiny_patch16_224", "bert"])
@pytest.mark.slow
def test_captured_types_are_those_of_torchs_own_autocast_on_the_cpu(name, mode, tmp_path):
    net = networks.network(written(tmp_path, name, **SMALL), 2) if name == "bert" else networks.network(name, 2, "3x64x64")
    for dtype in ("bfloat16", "float16") if mode == "infer" else ("bfloat16",):
        graph = capture.of_network(net, mode, autocast=dtype)
        assert signature(graph.ops) == signature(real_run(net, mode, getattr(torch, dtype)))
        assert sum(op.dtype == dtype for op in graph.ops if counts.matrix_flops(op)) > 10


class Mixed(nn.Module):
    """A product, normalisations, functions that autocast widens on CUDA, attention, and the product's weights once more."""

    def __init__(self):
        super().__init__()
        self.conv, self.batch = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.norm, self.layer = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        x = self.batch(self.conv(x)).flatten(2).transpose(1, 2)
        x = self.layer(self.layer(self.norm(x)))
        x = F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
        return F.softmax(x, -1).pow(2).sum(1)


MIXED = Network("mixed", Mixed, (2, 3, 8, 8))


def widths(graph, phase="forward"):
    return [(op.short, op.dtype, op.outputs[0].dtype) for op in graph.ops if op.phase == phase and counts.is_work(op)]


def test_on_cuda_layers_are_normalised_and_softmax_is_taken_in_fp32():
    """By torch's lists for CUDA (ATen/autocast_mode.h): each weight is cast once, what is not listed runs as it comes."""
    low, wide = "bfloat16", "float32"
    cast, widened = ("_to_copy", wide, low), ("_to_copy", low, wide)
    assert widths(capture.of_network(MIXED, autocast=low, device="cuda:0")) == [
        cast, cast, cast, ("convolution", low, low), ("native_batch_norm", low, low), widened,
        ("native_layer_norm", wide, wide), cast, cast, cast, ("addmm", low, low), ("addmm", low, low),
        ("_scaled_dot_product_flash_attention", low, low), widened, ("_softmax", wide, wide), ("pow", wide, wide),
        ("sum", wide, wide)]
    halves = widths(capture.of_network(MIXED, autocast="float16", device="cuda:0"))
    assert ("_softmax", "float16", wide) in halves, "in one kernel"
    assert ("cudnn_batch_norm", "float16", "float16") in halves
    trained = capture.capture(Mixed(), MIXED.shape, "train", "sgd", device="cuda:0", autocast="float16")
    backward = {short: dtype for short, dtype, _ in widths(trained, "backward")}
    assert backward["convolution_backward"] == backward["mm"] == backward["cudnn_batch_norm_backward"] == "float16"
    assert backward["native_layer_norm_backward"] == backward["pow"] == wide
    assert {dtype for _, dtype, _ in widths(trained, "optimizer")} == {wide}
    of_cpu = widths(capture.of_network(MIXED, autocast=low))
    assert {("native_layer_norm", low, low), ("_softmax", low, low)} < set(of_cpu), "all is put back"


def test_every_operator_that_autocast_changes_on_cuda_is_in_a_list():
    """Except those that are cast to the widest of their inputs, as torch promotes them anyway, parts of others, and cells."""
    promoted = set("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add cat stack "
                   "index_copy binary_cross_entropy _convolution convolution conv_tbc _thnn_fused_lstm_cell "
                   "_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell".split())
    listed = autocasts.LOWER | autocasts.FP32 | autocasts.RESULT_IN_FP32
    changed = torch._C._dispatch_has_kernel_for_dispatch_key
    for op in torch._C._dispatch_get_all_op_names():
        namespace, name = op.partition(".")[0].split("::")
        if namespace == "aten" and torch._C._dispatch_has_kernel(op) and changed(op, "AutocastCUDA") and \
                not changed(op, "AutocastCPU"):
            assert name in listed | promoted or "cudnn_" in name, op


def test_weights_are_kept_in_fp32_and_their_casts_take_memory():
    wide, low = (work.captured(MIXED, "infer", dtype, device="cuda:0") for dtype in ("float32", "bfloat16"))
    assert low.weight_bytes == wide.weight_bytes and low.not_modelled == wide.not_modelled == ()
    casts = sum(2 * one.numel() for name, one in Mixed().named_parameters() if name.startswith(("conv", "layer")))
    assert sum(size for made in low.plan.made for _, size in made) > casts
    dtypes = low.table.groupby("op")["dtype"].unique()
    assert {dtypes[op].item() for op in ("conv2d", "linear", "attention")} == {"bf16"}
    assert {dtypes[op].item() for op in ("layer_norm", "softmax")} == {"fp32"}


def test_products_that_autocast_leaves_in_fp32_are_told():
    class Left(Mixed):
        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                return super().forward(x)

    item = work.captured(Network("left", Left, (2, 3, 8, 8)), "infer", "bfloat16")
    assert "convolution in float32" in item.not_modelled
