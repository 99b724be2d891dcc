"""What decides how long kernels of whole networks take; networks as they were measured: groups, merged branches."""

from dataclasses import replace

import pandas as pd
import pytest
from torch import nn
from torch.nn import functional

from lib.predict.cards import features, learning, operator_kinds, rows
from lib.work import networks
from lib.work.building.timm_models import MERGED
from lib.work.graph import capture
from lib.work.networks import Network
from tests.test_cards import CHIP, EAGER

PICTURE = (128, 8, 8)


def rows_of(*layers, sample=PICTURE):
    return rows.of_graph(capture.of_network(Network("few", lambda: nn.Sequential(*layers), (rows.BATCH, *sample)), "infer",
                                            device="cuda:0"))


def test_resampling_in_eager_mode_goes_through_images_and_channels_one_by_one():
    table = rows_of(nn.Upsample(scale_factor=2, mode="bilinear"))
    moved = table[table["kind"] == "resample"].iloc[0]
    at_rates = (moved["read"] + moved["written"]) * 64 / rows.BATCH / CHIP.bytes_per_ms
    for condition, planes in ((EAGER, 128), (replace(EAGER, layout="nhwc"), 0), (replace(EAGER, compiled=True), 0)):
        terms, code = features.terms(table, 64.0, CHIP, condition), operator_kinds.KERNEL_KINDS.index("resample")
        assert terms.move_ms[terms.edges[code]:terms.edges[code + 1]].item() == pytest.approx(
            max(64 * planes * 2.5e-4, at_rates))


class Mixed(nn.Module):
    """A picture whose pixels are mixed by a product of matrices, so that it lies as that writes it."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.convolution = tokens, nn.Conv2d(128, 128, 1)

    def forward(self, x):
        x = self.convolution(x).flatten(2)
        mixed = x.transpose(1, 2) @ (x @ x.transpose(1, 2)) if self.tokens else (x @ x.transpose(1, 2)) @ x
        return functional.interpolate((mixed.transpose(1, 2) if self.tokens else mixed).unflatten(2, (8, 8)), scale_factor=2,
                                      mode="bilinear")


@pytest.mark.parametrize("layers, sample, in_nchw, in_nhwc", [
    ([nn.Upsample(scale_factor=2, mode="bilinear")], PICTURE, 256, 0),
    ([nn.Upsample(scale_factor=2, mode="trilinear")], (128, 4, 4, 4), 256, 256),
    ([nn.Upsample(scale_factor=2, mode="nearest")], PICTURE, 0, 0),
    ([Mixed(tokens=False)], PICTURE, 256, 256), ([Mixed(tokens=True)], PICTURE, 0, 0)])
def test_resampling_waits_for_each_image_and_channel_where_torch_has_no_other_kernel(layers, sample, in_nchw, in_nhwc):
    """What is resampled lies as what wrote it: convolutions in channels_last, products of matrices as in either condition."""
    table = rows_of(*layers, sample=sample)
    assert table[["serial", "serial_nhwc"]].sum().tolist() == [in_nchw, in_nhwc]
    assert ("resample" in set(table["kind"])) == (getattr(layers[-1], "mode", "") != "nearest")


@pytest.mark.slow
def test_networks_whose_branches_were_merged_are_told_by_their_parameters():
    names = ["repghostnet_100", "repghostnet_100", "resnet18", "resnet18", "resnet18", "nonet_1"]
    table = pd.DataFrame({"network": names, "image_size": 64, "parameters_m": [4.07, 4.06, 11.69, 11.7, 11.18, 5.0],
                          "module": "m"})
    named, reasons = learning.captured(table)
    assert named["network"].tolist() == ["repghostnet_100", "repghostnet_100" + MERGED, "resnet18", "resnet18"]
    assert set(reasons) == {"nonet_1 64", "resnet18 64 of 11.18 M parameters"}
    assert reasons["resnet18 64 of 11.18 M parameters"] == \
        "timm builds it with 11.69 M, with merged branches with 11.69 M"
    plain, merged = named["rows"][:2]
    assert rows.parameters(plain) == pytest.approx(4.07e6, rel=2e-3)
    assert merged.loc[merged["stage"] == "eager", "calls"].sum() < 0.9 * plain.loc[plain["stage"] == "eager", "calls"].sum()
    assert networks.family(f"timm:repghostnet_100{MERGED}") == "repghost"
