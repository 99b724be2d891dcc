"""What complexity counts, against hand counts, published numbers and second sources."""

import math
import sys
from functools import cache, partial

import pandas as pd
import pytest

from lib import paths, store
from lib.config import notebooks
from lib.predict.analytic import complexity, cross_check
from lib.predict.published import kernels
from lib.tables import columns
from tests import refused

V100 = paths.ROOT.parent / "shared/data/pytorch-scheduler"
compared = cache(partial(cross_check.compare, measured=False))


def table(*question):
    return complexity.rows_of(complexity.analyse(*question))


def totals(*question):
    return complexity.sums_of(complexity.analyse(*question), table(*question))


@pytest.mark.slow
@pytest.mark.parametrize("name, macs, parameters, torchinfos", [
    ("resnet50", 4_089_184_256, 25_557_032, 4_089_238_376),
    ("mobilenet_v2", 300_774_272, 3_504_872, 300_809_384), ("vit_b_16", 17_563_828_224, 86_567_656, 173_232_616)])
def test_the_known_numbers_and_torchinfos_and_what_lies_between(name, macs, parameters, torchinfos):
    result, checks = totals(name, 1), compared(name)
    assert result["macs_forward"] == macs and result["params"] == parameters
    assert list(checks[checks.quantity == "multiply-adds, forward"].theirs) == [torchinfos]
    assert checks.theirs.notna().all() and (checks.rest == 0).all()


@pytest.mark.slow
def test_the_rules_in_numbers():
    vit = compared("vit_b_16").set_index("quantity")
    # 12 blocks, 197 tokens of 768: the in-projection, the out-projection and the two products of 12 heads
    attention = 12 * (197 * 768 * 768 * 4 + 2 * 197 * 197 * 768)
    assert f"products outside of leaf modules {-attention:+,}" in vit.explanation["multiply-adds, forward"]
    assert vit.difference["FLOPs of products, inference"] == -2 * attention
    assert vit.difference["FLOPs of products, backward"] == 0
    mobile = compared("mobilenet_v2").set_index("quantity").loc["FLOPs of products, backward"]
    assert mobile.theirs > 9 * mobile.ours


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shufflenet_v2_x1_0"])
def test_every_difference_of_a_classifier_is_explained_and_every_parameter_counted_once(name):
    checks, rows = compared(name, 2), table(name, 2)
    assert checks.theirs.notna().all()
    assert (checks.rest == 0).all(), checks[checks.rest != 0]
    assert (rows.params >= 0).all() and "unused" not in set(rows.op)
    assert rows.params.sum() == totals(name, 2)["params"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["W1", "W6", "mobilenet_v3_small"])
def test_saved_activations_are_those_that_a_real_run_saves(name):
    checks = cross_check.compare(name, 3)
    kept = checks[checks.quantity == "bytes saved for the backward pass"].iloc[0]
    assert kept.ours > 0 and kept.rest == 0


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
