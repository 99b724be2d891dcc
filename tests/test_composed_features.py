"""What decides how long kernels of whole networks take; networks as they were measured: groups, merged branches."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

from lib.predict.composed import evaluation, features, kinds, model, rows, training
from lib.predict.composed.training import Cases
from lib.work import networks
from lib.work.building.timm_models import MERGED
from lib.work.graph import capture
from lib.work.networks import Network
from tests.test_composed import CHIP, EAGER, synthetic

COMPILED, NHWC = replace(EAGER, compiled=True), replace(EAGER, layout="nhwc")


def rows_of(*layers, sample=(128, 8, 8)):
    return rows.of_graph(capture.of_network(Network("few", lambda: nn.Sequential(*layers), (rows.BATCH, *sample)), "infer",
                                            device="cuda:0"))


def computing(table, condition, kind, name):
    terms = features.terms(table, 64.0, CHIP, condition)
    code = kinds.KINDS.index(kind)
    return terms.computing[terms.edges[code]:terms.edges[code + 1], features.COMPUTING_FEATURES.index(name)].unique().tolist()


@pytest.mark.parametrize(("groups", "wide", "odd"), [(32, 0, 0), (4, 0, 0), (2, 1, 0)])
def test_groups_are_wide_beyond_32_channels(groups, wide, odd):
    table = rows_of(nn.Conv2d(128, 128, 3, groups=groups))
    assert computing(table, EAGER, "conv_grouped", "group_wide") == [wide]
    assert computing(table, EAGER, "conv_grouped", "group_odd") == [odd]


def test_groups_of_other_than_powers_of_two_are_odd():
    table = rows_of(nn.Conv2d(128, 120, 1), nn.Conv2d(120, 120, 3, groups=5))
    assert computing(table, EAGER, "conv_grouped", "group_odd") == [1]


def test_resampling_in_eager_mode_goes_through_images_and_channels_one_by_one():
    table, parts = rows_of(nn.Upsample(scale_factor=2, mode="bilinear")), model.split(torch.as_tensor(model.usual()))
    slow, fast = (float(model.log_ms(features.terms(table, 1024.0, CHIP, one), parts).exp()) for one in (EAGER, COMPILED))
    assert slow > 1024 * 128 * 2e-4
    assert fast < slow / 10


class Sampled(nn.Module):
    """A picture sampled at the places of another one."""

    def forward(self, x):
        return functional.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False)


@pytest.mark.parametrize(("mode", "sample", "in_nhwc"), [
    ("linear", (128, 32), 128), ("bilinear", (128, 8, 8), 0), ("bilinear", (128, 2, 32), 0), ("bicubic", (128, 8, 8), 128),
    ("trilinear", (128, 4, 4, 4), 128), ("nearest", (128, 8, 8), 0)])
def test_resampling_waits_for_each_image_and_channel_whatever_the_shape_where_torch_has_no_other_kernel(mode, sample, in_nhwc):
    table = rows_of(nn.Upsample(scale_factor=2, mode=mode), sample=sample)
    planes = 0 if mode == "nearest" else 128
    for condition, waits in ((EAGER, planes), (NHWC, in_nhwc), (COMPILED, 0)):
        terms = features.terms(table, 64.0, CHIP, condition)
        code = kinds.KINDS.index("index" if mode == "nearest" else "resample")
        if condition == COMPILED and mode == "nearest":
            continue  # the compiler fuses it
        move_ms = terms.move_ms[terms.edges[code]:terms.edges[code + 1]].item()
        moved = table[table["kind"] == kinds.KINDS[code]].iloc[0]
        at_rates = (moved["read"] + moved["written"]) * 64 / rows.BATCH / CHIP.bytes_per_ms
        assert move_ms == pytest.approx(max(64 * waits * 2.5e-4, at_rates))


class Mixed(nn.Module):
    """A picture whose pixels are mixed by a product of matrices, so that it lies as that writes it."""

    def __init__(self, tokens: bool):
        super().__init__()
        self.tokens, self.convolution = tokens, nn.Conv2d(128, 128, 1)

    def forward(self, x):
        x = self.convolution(x).flatten(2)
        mixed = x.transpose(1, 2) @ (x @ x.transpose(1, 2)) if self.tokens else (x @ x.transpose(1, 2)) @ x
        return functional.interpolate((mixed.transpose(1, 2) if self.tokens else mixed).unflatten(2, (8, 8)), scale_factor=2,
                                      mode="bilinear")


@pytest.mark.parametrize(("layers", "in_nchw", "in_nhwc"), [
    ((nn.Conv2d(128, 128, 1), nn.BatchNorm2d(128), nn.GELU(), nn.Upsample(scale_factor=2, mode="bilinear")), 256, 0),
    ((Mixed(tokens=False),), 256, 256), ((Mixed(tokens=True),), 0, 0)])
def test_the_layout_of_what_is_resampled_is_that_of_what_wrote_it(layers, in_nchw, in_nhwc):
    """In channels_last what convolutions write; of products of matrices the one that they write in either condition."""
    table = rows_of(*layers)
    assert table[table["kind"] == "resample"][["serial", "serial_nhwc"]].to_numpy().tolist() == [[in_nchw, in_nhwc]]


def test_what_is_no_interpolation_waits_for_nothing():
    table = rows_of(Sampled())
    assert "resample" in set(table["kind"])
    assert not table[["serial", "serial_nhwc"]].to_numpy().any()


def test_many_networks_of_a_family_outweigh_few_of_others_less_where_errors_go_together(monkeypatch):
    frames = synthetic(60, 1)
    joined, network = pd.concat(frames, ignore_index=True), np.repeat(np.arange(60), 3)
    terms = features.terms(joined, 64.0, CHIP, EAGER, network, 60)
    many = np.arange(60) < 50
    logs = model.log_ms(terms, model.split(torch.as_tensor(model.usual()))).numpy() + np.where(many, 0.3, 0.0)
    cases = Cases(terms, logs, ("way:compiled",), np.where(many, "many", [f"m{number}" for number in range(60)]))

    def error_of_few(alike):
        monkeypatch.setattr(training, "ALIKE", {"way:compiled": alike})
        weights = training.fit({"a": cases}, {"a": np.full(60, True)}, 60)
        return np.abs(training.predict(cases, weights) - logs)[~many].mean()
    assert error_of_few(0.5) < 0.5 * error_of_few(0.0)


def test_networks_whose_branches_were_merged_are_told_by_their_parameters():
    names = ["repghostnet_100", "repghostnet_100", "resnet18", "resnet18", "resnet18", "nonet_1"]
    table = pd.DataFrame({"network": names, "image_size": 64, "parameters_m": [4.07, 4.06, 11.69, 11.7, 11.18, 5.0],
                          "module": "m"})
    named, captures, reasons = evaluation.captured(table)
    assert named["network"].tolist() == ["repghostnet_100", "repghostnet_100" + MERGED, "resnet18", "resnet18", "nonet_1"]
    assert set(captures) == {(name, 64) for name in named["network"][:3]}, "none that no row is of"
    assert set(reasons) == {"nonet_1 64", "resnet18 64 of 11.18 M parameters"}
    assert reasons["resnet18 64 of 11.18 M parameters"] == \
        "timm builds it with 11.69 M, with merged branches with 11.69 M"
    plain, merged = (captures[name, 64] for name in named["network"][:2])
    assert rows.parameters(plain) == pytest.approx(4.07e6, rel=2e-3)
    assert merged.loc[merged["stage"] == "eager", "calls"].sum() < 0.9 * plain.loc[plain["stage"] == "eager", "calls"].sum()
    assert networks.family(f"timm:repghostnet_100{MERGED}") == "repghost"
