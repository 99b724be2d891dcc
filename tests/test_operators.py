"""Operator families: building and recognising are inverse; what is impossible is refused with its reason."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.work.graph import counts, families, rebuild, spaces
from tests import refused

CONV = {"batch": 2, "in_channels": 8, "out_channels": 16, "height": 10, "width": 12, "kernel_h": 3, "kernel_w": 3,
        "stride_h": 2, "stride_w": 1, "padding_h": 1, "padding_w": 0}
SWEEPS = spaces.load_sweeps()


def told(op):
    name, params = families.describe(op)
    return name, canonical(name, params)


def canonical(name, params):
    """Bring descriptions of the same work into one form: a flat tensor has no rows, a vector no transpose."""
    flat = name in ("elementwise", "copy") and 1 in (params["outer"], params["inner"])
    if flat or (name == "elementwise" and params["broadcast"] in ("none", "scalar")):
        return {"kind": params["kind"], "elements": params["outer"] * params["inner"]}
    return params


def sampled(op, limits=SWEEPS.limits["cpu"], seed=0):
    return spaces.sample(op, SWEEPS.spaces[op], limits, seed)


@pytest.mark.parametrize("name", list(SWEEPS.spaces))
@pytest.mark.slow
def test_sampled_configurations_are_valid_recognised_and_run(name):
    draws, seen = sampled(name, spaces.Limits(most_flops=2e7, most_bytes=2e6), 3), set()
    for _ in range(12):
        config, ops = next(draws)
        assert config.key not in seen
        seen.add(config.key)
        flops, moved = spaces.work(ops)
        assert flops <= 2e7 and 0 < moved <= 2e6
        rebuild.runnable(ops, torch.device("cpu"))()
        if config.passes == "forward":
            assert told(ops[0]) == (name, canonical(name, dict(config.parameters)))


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_points_are_as_large_as_their_type_of_device_allows(device):
    points = itertools.islice(spaces.sample_families(["linear", "copy"], SWEEPS, 0, device=device), 150)
    flops, moved = np.max([spaces.work(ops) for _, ops in points], axis=0)
    limits = SWEEPS.limits[device.partition(":")[0]]
    assert limits.most_flops / 10 < flops <= limits.most_flops
    assert limits.most_bytes / 10 < moved <= limits.most_bytes


@given(st.fixed_dictionaries({
    "batch": st.integers(1, 4), "groups": st.sampled_from([1, 2, 4]), "bias": st.integers(0, 1),
    "layout": st.sampled_from(["contiguous", "channels_last"]),
    **{f"{what}_{axis}": st.integers(least, most) for what, least, most in (
        ("kernel", 1, 3), ("stride", 1, 3), ("padding", 0, 2), ("dilation", 1, 2)) for axis in "hw"}}))
def test_convolution_flops_are_the_formula(drawn):
    params = CONV | drawn
    ops = families.make("conv2d", params)
    assert families.describe(ops[0]) == ("conv2d", families.settled("conv2d", params))
    kernel, stride, padding, dilation = (np.array([params[f"{what}_{axis}"] for axis in "hw"])
                                         for what in ("kernel", "stride", "padding", "dilation"))
    out = ([10, 12] + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    assert ops[0].outputs[0].shape == (params["batch"], 16, *out)
    assert counts.flops(ops[0]) == 2 * params["batch"] * 16 * out.prod() * (8 // params["groups"]) * kernel.prod()
    backward = families.make("conv2d", params, passes="backward")
    assert counts.matrix_flops(backward[0]) == 2 * counts.matrix_flops(ops[0])


@pytest.mark.parametrize("name, params, words", [
    ("conv2d", CONV | {"groups": 3}, "groups 3 do not divide the channels 8 and 16"),
    ("conv2d", CONV | {"kernel_h": 20}, "the kernel reaches over 20 of 12 padded positions along height"),
    ("conv2d", CONV | {"colour": 1}, "unknown parameters .colour."), ("conv2d", {"batch": 1}, "missing .*kernel_h"),
    ("conv2d", CONV | {"layout": "nt"}, "layout 'nt' is none; there are: contiguous, channels_last"),
    ("pool2d", {"kind": "avg", "batch": 1, "in_channels": 1, "height": 4, "width": 4}, "kind avg needs kernel_h")])
def test_impossible_parameters_are_refused(name, params, words):
    with refused(words):
        families.make(name, params)


def test_a_grid_is_walked_once_and_shards_share_it():
    grid = spaces.Grid(op="conv2d", dtypes=("fp32", "bf16"), axes={
        "batch": [1, 2], "in_channels": [1, 3, 4], "out_channels": [8], "height": [8, 16], "width": "height", "kernel_h": [3],
        "kernel_w": "kernel_h", "stride_h": [1], "stride_w": "stride_h", "padding_h": "half kernel_h",
        "padding_w": "half kernel_w", "groups": [1, 2]})
    whole = {config.key: dict(config.parameters) for config in spaces.product(grid, seed=0)}
    assert len(whole) == 2 * 2 * 3 * 2 * 2
    parts = [[config.key for config in spaces.product(grid, seed=0, shard=(number, 3))] for number in range(3)]
    assert sorted(key for part in parts for key in part) == sorted(whole)
    for values in whole.values():
        assert values["width"] == values["height"] and values["padding_h"] == 1


def test_the_original_grid_has_its_size_and_is_lazy():
    grid = SWEEPS.grids["original_convolution"]
    sizes = [len(grid.dtypes), *(len(axis.of) for axis in grid.axes.values())]
    assert math.prod(sizes) * 2 == 41_990_400  # the original counts both latency types
    next(spaces.product(grid, seed=0))


def test_a_key_depends_on_what_is_measured_alone():
    one = spaces.config("conv2d", CONV)
    assert one.key == spaces.config("conv2d", {**dict(reversed(CONV.items())), "bias": 0, "groups": 1}).key
    assert one.key != spaces.config("conv2d", {**CONV, "batch": 3}).key
    assert one.key != spaces.Config(one.op, one.parameters, one.dtype, one.passes, "kernel", "cold").key


def test_a_sweep_that_is_soon_over_has_a_point_of_each_family():
    families_drawn = {config.op for config, _ in itertools.islice(
        spaces.sample_families(list(SWEEPS.spaces), SWEEPS, 0, device="cuda:0"), len(SWEEPS.spaces))}
    assert families_drawn == set(SWEEPS.spaces)
