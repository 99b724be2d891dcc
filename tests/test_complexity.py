"""What complexity counts, against hand counts, published numbers, torch's counter and a real run."""

import math
import sys

import pandas as pd
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib import paths, store
from lib.config import notebooks
from lib.predict.analytic import complexity
from lib.predict.published import kernels
from lib.tables import columns
from lib.work import user_code
from lib.work.building import fakes
from lib.work.graph import capture
from tests import refused

V100 = paths.ROOT.parent / "shared/data/pytorch-scheduler"


def table(*question):
    return complexity.rows_of(complexity.analyse(*question))


def totals(*question):
    return complexity.sums_of(complexity.analyse(*question), table(*question))


@pytest.mark.slow
@pytest.mark.parametrize("name, macs, parameters", [
    ("resnet50", 4_089_184_256, 25_557_032), ("mobilenet_v2", 300_774_272, 3_504_872),
    ("vit_b_16", 17_563_828_224, 86_567_656)])
def test_the_known_numbers(name, macs, parameters):
    result = totals(name, 1)
    assert result["macs_forward"] == macs and result["params"] == parameters


@pytest.mark.slow
@pytest.mark.parametrize("name, is_grouped", [("resnet50", False), ("vit_b_16", False), ("W6", False), ("mobilenet_v2", True)])
def test_flops_of_products_are_those_of_torchs_counter(name, is_grouped):
    """Torch's counter takes weight gradients of grouped convolutions as if there were no groups."""
    ours = complexity.analyse(name, 2)
    model = user_code.in_mode(fakes.unwritten(ours.network.build), True)
    with fakes.active(), FlopCounterMode(display=False) as counter:
        inputs, named = ours.network.made("cpu")
        output = model(*inputs, **named)
        forward = counter.get_total_flops()
        output.sum().backward()
        backward = counter.get_total_flops() - forward
    assert forward == ours.matrix_flops("forward") > 0
    assert backward > 3 * ours.matrix_flops("backward") if is_grouped else backward == ours.matrix_flops("backward")


@pytest.mark.slow
def test_every_parameter_of_a_classifier_is_counted_once():
    rows = table("shufflenet_v2_x1_0", 2)
    assert (rows.params >= 0).all() and "unused" not in set(rows.op)
    assert rows.params.sum() == totals("shufflenet_v2_x1_0", 2)["params"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["W1", "W6", "mobilenet_v3_small"])
def test_saved_activations_are_those_that_a_real_run_saves(name):
    """Autograd saves the input batch, too, which is no activation."""
    ours, saved = complexity.analyse(name, 3), {}
    model, (inputs, named) = user_code.in_mode(ours.network.build(), True), ours.network.made("cpu")
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), *inputs)}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = capture.default_loss(model(*inputs, **named))
    measured = sum(storage.nbytes() for place, storage in saved.items() if place not in known)
    assert loss.requires_grad and measured == totals(name, 3)["activation_mb"] * 1e6


@pytest.mark.parametrize("name, rows", [("19_may", 147), ("22_may", 16)])
def test_flops_of_the_v100_convolutions(name, rows):
    """A row whose FLOPs are not those of its shapes is refused."""
    path = V100 / f"results_convolution_v100_{name}.csv"
    if not path.is_file():
        pytest.skip(f"the measured convolutions are not here: {path}")
    (table,) = kernels.pytorch_scheduler(path).values()
    assert len(table) == rows


def test_simple_cnn_layer_by_layer():
    layers = complexity.by_layer(table("W1", 4)).set_index("layer")
    conv = layers.loc["features.3"]
    assert conv.params == 32 * 64 * 9 + 64
    assert conv.flops_forward == 2 * 4 * 14 * 14 * 32 * 64 * 9
    assert conv.flops_backward == 2 * conv.flops_forward + 4 * 14 * 14 * 64  # and the bias's gradient
    assert conv.bytes_forward == 4 * (4 * 14 * 14 * (32 + 64) + 32 * 64 * 9 + 64)
    assert layers.activation_bytes["features.1"] == 4 * 4 * 28 * 28 * 32  # ReLU's output
    assert layers.activation_bytes["features.2"] == (4 + 8) * 4 * 14 * 14 * 32  # the maxima and where they were
    assert layers.params.sum() == 110_921
    assert layers.index[-1] == "loss" and layers.params["loss"] == 0


def test_totals_are_the_sums_of_the_rows_and_scale_with_the_batch():
    one, eight = totals("resnet18", 1), totals("resnet18", 8)
    assert list(table("resnet18", 8)) == columns("complexity")
    assert eight["params"] == one["params"] and eight["macs_forward"] == 8 * one["macs_forward"]
    assert one["bytes_forward"] < eight["bytes_forward"] < 8 * one["bytes_forward"]
    assert 1.8 < eight["backward_over_forward"] < 2


ODD = '''
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(12, 10), nn.Linear(5, 5)

    def forward(self, x):
        return self.used(torch.i0(x.flatten(1).tanh()))
'''


@pytest.fixture
def odd(tmp_path, monkeypatch):
    (tmp_path / "oddities.py").write_text(ODD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "oddities", raising=False)
    complexity.analyse.cache_clear()
    return "oddities:Odd"


def test_unknown_flops_are_unknown_and_unused_parameters_are_counted(odd, home):
    result, rows = totals(odd, 2, "3x2x2"), table(odd, 2, "3x2x2")
    complexity.save(rows, pd.DataFrame([result]))
    rows = rows.set_index(["layer", "op"])
    assert math.isnan(rows.flops_forward["", "i0"])
    assert rows.params["", "unused"] == 30
    assert rows.params["used", "addmm"] == 130
    assert math.isnan(result["flops_forward"])
    assert result["macs_forward"] == 2 * 120
    assert "aten.i0" in result["uncounted"]
    entry = store.read_json(paths.COMPLEXITY / "summary.json")[odd]["2"]
    assert entry["mult_adds_per_batch_forward"] == 240 and entry["all_flops_per_batch_forward"] is None


def test_a_detail_of_no_model_is_one_line():
    with refused("detail = 'W2' is not among the models"):
        notebooks.check("04_complexity", {"models": "W1", "detail": "W2"})
    notebooks.check("04_complexity", {"models": "W1, W2", "detail": " W2"})
