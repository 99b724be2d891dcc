"""Backward passes of convolutions on GPUs, from forward kernels of the shapes of their gradients."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.predict import registry
from lib.predict.operators import features, features_gpu, gradients
from lib.predict.operators.chip import extents
from tests.test_gpu_models import V100


def row(input_grad=1, **sizes):
    """Return a backward convolution as a row of a ``sweep`` table."""
    p = {"batch": 4, "in_channels": 64, "out_channels": 128, "height": 28, "width": 28, "kernel_h": 3, "kernel_w": 3,
         "stride_h": 1, "stride_w": 1, "padding_h": 1, "padding_w": 1, "dilation_h": 1, "dilation_w": 1, "groups": 1,
         "layout": "contiguous", "input_grad": input_grad, **sizes}
    _, height, width = (float(extent[0]) for extent in extents(features.one("conv2d", p, 1.0, 1.0)))
    outputs = p["batch"] * p["out_channels"] * height * width
    forward = 2.0 * outputs * p["in_channels"] / p["groups"] * p["kernel_h"] * p["kernel_w"]
    moved = 4.0 * (p["batch"] * p["in_channels"] * p["height"] * p["width"] + outputs)
    return {"op": "conv2d", **p, "flops": forward * (1 + input_grad), "bytes": moved * (1 + input_grad), "pass": "backward"}


def kernels(one):
    """Return the forward kernels of one row, as columns."""
    return [kernel for _, kernel in gradients.of(features.columns(pd.DataFrame([one])), V100)]


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 3, 5]), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_gradients_share_the_work_and_multiply_as_much_as_they_say(stride, kernel, sizes, batch, input_grad):
    one = row(int(input_grad), batch=batch, in_channels=16 * sizes, out_channels=48, kernel_h=kernel, kernel_w=kernel,
              stride_h=stride, stride_w=stride, padding_h=kernel // 2, padding_w=kernel // 2)
    several = kernels(one)
    assert len(several) == 1 + input_grad
    assert sum(kernel["flops"].item() for kernel in several) == pytest.approx(one["flops"])
    for kernel in several:
        batches, m, n, k = features_gpu.gemm_of(kernel)
        assert 2.0 * batches * m * n * k == pytest.approx(kernel["flops"])
    assert several[-1]["op"] == "matmul", "weights: a product over all samples and pixels"
    assert several[-1]["gemm_k"] == pytest.approx(one["batch"] * (28 // stride) ** 2)


def test_the_gradient_of_a_square_input_is_the_convolution_itself_with_channels_exchanged():
    one = row()
    of_input, _ = kernels(one)
    exchanged = features.one("conv2d", {**one, "in_channels": 128, "out_channels": 64}, one["flops"] / 2, 0.0)
    assert np.allclose(features_gpu.gemm_of(of_input), features_gpu.gemm_of(exchanged))


def test_groups_of_products_are_a_batch_and_narrow_ones_as_much_work_again():
    *_, weights = kernels(row(in_channels=64, out_channels=64, groups=2))
    assert [weights[name].item() for name in ("op", "batch", "gemm_m", "gemm_n")] == ["bmm", 2, 32, 32 * 9]
    assert [kernel["op"].item() for kernel in kernels(row(in_channels=64, out_channels=64, groups=64))] == ["conv2d", "conv2d"]


@pytest.mark.parametrize("device", ["v100-pcie-32gb", "t4", "a100-pcie-40gb"])
def test_a_backward_pass_takes_two_forward_kernels_and_says_so(device):
    model = registry.predictor(device, "fp32").model
    model = replace(model, parts={name: part for name, part in model.parts.items() if not name.endswith("backward")})
    table = pd.DataFrame([row(), row(0), row(stride_h=2, stride_w=2), row(in_channels=128, groups=128)])
    answer = model.predict(table)
    forward = table.assign(**{"pass": "forward", "flops": table["flops"] / (1 + table["input_grad"])})
    share = (answer["predicted_ms"] / model.predict(forward)["predicted_ms"]).to_numpy()
    assert (share[[0, 2, 3]] > 1.2).all() and (share < 6).all() and share[1] < share[0]
    assert answer["out_of_range"].all() and (answer["origin"] != "").all()
    assert (answer["low_ms"] < answer["predicted_ms"]).all() and (answer["predicted_ms"] < answer["high_ms"]).all()
    for number, one in enumerate(table.to_dict("records")):
        op, flops, moved, passes = (one.pop(name) for name in ("op", "flops", "bytes", "pass"))
        assert model.predict_one(op, one, flops, moved, passes) == pytest.approx(
            tuple(answer.loc[number, ["predicted_ms", "low_ms", "high_ms"]]))


def test_what_was_measured_backward_answers_for_itself():
    model, table = registry.predictor("v100-pcie-32gb", "fp32").model, pd.DataFrame([row()])
    measured = replace(model, parts={**model.parts, "convolution backward": model.parts["convolution forward"]})
    answer, expected = measured.predict(table), model.predict(table.assign(**{"pass": "forward"}))
    assert answer["predicted_ms"][0] == pytest.approx(expected["predicted_ms"][0])
    assert answer["origin"][0] == ""
