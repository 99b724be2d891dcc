"""Backward passes of convolutions on GPUs, from forward kernels of the shapes of their gradients."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.predict import registry
from lib.predict.operators import features, features_gpu, gradients
from tests.test_gpu_models import V100, convolution


def kernels(row):
    """Return the forward kernels of one row, as columns."""
    return [kernel for _, _, kernel in gradients.as_forward_kernels(features.columns(pd.DataFrame([row])), V100)]


def backward(**sizes):
    return convolution("backward", **{"batch": 4, "in_channels": 64, "out_channels": 128, **sizes})


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 3, 5]), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1))
def test_gradients_share_the_work_and_multiply_as_much_as_they_say(stride, kernel, sizes, batch, input_grad):
    row = backward(input_grad=input_grad, batch=batch, in_channels=16 * sizes, out_channels=48, kernel=kernel, stride=stride)
    several = kernels(row)
    assert len(several) == 1 + input_grad
    assert sum(kernel.flops.item() for kernel in several) == pytest.approx(row["flops"])
    for kernel in several:
        assert 2.0 * np.prod(features_gpu.gemm_of(kernel)) == pytest.approx(kernel.flops.item())
    assert several[-1].op == "matmul", "weights: a product over all samples and pixels"
    assert several[-1].gemm_k == row["batch"] * (28 // stride) ** 2


def test_the_gradient_of_a_square_input_is_the_convolution_itself_with_channels_exchanged():
    exchanged = features.columns(pd.DataFrame([backward(in_channels=128, out_channels=64)]))
    assert np.allclose(features_gpu.gemm_of(kernels(backward())[0]), features_gpu.gemm_of(exchanged))


@pytest.mark.parametrize("device", ["v100-pcie-32gb", "t4"])
def test_a_backward_pass_takes_two_forward_kernels_and_says_so(device):
    model = registry.predictor(device, "fp32").model
    shapes = ({}, {"input_grad": 0}, {"stride": 2}, {"in_channels": 128, "groups": 128})
    table = pd.DataFrame([backward(**shape) for shape in shapes])
    answer, work = model.predict(table), 1 + table["input_grad"]
    share = (answer["predicted_ms"] / model.predict(table.assign(**{"pass": "forward"}, flops=table["flops"] / work))[
        "predicted_ms"]).to_numpy()
    assert (share[[0, 2, 3]] > 1.2).all() and (share < 6).all() and share[1] < share[0]
    assert answer["out_of_range"].all() and (answer["origin"] != "").all()
    assert (answer["low_ms"] < answer["predicted_ms"]).all() and (answer["predicted_ms"] < answer["high_ms"]).all()


def test_what_was_measured_backward_answers_for_itself():
    model, table = registry.predictor("v100-pcie-32gb", "fp32").model, pd.DataFrame([backward()])
    measured = replace(model, parts={**model.parts, "convolution backward": model.parts["convolution forward"]})
    answer, expected = measured.predict(table), model.predict(table.assign(**{"pass": "forward"}))
    assert answer["predicted_ms"][0] == pytest.approx(expected["predicted_ms"][0])
    assert answer["origin"][0] == ""
